"""The byte primitives: the compiled half against the plain one, and both against simple models."""

from __future__ import annotations

import base64
import json
import random
import struct
import sys
import time
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builds import World, is_compiled_here, load

CHECK = "storebytes._primitives_check_cy"
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@cache
def halves() -> list[Any]:
    """The primitives of each available build."""
    return [load(build).module(CHECK) for build in (("compiled", "plain") if is_compiled_here() else ("plain",))]


def java_model(text: str) -> int:
    """Compute String.hashCode as Java's documentation defines it."""
    code = 0
    for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - (code >> 31 << 32)


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=8, max_size=40), st.data())
def test_integers_are_read_as_the_standard_library_reads_them(data: bytes, draw: st.DataObject) -> None:
    """They are big-endian and signed, except the little-endian one for the checksum."""
    at = draw.draw(st.integers(0, len(data) - 8))
    expected = tuple(struct.unpack_from(kind, data, at)[0] for kind in (">h", ">i", ">q", "<I"))
    assert [half.gets(data, at) for half in halves()] == [expected] * len(halves())


@settings(max_examples=100, deadline=None)
@given(st.integers(-(1 << 15), (1 << 15) - 1), I32, I64)
def test_integers_are_written_at_their_offsets_only(short: int, middle: int, long: int) -> None:
    """No byte beside them changes."""
    expected = bytearray(24)
    struct.pack_into(">h", expected, 1, short)
    struct.pack_into(">i", expected, 4, middle)
    struct.pack_into(">q", expected, 9, long)
    struct.pack_into(">i", expected, 18, middle)
    assert [half.puts(short, middle, long) for half in halves()] == [bytes(expected)] * len(halves())


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.data())
def test_byte_ranges_are_copied_sliced_found_and_compared(data: bytes, draw: st.DataObject) -> None:
    """This covers any range inside the data."""
    at = draw.draw(st.integers(0, len(data)))
    size = draw.draw(st.integers(0, len(data) - at))
    byte = draw.draw(st.sampled_from(sorted(set(data)) or [0]))
    other = draw.draw(st.sampled_from([data[at : at + size], data[at : at + size - 1], data[:size], b"x"]))
    part = data[at : at + size]
    for half in halves():
        assert half.copy(data, at, size) == b"\0" + part + b"\0"
        text = part.decode("utf-8", "replace")
        assert half.take(data, at, size) == (part, text, text)
        found = data.find(byte, at, at + size)
        assert half.find(data, at, at + size, byte) == (at + size if found < 0 else found, data[: at + size].count(byte))
        assert half.view(data, at, size) == part
        assert half.view(data, at, size).tobytes() == part
        assert half.same(data, at, size, other) == (part == other, True)
        if other:
            assert half.has(data, len(data), other) == (other in data)


@settings(max_examples=100, deadline=None)
@given(TEXT, TEXT)
def test_java_hash_of_text_in_two_steps(first: str, second: str) -> None:
    """`topic#key` is hashed without concatenation: the hash of the second part continues that of the first."""
    one, two = first.encode(), second.encode()
    for half in halves():
        assert half.java(one, 0, len(one), 0) == java_model(first)
        assert half.java(two, 0, len(two), half.java(one, 0, len(one), 0)) == java_model(first + second)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=30), I32)
def test_java_hash_of_bytes_that_are_no_text(data: bytes, seed: int) -> None:
    """Both builds replace invalid UTF-8 at the same positions."""
    found = {half.java(data, 0, len(data), seed) for half in halves()}
    assert len(found) == 1
    if seed == 0:
        assert found == {java_model(data.decode("utf-8", "replace"))}


def test_java_hash_of_every_broken_sequence() -> None:
    """The bytes are all sequences of up to three bytes from the limits of UTF-8's ranges."""
    edges = [
        0x00,
        0x41,
        0x7F,
        0x80,
        0x8F,
        0x90,
        0x9F,
        0xA0,
        0xBF,
        0xC0,
        0xC1,
        0xC2,
        0xDF,
        0xE0,
        0xED,
        0xEF,
        0xF0,
        0xF4,
        0xF5,
        0xFF,
    ]
    for first in edges:
        for second in edges:
            for third in edges:
                data = bytes((first, second, third, 0x41))
                expected = java_model(data.decode("utf-8", "replace"))
                assert [half.java(data, 0, 4, 0) for half in halves()] == [expected] * len(halves()), data.hex()


@pytest.mark.parametrize(
    ("text", "code"),
    [("TagA", 2598919), ("TAG1", 2567159), ("abc", 96354), ("中文", 646394), ("FooBar#k1", -78142500), ("", 0)],
)
def test_java_hash_golden(text: str, code: int) -> None:
    """The values include long texts and surrogate pairs."""
    data = text.encode()
    assert [half.java(b"." + data, 1, len(data), 0) for half in halves()] == [code] * len(halves())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), max_size=5))
def test_pairs_are_encoded_alike(pairs: list[tuple[str, str]]) -> None:
    """The format is name 1 value 2; a lone surrogate is an error in both builds."""
    texts = [text for pair in pairs for text in pair]
    expected = "".join(f"{name}\1{value}\2" for name, value in pairs).encode()
    assert [half.pairs(texts) for half in halves()] == [expected] * len(halves())


@pytest.mark.parametrize("keys", [None, "", "a", "caf\u00e9 b"])
@pytest.mark.parametrize("tags", [None, "", "t", "\U0001f600"])
def test_keys_and_tags_are_encoded_alike(keys: str | None, tags: str | None) -> None:
    """KEYS comes before TAGS; None is omitted."""
    named = [("KEYS", keys), ("TAGS", tags)]
    expected = "".join(f"{name}\1{value}\2" for name, value in named if value is not None).encode()
    assert [half.keys_and_tags(keys, tags) for half in halves()] == [expected] * len(halves())


@pytest.mark.parametrize("bad", ["\ud800", 5, None, b"x"])
def test_pairs_of_what_is_no_text_are_refused_alike(bad: Any) -> None:
    """Both builds raise the same type of error."""
    for half in halves():
        with pytest.raises((UnicodeEncodeError, TypeError)):
            half.pairs(["a", bad])
        if bad is not None:
            with pytest.raises((UnicodeEncodeError, TypeError)):
                half.keys_and_tags(bad, "a")


TEXT_BYTES = st.one_of(st.binary(max_size=60), st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")))


@settings(max_examples=300, deadline=None)
@given(TEXT_BYTES, st.data(), I64)
def test_texts_are_those_of_the_standard_library(data: bytes, draw: st.DataObject, value: int) -> None:
    """This covers decimal, hex, base64, and ASCII JSON with U+FFFD for invalid UTF-8."""
    start = draw.draw(st.integers(0, len(data)))
    size = draw.draw(st.integers(0, len(data) - start))
    part = data[start : start + size]
    escaped = json.dumps(part.decode("utf-8", "replace"))[1:-1].encode()
    expected = [str(value).encode(), part.hex().encode(), part.hex().upper().encode(), base64.b64encode(part), escaped]
    framed = [b"\0" + text + b"\0" for text in expected]
    assert [half.encoded(data, start, size, value) for half in halves()] == [framed] * len(halves())


def test_base64_of_every_size_and_position() -> None:
    """Long ranges are encoded in wide groups where the processor can; bytes around the range stay."""
    data = bytes(number * 197 + (number >> 8) & 255 for number in range(600))
    for half in halves():
        for size in (*range(300), 511, 512, 513):
            start = size * 7 % 80
            framed = b"\0" + base64.b64encode(data[start : start + size]) + b"\0"
            assert half.encoded(data, start, size, 0)[3] == framed


def test_json_text_of_every_byte_and_of_the_greatest_numbers() -> None:
    """The input is each byte, each pair of limit bytes, and the limits of 64 bits."""
    for half in halves():
        for byte in range(256):
            found = half.encoded(bytes([byte]), 0, 1, -(1 << 63))
            assert found[4][1:-1].decode() == json.dumps(bytes([byte]).decode("utf-8", "replace"))[1:-1]
            assert found[0] == b"\0-9223372036854775808\0"


def test_native_columns_and_the_clock() -> None:
    """Columns have native byte order; the clock returns milliseconds."""
    ints, longs = struct.pack("2i", 5, -7), struct.pack("2q", 5, -(1 << 40))
    for half in halves():
        assert half.columns(ints, longs) == (-7, -(1 << 40))
        assert abs(half.clock() - time.time_ns() // 1_000_000) < 5_000
    assert sys.byteorder == "little"


def test_crc_golden(world: World) -> None:
    """The values have all 32 bits; a record stores 31."""
    crc = world.module("storebytes._crc_cy")
    assert crc.checksum(b"body") & 0x7FFFFFFF == 0x5BA80BB2
    assert crc.checksum(b"123456789") == 0xCBF43926
    assert crc.checksum(b"") == 0


def test_crc_is_that_of_crcmod_and_zlib_for_every_length(world: World) -> None:
    """0 to 700 bytes at every alignment, in one call and in two, folded and by the tables only."""
    import zlib

    import crcmod.predefined

    crc = world.module("storebytes._crc_cy")
    define = crcmod.predefined.mkPredefinedCrcFun("crc-32")
    data = random.Random(7).randbytes(720)
    for size in range(701):
        piece = data[size % 16 : size % 16 + size]
        expected = define(piece)
        cut = size * 2 // 3
        assert expected == zlib.crc32(piece)
        assert expected == crc.checksum(piece) == crc.sliced(piece) == crc.checksum(piece[cut:], crc.checksum(piece[:cut]))


def test_crc_without_the_fold_is_the_same(world: World) -> None:
    """A processor without carry-less multiplication uses the tables."""
    crc = world.module("storebytes._crc_cy")
    data = random.Random(8).randbytes(100_000)
    folded = crc.checksum(data)
    try:
        assert crc.use_fold(False) is False
        assert crc.checksum(data) == folded == crc.sliced(data)
    finally:
        crc.use_fold(True)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=12), st.integers(0, 30))
def test_a_text_is_written_whole_or_not_at_all(text: str, capacity: int) -> None:
    """Lone surrogates cannot be encoded; no byte around the room changes."""
    encoded = text.encode("utf-8", "surrogatepass")
    fits = len(encoded) <= capacity and not any("\ud800" <= letter <= "\udfff" for letter in text)
    body = encoded + b"\xff" * (capacity - len(encoded)) if fits else b"\xff" * capacity
    expected = (len(encoded) if fits else -1, b"\xff" + body + b"\xff")
    assert [half.texts(text, capacity) for half in halves()] == [expected] * len(halves())
