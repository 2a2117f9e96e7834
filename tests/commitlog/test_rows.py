"""Columns filled in one pass: against message objects of the same bytes, with too little room, and at damage."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builds import World
from tests.commitlog.logs import MemoryLog

COLUMNS = (
    "topic", "body", "tags", "keys", "size", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag",
    "born_timestamp_ms", "store_timestamp_ms", "reconsume_times", "prepared_transaction_offset",
)  # fmt: skip
HOSTS = ("10.0.0.1:1", "[::1]:2")
RAW = st.lists(
    st.tuples(
        st.sampled_from([b"KEYS", b"TAGS", b"X", b"", b"KEYSX"]), st.sampled_from([b"", b"a", b"a b", b" a  b ", b"\xff"])
    ),
    max_size=5,
).map(lambda pairs: b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs))


def log_of(world: World, messages: list[Any], *, with_crc: bool = True) -> tuple[memoryview, int, Any, Any]:
    """Return (the bytes, the physical offset of the first, positions, sizes)."""
    log = MemoryLog(world, with_crc=with_crc, first=1 << 40)
    sizes = [log.appender.append(message, 0).size_bytes for message in messages]
    positions = np.cumsum([0, *sizes[:-1]]).astype(np.int64)
    return memoryview(log.files[0]), 1 << 40, positions, np.array(sizes, np.int32)


def rows_of(world: World, source: tuple[memoryview, int, Any, Any], checks: int = 7, columns: Any = COLUMNS) -> list[Any]:
    """Return the columns that `checked_batch` fills."""
    batch = world.module("commitlog.columns").Batch(*source)
    made = world.module("commitlog.arrow_columns").checked_batch(batch, columns, checks)
    made.validate(full=True)
    return list(made.to_pylist())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["T", "t\N{GREEK SMALL LETTER PI}" * 70]), st.binary(max_size=300), RAW,
                          st.sampled_from(HOSTS), st.sampled_from(HOSTS), st.integers(-9, 9)), min_size=1, max_size=12),
       st.booleans())  # fmt: skip
def test_every_column_equals_the_message_objects(world: World, given_messages: list[Any], with_crc: bool) -> None:
    """The log has both kinds of hosts, both topic size widths, duplicate names, empty words and invalid UTF-8."""
    messages = [
        world.commitlog.Message(
            topic, body, properties_raw=raw, born_host=born, store_host=stored, flag=number, reconsume_times=-number,
            prepared_transaction_offset=number << 40, born_timestamp_ms=7,
        )
        for topic, body, raw, born, stored, number in given_messages
    ]  # fmt: skip
    source = log_of(world, messages, with_crc=with_crc)
    reader = world.module("commitlog._scan_cy").Reader(source[0], source[1])
    objects = [reader.decode(position) for position in source[2].tolist()]
    assert rows_of(world, source) == [{name: getattr(one, name) for name in COLUMNS} for one in objects]


def some(world: World, count: int = 6) -> tuple[memoryview, int, Any, Any]:
    """Return `log_of` messages with keys and tags."""
    return log_of(
        world,
        [world.commitlog.Message("topic", b"body %d" % number, "tag", [f"k{number}", "k"]) for number in range(count)],
    )


@pytest.mark.parametrize(
    ("row", "position", "size"),
    [
        (0, -1, None), (3, None, 0), (3, None, -5), (3, None, 1), (3, 10, None), (5, 1 << 40, None), (2, None, 1 << 30),
        (4, (1 << 62) - 1, (1 << 31) - 1),
    ],
)  # fmt: skip
def test_rows_end_where_no_record_of_that_size_lies(world: World, row: int, position: int | None, size: int | None) -> None:
    """The position is outside the buffer, inside a record, or the size too large: no byte outside is read."""
    source = some(world)
    if position is not None:
        source[2][row] = position
    if size is not None:
        source[3][row] = size
    assert [one["body"] for one in rows_of(world, source)] == [b"body %d" % number for number in range(row)]
    with pytest.raises(ValueError, match=f"row {row}"):
        world.module("commitlog.arrow_columns").record_batch(world.module("commitlog.columns").Batch(*source), ["body"])


@pytest.mark.parametrize("at", [0, 6, 20, 30, 70, 85, 89, 95, 100, 110])
def test_a_flipped_byte_ends_the_rows(world: World, at: int) -> None:
    """With all checks any byte of the record counts; no row after it is returned."""
    source = some(world)
    source[0][int(source[2][2]) + at] ^= 0x55
    assert len(rows_of(world, source)) == 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=200, max_size=600), st.lists(st.tuples(st.integers(-5, 700), st.integers(-5, 700)), max_size=8))
def test_rows_of_arbitrary_bytes_and_positions_are_rejected_or_read(
    world: World, data: bytes, units: list[tuple[int, int]]
) -> None:
    """The record at 9 has arbitrary lengths."""
    held = data[:9] + struct.pack(">ii", 150, -626843481) + data[17:]
    positions = np.array([9, *(position for position, _ in units)], np.int64)
    sizes = np.array([150, *(size for _, size in units)], np.int32)
    for checks in (0, 7):
        assert len(rows_of(world, (memoryview(held), 0, positions, sizes), checks)) <= len(positions)


def test_text_buffer_grows_beyond_the_estimated_size(world: World) -> None:
    """The rows have the longest possible properties, made of words of one byte."""
    words = " ".join("ab" * 8000)[:32000]
    source = log_of(world, [world.commitlog.Message("T", b"", "g", words.split()) for _ in range(2)], with_crc=False)
    many = (source[0], source[1], np.repeat(source[2][:1], 9), np.repeat(source[3][:1], 9))
    found = rows_of(world, many, 0, ["keys", "tags"])
    assert [row["keys"] for row in found] == [words.split()] * 9


@pytest.mark.parametrize("missing", ["places", "data", "words"])
def test_the_walk_stops_before_a_row_that_does_not_fit(world: World, missing: str) -> None:
    """Nothing is written after the given buffer."""
    kernel = world.module("commitlog._rows_cy")
    view, base, positions, sizes = some(world)
    guard = np.full(4096, 0x77, np.uint8)
    data = guard[: 14 if missing == "data" else 1000]
    locations = 3 if missing == "places" else 50
    body = kernel.TextColumn(np.empty(locations + 1, np.int32), data)
    words = kernel.TextColumn(np.empty((5 if missing == "words" else 50) + 1, np.int32), np.empty(200, np.uint8))
    none = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32)
    keys = np.empty(7, np.int32)
    columns = kernel.Columns(6, *none, body, None, None, words, keys)
    rows = columns.fill(view, base, positions, sizes, 6, 7)
    assert rows == {"places": 3, "data": 2, "words": 2}[missing]
    assert set(guard[len(data) :].tolist()) == {0x77}


@pytest.mark.parametrize(("name", "capacity"), [("topic", 0), ("topic", 5), ("tags", 0), ("tags", 6)])
def test_the_walk_stops_before_a_text_that_does_not_fit(world: World, name: str, capacity: int) -> None:
    """The text is a topic or a tag: the rows before it are whole, and nothing is written after the room."""
    kernel = world.module("commitlog._rows_cy")
    source = log_of(world, [world.commitlog.Message("T" * 3, b"", "g" * 4) for _ in range(3)])
    guard = np.full(64, 0x77, np.uint8)
    text = kernel.TextColumn(np.empty(4, np.int32), guard[:capacity], np.zeros(1, np.uint8))
    none = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32)
    texts = (None, text, None) if name == "topic" else (None, None, text)
    columns = kernel.Columns(3, *none, *texts, None, np.empty(0, np.int32))
    assert columns.fill(*source, 3, 7) == capacity // {"topic": 3, "tags": 4}[name]
    assert set(guard[capacity:].tolist()) == {0x77}


def test_buffer_of_a_wrong_size_is_rejected(world: World) -> None:
    """It is rejected before any pointer is taken."""
    kernel = world.module("commitlog._rows_cy")
    i64, i32, u8 = (lambda count, kind=kind: np.empty(count, kind) for kind in (np.int64, np.int32, np.uint8))
    with pytest.raises(ValueError, match="room"):
        kernel.TextColumn(i32(0), u8(5))
    with pytest.raises(ValueError, match="room"):
        kernel.TextColumn(i32(3), b"12345")
    with pytest.raises(ValueError, match="bit"):
        kernel.TextColumn(i32(18), u8(5), u8(2))
    with pytest.raises(ValueError, match="4-byte"):
        kernel.TextColumn(i64(3), u8(5))
    text = kernel.TextColumn(i32(3), u8(5))
    for wide, positions, narrow, narrow_positions, keys, match in (
        (i64(3), np.array([20], np.int32), i32(0), i32(0), i32(5), "rows"),
        (i64(4), np.array([84], np.int32), i32(0), i32(0), i32(5), "lies at"),
        (i64(4), np.array([-1], np.int32), i32(0), i32(0), i32(5), "lies at"),
        (i64(0), i32(0), i32(3), np.array([0], np.int32), i32(5), "rows"),
        (i64(0), i32(0), i32(0), i32(0), i32(4), "keys"),
        (i32(0), i32(0), i32(0), i32(0), i32(5), "8-byte"),
    ):
        with pytest.raises(ValueError, match=match):
            kernel.Columns(4, wide, positions, narrow, narrow_positions, None, None, None, text, keys)
    columns = kernel.Columns(4, i64(0), i32(0), i32(0), i32(0), None, None, None, None, i32(0))
    with pytest.raises(ValueError, match="rows"):
        columns.fill(bytes(100), 0, i64(5), i32(5), 5, 7)
    with pytest.raises(ValueError, match="entry"):
        kernel.split_units(bytes(100), 11, 0, 100, 100, i64(5), i32(5))


UNITS = [(100, 30), (130, 20), (150, 50)]


@pytest.mark.parametrize(
    ("unit", "rows"),
    [((99, 5), 3), ((199, 1), 4), ((200, 1), 3), ((150, 51), 3), ((150, 0), 3), ((150, -1), 3), ((-(1 << 63), 5), 3),
     (((1 << 63) - 1, 5), 3), ((-1, (1 << 31) - 1), 3)],
)  # fmt: skip
def test_units_are_taken_up_to_the_first_outside_the_file(world: World, unit: tuple[int, int], rows: int) -> None:
    """The file has a hundred bytes and starts at 100."""
    packed = b"".join(struct.pack(">qiq", *one, 7) for one in [*UNITS, unit])
    positions, sizes = np.zeros(9, np.int64), np.zeros(9, np.int32)
    split = world.module("commitlog._rows_cy").split_units
    total = 100 + (unit[1] if rows == 4 else 0)
    assert split(packed, 20, 100, 100, 1 << 20, positions, sizes) == (rows, total)
    assert list(zip(positions[:3] + 100, sizes[:3], strict=True)) == UNITS
    assert split(packed, 20, 100, 100, 50, positions, sizes) == (2, 50)
    assert split(packed, 20, 100, 100, 1, positions, sizes) == (1, 30)
    assert split(packed[:59], 20, 100, 100, 1 << 20, positions[:2], sizes) == (2, 50)
