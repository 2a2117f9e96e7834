"""JSON lines that the kernel writes equal Python's JSON of `to_json` byte for byte."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builds import World

TEXT = st.one_of(
    st.text(max_size=12).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=12),
    st.sampled_from([b'"\\/\b\f\n\r\t\x00\x7f', "\u202e\x9b\U0001f600 \u2028\ufffd".encode(), b"\xed\xa0\x80", b"a", b""]),
)
NAME = st.one_of(st.sampled_from([b"a", b"b", b"x-death", b""]), TEXT)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


NUMBER = st.one_of(*(
    st.binary(min_size=size, max_size=size).map(lambda data, code=code: code + data)
    for codes, size in ((b"bB", 1), (b"su", 2), (b"Ii", 4), (b"f", 4), (b"lTd", 8))
    for code in (bytes([one]) for one in codes)
))  # fmt: skip
PLAIN = st.one_of(
    NUMBER,
    TEXT.map(lambda text: b"S" + long(text)),
    st.binary(max_size=9).map(lambda data: b"x" + long(data)),
    st.sampled_from([b"V", b"t\0", b"t\1", b"t\2", b"D\2" + struct.pack(">I", 314), b"?"]),
)


def table(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return long(b"".join(short(name) + value for name, value in pairs))


VALUE = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(st.tuples(NAME, inner), max_size=4).map(lambda pairs: b"F" + table(pairs)),
        st.lists(inner, max_size=4).map(lambda values: b"A" + long(b"".join(values))),
    ),
    max_leaves=8,
)
HEADERS = st.lists(st.tuples(NAME, VALUE), max_size=5).map(table)
FIELD = {"s": TEXT.map(short), "F": HEADERS, "o": st.binary(min_size=1, max_size=1), "T": st.binary(min_size=8, max_size=8)}


@st.composite
def blocks(draw: Any) -> bytes:
    """Return a property block as docs/formats/rabbitmq-terms.md defines it, sometimes cut or with a byte too many."""
    kinds = "ssFoo" + "ssss" + "T" + "ssss"  # of the fourteen properties
    flags, data = 0, b""
    for index, kind in enumerate(kinds):
        if draw(st.booleans()):
            flags |= 0x8000 >> index
            data += draw(FIELD[kind])
    block = struct.pack(">H", flags) + data
    cut = draw(st.sampled_from([0, 0, 0, 0, 1, 3]))
    return block[: len(block) - cut] + draw(st.sampled_from([b"", b"", b"", b"\0"]))


def message(world: World, block: bytes, **fields: Any) -> Any:
    content = world.module("rabbitstore.format.message").Content(
        fields.pop("vhost", "/"), fields.pop("exchange", ""), fields.pop("keys", ("q",)), block, fields.pop("body", b"b"),
        fields.pop("msg_id", bytes(range(16))), True,
    )  # fmt: skip
    known = {
        "queue": "q", "priority": None, "seq_id": 7, "persistent": True, "acked": False, "redelivered": True, "expiry_us": 0,
        "size": 1, "embedded": False, "file": "msg_store_persistent/0.rdq", "offset": 3,
    }  # fmt: skip
    return world.module("rabbitstore.read.stored_message").RabbitMessage(**known | fields, content=content)


def model(found: Any) -> bytes:
    """Return the line that the standard library makes."""
    return (json.dumps(found.to_json(), separators=(",", ":")).replace("\x7f", "\\u007f") + "\n").encode()


def is_damaged(found: Any) -> bool:
    from storageio import StoreCorrupt

    try:
        found.to_json()
    except StoreCorrupt:
        return True
    return False


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocks(), st.binary(max_size=40), TEXT)
def test_any_property_block(world: World, block: bytes, body: bytes, key: bytes) -> None:
    """A line is Python's, or is left to the caller; a damaged block is always left."""
    lines = world.module("rabbitstore.read.json_cy").LineWriter()
    one = message(world, block, body=body, keys=(key.decode("utf-8", "surrogateescape"), "k"))
    if lines.add(one):
        assert bytes(lines.take()) == model(one)
    else:
        assert lines.size == 0
        has_time = len(block) > 1 and block[1] & 0x40  # perhaps one above 2**63
        is_rare = has_time or any(sign in block for sign in (b"f", b"d", b"D", b"T", b"S", b"F", b"\xff", b"\0", b"\1"))
        assert is_rare or is_damaged(one)


def test_messages_of_real_servers_are_written_by_the_kernel(world: World) -> None:
    """Properties of every type, and the header of a dead-lettered message: an array of tables."""
    properties = world.module("rabbitstore.format.properties")
    death = {
        "count": 1,
        "reason": "rejected",
        "queue": "a",
        "time": properties.Typed("T", 1_700_000_000),
        "routing-keys": ["a"],
    }
    block = properties.encode({
        "content_type": "text/plain", "delivery_mode": 2, "priority": 3, "timestamp": 1_700_000_000, "message_id": "m-1",
        "headers": {"x-death": [death, death], "n": -1, "long": 1 << 40, "yes": True, "none": None, "\xe4": "\U0001f600",
                    "raw": properties.Typed("x", b"\0\xff"), "table": {"n": 1}},
    })  # fmt: skip
    lines = world.module("rabbitstore.read.json_cy").LineWriter()
    found = [
        message(world, block, body=bytes(3000), seq_id=number, offset=number << 40, expiry_us=number) for number in range(9)
    ]
    assert all(lines.add(one) for one in found)
    assert bytes(lines.take()) == b"".join(model(one) for one in found)


@pytest.mark.parametrize(
    "headers",
    [
        {"a": 1.5},
        {"a": b"\xff"},
        {"\udcff": 1},
    ],
)
def test_rare_messages_are_left_to_the_slow_path(world: World, headers: dict[str, Any]) -> None:
    """The line before stays, and the caller's own line follows it."""
    properties = world.module("rabbitstore.format.properties")
    usual, rare = message(world, b"\0\0"), message(world, properties.encode({"headers": headers}))
    lines = world.module("rabbitstore.read.json_cy").LineWriter()
    assert [lines.add(usual), lines.add(rare)] == [True, False]
    lines.add_line(model(rare))
    assert lines.add(usual)
    assert bytes(lines.take()) == model(usual) + model(rare) + model(usual)


def test_a_duplicate_name_in_a_table_is_left_to_the_slow_path(world: World) -> None:
    """The last of equal names counts; the same name in another table is another one."""
    lines = world.module("rabbitstore.read.json_cy").LineWriter()
    twice = message(world, b"\x20\0" + table([(b"a", b"V"), (b"a", b"t\1")]))
    inner = message(world, b"\x20\0" + table([(b"a", b"F" + table([(b"a", b"V")])), (b"b", b"F" + table([(b"a", b"V")]))]))
    assert [lines.add(twice), lines.add(inner)] == [False, True]
    assert bytes(lines.take()) == model(inner)


@pytest.mark.parametrize("field", ["seq_id", "offset", "expiry_us"])
def test_numbers_beyond_62_bits_are_left_to_the_slow_path(world: World, field: str) -> None:
    """Damaged index entries have such numbers."""
    lines = world.module("rabbitstore.read.json_cy").LineWriter()
    for number in (1 << 62, 1 << 64, -1):
        assert not lines.add(message(world, b"\0\0", **{field: number}))
    assert lines.add(message(world, b"\0\0", **{field: (1 << 62) - 1}))


def test_the_buffer_grows(world: World) -> None:
    """Bodies and blocks larger than the buffer, after lines that it holds."""
    block = b"\x20\0" + table([(b"%c" % code, b"S" + long(b"\1" * 60_000)) for code in range(97, 123)])
    found = [message(world, b"\0\0"), message(world, block, body=bytes(3_000_000)), message(world, b"\0\0")]
    lines = world.module("rabbitstore.read.json_cy").LineWriter()
    assert all(lines.add(one) for one in found)
    lines.add_line(b"x" * (1 << 23))
    assert bytes(lines.take()) == b"".join(model(one) for one in found) + b"x" * (1 << 23)
