"""JSON lines made directly from the log's bytes equal Python's JSON of the decoded message byte for byte."""

from __future__ import annotations

import json
import struct
from array import array
from ipaddress import IPv6Address
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerstore.tool.message_json import message_json
from tests.brokerstore.test_golden import ALL_STORES, expected
from tests.builds import World

I32 = st.one_of(st.integers(-(1 << 31), (1 << 31) - 1), st.sampled_from([0, 1, -1, 1 << 30, -(1 << 31)]))
I64 = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([0, 9, 10, -1, -(1 << 63), (1 << 63) - 1]))
TEXT = st.one_of(
    st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=12),
    st.sampled_from(
        [b"\x1b]0;owned\x07", b'"\\/\b\f\n\r\t\x00\x7f', "\u202e\x9b\U0001f600 \u2028".encode(), b"\xed\xa0\x80", b"a"]
    ),
)
NAME = st.one_of(st.sampled_from([b"KEYS", b"TAGS", b"__CRC32#", b"k", b"KEYS ", b"UNIQ_KEY"]), TEXT)
PROPERTIES = st.one_of(
    st.lists(st.tuples(NAME, TEXT), max_size=8).map(lambda pairs: b"".join(a + b"\1" + b + b"\2" for a, b in pairs)),
    st.lists(st.sampled_from([b"\1", b"\2", b" ", b"KEYS", b"TAGS", b"x", b"\xff", b"\xe4\xb8"]), max_size=20).map(b"".join),
)
ADDRESS = st.one_of(
    st.binary(min_size=4, max_size=4),
    st.binary(min_size=16, max_size=16),
    st.lists(st.sampled_from([b"\0\0", b"\0\1", b"\xff\xff", b"\x10\0"]), min_size=8, max_size=8).map(b"".join),
)


def record(
    topic: bytes, properties: bytes, body: bytes, born: bytes, store: bytes, ints: list[int], longs: list[int], v2: bool
) -> bytes:  # fmt: skip
    """Return a record as the format page defines it, with any bytes in its texts."""
    sys_flag = ints[3] & ~0x30 | (0x10 if len(born) > 4 else 0) | (0x20 if len(store) > 4 else 0)
    head = struct.pack(">iiiiqq", 0xDAA320AB - (1 << 32) if v2 else 0xDAA320A7 - (1 << 32), *ints[:3], *longs[:2])
    head += struct.pack(">iq", sys_flag, longs[2]) + born + struct.pack(">i", ints[4])
    head += struct.pack(">q", longs[3]) + store + struct.pack(">iiqi", ints[5], ints[6], longs[4], len(body))
    rest = body + (struct.pack(">h", len(topic)) if v2 else bytes([len(topic)])) + topic
    rest += struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", len(head) + len(rest) + 4) + head + rest


RECORD = st.builds(
    record, TEXT, PROPERTIES, st.binary(max_size=80), ADDRESS, ADDRESS, st.lists(I32, min_size=7, max_size=7),
    st.lists(I64, min_size=5, max_size=5), st.booleans(),
)  # fmt: skip


def lines(world: World, log: bytes, positions: list[int], capacity: int = 1 << 20) -> tuple[list[bytes | None], int]:
    """Return a line for each position, None for one that the kernel skips, and how many it skipped."""
    out, start, found, left = bytearray(capacity), 0, list[bytes | None](), 0
    while start < len(positions):
        before = start
        start, size, need = world.module("commitlog._json_cy").render(log, array("q", positions), start, out)
        found += bytes(out[:size]).splitlines(keepends=True)
        assert len(found) - before == start - before or size == 0
        if start < len(positions) and not need:
            found.append(None)
            left += 1
            start += 1
        elif need > len(out):
            out = bytearray(need)
    return found, left


def model(world: World, log: bytes, position: int) -> bytes:
    """Return the line of the decoded message, made by the standard library."""
    message = world.module("commitlog._scan_cy").Reader(log).decode(position, 0)
    return (json.dumps(message_json(message), separators=(",", ":")) + "\n").encode()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RECORD, min_size=1, max_size=3), st.sampled_from([1, 1500, 1 << 20]))
def test_any_bytes_in_any_field(world: World, records: list[bytes], capacity: int) -> None:
    """Texts that are not UTF-8, escapes, repeated and empty names, hosts of both kinds and extreme integers work."""
    log = b"".join(records)
    positions = [sum(map(len, records[:index])) for index in range(len(records))]
    found, _ = lines(world, log, positions, capacity)
    assert len(found) == len(positions)
    for line, position in zip(found, positions, strict=True):
        assert line is None or line == model(world, log, position)


@pytest.mark.parametrize("name", ALL_STORES)
def test_every_record_of_a_real_store_is_written_by_the_kernel(world: World, fixture_store: Any, name: str) -> None:
    """The kernel handles everything that brokers write, and agrees with the manifest."""
    fixture = fixture_store(name)
    file = min((fixture.store / "commitlog").iterdir())
    log = file.read_bytes()
    _, _, rows, _, _ = world.module("commitlog._scan_cy").scan(
        log, 0, len(log), 0, 0, positions := array("q", bytes(80000)), array("i", bytes(40000))
    )
    found, left = lines(world, log, list(positions[:rows]))
    assert (len(found), left) == (rows, 0)
    assert rows > 10
    assert found == [model(world, log, position) for position in positions[:rows]]
    manifests = fixture.expected()["messages"] if name in ("plain", "propcrc") else []
    for line, manifest in zip(found, manifests, strict=False):
        assert json.loads(line or b"") == expected(manifest)


BASE: dict[str, Any] = {
    "topic": b"t", "properties": b"", "body": b"b", "born": bytes(4), "store": bytes(4), "ints": [0] * 7, "longs": [0] * 5,
    "v2": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "unusual",
    [
        {"properties": b"\xff\x01v\x02"},
        {"properties": b"\xff\x01v\x02\xfe\x01w\x02"},  # two names that become one
        {"properties": b"".join(b"%d\x01v\x02" % number for number in range(200))},
        {"born": bytes(10) + b"\xff\xff\x01\x02\x03\x04"},
    ],
)
def test_unusual_records_are_left_to_the_slow_path(world: World, unusual: dict[str, Any]) -> None:
    """Only the unusual record is skipped; its neighbours are written."""
    usual, differing = record(**BASE), record(**BASE | unusual)
    log = usual + differing + usual
    found, left = lines(world, log, [0, len(usual), len(usual) + len(differing)])
    assert (left, found[1]) == (1, None)
    assert found[0] == found[2] == model(world, log, 0)


@pytest.mark.parametrize(
    "groups",
    ["::", "::1", "1::", "2001:db8::1:0:0:1", "1:0:0:2:0:0:0:3", "1:0:2:3:4:5:6:7", "0:1:2:3:4:5:6:0", "::2:3:4:5:6:7"],
)
def test_ipv6_as_python_writes_it(world: World, groups: str) -> None:
    """RFC 5952 shortens the first of the longest runs of zeros, never a single one."""
    packed = IPv6Address(groups).packed
    log = record(**BASE | {"born": packed, "store": packed})
    found, left = lines(world, log, [0])
    assert (left, json.loads(found[0] or b"")["born_host"]) == (0, f"[{IPv6Address(groups)}]:0")


@pytest.mark.parametrize(
    "worst",
    [
        {"topic": b"\x01" * 127},
        {"topic": b"\xff" * 127},
        {"properties": b"KEYS\x01" + b"a " * 8000},
        {"properties": b"KEYS\x01" + b"\xff " * 8000},
        {"properties": b"TAGS\x01" + b"\xff" * 30000},
        {"properties": b"".join(b"%c\x01\x03\x02" % letter for letter in range(32, 127))},
        {"body": bytes(100_000)},
        {"ints": [-(1 << 31)] * 7, "longs": [-(1 << 63)] * 5, "born": b"\xff" * 16, "store": b"\xfe" * 16},
    ],
)
def test_a_line_is_never_longer_than_the_requested_size(world: World, worst: dict[str, Any]) -> None:
    """A buffer of exactly the requested size, with a guard after it, holds the longest lines."""
    log = record(**BASE | worst)
    render = world.module("commitlog._json_cy").render
    _, size, need = render(log, array("q", [0]), 0, bytearray(1))
    assert size == 0
    held = bytearray(b"\xee" * (need + 4096))
    row, size, _ = render(log, array("q", [0]), 0, memoryview(held)[:need])
    assert (row, bytes(held[:size])) == (1, model(world, log, 0))
    assert held[need:] == b"\xee" * 4096


def test_positions_without_a_record_are_refused(world: World) -> None:
    """Every position is checked before it is used."""
    log = record(**BASE)
    render = world.module("commitlog._json_cy").render
    for position in (-1, 1, len(log), len(log) - 50, 1 << 40):
        with pytest.raises(ValueError, match="no record lies at"):
            render(log, array("q", [position]), 0, bytearray(1 << 16))
    with pytest.raises(ValueError, match="to write to"):
        render(log, array("q", [0]), 0, bytes(1 << 16))
    with pytest.raises(ValueError, match="to write to"):
        render(log, array("q", [0]), -1, bytearray(1 << 16))
