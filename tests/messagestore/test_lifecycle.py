"""Opening, closing and forgetting stores; refused calls; what a crash leaves."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from storageio import (
    DiskFull,
    InvalidMessage,
    PutRejected,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    UnknownStore,
)
from storageio.testing import CountingDisk
from tests.helpers import contents, until
from tests.messagestore.kit import (
    START_MS,
    Clock,
    GateDisk,
    SwitchDisk,
    crash_copy,
    message,
    number_of,
    open_small,
    put_numbers,
    read_all,
    sync_mode,
)

# Modes


def test_open_modes_create_require_or_reject_a_store(world: Any, tmp_path: Path) -> None:
    """ "a" creates a store, "x" refuses an existing one, "r+" and "r" need one."""
    for mode in ("r", "r+"):
        with pytest.raises(UnknownStore):
            open_small(world, tmp_path / "s", mode)
    assert not (tmp_path / "s").exists()
    open_small(world, tmp_path / "s", "x").close()
    with pytest.raises(UnknownStore):
        open_small(world, tmp_path / "s", "x")
    for mode in ("r", "r+", "a"):
        open_small(world, tmp_path / "s", mode).close()
    with pytest.raises(ValueError, match="mode"):
        open_small(world, tmp_path / "s", "w")


def test_new_store_without_puts_has_no_log_file(world: Any, tmp_path: Path) -> None:
    """It has no log file, nothing to read and no abort file, however often it is opened."""
    for _ in range(3):
        with open_small(world, tmp_path / "s") as store:
            assert store.topics() == []
            assert store.get("T", 0, 0).status.name == "NO_MESSAGE_IN_QUEUE"
            assert (tmp_path / "s" / "abort").exists()
        assert not (tmp_path / "s" / "abort").exists()
    with open_small(world, tmp_path / "s") as store:
        assert store.put(message(world, 0)).physical_offset == 0


def test_a_second_open_in_the_same_process_is_refused(world: Any, tmp_path: Path) -> None:
    """Any path to the folder is refused; readers are accepted; after closing the next writer is."""
    (tmp_path / "link").symlink_to(tmp_path / "s")
    with open_small(world, tmp_path / "s") as store:
        store.put(message(world, 0))
        for path in (tmp_path / "s", tmp_path / "link"):
            with pytest.raises(StoreLocked):
                open_small(world, path)
        store.get("T", 0, 0)
        with open_small(world, tmp_path / "s", "r") as reader:
            assert len(read_all(reader, "T")) == 1
        with pytest.raises(StoreLocked):
            open_small(world, tmp_path / "s")
    open_small(world, tmp_path / "s").close()


def test_failed_open_releases_the_lock(world: Any, tmp_path: Path) -> None:
    """A damaged store can be inspected immediately."""
    with open_small(world, tmp_path / "s") as store:
        store.put(message(world, 0))
    (tmp_path / "s" / "commitlog" / "stray").write_bytes(b"x")
    for _ in range(2):
        with pytest.raises(StoreCorrupt):
            open_small(world, tmp_path / "s")
    (tmp_path / "s" / "commitlog" / "stray").unlink()
    with open_small(world, tmp_path / "s") as store:
        assert len(read_all(store, "T")) == 1


def test_a_read_only_store_refuses_everything_that_writes(world: Any, tmp_path: Path) -> None:
    """Each call raises StoreReadOnly, and the folder is unchanged."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(3))
    before = contents(tmp_path / "s")
    with open_small(world, tmp_path / "s", "r") as store:
        calls = [
            lambda: store.put(message(world, 1)),
            lambda: store.put_many([message(world, 1)]),
            lambda: store.put_batch("T", 0, [message(world, 1)]),
            lambda: store.put_async(message(world, 1)),
            lambda: store.append_columns("T", 0, [b"x"]),
            lambda: store.create_topic("U"),
            lambda: store.flush(),
        ]
        for call in calls:
            with pytest.raises(StoreReadOnly):
                call()
        assert len(read_all(store, "T")) == 3
    assert contents(tmp_path / "s") == before


@pytest.mark.parametrize("mode", ["a", "r"])
def test_every_call_on_a_closed_store_raises(world: Any, tmp_path: Path, mode: str) -> None:
    """Every call raises StoreClosed; closing twice is harmless."""
    with open_small(world, tmp_path / "s") as store:
        store.put(message(world, 0))
    store = open_small(world, tmp_path / "s", mode)
    store.close()
    store.close()
    calls = [
        lambda: store.put(message(world, 1)),
        lambda: store.put(message(world, 1), check=False),
        lambda: store.put_many([message(world, 1)]),
        lambda: store.put_batch("T", 0, [message(world, 1)]),
        lambda: store.put_async(message(world, 1)),
        lambda: store.append_columns("T", 0, [b"x"]),
        lambda: store.create_topic("U"),
        lambda: store.flush(),
        lambda: store.topics(),
        lambda: store.queue_ids("T"),
        lambda: store.get("T", 0, 0),
        lambda: list(store.read("T", 0)),
        lambda: store.query("T", "k"),
        lambda: store.message_at(0),
        lambda: store.offset_by_time("T", 0, 0),
        lambda: store.store_time("T", 0, 0),
        lambda: store.earliest_time(),
        lambda: store.min_offset("T", 0),
        lambda: store.max_offset("T", 0),
        lambda: store.max_offset("T", 0, committed=False),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(StoreClosed):
            pytest.fail(f"call {number} gave {call()!r}")
    assert "closed" in repr(store)


def test_what_is_no_message_is_refused_before_anything_is_written(world: Any, tmp_path: Path) -> None:
    """Other types raise TypeError, invalid messages InvalidMessage; the next put has the next offset."""
    with open_small(world, tmp_path / "s") as store:
        store.put(message(world, 0))
        for wrong in (None, "text", b"bytes", 7):
            for call in (
                store.put,
                store.put_async,
                lambda one: store.put_many([one]),
                lambda one: store.put_batch("T", 0, [one]),
            ):
                with pytest.raises(TypeError):
                    call(wrong)
        bad = [
            world.commitlog.Message("T", b"", keys=["a b"]),
            world.commitlog.Message("T", b"", properties={"a\x01": "b"}),
            world.commitlog.Message("T", b"", tags="\udcff"),
            message(world, 0, queue_id=1 << 20),
        ]
        for one in bad:
            for call in (store.put, lambda one: store.put_many([message(world, 9), one])):
                with pytest.raises(InvalidMessage):
                    call(one)
        with pytest.raises(InvalidMessage):
            store.put_batch("T", 0, [message(world, 1), message(world, 1, topic="U")])
        with pytest.raises(InvalidMessage):
            store.put_many([])
        assert store.put(message(world, 1)).queue_offset == 1
        assert [number_of(found) for found in store.read("T", 0)] == [0, 1]


@pytest.mark.parametrize("way", ["put_batch", "put_async", "begin_transaction"])
def test_text_that_no_file_could_hold_is_refused_by_every_way_to_put(world: Any, tmp_path: Path, way: str) -> None:
    """A lone surrogate in a tag raises InvalidMessage, and nothing of a batch is written."""
    bad = world.commitlog.Message("T", b"", queue_id=0, tags="\udcff")
    with open_small(world, tmp_path / "s") as store:
        store.put(message(world, 0))
        end = store.engine.log.written_offset
        given = ("T", 0, [message(world, 1), bad]) if way == "put_batch" else (bad,)
        with pytest.raises(InvalidMessage):
            getattr(store, way)(*given)
        assert store.engine.log.written_offset == end
        assert store.put(message(world, 1)).queue_offset == 1


def test_columns_are_refused_where_a_put_is(world: Any, tmp_path: Path) -> None:
    """A read-only store and an impossible topic give an error or a status, and nothing is written."""
    pytest.importorskip("numpy")
    flag = world.module("messagestore.write.running_flags").Flag
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(3))
        end = store.engine.log.written_offset
        assert store.append_columns("a/b", 0, [b"x"], check=False).status.name == "MESSAGE_ILLEGAL"
        store.engine.flags.set(flag.DISK_FULL, "a test says so")
        with pytest.raises(PutRejected, match="a test says so"):
            store.append_columns("T", 0, [b"x", b"y"])
        assert store.engine.log.written_offset == end
        store.engine.flags.clear(flag.DISK_FULL)
        assert store.append_columns("T", 0, [b"x", b"y"]).queue_offset == 3


@pytest.mark.parametrize("topic", ["", "x" * 128, "%RETRY%" + "x" * 250, "..", "a/b", "\udcff"])
def test_put_to_an_invalid_topic_is_rejected(world: Any, tmp_path: Path, topic: str) -> None:
    """The status is MESSAGE_ILLEGAL with and without `check`; nothing is created."""
    with open_small(world, tmp_path / "s") as store:
        result = store.put(message(world, 0, topic=topic), check=False)
        assert result.status.name == "MESSAGE_ILLEGAL"
        with pytest.raises(PutRejected):
            store.put(message(world, 0, topic=topic))
        with pytest.raises(InvalidMessage):
            store.create_topic(topic)
        assert (store.topics(), store.engine.log.written_offset) == ([], 0)


def test_a_retry_topic_may_be_longer(world: Any, tmp_path: Path) -> None:
    """The limit is 127 bytes, and 255 for a retry topic."""
    with open_small(world, tmp_path / "s") as store:
        for topic in ("x" * 127, "%RETRY%" + "x" * 248):
            assert store.put(message(world, 0, topic=topic)).status.name == "PUT_OK"
            assert len(read_all(store, topic)) == 1


def test_a_slave_takes_no_puts(world: Any, tmp_path: Path) -> None:
    """The status is SERVICE_NOT_AVAILABLE."""
    with open_small(world, tmp_path / "s", broker_role=world.messagestore.Role.SLAVE) as store:
        assert store.put(message(world, 0), check=False).status.name == "SERVICE_NOT_AVAILABLE"


def test_partial_put_many_reports_the_number_of_written_messages(world: Any, tmp_path: Path) -> None:
    """After a full disk at a new file, the first messages are written and readable, and the error has their number."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        store.put(message(world, 0, size=20_000))
        disk.refuse = lambda operation, path: (
            DiskFull(operation, path, errno.ENOSPC, "full") if operation == "allocate" and "commitlog" in path else None
        )
        with pytest.raises(PutRejected) as caught:
            store.put_many([message(world, number, size=20_000) for number in range(1, 6)])
        assert (caught.value.status.name, caught.value.message_count) == ("CREATE_MAPPED_FILE_FAILED", 2)
        result = store.put_batch("T", 0, [message(world, 9, size=20_000)], check=False)
        assert (result.status.name, result.message_count) == ("CREATE_MAPPED_FILE_FAILED", 0)
        assert [number_of(found) for found in store.read("T", 0)] == [0, 1, 2]


def test_a_full_disk_under_a_new_topic_loses_nothing(world: Any, tmp_path: Path) -> None:
    """topics.json cannot be written: the put raises, other topics work, and later it works too."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        store.put(message(world, 0))
        disk.refuse = lambda operation, path: (
            DiskFull(operation, path, errno.ENOSPC, "full") if operation == "write" and "config" in path else None
        )
        with pytest.raises(StoreError):
            store.put(message(world, 0, topic="New"))
        assert store.put(message(world, 1)).queue_offset == 1
        disk.refuse = lambda _operation, _path: None
        assert store.put(message(world, 0, topic="New")).queue_offset == 0
    with open_small(world, tmp_path / "s") as store:
        assert store.topics() == ["New", "T"]


# Deleted topics


def test_topic_recreated_after_its_deletion_receives_messages(world: Any, tmp_path: Path) -> None:
    """Recovery skips a deleted topic's records; later puts to it must be found."""
    with open_small(world, tmp_path / "s") as store:
        put_numbers(world, store, range(3), topic="Kept")
        put_numbers(world, store, range(3), topic="Gone")
        store.get("Gone", 0, 0)
        store.engine.topics.delete("Gone")
        store.engine.topics.persist()
        store.engine.queues.remove_topic("Gone")
        copy = crash_copy(tmp_path / "s", tmp_path / "copy")
    with open_small(world, copy) as store:
        assert (store.queue_ids("Gone"), len(read_all(store, "Kept"))) == ([], 3)
        put_numbers(world, store, range(10, 12), topic="Gone")
        assert [number_of(found) for found in store.read("Gone", 0)] == [10, 11]


# Checkpoint


def checkpoint_of(folder: Path) -> tuple[int, ...]:
    data = (folder / "checkpoint").read_bytes()
    assert len(data) == 4096
    assert not data[40:].strip(b"\0")
    return struct.unpack(">5q", data[:40])


def test_the_checkpoint_of_a_clean_stop(world: Any, tmp_path: Path) -> None:
    """It has the last record's time for log and queues, and 0 for an index whose first file is not full."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        for number in range(3):
            clock.now_ms += 1000
            store.put(message(world, number, keys=["k"]))
    assert checkpoint_of(tmp_path / "s")[:3] == (START_MS + 3000, START_MS + 3000, 0)


def test_the_checkpoint_never_claims_what_is_not_on_the_disk(world: Any, tmp_path: Path) -> None:
    """While the log's sync hangs its time does not move, however often the housekeeper writes."""
    clock = Clock()
    disk = GateDisk("sync", "commitlog")
    intervals = {"flush_interval_consume_queue_ms": 5, "flush_consume_queue_thorough_interval_ms": 5}
    with open_small(world, tmp_path / "s", disk=disk, clock=clock, **intervals) as store:
        store.put(message(world, 0))
        store.flush()
        until(lambda: checkpoint_of(tmp_path / "s")[:2] == (START_MS, START_MS))
        disk.gate.clear()
        clock.now_ms += 60_000
        store.put(message(world, 1))
        until(lambda: checkpoint_of(tmp_path / "s")[1] == START_MS + 60_000)
        assert checkpoint_of(tmp_path / "s")[0] == START_MS
        disk.gate.set()
        store.flush()
        until(lambda: checkpoint_of(tmp_path / "s")[0] == START_MS + 60_000)


def test_a_full_index_file_moves_the_checkpoints_index_time(world: Any, tmp_path: Path) -> None:
    """399 of 400 items fit; the 400th key begins the second file, and the first is synced and covered."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock, max_hash_slot_num=100, max_index_num=400) as store:
        store.put_many([message(world, number, keys=[f"k{number}"]) for number in range(399)])
        store.get("T", 0, 0)
        assert [file.header.items_used for file in store.engine.index.files] == [399]
        clock.now_ms += 5000
        store.put(message(world, 399, keys=["k399"]))
        store.get("T", 0, 0)
        assert [file.header.items_used for file in store.engine.index.files] == [399, 1]
        for number in (0, 398, 399):
            assert [number_of(found) for found in store.query("T", f"k{number}")] == [number]
    assert checkpoint_of(tmp_path / "s")[:3] == (START_MS + 5000, START_MS + 5000, START_MS)


@pytest.mark.parametrize(("ahead_ms", "is_refused"), [(3000, True), (2999, False)])
def test_three_seconds_before_the_checkpoint_separate_damage_from_a_torn_tail(
    world: Any, tmp_path: Path, ahead_ms: int, is_refused: bool
) -> None:
    """A bad position before a record stored 3,000 ms before the checkpoint's time is damage; 2,999 ms, a torn tail."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        results = put_numbers(world, store, range(3))
        clock.now_ms += ahead_ms
        store.put(message(world, 3))
        store.get("T", 0, 0)
        store.flush()
        store.engine.housekeeper.flush_derived(thorough=True)
        copy = crash_copy(tmp_path / "s", tmp_path / "copy")
    path = copy / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[results[1].physical_offset + 90] ^= 1
    path.write_bytes(data)
    before = contents(copy / "commitlog")
    if is_refused:
        with pytest.raises(StoreCorrupt):
            open_small(world, copy)
        assert contents(copy / "commitlog") == before
    else:
        with open_small(world, copy) as store:
            assert [number_of(found) for found in store.read("T", 0)] == [0]


# The index


def test_query_excludes_other_keys_with_the_same_hash(world: Any, tmp_path: Path) -> None:
    """Keys "Aa" and "BB", and a topic and key that give the same text, are told apart and not counted."""
    with open_small(world, tmp_path / "s") as store:
        for number in range(200):
            store.put(message(world, number, keys=["Aa" if number % 2 else "BB"]))
        found = store.query("T", "Aa", max_count=5)
        assert [number_of(one) for one in found] == [191, 193, 195, 197, 199]
        assert len(store.query("T", "BB", max_count=64)) == 64
        assert store.query("T", "Ab") == []
        store.put(message(world, 1, topic="T#k", keys=["x"]))
        assert store.query("T", "k#x") == []


def test_a_query_by_time_keeps_the_millisecond(world: Any, tmp_path: Path) -> None:
    """Item times are cut to seconds; the result has what was stored in the range, its ends included."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock) as store:
        for number in range(10):
            store.put(message(world, number, keys=["k"]))
            clock.now_ms += 300
        for low in range(10):
            found = store.query("T", "k", START_MS + 300 * low, START_MS + 300 * low + 600)
            assert [number_of(one) for one in found] == list(range(low, min(low + 3, 10)))


def test_the_first_item_of_a_rolled_file_is_found_by_its_own_time(world: Any, tmp_path: Path) -> None:
    """Its seconds count from the previous file; a gap of an hour must not hide it."""
    clock = Clock()
    with open_small(world, tmp_path / "s", clock=clock, max_hash_slot_num=10, max_index_num=5) as store:
        put_numbers(world, store, range(4), keys=["k"])
        clock.now_ms += 3_600_000
        put_numbers(world, store, range(4, 5), keys=["k"])
        assert [number_of(one) for one in store.query("T", "k", clock.now_ms, clock.now_ms)] == [4]
        assert [number_of(one) for one in store.query("T", "k", 0, clock.now_ms + 10)] == [0, 1, 2, 3, 4]


def test_without_an_index_there_are_no_answers_and_no_folder(world: Any, tmp_path: Path) -> None:
    """This is `message_index_enable` off."""
    with open_small(world, tmp_path / "s", message_index_enable=False) as store:
        store.put(message(world, 0, keys=["k"]))
        assert (len(read_all(store, "T")), store.query("T", "k")) == (1, [])
    assert not (tmp_path / "s" / "index").exists()


# Reading while the dispatcher cannot


def test_reading_does_not_wait_for_a_disk_that_is_full(world: Any, tmp_path: Path) -> None:
    """What is dispatched is returned immediately; the rest comes when there is space again."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        put_numbers(world, store, range(3), keys=["k"])
        assert len(read_all(store, "T")) == 3
        disk.refuse = lambda operation, path: (
            DiskFull(operation, path, errno.ENOSPC, "full") if operation == "write" and "consumequeue" in path else None
        )
        store.put(message(world, 3))
        assert [number_of(found) for found in store.read("T", 0)] == [0, 1, 2]
        assert store.get("T", 0, 3).status.name == "OFFSET_OVERFLOW_ONE"
        disk.refuse = lambda _operation, _path: None
        until(lambda: store.max_offset("T", 0) == 4)


# Futures


def test_cancelled_wait_for_a_put_leaves_the_flusher_running(world: Any, tmp_path: Path) -> None:
    """Cancelling the wait for a put does not undo it and leaves the flusher running."""
    disk = GateDisk("sync", "commitlog")
    with open_small(world, tmp_path / "s", disk=disk, flush_disk_type=sync_mode(world)) as store:
        disk.gate.clear()

        async def give_up() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(store.put_async(message(world, 0))), 0.01)

        asyncio.run(give_up())
        future = store.put_async(message(world, 1))
        assert not future.cancel()
        disk.gate.set()
        assert future.result(20).queue_offset == 1
        assert store.engine.flusher.threads[0].failure is None
        assert [number_of(found) for found in store.read("T", 0)] == [0, 1]


def test_a_future_made_while_the_store_closes_is_not_left_hanging(world: Any, tmp_path: Path) -> None:
    """The record was appended before the store closed, and the future was made after the flusher stopped."""
    store = open_small(world, tmp_path / "s", flush_disk_type=sync_mode(world))
    result = store.put(message(world, 0))
    store.close()
    future = world.messagestore.PutFuture()
    store.engine.flusher.resolve_later(result, future)
    assert future.result(5) is result


# Crashes


@pytest.mark.parametrize("is_sync", [False, True])
def test_bytes_of_a_killed_process_are_synced_before_they_count_as_flushed(world: Any, tmp_path: Path, is_sync: bool) -> None:
    """With synchronous flush before the store goes on; else by the flusher's first step, and by a flush."""
    with open_small(world, tmp_path / "s", flush_interval_commit_log_ms=600_000) as store:
        put_numbers(world, store, range(10), size=20_000)
        copy = crash_copy(tmp_path / "s", tmp_path / "copy")
    gated = GateDisk("sync", "commitlog")
    disk = CountingDisk(gated)
    if not is_sync:
        gated.gate.clear()
    with open_small(world, copy, disk=disk, **({"flush_disk_type": sync_mode(world)} if is_sync else {})) as store:
        files = {file.path for file in store.engine.log.queue.files}
        assert len(files) == 4
        if not is_sync:
            assert store.metrics().flushed_offset == 0 and store.max_offset("T", 0) == 10
            gated.gate.set()
            store.flush()
        synced = {call.path for call in disk.calls if call.operation == "sync" and "commitlog" in call.path}
        assert synced == files
        assert store.metrics().flushed_offset == store.metrics().written_offset


@pytest.mark.parametrize("stamp_ms", [1 << 70, START_MS + (1 << 40), -1, "x"])
def test_store_time_in_the_clean_stop_sidecar_is_ignored(world: Any, tmp_path: Path, stamp_ms: Any) -> None:
    """A time beyond 63 bits must not end an open, and a far one must not become every later store time."""
    clock = Clock()
    with open_small(world, tmp_path, clock=clock) as store:
        put_numbers(world, store, range(3))
    note = tmp_path / "brokerstore" / "clean.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "store_timestamp_ms": stamp_ms}))
    clock.now_ms += 5
    with open_small(world, tmp_path, clock=clock) as store:
        put_numbers(world, store, range(3, 4))
        assert [stored.store_timestamp_ms - START_MS for stored in read_all(store, "T")] == [0, 0, 0, 5]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("first_byte", [0x80, 0x40, 0x01])
def test_invalid_store_time_of_the_last_record_is_ignored(world: Any, tmp_path: Path, first_byte: int, is_killed: bool) -> None:
    """After one flipped bit it must not become every later store time, nor end the syncing thread or the close."""
    clock = Clock()
    changes = {"enabled_append_prop_crc": False, "max_index_num": 4}  # index files that end with the third message
    with open_small(world, tmp_path, clock=clock, **changes) as store:
        last = put_numbers(world, store, range(3), keys=["k"])[-1].physical_offset
    with min((tmp_path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(last + 56)
        file.write(bytes([first_byte]))
    if is_killed:
        (tmp_path / "abort").write_bytes(b"1")
        for derived in ("consumequeue", "index"):
            shutil.rmtree(tmp_path / derived)
    clock.now_ms += 5
    for count in (4, 5):
        with open_small(world, tmp_path, clock=clock, **changes) as store:
            put_numbers(world, store, range(count - 1, count))
            assert [stored.store_timestamp_ms - START_MS for stored in read_all(store, "T")[3:]] == [5] * (count - 3)
            store.flush()
            with store.engine.housekeeper.guard:
                store.engine.housekeeper.flush_derived(thorough=True)
            assert store.engine.checkpoint.values[:2] == (clock.now_ms, clock.now_ms)
            assert store.engine.checkpoint.index_msg_timestamp_ms <= clock.now_ms
        assert store.engine.is_clean_stop


@pytest.mark.parametrize("word", ["commitlog", "consumequeue", "checkpoint"])
def test_copy_topics_raises_if_the_copy_is_not_on_the_disk(world: Any, tmp_path: Path, word: str) -> None:
    """If the disk is full, `brokerstore copy` must not end with code 0 and leave a store without messages."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "old", disk=disk) as store:
        put_numbers(world, store, range(3))
        disk.refuse = lambda operation, path: (
            DiskFull(operation, path, errno.ENOSPC, "full")
            if operation in ("sync", "write") and word in path and "new" in path
            else None
        )
        with pytest.raises(StoreError, match=word):
            store.copy_topics(tmp_path / "new", ["T"])


def test_close_cleanly_raises_the_error_that_prevented_it(world: Any, tmp_path: Path) -> None:
    """`close` releases everything and only logs the error; callers that need it ask for it."""
    disk = SwitchDisk()
    store = open_small(world, tmp_path, disk=disk)
    put_numbers(world, store, range(3))
    disk.refuse = lambda operation, path: DiskFull(operation, path, errno.ENOSPC, "full") if operation == "sync" else None
    with pytest.raises(DiskFull):
        store.close_cleanly()
    with pytest.raises(DiskFull):
        store.close_cleanly()
    disk.refuse = lambda _operation, _path: None
    with open_small(world, tmp_path, disk=disk) as store:
        assert len(read_all(store, "T")) == 3
        store.close_cleanly()
    open_small(world, tmp_path, "r").close_cleanly()


def test_repeated_kills_lose_no_message(world: Any, tmp_path: Path) -> None:
    """It is killed again and again, each time with new messages, some in a new file: all messages exist."""
    folder, total = tmp_path / "0", 0
    for life in range(6):
        with open_small(world, folder) as store:
            assert not life or [number_of(found) for found in store.read("T", 0)] == list(range(total))
            put_numbers(world, store, range(total, total + 37), size=1500, keys=["k"])
            total += 37
            if life % 2:
                store.flush()
                store.engine.housekeeper.flush_derived(thorough=True)
            folder = crash_copy(folder, tmp_path / str(life + 1))
    with open_small(world, folder) as store:
        assert len(store.query("T", "k", max_count=64)) == 64
        assert [number_of(found) for found in store.read("T", 0)] == list(range(total))


# Forgotten stores


def test_unreferenced_store_is_closed_by_garbage_collection(world: Any, tmp_path: Path) -> None:
    """No thread of its own keeps it alive; the next open is clean."""
    store = open_small(world, tmp_path / "s")
    store.put(message(world, 0))
    del store
    gc.collect()
    until(lambda: not (tmp_path / "s" / "abort").exists())
    with open_small(world, tmp_path / "s") as store:
        assert store.engine.was_clean
        assert len(read_all(store, "T")) == 1


def test_a_store_collected_on_one_of_its_own_threads_is_closed(world: Any, tmp_path: Path) -> None:
    """The collector runs on any thread; a thread cannot wait for its own end."""
    store = open_small(world, tmp_path / "s", flush_interval_consume_queue_ms=10)
    store.put(message(world, 0))
    closed = threading.Event()
    finalizer, jobs = store._finalizer, store.engine.housekeeper.jobs
    jobs.append(lambda: (finalizer(), closed.set()))
    assert closed.wait(20)
    until(lambda: not (tmp_path / "s" / "abort").exists())
    for thread in [thread for thread in threading.enumerate() if thread.name == "store-closer"]:
        thread.join(20)
    with open_small(world, tmp_path / "s") as store:
        assert store.engine.was_clean
