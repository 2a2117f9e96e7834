"""Calls that fail half way: the state that they leave, and how the next call continues."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import IndexSettings, RabbitSettings, RabbitStore, StoreSettings, verify
from storageio import DiskError, InvalidMessage, StoreCorrupt
from storageio.testing import FailingDisk

SMALL = RabbitSettings(
    background=False,
    store=StoreSettings(file_size_limit=20_000, write_buffer_bytes=0),
    index=IndexSettings(segment_entries=4, journal_entries_max=60, embed_below=100),
    io_batch_size=2,
)
LARGE = 300  # bytes of a body that lies in the message store
NEVER = 1 << 40


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "vhost")


def bodies(store: RabbitStore, name: str) -> list[bytes]:
    found = []
    while (delivery := store.get(name, auto_ack=True)) is not None:
        found.append(delivery.body.rstrip(b"."))
    return found


def filled(path: str, disk: FailingDisk | None = None, mode: str = "default", count: int = 10) -> RabbitStore:
    """A store with one queue; every other message is in the message store, some only in the journal."""
    store = RabbitStore.open(path, settings=SMALL, **({"disk": disk} if disk else {}))
    store.declare_queue("q", mode=mode)
    for number in range(count):
        store.publish("q", (b"old %d" % number).ljust(LARGE if number % 2 else 10, b"."))
        if number == count - 3:
            store.flush_journals()
    store.sync()
    return store


def is_gone(path: str) -> bool:
    folder = Path(path) / "queues"
    return not [entry for entry in folder.iterdir() if entry.is_dir()]


def delete_and_declare(path: str, fail_at: int, *, again: str) -> bool:
    """Delete the queue and return whether that failed; then call `again`."""
    disk = FailingDisk(NEVER)
    store = filled(path, disk)
    store.get("q")
    disk.calls.clear()
    disk.fail_at = fail_at
    failed = False
    try:
        store.delete_queue("q")
    except DiskError:
        failed = True
    disk.fail_at = NEVER
    if again == "delete" and failed:
        store.delete_queue("q")
    if again == "close" and failed:
        store.close()
        store = RabbitStore.open(path, settings=SMALL)
        if "q" in store.queue_names():
            store.delete_queue("q")
    if "q" in store.queue_names():  # it failed before anything was deleted
        assert again == "declare" and bodies(store, "q") == sorted(bodies_of(store)) == []
        store.delete_queue("q")
    store.declare_queue("q")
    store.publish("q", b"new")
    store.publish("q", b"new too".ljust(LARGE, b"."))
    store.close()
    return failed


def bodies_of(store: Any) -> Any:
    return [message.body for message in store.messages()]


@pytest.mark.parametrize("again", ["declare", "delete", "close"])
def test_a_queue_declared_again_after_a_partial_deletion_has_no_old_messages(tmp_path: Path, again: str) -> None:
    """Every call of the deletion fails once.  The old messages used to appear in the new queue of the same name."""
    fail_at, failed = 0, True
    while failed:
        fail_at += 1
        path = str(tmp_path / str(fail_at))
        failed = delete_and_declare(path, fail_at, again=again)
        with RabbitStore.open(path, settings=SMALL) as store:
            assert bodies(store, "q") == [b"new", b"new too"] and store.lost == [] and store.problems == []
        assert verify(path).problems == []
    assert fail_at > 8


def test_a_clean_stop_completes_a_half_finished_deletion(path: str) -> None:
    """A file could not be deleted; the stop completes the deletion, and no nameless queue remains."""
    disk = FailingDisk(NEVER, only="delete")
    store = filled(path, disk)
    disk.fail_at = len(disk.calls) + 2
    with pytest.raises(DiskError):
        store.delete_queue("q")
    assert store.queue_names() == []
    store.close()
    assert is_gone(path)
    with RabbitStore.open(path, settings=SMALL) as store:
        assert store.queue_names() == [] and store.parts.is_resumed


@pytest.mark.parametrize("mode", ["default", "lazy"])
@pytest.mark.parametrize("multiple", [True, False], ids=["all at once", "a consumer goes away"])
def test_a_requeue_that_cannot_read_one_message_returns_the_others(path: str, mode: str, multiple: bool) -> None:
    """One of ten messages cannot be read; the other nine used to be lost until the next start."""
    disk = FailingDisk(NEVER, only="read")
    store = filled(path, disk, mode)
    queue = store.queue("q")
    consumer = store.consumer("q")
    held = list(consumer)
    queue.parts[0].set_target_ram_count(0)  # what is unacknowledged has no copy in memory
    queue.parts[0].set_target_ram_count(float("inf"))
    is_read = mode == "default"  # a lazy queue takes them back without their bytes
    store.parts.persistent._cache.clear()
    disk.fail_at = len(disk.calls) + 1
    with pytest.raises(DiskError) if is_read else contextlib.nullcontext():
        if multiple:
            store.requeue(held[-1], multiple=True)
        else:
            consumer.close()
    queue.parts[0].check()
    assert len(queue) == 10 - is_read and len(queue.unacked) == is_read
    left = [store.requeue(held[tag - 1]) for tag in sorted(queue.unacked)]
    assert left == [1] * is_read
    disk.fail_at = NEVER
    assert bodies(store, "q") == [b"old %d" % number for number in range(10)]
    store.close()


def test_a_message_with_a_failed_read_stays_at_the_head_of_the_queue(path: str) -> None:
    """A failed read used to remove the message from the queue until the next start."""
    disk = FailingDisk(NEVER, only="read")
    store = filled(path, disk, "lazy")
    assert store.get("q", auto_ack=True).body.startswith(b"old 0")
    store.parts.persistent._cache.clear()
    disk.fail_at = len(disk.calls) + 1
    with pytest.raises(DiskError):
        store.get("q", auto_ack=True)
    store.queue("q").parts[0].check()
    assert bodies(store, "q") == [b"old %d" % number for number in range(1, 10)]
    store.close()


def test_a_damaged_message_does_not_block_the_requeue_of_others(path: str) -> None:
    """It stays unacknowledged and the others are delivered again; the next start reports it."""
    store = filled(path)
    held = [store.get("q") for _ in range(10)]
    part = store.queue("q").parts[0]
    part.set_target_ram_count(0)
    part.set_target_ram_count(float("inf"))
    store.parts.persistent._cache.clear()
    file = Path(path) / "msg_store_persistent" / "0.rdq"
    file.write_bytes(b"\xee" + file.read_bytes()[1:])
    with pytest.raises(StoreCorrupt):
        store.requeue(held[-1], multiple=True)
    part.check()
    assert bodies(store, "q") == [b"old %d" % number for number in range(10) if number != 1]
    assert list(store.queue("q").unacked) == [2]
    store.abandon()


def test_a_queue_that_cannot_become_lazy_stays_as_it_was(path: str) -> None:
    """After a failed flush of the index, messages already paged out used to be delivered twice, out of order."""
    disk = FailingDisk(NEVER, for_ever=True)
    store = filled(path, disk, count=0)
    for number in range(50):
        store.publish("q", b"old %d" % number, persistent=False)
    disk.fail_at = len(disk.calls) + 1
    with pytest.raises(DiskError):
        store.set_mode("q", "lazy")
    store.queue("q").parts[0].check()
    assert [store.get("q").body for _ in range(50)] == [b"old %d" % number for number in range(50)]
    store.abandon()


@pytest.mark.parametrize("text", ["4294967296", "1" + "0" * 30, "9" * 255, "٣"], ids=["2^32", "10^30", "longest", "Arabic"])
def test_an_expiration_above_the_rabbitmq_limit_is_refused(path: str, text: str) -> None:
    """10^30 ms used to raise Python's OverflowError with the message half published.  RabbitMQ: value_too_big."""
    with RabbitStore.open(path, settings=SMALL) as store:
        store.declare_queue("q")
        with pytest.raises(InvalidMessage):
            store.publish("q", b"", properties={"expiration": text})
        store.publish("q", b"kept", properties={"expiration": "4294967295"})
        assert bodies(store, "q") == [b"kept"]
        with pytest.raises(InvalidMessage, match="time to live"):
            store.declare_queue("other", message_ttl_ms=1 << 62)
        assert store.queue_names() == ["q"]


@pytest.mark.parametrize("entries", [0, -1, 16385, 1 << 20])
def test_a_segment_size_out_of_range_makes_no_folder(path: str, entries: int) -> None:
    """The folder used to be created with it, and every later opening rejected it."""
    with pytest.raises(InvalidMessage, match="expected a whole number from 1 to 16384"):
        RabbitStore.open(path, settings=RabbitSettings(background=False, index=IndexSettings(segment_entries=entries)))
    assert not Path(path).exists()


def test_a_store_without_queues_that_was_stopped_cleanly_is_sound(path: str) -> None:
    """Each opening used to report its empty recovery.dets as missing, and scanned the folder."""
    RabbitStore.open(path, settings=SMALL).close()
    with RabbitStore.open(path, settings=SMALL) as store:
        assert store.problems == [] and store.parts.is_resumed
