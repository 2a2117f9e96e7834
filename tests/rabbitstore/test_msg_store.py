"""The message store: writes, reads, removes, reference counts, new files, cancelled pairs, failing disks."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from rabbitstore.engine.collector import collect
from rabbitstore.engine.msg_store_recovery import open_store
from rabbitstore.errors import StoreBroken
from rabbitstore.format.rdq import check_record
from rabbitstore.repair.compaction import recover_crashed_compaction
from rabbitstore.settings import StoreSettings
from storageio import REAL_DISK, DiskError, StoreClosed, StoreReadOnly
from storageio.testing import CountingDisk, FailingDisk

from .conftest import ChangesFail

SMALL = StoreSettings(file_size_limit=4096)


def ident(number: int) -> bytes:
    return number.to_bytes(16, "big")


def term(number: int, size: int = 200) -> bytes:
    return bytes((number % 251,)) * size


def fresh(
    tmp_path: Path, settings: StoreSettings = SMALL, disk: Any = REAL_DISK, counts: dict[bytes, int] | None = None
) -> Any:
    store, missing = open_store(disk, str(tmp_path / "msg_store_persistent"), settings, counts or {})
    assert missing == set()
    return store


def test_what_is_written_is_read_before_and_after_the_sync(tmp_path: Path) -> None:
    """Messages are read from the cache, and from files after a reopening."""
    store = fresh(tmp_path)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(100))
    assert all(client.read(ident(number)) == term(number) for number in range(100))
    store.close()
    again = fresh(tmp_path, counts={ident(number): 1 for number in range(100)})
    assert all(again.read(ident(number)) == term(number) for number in range(100))
    assert again.read(ident(100)) is None and len(again.files.by_number) > 4
    again.check()
    again.close()


def test_files_start_at_0_and_roll_after_the_record_that_reaches_the_limit(tmp_path: Path) -> None:
    """As in RabbitMQ the limit is tested after an append, so no record is split."""
    store = fresh(tmp_path)
    store.client().write_many((ident(number), term(number, 4096)) for number in range(3))
    store.close()
    folder = tmp_path / "msg_store_persistent"
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == {
        "0.rdq": 4121,
        "1.rdq": 4121,
        "2.rdq": 4121,
        "3.rdq": 0,
    }


def test_a_write_is_synced_by_the_sync_only(tmp_path: Path) -> None:
    """Handling the mailbox syncs nothing."""
    disk = CountingDisk()
    store = fresh(tmp_path, StoreSettings(), disk)
    client = store.client()
    before = disk.counts["sync"]
    client.write(ident(1), term(1))
    store.process()
    assert store.has_work and disk.counts["sync"] == before
    store.sync()
    assert not store.has_work and disk.counts["sync"] - before == 1
    store.close()


def test_the_transient_store_is_never_synced(tmp_path: Path) -> None:
    """A restart drops its messages anyway."""
    disk = CountingDisk()
    store, _ = open_store(disk, str(tmp_path / "msg_store_transient"), SMALL, {}, is_synced=False)
    store.client().write_many((ident(number), term(number)) for number in range(50))
    store.close()
    assert disk.counts["sync"] == 0


def test_a_write_of_a_known_id_counts_and_is_stored_once(tmp_path: Path) -> None:
    """Three queues share one copy, which the third remove deletes."""
    store = fresh(tmp_path)
    clients = [store.client() for _ in range(3)]
    for client in clients:
        client.write(ident(1), term(1))
    store.process()
    assert (store.files.total_bytes, store.locations[ident(1)].ref_count) == (225, 3)
    for client in clients:
        assert store.contains(ident(1))
        client.remove([ident(1)])
    assert not store.contains(ident(1)) and store.files.valid_bytes == 0
    store.close()


def test_a_write_and_a_remove_in_flight_cancel_out(tmp_path: Path) -> None:
    """The store handles neither."""
    store = fresh(tmp_path)
    client = store.client()
    client.write(ident(1), term(1))
    client.remove([ident(1)])
    client.write(ident(2), term(2))
    store.sync()
    assert (store.files.total_bytes, len(client.in_flight)) == (225, 0)
    assert not store.contains(ident(1)) and store.contains(ident(2))
    store.close()


def test_writes_of_a_terminated_client_are_ignored(tmp_path: Path) -> None:
    """Its writes are neither stored nor counted, its removes take effect, and it cannot be used again."""
    store, _ = open_store(REAL_DISK, str(tmp_path / "msg_store_transient"), SMALL, {}, is_synced=False)
    dead, alive = store.client(), store.client()
    dead.write_many((ident(number), term(number)) for number in (1, 2))
    alive.write(ident(2), term(2))
    store.process()
    dead.write_many((ident(number), term(number)) for number in (3, 4, 5))
    alive.write(ident(4), term(4))
    dead.remove([ident(1), ident(2), ident(5)])
    dead.terminate()
    store.sync()
    counts = {msg_id: location.ref_count for msg_id, location in store.locations.items() if location.ref_count}
    assert counts == {ident(2): 1, ident(4): 1}
    assert (store.read(ident(3)), store.read(ident(4))) == (None, term(4))
    assert not dead.in_flight.counts
    with pytest.raises(StoreClosed):
        dead.write(ident(6), term(6))
    store.check()
    store.close()


@pytest.mark.parametrize("calls", ["ww", "rr"])
def test_an_impossible_in_flight_count_is_an_error(tmp_path: Path, calls: str) -> None:
    """A client may not have two writes or two removes of one message in flight."""
    client = fresh(tmp_path).client()
    with pytest.raises(StoreBroken):
        for call in calls:
            client.write(ident(1), b"") if call == "w" else client.remove([ident(1)])


def test_a_remove_without_a_write_is_an_error(tmp_path: Path) -> None:
    """It is an error."""
    store = fresh(tmp_path)
    store.client().remove([ident(9)])
    with pytest.raises(StoreBroken):
        store.process()
    store.abandon()


def test_a_revived_id_is_not_written_again(tmp_path: Path) -> None:
    """A location of count 0 stays until its file is deleted; a later write only counts."""
    store = fresh(tmp_path)
    client = store.client()
    client.write(ident(1), term(1))
    store.process()
    client.remove([ident(1)])
    store.process()
    client.write(ident(1), term(1))
    store.process()
    assert (store.files.total_bytes, store.files.valid_bytes) == (225, 225)
    store.check()
    store.close()


def test_a_file_without_references_is_deleted_but_not_the_current_one(tmp_path: Path) -> None:
    """It is deleted immediately, without the collector."""
    store = fresh(tmp_path)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(40))
    store.process()
    client.remove(ident(number) for number in range(40))
    store.process()
    assert [path.name for path in (tmp_path / "msg_store_persistent").iterdir()] == [f"{store.current}.rdq"]
    assert list(store.files) == [store.current] and len(store.locations) < 20
    store.check()
    store.close()


def test_a_buffer_of_0_writes_through(tmp_path: Path) -> None:
    """Each record is one write."""
    disk = CountingDisk()
    store = fresh(tmp_path, StoreSettings(write_buffer_bytes=0), disk)
    store.client().write_many((ident(number), term(number)) for number in range(7))
    store.process()
    assert disk.counts["write"] == 7
    store.close()


def test_after_a_failed_sync_the_store_only_reads(tmp_path: Path) -> None:
    """Later writes are refused, and reads continue."""
    disk = FailingDisk(1, only="sync")
    store = fresh(tmp_path, StoreSettings(), disk)
    client = store.client()
    client.write(ident(1), term(1))
    with pytest.raises(DiskError):
        store.sync()
    with pytest.raises(StoreReadOnly):
        client.write(ident(2), term(2))
    assert client.read(ident(1)) == term(1)
    store.close()


def test_the_default_collector_rule_stops_at_one_half_garbage(tmp_path: Path) -> None:
    """At 40 % garbage nothing is collected; above one half, until it is one half again, as measured on the server."""
    store = fresh(tmp_path)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(400))
    client_ids = [ident(number) for number in range(400) if number % 10 < 4]
    store.process()
    client.remove(client_ids)
    store.process()
    assert collect(store) == 0
    client.remove(ident(number) for number in range(400) if 4 <= number % 10 < 6)
    store.process()
    assert collect(store) > 0
    garbage = store.files.total_bytes - store.files.valid_bytes
    assert 0.35 < garbage / store.files.total_bytes <= 0.5
    assert all(store.read(ident(number)) == term(number) for number in range(400) if number % 10 >= 6)
    store.check()
    store.close()


@pytest.mark.parametrize("tenths", [4, 6])
def test_the_stricter_setting_reaches_1_2_times_the_live_bytes(tmp_path: Path, tenths: int) -> None:
    """RabbitMQ's rule keeps up to twice the live bytes."""
    store = fresh(tmp_path, StoreSettings(file_size_limit=4096, file_garbage_fraction=0.1))
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(400))
    store.process()
    client.remove(ident(number) for number in range(400) if number % 10 < tenths)
    store.process()
    collect(store)
    store.sync()
    size = sum(path.stat().st_size for path in (tmp_path / "msg_store_persistent").iterdir())
    assert size == store.files.total_bytes <= 1.2 * store.files.valid_bytes
    assert all(store.read(ident(number)) == term(number) for number in range(400) if number % 10 >= tenths)
    store.check()
    store.close()


def _with_garbage(tmp_path: Path, disk: Any) -> tuple[Any, dict[bytes, int]]:
    """Return a store of 120 messages, 72 of them removed, and the messages that must survive."""
    store = fresh(tmp_path, SMALL, disk)
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(120))
    store.sync()
    client.remove(ident(number) for number in range(120) if number % 10 < 6)
    store.process()
    return store, {ident(number): 1 for number in range(120) if number % 10 >= 6}


@pytest.mark.parametrize("kind", [FailingDisk, ChangesFail])
def test_the_collector_killed_at_every_call_of_the_disk(tmp_path: Path, kind: type[ChangesFail] | type[FailingDisk]) -> None:
    """After a kill at any call, and in the middle of any write, every message is there with its count.

    The store then collects to the end, and the records that a scan finds are those that the references say.
    """
    fail_at, is_done = 1, False
    while not is_done:
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        disk = kind(1 << 40, for_ever=True)
        store, counts = _with_garbage(folder, disk)
        disk.fail_at = len(disk.calls) + fail_at
        with contextlib.suppress(DiskError):
            is_done = collect(store) > 0 and len(disk.calls) < disk.fail_at
        store.abandon()
        again = fresh(folder, counts=counts)
        assert all(again.read(msg_id) == term(int.from_bytes(msg_id, "big")) for msg_id in counts)
        assert {msg_id: location.ref_count for msg_id, location in again.locations.items()} == counts
        again.check()
        collect(again)
        assert all(again.read(msg_id) == term(int.from_bytes(msg_id, "big")) for msg_id in counts)
        again.check()
        again.close()
        assert not list(folder.glob("*/*.rdt"))
        _agrees_with_the_files(again, folder)
        fail_at += 1
    assert fail_at > (20 if kind is FailingDisk else 10)


def _agrees_with_the_files(store: Any, folder: Path) -> None:
    """Assert that every location has a whole record of its id."""
    for msg_id, location in store.locations.items():
        data = (folder / "msg_store_persistent" / f"{location.file}.rdq").read_bytes()
        assert check_record(data[location.offset :][: location.total_size], msg_id, location.total_size)


def test_the_collector_continues_after_one_failed_call(tmp_path: Path) -> None:
    """After one failure of the disk all messages are readable, and memory and disk agree."""
    for fail_at in range(1, 20):
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        disk = FailingDisk(1 << 40)
        store, counts = _with_garbage(folder, disk)
        disk.fail_at = len(disk.calls) + fail_at
        with pytest.raises(DiskError):
            collect(store)
        store.check()
        assert all(store.read(msg_id) == term(int.from_bytes(msg_id, "big")) for msg_id in counts)
        assert not any(store.files[number].locked for number in store.files)
        store.abandon()


@pytest.mark.parametrize("keep", range(0, 900, 37))
def test_the_servers_own_compaction_killed_in_the_middle(tmp_path: Path, keep: int) -> None:
    """With `N.rdt` complete and the left file partly rewritten, all messages are found."""
    store = fresh(tmp_path, StoreSettings())
    store.client().write_many((ident(number), term(number)) for number in range(8))
    store.close()
    path = tmp_path / "msg_store_persistent" / "0.rdq"
    data = path.read_bytes()
    tail = data[225 * 4 :]
    path.with_suffix(".rdt").write_bytes(tail)
    path.write_bytes(data[: 225 * 4] + tail[:keep] + bytes(len(tail) - keep))
    again = fresh(tmp_path, counts={ident(number): 2 for number in range(8)})
    assert all(again.read(ident(number)) == term(number) for number in range(8))
    assert not path.with_suffix(".rdt").exists()
    again.check()
    again.close()


def test_a_torn_rdt_file_next_to_an_intact_rdq_file(tmp_path: Path) -> None:
    """After a kill while the tail was written, nothing is lost and no torn record is used."""
    store = fresh(tmp_path, StoreSettings())
    store.client().write_many((ident(number), term(number)) for number in range(4))
    store.close()
    path = tmp_path / "msg_store_persistent" / "0.rdq"
    path.with_suffix(".rdt").write_bytes(path.read_bytes()[225 : 225 + 300])
    again = fresh(tmp_path, counts={ident(number): 1 for number in range(4)})
    assert all(again.read(ident(number)) == term(number) for number in range(4))
    again.close()


def test_reads_beside_the_collector(tmp_path: Path) -> None:
    """A reader that read the location before the merge finds the message after it."""
    store, counts = _with_garbage(tmp_path, REAL_DISK)
    expected = next(iter(counts))
    collect(store)
    store.abandon()
    assert store.read(expected) == term(int.from_bytes(expected, "big"))


def test_a_reference_to_an_id_in_no_file_is_reported(tmp_path: Path) -> None:
    """The caller learns which references have no message."""
    fresh(tmp_path).close()
    store, missing = open_store(REAL_DISK, str(tmp_path / "msg_store_persistent"), SMALL, {ident(1): 1})
    assert missing == {ident(1)}
    store.close()


def test_readers_and_a_writer_beside_the_collector(tmp_path: Path) -> None:
    """Threads that read while files are merged and deleted get the right bytes."""
    store = fresh(tmp_path, StoreSettings(file_size_limit=4096, file_garbage_fraction=0.1, open_files_max=3))
    client = store.client()
    client.write_many((ident(number), term(number)) for number in range(300))
    store.sync()
    kept = [number for number in range(300) if number % 10 >= 6]
    errors = []
    is_done = threading.Event()

    def reader(step: Any) -> None:
        while not is_done.is_set():
            for number in kept[::step]:
                if store.read(ident(number)) != term(number):
                    errors.append(number)

    threads = [threading.Thread(target=reader, args=(step,)) for step in (1, 3)]
    for thread in threads:
        thread.start()
    for tenth in range(6):
        client.remove(ident(number) for number in range(300) if number % 10 == tenth)
        client.write_many((ident(1000 + 50 * tenth + number), term(number)) for number in range(50))
        store.sync()
        collect(store)
    is_done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    store.check()
    store.close()


def test_a_store_that_only_reads_refuses_removes(tmp_path: Path) -> None:
    """After a failed sync removes are refused like writes, and are not counted."""
    store = fresh(tmp_path, StoreSettings(), FailingDisk(1, only="sync"))
    client = store.client()
    client.write(ident(1), term(1))
    with pytest.raises(DiskError):
        store.sync()
    with pytest.raises(StoreReadOnly):
        client.remove([ident(1)])
    assert client.read(ident(1)) == term(1)
    store.close()


def test_a_write_is_pending_until_the_sync(tmp_path: Path) -> None:
    """The message is first in the mailbox, then in the buffer, then in the file."""
    store = fresh(tmp_path, StoreSettings())
    assert not store.has_work
    store.client().write(ident(1), term(1))
    assert store.has_work
    for step in (store.process, store.flush):
        step()
        assert store.has_work
    store.sync()
    assert not store.has_work
    store.close()


def test_recovered_records_follow_the_whole_records_directly(tmp_path: Path) -> None:
    """A torn tail longer than the appended records leaves no bytes after them."""
    for name, number in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        store = fresh(tmp_path / name, StoreSettings())
        store.client().write(ident(number), term(number))
        store.close()
    first, second = (tmp_path / name / "msg_store_persistent" / "0.rdq" for name in "ab")
    whole, joined = first.read_bytes(), second.read_bytes()
    first.write_bytes(whole + bytes(400) + b"\xff" * 100)
    first.with_suffix(".rdt").write_bytes(joined)
    recover_crashed_compaction(REAL_DISK, str(first.parent), 0)
    assert first.read_bytes() == whole + joined and not first.with_suffix(".rdt").exists()
