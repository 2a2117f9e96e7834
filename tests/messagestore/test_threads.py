"""Many threads, group commit, and disks that fail or fill up."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storageio import DiskError, DiskFull, FlushTimeout, PutRejected, StoreError
from storageio.testing import CountingDisk, FailingDisk, WrappedDisk
from tests.helpers import until
from tests.messagestore.kit import (
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

THREADS = 16
EACH = 40


def in_threads(count: int, call: Callable[[int], Any]) -> list[Any]:
    """Run `call(0)` to `call(count - 1)` in parallel and return their results."""
    start = threading.Barrier(count)

    def run(number: int) -> Any:
        start.wait(20)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def full(operation: str, path: str) -> DiskFull:
    return DiskFull(operation, path, errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("is_sync", [False, True])
def test_sixteen_threads_get_dense_offsets_and_everything_is_readable(world: Any, tmp_path: Path, is_sync: bool) -> None:
    """Every offset exists once, and each thread's messages are in its order, over several files."""
    mode = world.messagestore.FlushMode
    changes = {"flush_disk_type": mode.SYNC if is_sync else mode.ASYNC}
    with open_small(world, tmp_path / "s", **changes) as store:
        results = in_threads(
            THREADS,
            lambda thread: [store.put(message(world, thread * EACH + n, queue_id=n % 2, size=300)) for n in range(EACH)],
        )
        for queue_id in (0, 1):
            offsets = [put.queue_offset for puts in results for put in puts if put.queue_id == queue_id]
            assert sorted(offsets) == list(range(THREADS * EACH // 2))
            found = read_all(store, "T", queue_id)
            assert sorted(map(number_of, found)) == [n for n in range(THREADS * EACH) if n % EACH % 2 == queue_id]
            for thread in range(THREADS):
                own = [number_of(one) for one in found if number_of(one) // EACH == thread]
                assert own == sorted(own)
        positions = sorted((put.physical_offset, put.size_bytes) for puts in results for put in puts)
        assert all(at + size <= after for (at, size), (after, _) in itertools.pairwise(positions))


def test_messages_of_one_put_many_are_contiguous_among_threads(world: Any, tmp_path: Path) -> None:
    """No other message is between those of one put_many or put_batch."""
    with open_small(world, tmp_path / "s") as store:
        in_threads(
            4,
            lambda thread: [
                (store.put_many if number % 2 else lambda many: store.put_batch("T", 0, many))(
                    [message(world, (thread * 20 + number) * 10 + part) for part in range(10)]
                )
                for number in range(20)
            ],
        )
        found = [number_of(one) for one in read_all(store, "T")]
        assert len(found) == 800
        assert all(found[at : at + 10] == list(range(found[at], found[at] + 10)) for at in range(0, 800, 10))


# Synchronous flush


def test_no_put_returns_before_a_sync_that_began_after_it_was_written(world: Any, tmp_path: Path) -> None:
    """While syncs hang nothing is acknowledged; one sync releases all waiting puts."""
    disk = GateDisk("sync", "commitlog")
    with open_small(world, tmp_path / "s", disk=disk, flush_disk_type=sync_mode(world), sync_flush_timeout_ms=60_000) as store:
        store.put(message(world, 0))
        disk.gate.clear()
        done: list[int] = []
        threads = [
            threading.Thread(target=lambda n=n: (store.put(message(world, n)), done.append(n))) for n in range(1, THREADS + 1)
        ]
        for thread in threads:
            thread.start()
        until(lambda: store.max_offset("T", 0, committed=False) == THREADS + 1)
        assert done == []
        disk.gate.set()
        for thread in threads:
            thread.join(20)
        assert sorted(done) == list(range(1, THREADS + 1))


class SlowSyncDisk(CountingDisk):
    """A disk whose syncs take as long as those of a hard disk, so that puts gather meanwhile."""

    def before(self, operation: str, path: str) -> None:
        super().before(operation, path)
        if operation == "sync":
            time.sleep(0.005)


def test_group_commit_needs_fewer_syncs_than_puts(world: Any, tmp_path: Path) -> None:
    """One sync covers every earlier write."""
    disk = SlowSyncDisk()
    with open_small(world, tmp_path / "s", disk=disk, flush_disk_type=sync_mode(world)) as store:
        in_threads(THREADS, lambda thread: put_numbers(world, store, range(thread * EACH, (thread + 1) * EACH)))
        syncs = sum(call.operation == "sync" and "commitlog" in call.path for call in disk.calls)
        assert syncs < THREADS * EACH


def test_a_sync_that_takes_too_long_is_an_unknown_outcome(world: Any, tmp_path: Path) -> None:
    """It gives FlushTimeout, or the status FLUSH_DISK_TIMEOUT; the record exists when the sync returns after all."""
    disk = GateDisk("sync", "commitlog")
    with open_small(world, tmp_path / "s", disk=disk, flush_disk_type=sync_mode(world), sync_flush_timeout_ms=50) as store:
        disk.gate.clear()
        first = threading.Thread(target=lambda: store.put(message(world, 0), check=False))
        first.start()
        assert disk.waiting.wait(20)
        with pytest.raises(FlushTimeout):
            store.put(message(world, 1))
        result = store.put(message(world, 2), check=False)
        assert (result.status.name, result.queue_offset) == ("FLUSH_DISK_TIMEOUT", 2)
        disk.gate.set()
        first.join(20)
        store.flush()
        assert [number_of(found) for found in read_all(store, "T")] == [0, 1, 2]


def test_wait_false_is_acknowledged_before_the_sync(world: Any, tmp_path: Path) -> None:
    """With the property WAIT=false the put returns PUT_OK while the sync hangs, and is flushed later."""
    disk = GateDisk("sync", "commitlog")
    with open_small(world, tmp_path / "s", disk=disk, flush_disk_type=sync_mode(world)) as store:
        disk.gate.clear()
        result = store.put(message(world, 0, properties={"WAIT": "false"}))
        assert result.status.name == "PUT_OK"
        disk.gate.set()
        until(lambda: store.engine.flusher.flushed_offset >= result.physical_offset + result.size_bytes)


def test_futures_resolve_when_the_disk_has_the_record(world: Any, tmp_path: Path) -> None:
    """With put_async under synchronous flush none is done while the sync hangs, all are after it."""
    disk = GateDisk("sync", "commitlog")
    with open_small(world, tmp_path / "s", disk=disk, flush_disk_type=sync_mode(world)) as store:
        disk.gate.clear()
        futures = [store.put_async(message(world, number)) for number in range(20)]
        assert disk.waiting.wait(20)
        assert not any(future.done() for future in futures)
        disk.gate.set()
        assert [future.result(20).queue_offset for future in futures] == list(range(20))


def test_futures_can_be_awaited(world: Any, tmp_path: Path) -> None:
    """A coroutine awaits them, under both flush modes."""
    import asyncio

    async def put_some(store: Any) -> list[Any]:
        return [await store.put_async(message(world, number)) for number in range(3)]

    for mode in world.messagestore.FlushMode:
        with open_small(world, tmp_path / mode.name, flush_disk_type=mode) as store:
            assert [result.queue_offset for result in asyncio.run(put_some(store))] == [0, 1, 2]


def test_closing_resolves_the_futures_that_wait(world: Any, tmp_path: Path) -> None:
    """The flush of a clean stop covers them."""
    store = open_small(world, tmp_path / "s", flush_disk_type=sync_mode(world))
    futures = [store.put_async(message(world, number)) for number in range(50)]
    store.close()
    assert [future.result(20).queue_offset for future in futures] == list(range(50))


def test_rejected_put_async_raises_from_its_future(world: Any, tmp_path: Path) -> None:
    """PutRejected is raised by the future, not by the call."""
    with open_small(world, tmp_path / "s", max_message_size=100) as store:
        future = store.put_async(message(world, 1, size=101))
        with pytest.raises(PutRejected) as caught:
            future.result(20)
        assert caught.value.status.name == "MESSAGE_ILLEGAL"
        future = store.put_async(message(world, 1, topic="x" * 200))
        with pytest.raises(PutRejected):
            future.result(20)


# A failed sync


def failing_log_sync(disk: SwitchDisk) -> None:
    disk.refuse = lambda operation, path: (
        DiskError(operation, path, errno.EIO, "Input/output error") if operation == "sync" and "commitlog" in path else None
    )


def test_a_failed_sync_fails_its_puts_and_turns_the_store_read_only(world: Any, tmp_path: Path) -> None:
    """There is no retry, because the kernel may have dropped the pages.  Opening again gives what was acknowledged."""
    disk = SwitchDisk()
    store = open_small(world, tmp_path / "s", disk=disk, flush_disk_type=sync_mode(world))
    put_numbers(world, store, range(5))
    failing_log_sync(disk)

    def refused(number: int) -> str:
        try:
            store.put(message(world, number))
        except PutRejected as error:
            return error.status.name
        return "acknowledged"

    statuses = in_threads(4, lambda thread: refused(5 + thread))
    assert set(statuses) <= {"FLUSH_DISK_TIMEOUT", "SERVICE_NOT_AVAILABLE"}
    disk.refuse = lambda _operation, _path: None
    with pytest.raises(PutRejected) as caught:
        store.put(message(world, 10))
    assert caught.value.status.name == "SERVICE_NOT_AVAILABLE"
    assert [number_of(found) for found in store.read("T", 0)] == list(range(5))
    with pytest.raises(DiskError):
        store.flush()
    store.close()
    assert (tmp_path / "s" / "abort").exists()
    with open_small(world, tmp_path / "s", "r+") as store:
        assert [number_of(found) for found in store.read("T", 0)][:5] == list(range(5))
        offset = store.put(message(world, 11)).queue_offset
        assert number_of(store.get("T", 0, offset).messages[0]) == 11


def test_a_failed_sync_fails_the_futures_that_wait(world: Any, tmp_path: Path) -> None:
    """They raise the disk's error; later ones are refused."""
    disk = SwitchDisk()
    store = open_small(world, tmp_path / "s", disk=disk, flush_disk_type=sync_mode(world))
    failing_log_sync(disk)
    futures = [store.put_async(message(world, number)) for number in range(5)]
    for future in futures:
        with pytest.raises(StoreError):
            future.result(20)
    store.close()


def test_a_failed_sync_counted_by_the_failing_disk(world: Any, tmp_path: Path) -> None:
    """Whichever sync fails first, at the open or later, nothing acknowledged is lost and nothing hangs."""
    for fail_at in range(1, 12):
        folder = tmp_path / f"s{fail_at}"
        disk = FailingDisk(fail_at, only="sync", for_ever=True)
        acknowledged = []
        try:
            store = open_small(world, folder, disk=disk, flush_disk_type=sync_mode(world))
            try:
                for number in range(5):
                    store.put(message(world, number))
                    acknowledged.append(number)
            except StoreError:
                pass
            store.close()
        except StoreError:
            pass
        with open_small(world, folder) as store:
            found = store.read("T", 0) if acknowledged else []
            assert [number_of(one) for one in found][: len(acknowledged)] == acknowledged


# A full disk


def test_puts_are_rejected_until_there_is_space_for_the_next_log_file(world: Any, tmp_path: Path) -> None:
    """The status is CREATE_MAPPED_FILE_FAILED, offsets have no gap, and no half file remains."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        put_numbers(world, store, range(3), size=20_000)
        disk.refuse = lambda operation, path: (
            full(operation, path) if (operation, "commitlog" in path) == ("allocate", True) else None
        )
        for _ in range(3):
            with pytest.raises(PutRejected) as caught:
                store.put(message(world, 99, size=20_000))
            assert caught.value.status.name == "CREATE_MAPPED_FILE_FAILED"
        assert store.put(message(world, 99, size=20_000), check=False).status.name == "CREATE_MAPPED_FILE_FAILED"
        assert store.put(message(world, 3)).queue_offset == 3  # a small one still fits
        assert len(list((tmp_path / "s" / "commitlog").iterdir())) == 1
        disk.refuse = lambda _operation, _path: None
        assert store.put(message(world, 4, size=20_000)).queue_offset == 4
        assert [number_of(found) for found in store.read("T", 0)] == list(range(5))


def test_put_without_space_for_the_first_log_file_is_rejected(world: Any, tmp_path: Path) -> None:
    """The very first put is refused, and succeeds when there is space."""
    disk = SwitchDisk()
    disk.refuse = lambda operation, path: (
        full(operation, path) if (operation, "commitlog" in path) == ("allocate", True) else None
    )
    with open_small(world, tmp_path / "s", disk=disk) as store:
        assert store.put(message(world, 0), check=False).status.name == "CREATE_MAPPED_FILE_FAILED"
        disk.refuse = lambda _operation, _path: None
        assert store.put(message(world, 0)).queue_offset == 0
        assert len(store.get("T", 0, 0).messages) == 1


@pytest.mark.parametrize(
    ("operation", "word"),
    [
        ("write", "consumequeue"),
        ("create", "consumequeue"),
        ("make folder", "consumequeue"),
        ("allocate", "index"),
        ("create", "index"),
    ],
)  # fmt: skip
def test_a_disk_that_fills_up_in_the_dispatcher(world: Any, tmp_path: Path, operation: str, word: str) -> None:
    """The acknowledged record stays, further puts are refused, and dispatch continues when there is space."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        disk.refuse = lambda done, path: full(done, path) if done == operation and f"/{word}" in path else None
        assert store.put(message(world, 0, keys=["k"])).queue_offset == 0
        until(lambda: not store.engine.flags.is_writeable)
        with pytest.raises(PutRejected) as caught:
            store.put(message(world, 1))
        assert caught.value.status.name == "SERVICE_NOT_AVAILABLE"
        assert store.message_at(0).body[:8] == b"00000000"
        assert store.max_offset("T", 0, committed=False) == 1
        disk.refuse = lambda _operation, _path: None
        until(lambda: store.engine.flags.is_writeable)
        assert store.put(message(world, 1, keys=["k"])).queue_offset == 1
        assert [number_of(found) for found in store.read("T", 0)] == [0, 1]
        assert [number_of(found) for found in store.query("T", "k")] == [0, 1]


def test_disk_full_in_the_middle_of_a_dispatch_range_duplicates_no_unit(world: Any, tmp_path: Path) -> None:
    """Some of many queues got their units before the disk was full: the next attempt only adds the rest."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        writes = [0]

        def refuse(operation: str, path: str) -> Exception | None:
            if operation == "write" and "consumequeue" in path:
                writes[0] += 1
                return full(operation, path) if 3 < writes[0] < 8 else None
            return None

        disk.refuse = refuse
        many = [message(world, number, queue_id=number % 7, keys=["k"]) for number in range(50)]
        store.put_many(many)
        until(lambda: store.engine.dispatcher.behind_bytes == 0)
        for queue_id in range(7):
            assert [number_of(found) for found in store.read("T", queue_id)] == list(range(queue_id, 50, 7))
        assert [number_of(found) for found in store.query("T", "k", max_count=64)] == list(range(50))


def test_killed_while_the_dispatcher_waits_for_space(world: Any, tmp_path: Path) -> None:
    """Nothing is lost: the next open dispatches the rest."""
    disk = SwitchDisk()
    with open_small(world, tmp_path / "s", disk=disk) as store:
        put_numbers(world, store, range(3), keys=["k"])
        assert len(read_all(store, "T")) == 3
        disk.refuse = lambda operation, path: full(operation, path) if operation == "write" and "consumequeue" in path else None
        store.put(message(world, 3, keys=["k"]))
        until(lambda: not store.engine.flags.is_writeable)
        copy = crash_copy(tmp_path / "s", tmp_path / "copy")
        disk.refuse = lambda _operation, _path: None
    with open_small(world, copy) as store:
        assert [number_of(found) for found in store.read("T", 0)] == [0, 1, 2, 3]
        assert [number_of(found) for found in store.query("T", "k")] == [0, 1, 2, 3]


def test_closed_while_the_dispatcher_waits_for_space(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no clean stop: the abort file stays, and the next open completes queues and index."""
    monkeypatch.setattr(world.module("messagestore.engine"), "STOP_WAIT_S", 0.3)
    disk = SwitchDisk()
    store = open_small(world, tmp_path / "s", disk=disk)
    disk.refuse = lambda operation, path: full(operation, path) if operation == "write" and "consumequeue" in path else None
    store.put(message(world, 0, keys=["k"]))
    until(lambda: not store.engine.flags.is_writeable)
    store.close()
    assert (tmp_path / "s" / "abort").exists()
    with open_small(world, tmp_path / "s") as store:
        assert [number_of(found) for found in store.read("T", 0)] == [0]
        assert [number_of(found) for found in store.query("T", "k")] == [0]


def test_readers_beside_writers_see_only_whole_messages_in_order(world: Any, tmp_path: Path) -> None:
    """Four readers page through a queue while two threads put to it."""
    with open_small(world, tmp_path / "s") as store:
        total = 600

        def read(_: int) -> list[int]:
            seen: list[int] = []
            while len(seen) < total:
                seen += [found.queue_offset for found in store.get("T", 0, len(seen)).messages]
            return seen

        def work(thread: int) -> Any:
            return read(thread) if thread < 4 else put_numbers(world, store, range(total // 2), size=200)

        results = in_threads(6, work)
        assert all(seen == list(range(total)) for seen in results[:4])


class StepDisk(WrappedDisk):
    """A disk on which each sync of the log waits for a step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = threading.Semaphore(0)
        self.started = 0

    def before(self, operation: str, path: str) -> None:
        if operation == "sync" and "commitlog" in path:
            self.started += 1
            assert self.steps.acquire(timeout=30)


def test_put_covered_by_a_sync_does_not_wait_for_the_next_sync(world: Any, tmp_path: Path) -> None:
    """Two puts covered by one sync both return while the sync for a third hangs."""
    disk = StepDisk()
    with open_small(world, tmp_path / "s", disk=disk, flush_disk_type=sync_mode(world), sync_flush_timeout_ms=60_000) as store:
        done: list[int] = []
        threads = []

        def begin(number: int) -> None:
            thread = threading.Thread(target=lambda: (store.put(message(world, number)), done.append(number)))
            thread.start()
            threads.append(thread)
            until(lambda: store.max_offset("T", 0, committed=False) == number + 1)

        begin(0)
        until(lambda: disk.started == 1)
        begin(1)
        begin(2)
        disk.steps.release()
        until(lambda: done == [0] and disk.started == 2)
        begin(3)
        disk.steps.release()
        until(lambda: sorted(done) == [0, 1, 2] and disk.started == 3)
        disk.steps.release(1000)
        for thread in threads:
            thread.join(20)
        assert sorted(done) == [0, 1, 2, 3]


def test_a_leader_that_was_interrupted_is_replaced(world: Any, tmp_path: Path) -> None:
    """The leader is gone: the next put takes over instead of timing out."""
    with open_small(world, tmp_path / "s", flush_disk_type=sync_mode(world)) as store:
        store.engine.flusher._has_leader = True
        assert store.put(message(world, 0)).status.name == "PUT_OK"
        assert store.put(message(world, 1)).status.name == "PUT_OK"


def test_a_file_that_an_interrupt_left_between_making_and_taking_is_used(world: Any, tmp_path: Path) -> None:
    """KeyboardInterrupt comes right after the next log file was created: no empty file is in the middle of the log."""
    with open_small(world, tmp_path / "s") as store:
        queue = store.engine.log.queue
        put_numbers(world, store, range(3), size=20_000)
        make = queue.next_file

        def interrupted(*arguments: Any) -> Any:
            make(*arguments)
            raise KeyboardInterrupt

        queue.next_file = interrupted
        with pytest.raises(KeyboardInterrupt):
            store.put(message(world, 3, size=20_000))
        del queue.next_file
        create = queue._create

        def interrupted_too(*arguments: Any) -> Any:
            create(*arguments)
            raise KeyboardInterrupt

        put_numbers(world, store, range(3, 6), size=20_000)
        queue._create = interrupted_too
        with pytest.raises(KeyboardInterrupt):
            store.put(message(world, 6, size=20_000))
        del queue._create
        put_numbers(world, store, range(6, 9), size=20_000)
        assert [number_of(found) for found in store.read("T", 0)] == list(range(9))
        assert [file.start_offset for file in queue.files] == [0, 65536, 131072]
    with open_small(world, tmp_path / "s") as store:
        assert [number_of(found) for found in store.read("T", 0)] == list(range(9))


def test_threads_that_put_query_read_and_acknowledge_see_every_message_once(world: Any, tmp_path: Path) -> None:
    """Log, queue and index files roll meanwhile; kernels keep their state apart, also where no GIL keeps threads apart."""
    putters, each = 3, 150
    total = putters * each
    done = threading.Event()
    problems: list[str] = []

    def key_of(number: int) -> str:
        return f"key-{number}"

    def topic_of(number: int) -> str:
        return "T" if number % 3 else "Other"

    with open_small(world, tmp_path / "s") as store:
        store.create_topic("T")
        store.create_topic("Other")

        def put(thread: int) -> list[int]:
            numbers = range(thread * each, (thread + 1) * each)
            for number in numbers:
                result = store.put(message(world, number, topic_of(number), size=300, keys=key_of(number), tags="tag"))
                found = store.query(topic_of(number), key_of(number))
                if [number_of(one) for one in found] != [number]:
                    problems.append(f"query of {number} after its put: {found}")
                one = store.message_at(result.physical_offset)
                if one is None or (number_of(one), one.topic, one.tags) != (number, topic_of(number), "tag"):
                    problems.append(f"{number} at its offset: {one}")
            return list(numbers)

        def examine(thread: int) -> list[int]:
            while not done.is_set():
                for one in [*store.read("T", 0), *store.read("Other", 0)]:
                    number = number_of(one)
                    if one.topic != topic_of(number) or one.properties["KEYS"] != key_of(number):
                        problems.append(f"{number} read as {one.topic}, {one.properties}")
                if store.query("T", "key-none") or store.max_offset("T", 0, committed=False) > total:
                    problems.append("something that was never put")
            return []

        def consume(topic: str) -> list[int]:
            taken: list[int] = []
            with store.consumer(topic, group="G") as consumer:
                while not done.is_set() or consumer.lag():
                    for one in consumer.poll(timeout_s=0.01):
                        taken.append(number_of(one))
                        consumer.ack(one)
            return taken

        def run(number: int) -> list[int]:
            try:
                return [put, put, put, examine, examine][number](number) if number < 5 else consume(["T", "Other"][number - 5])
            except BaseException as error:
                problems.append(repr(error))
                raise
            finally:
                if number < putters:
                    finished.append(number)
                if len(finished) == putters or problems:
                    done.set()

        finished: list[int] = []
        results = in_threads(7, run)
        assert problems == []
        expected = {topic: [number for number in range(total) if topic_of(number) == topic] for topic in ("T", "Other")}
        assert sorted(results[5]) == expected["T"] and sorted(results[6]) == expected["Other"]
        for topic, numbers in expected.items():
            assert sorted(map(number_of, read_all(store, topic))) == numbers
