"""The quick conversion of AMQP 1.0 gives what decoding every value gives, or leaves the message to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rabbitstore.format.amqp10 import Symbol
from rabbitstore.format.amqp10_cy import Converter
from rabbitstore.format.amqp10_message import FILTER_VALUE, to_content, try_sections
from tests.builds import World


def slowly(data: bytes) -> tuple[Any, ...] | None:
    """Return the parts of a message by way of its sections; None for bytes that are no message."""
    sections = try_sections(data)
    if sections is None:
        return None
    content, value = to_content(sections, ""), sections.annotations.get(Symbol(FILTER_VALUE))
    text = value if isinstance(value, str) else None
    return content.exchange, content.routing_keys, content.properties_bin, content.body, content.persistent, text


def sized(code: int, data: bytes) -> bytes:
    """Encode a string, symbol or binary by the specification (part 1, 1.6)."""
    if len(data) < 256:
        return bytes((code, len(data))) + data
    return bytes((code + 0x10,)) + len(data).to_bytes(4, "big") + data


def compound(code: int, parts: list[bytes], *, is_large: bool) -> bytes:
    """Encode a list or a map."""
    inner = b"".join(parts)
    if is_large or len(inner) > 254 or len(parts) > 255:
        return bytes((code + 0x10,)) + (len(inner) + 4).to_bytes(4, "big") + len(parts).to_bytes(4, "big") + inner
    return bytes((code, len(inner) + 1, len(parts))) + inner


ASCII = [sized(0xA1, b""), sized(0xA1, b"text"), sized(0xB1, b"large"), sized(0xA3, b"symbol"), sized(0xA1, b"x" * 255)]
NUMBERS = [
    b"\x43", b"\x44", b"\x50\xff", b"\x52\x07", b"\x53\x80", b"\x55\x7f", b"\x60\xff\xfe", b"\x70\xff\xff\xff\xff",
    b"\x70\0\0\0\5", b"\x80\0\0\0\1\0\0\0\0", b"\x61\x7f\xfe", b"\x71\0\0\1\0", b"\x81\0\0\0\0\x7f\xff\xff\xff",
]  # fmt: skip
NEGATIVE = [
    b"\x51\xff",
    b"\x54\x80",
    b"\x61\xff\xfe",
    b"\x71\x80\0\0\0",
    b"\x81\x80" + bytes(7),
    b"\x81" + b"\xff" * 4 + bytes(4),
]
UNSIGNED = [b"\x80" + b"\xff" * 8, b"\x80\xff\xff\xff\xff\x7f\xff\xff\xff"]
TIMES = [b"\x83\0\0\1\x8b\xcf\xe5\x68\x05", b"\x83" + bytes(8), b"\x83\xff" + bytes(7), b"\x83" + b"\xff" * 8]
PLAIN = [
    *ASCII, *NUMBERS, *NEGATIVE, *UNSIGNED, *TIMES, b"\x40", b"\x41", b"\x42", b"\x56\0", b"\x56\1", b"\x82\x3f\xf8" + bytes(6),
    sized(0xA0, b"\0\xff"),
]  # fmt: skip
RARE = [
    b"\x56\2", b"\x82\x7f\xf8" + bytes(5) + b"\1", b"\x72\x3f\xc0\0\0", b"\x98" + bytes(16), b"\x45", b"\xc0\3\1\x50\1",
    b"\xc1\5\2\x54\1\x54\2", b"\x73\0\0\0a", sized(0xA1, "\u00e4".encode()), sized(0xA1, b"\xff"), sized(0xA1, b"x" * 256),
    sized(0xA3, b"\xff"), sized(0xA1, b"/queues/q%20"),
]  # fmt: skip
REPORTED = ("x-exchange", "x-routing-key", "x-basic-type", "x-stream-filter-value")  # annotations whose value is a string
FREE = ("x-own", "x", "own", "x-basic-other", "n1", "n2", "n3")


@st.composite
def messages(draw: Any, chance_of_rare: int = 0) -> bytes:
    """Make messages of the usual sections, each of which may be absent or end early; some parts may be rare ones."""

    def one(*usual: bytes) -> bytes:
        if chance_of_rare and draw(st.integers(1, 100)) <= chance_of_rare:
            return draw(st.sampled_from(RARE + PLAIN))
        return draw(st.sampled_from(usual))

    def pairs(names: list[str]) -> list[bytes]:
        found = []
        for name in names + (["x-cc", names[0]] if chance_of_rare and names and draw(st.booleans()) else []):
            text = sized(draw(st.sampled_from([0xA1, 0xA3])), name.encode())
            found += [one(text) if chance_of_rare else text, one(*ASCII[:3]) if name in REPORTED else one(*PLAIN)]
        return found

    null = b"\x40"
    names = draw(st.permutations((*REPORTED, *FREE)))
    short = (null, *ASCII)
    ids = (null, *ASCII, *NUMBERS)
    user = (null, sized(0xA0, b"user"))
    header = [one(null, b"\x41", b"\x42", b"\x56\0"), one(null, b"\x50\5"), one(null, *NUMBERS), one(*PLAIN), one(*PLAIN)]
    properties = [one(*ids), one(*user), one(*PLAIN), one(*PLAIN), one(*short), one(*ids), one(*short), one(*short),
                  one(*PLAIN), one(null, *TIMES), one(*short), one(*PLAIN), one(*PLAIN)]  # fmt: skip
    annotations = pairs(names[: draw(st.integers(0, 6))])
    application = pairs([name for name in names[6:] if name not in REPORTED])
    out = b""
    for code, kind, values in (
        (0x70, 0xC0, header),
        (0x72, 0xC1, annotations),
        (0x73, 0xC0, properties),
        (0x74, 0xC1, application),
    ):
        if draw(st.integers(0, 4)):
            shown = values[: draw(st.integers(0, len(values)))] if kind == 0xC0 else values
            out += bytes((0, 0x53, code)) + compound(kind, shown, is_large=draw(st.booleans()))
    return out + b"\x00\x53\x75" + sized(0xA0, draw(st.binary(max_size=300)))


@settings(max_examples=200, deadline=None)
@given(messages())
@pytest.mark.deep
def test_a_plain_message_is_converted_as_its_values_are(data: bytes) -> None:
    """One converter takes any number of messages."""
    converter = Converter()
    for _ in range(2):
        assert converter.convert(data) == slowly(data)


@settings(max_examples=200, deadline=None)
@given(messages(chance_of_rare=5))
def test_a_message_with_rare_parts_is_left_to_the_decoder_or_converted_alike(data: bytes) -> None:
    """Never a third way."""
    found = Converter().convert(data)
    assert found is None or found == slowly(data)


@pytest.mark.deep
@settings(max_examples=60, deadline=None)
@given(messages())
def test_a_changed_byte_never_yields_a_different_message_than_the_decoder(data: bytes) -> None:
    """Damage is left to the decoder, or both ways read the same."""
    converter = Converter()
    for at in range(len(data)):
        assert converter.convert(data[:at]) in (None, slowly(data[:at]))
        for changed_byte in (data[at] ^ 1, data[at] ^ 0x80, data[at] ^ 0x10, 0xFF):
            changed = data[:at] + bytes((changed_byte,)) + data[at + 1 :]
            found = converter.convert(changed)
            assert found is None or found == slowly(changed), changed.hex()


FULL = (
    b"\x00\x53\x70" + compound(0xC0, [b"\x41", b"\x50\7", b"\x52\x64"], is_large=False)
    + b"\x00\x53\x72" + compound(0xC1, [
        sized(0xA3, b"x-exchange"), sized(0xA1, b"e"), sized(0xA3, b"x-routing-key"), sized(0xA1, b"k"),
        sized(0xA3, b"x-stream-filter-value"), sized(0xA1, b"f"),
    ], is_large=False)
    + b"\x00\x53\x73" + compound(0xC0, [sized(0xA1, b"m1"), sized(0xA0, b"guest")], is_large=True)
    + b"\x00\x53\x74" + compound(0xC1, [sized(0xA1, b"n"), b"\x54\5", sized(0xA1, b"s"), sized(0xA1, b"text")], is_large=False)
    + b"\x00\x53\x75" + sized(0xA0, b"body" * 100)
)  # fmt: skip


def test_a_common_message_is_converted_without_decoding_its_values(world: World) -> None:
    """In both builds; the block is that of the AMQP 0-9-1 specification (4.2.5.5)."""
    found = world.module("rabbitstore.format.amqp10_cy").Converter().convert(FULL)
    table = b"\x15x-stream-filter-valueS\0\0\0\1f" + b"\1nI\0\0\0\5" + b"\1sS\0\0\0\4text"
    flags = (
        0x2000 | 0x1000 | 0x0800 | 0x0100 | 0x0080 | 0x0010
    )  # headers, delivery mode, priority, expiration, message id, user
    block = flags.to_bytes(2, "big") + len(table).to_bytes(4, "big") + table + b"\2\7" + b"\x03100" + b"\2m1" + b"\5guest"
    assert found == ("e", ("k",), block, b"body" * 100, True, "f")


@pytest.mark.parametrize(
    "part",
    [b"\x00\x53\x71\xc1\1\0", b"\x00\x53\x78\xc1\1\0", b"\x00\x53\x75\xa0\1x", b"\x00\xa3\x05other\x40",
     b"\x00\x80" + bytes(7) + b"\x70\x45"],
    ids=["delivery annotations", "footer", "second data", "other descriptor", "large descriptor"],
)  # fmt: skip
def test_rare_sections_are_left_to_the_decoder(world: World, part: bytes) -> None:
    """They come before the data."""
    assert world.module("rabbitstore.format.amqp10_cy").Converter().convert(part + FULL) is None


def test_the_output_buffer_grows_for_a_large_message(world: World) -> None:
    """Headers of more than the first buffer, in a list of four-byte sizes."""
    pairs = [part for number in range(60) for part in (sized(0xA1, b"h%d" % number), sized(0xA1, b"v" * 5000))]
    data = b"\x00\x53\x74" + compound(0xC1, pairs, is_large=True) + b"\x00\x53\x75\xa0\0"
    assert world.module("rabbitstore.format.amqp10_cy").Converter().convert(data) == slowly(data)


@pytest.mark.parametrize("value", TIMES)
def test_a_time_before_1970_is_left_out(world: World, value: bytes) -> None:
    """Others are in seconds."""
    data = b"\x00\x53\x73" + compound(0xC0, [b"\x40"] * 9 + [value], is_large=False) + b"\x00\x53\x75\xa0\0"
    found = world.module("rabbitstore.format.amqp10_cy").Converter().convert(data)
    time_ms = int.from_bytes(value[1:], "big", signed=True)
    flags, time = (0x1000, b"") if time_ms < 0 else (0x1040, (time_ms // 1000).to_bytes(8, "big"))
    assert found is not None and found[2] == flags.to_bytes(2, "big") + b"\2" + time
