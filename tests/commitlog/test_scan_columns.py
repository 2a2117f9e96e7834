"""Columns filled by single kernel calls: against message objects, and with too little room or wrong positions."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import pytest

from tests.builds import World
from tests.commitlog.logs import MemoryLog

RAWS = (
    b"", b"TAGS\x01paid\x02", b"KEYS\x01a b\x02TAGS\x01x\x02", b"TAGS\x01old\x02a\x01b\x02TAGS\x01new\x02", b"TAGS\x01\x02",
    b"TAGSX\x01no\x02", b"a\x01TAGS\x02", b"\x01TAGS\x02", b"TAGS\x02\x01x\x02", b"TAGS\x01no end",
)  # fmt: skip
WIDTHS = (4, 4, 4, 4, 4, 8, 8, 4, 8, 8, 4, 8)


def numbers(size_bytes: int, rows: int) -> Any:
    return array("q" if size_bytes == 8 else "i", bytes(size_bytes * rows))


def located(world: World) -> tuple[Any, bytes, Any, list[Any], list[Any]]:
    """Return (the kernel, a log's bytes, the positions of its records, positions and sizes of their five parts)."""
    scan = world.module("commitlog._scan_cy")
    log = MemoryLog(world)
    for number, raw in enumerate(RAWS):
        host = "[::1]:7" if number % 3 == 1 else None
        log.appender.append(
            world.commitlog.Message("t" * (1 + 70 * number), b"b", queue_id=0, properties_raw=raw, born_host=host)
        )
    data = bytes(log.files[0])
    places, ends = numbers(8, len(RAWS)), numbers(4, len(RAWS))
    assert scan.scan(data, 0, log.appender.position, 0, 7, places, ends)[2] == len(RAWS)
    starts, sizes = [numbers(8, len(RAWS)) for _ in range(5)], [numbers(4, len(RAWS)) for _ in range(5)]
    scan.locate(data, places, len(RAWS), starts, sizes)
    return scan, data, places, starts, sizes


@pytest.mark.parametrize("name", [b"TAGS", b"KEYS", b"a", b"none", b""])
def test_a_property_lies_where_a_message_has_it(world: World, name: bytes) -> None:
    """The last of equal names counts; empty values, longer names and text of other pairs do not."""
    scan, data, places, starts, sizes = located(world)
    found_starts, found_sizes = numbers(8, len(RAWS)), numbers(4, len(RAWS))
    scan.find_values(data, starts[2], sizes[2], len(RAWS), name, found_starts, found_sizes)
    messages = [scan.Reader(data).decode(place) for place in places]
    found = [data[at : at + size] if at >= 0 else None for at, size in zip(found_starts, found_sizes, strict=True)]
    wanted = [message.properties.get(name.decode()) for message in messages]
    assert found == [None if value is None else value.encode() for value in wanted]
    assert sum(value is not None for value in wanted) == {b"TAGS": 4, b"KEYS": 1, b"a": 2}.get(name, 0)


@pytest.mark.parametrize("asked", [["tags"], ["keys"], ["keys", "tags"], ["tags", "keys"], ["properties", "tags", "keys"]])
def test_a_message_asked_once_or_again_says_the_same(world: World, asked: list[str]) -> None:
    """The first access searches the bytes, the second decodes all; then later messages decode all at the first access."""
    scan, data, places, _, _ = located(world)
    wanted = [world.commitlog.decode_properties(raw, False) for raw in RAWS]
    texts = [{"properties": pairs, "tags": pairs.get("TAGS"), "keys": pairs.get("KEYS", "").split()} for pairs in wanted]
    for _ in range(20):
        for place, pairs in zip(places, texts, strict=True):
            message = scan.Reader(data).decode(place)
            assert [getattr(message, name) for name in asked] == [pairs[name] for name in asked]


def test_what_the_interpreter_reads_inline_is_read_only(world: World) -> None:
    """It behaves like the other attributes, and differs between messages."""
    scan, data, places, _, _ = located(world)
    first, last = scan.Reader(data).decode(places[0]), scan.Reader(data).decode(places[-1])
    assert (first.topic, first.body, last.properties_raw) == ("t", b"b", RAWS[-1])
    assert len(last.topic) == 1 + 70 * (len(RAWS) - 1)
    if world.build == "compiled":
        for name in ("topic", "body", "properties_raw"):
            with pytest.raises(AttributeError):
                setattr(first, name, None)


def test_absent_values_are_gathered_as_nothing(world: World) -> None:
    """A start of -1 has no bytes, whatever its size; its neighbors are adjacent."""
    scan = world.module("commitlog._scan_cy")
    offsets, data = numbers(4, 5), bytearray(8)
    starts, sizes = array("q", [2, -1, 0, -1]), array("i", [3, 99, 2, 1 << 30])
    assert scan.gather(b"abcdef", starts, sizes, 4, offsets, data) == 5
    assert [data[low:high] for low, high in pairwise(offsets)] == [b"cde", b"", b"ab", b""]


def test_pairs_are_split_up_to_the_room_that_there_is(world: World) -> None:
    """One pair too many is rejected, and nothing is written after the columns."""
    scan, data, _, starts, sizes = located(world)
    pairs = sum(len(scan.Reader(data).decode(place).properties) for place in located(world)[2])
    for room in (pairs, pairs - 1):
        columns = [numbers(width, room + 1) for width in (8, 4, 8, 4)]
        for column in columns:
            column[room] = 77
        given = [memoryview(column)[:room] for column in columns]
        if room == pairs:
            assert scan.split_pairs(data, starts[2], sizes[2], len(RAWS), numbers(4, len(RAWS) + 1), *given) == pairs
        else:
            with pytest.raises(ValueError, match="too small"):
                scan.split_pairs(data, starts[2], sizes[2], len(RAWS), numbers(4, len(RAWS) + 1), *given)
        assert [column[room] for column in columns] == [77] * 4


@pytest.mark.parametrize("rows", [-1, 2])
def test_more_rows_than_places_are_refused(world: World, rows: int) -> None:
    """They are rejected before any pointer is taken."""
    scan, data, _, _, _ = located(world)
    one, short, two = numbers(8, 1), numbers(4, 1), numbers(4, 2)
    calls = (
        lambda: scan.fill_fixed(data, one, rows, [numbers(width, 1) for width in WIDTHS]),
        lambda: scan.locate(data, one, rows, [numbers(8, 1) for _ in range(5)], [numbers(4, 1) for _ in range(5)]),
        lambda: scan.gather(data, one, short, rows, two, bytearray(10)),
        lambda: scan.find_values(data, one, short, rows, b"a", numbers(8, 1), numbers(4, 1)),
        lambda: scan.split_pairs(data, one, short, rows, two, numbers(8, 9), numbers(4, 9), numbers(8, 9), numbers(4, 9)),
    )
    for call in calls:
        with pytest.raises(ValueError, match="more rows"):
            call()
    with pytest.raises(ValueError, match="cannot be written"):
        scan.gather(data, one, short, 1, two, b"readonly")
    with pytest.raises(ValueError, match="five columns"):
        scan.locate(data, one, 1, [numbers(8, 1)] * 4, [numbers(4, 1)] * 5)


def test_units_lead_to_records_up_to_the_first_that_does_not(world: World) -> None:
    """This covers objects and raw bytes, also if the bad unit is far after the first."""
    scan, data, places, _, _ = located(world)
    reader = scan.Reader(data)
    wanted = [reader.decode(place) for place in places]
    units = b"".join(one.physical_offset.to_bytes(8, "big") + one.size.to_bytes(4, "big") for one in wanted)
    for bad, unit in ((9, b""), (9, bytes(12)), (4, (1 << 62).to_bytes(8, "big") + b"\0\0\0\x5b"), (0, b"\xff" * 12)):
        given = units[: 12 * bad] + unit + (units[12 * bad + 12 :] if unit else b"")
        assert [one.body for one in reader.decode_units(given, 12, 1 << 20)] == [one.body for one in wanted[:bad]]
        found = [bytes(view) for view in reader.views(given, 12)]
        assert found == [data[one.physical_offset : one.physical_offset + one.size] for one in wanted[:bad]]


def test_a_reader_of_a_million_topics_keeps_no_name_for_ever(world: World) -> None:
    """A full cache takes no more names, and topics are still right."""
    if world.build == "compiled":
        pytest.skip("what it keeps is not to be seen in there")
    scan, data, places, _, _ = located(world)
    reader = scan.Reader(data)
    reader._names.update((b"%d" % number, (b"%d" % number, "")) for number in range(65536))
    topics = [reader.decode(place).topic for place in places]
    assert topics == ["t" * (1 + 70 * number) for number in range(len(RAWS))]
    assert len(reader._names) == 65536


def test_a_place_outside_of_the_file_is_not_asked_for_ahead(world: World) -> None:
    """Only positions inside are prefetched: an offset from damaged data may not be a valid address."""
    if world.build == "compiled":
        pytest.skip("only other kernels can call it there")
    scan, data, places, _, _ = located(world)
    reader = scan.Reader(data)
    assert [reader.prefetch_record(at) for at in (-1, len(data), 1 << 62, places[1], len(data) - 1)] == [0, 0, 0, 1, 1]
