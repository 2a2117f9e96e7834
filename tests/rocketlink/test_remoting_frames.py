"""Frames of the request protocol: bytes of the format page, round trips, what is refused, and when a connection reads."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from rocketlink.errors import WrongFrame
from rocketlink.remoting.frames import BINARY_ENCODING, Command, RemotingFrameReader, decode, encode
from rocketlink.server import connections

BINARY = bytes.fromhex("0136") + b"\x00" + struct.pack(">hii", 479, 7, 2) + struct.pack(">i", 2) + b"ok" + struct.pack(">i", 8)
BINARY += struct.pack(">h", 1) + b"b" + struct.pack(">i", 1) + b"T"


def frame(encoding: int, header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">i", 4 + len(header) + len(body)) + bytes([encoding]) + len(header).to_bytes(3, "big") + header + body


def test_a_json_request_of_a_java_client() -> None:
    """Field names and the place of the body are RocketMQ's."""
    header = b'{"code":310,"extFields":{"a":"g","e":"3"},"flag":2,"language":"JAVA","opaque":7,"version":479}'
    (found,) = RemotingFrameReader().feed(frame(0, header, b"body"))
    assert (found.code, found.fields, found.opaque, found.body) == (310, {"a": "g", "e": "3"}, 7, b"body")
    assert found.is_one_way
    assert not found.is_answer


def test_a_binary_request_of_a_java_client() -> None:
    """The fixed part has 13 bytes; texts have their lengths before them."""
    (found,) = RemotingFrameReader().feed(frame(1, BINARY, b"body"))
    assert found == Command(310, {"b": "T"}, b"body", 7, 2, "ok", BINARY_ENCODING, "JAVA", 479)


def test_an_answer_has_the_encoding_of_its_request() -> None:
    """Bytes of both encodings, read here without the product."""
    text = encode(Command(11, opaque=9).answer(0, {"k": "v"}, b"B"))
    size = int.from_bytes(text[5:8], "big")
    assert struct.unpack(">i", text[:4])[0] == len(text) - 4
    header = json.loads(text[8 : 8 + size])
    assert (header["code"], header["flag"], header["opaque"], header["extFields"]) == (0, 1, 9, {"k": "v"})
    assert text[8 + size :] == b"B"
    packed = encode(Command(310, opaque=9, encoding=BINARY_ENCODING).answer(0, {"k": "v"}, b"B"))
    assert packed[4] == 1
    assert struct.unpack(">hbhii", packed[8:21]) == (0, 3, 479, 9, 1)
    assert packed[21:] == struct.pack(">i", 0) + struct.pack(">i", 8) + b"\0\1k" + struct.pack(">i", 1) + b"vB"


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_frames_arrive_in_pieces(step: int) -> None:
    """A connection cuts anywhere."""
    data = encode(Command(1, {"a": "x"}, b"1", 1)) + encode(Command(2, {}, b"", 2)) + encode(Command(3, {}, b"333", 3))
    reader, found = RemotingFrameReader(), []
    for at in range(0, len(data), step):
        found += list(reader.feed(data[at : at + step]))
    assert [(one.code, one.body) for one in found] == [(1, b"1"), (2, b""), (3, b"333")]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 16_777_217),
        struct.pack(">i", 8) + b"\0\0\0\5" + b"{}xx",
        frame(2, b"{}"),
        frame(0, b"{"),
        frame(0, b"[]"),
        frame(0, b"[" * 100_000),
        frame(0, b'{"code":"a"}'),
        frame(0, b'{"code":true}'),
        frame(0, b'{"code":1,"opaque":4294967296}'),
        frame(0, b'{"code":1,"extFields":[1]}'),
        frame(0, b"\xff\xfe"),
        frame(1, BINARY[:-1]),
        frame(1, BINARY[:12]),
        frame(1, BINARY[:13] + struct.pack(">i", 1 << 30) + BINARY[17:]),
        frame(1, BINARY[:-1] + b"\xff"),
    ],
)
def test_invalid_frames_are_refused(data: bytes) -> None:
    """The error is named, and no length is trusted."""
    with pytest.raises(WrongFrame):
        list(RemotingFrameReader().feed(data))


def test_a_frame_that_no_peer_takes_is_not_sent() -> None:
    """The limit is that of the real clients."""
    with pytest.raises(WrongFrame, match="16777216"):
        encode(Command(1, {}, bytes(16_777_216)))


def test_numbers_in_fields_become_text() -> None:
    """Some clients send numbers; null is left out."""
    assert decode(frame(0, b'{"code":1,"extFields":{"a":5,"b":null,"c":true}}')[4:]).fields == {"a": "5", "c": "true"}


def test_a_reader_keeps_no_frames_that_it_returned() -> None:
    """However many a connection sends."""
    reader = RemotingFrameReader()
    for number in range(1000):
        assert [command.opaque for command in reader.feed(encode(Command(1, {}, bytes(100), number)))] == [number]
    assert len(reader._waiting) < 1000


class Transport:
    """What a connection does with its transport."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.size = 1

    def get_write_buffer_size(self) -> int:
        return self.size

    def __getattr__(self, name: str) -> Any:
        return lambda *_arguments, **_options: self.calls.append(name)


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    """Until its answers are gone; then its requests that arrived meanwhile are answered."""
    handled: list[int] = []
    every = connections.Connections()
    every.serve(lambda _connection, request: handled.append(request.code), lambda _connection: None)
    connection, transport = connections.Connection(every), Transport()
    connection._transport = transport  # type: ignore[assignment]
    connection.data_received(encode(Command(1, {}, b"", 1)))
    connection.pause_writing()
    assert transport.calls[-1] == "pause_reading"
    connection.data_received(encode(Command(2, {}, b"", 2)))
    assert handled == [1]
    connection.resume_writing()
    assert (handled, transport.calls[-1]) == ([1, 2], "resume_reading")
    connection.close("over")
    connection.data_received(encode(Command(3, {}, b"", 3)))
    assert handled == [1, 2]


def test_the_slowest_readers_are_disconnected_when_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have not read for the longest time."""
    monkeypatch.setattr(connections, "UNSENT_MAX", 100)
    every = connections.Connections()
    every.serve(lambda _connection, _request: None, lambda _connection: None)
    made = [connections.Connection(every) for _ in range(4)]
    for connection in made:
        transport = Transport()
        transport.size = 40
        connection._transport = transport  # type: ignore[assignment]
    for connection in made[:2]:
        connection.pause_writing()
    made[0].resume_writing()
    made[2].pause_writing()
    assert not any(one._is_ended for one in made)
    made[0].pause_writing()
    assert [one._is_ended for one in made] == [False, True, False, False]
    made[1].connection_lost(None)
    made[3].pause_writing()
    assert [one._is_ended for one in made] == [False, True, True, False]
