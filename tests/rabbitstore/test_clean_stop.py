"""The clean-stop files: they have the server's bytes, are correct at every moment, and damage to them is reported."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rabbitstore import IndexSettings, RabbitSettings, RabbitStore, StoreSettings, verify
from rabbitstore.format import tables
from rabbitstore.format.dets_table import SLOTS, phash2, read_dets, write_dets
from rabbitstore.format.ets_table import CHUNK, HEAD, read_ets
from rabbitstore.format.layout import CLEAN_FILES
from rabbitstore.format.terms import Atom, CharList
from rabbitstore.stop_checksums import changed_since_stop
from storageio import REAL_DISK, DiskError, StoreCorrupt

from . import test_damage as damages
from .conftest import ChangesFail, WhenItWasWritten

STORE = "msg_store_persistent"
QUIET = RabbitSettings(background=False, index_version=1, store=StoreSettings(file_size_limit=20_000))


def rows_of(data: bytes) -> bytes:
    """Return an ets file without its head and first chunk, which describes a table in one server's memory."""
    return data[len(HEAD) + CHUNK.size + CHUNK.unpack_from(data, len(HEAD))[0] :]


def test_what_is_written_is_what_the_server_wrote(clean: Any) -> None:
    """Mark and terms are equal byte for byte, both tables except for properties of a running server."""
    data = (clean.vhost / "recovery.dets").read_bytes()
    assert tables.write_recovery(tables.read_recovery(data, "").values()) == data
    for store in (STORE, "msg_store_transient"):
        folder = clean.vhost / store
        data = (folder / "clean.dot").read_bytes()
        assert tables.write_clean_mark(tables.read_clean_mark(data, "").client_refs) == data
        data = (folder / "file_summary.ets").read_bytes()
        assert rows_of(tables.write_summary(tables.read_summary(data, ""))) == rows_of(data)
        data = (folder / "msg_store_index.ets").read_bytes()
        in_order = [tables.LocationRow(*row[1:]) for row in read_ets(data, "")]
        assert rows_of(tables.write_locations(in_order)) == rows_of(data)


def test_the_hash_equals_erlang_phash2() -> None:
    """The values are those of `erlang:phash2/1` of OTP 25."""
    lists = {b"a": 49011133, b"628WB79CIFDYO9LJI6DKMI09L": 110563360}
    assert {text: phash2(CharList(text)) for text in lists} == lists
    uid = b"2F_QMIYIVGT90HR4MB"
    binaries = {b"": 13708901, b"a": 112802447, uid: 100957311, 2 * uid: 86747919}
    assert {text: phash2(text) for text in binaries} == binaries
    atoms = {"abc": 26499, "%2F_q.mixed": 75260628, "%2F_q.a\u00e9": 113657465, "%2F_q.\u4e2d": 73721933}
    assert {text: phash2(Atom(text)) for text in atoms} == atoms


def test_queues_that_share_a_slot(tmp_path: Path) -> None:
    """With more queues than slots every chain is read to its end."""
    rows = [(CharList(b"queue %d" % number), [b"x" * (number % 700), number]) for number in range(5 * SLOTS)]
    assert sorted(read_dets(write_dets(rows), "")) == sorted(rows)
    assert read_dets(write_dets([]), "") == []


@pytest.mark.parametrize("keep", [0, 100, 312, 5431, 6000, -1])
def test_a_torn_dets_file_is_named(keep: int) -> None:
    """A table that is cut anywhere is rejected."""
    data = write_dets([(CharList(b"key"), [b"x" * 900]), (CharList(b"other"), [])])
    with pytest.raises(StoreCorrupt):
        read_dets(data[:keep], "recovery.dets")


def fill(store: RabbitStore) -> None:
    """Create queues of every kind, with holes, garbage, unacknowledged and transient messages; return their messages."""
    for name, options in (("a", {}), ("b", {"mode": "lazy"}), ("c", {"max_priority": 2}), ("d", {"durable": False})):
        store.declare_queue(name, **options)
        for number in range(40):
            store.publish(name, b"%d" % number + b"x" * (number % 4 * 2000), properties={"priority": number % 3})
        store.publish(name, b"gone after a stop", persistent=False)
    store.publish(["a", "b"], b"both" * 2000)
    for name in "abc":
        held = [store.get(name) for _ in range(12)]
        for delivery in held[::2]:
            store.ack(delivery)
    store.flush_journals()


def left(path: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return {queue: [(body, redelivered)]} from the files."""
    found = {}
    for message in RabbitStore.open(path, "r").folder().messages():
        if message.persistent:
            found.setdefault(message.queue, []).append((message.body, message.redelivered))
    return found


def test_our_clean_stop_is_intact_and_repeated_by_the_next_start(tmp_path: Path) -> None:
    """`verify` finds nothing, delivered messages have the flag, and a second stop leaves the same."""
    path = str(tmp_path / "vhost")
    with RabbitStore.open(path, settings=QUIET) as store:
        fill(store)
    found = left(path)
    assert {name: len(rows) for name, rows in found.items()} == {"a": 35, "b": 35, "c": 34}
    assert [flag for _, flag in found["a"]] == [True] * 6 + [False] * 29
    for _ in range(2):
        assert verify(path).problems == [] and RabbitStore.open(path, "r").folder().is_clean
        with RabbitStore.open(path, "r+", settings=QUIET) as store:
            assert not any((tmp_path / "vhost" / name).exists() for name in CLEAN_FILES), "gone while the store is open"
        assert left(path) == found


@pytest.mark.deep
@pytest.mark.parametrize("moment", ["stop", "start"])
def test_a_stop_or_start_killed_at_every_change(tmp_path: Path, moment: Any) -> None:
    """No crash leaves a mark beside wrong tables or terms, loses a message or misses a flag."""
    fail_at, is_done = 0, False
    while not is_done:
        fail_at += 1
        path = str(tmp_path / str(fail_at))
        disk = ChangesFail(1 << 40, for_ever=True)
        store = RabbitStore.open(path, settings=QUIET, disk=disk)
        fill(store)
        store.sync()
        if moment == "start":
            store.close()
        known = {name: [body for body, _ in rows] for name, rows in left(path).items() if name != "d"}
        disk.fail_at = len(disk.calls) + fail_at
        with contextlib.suppress(DiskError):
            if moment == "start":
                store = RabbitStore.open(path, settings=QUIET, disk=disk)
            else:
                store.close()
            is_done = len(disk.calls) < disk.fail_at
        store.abandon()
        crash_tails = {"torn_segment", "torn_journal"}  # what they lost the other of the two still has
        assert {problem.kind for problem in verify(path).problems} <= crash_tails
        found = left(path)
        assert {name: [body for body, _ in rows] for name, rows in found.items() if name != "d"} == known
        assert [flag for _, flag in found["a"]][:6] == [True] * 6
        with RabbitStore.open(path, "r+", settings=QUIET) as again:
            assert again.lost == [] and all(again.get("a").redelivered for _ in range(6))
    assert fail_at > (20 if moment == "stop" else 6)


class Reads(WhenItWasWritten):
    """A disk that records which files are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = []

    def before(self, operation: str, path: str) -> None:
        if operation in ("read", "map"):
            self.read.append(path)
        super().before(operation, path)


def drained(store: RabbitStore) -> dict[str, list[bytes]]:
    """Return {queue: bodies} of all waiting messages."""
    return {name: [message.body for message in iter(lambda: store.get(name), None)] for name in store.queue_names()}  # noqa: B023


def test_after_our_clean_stop_no_message_file_is_read(tmp_path: Path) -> None:
    """The tables list its contents, so the middle of an index is not read either, and every message is delivered."""
    path = str(tmp_path / "vhost")
    wide = RabbitSettings(background=False, index_version=1, store=QUIET.store, index=IndexSettings(segment_entries=16))
    with RabbitStore.open(path, settings=wide) as store:
        fill(store)
    expected = left(path)
    disk = Reads()
    with RabbitStore.open(path, "r+", settings=wide, disk=disk) as store:
        assert store.parts.is_resumed and store.problems == []
        assert not [read for read in disk.read if read.endswith(".rdq")]
        reads = Counter(read for read in disk.read if read.endswith(".idx"))
        assert 4 in reads.values(), "of some nothing but the first and the last two bytes, before the lock and under it"
        assert max(reads.values()) > 4
        store.parts.persistent.check()
        assert {name: bodies for name, bodies in drained(store).items() if name in expected} == {
            name: [body for body, _ in rows] for name, rows in expected.items()
        }
        store.publish("a", b"after" * 1000)
    assert verify(path).problems == []


def test_a_clean_stop_of_the_server_is_opened_from_its_files(clean: Any, tmp_path: Path) -> None:
    """Its journals have entries and its transient messages do not survive; of message files only the terms' names are read."""
    folder = shutil.copytree(clean.vhost, tmp_path / "vhost")
    disk = Reads()
    with RabbitStore.open(str(folder), "r+", settings=QUIET, disk=disk) as store:
        assert store.parts.is_resumed and store.problems == []
        assert max(Counter(read for read in disk.read if read.endswith(".rdq")).values()) == 1
        rows = [row for row in clean.manifest["msg_store_index"] if row["store"] == STORE and row["ref_count"]]
        positions = store.parts.persistent.locations
        found = {
            (msg_id.hex(), position.ref_count, position.file, position.offset, position.total_size)
            for msg_id, position in positions.items()
        }
        names = ("msg_id", "ref_count", "file", "offset", "total_size")
        assert found == {tuple(row[name] for name in names) for row in rows}
        assert damages.fetch_all(store) == (3037, 0)
    assert verify(str(folder)).problems == []


def missing(name: Any) -> Any:
    def damage(folder: Path, _manifest: Any) -> None:
        (folder / name).unlink()

    damage.__name__ = f"missing {name}"
    return damage


def a_longer_file(folder: Path, _manifest: Any) -> None:
    with (folder / STORE / "5.rdq").open("ab") as file:
        file.write(b"more")


def a_strange_file(folder: Path, _manifest: Any) -> None:
    (folder / STORE / "99.rdq").write_bytes(b"")


def a_missing_segment(folder: Path, _manifest: Any) -> None:
    (folder / damages.DEEP / "1.idx").unlink()


def a_cut_segment(folder: Path, _manifest: Any) -> None:
    damages.cut(folder / damages.DEEP / "1.idx", 100)


def a_strange_segment(folder: Path, _manifest: Any) -> None:
    shutil.copy(folder / damages.DEEP / "1.idx", folder / damages.DEEP / "9.idx")


def a_position_in_no_file(folder: Path, _manifest: Any) -> None:
    change = lambda rows: [rows[0]._replace(file=3), *rows[1:]]  # noqa: E731
    damages.replace_rows(folder / STORE / "msg_store_index.ets", tables.read_locations, tables.write_locations, change)


def terms_that_count_below_zero(folder: Path, _manifest: Any) -> None:
    change = lambda rows: [row._replace(segments={0: -3}) for row in rows.values()]  # noqa: E731
    damages.replace_rows(folder / "recovery.dets", tables.read_recovery, tables.write_recovery, change)


def tables_of_an_older_stop(folder: Path, _manifest: Any) -> None:
    """The tables fit each other, but describe files that no longer exist."""
    image = {name: (folder / name).read_bytes() for name in CLEAN_FILES if (folder / name).exists()}
    with RabbitStore.open(str(folder), "r+", settings=QUIET, disk=WhenItWasWritten()) as store:
        store.publish("q.lazy", b"a message after that stop" * 400)
    for name, data in image.items():
        (folder / name).write_bytes(data)


MISFITS = [
    (missing(f"{STORE}/file_summary.ets"), f"{STORE}/file_summary.ets"),
    (missing(f"{STORE}/msg_store_index.ets"), f"{STORE}/msg_store_index.ets"),
    (missing("recovery.dets"), "recovery.dets"),
    (damages.damaged_locations, f"{STORE}/msg_store_index.ets"),
    (damages.damaged_summary, f"{STORE}/file_summary.ets"),
    (damages.damaged_clean_mark, f"{STORE}/clean.dot"),
    (damages.damaged_recovery_terms, "recovery.dets"),
    (damages.torn_recovery_terms, "recovery.dets"),
    (damages.unclosed_recovery_terms, "recovery.dets"),
    (damages.terms_of_another_time, "recovery.dets"),
    (terms_that_count_below_zero, "recovery.dets"),
    (damages.wrong_valid_size, f"{STORE}/file_summary.ets"),
    (damages.wrong_neighbour, f"{STORE}/file_summary.ets"),
    (damages.location_of_a_live_message_missing, f"{STORE}/file_summary.ets"),
    (damages.mark_of_other_clients, f"{STORE}/clean.dot"),
    (damages.torn_segment, "recovery.dets"),
    (damages.unfinished_compaction, f"{STORE}/4.rdt"),
    (a_position_in_no_file, f"{STORE}/msg_store_index.ets"),
    (a_longer_file, f"{STORE}/file_summary.ets"),
    (a_strange_file, f"{STORE}/file_summary.ets"),
    (a_missing_segment, "recovery.dets"),
    (a_cut_segment, "recovery.dets"),
    (a_strange_segment, "recovery.dets"),
    (tables_of_an_older_stop, f"{STORE}/file_summary.ets"),
]


@pytest.mark.parametrize(("damage", "named"), MISFITS, ids=[row[0].__name__ for row in MISFITS])
def test_inconsistent_clean_stop_files_are_reported_and_cause_a_scan(
    clean: Any, tmp_path: Path, damage: Callable[..., Any], named: str
) -> None:
    """All messages in the files are delivered nevertheless."""
    folder = shutil.copytree(clean.vhost, tmp_path / "vhost")
    damage(folder, clean.manifest)
    expected = {message.msg_id for message in RabbitStore.open(str(folder), "r").folder().messages() if message.persistent}
    with RabbitStore.open(str(folder), "r+", settings=QUIET, disk=WhenItWasWritten()) as store:
        assert not store.parts.is_resumed
        assert named in {problem.file for problem in store.problems}
        delivered = {held.msg_id for name in store.queue_names() for held in iter(lambda: store.get(name), None)}  # noqa: B023
    expired = {message.msg_id for message in RabbitStore.open(str(clean.vhost), "r").folder().messages() if message.expiry_us}
    assert expected - expired <= delivered


def test_a_segment_changed_after_the_stop_is_reported_when_it_is_read(tmp_path: Path) -> None:
    """An opening does not read the middle of an index; missing entries are subtracted later, the others delivered."""
    path = tmp_path / "vhost"
    settings = RabbitSettings(background=False, index_version=1, index=IndexSettings(segment_entries=16))
    with RabbitStore.open(str(path), settings=settings) as store:
        store.declare_queue("q")
        for number in range(80):
            store.publish("q", b"%d" % number)
    segment = next(path.rglob("2.idx"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2 :] = b"\x33" * (len(data) - len(data) // 2)
    segment.write_bytes(data)
    with RabbitStore.open(str(path), "r+", settings=settings) as store:
        assert store.parts.is_resumed and store.problems == [] and len(store.queue("q")) == 80
        bodies = [int(held.body) for held in iter(lambda: store.get("q", auto_ack=True), None)]
        gone = sorted({*range(80)} - {*bodies})
        assert bodies == sorted(bodies) and gone and all(32 <= number < 48 for number in gone) and len(gone) < 16
        assert [problem.file for problem in store.problems] == [str(segment)]
        assert len(store.queue("q")) == 0
    assert verify(str(path)).problems == []


def test_a_file_changed_after_our_clean_stop_is_reported(tmp_path: Path) -> None:
    """Checksums show the change; after a stop of the server, with another mark, they are not compared."""
    path = tmp_path / "vhost"
    with RabbitStore.open(str(path), settings=QUIET) as store:
        fill(store)
    assert changed_since_stop(REAL_DISK, str(path)) == []
    with open(path / "recovery.dets", "ab") as file:
        file.write(b"x")
    assert [problem.file for problem in changed_since_stop(REAL_DISK, str(path))] == ["recovery.dets"]
    with open(path / STORE / "clean.dot", "ab") as file:
        file.write(b"x")
    assert changed_since_stop(REAL_DISK, str(path)) == []
