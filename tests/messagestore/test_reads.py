"""Pages of a queue: statuses, limits, filters, visibility (docs/formats/read-rules.md)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from storageio import StoreCorrupt
from tests.helpers import until
from tests.messagestore.kit import (
    Clock,
    GateDisk,
    hold_dispatch,
    message,
    number_of,
    open_small,
    put_numbers,
    read_all,
    sync_mode,
)


def status_of(page: Any) -> tuple[str, int]:
    return page.status.name, page.next_offset


def settle_at(store: Any, topic: str, queue_id: int, count: int) -> None:
    until(lambda: store.max_offset(topic, queue_id) == count)


# Statuses and next offsets, row by row of docs/formats/read-rules.md#page-status


def test_no_such_topic_is_answered_like_an_empty_queue(world: Any, tmp_path: Path) -> None:
    """RocketMQ never returns NO_MATCHED_LOGIC_QUEUE; the call creates nothing on the disk."""
    with open_small(world, tmp_path / "s") as store:
        assert status_of(store.get("nobody", 0, 0)) == ("NO_MESSAGE_IN_QUEUE", 0)
        assert status_of(store.get("nobody", 3, 17)) == ("NO_MESSAGE_IN_QUEUE", 0)
        assert not (tmp_path / "s" / "consumequeue" / "nobody").exists()


def test_offsets_at_and_beyond_the_end(world: Any, tmp_path: Path) -> None:
    """One beyond the end stays, far beyond is set to the end."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(5))
        assert status_of(store.get("T", 0, 4)) == ("FOUND", 5)
        assert status_of(store.get("T", 0, 5)) == ("OFFSET_OVERFLOW_ONE", 5)
        assert status_of(store.get("T", 0, 6)) == ("OFFSET_OVERFLOW_BADLY", 5)
        assert status_of(store.get("T", 0, 1 << 60)) == ("OFFSET_OVERFLOW_BADLY", 5)


def test_an_offset_below_the_minimum_is_set_to_it(world: Any, tmp_path: Path) -> None:
    """After the first log file was deleted, the minimum is the first unit with a record; -1 is below it too."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(1500))
        store.get("T", 0, 0)
        second = store.engine.log.queue.files[1].start_offset
        first_left = next(offset for offset, unit in store.engine.queues.get("T", 0).units() if unit.physical_offset >= second)
        assert store.engine.log.queue.delete_first(1) == 1
        store.engine.queues.correct_min_offsets(store.engine.log.min_offset)
        assert store.min_offset("T", 0) == first_left > 0
        assert status_of(store.get("T", 0, 0)) == ("OFFSET_TOO_SMALL", first_left)
        assert status_of(store.get("T", 0, -1)) == ("OFFSET_TOO_SMALL", first_left)
        page = store.get("T", 0, first_left)
        assert (page.status.name, number_of(page.messages[0])) == ("FOUND", first_left)
        assert store.earliest_time() == page.messages[0].store_timestamp_ms


def test_minimum_after_retention_is_unchanged_by_a_reopen(world: Any, tmp_path: Path) -> None:
    """Minima are not stored; they are found again from log and queues."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(1500))
        store.get("T", 0, 0)
        store.engine.log.queue.delete_first(1)
        store.engine.queues.delete_expired(store.engine.log.min_offset)
        low = store.min_offset("T", 0)
    for mode in ("r", "r+"):
        with open_small(world, tmp_path / "s", mode) as store:
            assert store.min_offset("T", 0) == low
            assert status_of(store.get("T", 0, low - 1)) == ("OFFSET_TOO_SMALL", low)
            assert [number_of(found) for found in store.read("T", 0)] == list(range(low, 1500))


def test_get_skips_units_of_expired_records(world: Any, tmp_path: Path) -> None:
    """MESSAGE_WAS_REMOVING is for a page of deleted records only; a later record in it is found."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(1500))
        store.get("T", 0, 0)
        second = store.engine.log.queue.files[1].start_offset
        units = store.engine.queues.get("T", 0).units
        gone = sum(unit.physical_offset < second for _, unit in units())
        store.engine.log.queue.delete_first(1)
        page = store.get("T", 0, 0)
        assert status_of(page) == ("MESSAGE_WAS_REMOVING", 100)
        last_file = (gone - 1) // 100 * 100
        page = store.get("T", 0, last_file)
        assert page.status.name == "FOUND"
        assert number_of(page.messages[0]) == gone


def test_a_page_ends_with_its_queue_file(world: Any, tmp_path: Path) -> None:
    """With 100 units per file, a page from 90 has ten, and the next one begins with the next file."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(150))
        page = store.get("T", 0, 90)
        assert [number_of(found) for found in page.messages] == list(range(90, 100))
        assert page.next_offset == 100
        assert [number_of(found) for found in store.get("T", 0, 100).messages] == list(range(100, 132))


# Limits


@pytest.mark.parametrize(("max_count", "expected"), [(32, 32), (20, 20), (10, 10), (1, 1), (64, 32)])
def test_pull_sizes(world: Any, tmp_path: Path, max_count: int, expected: int) -> None:
    """The sizes are 32, 20 and 10, and never more than 32 from memory."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(60))
        page = store.get("T", 0, 0, max_count)
        assert [number_of(found) for found in page.messages] == list(range(expected))
        assert status_of(page) == ("FOUND", expected)


def test_a_page_of_old_records_holds_eight(world: Any, tmp_path: Path) -> None:
    """A page from the disk has at most 8 messages."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(60))
        store.get("T", 0, 0)
        store._reader._memory_bytes = 0
        assert len(store.get("T", 0, 0, 32).messages) == 8
        assert len(store.get("T", 0, 0, 5).messages) == 5


def test_limits_by_bytes(world: Any, tmp_path: Path) -> None:
    """The first message always fits; then the bytes of whole records count."""
    with open_small(world, tmp_path / "s") as store:
        size = put_numbers(world, store, range(20), size=1000)[0].size_bytes
        assert len(store.get("T", 0, 0, max_bytes=1).messages) == 1
        assert len(store.get("T", 0, 0, max_bytes=3 * size).messages) == 3
        assert len(store.get("T", 0, 0, max_bytes=3 * size - 1).messages) == 2
        page = store.get("T", 0, 0, max_bytes=5 * size)
        assert (page.size_bytes, page.next_offset) == (5 * size, 5)


def test_at_most_a_quarter_of_a_mebibyte_from_memory_and_64_kib_from_the_disk(world: Any, tmp_path: Path) -> None:
    """The transfer limits hold whatever the caller allows."""
    with open_small(world, tmp_path / "s") as store:
        size = put_numbers(world, store, range(20), size=30_000)[0].size_bytes
        assert len(store.get("T", 0, 0).messages) == 262_144 // size
        store._reader._memory_bytes = 0
        assert len(store.get("T", 0, 0).messages) == 65_536 // size


def test_filtered_get_examines_at_most_800_units(world: Any, tmp_path: Path) -> None:
    """A filter without a match examines 16,000 bytes of units, which are 800, and returns where to continue."""
    with open_small(world, tmp_path / "s", mapped_file_size_consume_queue=20 * 2000) as store:
        store.put_many([message(world, number, tags="other") for number in range(1000)])
        assert status_of(store.get("T", 0, 0, tags={"wanted"})) == ("NO_MATCHED_MESSAGE", 800)
        assert status_of(store.get("T", 0, 800, tags={"wanted"})) == ("NO_MATCHED_MESSAGE", 1000)


# Filters


def test_tags_with_equal_hashes_are_distinguished_by_their_text(world: Any, tmp_path: Path) -> None:
    """ "Aa" and "BB" have the same Java hash; both units pass, and the record decides."""
    with open_small(world, tmp_path / "s") as store:
        for number, tag in enumerate(["Aa", "BB", "CC", None] * 3):
            store.put(message(world, number, tags=tag))
        units = [unit.tags_code for _, unit in store.engine.queues.get("T", 0).units()] if read_all(store, "T") else []
        assert units[0] == units[1] != units[2]
        assert [number_of(found) for found in store.get("T", 0, 0, tags={"Aa"}).messages] == [0, 4, 8]
        assert [number_of(found) for found in store.get("T", 0, 0, tags={"BB", "CC"}).messages] == [1, 2, 5, 6, 9, 10]
        page = store.get("T", 0, 0, tags={"none of them"})
        assert status_of(page) == ("NO_MATCHED_MESSAGE", 12)


def test_filtered_get_returns_the_next_offset_to_continue(world: Any, tmp_path: Path) -> None:
    """Continuing at next_offset finds each match once."""
    with open_small(world, tmp_path / "s") as store:
        store.put_many([message(world, number, tags="odd" if number % 2 else "even") for number in range(250)])
        found = read_all(store, "T", max_count=7, tags={"odd"})
        assert [number_of(one) for one in found] == list(range(1, 250, 2))


# Visibility


def test_max_offset_counts_only_dispatched_messages_if_committed(world: Any, tmp_path: Path) -> None:
    """With `committed=True` max_offset waits for the dispatcher; otherwise it is the next offset to be given."""
    with open_small(world, tmp_path / "s") as store:
        results = put_numbers(world, store, range(3))
        store.get("T", 0, 0)
        resume = hold_dispatch(store, results[-1].physical_offset + results[-1].size_bytes)
        put_numbers(world, store, range(3, 5))
        assert (store.engine.queues.get("T", 0).max_offset, store.max_offset("T", 0, committed=False)) == (3, 5)
        resume()
        assert store.get("T", 0, 0).max_offset == 5
        assert store.max_offset("T", 0) == 5


def test_under_asynchronous_flush_what_is_written_is_readable(world: Any, tmp_path: Path) -> None:
    """No sync is needed first."""
    disk = GateDisk("sync", "commitlog")
    with open_small(world, tmp_path / "s", disk=disk, flush_interval_commit_log_ms=600_000) as store:
        disk.gate.clear()
        put_numbers(world, store, range(5))
        assert [number_of(found) for found in store.get("T", 0, 0).messages] == list(range(5))
        assert store.engine.flusher.flushed_offset == 0
        disk.gate.set()


def test_under_synchronous_flush_only_what_is_on_the_disk_is_readable(world: Any, tmp_path: Path) -> None:
    """While a sync hangs, its record is written, not acknowledged, and not found."""
    disk = GateDisk("sync", "commitlog")
    with open_small(world, tmp_path / "s", disk=disk, flush_disk_type=sync_mode(world)) as store:
        put_numbers(world, store, range(3), keys=["k"])
        disk.gate.clear()
        disk.waiting.clear()
        putter = threading.Thread(target=put_numbers, args=(world, store, range(3, 4)), kwargs={"keys": ["k"]})
        putter.start()
        assert disk.waiting.wait(20)
        assert store.max_offset("T", 0, committed=False) == 4
        assert status_of(store.get("T", 0, 3)) == ("OFFSET_OVERFLOW_ONE", 3)
        assert len(store.query("T", "k")) == 3
        assert [number_of(found) for found in store.read("T", 0)] == [0, 1, 2]
        assert putter.is_alive()
        disk.gate.set()
        putter.join(20)
        assert [number_of(found) for found in store.get("T", 0, 3).messages] == [3]
        assert len(store.query("T", "k")) == 4


def test_reading_waits_for_what_was_put_before(world: Any, tmp_path: Path) -> None:
    """Every put is read immediately after it."""
    with open_small(world, tmp_path / "s") as store:
        for number in range(200):
            store.put(message(world, number, keys=[f"k{number}"]))
            assert number_of(store.get("T", 0, number).messages[0]) == number
            if number % 20 == 0:
                assert [number_of(found) for found in store.query("T", f"k{number}")] == [number]


# What is in the queue


def test_transactions_enter_queues_only_when_committed(world: Any, tmp_path: Path) -> None:
    """Prepared and rolled-back messages get queue offset 0 and no unit; the index has only the prepared ones."""
    kinds = [(0x0, "none"), (0x4, "half"), (0x8, "commit"), (0xC, "rollback"), (0x0, "none")]
    with open_small(world, tmp_path / "s") as store:
        results = [store.put(message(world, number, sys_flag=flag, keys=[name])) for number, (flag, name) in enumerate(kinds)]
        assert [result.queue_offset for result in results] == [0, 0, 1, 0, 2]
        assert [number_of(found) for found in store.read("T", 0)] == [0, 2, 4]
        assert [number_of(found) for found in store.query("T", "half")] == [1]
        assert store.query("T", "rollback") == []


def test_a_record_damaged_behind_its_unit_is_an_error_and_not_a_message(world: Any, tmp_path: Path) -> None:
    """A flipped bit in a body raises StoreCorrupt, and the messages around it are returned."""
    with open_small(world, tmp_path / "s") as store:
        results = put_numbers(world, store, range(3))
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[results[1].physical_offset + 90] ^= 1
    path.write_bytes(data)
    with open_small(world, tmp_path / "s", "r") as store:
        assert [number_of(found) for found in store.get("T", 0, 0, 1).messages] == [0]
        with pytest.raises(StoreCorrupt):
            store.get("T", 0, 1)
        assert [number_of(found) for found in store.get("T", 0, 2).messages] == [2]
        assert store.message_at(results[1].physical_offset) is None


def test_store_times(world: Any, tmp_path: Path) -> None:
    """The times of a queue offset and of the oldest record are returned, or -1 if there is none."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        assert (store.earliest_time(), store.store_time("T", 0, 0)) == (-1, -1)
        for number in range(3):
            clock.now_ms += 1000
            store.put(message(world, number))
        store.get("T", 0, 0)
        assert [store.store_time("T", 0, offset) - clock.now_ms for offset in range(3)] == [-2000, -1000, 0]
        assert store.store_time("T", 0, 3) == -1
        assert store.earliest_time() == clock.now_ms - 2000


def test_store_time_never_goes_back_not_even_across_an_opening(world: Any, tmp_path: Path) -> None:
    """If the clock is set back, store times stand still."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        first = store.put(message(world, 0)).store_timestamp_ms
        clock.now_ms -= 5000
        assert store.put(message(world, 1)).store_timestamp_ms == first
    with open_small(world, tmp_path / "s", clock=clock) as store:
        assert store.put(message(world, 2)).store_timestamp_ms == first
