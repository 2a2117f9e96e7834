"""Orders of syncs, reads and deletions that random programs did not show to matter; each docstring states the reason.

The planted bugs of these names (`scripts/planted_bugs.py`) reverse the order.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from storageio import DiskError, StoreError
from storageio.testing import ForgettingDisk, Image
from tests.stores import index_record

pytestmark = pytest.mark.default

HALF_A_FILE = 3000
TAG_HASH = ord("A")  # Java's hash code of a string of one letter


def put_all(run: Any, *operations: tuple[Any, ...]) -> None:
    """Run the operations of a program."""
    for operation in operations:
        run.do(operation)


def reopened(lab: Any, run: Any, image: Image | None = None) -> Any:
    """Open the store of an image; without one only the process died, so the disk keeps everything."""
    lab.abandon(run.store)
    disk = run.disk if image is None else ForgettingDisk.of(image, run.disk.time_ms)
    disk._held.clear()  # a dead process holds no lock
    return lab.open_still(disk, run.config)


def test_the_directory_entry_of_a_batch_queue_is_synced_at_the_open_after_a_kill(lab: Any) -> None:
    """A process died before it synced a new queue's name, and the next one's checkpoint covered the queue.

    After a power failure the folder was empty, and the next batch got offset 0 again.
    """
    run = lab.RocketmqRun(tries=False)
    run.store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
    kind = type(run.message("T", 0, 10, 0))
    run.ledger.bodies.add(b"x")
    run.store.put_batch("B", 0, [kind("B", b"x") for _ in range(5)])
    put_all(run, *[("put", "T", 0, HALF_A_FILE, 0)] * 6, ("flush",), ("dispatch",))
    run.store = reopened(lab, run)
    put_all(run, ("wait", 60_000), ("put", "T", 0, HALF_A_FILE, 0), ("flush",), ("dispatch",), ("derive", True))
    store = reopened(lab, run, run.disk.least())
    assert store.put_batch("B", 0, [kind("B", b"y")]).queue_offset == 5
    lab.abandon(store)


def test_the_index_sidecar_covers_only_units_dispatched_before_the_queue_sync(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit dispatched during the sync may be lost, so `index.json` must not cover it.

    The lost sector had the unit's second half: it kept its offset and lost its tag.
    """
    run = lab.RocketmqRun(tries=False, config=lab.lab_config().but(mapped_file_size_consume_queue=2000))
    put_all(run, *[("put", "T", 0, 10, 2)] * 25, ("flush",), ("dispatch",))
    queues = run.store.engine.queues
    flush = queues.flush

    def and_then_one_is_dispatched(least_pages: int = 0) -> bool:
        monkeypatch.setattr(queues, "flush", flush)
        done = flush(least_pages)
        put_all(run, ("put", "T", 0, 10, 2), ("flush",), ("dispatch",))
        return bool(done)

    monkeypatch.setattr(queues, "flush", and_then_one_is_dispatched)
    run.do(("derive", True))
    image = run.disk.after_kill()
    (path,) = [path for path in image.files if "/consumequeue/T/0/" in path]
    units = image.files[path]
    assert int.from_bytes(units[512:520], "big") == TAG_HASH, "unit 25 reaches into the second sector"
    torn = image._replace(files=image.files | {path: units[:512] + bytes(len(units) - 512)})
    disk = ForgettingDisk.of(torn, run.disk.time_ms)
    lab.abandon(run.store)
    store = lab.open_still(disk, run.config)
    store.engine.settle()
    assert disk.files()[path][512:520] == units[512:520]
    lab.abandon(store)


def test_the_checkpoint_does_not_cover_puts_during_the_log_sync(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store time must be read before the sync: a put in between is not covered."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, ("put", "T", 0, 10, 0))
    log = run.store.engine.log
    safe_ms, flush = log.appender.last_store_timestamp_ms, log.flush

    def and_then_one_is_put(least_pages: int = 0) -> int:
        done = flush(least_pages)
        put_all(run, ("wait", 60_000), ("put", "T", 0, 10, 0))
        return int(done)

    monkeypatch.setattr(log, "flush", and_then_one_is_put)
    run.store.engine.flusher.flush_now()
    monkeypatch.undo()
    put_all(run, ("dispatch",), ("derive", False))
    assert run.store.engine.checkpoint.physic_msg_timestamp_ms == safe_ms
    lab.abandon(run.store)


def test_records_of_a_ring_are_durable_before_the_ring_is_deleted(lab: Any) -> None:
    """A killed process left records in the ring alone, and the opening that moved them to the log lost power too.

    The ring's deletion must not be durable before the log's pages are.
    """
    run = lab.RocketmqRun(tries=False, config=lab.through_ring(lab.lab_config()))
    put_all(run, *[("put", "T", 0, 100, 1)] * 5)
    images: list[Image] = []

    def watch(operation: str, path: str) -> None:
        if operation == "delete" and path.endswith("/brokerstore/ring") and not images:
            images.append(run.disk.least())

    run.ledger.learn(run.store)
    run.disk.watch = watch
    lab.abandon(reopened(lab, run))
    (image,) = images
    files = {path: data for path, data in image.files.items() if not path.endswith("/ring")}
    assert run.recover(ForgettingDisk.of(image._replace(files=files), run.disk.time_ms), 5) == 5


def test_retention_deletes_no_log_file_that_is_not_synced(lab: Any) -> None:
    """A power failure may lose the records after a dispatched file, which then is the end of the log."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, *[("put", "T", 0, HALF_A_FILE, 0)] * 7, ("dispatch",))
    assert len(run.store.engine.log.queue.files) == 4
    assert run.store.delete_before(1 << 40) == 0
    run.do(("flush",))
    assert run.store.delete_before(1 << 40) == 3
    lab.abandon(run.store)


def test_a_batch_put_returns_only_after_a_sync_that_covers_its_last_record(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delayed messages are appended one by one, and another thread may sync between two of them.

    That sync covers the first byte of the put, not the last.
    """
    run = lab.RocketmqRun(tries=False, config=lab.lab_config(flush_disk_type=lab.FlushMode.SYNC))
    engine, kind = run.store.engine, type(run.message("T", 0, 10, 0))
    append, synced = engine.routing.append, []

    def and_another_threads_sync(message: Any, queue_id: int) -> Any:
        result = append(message, queue_id)
        if not synced:
            synced.append(engine.flusher.flush_now())
        return result

    monkeypatch.setattr(engine.routing, "append", and_another_threads_sync)
    result = run.store.put_many([kind("T", b"%d" % number, queue_id=0, properties={"DELAY": "3"}) for number in range(3)])
    assert result.message_count == 3 and synced[0] > result.physical_offset, "a part of them was synced before"
    assert engine.flusher.flushed_offset == engine.log.written_offset
    store = reopened(lab, run, run.disk.least())
    assert [bytes(message.body) for message in store.engine.log.messages()] == [b"0", b"1", b"2"]
    lab.abandon(store)


def test_each_index_file_deletion_is_durable_before_the_next(world: Any) -> None:
    """The newest goes first, so a crash leaves no gap between the remaining files."""
    disk = ForgettingDisk()
    index = world.indexfile.IndexFiles(disk, "/index", writable=True, slots=3, items=4)
    for number in range(12):
        disk.time_ms += 1000
        index_record(index, "T", None, f"k{number}", 100 * number, disk.time_ms)
    index.sync()
    names = sorted(path for path in disk.files() if path.startswith("/index/"))
    assert len(names) > 3
    left: list[Image] = []
    disk.watch = lambda _operation, _path: left.extend(disk.images(Random(1), 1, limit=256))
    index.destroy()
    disk.watch = None
    left += disk.images(Random(1), 1, limit=256)
    for image in left:
        found = sorted(image.files)
        assert found == names[: len(found)]
    assert disk.least().files == {}
    assert len({len(image.files) for image in left}) == len(names) + 1, "each of them was the last one at some moment"


def test_a_sync_failure_at_roll_over_is_recorded_for_the_next_open(lab: Any) -> None:
    """The process died before a flush reported the failure; the next one used to trust the cached pages."""
    run = lab.RocketmqRun(tries=False)
    put_all(run, *[("put", "T", 0, HALF_A_FILE, 0)] * 2)

    def refuse(operation: str, path: str) -> None:
        if operation == "sync" and "/commitlog/" in path:
            raise DiskError(operation, path, 5, "EIO")

    run.disk.refuse = refuse
    with pytest.raises(StoreError):
        run.store.put(run.message("T", 0, HALF_A_FILE, 0))
    run.disk.refuse = None
    run.store = reopened(lab, run)
    run.do(("flush",))
    assert run.ledger.flushed == 2
    lab.abandon(run.store)
    assert run.recover(ForgettingDisk.of(run.disk.least(), run.disk.time_ms), 2) == 2
