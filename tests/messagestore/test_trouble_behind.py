"""Failures of a store's threads: which calls raise, what stays readable, and what the next open does."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from storageio import DiskError, FlushTimeout, PutRejected, StoreCorrupt, StoreLocked
from storageio.testing import WrappedDisk
from tests.helpers import until
from tests.messagestore.kit import (
    LOG_SIZE,
    START_MS,
    Clock,
    SwitchDisk,
    hold_dispatch,
    message,
    number_of,
    open_small,
    put_numbers,
    read_all,
    sync_mode,
)


def refused_sync(word: str) -> Any:
    """Return a function for `SwitchDisk` that refuses syncs of paths that contain a word."""
    return lambda operation, path: (
        DiskError(operation, path, errno.EIO, "broken") if operation == "sync" and word in path else None
    )


def test_record_damaged_before_dispatch_fails_puts_consumers_and_the_next_open(world: Any, tmp_path: Path) -> None:
    """No later put is acknowledged, no consumer waits forever, and the next open changes nothing unasked."""
    clock = Clock()
    store = open_small(world, tmp_path, clock=clock)
    put_numbers(world, store, range(3))
    store.get("T", 0, 0)
    dispatcher = store.engine.dispatcher
    resume = hold_dispatch(store)
    results = []
    for number in range(3, 12):
        clock.now_ms += 10_000
        results.append(store.put(message(world, number)))
    with min((tmp_path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(results[1].physical_offset + 4)
        file.write(b"\xee")
    resume()
    until(lambda: dispatcher.failure)
    assert isinstance(dispatcher.failure, StoreCorrupt)
    with pytest.raises(PutRejected, match="bad_magic"):
        store.put(message(world, 12))
    with pytest.raises(StoreCorrupt, match="bad_magic"):
        read_all(store, "T")
    with pytest.raises(StoreCorrupt, match="bad_magic"), store.consumer("T", group="g") as consumer:
        consumer.poll()
    assert not dispatcher.run_once(), "what failed is not tried again"
    with pytest.raises(StoreCorrupt, match="bad_magic"):
        store.close_cleanly()
    before = min((tmp_path / "commitlog").iterdir()).read_bytes()
    with pytest.raises(StoreCorrupt, match="brokerstore recover"):
        open_small(world, tmp_path)
    assert min((tmp_path / "commitlog").iterdir()).read_bytes() == before


@pytest.mark.parametrize("word", ["consumequeue", "index"])
def test_after_one_failed_sync_behind_the_log_queries_find_every_message(world: Any, tmp_path: Path, word: str) -> None:
    """The dispatcher stopped for good: the log is searched, queue reads raise, metrics and the count of messages tell."""
    disk = SwitchDisk()
    store = open_small(world, tmp_path, disk=disk)
    put = [store.put(message(world, number, keys=[f"k{number}"])) for number in range(3)]
    store.get("T", 0, 0)
    assert store.query("T", "none") == []
    store.engine.dispatcher._fail(DiskError("sync", word, errno.EIO, "broken"))
    log = store.engine.log.appender
    put += [log.append(message(world, number, keys=[f"k{number}"]), 0) for number in range(3, 40)]
    for number, result in enumerate(put):
        assert [hit.physical_offset for hit in store.query("T", f"k{number}")] == [result.physical_offset]
    assert store.query("T", "none") == [] and store.unsearched_bytes == 0
    assert store.undispatched_messages == 37
    metrics = store.metrics()
    assert "broken" in (metrics.dispatch_failure or "") and metrics.dispatch_lag_bytes
    for read in (lambda: store.get("T", 0, 0), lambda: list(store.read("T", 0)), lambda: store.max_offset("T", 0)):
        with pytest.raises(DiskError, match="broken"):
            read()
    with pytest.raises(DiskError, match="broken"):
        store.offset_by_time("T", 0, START_MS)
    store.close()
    with open_small(world, tmp_path) as again:
        assert again.max_offset("T", 0) == 40 and again.metrics().dispatch_failure is None


def test_dispatch_from_after_the_last_log_file_raises(world: Any, tmp_path: Path) -> None:
    """It raises instead of looping at the same position."""
    with open_small(world, tmp_path) as store:
        put_numbers(world, store, range(3))
        store.get("T", 0, 0)
        dispatcher = store.engine.dispatcher
        dispatcher.thread.stop()
        hold_dispatch(store, 9 * LOG_SIZE)
        dispatcher.begin_again(8 * LOG_SIZE)
        with pytest.raises(StoreCorrupt, match="no log file"):
            dispatcher.catch_up()
        assert dispatcher.position == 8 * LOG_SIZE
        dispatcher.begin_again(store.engine.log.written_offset)


def test_failing_housekeeper_job_does_not_stop_the_others(world: Any, tmp_path: Path) -> None:
    """The type of failure does not matter, nor whether delayed messages are delivered here; puts are accepted."""
    rounds = []
    changes = {"flush_interval_consume_queue_ms": 5, "deliver_delayed": False}
    with open_small(world, tmp_path, **changes) as store:

        def damaged() -> None:
            raise StoreCorrupt("a job's own", file="f", offset=0, expected="this", found="that")

        store.engine.housekeeper.jobs[:0] = [damaged]
        store.engine.housekeeper.jobs.append(lambda: rounds.append(store.engine.flags.accepts_puts))
        put_numbers(world, store, range(3))
        until(lambda: len(rounds) > 3)
    assert all(rounds[:4])
    with open_small(world, tmp_path) as store:
        assert store.engine.was_clean


def test_future_not_covered_by_a_sync_before_close_fails(world: Any, tmp_path: Path) -> None:
    """A thread appended before the close and waits after it: the future fails instead of hanging."""
    disk = SwitchDisk()
    store = open_small(world, tmp_path, disk=disk, flush_disk_type=sync_mode(world), flush_interval_commit_log_ms=600_000)
    put_numbers(world, store, range(3))
    late = store.engine.log.appender.append(message(world, 3), 0)
    disk.refuse = refused_sync("commitlog")
    store.close()
    future = world.module("messagestore.store").PutFuture()
    store.engine.flusher.resolve_later(late, future)
    with pytest.raises(FlushTimeout, match="closed before"):
        future.result(0)
    assert (tmp_path / "abort").exists()


def test_failed_sync_is_reported_by_the_status_without_check(world: Any, tmp_path: Path) -> None:
    """With `check=False` the status shows that the outcome is unknown."""
    disk = SwitchDisk()
    with open_small(world, tmp_path, disk=disk, flush_disk_type=sync_mode(world)) as store:
        assert store.put(message(world, 0), check=False).status.name == "PUT_OK"
        disk.refuse = refused_sync("commitlog")
        result = store.put(message(world, 1), check=False)
        assert (result.status.name, "broken" in result.reason) == ("FLUSH_DISK_TIMEOUT", True)


def test_waiting_put_may_be_released_twice(world: Any) -> None:
    """It was to lead, and another's sync covered it before it woke: opening the gate twice must not raise."""
    group = world.module("messagestore.write._group_cy")
    ticket = group.Ticket(7)
    group.open_all([ticket, ticket])
    group.open_all([ticket])
    assert (bool(ticket.wait(0)), bool(ticket.wait(0))) == (True, False)


def test_second_close_of_a_store_does_not_affect_the_next_writer(world: Any, tmp_path: Path) -> None:
    """Another process has the folder by then: its lock, abort file and puts are not touched."""
    first = open_small(world, tmp_path)
    first.close()
    with open_small(world, tmp_path) as second:
        first.engine.close()
        assert (tmp_path / "abort").exists()
        put_numbers(world, second, range(3))
        with pytest.raises(StoreLocked):
            open_small(world, tmp_path)
        assert len(read_all(second, "T")) == 3


class Later(WrappedDisk):
    """A clock five seconds ahead of the store's own."""

    def now_ms(self) -> int:
        return START_MS + 5000


def test_puts_are_rejected_while_an_append_holds_the_lock_for_seconds(world: Any, tmp_path: Path) -> None:
    """As in a real store with a busy page cache, they are refused immediately, and no longer than it lasts."""
    with open_small(world, tmp_path, disk=Later(), clock=Clock()) as store:
        put_numbers(world, store, range(1))
        found = []
        with store.engine.log.appender.lock:
            thread = threading.Thread(target=lambda: found.append(store.put(message(world, 1), check=False)), daemon=True)
            thread.start()
            thread.join(60)
            assert found[0].status is world.commitlog.PutStatus.OS_PAGE_CACHE_BUSY
        put_numbers(world, store, range(1, 2))
        assert [number_of(stored) for stored in read_all(store, "T")] == [0, 1]
