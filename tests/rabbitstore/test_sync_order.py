"""The order of syncs in an opening, a merge and a sync, on a disk that drops unsynced changes.

The disk's model lets a crash keep or lose every change that no sync covers, each on its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from storageio import Disk, DiskError, Mode, StoreReadOnly
from storageio.testing import ForgettingDisk, Image, WrappedDisk

FOLDER = "/msg_store_persistent"
SIZE = 300


def ident(number: int) -> bytes:
    return number.to_bytes(16, "big")


def term(number: int) -> bytes:
    return b"\x83" + bytes((number % 250 + 1,)) * SIZE


class MessageStores:
    """The modules of one build, and a message store on a disk."""

    def __init__(self, world: Any) -> None:
        self.recovery = world.module("rabbitstore.engine.msg_store_recovery")
        self.compaction = world.module("rabbitstore.repair.compaction")
        self.collector = world.module("rabbitstore.engine.collector")
        self.clean_stop = world.module("rabbitstore.engine.clean_stop")
        self.layout = world.module("rabbitstore.format.layout")
        self.records = world.module("rabbitstore.format.rdq")
        self.content = world.module("rabbitstore.format.content")
        self.index = world.module("rabbitstore.engine.queue_index_cy")
        settings = world.module("rabbitstore.settings")
        self.settings = settings.StoreSettings(file_size_limit=4 * SIZE, file_garbage_fraction=0.2)
        self.index_settings = settings.IndexSettings(segment_entries=8)

    def open(self, disk: Disk, numbers: range | list[int] = range(0)) -> Any:
        """Open a store with one reference to each of these messages, and require all of them."""
        store, missing = self.recovery.open_store(disk, FOLDER, self.settings, {ident(number): 1 for number in numbers})
        assert missing == set()
        return store

    def term_of_message(self, number: int) -> bytes:
        """Return a whole message: the recovery of a compaction compares copies."""
        made = self.content.encode_content(self.content.Content("/", "", ("q",), b"\0\0", b"x" * SIZE, ident(number), True))
        assert isinstance(made, bytes)
        return made


@pytest.fixture
def stores(world: Any) -> MessageStores:
    return MessageStores(world)


def images_of(disk: ForgettingDisk) -> Iterator[Image]:
    """Return the states that a power failure may leave now."""
    return disk.images(Random(3), limit=256)


def test_a_sync_confirms_nothing_after_a_concurrent_failure_of_the_file(stores: MessageStores) -> None:
    """A roll on another thread got the file's error, which the system reports once: this sync then succeeds."""
    disk = ForgettingDisk()
    store = stores.open(disk)
    store.client().write(ident(1), term(1))

    def roll_beside(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith("0.rdq"):
            store.fail(DiskError("sync", path, 5, "input/output error"))

    disk.watch = roll_beside
    with pytest.raises(StoreReadOnly):
        store.sync()
    store.abandon()


def test_a_salvaged_tail_is_durable_before_its_file_is_deleted(stores: MessageStores) -> None:
    """If only the deletion survived, the messages of an interrupted compaction were in no file."""
    disk = ForgettingDisk()
    disk.make_folder(FOLDER)
    records = [stores.records.encode_record(ident(number), stores.term_of_message(number)) for number in range(4)]
    for name, parts in (("0.rdq", records[:2]), ("0.rdt", records[2:])):
        file = disk.open(f"{FOLDER}/{name}", Mode.CREATE)
        file.write(0, b"".join(parts))
        file.sync()
        file.close()
    disk.sync_folder("/")
    disk.sync_folder(FOLDER)
    stores.compaction.recover_crashed_compaction(disk, FOLDER, 0)
    assert f"{FOLDER}/0.rdt" not in disk.files()
    for image in images_of(disk):
        stores.open(ForgettingDisk.of(image), range(4)).abandon()


def half_collected(stores: MessageStores, disk: Disk) -> tuple[Any, list[int]]:
    """Return a store with two closed files that are mostly garbage, and the remaining message numbers."""
    store = stores.open(disk)
    client = store.client()
    for number in range(9):
        client.write(ident(number), term(number))
        store.process()
    store.sync()
    kept = [0, 4, 8]  # one in each file: the first two fit into one
    client.remove(ident(number) for number in range(9) if number not in kept)
    store.process()
    store.sync()
    assert len(list(store.files)) > 2
    return store, kept


def test_a_merged_file_is_durable_before_its_source_is_deleted(stores: MessageStores) -> None:
    """If only the deletion survived, the right file's messages were in no file."""
    disk = ForgettingDisk()
    store, kept = half_collected(stores, disk)
    disk.watch = lambda _operation, _path: left.extend(images_of(disk))
    left: list[Image] = []
    assert stores.collector.collect_one(store) and 1 not in list(store.files)
    left.extend(images_of(disk))
    assert len(left) > 8
    for image in left:
        stores.open(ForgettingDisk.of(image), kept).abandon()
    store.abandon()


class Waits(threading.Condition):
    """A condition that reports when a thread waits for it."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self.waits = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.set()
        return super().wait(timeout)


class Paused(WrappedDisk):
    """A disk whose reads of a message file wait for `during`."""

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self.during: Any = None

    def before(self, operation: str, path: str) -> None:
        if self.during is not None and operation == "read" and path.endswith(".rdq"):
            during, self.during = self.during, None
            during()


def test_the_collector_waits_for_a_reader_of_its_file(stores: MessageStores) -> None:
    """The collector closes the files that it merges, so a read in progress would fail."""
    disk = Paused(ForgettingDisk())
    store, _kept = half_collected(stores, disk)
    store.changed = waiting = Waits(store.lock)
    merged = threading.Thread(target=lambda: stores.collector.collect_one(store))

    def collect_beside() -> None:
        assert store.files[0].readers == 1
        merged.start()
        stop = time.monotonic() + 30
        while merged.is_alive() and not waiting.waits.is_set():
            assert time.monotonic() < stop
            time.sleep(0.001)
        assert waiting.waits.is_set(), "the collector did not wait for the reader"
        assert not [path for path in disk.inner.files() if path.endswith(".rdt")]

    disk.during = collect_beside
    store._cache.clear()
    store._views.clear()
    assert store.read(ident(0)) == term(0)
    merged.join()
    assert disk.during is None, "the read went to the file"
    assert store.read(ident(0)) == term(0)
    store.check()
    store.abandon()


def test_a_deleted_clean_mark_stays_deleted_before_the_tables_are(stores: MessageStores) -> None:
    """A mark that reappeared would confirm tables of an earlier stop."""
    disk = ForgettingDisk()
    folders = sorted({f"/{name}".rpartition("/")[0] or "/" for name in stores.layout.CLEAN_FILES})
    for folder in folders:
        disk.make_folder(folder)
    for name in stores.layout.CLEAN_FILES:
        file = disk.open(f"/{name}", Mode.CREATE)
        file.write(0, b"of the last stop")
        file.sync()
        file.close()
    for folder in (*folders, "/"):
        disk.sync_folder(folder)
    disk.watch = lambda _operation, _path: left.extend(images_of(disk))
    left: list[Image] = []
    stores.clean_stop.delete_clean_stop(disk, "")
    assert len(left) > 8
    for image in left:
        marks = {name for name in stores.layout.CLEAN_MARKS if f"/{name}" in image.files}
        assert (
            not marks
            or {f"/{name}" for name in stores.layout.CLEAN_FILES if name not in stores.layout.CLEAN_MARKS} <= image.files.keys()
        )
    for image in images_of(disk):
        assert not [name for name in stores.layout.CLEAN_FILES if f"/{name}" in image.files]


def test_an_unsynced_segment_of_a_killed_server_is_synced_before_its_journal_is_emptied(stores: MessageStores) -> None:
    """A killed server had flushed its journal without a sync; a durably emptied journal would lose the entries."""
    disk = ForgettingDisk()
    index = stores.index.QueueIndex(disk, "/q", stores.index_settings)
    for number in range(3):
        index.publish(number, ident(number), 0, SIZE, True, None)
    index.sync()
    journal = disk.files()["/q/journal.jif"]
    index.flush()
    segment = disk.files()["/q/0.idx"]
    index.abandon()
    killed = ForgettingDisk()
    killed.make_folder("/q")
    file = killed.open("/q/journal.jif", Mode.CREATE)
    file.write(0, journal)
    file.sync()
    for folder in ("/", "/q"):
        killed.sync_folder(folder)
    file.truncate(0)
    file.close()
    file = killed.open("/q/0.idx", Mode.CREATE)
    file.write(0, segment)
    file.close()
    opened = stores.index.QueueIndex(killed, "/q", stores.index_settings)
    assert [entry.seq_id for entry in opened.load(lambda _entry: True)] == [0, 1, 2]
    opened.abandon()
    for image in images_of(killed):
        again = stores.index.QueueIndex(ForgettingDisk.of(image), "/q", stores.index_settings)
        assert [entry.seq_id for entry in again.load(lambda _entry: True)] == [0, 1, 2]
        again.abandon()


@pytest.mark.parametrize("behind", [b"", b"torn"])
def test_a_file_that_was_cut_and_extended_has_no_old_bytes_after_confirmed_records(
    stores: MessageStores, behind: bytes
) -> None:
    """The sync of a confirmed message makes the cut durable too."""
    disk = ForgettingDisk()
    store = stores.open(disk)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(3))
    store.sync()
    store.abandon()
    file = disk.open(f"{FOLDER}/0.rdq", Mode.WRITE)
    file.write(file.size(), behind)
    file.sync()
    file.close()
    store = stores.open(disk, range(2))
    for image in images_of(disk):
        stores.open(ForgettingDisk.of(image), range(2)).abandon()
    store.client().write(ident(7), b"\x83short")
    store.sync()
    store.abandon()
    for image in images_of(disk):
        stores.open(ForgettingDisk.of(image), [0, 1, 7]).abandon()
