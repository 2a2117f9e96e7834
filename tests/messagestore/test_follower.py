"""Followers: what they accept of a half-written log, and what they survive."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog import CHECK_ALL
from indexfile.layout import END_OFFSET_AT
from messagestore import MessageStore, StoreConfig
from messagestore.read import follower
from messagestore.read.follower import LogFollower
from storageio import DiskError, StoreClosed, StoreCorrupt, StoreReadOnly, StoreRewound
from storageio.testing import CountingDisk, WrappedDisk
from tests.helpers import until
from tests.messagestore.writers import LOG_SIZE, QUEUE_SIZE, Writer, log_files, message, number_of, open_store, put_all


def log_of(root: Path, count: int, **changes: Any) -> tuple[bytearray, list[int]]:
    """Return the first log file with `count` messages, the start of each record and the end of the last."""
    with open_store(root, **changes) as store:
        put_all(store, 0, count)
        starts = [stored.physical_offset for stored in store.engine.log.messages()]
        end = store.engine.log.written_offset
    return bytearray(log_files(root)[0].read_bytes()), [*starts, end]


class Bench:
    """A folder with one log file that a test writes by hand, and a follower on it."""

    def __init__(self, root: Path, source: Path) -> None:
        self.root = root
        (root / "commitlog").mkdir(parents=True)
        self.path = root / "commitlog" / ("0" * 20)
        self.path.write_bytes(bytes(LOG_SIZE))
        (root / "abort").write_bytes(b"1")
        self.source = source
        self.store = open_store(root, "r")
        self.follower = self.store.follow()

    def write(self, at: int, data: bytes | bytearray) -> None:
        with open(self.path, "r+b") as file:
            file.seek(at)
            file.write(data)

    def polled(self) -> list[int]:
        return [number_of(stored) for stored in self.follower.poll()]


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    made = Bench(tmp_path / "hand", tmp_path / "source")
    yield made
    made.follower.close()
    made.store.close()


# Accepted records


def test_record_at_the_end_of_the_log_is_accepted_at_the_second_poll(bench: Bench) -> None:
    """Offset, lengths and body CRC agree, but properties may be half written: the bytes must be the same twice."""
    data, starts = log_of(bench.source, 1)
    bench.write(0, data[: starts[1]])
    assert bench.polled() == []
    assert until(bench.polled) == [0]


class Clock:
    """A replacement for the module `time` of the follower."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_second_check_of_a_record_needs_a_pause(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two polls in immediate succession prove nothing."""
    clock = Clock()
    monkeypatch.setattr(follower, "time", clock)
    data, starts = log_of(bench.source, 1)
    bench.write(0, data[: starts[1]])
    assert [bench.polled() for _ in range(3)] == [[], [], []]
    clock.now += follower.POLL_S
    assert bench.polled() == [0]


def test_record_that_changed_between_two_polls_waits_for_a_third(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer was still writing its properties."""
    clock = Clock()
    monkeypatch.setattr(follower, "time", clock)
    data, starts = log_of(bench.source, 1)
    half = bytearray(data[: starts[1]])
    half[-3:] = bytes(3)
    bench.write(0, half)
    assert bench.polled() == []
    bench.write(0, data[: starts[1]])
    clock.now += 1
    assert bench.polled() == []
    clock.now += 1
    assert [stored.keys for stored in bench.follower.poll()] == [["k0"]]


def test_a_record_with_a_header_behind_it_is_taken_at_once(bench: Bench) -> None:
    """The writer has begun the next record, which has to wait."""
    data, starts = log_of(bench.source, 2)
    bench.write(0, data[: starts[2]])
    assert bench.polled() == [0]


def test_record_before_a_torn_header_is_not_accepted_yet(bench: Bench) -> None:
    """Only size and magic of the next record exist."""
    data, starts = log_of(bench.source, 2)
    bench.write(0, data[: starts[1] + 8])
    assert bench.polled() == []


def test_a_record_before_a_blank_is_taken_at_once(bench: Bench) -> None:
    """The file was closed after the record."""
    data, starts = log_of(bench.source, 1)
    blank = (LOG_SIZE - starts[1]).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    bench.write(0, data[: starts[1]] + blank)
    assert bench.polled() == [0]


def test_record_before_a_blank_of_a_wrong_size_is_not_accepted_yet(bench: Bench) -> None:
    """The blank is half written or invalid."""
    data, starts = log_of(bench.source, 1)
    bench.write(0, data[: starts[1]] + (5).to_bytes(4, "big") + bytes.fromhex("cbd43194"))
    assert bench.polled() == []


def test_a_record_that_a_unit_points_at_is_taken_at_once(bench: Bench) -> None:
    """Its writer finished it before it wrote the unit; the queue's folder was created after the open."""
    data, starts = log_of(bench.source, 1)
    bench.write(0, data[: starts[1]])
    shutil.copytree(bench.source / "consumequeue", bench.root / "consumequeue")
    assert bench.polled() == [0]


def test_record_is_not_accepted_yet_if_its_unit_points_elsewhere(bench: Bench) -> None:
    """The queue is that of an earlier log."""
    data, starts = log_of(bench.source, 1)
    bench.write(0, data[: starts[1]])
    shutil.copytree(bench.source / "consumequeue", bench.root / "consumequeue")
    with open(bench.root / "consumequeue" / "t" / "0" / ("0" * 20), "r+b") as unit:
        unit.write((8).to_bytes(8, "big"))
    assert bench.polled() == []


def test_a_record_with_its_own_checksum_is_taken_at_once(bench: Bench) -> None:
    """The checksum covers the whole record."""
    data, starts = log_of(bench.source, 1, enabled_append_prop_crc=True)
    bench.write(0, data[: starts[1]])
    assert bench.polled() == [0]


@pytest.mark.parametrize("missing", [1, 5, 19, 21, 40])
def test_a_half_written_checksum_is_not_taken_at_once(bench: Bench, missing: int) -> None:
    """Any number of the record's last bytes may be missing."""
    data, starts = log_of(bench.source, 1, enabled_append_prop_crc=True)
    bench.write(0, data[: starts[1] - missing])
    assert bench.polled() == []
    bench.write(0, data[: starts[1]])
    found = bench.follower.poll()
    assert [stored.keys for stored in found] == [["k0"]]


def test_a_half_written_body_is_never_taken(bench: Bench) -> None:
    """Its CRC stays wrong."""
    data, starts = log_of(bench.source, 1)
    bench.write(0, data[: starts[1] - 60])
    for _ in range(3):
        assert bench.polled() == []
        time.sleep(0.006)
    bench.write(0, data[: starts[1]])
    assert until(bench.polled) == [0]


def test_record_at_a_wrong_offset_is_never_accepted(bench: Bench) -> None:
    """Stale bytes have another physical offset."""
    data, starts = log_of(bench.source, 3)
    bench.write(0, data[starts[1] : starts[3]])
    for _ in range(3):
        assert bench.polled() == []
        time.sleep(0.006)


def test_damage_followed_by_a_complete_record_raises(bench: Bench) -> None:
    """Bytes that stay invalid while the writer continues are damage."""
    data, starts = log_of(bench.source, 3)
    data[starts[1] + 90] ^= 1
    bench.write(0, data[: starts[3]])
    assert bench.follower.poll(1) or until(bench.polled) == [0]
    with pytest.raises(StoreCorrupt, match="bad_body_crc"):
        until(bench.polled)


# Start, end and closing


def test_it_follows_across_files_that_come_later(tmp_path: Path) -> None:
    """The next log file is opened when it exists."""
    with open_store(tmp_path) as writer, open_store(tmp_path, "r") as reader, reader.follow(timeout_s=20) as follower:
        put_all(writer, 0, 10)
        assert [number_of(next(follower)) for _ in range(10)] == list(range(10))
        put_all(writer, 10, 1500)
        assert [number_of(next(follower)) for _ in range(1490)] == list(range(10, 1500))
        assert len(log_files(tmp_path)) > 3
        assert follower.position == writer.engine.log.written_offset


def test_it_starts_at_a_record_and_ends_at_its_time_out(tmp_path: Path) -> None:
    """`start` is a physical offset; the iteration ends if no message comes within the timeout."""
    with open_store(tmp_path) as writer:
        put_all(writer, 0, 5)
        start = writer.get("t", 0, 1).messages[0].physical_offset
    with open_store(tmp_path, "r") as reader:
        assert [number_of(stored) for stored in reader.follow(start, timeout_s=0.05)] == [3, 4]


def test_it_follows_in_the_writing_process_too(tmp_path: Path) -> None:
    """There the follower is notified of progress, across files."""
    with open_store(tmp_path) as store, store.follow(timeout_s=20) as follower:
        thread = threading.Thread(target=put_all, args=(store, 0, 1500))
        thread.start()
        assert [number_of(next(follower)) for _ in range(1500)] == list(range(1500))
        thread.join()
        assert follower.position == store.engine.log.written_offset


def test_durable_in_the_writing_process_is_what_was_flushed(tmp_path: Path) -> None:
    """It returns nothing before the flush, and everything after it."""
    slow = {"flush_interval_commit_log_ms": 60_000}
    with open_store(tmp_path, **slow) as store, store.follow(end="durable") as follower:
        put_all(store, 0, 5)
        assert follower.poll() == []
        store.flush()
        assert [number_of(stored) for stored in follower.poll()] == list(range(5))


def test_durable_end_of_a_reader_is_the_end_covered_by_the_checkpoint(tmp_path: Path) -> None:
    """It returns what was stored three seconds before its time or earlier; everything without an abort file."""
    root = tmp_path / "store"
    times = iter(range(1000, 100_000, 1000))
    with open_store(root, clock=lambda: next(times)) as store:
        for number in range(8):
            store.put(message(number))
        stored_ms = [stored.store_timestamp_ms for stored in store.engine.log.messages()]
    values = [stored_ms[6], stored_ms[6], 0]
    (root / "checkpoint").write_bytes(b"".join(value.to_bytes(8, "big") for value in values).ljust(4096, b"\0"))
    with open_store(root, "r") as reader:
        (root / "abort").write_bytes(b"1")
        with reader.follow(end="durable") as follower:
            safe = [number_of(stored) for stored in follower.poll()]
            assert safe == [number for number in range(8) if stored_ms[number] <= stored_ms[6] - 3000]
            (root / "abort").unlink()
            assert [number_of(stored) for stored in follower.poll()] == list(range(len(safe), 8))


def test_it_changes_nothing_and_takes_no_lock(tmp_path: Path) -> None:
    """Opening, following and reading use only reading calls of the disk."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 50)
    disk = CountingDisk()
    with open_store(tmp_path, "r", disk=disk) as reader:
        assert len(list(reader.follow(timeout_s=0))) == 50
        assert reader.get("t", 0, 0).messages
        assert reader.query("t", "k7")
    assert set(disk.counts) <= {"open", "list", "stat", "read", "size", "map", "next data", "data end"}


def test_closing_it_from_another_thread_ends_the_wait(tmp_path: Path) -> None:
    """A loop without a timeout can be ended, in the writing process and beside it."""
    with open_store(tmp_path) as store, open_store(tmp_path, "r") as reader:
        for where in (store, reader):
            follower = where.follow()
            thread = threading.Thread(target=lambda given=follower: list(given))
            thread.start()
            follower.close()
            thread.join(20)
            assert not thread.is_alive()
            with pytest.raises(StoreClosed):
                follower.poll()


def test_closing_the_store_ends_the_wait_with_an_error(tmp_path: Path) -> None:
    """A waiting follower raises the error."""
    with open_store(tmp_path) as store:
        follower = store.follow()
        store.close()
        with pytest.raises(StoreClosed):
            next(follower)


def test_an_unknown_end_is_refused(tmp_path: Path) -> None:
    """Only the known values of `end` are accepted."""
    with open_store(tmp_path) as store, pytest.raises(ValueError, match="flushed"):
        store.follow(end="flushed")


# Changes during reading


def test_files_deleted_before_they_were_read_are_passed_over(tmp_path: Path) -> None:
    """The follower continues with the first remaining file, and counts the skipped bytes."""
    with open_store(tmp_path) as writer, open_store(tmp_path, "r") as reader, reader.follow() as follower:
        put_all(writer, 0, 1500)
        writer.flush()
        writer.get("t", 0, 0)
        assert writer.delete_before(2 * LOG_SIZE) == 2
        first = number_of(until(follower.poll)[0])
        assert first == number_of(next(writer.engine.log.messages()))
        assert follower.skipped_bytes == 2 * LOG_SIZE


def test_a_file_that_is_deleted_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    """Its map stays readable, and nothing in it is skipped."""
    with open_store(tmp_path) as writer, open_store(tmp_path, "r") as reader, reader.follow(timeout_s=1) as follower:
        put_all(writer, 0, 700)
        assert number_of(next(follower)) == 0
        writer.flush()
        writer.get("t", 0, 0)
        assert writer.delete_before(LOG_SIZE) == 1
        assert [number_of(stored) for stored in follower] == list(range(1, 700))
        assert follower.skipped_bytes == 0


class Acting(WrappedDisk):
    """A disk that runs an action once, before the next call of an operation on a matching path."""

    def __init__(self) -> None:
        super().__init__()
        self._at = ("", "")
        self._act: Callable[[], object] = lambda: None

    def once(self, operation: str, end: str, act: Callable[[], object]) -> None:
        self._at, self._act = (operation, end), act

    def before(self, operation: str, path: str) -> None:
        if operation == self._at[0] and path.endswith(self._at[1]):
            self._at = ("", "")
            self._act()


@pytest.mark.parametrize("has_read", [0, 1])
def test_file_deleted_between_listing_and_opening_is_skipped(tmp_path: Path, has_read: int) -> None:
    """The follower continues in the next file at the next poll."""
    disk = Acting()
    with open_store(tmp_path) as writer, open_store(tmp_path, "r", disk=disk) as reader:
        put_all(writer, 0, 1500)
        writer.flush()
        writer.get("t", 0, 0)
        with reader.follow() as follower:
            for _ in range(2 * has_read):  # all of the first file, in two pieces
                assert follower.poll()
            disk.once("open", f"commitlog/{has_read * LOG_SIZE:020d}", lambda: writer.delete_before(3 * LOG_SIZE))
            found = [number_of(stored) for _ in range(9) for stored in follower.poll()]
            assert found == [number_of(stored) for stored in writer.engine.log.messages(3 * LOG_SIZE)]
            assert follower.skipped_bytes == (3 - has_read) * LOG_SIZE


def test_log_file_that_cannot_be_opened_is_retried_at_a_later_poll(tmp_path: Path) -> None:
    """Without permission the reader gets the error; afterwards nothing is skipped."""
    disk = Acting()

    def refuse() -> None:
        raise DiskError("open", "a log file", errno.EACCES, "Permission denied")

    with open_store(tmp_path) as writer, open_store(tmp_path, "r", disk=disk) as reader, reader.follow() as follower:
        put_all(writer, 0, 20)
        writer.get("t", 0, 0)
        for _ in range(2):
            disk.once("open", f"{0:020d}", refuse)
            with pytest.raises(DiskError, match="denied"):
                follower.poll()
        assert [number_of(stored) for stored in follower.poll()] == list(range(20))


def test_what_is_ready_is_handed_out_in_pieces_and_in_order(tmp_path: Path) -> None:
    """A small request gets the next messages; the position is that of the returned ones."""
    with open_store(tmp_path) as store, store.follow(start=-5) as own:
        assert own.poll() == []
        put_all(store, 0, 9)
        found = [[number_of(stored) for stored in own.poll(2)] for _ in range(6)]
        assert found == [[0, 1], [2, 3], [4, 5], [6, 7], [8], []]
        assert own.position == store.log_end


@pytest.mark.parametrize("between", [False, True])
def test_expired_files_are_skipped_in_the_writing_process_too(tmp_path: Path, between: bool) -> None:
    """They may be deleted before the poll, or between finding and opening a file."""
    disk = Acting()
    with open_store(tmp_path) as store:
        put_all(store, 0, 1500)
    with open_store(tmp_path, disk=disk) as store, store.follow() as own:
        if between:
            disk.once("open", f"commitlog/{0:020d}", lambda: store.delete_before(2 * LOG_SIZE))
        else:
            assert store.delete_before(2 * LOG_SIZE) == 2
        found = [number_of(stored) for _ in range(9) for stored in own.poll()]
        assert found == [number_of(stored) for stored in store.engine.log.messages()]
        assert own.skipped_bytes == 2 * LOG_SIZE


@pytest.mark.parametrize("way", ["read", "read_raw", "read_columns"])
def test_queue_file_deleted_before_a_read_opens_it_does_not_end_the_read(tmp_path: Path, way: str) -> None:
    """Another process's retention deleted it: every kind of read continues with the first remaining message."""
    if way == "read_columns":
        pytest.importorskip("pyarrow")
    disk = Acting()
    with open_store(tmp_path) as writer:
        put_all(writer, 0, 1500)
        writer.flush()
        writer.get("t", 0, 0)
        with open_store(tmp_path, "r", disk=disk) as reader:
            found = getattr(reader, way)("t", 0)
            disk.once("open", f"consumequeue/t/0/{QUEUE_SIZE:020d}", lambda: writer.delete_before(3 * LOG_SIZE))
            if way == "read":
                offsets = [stored.physical_offset for stored in found]
            elif way == "read_raw":
                offsets = [int.from_bytes(view[28:36], "big") for views in found for view in views]
            else:
                offsets = [offset for batch in found for offset in batch.column("physical_offset").to_pylist()]
        left = [stored.physical_offset for stored in writer.read("t", 0)]
        assert offsets[-len(left) :] == left and offsets == sorted(offsets)
        assert offsets[0] == 0 and len(offsets) < 500


def test_in_the_writing_process_a_file_that_cannot_be_opened_is_an_error_and_no_gap(tmp_path: Path) -> None:
    """The file exists; its messages are returned by a later poll."""
    disk = Acting()

    def refuse() -> None:
        raise DiskError("open", "a log file", errno.EACCES, "Permission denied")

    with open_store(tmp_path) as store:
        put_all(store, 0, 700)
    with open_store(tmp_path, disk=disk) as store, store.follow() as own:
        disk.once("open", f"commitlog/{0:020d}", refuse)
        with pytest.raises(DiskError, match="denied"):
            own.poll()
        assert [number_of(stored) for _ in range(9) for stored in own.poll()] == list(range(700))
        assert own.skipped_bytes == 0


def test_follower_in_the_writer_raises_at_a_record_damaged_after_dispatch(tmp_path: Path) -> None:
    """Messages before it are returned; the damaged one is not skipped silently."""
    with open_store(tmp_path) as store, store.follow() as own:
        put_all(store, 0, 9)
        store.get("t", 0, 0)
        victim = [stored.physical_offset for stored in store.engine.log.messages()][5]
        with log_files(tmp_path)[0].open("r+b") as file:
            file.seek(victim + 90)
            file.write(b"\xee")
        assert [number_of(stored) for stored in own.poll()] == [0, 1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match="bad_body_crc"):
                own.poll()


def test_file_recreated_before_it_was_read_is_read_from_its_start(bench: Bench) -> None:
    """A killed writer created its first file again: nothing was read that could be rewound."""
    data, starts = log_of(bench.source, 4)
    assert bench.polled() == []
    fresh = bench.path.with_name("fresh")
    fresh.write_bytes(data)
    fresh.replace(bench.path)
    assert (bench.polled() + bench.polled())[:3] == [0, 1, 2]
    assert bench.follower.skipped_bytes == 0 and bench.follower.position >= starts[3]


def test_record_truncated_between_two_checks_is_not_delivered(bench: Bench) -> None:
    """The writer recovered to an earlier end while the follower checked whether a queue points at the record."""
    data, starts = log_of(bench.source, 1)
    bench.write(0, data[: starts[1]])

    class Cutting:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def decode(self, at: int, checks: int) -> Any:
            bench.write(0, bytes(starts[1]))
            return self._inner.decode(at, checks)

    assert bench.follower._find_file()
    bench.follower._reader = Cutting(bench.follower._reader)
    assert [bench.polled() for _ in range(3)] == [[], [], []]
    assert bench.follower.position == 0


def test_durable_follower_waits_for_records_the_checkpoint_does_not_cover(tmp_path: Path) -> None:
    """A poll may find only records that the checkpoint does not cover; none is returned, and none skipped."""
    with open_store(tmp_path) as writer, open_store(tmp_path, "r") as reader, reader.follow(end="durable") as durable:
        put_all(writer, 0, 9)
        writer.get("t", 0, 0)
        assert durable.poll() == []
        writer.flush()
        writer.engine.checkpoint.physic_msg_timestamp_ms = writer.engine.log.appender.last_store_timestamp_ms + 3000
        writer.engine.checkpoint.flush()
        assert [number_of(stored) for stored in durable.poll()] == list(range(9))


def test_invalid_bytes_at_the_end_of_the_log_are_not_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be a record that is being written, however long that takes."""
    clock = Clock()
    monkeypatch.setattr(follower, "time", clock)
    data, starts = log_of(bench.source, 2)
    bench.write(0, data[: starts[1]])
    bench.write(starts[1], b"\xee" * 50)
    taken = []
    for _ in range(6):
        taken += bench.polled()
        clock.now += 2
    assert taken == [0]
    bench.write(starts[1], data[starts[1] : starts[2]])
    for _ in range(2):
        taken += bench.polled()
        clock.now += 2
    assert taken == [0, 1]


def test_it_follows_a_writer_process_that_rolls_and_deletes(tmp_path: Path) -> None:
    """Every message is returned in order while old files are deleted; queues and index grow for the reader."""
    program = """
with open_store(root) as store:
    said("open")
    for part in range(20):
        put_all(store, 100 * part, 100 * part + 100)
        said(part)
        told()
        store.flush(); store.get("t", 0, 0)
        store.delete_before(store.engine.log.written_offset - 2 * LOG_SIZE)
"""
    with Writer(tmp_path, program) as writer:
        assert writer.hear() == "open"
        with open_store(tmp_path, "r") as reader, reader.follow(timeout_s=20) as follower:
            for part in range(20):
                assert writer.hear() == str(part)
                expected = list(range(100 * part, 100 * part + 100))
                assert [number_of(next(follower)) for _ in expected] == expected
                until(lambda last=expected[-1]: reader.query("t", f"k{last}"))
                until(lambda last=expected[-1]: reader.max_offset("t", last % 3) == last // 3 + 1)  # units follow keys
                last = reader.get("t", expected[-1] % 3, expected[-1] // 3)
                assert [number_of(stored) for stored in last.messages] == [expected[-1]]
                writer.tell()
            assert writer.wait() == 0
            assert reader.min_offset("t", 0) > 0
            assert reader.engine.log.min_offset > 0


def test_it_goes_on_after_the_writer_was_killed_and_recovered(tmp_path: Path) -> None:
    """A killed process loses nothing that was written, so there is no rewind: the next writer's messages follow."""
    program = """
store = open_store(root)
put_all(store, int(told()), int(told()))
said("done")
told()
"""
    with Writer(tmp_path, program) as writer:
        writer.tell("0")
        writer.tell("900")
        assert writer.hear() == "done"
        with open_store(tmp_path, "r") as reader, reader.follow(timeout_s=20) as follower:
            assert [number_of(next(follower)) for _ in range(900)] == list(range(900))
            writer.kill()
            with Writer(tmp_path, program) as second:
                second.tell("900")
                second.tell("1800")
                assert [number_of(next(follower)) for _ in range(900)] == list(range(900, 1800))
                assert second.hear() == "done"
                assert reader.max_offset("t", 0) >= 299


def lose_tail(root: Path, reader: MessageStore, kept: int) -> None:
    """Zero everything after record `kept` and delete later files, as a crash of the machine may do to unsynced pages."""
    end = 0
    for number, stored in enumerate(reader.engine.log.messages()):
        if number == kept:
            end = stored.physical_offset
            break
    for path in log_files(root):
        start = int(path.name)
        if start > end:
            path.unlink()
        elif end < start + LOG_SIZE:
            with open(path, "r+b") as file:
                file.seek(end - start)
                file.write(bytes(start + LOG_SIZE - end))


@pytest.mark.parametrize(("put", "kept"), [(100, 60), (900, 60)])
def test_poll_raises_store_rewound_if_the_writer_recovered_to_less(tmp_path: Path, put: int, kept: int) -> None:
    """The last accepted record is now another one, or its file is missing: every poll raises `StoreRewound`."""
    program = f"""
store = open_store(root)
put_all(store, 0, {put})
store.get("t", 0, 0)
said("done")
told()
"""
    with Writer(tmp_path, program) as writer:
        assert writer.hear() == "done"
        with open_store(tmp_path, "r") as reader, reader.follow(timeout_s=20) as follower:
            assert [number_of(next(follower)) for _ in range(put)] == list(range(put))
            assert reader.max_offset("t", 0) == -(-put // 3)
            writer.kill()
            lose_tail(tmp_path, reader, kept)
            with open_store(tmp_path) as second:
                assert reader.max_offset("t", 0) == second.max_offset("t", 0) == kept // 3
                put_all(second, 5000, 5500)
                second.get("t", 0, 0)
                with pytest.raises(StoreRewound):
                    next(follower)
                with pytest.raises(StoreRewound):
                    next(follower)
                assert [number_of(stored) for stored in reader.follow(timeout_s=0.1)][kept:] == list(range(5000, 5500))
                # calls without a position see the current store
                assert reader.max_offset("t", 0) == second.max_offset("t", 0)
                assert [number_of(stored) for stored in reader.read("t", 0)] == [
                    number_of(stored) for stored in second.read("t", 0)
                ]
                assert [number_of(stored) for stored in reader.query("t", "k5007")] == [5007]


def test_poll_raises_store_rewound_at_a_zeroed_tail(tmp_path: Path) -> None:
    """The recovered writer has put nothing yet."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 10)
    with open_store(tmp_path, "r") as reader, reader.follow() as follower:
        assert len(until(follower.poll)) == 10
        lose_tail(tmp_path, reader, 5)
        with pytest.raises(StoreRewound, match="physical offset"):
            follower.poll()


# Reading beside a writer


def test_a_reader_of_an_empty_folder_learns_the_sizes_from_the_first_files(tmp_path: Path) -> None:
    """It detects lengths of log, queue and index files other than the defaults."""
    (tmp_path / "commitlog").mkdir()
    with MessageStore.open(tmp_path, "r") as reader, reader.follow(timeout_s=20) as follower:
        assert reader.topics() == []
        assert reader.get("t", 0, 0).messages == []
        with open_store(tmp_path) as writer:
            put_all(writer, 0, 1500)
            assert [number_of(next(follower)) for _ in range(1500)] == list(range(1500))
            writer.get("t", 0, 0)
            assert reader.topics() == ["t"]
            assert reader.engine.lookup.queue_ids("t") == [0, 1, 2]
            assert number_of(reader.get("t", 2, 450).messages[0]) == 1352
            assert [number_of(stored) for stored in reader.query("t", "k1400")] == [1400]


@pytest.mark.parametrize("was_there", [True, False], ids=["empty at opening", "made later"])
def test_index_read_while_an_item_is_added_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    """The first file's slots cannot be detected while an item is being added, and its folder does not change again."""
    with open_store(tmp_path, max_index_num=490) as store:
        put_all(store, 0, 10)
    (tmp_path / "brokerstore" / "settings.json").unlink()  # as in a broker's folder, where only items show the shape
    (path,) = (tmp_path / "index").iterdir()
    whole = path.read_bytes()
    if was_there:
        path.write_bytes(bytes(len(whole)))
    else:
        path.unlink()
    pauses_s: list[float] = []
    disk = CountingDisk()
    monkeypatch.setattr(disk, "sleep", pauses_s.append)
    with MessageStore.open(tmp_path, "r", StoreConfig(mapped_file_size_commit_log=LOG_SIZE), disk=disk) as reader:
        path.write_bytes(whole[:END_OFFSET_AT] + bytes(8) + whole[END_OFFSET_AT + 8 :])
        os.utime(path.parent, (1000, 1000))
        assert [number_of(stored) for stored in reader.query("t", "k7")] == [7], "from the log"
        assert not reader.engine.index.fits
        path.write_bytes(whole)
        os.utime(path.parent, (1000, 1000))
        assert [number_of(stored) for stored in reader.query("t", "k7")] == [7]
        assert reader.engine.index.fits
    assert not any(pauses_s), "a look waits for nobody"


def test_a_log_file_still_being_made_is_left_out(tmp_path: Path) -> None:
    """Its blocks are being allocated, so it does not have its full length yet."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 10)
    with open_store(tmp_path, "r") as reader:
        half = tmp_path / "commitlog" / f"{LOG_SIZE:020d}"
        half.write_bytes(b"")
        assert len(list(reader.follow(timeout_s=0.05))) == 10
        half.write_bytes(bytes(LOG_SIZE // 2))
        assert len(list(reader.follow(timeout_s=0.05))) == 10
        half.write_bytes(bytes(LOG_SIZE))
        assert len(list(reader.follow(timeout_s=0.05))) == 10
        until(lambda: reader.message_at(0) and len(reader.engine.log.queue.files) == 2)


class DiskOfBusyWriter(WrappedDisk):
    """A disk on which a writer acts before a reader lists a folder for the given time."""

    def __init__(self, folder: str, listing: int, act: Callable[[], object]) -> None:
        super().__init__()
        self._folder, self._listing, self._act = folder, listing, act
        self.lists = 0

    def before(self, operation: str, path: str) -> None:
        if operation == "list" and path.endswith(f"/{self._folder}"):
            self.lists += 1
            if self.lists == self._listing:
                self._act()


def test_opening_while_a_log_file_is_being_made(tmp_path: Path) -> None:
    """If the folder is in use, the open retries; a folder without a writer is refused immediately."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 10)
    half = tmp_path / "commitlog" / f"{LOG_SIZE:020d}"
    half.write_bytes(bytes(LOG_SIZE // 2))
    with pytest.raises(StoreCorrupt):
        open_store(tmp_path, "r")
    (tmp_path / "abort").write_bytes(b"1")
    with pytest.raises(StoreCorrupt):
        open_store(tmp_path, "r")
    disk = DiskOfBusyWriter("commitlog", 3, lambda: half.write_bytes(bytes(LOG_SIZE)))
    with open_store(tmp_path, "r", disk=disk) as reader:
        assert len(list(reader.follow(timeout_s=0.05))) == 10


def test_nothing_is_listed_again_while_no_folder_changes(tmp_path: Path) -> None:
    """A poll costs a few `stat` calls."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 10)
    old = time.time() - 100
    for folder in ("commitlog", "index"):
        os.utime(tmp_path / folder, (old, old))
    disk = CountingDisk()
    with open_store(tmp_path, "r", disk=disk) as reader:
        reader.max_offset("t", 0)
        before = disk.counts
        for _ in range(10):
            assert reader.max_offset("t", 0) == 4
        more = disk.counts - before
        assert more["list"] == 0
        assert more["map"] == 0
        assert more["stat"] <= 60


def test_get_of_a_file_deleted_meanwhile_returns_the_new_minimum(tmp_path: Path) -> None:
    """A reader with an old minimum gets the new one."""
    with open_store(tmp_path) as writer, open_store(tmp_path, "r") as reader:
        put_all(writer, 0, 1500)
        writer.flush()
        writer.get("t", 0, 0)
        assert number_of(reader.get("t", 0, 0).messages[0]) == 0
        writer.delete_before(2 * LOG_SIZE)
        page = reader.get("t", 0, 0)
        assert (page.status.name, page.next_offset) == ("OFFSET_TOO_SMALL", writer.min_offset("t", 0))
        assert reader.min_offset("t", 0) == writer.min_offset("t", 0) > 0
        assert reader.earliest_time() == writer.earliest_time()


def test_read_only_store_refuses_puts_and_deletes(tmp_path: Path) -> None:
    """A read-only store refuses to put and to delete."""
    with open_store(tmp_path) as store:
        put_all(store, 0, 1)
    with open_store(tmp_path, "r") as reader:
        for call in (lambda: reader.put(message(1)), reader.delete_expired, lambda: reader.delete_before(5), reader.flush):
            with pytest.raises(StoreReadOnly):
                call()
        follower = reader.follow()
        assert isinstance(follower, LogFollower)
        assert reader.engine.log.check(0, CHECK_ALL) > 0


@pytest.mark.parametrize("name", ["plain", "broker-live", "propcrc"])
def test_it_reads_what_a_real_store_left(fixture_store: Any, name: str) -> None:
    """Every record of a folder that RocketMQ wrote is returned in log order."""
    with MessageStore.open(fixture_store(name).store, "r") as reader:
        expected = [stored.physical_offset for stored in reader.engine.log.messages()]
        assert [stored.physical_offset for stored in reader.follow(timeout_s=0.1)] == expected
        assert len(expected) > 20
