"""External terms, property blocks and message terms: round trips, documented bytes, and every truncation."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitstore.format import properties
from rabbitstore.format.content import decode_content, encode_content
from rabbitstore.format.content_cy import split_term
from rabbitstore.format.journal import read_journal
from rabbitstore.format.message import Content
from rabbitstore.format.properties import Typed
from rabbitstore.format.terms import Atom, CharList, Opaque, encode
from rabbitstore.format.terms_cy import decode
from storageio import InvalidMessage, StoreCorrupt

LEAVES = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.binary(max_size=300),
    st.text(alphabet="abc_xyz", max_size=20).map(Atom),
    st.floats(allow_nan=False),
    st.binary(min_size=1, max_size=9).map(CharList),
)
TERMS = st.recursive(LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.tuples(inner, inner)), max_leaves=12)
CONTENTS = st.builds(
    Content,
    st.just("/"),
    st.sampled_from(["", "ex.fan", "ä"]),
    st.lists(st.sampled_from(["q", "schlüssel", "x" * 300]), max_size=3).map(tuple),
    st.binary(min_size=2, max_size=40),
    st.one_of(st.binary(max_size=50), st.sampled_from([b"x" * 131_064, b"y" * 131_065, b"z" * 300_000])),
    st.binary(min_size=16, max_size=16),
    st.booleans(),
)


@given(TERMS)
def test_encoded_terms_survive_a_round_trip(term: Any) -> None:
    """Terms of every kind, nested."""
    assert decode(encode(term)) == term


@pytest.mark.parametrize(
    ("term", "data"),
    [
        (Atom("none"), "8364 0004 6e6f6e65"),
        (60, "8361 3c"),
        (256, "8362 00000100"),
        (1 << 40, "836e 06 00 000000000001"),
        (b"ab", "836d 00000002 6162"),
        ([], "836a"),
        ([1], "836c 00000001 6101 6a"),
        ((1, Atom("x")), "8368 02 6101 64000178"),
    ],
)
def test_encoded_bytes_equal_those_of_otp_25(term: Any, data: str) -> None:
    """Each tag has the documented bytes."""
    assert encode(term) == bytes.fromhex(data.replace(" ", ""))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x82a\x01", "not an external term"),
        (b"\x83m\xff\xff\xff\xff", "past its end"),
        (b"\x83l\x7f\xff\xff\xff", "past its end"),
        (b"\x83l\x00\x00\x00\x01a\x01a", "without an end"),
        (b"\x83\x01", "unknown tag"),
        (b"\x83h\x01" + b"h\x01" * 100 + b"a\x01", "too deep"),
        (b"\x83a\x01\x00", "after the term"),
    ],
)
def test_bad_terms_are_named(data: bytes, reason: str) -> None:
    """The error has file and byte."""
    with pytest.raises(StoreCorrupt, match=reason) as caught:
        decode(data, file="x.rdq", base=100)
    assert (caught.value.file, caught.value.offset >= 100) == ("x.rdq", True)


@given(CONTENTS)
def test_the_bulk_path_agrees_with_the_terms(content: Content) -> None:
    """The kernel encodes and splits like `terms.encode` and `terms.decode`."""
    term = encode_content(content)
    assert encode(decode(term)) == term
    assert split_term(term) == tuple(content) == tuple(decode_content(term))


def test_atoms_of_newer_erlang_are_read() -> None:
    """OTP 26 writes atoms with tag 119; the slow path reads them."""
    content = Content("/", "", ("q",), b"\x10\x00\x02", b"body", b"i" * 16, True)
    newer = encode_content(content).replace(b"d\x00\x04true", b"w\x04true")
    assert split_term(newer) is None and decode_content(newer) == content


def test_atoms_with_equal_bytes_differ_by_encoding() -> None:
    """Tags 100 and 115 are Latin-1, 118 and 119 UTF-8, also when the same bytes were read before."""
    name = "é".encode()
    latin, utf_8 = b"s\x02" + name, b"w\x02" + name
    for _ in range(2):
        assert decode(b"\x83h\x04" + latin + utf_8 + b"d\0\x02" + name + b"v\0\x02" + name) == ("Ã©", "é", "Ã©", "é")


def test_any_number_of_different_atoms_is_read() -> None:
    """Only the first thousand names are kept for the next message."""
    names = [Atom(f"name_{number}") for number in range(3000)]
    assert decode(encode(names)) == decode(encode(names)) == names


def test_every_truncation_of_a_message_is_named() -> None:
    """Neither path accepts a truncated message."""
    term = encode_content(Content("/", "e", ("k", "l"), b"\x00\x00", b"b" * 20, b"i" * 16, False))
    for size in range(len(term)):
        with pytest.raises(StoreCorrupt):
            decode_content(term[:size], file="f")
    for at in range(len(term)):
        damaged = term[:at] + bytes((term[at] ^ 0x80,)) + term[at + 1 :]
        try:
            decode_content(damaged, file="f")
        except StoreCorrupt as error:
            assert error.file == "f"


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.floats(allow_nan=False),
        st.text(max_size=20),
        st.sampled_from([Typed("b", -3), Typed("u", 65535), Typed("T", 1 << 40), Typed("D", (2, 314)), Typed("x", b"\xff")]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": st.text(max_size=20),
            "headers": st.dictionaries(st.text(max_size=9), VALUES, max_size=4),
            "delivery_mode": st.integers(0, 255),
            "timestamp": st.integers(0, (1 << 64) - 1),
            "cluster_id": st.text(max_size=9),
        },
    )
)
def test_properties_survive_a_round_trip(found: dict[Any, Any]) -> None:
    """All header values survive a round trip."""
    assert properties.decode(properties.encode(found)) == found


@pytest.mark.parametrize(
    "wrong",
    [{"colour": "red"}, {"content_type": "x" * 256}, {"priority": 256}, {"headers": {"k": object()}}, {"timestamp": -1}],
)
def test_properties_that_cannot_be_encoded_raise(wrong: dict[Any, Any]) -> None:
    """They raise before anything is written."""
    with pytest.raises(InvalidMessage):
        properties.encode(wrong)


def test_every_truncation_of_a_property_block_is_named() -> None:
    """Truncated blocks and bytes after a block are errors."""
    block = properties.encode({"headers": {"a": [1, {"b": "c"}], "d": Typed("D", (1, 15))}, "message_id": "m", "timestamp": 5})
    for size in range(len(block)):
        with pytest.raises(StoreCorrupt):
            properties.decode(block[:size])
    with pytest.raises(StoreCorrupt):
        properties.decode(block + b"x")


@pytest.mark.parametrize(
    ("data", "term"),
    [
        (b"\x83t\0\0\0\x01d\0\x01aa\x01", {Atom("a"): 1}),
        (b"\x83X" + b"d\0\x04n@h1" + bytes(12), Opaque(88, b"d\0\x04n@h1" + bytes(12))),
        (b"\x83g" + b"d\0\x04n@h1" + bytes(9), Opaque(103, b"d\0\x04n@h1" + bytes(9))),
        (b"\x83Z\0\x02" + b"d\0\x04n@h1" + bytes(12), Opaque(90, b"\0\x02d\0\x04n@h1" + bytes(12))),
        (b"\x83r\0\x03" + b"d\0\x04n@h1" + bytes(13), Opaque(114, b"\0\x03d\0\x04n@h1" + bytes(13))),
    ],
)
def test_table_properties_survive_a_round_trip(data: bytes, term: Opaque | dict[Atom, int]) -> None:
    """Maps, processes and references are read (Erlang's external format)."""
    assert decode(data) == term and encode(term) == data


@pytest.mark.parametrize(("term", "error"), [(1 << 8 * 255, struct.error), (-(1 << 9000), struct.error), (object(), TypeError)])
def test_values_that_no_table_can_hold_are_rejected(term: int | object, error: type[Any] | type[TypeError]) -> None:
    """A too large integer and a value that is not a term are errors."""
    with pytest.raises(error):
        encode((Atom("row"), [term]))
    assert decode(encode((1 << 8 * 255) - 1)) == (1 << 8 * 255) - 1


def test_property_flags_of_a_second_word_are_passed_over() -> None:
    """The lowest bit announces another word of flags, without known properties (AMQP 0-9-1, 4.2.6.1)."""
    assert properties.decode(b"\x10\x01\0\0\x02") == {"delivery_mode": 2}
    assert properties.decode(b"\x10\x01\0\x01\0\0\x02") == {"delivery_mode": 2}


def nested(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        inner = b"\x01aF" + len(table).to_bytes(4, "big") + table
        table = inner
    return b"\x20\0" + len(table).to_bytes(4, "big") + table


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (nested(200), "nested too deep"),
        (b"\x20\0\0\0\0\x03\x01aQ", "unknown type of a header value"),
    ],
)
def test_headers_that_no_client_sends_are_named(block: bytes, reason: str) -> None:
    """Deeply nested tables and unknown types are errors."""
    with pytest.raises(StoreCorrupt, match=reason):
        properties.decode(block)
    assert properties.decode(nested(4))["headers"] == {"a": {"a": {"a": {"a": {}}}}}


def test_a_boolean_other_than_0_or_1_survives_a_round_trip() -> None:
    """A boolean other than 0 or 1 keeps its octet, also in JSON."""
    block = b"\x20\0\0\0\0\x04\x01at\x07"
    found = properties.decode(block)
    assert found == {"headers": {"a": Typed("t", 7)}} and properties.encode(found) == block
    assert properties.to_json(found) == {"headers": {"a": 7}}


def test_a_repeated_publish_in_a_journal_counts_once() -> None:
    """The first publish counts, the second is reported, and later entries are read."""
    publish = bytes(8) + bytes(16) + bytes(8) + (3).to_bytes(4, "big") + bytes(4)
    mark = b"\x80" + bytes(7)
    following = bytes(7) + b"\x01" + publish[8:]
    problems = []
    found, end = read_journal(publish + mark + publish + following, "journal.jif", problems)
    assert end == 3 * len(publish) + len(mark) and [problem.kind for problem in problems] == ["published_twice"]
    assert [(seq_id, late.publish.offset, late.delivered) for seq_id, late in found.items()] == [
        (0, 0, True),
        (1, 2 * len(publish) + len(mark), False),
    ]


def test_a_header_that_is_no_text_stays_bytes_and_is_base64_in_json() -> None:
    """AMQP defines no encoding of long strings: all bytes are kept."""
    raw = properties.encode({"headers": {"plain": "text", "raw": b"\xff\xfe"}})
    headers = properties.decode(raw)["headers"]
    assert headers == {"plain": "text", "raw": b"\xff\xfe"}
    assert properties.to_json(headers) == {"plain": "text", "raw": {"base64": "//4="}}
