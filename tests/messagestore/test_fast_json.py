"""The broker's JSON: read tolerantly, written byte for byte."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from messagestore.broker.config import fast_json
from messagestore.broker.config.fast_json import DEPTH_MAX, dumps, loads
from storageio import StoreCorrupt

from .support import BROKERS, ONE_LINE, OTHERS, TABLES, quoted


@pytest.mark.parametrize("name", [*TABLES, *OTHERS])
@pytest.mark.parametrize("broker", BROKERS)
def test_every_file_of_a_real_broker_comes_back_to_the_byte(fixture_store: Any, broker: str, name: str) -> None:
    """The values are those of another parser, and writing them gives the same bytes."""
    fixture = fixture_store(broker)
    for suffix in ("", ".bak"):
        data = (fixture.store / "config" / f"{name}{suffix}").read_bytes()
        value = loads(data, file=name)
        expected = json.loads(data) if name in ONE_LINE else fixture.expected()["configFiles"][f"{name}{suffix}"]
        assert quoted(value) == expected
        assert dumps(value, pretty=name not in ONE_LINE) == data


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{0:12,1:30}", {0: 12, 1: 30}),
        ('{"0":12}', {"0": 12}),
        ("{-1:0}", {-1: 0}),
        ("{name:1,$x_2:2}", {"name": 1, "$x_2": 2}),
        ("{'a':'b\"c'}", {"a": 'b"c'}),
        ('{"a":1,,"b":2,}', {"a": 1, "b": 2}),
        ("[1,,2,]", [1, 2]),
        ("{}", {}),
        ("[]", []),
        (" \t\r\n{ } ", {}),
        ('{"a":1,"a":2}', {"a": 2}),
        ("[true,false,null]", [True, False, None]),
        ("[1.5,-2e3,7L]", [1.5, -2000.0, 7]),
        ('"\\u4e2d\\u6587\\/\\"\\n"', '中文/"\n'),
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\ud83d"', "\ud83d"),
        ('"\\ud83d\\u0041"', "\ud83dA"),
    ],
)
def test_spellings_that_fastjson_accepts_are_read(text: str, expected: Any) -> None:
    """The spellings that fastjson accepts are read."""
    assert loads(text.encode(), file="f") == expected


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"", 0),
        (b"   ", 3),
        (b"{", 1),
        (b'{"a"', 4),
        (b'{"a":', 5),
        (b'{"a":1', 6),
        (b'{"a":1 "b":2}', 7),
        (b'{"a" 1}', 5),
        (b"[1 2]", 3),
        (b"[1", 2),
        (b'{"a":1}x', 7),
        (b'{"a":1}\0\0', 7),
        (b'{"a":"b}', 8),
        (b'{"a":"\\q"}', 7),
        (b'{"a":"\\u12g4"}', 7),
        (b'{"a":"\\', 7),
        (b'{"a":tru}', 5),
        (b'{"a":1.}', 5),
        (b'{"a":--1}', 5),
        (b'{"a":12ab}', 5),
        (b'{"a":' + b"9" * 65 + b"}", 5),
        (b"{1.5:2}", 1),
        (b'{"\xd0\x9a":?}', 6),
        (b'{"a":"\xff"}', 6),
        (b"\0\0\0\0", 0),
    ],
)
def test_damage_is_named_with_its_byte(data: bytes, offset: int) -> None:
    """The error has file, offset, what was expected and what was found."""
    with pytest.raises(StoreCorrupt) as caught:
        loads(data, file="config/topics.json")
    assert (caught.value.file, caught.value.offset) == ("config/topics.json", offset)
    assert caught.value.expected and caught.value.found


def test_depth_is_bounded_both_ways() -> None:
    """A file of brackets does not exhaust the stack."""
    assert loads(b"[" * (DEPTH_MAX) + b"]" * (DEPTH_MAX), file="f")
    with pytest.raises(StoreCorrupt):
        loads(b"[" * 1_000_000, file="f")
    with pytest.raises(StoreCorrupt):
        loads(b'{"a":' * 100_000, file="f")
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="levels"):
        dumps(endless)


def test_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is too long for a config file is not decoded."""
    monkeypatch.setattr(fast_json, "SIZE_MAX", 10)
    assert loads(b'"12345678"', file="f") == "12345678"
    with pytest.raises(StoreCorrupt, match="at most 10 bytes"):
        loads(b'"123456789"', file="f")


def test_a_file_cut_anywhere_is_an_error(fixture_store: Any) -> None:
    """A torn write never parses as something shorter."""
    data = (fixture_store("broker-live").store / "config" / "consumerOffset.json").read_bytes()
    for size in range(len(data)):
        with pytest.raises(StoreCorrupt):
            loads(data[:size], file="f")


def test_random_damage_gives_a_value_or_the_named_error(fixture_store: Any) -> None:
    """No other exception is raised, whatever the bytes."""
    data = (fixture_store("broker-live").store / "config" / "consumerOffset.json").read_bytes()
    chance = random.Random(9)
    errors = 0
    for _ in range(2000):
        bad = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        try:
            loads(bytes(bad), file="f")
        except StoreCorrupt as error:
            errors += 1
            assert 0 <= error.offset <= len(bad)
    assert errors > 500


def test_strings_are_escaped_as_fastjson_does() -> None:
    """Escapes are letters if there are any, else upper-case hexadecimal; other text is unchanged."""
    assert dumps('a"\\\b\f\n\r\t\x00\x1f/é中😀\x7f\x9f\u2028\ud800') == (
        b'"a\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001F/' + "é中😀".encode() + b'\\u007F\\u009F\\u2028\\uD800"'
    )


def test_maps_and_lists_are_formatted_as_by_fastjson() -> None:
    """Integer keys are on one line, the closing brace on the next; fields that are None are omitted."""
    value = {"b": {0: 1, 1: 2}, "a": [1, "x"], "e": {}, "n": None, "l": [], "t": True}
    expected = '{\n\t"b":{0:1,1:2\n\t},\n\t"a":[1,"x"],\n\t"e":{},\n\t"l":[],\n\t"t":true\n}'
    assert dumps(value) == expected.encode()
    assert dumps({"n": None}) == b"{}"
    assert dumps(value, pretty=False) == expected.replace("\n", "").replace("\t", "").encode()


def test_what_json_cannot_hold_is_refused() -> None:
    """It is a programming error."""
    with pytest.raises(TypeError, match="bytes"):
        dumps({"a": b"x"})


def test_infinite_number_is_written_as_a_large_number() -> None:
    """Infinity is written as a large number; a word would make the file, and later its backup, unreadable."""
    written = dumps(loads(b'{"a":1e999,"b":[-2E4000]}', file="f"), pretty=False)
    assert dumps(loads(written, file="f"), pretty=False) == written == b'{"a":1e9999,"b":[-1e9999]}'
