"""Concurrent use of the pool's ring: a put and a reader, two commits, an interrupt and a new file, another log's ring."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from messagestore.write import flusher, pool
from messagestore.write.ring import HEADER, HEADERS_AT, Ring
from storageio import REAL_DISK
from storageio.testing import WrappedDisk
from tests.messagestore.test_pool import all_numbers, commit, pooled
from tests.messagestore.writers import LOG_SIZE, log_files, open_store, put_all


def test_range_pinned_during_a_ring_reservation_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader pins a range between the put's check of the ring and its reservation; the put checks again."""
    with pooled(tmp_path) as store:
        store.engine.dispatcher.thread.stop()  # it pins ranges too
        buffers: Any = store.engine.log.buffers
        put_all(store, 0, 100)
        commit(store)
        wait = buffers._wait_for_reader
        seen: list[tuple[memoryview, bytes]] = []

        def meet(end: int) -> int:
            limit: int = wait(end)
            if not seen and end > buffers._size:  # more than the ring holds after its first bytes
                commit_here = buffers._write_out
                commit_here(buffers._entries(), store.engine.log.appender.base, store.engine.log.appender.position, 0)
                view, index, size = buffers.pin(buffers._given - buffers._size, 1000)
                seen.append((view[index : index + size], bytes(view[index : index + size])))
            return limit

        def let_go(_seconds: float) -> None:
            view, before = seen[-1]
            assert bytes(view) == before, "written over while it was read"
            buffers.unpin()

        monkeypatch.setattr(buffers, "_wait_for_reader", meet)
        monkeypatch.setattr(pool.time, "sleep", let_go)
        put_all(store, 100, 3000)
        assert len(seen) == 1
        commit(store)
        store.engine.dispatcher.catch_up()
        assert all_numbers(store) == list(range(3000))


def test_ring_restores_the_last_file_of_a_log_that_lost_its_next_file(tmp_path: Path) -> None:
    """The crash lost the new file's name; the ring's records of the previous file are restored nevertheless."""
    with pooled(tmp_path / "store") as store:
        number = 0
        while len(store.engine.log.queue.files) < 2:
            commit(store)
            put_all(store, number, number + 1)
            number += 1
        shutil.copytree(tmp_path / "store", tmp_path / "left")
    (tmp_path / "left" / "commitlog" / f"{LOG_SIZE:020d}").unlink()
    with open_store(tmp_path / "left") as left:
        assert all_numbers(left) == list(range(number - 1))
        put_all(left, number, number + 1)
        assert left.engine.log.queue.files[1].start_offset == LOG_SIZE
        assert all_numbers(left) == [*range(number - 1), number]


def test_new_ring_replaces_an_existing_one(tmp_path: Path) -> None:
    """Otherwise a mark of the old ring with a greater number would be used, and stale records be restored."""
    old = Ring(REAL_DISK, str(tmp_path), 1 << 14, 1 << 12)
    for offset in range(10_000, 10_009):
        old.note(offset)
    old.close(keep=True)
    made = Ring(REAL_DISK, str(tmp_path), 1 << 14, 1 << 12)
    made.note(500)
    made.close(keep=True)
    notes = [HEADER.unpack_from((tmp_path / "ring").read_bytes(), at) for at in HEADERS_AT]
    assert max(notes) == (1, 500)


def test_commit_overtaken_by_another_thread_changes_nothing(tmp_path: Path) -> None:
    """It listed what there was to commit; by now two files are covered, one of them full and finished."""
    with pooled(tmp_path) as store:
        buffers: Any = store.engine.log.buffers
        put_all(store, 0, 30)
        commit(store)
        number = 30
        while len(store.engine.log.queue.files) == 1:
            put_all(store, number, number + 1)
            number += 1
        listed = buffers._entries(), store.engine.log.appender.base, store.engine.log.appender.position
        assert len(listed[0]) == 2
        committed = commit(store)
        before = [path.read_bytes() for path in log_files(tmp_path)]
        assert buffers._write_out(*listed, 0) == committed == store.engine.log.committed_offset
        assert [path.read_bytes() for path in log_files(tmp_path)] == before
        put_all(store, number, number + 9)
        commit(store)
        assert all_numbers(store) == list(range(number + 9))


def test_interrupt_between_a_new_file_and_its_ring_space_loses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupted put is written or not, the next commit writes all others, and puts continue in the new file."""
    with pooled(tmp_path / "store") as store:
        buffers: Any = store.engine.log.buffers
        grow = buffers._reserve_more

        def interrupted(position: int, size_bytes: int) -> None:
            if store.engine.log.appender.base != buffers._base:
                raise KeyboardInterrupt
            grow(position, size_bytes)

        store.engine.log.appender.write_through(interrupted)
        number = 0
        with pytest.raises(KeyboardInterrupt):
            while True:
                put_all(store, number, number + 1)
                number += 1
        assert len(store.engine.log.queue.files) == 2
        commit(store)
        assert all_numbers(store) == list(range(number))
        store.engine.log.appender.write_through(grow)
        put_all(store, number, number + 400)
        commit(store)
        assert all_numbers(store) == list(range(number + 400))
        store.flush()
    with open_store(tmp_path / "store") as again:
        assert all_numbers(again) == list(range(number + 400))


class SlowWrites(WrappedDisk):
    """A disk that notes the thread of each write to the log, and calls `meet` in the first one."""

    def __init__(self) -> None:
        """Meet nobody at first."""
        super().__init__()
        self.threads: list[str] = []
        self.meet: Callable[[], object] | None = None

    def before(self, operation: str, path: str) -> None:
        if operation == "write" and "commitlog" in path:
            self.threads.append(threading.current_thread().name)
            meet, self.meet = self.meet, None
            if meet is not None:
                meet()


def test_put_to_a_full_ring_waits_for_a_commit_in_progress(tmp_path: Path) -> None:
    """A second write would follow the first immediately, and the put would wait for both."""
    disk = SlowWrites()
    with pooled(tmp_path, disk=disk) as store:
        buffers: Any = store.engine.log.buffers
        store.engine.dispatcher.thread.stop()
        put_all(store, 0, 100)
        size = store.engine.log.written_offset // 100
        is_writing, may_end = threading.Event(), threading.Event()
        disk.meet = lambda: (is_writing.set(), may_end.wait())
        committer = threading.Thread(target=commit, args=(store,), name="committer", daemon=True)
        committer.start()
        is_writing.wait(10)
        more = (buffers._limit() - store.engine.log.written_offset) // size + 10  # ten do not fit before the commit has ended
        writer = threading.Thread(target=put_all, args=(store, 100, 100 + more), name="putter", daemon=True)
        writer.start()
        writer.join(0.2)
        is_waiting = writer.is_alive()
        may_end.set()
        writer.join()
        assert is_waiting
        assert disk.threads == ["committer"]
        store.engine.dispatcher.catch_up()


@pytest.mark.parametrize("count", [0, 3])
def test_the_committer_does_not_pause_while_puts_are_ahead_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """What is put during a commit is committed immediately if it is much."""
    disk = SlowWrites()
    with pooled(tmp_path, disk=disk, commit_commit_log_least_pages=0) as store:
        put_all(store, 0, 9)
        monkeypatch.setattr(flusher, "COMMIT_AGAIN_BYTES", store.engine.log.written_offset // 9)  # one message
        disk.meet = lambda: put_all(store, 9, 9 + count)
        pause_s = store.engine.flusher._commit_step()
        assert (pause_s == 0) is (count > 1)
