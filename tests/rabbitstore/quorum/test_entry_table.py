"""The entries of a log in columns are what a dictionary of them would be."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rabbitstore.quorum.entries import EntryTable, RaftEntry
from rabbitstore.quorum.entries_cy import EntryRun, take_records
from rabbitstore.quorum.segment import read_segment
from rabbitstore.quorum.wal import WalScan
from storageio import StoreCorrupt
from storebytes.finding import Finding

VIEWS = [memoryview(b"one file"), memoryview(b"another")]
PUTS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 2), st.integers(0, 1), st.integers(0, 1 << 33), st.integers(0, (1 << 32) - 1),
              st.booleans()), max_size=40,
)  # fmt: skip


@settings(deadline=None)
@given(PUTS)
def test_the_entry_table_equals_a_dictionary_model(puts: list[tuple[Any, ...]]) -> None:
    """An entry of another term, or one that truncates, voids all from its index on; any other replaces one."""
    table, model = EntryTable(), dict[int, RaftEntry]()
    for index, term, file, at, size, truncates in puts:
        entry = RaftEntry(term, VIEWS[file], str(file), at, size)
        if truncates or (index in model and model[index].term != term):
            model = {key: value for key, value in model.items() if key < index}
        model[index] = entry
        table.put(index, entry, truncates)
        assert dict(table.items()) == model and len(table) == len(model) and table.last == max(model)
    assert list(table) == sorted(model) and list(reversed(table)) == sorted(model, reverse=True)
    assert list(table.since(5)) == [index for index in sorted(model) if index >= 5]
    assert table.count(3, 9) == sum(3 <= index < 9 for index in model)
    joined = EntryTable()
    for run in table.runs:
        joined.add(run)
    for index, entry in model.items():
        joined.add(one_run(index, entry))
    assert dict(joined.items()) == model


def one_run(index: int, entry: RaftEntry) -> Any:
    other = EntryTable()
    return other.put(index, entry)


def test_a_run_that_is_full_is_followed_by_another() -> None:
    """Entries beyond the size of a run."""
    table = EntryTable()
    for index in range(70_000):
        table.put(index, RaftEntry(1, VIEWS[0], "f", index, 1))
    assert len(table.runs) == 2 and len(table) == 70_000 and table[69_999].at == 69_999


def record(writer: int, index: int, term: int, data: bytes, *, name: bytes = b"", checksum: int | None = None) -> bytes:
    """Encode a record: docs/formats/rabbitmq-quorum.md#write-ahead-log."""
    word = writer if name else writer | 1 << 22
    body = struct.pack(">QQ", index, term) + data
    found = zlib.adler32(body) if checksum is None else checksum
    return word.to_bytes(3, "big") + (struct.pack(">H", len(name)) + name if name else b"") + struct.pack(
        ">II", found, len(data)) + body  # fmt: skip


@settings(deadline=None)
@given(st.data())
def test_records_read_in_bulk_equal_those_of_the_walk(data: Any) -> None:
    """Two writers, gaps, terms and wrong bytes: what is taken in bulk is what the walk yields."""
    parts, following = [record(1, 1, 1, b"a", name=b"A"), record(2, 1, 1, b"b", name=b"B")], {1: 2, 2: 2}
    for writer, step, term, size in data.draw(st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2, 3]), st.sampled_from([0, 0, 0, 0, 1, -1]), st.sampled_from([1, 1, 1, 2]),
                  st.integers(0, 30)), max_size=20)):  # fmt: skip
        index = following.get(writer, 5) + step
        following[writer] = index + 1
        parts.append(record(writer, index, term, bytes(size), checksum=0 if size == 30 else None))
    log = bytearray(b"RAWA\x01" + b"".join(parts))
    start = 5 + len(parts[0]) + len(parts[1])
    if data.draw(st.booleans()) and len(log) > start:
        log[data.draw(st.integers(start, len(log) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    view = memoryview(bytes(log))
    walked = list(WalScan(view, "f", [], []).records())
    runs = {(1 << 22) | writer: EntryRun(2, 1, view, "f") for writer in (1, 2)}
    stop = take_records(view, start, runs)
    taken = {(run.position(index), run.size(index), index) for run in runs.values() for index in range(run.first, run.stop)}
    assert taken == {(one.at, one.size, one.index) for one in walked if start <= one.position < stop}
    assert stop in {start, *(one.stop for one in walked)}


def segment(rows: list[tuple[int, int, bytes]], version: int, capacity: int) -> bytearray:
    """Encode a segment: docs/formats/rabbitmq-quorum.md#segment."""
    width = 32 if version == 2 else 28
    index, body = b"", b""
    for number, term, data in rows:
        at = 8 + capacity * width + len(body)
        index += struct.pack(">QQQII" if version == 2 else ">QQIII", number, term, at, len(data), zlib.crc32(data))
        body += data
    return bytearray(b"RASG" + struct.pack(">HH", version, capacity) + index.ljust(capacity * width, b"\0") + body)


def modelled(data: bytes, version: int) -> tuple[dict[int, tuple[int, int, int]], list[int]]:
    """Return the entries of a segment, and the places in its index that are neither good nor unused."""
    layout = ">QQQII" if version == 2 else ">QQIII"
    width, capacity = struct.calcsize(layout), int.from_bytes(data[6:8], "big")
    found: dict[int, tuple[int, int, int]] = {}
    wrong, stop = [], 8 + min(capacity, (len(data) - 8) // width) * width
    for at in range(8, stop, width):
        index, term, position, size, crc = struct.unpack_from(layout, data, at)
        if not any(data[at:stop]):
            break
        is_inside = position >= 8 + capacity * width and position + size <= len(data) and max(index, term) < 1 << 62
        if is_inside and zlib.crc32(data[position : position + size]) == crc:
            found = {known: row for known, row in found.items() if known < index} | {index: (term, position, size)}
        else:
            wrong.append(at)
    return found, wrong


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 1, 2]), st.sampled_from([1, 1, 2]), st.binary(max_size=5)), max_size=6),
    st.sampled_from([1, 2]), st.integers(6, 8), st.none() | st.tuples(st.integers(0, 400), st.integers(0, 7)),
)  # fmt: skip
def test_a_segment_read_in_bulk_equals_one_read_by_entry(
    rows: list[tuple[int, int, bytes]], version: int, capacity: int, flip: tuple[int, int] | None
) -> None:
    """The entries are those of a plain model: a good one voids those from its index on, and any other is a problem."""
    numbered = [(sum(row[0] for row in rows[: at + 1]), row[1], row[2]) for at, row in enumerate(rows)]
    data = segment(numbered, version, capacity)
    if flip is not None and flip[0] < len(data) and flip[0] not in (4, 5):
        data[flip[0]] ^= 1 << flip[1]
    problems: list[Finding] = []
    view = memoryview(bytes(data))
    try:
        runs = read_segment(view, "f", problems)
    except StoreCorrupt:
        return
    expected, wrong = modelled(bytes(data), version)
    found = {index: (run.term, run.position(index), run.size(index)) for run in runs for index in range(run.first, run.stop)}
    assert found == expected
    assert [one.offset for one in problems if one.kind == "bad_segment_entry"] == wrong
    if flip is None:
        assert found == {index: (term, found[index][1], len(body)) for index, term, body in numbered} and not problems


def test_entries_with_distant_offsets_begin_another_run(world):
    """A run holds places of 32 bits behind its first one; those of other entries begin another run."""
    entries = world.module("rabbitstore.quorum.entries")
    table = entries.EntryTable()
    view = memoryview(b"")
    positions = [1 << 40, (1 << 40) + 0xFFFFFFFF, 100, (1 << 40) + 1, (1 << 40) + 0x100000001, 5, 0x80000005]
    sizes = [0, 0xFFFFFFFF, 0x80000000, 1, 2, 3, 4]
    for index, (position, size) in enumerate(zip(positions, sizes, strict=True)):
        table.put(index, entries.RaftEntry(1, view, "f", position, size))
    assert [(table[index].at, table[index].size) for index in table] == list(zip(positions, sizes, strict=True))
    assert [run.first for run in table.runs] == [0, 2, 3, 4, 5]
