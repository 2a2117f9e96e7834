"""A message store with ids revived during a collection, terminated clients, failing disks, and extreme settings."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import RabbitSettings, RabbitStore, StoreSettings, UnknownDelivery, UnknownQueue
from rabbitstore import store as store_module
from rabbitstore.engine.collector import collect, collect_one
from rabbitstore.format.rdq import FEW_IDS, check_record, encode_record, find_any_record
from storageio import DiskError, InvalidMessage, StoreClosed, StoreCorrupt, StoreError, StoreLocked
from storageio.testing import WrappedDisk

from .test_msg_store import fresh, ident, term

QUIET = RabbitSettings(background=False, index_version=1)
EAGER = StoreSettings(file_size_limit=4096, file_garbage_fraction=0.0)


class During(WrappedDisk):
    """A disk that calls a function once while the collector writes its new file."""

    def __init__(self, happens: None) -> None:
        super().__init__()
        self.happens = happens

    def before(self, operation: str, path: str) -> None:
        if operation == "write" and path.endswith(".rdt") and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()


def test_an_id_revived_during_a_collection_is_written_again(tmp_path: Path) -> None:
    """The merge has not copied its record, so a write that only counted would lose the message."""
    disk = During(None)
    store = fresh(tmp_path, EAGER, disk)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(60))
    store.process()
    client.remove(ident(number) for number in range(0, 60, 3))
    store.process()
    back = [ident(number) for number in range(0, 60, 3)]

    def come_back() -> None:
        client.write_many((msg_id, term(int.from_bytes(msg_id, "big"))) for msg_id in back)
        store.process()

    disk.happens = come_back
    assert collect_one(store)
    store.sync()
    assert [store.read(ident(number)) for number in range(60)] == [term(number) for number in range(60)]
    store.check()
    collect(store)
    store.check()
    assert [store.read(ident(number)) for number in range(60)] == [term(number) for number in range(60)]
    store.close()
    again = fresh(tmp_path, EAGER, counts={ident(number): 1 for number in range(60)})
    assert [again.read(ident(number)) for number in range(60)] == [term(number) for number in range(60)]
    again.close()


def test_a_file_that_becomes_empty_during_a_collection_is_deleted(tmp_path: Path) -> None:
    """A file that becomes empty during the merge is deleted afterwards."""
    disk = During(None)
    store = fresh(tmp_path, EAGER, disk)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(60))
    store.process()
    client.remove(ident(number) for number in range(60) if number % 4)
    store.process()

    def all_go() -> None:
        client.remove(ident(number) for number in range(0, 60, 4))
        store.process()

    disk.happens = all_go
    assert collect_one(store)
    collect(store)
    store.sync()
    assert [path.name for path in (tmp_path / "msg_store_persistent").iterdir()] == [f"{store.current}.rdq"]
    store.check()
    store.close()


def test_the_collector_stops_at_its_limit_and_its_settings(tmp_path: Path) -> None:
    """The number of merges is limited; without `file_garbage_fraction` a single file is not rewritten."""
    store = fresh(tmp_path, EAGER)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(200))
    store.process()
    client.remove(ident(number) for number in range(200) if number % 2)
    store.process()
    assert collect(store, 2) == 2 and collect(store, 0) == 0
    assert collect(store) > 0
    store.close()
    plain = fresh(tmp_path / "plain", StoreSettings(file_size_limit=4096, file_garbage_fraction=None))
    other = plain.client()
    other.write_many((ident(number), term(number)) for number in range(60))
    plain.process()
    other.remove(ident(number) for number in range(60) if number % 20)
    plain.process()
    merged = collect(plain)
    assert all(plain.read(ident(number)) == term(number) for number in range(0, 60, 20))
    assert collect(plain) == 0 <= merged
    plain.close()


def test_a_transient_store_is_collected_without_a_sync(tmp_path: Path) -> None:
    """A transient store need not be synced."""
    path = str(tmp_path / "vhost")
    disk = WrappedDisk()
    settings = RabbitSettings(background=False, store=StoreSettings(file_size_limit=40_000, file_garbage_fraction=0.0))
    with RabbitStore.open(path, settings=settings, disk=disk) as store:
        store.declare_queue("q", mode="lazy", durable=False)
        for number in range(60):
            store.publish("q", b"%02d" % number * 2500, persistent=False)
        store.process()
        held = [store.get("q") for _ in range(60)]
        for delivery in held[::2]:
            store.ack(delivery)
        store.process()
        assert store.collect() > 0
        for delivery in held[1::2]:
            store.requeue(delivery)
        assert [store.get("q").body for _ in range(30)] == [b"%02d" % number * 2500 for number in range(1, 60, 2)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("", {}), ("a\0b", {}), ("x" * 256, {}), ("ä" * 128, {}), ("q", {"mode": "quick"}), ("q", {"max_priority": 256}),
        ("q", {"max_priority": -1}), ("q", {"message_ttl_ms": -1}),
    ],
)  # fmt: skip
def test_a_declaration_that_rabbitmq_would_not_take_is_refused(tmp_path: Path, name: str, options: dict[Any, Any]) -> None:
    """The error names the setting, and no folder is created."""
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET) as store:
        with pytest.raises(InvalidMessage):
            store.declare_queue(name, **options)
        assert store.queue_names() == [] and list((tmp_path / "vhost" / "queues").iterdir()) == []


def test_a_fetch_reports_a_message_in_a_deleted_file(tmp_path: Path) -> None:
    """A file was deleted under the open store: the queue's other messages are delivered."""
    path = tmp_path / "vhost"
    settings = RabbitSettings(background=False, store=StoreSettings(file_size_limit=20_000))
    with RabbitStore.open(str(path), settings=settings) as store:
        store.declare_queue("q", mode="lazy")
        for number in range(8):
            store.publish("q", b"%d" % number * 9000)
    with RabbitStore.open(str(path), settings=settings) as store:
        lost = [ident_ for ident_, location in store.parts.persistent.locations.items() if location.file == 1]
        for msg_id in lost:
            location = store.parts.persistent.locations.pop(msg_id)
            store.parts.persistent.files.adjust(store.parts.persistent.files[1], -location.total_size)
        found, errors = [], 0
        for _ in range(8):
            try:
                found.append(int(store.get("q").body[:1]))
            except StoreCorrupt as error:
                assert "in no file" in str(error)
                errors += 1
    assert errors == len(lost) > 0 and len(found) == 8 - errors == len(set(found))


def test_one_of_very_many_missing_messages_is_found_in_one_pass() -> None:
    """The message is found after damage, among more ids than are searched one by one."""
    expected = {ident(number) for number in range(1, 2 * FEW_IDS)}
    record = encode_record(ident(99), b"\x83m\0\0\0\1x")
    assert find_any_record(b"\x55" * 700 + record + b"\x55" * 50, expected) == ident(99)
    assert find_any_record(b"\x55" * 700 + record[:-1] + b"\x55" * 50, expected) is None
    assert find_any_record(b"\x55" * 7, expected) is None


def test_bytes_of_another_length_are_no_record() -> None:
    """A file becomes shorter while it is read."""
    record = encode_record(ident(1), b"\x83m\0\0\0\1x")
    assert check_record(record, ident(1), len(record))
    assert not check_record(record[:-1], ident(1), len(record))
    assert not check_record(record[:9], ident(1), 9)


class CannotDelete(During):
    """Both the merge and the deletion of a file that became empty fail."""

    def before(self, operation: str, path: str) -> None:
        if operation == "delete" and path.endswith(".rdq"):
            raise DiskError(operation, path, errno.EIO, "input/output error")
        if operation == "write" and path.endswith(".rdt"):
            super().before(operation, path)
            raise DiskError(operation, path, errno.ENOSPC, "no space")


def test_a_failed_deletion_after_a_failed_merge_loses_no_remove_and_blocks_no_reader(tmp_path: Path) -> None:
    """Other removes that waited for the merge used to be lost, and waiting readers were not woken."""
    disk = CannotDelete(None)
    store = fresh(tmp_path, EAGER, disk)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(60))
    store.process()
    client.remove(ident(number) for number in range(60) if number % 3)
    store.process()
    numbers = sorted({location.file for location in store.locations.values()})
    in_first = [msg_id for msg_id, position in store.locations.items() if position.file == numbers[0] and position.ref_count]
    second = [msg_id for msg_id, position in store.locations.items() if position.file == numbers[1] and position.ref_count]
    read, reader = [], None

    def all_of_a_file_go() -> None:
        nonlocal reader
        assert store.files[numbers[0]].locked and store.files[numbers[1]].locked
        client.remove([*in_first, second[0]])
        store.process()
        reader = threading.Thread(target=lambda: read.append(store.read(second[1])), daemon=True)
        reader.start()
        while not store.changed._waiters and not read:  # the collector has the file: the reader waits
            pass

    disk.happens = all_of_a_file_go
    with pytest.raises(DiskError, match=r"input/output|no space"):
        collect_one(store)
    reader.join(30)
    assert read == [term(int.from_bytes(second[1], "big"))]
    assert not any(store.contains(msg_id) for msg_id in [*in_first, second[0]]) and not store.deferred
    store.check()
    store.abandon()


def test_files_with_too_many_live_bytes_for_one_file_are_not_merged(tmp_path: Path) -> None:
    """There is enough garbage, but no two neighbours fit one file."""
    settings = StoreSettings(file_size_limit=4096, garbage_fraction=0.2)
    store = fresh(tmp_path, settings)
    client = store.client()
    client.write_many((ident(number), term(number, 1000)) for number in range(40))
    store.process()
    gone = [number for number in range(40) if number % 4 == 3]
    client.remove(ident(number) for number in gone)
    store.process()
    positions = {msg_id: position.file for msg_id, position in store.locations.items()}
    assert collect(store) == 0
    assert {msg_id: position.file for msg_id, position in store.locations.items()} == positions
    assert all(store.read(ident(number)) == term(number, 1000) for number in range(40) if number not in gone)
    store.close()


def test_contains_handles_the_mailbox_before_an_unknown_id(tmp_path: Path) -> None:
    """`contains` handles the mailbox first, and loses nothing of it."""
    store = fresh(tmp_path)
    client = store.client()
    client.write(ident(1), term(1))
    assert store.read(ident(2)) is None
    assert store.read(ident(1)) == term(1) and store.contains(ident(1))
    store.close()


def test_a_write_of_a_terminated_client_adds_no_reference(tmp_path: Path) -> None:
    """Another queue has the message and can read it until its own remove."""
    store = fresh(tmp_path)
    living, dead = store.client(), store.client()
    living.write(ident(1), term(1))
    store.process()
    dead.write(ident(1), term(1))
    dead.terminate()
    store.process()
    assert store.read(ident(1)) == term(1)
    living.remove([ident(1)])
    assert not store.contains(ident(1))
    store.check()
    store.close()


def test_the_later_of_two_copies_in_one_file_counts(tmp_path: Path) -> None:
    """A killed compaction of the server leaves two copies: the last location counts."""
    folder = tmp_path / "msg_store_persistent"
    folder.mkdir()
    first, other, last = (encode_record(ident(number), term(number, size)) for number, size in ((1, 50), (2, 60), (1, 50)))
    (folder / "0.rdq").write_bytes(first + other + last)
    store = fresh(tmp_path, counts={ident(1): 1, ident(2): 1})
    assert (store.locations[ident(1)].offset, store.files.valid_bytes) == (len(first + other), len(other + last))
    assert [store.read(ident(number)) for number in (1, 2)] == [term(1, 50), term(2, 60)]
    store.check()
    store.close()


def test_a_second_equal_declaration_returns_the_same_queue(tmp_path: Path) -> None:
    """It keeps its messages; other options are an error, and so is deleting an unknown queue."""
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET) as store:
        queue = store.declare_queue("q", max_priority=3)
        store.publish("q", b"kept")
        assert store.declare_queue("q", max_priority=3) is queue and store.is_writable
        with pytest.raises(StoreError, match="exists with"):
            store.declare_queue("q")
        with pytest.raises(UnknownQueue, match="no queue is called 'other'"):
            store.delete_queue("other")
        assert store.get("q").body == b"kept"
        with pytest.raises(UnknownDelivery, match="no unacknowledged delivery 7"):
            queue.acknowledge(7)
    assert not RabbitStore.open(str(tmp_path / "vhost"), "r").is_writable


def test_a_partially_deleted_queue_does_not_block_the_flush_of_other_journals(tmp_path: Path) -> None:
    """The deleted queue's journal is not created again; the other journals are flushed."""
    disk = WrappedDisk()
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET, disk=disk) as store:
        queues = [store.declare_queue(name) for name in ("a", "b", "c")]
        for name in "abc":
            store.publish(name, b"of " + name.encode())
        store.sync()

        def fails(operation: str, path: str) -> None:
            if operation == "delete folder" and path == queues[0].parts[0].index.folder:
                raise DiskError(operation, path, errno.EIO, "input/output error")

        disk.before = fails
        with pytest.raises(DiskError):
            store.delete_queue("a")
        store.flush_journals()
        assert store.queue_names() == ["b", "c"] and list(Path(queues[0].parts[0].index.folder).iterdir()) == []
        folders = [Path(queue.parts[0].index.folder) for queue in queues[1:]]
        assert all((folder / "0.idx").stat().st_size and not (folder / "journal.jif").stat().st_size for folder in folders)
        disk.before = lambda _operation, _path: None
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET) as store:
        assert [store.get(name).body for name in store.queue_names()] == [b"of b", b"of c"]


def test_a_wait_with_nothing_new_is_no_sync(tmp_path: Path) -> None:
    """Everything is durable already."""
    with RabbitStore.open(str(tmp_path / "vhost"), settings=QUIET) as store:
        store.declare_queue("q")
        publisher = store.publisher()
        publisher.publish("q", b"x")
        assert publisher.wait() == 1
        before = store.sync_count
        assert publisher.wait() == publisher.confirmed == 1 and store.sync_count == before


class InOrder(list):
    """A replacement for the set of open stores, with an order."""

    add = list.append


@pytest.fixture
def two_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RabbitStore, RabbitStore, WrappedDisk]:
    """Two stores are the only ones of the process; the first one's disk can fail."""
    disk = WrappedDisk()
    first = RabbitStore.open(str(tmp_path / "first"), settings=QUIET, disk=disk)
    second = RabbitStore.open(str(tmp_path / "second"), settings=QUIET)
    for store in (first, second):
        store.declare_queue("q")
        store.publish("q", b"x")
    monkeypatch.setattr(store_module, "_open_stores", InOrder((first, second)))
    return first, second, disk


def test_a_store_that_fails_to_stop_at_exit_does_not_prevent_others_from_stopping(
    two_stores: tuple[RabbitStore, RabbitStore, WrappedDisk], tmp_path: Path
) -> None:
    """The first store's disk is full; the second is still stopped cleanly, and both folders are unlocked."""
    _first, second, disk = two_stores

    def full(operation: str, path: str) -> None:
        if operation in ("create", "write"):
            raise DiskError(operation, path, errno.ENOSPC, "no space")

    disk.before = full
    store_module._close_at_exit()
    with pytest.raises(StoreClosed):
        second.publish("q", b"late")
    with RabbitStore.open(str(tmp_path / "second"), settings=QUIET) as again:
        assert again.parts.is_resumed and not again.get("q").redelivered
    RabbitStore.open(str(tmp_path / "first"), settings=QUIET).close()


def test_stores_of_the_parent_are_closed_and_unchanged_in_a_forked_child(
    two_stores: tuple[RabbitStore, RabbitStore, WrappedDisk], tmp_path: Path
) -> None:
    """Neither a publish nor a close of the child writes, and the parent keeps the lock."""
    first, second, disk = two_stores
    calls = []
    disk.before = lambda operation, path: calls.append((operation, path))
    locks = [store._lock for store in (first, second)]
    store_module._forget_in_child()
    for store in (first, second):
        with pytest.raises(StoreClosed):
            store.publish("q", b"child")
        store.close()
        store.abandon()
        assert store._housekeeper is None
    assert calls == []
    with pytest.raises(StoreLocked):
        RabbitStore.open(str(tmp_path / "first"), settings=QUIET)
    for lock in locks:
        lock.release()
