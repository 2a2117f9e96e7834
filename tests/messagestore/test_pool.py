"""The transient store pool: what is written, committed and flushed, and what the files hold then."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message, PutStatus
from messagestore import FlushMode, MessageStore, Role, pool
from messagestore.pool import BufferPool
from storageio import DiskError, InvalidMessage, PutRejected
from storageio.testing import WrappedDisk
from tests.messagestore.writers import LOG_SIZE, log_files, message, number_of, open_store, put_all, until

STILL = {
    "commit_interval_commit_log_ms": 600_000,
    "flush_interval_commit_log_ms": 600_000,
}  # the flusher does nothing by itself


def pooled(root: Path, **changes: Any) -> MessageStore:
    return open_store(root, **({"transient_store_pool_enable": True} | STILL | changes))


def commit(store: MessageStore, least_pages: int = 0) -> int:
    """What the flusher's thread does at its interval."""
    store.engine.flusher.commit(least_pages)
    return store.engine.log.committed_offset


def all_numbers(store: MessageStore) -> list[int]:
    return [number_of(stored) for stored in store.engine.log.messages()]


# Bytes


def put_mix(store: MessageStore, seed: int, between: Any) -> None:
    """Messages of many sizes, singly and in batches, over many files; `between()` now and then."""
    dice = random.Random(seed)
    for number in range(400):
        size = dice.choice([10, 90, 700, 2000, 9000])
        one = Message("t", b"%d " % number + bytes(dice.randint(0, size)), queue_id=1, born_timestamp_ms=7, keys=[f"k{number}"])
        if number % 7 == 0:
            store.put_batch("t", 1, [one, Message("t", b"%d x" % number, queue_id=1, born_timestamp_ms=7)])
        else:
            store.put(one)
        if number % 3 == 0:
            between()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("with_crc", [False, True])
def test_files_are_those_of_the_mapped_path(tmp_path: Path, seed: int, with_crc: bool) -> None:
    """Same inputs and clock, byte for byte, over more files than there are buffers: old bytes of a buffer never get out."""
    times: Any = {"clock": lambda: 1_700_000_000_000, "enabled_append_prop_crc": with_crc}
    with open_store(tmp_path / "mapped", **STILL, **times) as store:
        put_mix(store, seed, lambda: None)
    with pooled(tmp_path / "pool", transient_store_pool_size=2, **times) as store:
        put_mix(store, seed, lambda: commit(store))
        assert store.engine.log.buffers.pool.available <= 1  # type: ignore[union-attr]
    mapped, buffered = log_files(tmp_path / "mapped"), log_files(tmp_path / "pool")
    assert len(mapped) > 6
    assert [path.name for path in mapped] == [path.name for path in buffered]
    for left, right in zip(mapped, buffered, strict=True):
        assert left.read_bytes() == right.read_bytes(), left.name


@pytest.mark.parametrize("left", range(12))
def test_the_end_of_a_file_is_that_of_the_mapped_path(tmp_path: Path, left: int) -> None:
    """With `left` bytes behind the blank record's head, or exactly as many as it needs."""
    files = []
    for name, opened in (("mapped", open_store), ("pool", pooled)):
        with opened(tmp_path / name, clock=lambda: 1_700_000_000_000) as store:
            store.put(Message("t", b"a", queue_id=0, born_timestamp_ms=7))
            used = store.engine.log.written_offset - 1
            store.put(Message("t", bytes(LOG_SIZE // 2), queue_id=0, born_timestamp_ms=7))
            rest = LOG_SIZE - store.engine.log.written_offset - used
            store.put(Message("t", bytes(rest - 8 - left), queue_id=0, born_timestamp_ms=7))
            assert LOG_SIZE - store.engine.log.written_offset == 8 + left
            store.put(Message("t", b"b" * 100, queue_id=0, born_timestamp_ms=7))
        files.append([path.read_bytes() for path in log_files(tmp_path / name)])
    assert len(files[0]) == 2
    assert files[0] == files[1]


# Visibility


def test_nothing_is_seen_before_it_is_committed(tmp_path: Path) -> None:
    """Not by get, read, message_at, a follower here or a reader elsewhere."""
    with pooled(tmp_path) as store:
        put_all(store, 0, 9)
        store.flush()
        results = [store.put(message(number)) for number in range(9, 12)]
        with open_store(tmp_path, "r") as reader, store.follow() as follower:
            assert [number_of(stored) for stored in follower.poll()] == list(range(9))
            assert store.get("t", 0, 3).status.name == "OFFSET_OVERFLOW_ONE"
            assert store.max_offset("t", 0) == 3
            assert store.max_offset("t", 0, committed=False) == 4
            assert store.message_at(results[0].physical_offset) is None
            assert reader.max_offset("t", 0) == 3
            assert len(list(reader.follow(timeout_s=0.05))) == 9
            commit(store)
            assert number_of(store.get("t", 0, 3).messages[0]) == 9
            assert [number_of(stored) for stored in follower.poll()] == [9, 10, 11]
            assert len(list(reader.follow(timeout_s=0.05))) == 12
            assert reader.max_offset("t", 0) == 4


def test_the_flusher_commits_by_itself(tmp_path: Path) -> None:
    """At the commit interval, and dispatch goes on."""
    with pooled(tmp_path, commit_interval_commit_log_ms=5, commit_commit_log_thorough_interval_ms=5) as store:
        put_all(store, 0, 3)
        assert until(lambda: store.get("t", 2, 0).messages)
        with store.consumer("t", group="g", timeout_s=20) as consumer:
            for _ in range(3):
                consumer.ack(next(consumer))
            put_all(store, 3, 4)
            assert number_of(next(consumer)) == 3


def test_few_pages_wait_for_more(tmp_path: Path) -> None:
    """By least pages nothing moves before so many were begun; a full file goes in any case."""
    with pooled(tmp_path) as store:
        put_all(store, 0, 10)
        assert commit(store, 4) == 0
        put_all(store, 10, 120)
        written = store.engine.log.written_offset
        assert 4 * 4096 < written < LOG_SIZE
        assert commit(store, 4) == written
        put_all(store, 120, 125)
        assert commit(store, 4) == written
        put_all(store, 125, 500)
        assert commit(store, 4) >= LOG_SIZE


def test_positions_say_what_is_where(tmp_path: Path) -> None:
    """flushed <= committed <= written, in the file and in the log."""
    with pooled(tmp_path) as store:
        log, file = store.engine.log, lambda: store.engine.log.queue.files[0]
        put_all(store, 0, 5)
        log.update_written()
        first = log.written_offset
        assert (file().written, file().committed, file().flushed) == (first, 0, 0)
        commit(store)
        assert (file().written, file().committed, file().flushed) == (first, first, 0)
        put_all(store, 5, 8)
        log.update_written()
        log.flush()
        assert (file().written, file().committed, file().flushed) == (log.written_offset, first, first)
        assert (log.committed_offset, log.flushed_offset) == (first, first)
        assert store.flush() == log.written_offset == log.committed_offset
        put_all(store, 8, 900)
        store.flush()
        assert [one.flushed for one in log.queue.files[:-1]] == [LOG_SIZE] * (len(log.queue.files) - 1)


class Watching(WrappedDisk):
    """Asks at every write to the log what may be read."""

    store: MessageStore | None = None

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def before(self, operation: str, path: str) -> None:
        if self.store is not None and operation == "write" and "commitlog" in path:
            self.seen.add(self.store.engine.log.committed_offset)


def test_what_may_be_read_always_ends_with_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is written in pieces; nobody is told of half a record."""
    monkeypatch.setattr(pool, "COMMIT_PIECE", 100)
    disk = Watching()
    with pooled(tmp_path, disk=disk) as store:
        disk.store = store
        ends = {0}
        for number in range(700):
            ends.add(store.put(message(number)).physical_offset)
            if number % 90 == 0:
                commit(store)
        commit(store)
        assert len(disk.seen) > 3
        assert disk.seen <= ends | {file.end_offset for file in store.engine.log.queue.files}
        assert len(list(store.read("t", 0))) == 234


# Death


def test_a_killed_process_loses_only_what_was_not_committed(tmp_path: Path) -> None:
    """A copy of the folder is what it leaves behind."""
    with pooled(tmp_path / "store") as store:
        put_all(store, 0, 700)
        commit(store)
        put_all(store, 700, 720)
        shutil.copytree(tmp_path / "store", tmp_path / "left")
    with open_store(tmp_path / "left") as left:
        assert all_numbers(left) == list(range(700))
        put_all(left, 700, 710)
        assert all_numbers(left) == list(range(710))
        left.get("t", 0, 0)  # waits for the dispatcher
        assert left.max_offset("t", 0) == len(range(0, 710, 3))


def test_a_commit_by_pages_may_end_inside_a_record(tmp_path: Path) -> None:
    """A kill between two pieces leaves half a record: it is cut, like any torn tail."""
    with pooled(tmp_path / "store") as store:
        put_all(store, 0, 50)
        commit(store)
        shutil.copytree(tmp_path / "store", tmp_path / "left")
        starts = [stored.physical_offset for stored in store.engine.log.messages()]
    with open(log_files(tmp_path / "left")[0], "r+b") as file:
        file.seek(starts[49] + 30)
        file.write(bytes(500))
    with open_store(tmp_path / "left") as left:
        assert all_numbers(left) == list(range(49))


def test_closing_commits_everything(tmp_path: Path) -> None:
    """A clean stop leaves nothing in memory."""
    with pooled(tmp_path) as store:
        put_all(store, 0, 900)
    assert not (tmp_path / "abort").exists()
    with open_store(tmp_path, "r") as reader:
        assert all_numbers(reader) == list(range(900))
        assert reader.max_offset("t", 2) == 300


@pytest.mark.parametrize("order", ["pool pool pool", "pool mapped pool", "mapped pool mapped"])
def test_a_store_changes_its_way_of_writing_between_openings(tmp_path: Path, order: str) -> None:
    """It goes on in the middle of a file either way."""
    stop = 0
    for way in order.split():
        with (pooled if way == "pool" else open_store)(tmp_path) as store:
            put_all(store, stop, stop + 250)
            stop += 250
    with open_store(tmp_path, "r") as reader:
        assert all_numbers(reader) == list(range(750))
        assert [number_of(stored) for stored in reader.read("t", 1)] == list(range(1, 750, 3))


# Limits


def test_a_put_fails_at_once_when_no_buffer_is_left(tmp_path: Path) -> None:
    """Nothing waits and nothing is lost; after a commit it goes on where it was."""
    with pooled(tmp_path, transient_store_pool_size=2) as store:
        number = 0
        with pytest.raises(PutRejected, match="buffer") as caught:
            while True:
                store.put(message(number))
                number += 1
        assert caught.value.status is PutStatus.CREATE_MAPPED_FILE_FAILED
        assert 2 * LOG_SIZE > store.engine.log.written_offset > 2 * LOG_SIZE - 400
        assert len(log_files(tmp_path)) == 2
        commit(store)
        put_all(store, number, number + 10)
        store.flush()
        assert all_numbers(store) == list(range(number + 10))


def test_buffers_are_used_again_and_bounded() -> None:
    """No more than allowed are ever made."""
    buffers = BufferPool(4096, 2)
    first, second = buffers.borrow("a"), buffers.borrow("b")
    assert (len(first), first.readonly, buffers.available) == (4096, False, 0)
    with pytest.raises(DiskError):
        buffers.borrow("c")
    buffers.give_back(first)
    assert buffers.available == 1
    assert buffers.borrow("c") is first
    assert second is not first


@pytest.mark.parametrize(
    "changes",
    [
        {"transient_store_pool_enable": False},
        {"flush_disk_type": FlushMode.SYNC},
        {"broker_role": Role.SLAVE},
    ],
)
def test_without_one_of_the_three_conditions_there_is_no_pool(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Row R8: enabled, no slave, asynchronous flush."""
    with pooled(tmp_path, **changes) as store:
        assert store.engine.log.buffers is None


def test_a_pool_of_one_buffer_is_refused() -> None:
    """A file gets its buffer before the one before it is done."""
    with pytest.raises(InvalidMessage, match="at least 2"):
        pooled(Path("nowhere"), transient_store_pool_size=1)


class BrokenLog(WrappedDisk):
    """Writes to log files fail once told so."""

    broken = False

    def before(self, operation: str, path: str) -> None:
        if self.broken and operation == "write" and "commitlog" in path:
            raise DiskError(operation, path, errno.EIO, "broken")


def test_a_failed_commit_turns_the_store_read_only(tmp_path: Path) -> None:
    """What was committed stays readable; the stop is no clean one."""
    disk = BrokenLog()
    store = pooled(tmp_path, disk=disk)
    put_all(store, 0, 9)
    store.flush()
    put_all(store, 9, 12)
    disk.broken = True
    with pytest.raises(DiskError, match="broken"):
        store.flush()
    with pytest.raises(PutRejected) as caught:
        store.put(message(12))
    assert caught.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert len(list(store.read("t", 0))) == 3
    store.close()
    assert (tmp_path / "abort").exists()
    disk.broken = False
    with open_store(tmp_path) as again:
        assert all_numbers(again) == list(range(9))
