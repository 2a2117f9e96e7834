"""The transient store pool: what is written, committed and flushed, the content of the files, and restoring a ring."""

from __future__ import annotations

import errno
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from commitlog import MappedFile, Message, PutStatus
from messagestore import FlushMode, MessageStore, Role
from messagestore.repair.recover import Recovery
from messagestore.write import pool
from messagestore.write.ring import HEADERS_AT
from storageio import DiskError, InvalidMessage, Mode, PutRejected
from storageio.testing import WrappedDisk
from tests.helpers import until
from tests.messagestore.writers import LOG_SIZE, ROOT, log_files, message, number_of, open_store, put_all
from tests.processes import running

STILL = {
    "commit_interval_commit_log_ms": 600_000,
    "flush_interval_commit_log_ms": 600_000,
}  # the flusher does nothing by itself


def pooled(root: Path, **changes: Any) -> MessageStore:
    """Open a store with the smallest possible ring, so that every file wraps around it."""
    least = {"transient_store_pool_enable": True, "transient_store_ring_size": 1}
    return open_store(root, **(least | STILL | changes))


def ring_of(store: MessageStore) -> Any:
    return store.engine.log.buffers.ring  # type: ignore[union-attr]


def commit(store: MessageStore, least_pages: int = 0) -> int:
    """Commit as the flusher's thread does at its interval."""
    store.engine.flusher.commit(least_pages)
    return store.engine.log.committed_offset


def all_numbers(store: MessageStore) -> list[int]:
    return [number_of(stored) for stored in store.engine.log.messages()]


# Bytes


def put_mix(store: MessageStore, seed: int, between: Any) -> None:
    """Put messages of many sizes, singly and in batches, into many files; call `between()` from time to time."""
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
    """With the same inputs and clock they are equal byte by byte; old bytes of the ring never reach a file."""
    times: Any = {"clock": lambda: 1_700_000_000_000, "enabled_append_prop_crc": with_crc}
    with open_store(tmp_path / "mapped", **STILL, **times) as store:
        put_mix(store, seed, lambda: None)
    with pooled(tmp_path / "pool", **times) as store:
        put_mix(store, seed, lambda: commit(store))
        assert store.engine.log.written_offset > 3 * ring_of(store).size_bytes
    mapped, buffered = log_files(tmp_path / "mapped"), log_files(tmp_path / "pool")
    assert len(mapped) > 6
    assert [path.name for path in mapped] == [path.name for path in buffered]
    for left, right in zip(mapped, buffered, strict=True):
        assert left.read_bytes() == right.read_bytes(), left.name


@pytest.mark.parametrize("left", range(12))
def test_the_end_of_a_file_is_that_of_the_mapped_path(tmp_path: Path, left: int) -> None:
    """`left` bytes follow the head of the blank record, or there is exactly space for it."""
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


@pytest.mark.parametrize("file_size", [LOG_SIZE, 1 << 20], ids=["files shorter than the ring", "longer ones"])
def test_a_store_opened_again_and_again_writes_what_the_mapped_path_writes(tmp_path: Path, file_size: int) -> None:
    """A store can be opened behind the ring's length, and at the end of a file the blank goes to the right position.

    Otherwise recovery would take the acknowledged records of the next file for a crash tail and cut them.
    """
    still: dict[str, Any] = {
        "clock": lambda: 1_700_000_000_000,
        "mapped_file_size_commit_log": file_size,
        "max_message_size": 40_000,
    }
    for name, opened in (("mapped", open_store), ("pool", pooled), ("sync", synced)):
        dice = random.Random(3)
        for _ in range(12):
            with opened(tmp_path / name, **still) as store:
                for _ in range(1 if file_size == LOG_SIZE else 6):
                    store.put(Message("t", bytes(dice.randint(20_000, 40_000)), queue_id=0, born_timestamp_ms=7))
    files = [[path.read_bytes() for path in log_files(tmp_path / name)] for name in ("mapped", "pool", "sync")]
    assert len(files[0]) > 2
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("way", ["pool", "sync"])
def test_a_put_that_rolls_right_after_opening_survives_a_kill(tmp_path: Path, way: str) -> None:
    """The put was acknowledged, even synchronously, and must not be cut by the next open."""
    opened = {"pool": pooled, "sync": synced}[way]
    with opened(tmp_path / "store", max_message_size=40_000) as store:
        put_all(store, 0, 9, size=20_000)
    store = opened(tmp_path / "store", max_message_size=40_000)
    store.put(message(9, size=30_000))
    assert store.engine.log.appender.base == 3 * LOG_SIZE
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    store.close()
    with opened(tmp_path / "killed", max_message_size=40_000) as left:
        assert all_numbers(left) == list(range(10))


# Visibility


def test_nothing_is_seen_before_it_is_committed(tmp_path: Path) -> None:
    """This holds for get, read, message_at, a follower in this process and a reader in another."""
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
    """It commits at the commit interval, and dispatch continues."""
    with pooled(tmp_path, commit_interval_commit_log_ms=5, commit_commit_log_thorough_interval_ms=5) as store:
        put_all(store, 0, 3)
        assert until(lambda: store.get("t", 2, 0).messages)
        with store.consumer("t", group="g", timeout_s=20) as consumer:
            for _ in range(3):
                consumer.ack(next(consumer))
            put_all(store, 3, 4)
            assert number_of(next(consumer)) == 3


def test_commit_waits_for_the_minimum_of_pages(tmp_path: Path) -> None:
    """With least pages nothing moves before that many are begun; a full file is committed in any case."""
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


def test_flushed_committed_and_written_positions_are_ordered(tmp_path: Path) -> None:
    """flushed <= committed <= written holds for the file and the log."""
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
    """A disk that checks at every write to the log what may be read."""

    store: MessageStore | None = None

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def before(self, operation: str, path: str) -> None:
        if self.store is not None and operation == "write" and "commitlog" in path:
            self.seen.add(self.store.engine.log.committed_offset)


def test_what_may_be_read_always_ends_with_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is written in pieces, and half a record is never visible."""
    monkeypatch.setattr(pool, "COMMIT_PIECE", 4096)
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


# Kills


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """A copy of the folder is what a kill leaves; uncommitted records are in the ring."""
    with pooled(tmp_path / "store") as store:
        put_all(store, 0, 700)
        commit(store)
        put_all(store, 700, 720)
        shutil.copytree(tmp_path / "store", tmp_path / "left")
    with open_store(tmp_path / "left") as left:
        assert all_numbers(left) == list(range(720))
        put_all(left, 720, 730)
        assert all_numbers(left) == list(range(730))
        left.get("t", 0, 0)  # waits for the dispatcher
        assert left.max_offset("t", 0) == len(range(0, 730, 3))
    assert not (tmp_path / "left" / "brokerstore" / "ring").exists()


@pytest.mark.parametrize("has_stray", [False, True])
def test_the_recovery_tool_brings_back_what_is_in_the_ring(tmp_path: Path, has_stray: bool) -> None:
    """Records that are only in the ring are not taken for lost; a stray file does not prevent it."""
    with pooled(tmp_path / "store") as store:
        put_all(store, 0, 700)
        commit(store)
        put_all(store, 700, 720)
        shutil.copytree(tmp_path / "store", tmp_path / "left")
        config = store.config
    if has_stray:
        (tmp_path / "left" / "commitlog" / "notes").write_bytes(b"no log file")
    assert "restore_ring" in {step.kind for step in Recovery(str(tmp_path / "left"), config=config).plan().steps}
    Recovery(str(tmp_path / "left"), config=config).apply()
    assert not (tmp_path / "left" / "brokerstore" / "ring").exists()
    with open_store(tmp_path / "left", "r") as left:
        assert all_numbers(left) == list(range(720))


@pytest.mark.parametrize("number", range(0, 1300, 90))
def test_kill_at_any_position_of_the_ring_loses_no_message(tmp_path: Path, number: int) -> None:
    """Kills at the ends of files and of the ring are covered, with and without a commit before."""
    with pooled(tmp_path / "store", transient_store_ring_size=200_000) as store:
        put_all(store, 0, number)
        commit(store)
        put_all(store, number, number + 60)
        shutil.copytree(tmp_path / "store", tmp_path / "left")
    with pooled(tmp_path / "left") as left:
        assert all_numbers(left) == list(range(number + 60))


def test_batch_across_the_end_of_the_ring_survives_a_kill(tmp_path: Path) -> None:
    """Its last records begin behind the ring's end, and exist after a kill nevertheless."""
    with pooled(tmp_path / "store", mapped_file_size_commit_log=1 << 20, max_message_size=30_000) as store:
        size, number = ring_of(store).size_bytes, 0
        while store.engine.log.written_offset + 2000 < size:
            store.put(message(number, size=900))
            number += 1
        store.put_batch("t", 0, [message(more, queues=1, size=900) for more in range(number, number + 12)])
        assert store.engine.log.written_offset > size + 2000
        shutil.copytree(tmp_path / "store", tmp_path / "left")
        put_all(store, number + 12, number + 30)
        store.flush()
        assert all_numbers(store) == list(range(number + 30))
    with open_store(tmp_path / "left", mapped_file_size_commit_log=1 << 20) as left:
        assert all_numbers(left) == list(range(number + 12))


WRITER = """
from tests.messagestore.test_pool import *
with open_store(sys.argv[1], transient_store_pool_enable=True, transient_store_ring_size=300_000) as store:
    number = 0
    while True:
        store.put(message(number, size=50 + number % 700))
        print(number, flush=True)
        number += 1
"""


@pytest.mark.parametrize("after", [1234, pytest.param(50, marks=pytest.mark.deep), pytest.param(4000, marks=pytest.mark.deep)])
def test_sigkill_loses_no_acknowledged_put(tmp_path: Path, after: int) -> None:
    """A real process is killed in the middle of its work."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with running(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(after)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    acknowledged = max(int(line) for line in lines if line.endswith(b"\n"))
    with open_store(tmp_path) as left:
        numbers = all_numbers(left)
    assert numbers == list(range(len(numbers)))
    assert acknowledged < len(numbers) <= acknowledged + 2


def left_behind(root: Path, copy: Path) -> list[int]:
    """Create a killed store with ten records that are only in the ring."""
    with pooled(root) as store:
        put_all(store, 0, 30)
        commit(store)
        put_all(store, 30, 40)
        shutil.copytree(root, copy)
        return [stored.physical_offset for stored in store.engine.log.messages()]


@pytest.mark.parametrize("damage", ["notes", "magic", "half a record", "short", "one note"])
def test_damaged_ring_restores_only_valid_records(tmp_path: Path, damage: str) -> None:
    """No record that fails a check is restored, and the log has at least what was committed."""
    left_behind(tmp_path / "store", tmp_path / "left")
    path = tmp_path / "left" / "brokerstore" / "ring"
    data = bytearray(path.read_bytes())
    kept = 30
    if damage == "notes":
        for at in HEADERS_AT:
            data[at] ^= 1
    elif damage == "magic":
        data[3] ^= 1
    elif damage == "half a record":
        at = data.index(b"35 ....", 4096)
        data[at + 3] ^= 1
        kept = 35
    elif damage == "short":
        data = data[:5000]
    else:
        newest = max(HEADERS_AT, key=lambda at: int.from_bytes(data[at : at + 8], "little"))
        data[newest] ^= 1  # the other mark covers less, and the log has the rest
        kept = 40
    path.write_bytes(data)
    with open_store(tmp_path / "left") as left:
        assert all_numbers(left) == list(range(kept))
    assert not path.exists()


def test_ring_is_ignored_after_a_clean_stop(tmp_path: Path) -> None:
    """A broker may have recovered and stopped the folder since: its records are not overwritten."""
    left_behind(tmp_path / "store", tmp_path / "left")
    (tmp_path / "left" / "abort").unlink()
    with open_store(tmp_path / "left") as left:
        assert all_numbers(left) == list(range(30))


def test_records_a_broker_wrote_after_the_crash_are_kept_over_the_ring(tmp_path: Path) -> None:
    """A broker that crashed too: the log's own whole records take precedence over the ring's."""
    left_behind(tmp_path / "store", tmp_path / "left")
    ring = tmp_path / "left" / "brokerstore" / "ring"
    held = ring.read_bytes()
    ring.unlink()
    with open_store(tmp_path / "left") as left:
        put_all(left, 100, 103)
    (tmp_path / "left" / "abort").touch()
    ring.write_bytes(held)
    with open_store(tmp_path / "left") as left:
        assert all_numbers(left) == [*range(30), 100, 101, 102]


def test_a_commit_by_pages_may_end_inside_a_record(tmp_path: Path) -> None:
    """A kill between two pieces leaves half a record, which is cut like any torn tail."""
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
def test_store_continues_after_the_pool_is_switched_on_or_off(tmp_path: Path, order: str) -> None:
    """Either way it continues in the middle of a file."""
    stop = 0
    for way in order.split():
        with (pooled if way == "pool" else open_store)(tmp_path) as store:
            put_all(store, stop, stop + 250)
            stop += 250
    with open_store(tmp_path, "r") as reader:
        assert all_numbers(reader) == list(range(750))
        assert [number_of(stored) for stored in reader.read("t", 1)] == list(range(1, 750, 3))


# Limits


def test_a_put_that_finds_the_ring_full_commits(tmp_path: Path) -> None:
    """No other thread commits here; nothing is lost."""
    with pooled(tmp_path) as store:
        put_all(store, 0, 5000)
        log = store.engine.log
        assert log.written_offset - log.committed_offset <= ring_of(store).size_bytes
        assert log.committed_offset > 3 * ring_of(store).size_bytes
        store.flush()
        assert all_numbers(store) == list(range(5000))


def test_put_to_a_full_ring_waits_for_a_pinned_reader(tmp_path: Path) -> None:
    """The range that the dispatcher reads is not overwritten."""
    with pooled(tmp_path) as store:
        put_all(store, 0, 100)
        commit(store)
        buffers: Any = store.engine.log.buffers
        store.engine.dispatcher.thread.stop()  # it pins ranges too
        view, index, size = buffers.pin(0, 3000)
        before = bytes(view[index : index + size])
        writer = threading.Thread(target=put_all, args=(store, 100, 3000), daemon=True)
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        assert bytes(view[index : index + size]) == before
        assert store.engine.log.written_offset <= ring_of(store).size_bytes
        buffers.unpin()
        writer.join()
        assert buffers.pin(0, 3000) is None, "it was written over meanwhile"
        store.engine.dispatcher.catch_up()


@pytest.mark.parametrize("gets_on", [True, False])
def test_puts_wait_for_a_dispatcher_that_makes_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gets_on: bool) -> None:
    """What it did not read yet is not overwritten; puts do not wait for one that is stuck."""
    monkeypatch.setattr(pool, "READER_PAUSES", 1 << 40 if gets_on else 2)
    with pooled(tmp_path) as store:
        buffers: Any = store.engine.log.buffers
        store.engine.dispatcher.thread.stop()
        buffers.reader_offset = lambda: 0
        writer = threading.Thread(target=put_all, args=(store, 0, 3000), daemon=True)
        writer.start()
        writer.join(0.2 if gets_on else None)
        assert writer.is_alive() is gets_on
        assert (buffers.pin(0, 3000) is not None) is gets_on
        buffers.unpin()
        buffers.reader_offset = lambda: pool.NOT_PINNED
        writer.join()
        assert store.engine.log.written_offset > 2 * ring_of(store).size_bytes
        commit(store)
        store.engine.dispatcher.catch_up()
        assert [number_of(stored) for stored in store.read("t", 1)] == list(range(1, 3000, 3))


def test_a_stuck_dispatcher_is_not_waited_for(tmp_path: Path) -> None:
    """It reports that it is stuck, and may never continue."""
    with pooled(tmp_path) as store:
        dispatcher = store.engine.dispatcher
        assert store.engine.log.buffers.reader_offset() == dispatcher.position  # type: ignore[union-attr]
        dispatcher.thread.stop()
        assert store.engine.log.buffers.reader_offset() >= pool.NOT_PINNED  # type: ignore[union-attr]
        dispatcher.catch_up()


class NoWayPast(WrappedDisk):
    """A disk that refuses O_DIRECT at the open, or at the first write."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at
        self.refused = 0

    def open(self, path: str, mode: Mode) -> Any:
        opened = super().open(path, mode)
        if mode is Mode.DIRECT:
            self.refused += 1
            if self.at == "open":
                raise DiskError("open", path, errno.EINVAL, "not here")
            opened.write_pieces = self.refuse  # type: ignore[method-assign]
        return opened

    def refuse(self, offset: int, pieces: list[memoryview]) -> None:
        raise DiskError("write", "f", errno.EINVAL, "not here")


@pytest.mark.parametrize("at", ["open", "write"])
def test_pool_without_direct_writes_uses_the_page_cache(tmp_path: Path, at: str) -> None:
    """Commits go through the page cache from then on, and the files are the same."""
    disk, clock = NoWayPast(at), {"clock": lambda: 1_700_000_000_000}
    with pooled(tmp_path / "refused", disk=disk, **clock) as store:
        put_mix(store, 1, lambda: commit(store))
        assert not store.engine.log.buffers._is_direct  # type: ignore[union-attr]
    assert disk.refused == 1
    with open_store(tmp_path / "mapped", **STILL, **clock) as store:
        put_mix(store, 1, lambda: None)
    for left, right in zip(log_files(tmp_path / "mapped"), log_files(tmp_path / "refused"), strict=True):
        assert left.read_bytes() == right.read_bytes(), left.name


def test_log_files_not_aligned_to_blocks_are_not_written_directly(tmp_path: Path) -> None:
    """They cannot be written past the page cache."""
    with pooled(tmp_path, mapped_file_size_commit_log=10_001) as store:
        put_all(store, 0, 900)
        commit(store)
        assert not store.engine.log.buffers._is_direct  # type: ignore[union-attr]
        assert all_numbers(store) == list(range(900))


@pytest.mark.parametrize(
    "changes",
    [
        {"transient_store_pool_enable": False},
        {"flush_disk_type": FlushMode.SYNC},
        {"broker_role": Role.SLAVE},
    ],
)
def test_without_one_of_the_three_conditions_there_is_no_pool(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The pool must be enabled, the store no slave, and flushes asynchronous."""
    with pooled(tmp_path, **changes) as store:
        assert store.engine.log.buffers is None


def test_a_pool_of_one_buffer_is_refused() -> None:
    """A file gets its buffer before the previous one is finished."""
    with pytest.raises(InvalidMessage, match="from 2 to"):
        pooled(Path("nowhere"), transient_store_pool_size=1)


# Synchronous flush through the ring


def synced(root: Path, **changes: Any) -> MessageStore:
    through: dict[str, Any] = {
        "flush_disk_type": FlushMode.SYNC,
        "sync_flush_through_ring": True,
        "transient_store_ring_size": 1,
    }
    return open_store(root, **(through | changes))


def test_what_is_acknowledged_synchronously_is_in_the_file_and_not_only_in_the_ring(tmp_path: Path) -> None:
    """Single puts, batches and threads are covered; the folder has everything without its ring."""
    with synced(tmp_path / "store") as store:
        put_all(store, 0, 300)
        store.put_many([message(number) for number in range(300, 900)])
        threads = [threading.Thread(target=put_all, args=(store, start, start + 50)) for start in range(900, 1300, 50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log = store.engine.log
        assert log.flushed_offset == log.committed_offset == log.written_offset > ring_of(store).size_bytes
        assert sum(len(list(store.read("t", queue))) for queue in range(3)) == 1300
        shutil.copytree(tmp_path / "store", tmp_path / "left", ignore=shutil.ignore_patterns("ring"))
    with open_store(tmp_path / "left") as left:
        assert sorted(all_numbers(left)) == list(range(1300))


@pytest.mark.parametrize(("zeros", "small"), [(1, 64 << 10), (64, 1000)])
def test_zeros_written_ahead_never_overwrite_committed_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zeros: int, small: int
) -> None:
    """For large and small groups, few and many blocks, and many files, every put gives the file of the mapped path."""
    monkeypatch.setattr(pool, "ZEROS_AHEAD", zeros * 4096)
    monkeypatch.setattr(pool, "SMALL_GROUP", small)
    write = MappedFile.write_direct

    def examined(file: MappedFile, position: int, pieces: list[memoryview]) -> None:
        assert position >= file.committed or any(any(piece) for piece in pieces), "a crash now would lose what is committed"
        write(file, position, pieces)

    monkeypatch.setattr(MappedFile, "write_direct", examined)
    times: Any = {"clock": lambda: 1_700_000_000_000}
    with open_store(tmp_path / "mapped", **STILL, **times) as store:
        put_mix(store, 5, lambda: None)
    with synced(tmp_path / "ring", **times) as store:
        put_mix(store, 5, lambda: None)
    mapped, buffered = log_files(tmp_path / "mapped"), log_files(tmp_path / "ring")
    assert [path.name for path in mapped] == [path.name for path in buffered]
    for left, right in zip(mapped, buffered, strict=True):
        assert left.read_bytes() == right.read_bytes(), left.name


class FailingSync(WrappedDisk):
    """A disk whose syncs of log files fail after a switch."""

    broken = False

    def before(self, operation: str, path: str) -> None:
        if self.broken and operation == "sync" and "commitlog" in path:
            raise DiskError(operation, path, errno.EIO, "broken")


def test_a_sync_that_fails_is_the_error_of_the_put(tmp_path: Path) -> None:
    """It is the same with and without the ring; the store is read-only afterwards."""
    disk = FailingSync()
    store = synced(tmp_path, disk=disk)
    put_all(store, 0, 3)
    disk.broken = True
    with pytest.raises(PutRejected) as caught:
        store.put(message(3))
    assert caught.value.status is PutStatus.FLUSH_DISK_TIMEOUT
    with pytest.raises(PutRejected):
        store.put(message(4))
    store.close()
    assert (tmp_path / "abort").exists()


class BrokenLog(WrappedDisk):
    """A disk whose writes to log files fail after a switch."""

    broken = False

    def before(self, operation: str, path: str) -> None:
        if self.broken and operation == "write" and "commitlog" in path:
            raise DiskError(operation, path, errno.EIO, "broken")


def test_a_commit_that_fails_behind_the_puts_turns_the_store_read_only(tmp_path: Path) -> None:
    """No put waits for it, so every later put raises; its thread ends, because a retry would prove nothing."""
    disk = BrokenLog()
    store = pooled(tmp_path, disk=disk, commit_interval_commit_log_ms=1)
    put_all(store, 0, 9)
    until(lambda: store.engine.log.committed_offset == store.engine.log.written_offset)
    disk.broken = True
    put_all(store, 9, 10)
    until(lambda: store.engine.flusher.failure is not None)
    with pytest.raises(PutRejected, match="broken"):
        store.put(message(10))
    store.close()
    with pytest.raises(DiskError, match="broken"):
        store.close_cleanly()
    disk.broken = False
    with open_store(tmp_path) as again:
        assert all_numbers(again) == list(range(10))


def test_after_a_failed_sync_nothing_more_is_committed(tmp_path: Path) -> None:
    """A put in progress stays in the ring for the next open, and is not written to files of unknown content."""
    disk = FailingSync()
    store = pooled(tmp_path, disk=disk)
    put_all(store, 0, 12)
    disk.broken = True
    with pytest.raises(DiskError, match="broken"):
        store.flush()
    before = log_files(tmp_path)[0].read_bytes()
    assert store.engine.log.appender.append(message(12), 0).status is PutStatus.PUT_OK
    assert commit(store) < store.engine.log.written_offset
    assert log_files(tmp_path)[0].read_bytes() == before
    store.close()
    disk.broken = False
    with open_store(tmp_path) as again:
        assert all_numbers(again) == list(range(13))


def test_a_failed_commit_turns_the_store_read_only(tmp_path: Path) -> None:
    """What was committed stays readable; the stop is not clean."""
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
        assert all_numbers(again) == list(range(12)), "they were in the ring"
