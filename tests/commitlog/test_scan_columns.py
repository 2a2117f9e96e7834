"""Columns filled by single kernel calls: against message objects, and with too little room or wrong positions."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest

from tests.builds import World
from tests.commitlog.logs import MemoryLog

RAWS = (
    b"", b"TAGS\x01paid\x02", b"KEYS\x01a b\x02TAGS\x01x\x02", b"TAGS\x01old\x02a\x01b\x02TAGS\x01new\x02", b"TAGS\x01\x02",
    b"TAGSX\x01no\x02", b"a\x01TAGS\x02", b"\x01TAGS\x02", b"TAGS\x02\x01x\x02", b"TAGS\x01no end",
)  # fmt: skip


def numbers(size_bytes: int, rows: int) -> Any:
    return array("q" if size_bytes == 8 else "i", bytes(size_bytes * rows))


def located(world: World) -> tuple[Any, bytes, Any, Any]:
    """Return (the kernel, a log's bytes, positions and sizes of its records)."""
    scan = world.module("commitlog._scan_cy")
    log = MemoryLog(world)
    for number, raw in enumerate(RAWS):
        host = "[::1]:7" if number % 3 == 1 else None
        log.appender.append(
            world.commitlog.Message("t" * (1 + 70 * number), b"b", queue_id=0, properties_raw=raw, born_host=host)
        )
    data = bytes(log.files[0])
    positions, sizes = numbers(8, len(RAWS)), numbers(4, len(RAWS))
    assert scan.scan(data, 0, log.appender.position, 0, 7, positions, sizes)[2] == len(RAWS)
    return scan, data, positions, sizes


def test_properties_column_has_the_pairs_of_each_message(world: World) -> None:
    """The last of equal names counts; empty names and values are no pairs."""
    scan, data, positions, sizes = located(world)
    batch = world.module("commitlog.columns").Batch(memoryview(data), 0, np.array(positions), np.array(sizes))
    found = world.module("commitlog.arrow_columns").record_batch(batch, ["properties"]).column(0).to_pylist()
    assert [dict(pairs) for pairs in found] == [scan.Reader(data).decode(position).properties for position in positions]
    named = [pairs for pairs in map(dict, found) if "TAGS" in pairs]
    assert [pairs["TAGS"] for pairs in named] == ["paid", "x", "new", "no end"]


@pytest.mark.parametrize("requested", [["tags"], ["keys"], ["keys", "tags"], ["tags", "keys"], ["properties", "tags", "keys"]])
def test_first_and_repeated_property_access_return_the_same_values(world: World, requested: list[str]) -> None:
    """The first access searches the bytes, the second decodes all; then later messages decode all at the first access."""
    scan, data, positions, _ = located(world)
    expected = [world.commitlog.decode_properties(raw, False) for raw in RAWS]
    texts = [{"properties": pairs, "tags": pairs.get("TAGS"), "keys": pairs.get("KEYS", "").split()} for pairs in expected]
    for _ in range(20):
        for position, pairs in zip(positions, texts, strict=True):
            message = scan.Reader(data).decode(position)
            assert [getattr(message, name) for name in requested] == [pairs[name] for name in requested]


def test_inline_message_attributes_are_read_only(world: World) -> None:
    """It behaves like the other attributes, and differs between messages."""
    scan, data, positions, _ = located(world)
    first, last = scan.Reader(data).decode(positions[0]), scan.Reader(data).decode(positions[-1])
    assert (first.topic, first.body, last.properties_raw) == ("t", b"b", RAWS[-1])
    assert len(last.topic) == 1 + 70 * (len(RAWS) - 1)
    if world.build == "compiled":
        for name in ("topic", "body", "properties_raw"):
            with pytest.raises(AttributeError):
                setattr(first, name, None)


@pytest.mark.parametrize("missing", [0, 1])
def test_rows_stop_before_a_pair_that_does_not_fit(world: World, missing: int) -> None:
    """Only whole rows count, and nothing is written after the given offsets."""
    scan, data, positions, sizes = located(world)
    rows = world.module("commitlog._rows_cy")
    pairs = sum(len(scan.Reader(data).decode(position).properties) for position in positions) - missing
    columns = [np.full(pairs + 2, 77, np.int32) for _ in range(2)]
    names, values = (rows.TextColumn(column[: pairs + 1], bytearray(1000)) for column in columns)
    none = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32)
    texts = (None, None, None, None, np.empty(0, np.int32))
    ends = np.empty(len(RAWS) + 1, np.int32)
    kernel = rows.Columns(len(RAWS), *none, *texts, names=names, values=values, pairs=ends)
    assert kernel.fill(data, 0, positions, sizes, len(RAWS), 0) == len(RAWS) - missing
    assert ends[len(RAWS) - missing] == pairs and [column[pairs + 1] for column in columns] == [77, 77]
    with pytest.raises(ValueError, match="pairs"):
        rows.Columns(len(RAWS) + 1, *none, *texts, names=names, values=values, pairs=ends)


@pytest.mark.parametrize("name", ["born_host", "store_host", "message_id"])
def test_rows_stop_before_a_host_that_does_not_fit(world: World, name: str) -> None:
    """Born hosts have 8 or 20 bytes, store hosts 8, message ids 32."""
    _, data, positions, sizes = located(world)
    rows = world.module("commitlog._rows_cy")
    none = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32)
    whole = {"born_host": 8 + 20 + 8, "store_host": 3 * 8, "message_id": 3 * 32}[name]
    for capacity, expected in ((whole, 3), (whole - 1, 2)):
        text = rows.TextColumn(np.empty(len(RAWS) + 1, np.int32), bytearray(capacity))
        kernel = rows.Columns(len(RAWS), *none, None, None, None, None, np.empty(0, np.int32), **{name: text})
        assert kernel.fill(data, 0, positions, sizes, len(RAWS), 0) == expected


def test_decode_units_stops_at_the_first_unit_without_a_record(world: World) -> None:
    """This covers objects and raw bytes, also if the bad unit is far after the first."""
    scan, data, positions, _ = located(world)
    reader = scan.Reader(data)
    expected = [reader.decode(position) for position in positions]
    units = b"".join(one.physical_offset.to_bytes(8, "big") + one.size.to_bytes(4, "big") for one in expected)
    for bad, unit in ((9, b""), (9, bytes(12)), (4, (1 << 62).to_bytes(8, "big") + b"\0\0\0\x5b"), (0, b"\xff" * 12)):
        given = units[: 12 * bad] + unit + (units[12 * bad + 12 :] if unit else b"")
        assert [one.body for one in reader.decode_units(given, 12, 1 << 20)] == [one.body for one in expected[:bad]]
        found = [bytes(view) for view in reader.views(given, 12)]
        assert found == [data[one.physical_offset : one.physical_offset + one.size] for one in expected[:bad]]


def test_topic_name_cache_of_a_reader_is_bounded(world: World) -> None:
    """A full cache takes no more names, and topics are still right."""
    if world.build == "compiled":
        pytest.skip("what it keeps is not to be seen in there")
    scan, data, positions, _ = located(world)
    reader = scan.Reader(data)
    reader._names.update((b"%d" % number, (b"%d" % number, "")) for number in range(65536))
    topics = [reader.decode(position).topic for position in positions]
    assert topics == ["t" * (1 + 70 * number) for number in range(len(RAWS))]
    assert len(reader._names) == 65536


def test_offset_outside_the_file_is_not_prefetched(world: World) -> None:
    """Only positions inside are prefetched: an offset from damaged data may not be a valid address."""
    if world.build == "compiled":
        pytest.skip("only other kernels can call it there")
    scan, data, positions, _ = located(world)
    reader = scan.Reader(data)
    assert [reader.prefetch_record(at) for at in (-1, len(data), 1 << 62, positions[1], len(data) - 1)] == [0, 0, 0, 1, 1]
