"""Damage in the files of quorum queues is named; what is not hurt is listed."""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rabbitstore.quorum import layout, quorum_nodes
from rabbitstore.quorum.check import check_node
from rabbitstore.quorum.entries import EntryTable, RaftEntry
from rabbitstore.quorum.wal import WalScan
from storageio import StoreCorrupt, UnsupportedFormat
from tests.helpers import overwrite

SNAPSHOT = "snapshots/0000000000000001_00000000000016AE/snapshot.dat"
CHECKPOINT = "checkpoints/0000000000000001_0000000000001783/snapshot.dat"


@pytest.fixture
def copy(folders: dict[str, tuple[Path, dict[Any, Any]]], tmp_path: Path) -> Callable[..., Any]:
    """Return a function that copies a node's quorum folder."""

    def make(kind: str = "rabbitmq4-quorum-snapshot") -> Path:
        shutil.copytree(folders[kind][0] / "quorum", tmp_path / "quorum")
        return next((tmp_path / "quorum").iterdir())

    return make


def checked(path: Path) -> tuple[Any, ...]:
    """Return kinds of problems, kinds of notes, and messages by queue."""
    (node,) = quorum_nodes(str(path.parent.parent))
    with node:
        found = check_node(node)
        messages = {queue.queue: _ids(queue) for queue in node.queues()}
    return {problem.kind for problem in found.problems}, {note.kind for note in found.notes}, messages


def _ids(queue: Any) -> list[str] | None:
    try:
        return [_id(message) for message in queue.messages()]
    except UnsupportedFormat:
        return None


def _id(message: Any) -> str:
    try:
        return message.properties.get("message_id")
    except StoreCorrupt:
        return "damaged"


def wal_of(path: Path) -> Path:
    return next(path.glob("*.wal"))


def records(path: Path) -> list[Any]:
    return list(WalScan(wal_of(path).read_bytes(), "f", [], []).records())


def flip(path: Path, at: int, bit: int = 1) -> None:
    overwrite(path, at, bytes((path.read_bytes()[at] ^ bit,)))


@pytest.mark.parametrize("field", ["writer", "adler", "size", "index", "term", "data"])
def test_a_flipped_bit_in_a_record_of_the_log(copy: Callable[..., Any], field: str) -> None:
    """The record is named, and every queue without an entry in it is as before."""
    path = copy("rabbitmq4-streams")
    before = checked(path)[2]
    every = records(path)
    record = every[len(every) // 2]
    at = {"writer": record.position + 1, "adler": record.at - 24, "size": record.at - 19, "index": record.at - 9}
    flip(wal_of(path), (at | {"term": record.at - 1, "data": record.at + record.size // 2})[field])
    kinds, notes, after = checked(path)
    assert "bad_wal_entry" in kinds and not notes
    (node,) = quorum_nodes(str(path.parent.parent))
    damage = next(queue.queue for queue in node.queues() if queue.uid == record.uid)
    assert {name: found for name, found in after.items() if name != damage} == {
        name: found for name, found in before.items() if name != damage
    }
    assert len(set(before[damage]) - set(after[damage])) <= 1


def test_a_flipped_bit_in_a_name(copy: Callable[..., Any]) -> None:
    """No checksum covers the name; the folder's name shows what it was, and every message is listed."""
    path = copy("rabbitmq4-streams")
    before = checked(path)[2]
    named = next(record for record in records(path) if record.index == 0)
    flip(wal_of(path), named.position + 3 + 2 + 10)
    kinds, _notes, after = checked(path)
    assert kinds == {"bad_wal_entry"} and after == before


def test_a_cut_in_the_last_record(copy: Callable[..., Any]) -> None:
    """The torn tail is a note, and only its entry is missing; `meta.dets` shows that it was applied."""
    path = copy()
    last = records(path)[-1]
    with wal_of(path).open("r+b") as file:
        file.truncate(last.at + 3)
    kinds, notes, _messages = checked(path)
    assert (kinds, notes) == ({"applied_ahead"}, {"torn_wal_entry"})
    assert len(list(WalScan(wal_of(path).read_bytes(), "f", [], []).records())) == len(records(path))


def test_zeros_to_the_end_are_a_note(copy: Callable[..., Any]) -> None:
    """The server ends there without a word; records before it are read.  `meta.dets` shows that more was applied."""
    path = copy("rabbitmq4-streams")
    record = records(path)[-2]
    size = wal_of(path).stat().st_size
    overwrite(wal_of(path), record.position, bytes(size - record.position))
    kinds, notes, _messages = checked(path)
    assert (kinds, notes) == ({"applied_ahead"}, {"wal_zeros"})
    (node,) = quorum_nodes(str(path.parent.parent))
    with node:
        (note,) = check_node(node).notes
    assert (note.offset, note.found) == (record.position, f"{size - record.position} zeros")


def test_a_zeroed_sector_in_the_log(copy: Callable[..., Any]) -> None:
    """Records behind the zeros are found again."""
    path = copy("rabbitmq4-streams")
    before = checked(path)[2]
    record = records(path)[8]
    overwrite(wal_of(path), record.position, bytes(512))
    kinds, _notes, after = checked(path)
    assert "bad_wal_entry" in kinds
    assert sum(map(len, after.values())) >= sum(map(len, before.values())) - 2


def test_the_magic_of_the_log(copy: Callable[..., Any]) -> None:
    """A wrong magic is named and the records are read; another version is refused."""
    path = copy()
    before = checked(path)[2]
    flip(wal_of(path), 0)
    kinds, _notes, after = checked(path)
    assert kinds == {"bad_wal_head"} and after == before
    flip(wal_of(path), 4, 2)
    flip(wal_of(path), 0)
    assert "unsupported_format" in checked(path)[0]


def test_a_record_without_a_checksum_is_read(copy: Callable[..., Any]) -> None:
    """0 means that the server writes none."""
    path = copy("rabbitmq4-streams")
    before = checked(path)
    for record in records(path):
        overwrite(wal_of(path), record.at - 24, bytes(4))
    assert checked(path) == before


@pytest.mark.parametrize("at", [16, 24], ids=["index", "term"])
@pytest.mark.parametrize("number", [(1 << 64) - 1, (1 << 63) - 1])
def test_a_number_that_no_log_reaches_is_damage(copy: Callable[..., Any], at: int, number: int) -> None:
    """No checksum need cover it in a log, and none does in a segment."""
    path = copy()
    record = records(path)[5]
    head = record.at - layout.WAL_RECORD.size
    overwrite(wal_of(path), head, bytes(4))
    overwrite(wal_of(path), head + at - 8, struct.pack(">Q", number))
    segment = next(path.glob("2F_QSL*/*.segment"))
    overwrite(segment, 8 + at - 16, struct.pack(">Q", number))
    problems = checked(path)[0]
    assert {"bad_wal_entry", "bad_segment_entry"} <= problems


@pytest.mark.parametrize("field", ["crc", "offset", "size", "data", "zeroed"])
def test_a_damaged_entry_of_a_segment(copy: Callable[..., Any], field: str) -> None:
    """The entry is named; other queues are as before."""
    path = copy()
    before = checked(path)[2]
    file = next(path.glob("2F_QSL*/00000001.segment"))
    index = 8 + 32 * 10
    offset, size = struct.unpack_from(">QI", file.read_bytes(), index + 16)
    if field == "zeroed":
        overwrite(file, index, bytes(32))
    else:
        at = {"crc": index + 29, "offset": index + 20, "size": index + 24, "data": offset + size // 2}[field]
        flip(file, at)
    kinds, _notes, after = checked(path)
    assert {"bad_segment_entry", "missing_entries"} <= kinds
    assert {name: found for name, found in after.items() if name != "q.slow"} == {
        name: found for name, found in before.items() if name != "q.slow"
    }
    assert len(set(before["q.slow"]) - set(after["q.slow"])) <= 1


@pytest.mark.parametrize("damage", ["magic", "version", "cut"])
def test_a_damaged_segment(copy: Callable[..., Any], damage: str) -> None:
    """Head and version are named; a file that is cut in its index has no entries."""
    path = copy()
    file = next(path.glob("2F_QSL*/00000001.segment"))
    if damage == "cut":
        with file.open("r+b") as open_file:
            open_file.truncate(8 + 32 * 3)
    else:
        flip(file, {"magic": 1, "version": 5}[damage], 4)
    expected = {"magic": "bad_segment_head", "version": "unsupported_format", "cut": "bad_segment_entry"}[damage]
    assert expected in checked(path)[0]


def test_a_damaged_snapshot_with_a_good_checkpoint(copy: Callable[..., Any]) -> None:
    """The checkpoint has every message; snapshot and the entries before the checkpoint are named."""
    path = copy()
    before = checked(path)[2]
    flip(next(path.glob(f"2F_QRO*/{SNAPSHOT}")), 100)
    kinds, _notes, after = checked(path)
    assert kinds == {"bad_snapshot", "missing_entries"} and after == before


def test_a_damaged_snapshot_and_checkpoint(copy: Callable[..., Any]) -> None:
    """The entries that are left are applied; messages whose entries are there are listed."""
    path = copy()
    before = checked(path)[2]
    for name in (SNAPSHOT, CHECKPOINT):
        flip(next(path.glob(f"2F_QRO*/{name}")), 100)
    kinds, _notes, after = checked(path)
    assert {"bad_snapshot", "missing_entries"} <= kinds
    assert {name: found for name, found in after.items() if name != "q.roll"} == {
        name: found for name, found in before.items() if name != "q.roll"
    }


def test_a_snapshot_of_another_version(copy: Callable[..., Any]) -> None:
    """The version is named."""
    path = copy()
    flip(next(path.glob(f"2F_QRO*/{SNAPSHOT}")), 4, 2)
    assert "unsupported_format" in checked(path)[0]


def test_a_state_of_another_form_is_refused(copy: Callable[..., Any]) -> None:
    """A whole state with another name is not damage."""
    path = copy()
    for name in (SNAPSHOT, CHECKPOINT):
        file = next(path.glob(f"2F_QRO*/{name}"))
        data = bytearray(file.read_bytes().replace(b"w\x0brabbit_fifoh", b"w\x0brabbit_fifxh"))
        struct.pack_into(">I", data, 5, zlib.crc32(data[9:]))
        file.write_bytes(data)
    kinds, _notes, messages = checked(path)
    assert "unsupported_format" in kinds and messages["q.roll"] is None


def test_a_damaged_config(copy: Callable[..., Any]) -> None:
    """The queue keeps its folder's name, and its messages."""
    path = copy()
    file = next(path.glob("2F_QSL*/config"))
    file.write_bytes(file.read_bytes()[:200])
    kinds, _notes, messages = checked(path)
    assert "bad_queue_config" in kinds and len(messages[file.parent.name]) == 100


def test_a_lost_table_of_names(copy: Callable[..., Any]) -> None:
    """Queues are read without it, and its loss is named."""
    path = copy()
    before = checked(path)[2]
    (path / "names.dets").unlink()
    kinds, _notes, after = checked(path)
    assert kinds == {"bad_names_table"} and after == before


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(60))
def test_random_damage_never_crashes(copy: Any, seed: Any) -> None:
    """Any damage ends in problems or `UnsupportedFormat`, within bounded work."""
    chance = random.Random(seed)
    path = copy()
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    for _ in range(chance.randint(1, 8)):
        file = chance.choice([wal_of(path), chance.choice(files)])
        data = chance.choice([bytes(chance.randint(1, 600)), chance.randbytes(chance.randint(1, 60))])
        overwrite(file, chance.randrange(file.stat().st_size), data)
    checked(path)


def test_overwritten_entries_are_void() -> None:
    """An entry of a later term voids those behind it; so does the truncate bit."""
    named = [("2F_QXXXXXXXXXXXXX", 1, 1, b"a"), ("", 2, 1, b"b"), ("", 3, 1, b"c"), ("", 2, 2, b"d")]
    entries = EntryTable()
    data = memoryview(log_of(named))
    for record in WalScan(data, "f", [], []).records():
        entries.put(record.index, RaftEntry(record.term, data, "f", record.at, record.size), record.truncates)
    assert {index: data[entry.at : entry.at + entry.size] for index, entry in entries.items()} == {1: b"a", 2: b"d"}
    entries.put(1, RaftEntry(1, data, "f", 0, 0), truncates=True)
    assert list(entries) == [1]


def log_of(rows: list[tuple[str, int, int, bytes]]) -> bytes:
    """Return a write-ahead log by the table of the format page; a row without a name is of the same writer."""
    out = b"RAWA\x01"
    for name, index, term, body in rows:
        checked_part = struct.pack(">QQ", index, term) + body
        head = b"\x00\x00\x01" + struct.pack(">H", len(name)) + name.encode() if name else b"\x40\x00\x01"
        out += head + struct.pack(">II", zlib.adler32(checked_part), len(body)) + checked_part
    return out


def test_a_hostile_log_is_read_in_linear_time() -> None:
    """Zeros before each record, and heads everywhere, cost work in proportion to the file."""
    record = log_of([("2F_QXXXXXXXXXXXXX", 1, 1, b"body")])[5:]
    candidate = b"\x40\x00\x01" + struct.pack(">IIQQ", 1, 10, 1, 1)
    for data in (b"RAWA\x01" + (bytes(40) + record) * 3000, b"RAWA\x01" + candidate * 6000, b"RAWA\x01" + b"\x40" * 200_000):
        scan = WalScan(data, "f", [], [])
        assert len(list(scan.records())) in (0, 3000)
        assert scan.budget > -len(data)


def walked(data: bytes) -> tuple[Any, ...]:
    """Return indexes, problems and notes of a log."""
    scan = WalScan(memoryview(data), "f", [], [])
    return [record.index for record in scan.records()], scan.problems, scan.notes


def test_an_empty_log_is_reported_as_empty() -> None:
    """A wrong head is shown instead."""
    for data, found in ((b"", "an empty file"), (b"RAWB\x01", "b'RAWB\\x01'")):
        (problem,) = walked(data)[1]
        assert (problem.kind, problem.found) == ("bad_wal_head", found)


NAME = "2F_QXXXXXXXXXXXXX"
FIRST = log_of([(NAME, 1, 1, b"a")])
BAD = b"\x40\x00\x01" + struct.pack(">IIQQ", 1, 4, 2, 1) + b"data"  # of the same writer, with a wrong checksum


def test_a_record_without_a_name_is_damage() -> None:
    """A writer's first record has one of at least a byte, although a checksum covers the rest."""
    position = struct.pack(">QQ", 2, 1) + b"b"
    unnamed = b"\x00\x00\x02\x00\x00" + struct.pack(">II", zlib.adler32(position), 1) + position
    assert walked(FIRST + unnamed)[0] == [1]


@pytest.mark.parametrize("head", [b"\x40\x00\x01", b"\x00\x00\x02" + struct.pack(">H", len(NAME)) + NAME.encode()])
@pytest.mark.parametrize("rest", [0, 12, 13])
def test_a_damaged_last_record_is_torn_if_at_most_12_bytes_or_zeros_follow(head: bytes, rest: int) -> None:
    """The server drops a record with a wrong checksum if at most twelve bytes, or only zeros, follow it."""
    bad = head + struct.pack(">IIQQ", 1, 4, 2, 1) + b"data"
    for tail, is_torn in ((b"x" * rest, rest < 13), (bytes(rest), True)):
        indexes, problems, notes = walked(FIRST + bad + tail)
        assert indexes == [1]
        kinds = [one.kind for one in problems], [one.kind for one in notes]
        assert kinds == (([], ["torn_wal_entry"]) if is_torn else (["bad_wal_entry"], []))


def test_a_cut_name_at_the_end_is_searched_without_error() -> None:
    """It looks like the start of a record."""
    name = b"\x00\x00\x02" + struct.pack(">H", len(NAME)) + NAME.encode()
    for size in range(len(name) + 24):
        assert walked(FIRST + BAD + b"x" * 20 + (name + bytes(range(1, 25)))[:size])[0] == [1]


def test_a_record_directly_after_a_false_record_header_is_found() -> None:
    """The last byte of a damaged record makes another head with the bytes that follow it."""
    position = struct.pack(">QQ", 256, 1) + b"b" * 256
    good = b"\x40\x00\x01" + struct.pack(">II", zlib.adler32(position), 256) + position
    assert walked(FIRST + BAD + b"\x40" + good)[0] == [1, 256]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", None),
        (b"RAS", None),
        (bytes(7), None),
        (b"RASG\x00", None),
        (b"RASH\x00", ("bad_segment_head", 0)),
        (b"RASG\x00\x02\x10\x00", None),
        (b"RASG\x00\x03\x10\x00", ("unsupported_format", 4)),
        (b"RASH\x00\x02\x10\x00", ("bad_segment_head", 0)),
        (b"RASH\x00\x03\x10\x00", ("bad_segment_head", 0)),
    ],
)
def test_a_new_segment_may_end_in_its_head(copy: Callable[..., Any], data: bytes, expected: tuple[str, int] | None) -> None:
    """What is there of the magic has to be right; another version is named."""
    path = copy()
    file = next(path.glob("2F_QSL*")) / "00000009.segment"
    file.write_bytes(data)
    (node,) = quorum_nodes(str(path.parent.parent))
    with node:
        found = [(one.kind, one.offset) for one in check_node(node).problems]
    assert found == ([expected] if expected else [])


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(12))
def test_random_terms_with_right_checksums_never_crash(copy: Any, seed: Any) -> None:
    """Commands and states that pass the checksum but make no sense end in problems."""
    chance = random.Random(seed)
    path = copy(chance.choice(["rabbitmq4-quorum-snapshot", "rabbitmq4-streams"]))
    log = bytearray(wal_of(path).read_bytes())
    every = records(path)
    for record in chance.sample(every, min(len(every), 30)):
        for _ in range(chance.randint(1, 4)):
            at = record.at + chance.randrange(min(record.size, 400))
            log[at] = chance.choice([chance.randrange(256), 97, 104, 106, 108, 109, 110, 116, 119])
        start = record.at - 24
        struct.pack_into(">I", log, start, zlib.adler32(log[start + 8 : record.stop]))
    wal_of(path).write_bytes(log)
    for file in path.glob("*/*/*/snapshot.dat"):
        data = bytearray(file.read_bytes())
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(200, len(data))
            data[at] = chance.choice([chance.randrange(256), 97, 104, 106, 108, 109, 116])
        struct.pack_into(">I", data, 5, zlib.crc32(data[9:]))
        file.write_bytes(data)
    checked(path)
