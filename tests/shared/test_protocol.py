"""Frames between processes: packed data is unpacked unchanged, and invalid data is refused."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest

from commitlog import Message, PutResult, PutStatus
from messagestore.shared._packing_cy import (
    BadFrame,
    pack_message,
    pack_results,
    unpack_message,
    unpack_messages,
    unpack_results,
)
from messagestore.shared.answers import pack_error, unpack_answer, unpack_error
from messagestore.shared.protocol import (
    AGAIN,
    FRAME_MAX,
    HEADER,
    Frame,
    FrameReader,
    Operation,
    batches,
    marked_again,
    pack_call,
    pack_frame,
    parse_frame,
    unpack_call,
)
from storageio import InvalidMessage, UnsupportedFormat
from storageio.local_sockets import LocalSocket

FIELDS = (
    "topic", "body", "tags", "keys", "properties", "queue_id", "flag", "sys_flag", "born_timestamp_ms", "born_host",
    "store_host", "reconsume_times", "prepared_transaction_offset", "properties_raw",
)  # fmt: skip
FULL = Message(
    "tópic", b"body", "tag", ["k1", "k2"], {"UNIQ_KEY": "U", "a": "b"}, 3, -1, 2, 1 << 62, "10.0.0.1:1", "[::1]:2", 5, 1 << 40
)
MESSAGES = [FULL, Message("T", b"", properties={"UNIQ_KEY": "U"}), Message("T", b"x", properties_raw=b"UNIQ_KEY\x01U\x02")]


def fields(message: Message) -> list[Any]:
    return [getattr(message, name) for name in FIELDS]


def received(data: bytes) -> list[Frame]:
    """Return the frames that a connection receives as these bytes."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(data)
        return FrameReader(LocalSocket(here)).read()


@pytest.mark.parametrize("message", MESSAGES, ids=["full", "bare", "raw"])
def test_an_encoded_message_survives_a_round_trip(message: Message) -> None:
    """Every field is the same, and nothing of the next message is read."""
    packed = pack_message(message, "new")
    found, end = unpack_message(packed + b"more", 0)
    assert (fields(found), end) == (fields(message), len(packed))


def test_several_encoded_messages_survive_a_round_trip() -> None:
    """They are packed one after the other."""
    found = unpack_messages(b"".join(pack_message(message, "new") for message in MESSAGES))
    assert [fields(message) for message in found] == [fields(message) for message in MESSAGES]


@pytest.mark.parametrize("message", MESSAGES, ids=["full", "bare", "raw"])
def test_a_message_that_was_cut_is_refused(message: Message) -> None:
    """A cut at any byte is detected."""
    packed = pack_message(message, "new")
    for size in range(len(packed)):
        with pytest.raises(BadFrame):
            unpack_message(packed[:size], 0)


def test_a_message_gets_a_unique_key() -> None:
    """Unless it has one, the key is added to its properties or encoded properties."""
    assert unpack_message(pack_message(Message("T", b""), "new"), 0)[0].properties == {"UNIQ_KEY": "new"}
    raw = unpack_message(pack_message(Message("T", b"", properties_raw=b"a\x01b"), "new"), 0)[0].properties_raw
    assert raw == b"a\x01b\x02UNIQ_KEY\x01new\x02"


def test_frames_are_split() -> None:
    """One frame or several may arrive together."""
    data = pack_frame(Operation.PUT, b"one") + pack_frame(Operation.PUT_MANY, b"", 2)
    assert received(data) == [(Operation.PUT, 0, b"one"), (Operation.PUT_MANY, 2, b"")]
    assert parse_frame(marked_again(data[: 8 + 3])) == (Operation.PUT, AGAIN, b"one")


def test_a_frame_of_another_version_is_refused() -> None:
    """The error has both versions."""
    with pytest.raises(UnsupportedFormat, match="protocol version 9 "):
        received(struct.pack(">IBBH", 0, 9, Operation.PUT, 0))


def test_a_frame_that_is_too_large_is_refused() -> None:
    """The error comes before such a frame is received or sent."""
    with pytest.raises(BadFrame, match=str(FRAME_MAX)):
        received(struct.pack(">IBBH", FRAME_MAX + 1, 1, Operation.PUT, 0))
    with pytest.raises(InvalidMessage):
        pack_frame(Operation.PUT, bytes(FRAME_MAX + 1))
    assert len(pack_frame(Operation.PUT, bytes(FRAME_MAX))) == HEADER.size + FRAME_MAX


def test_a_request_is_refused_as_an_answer() -> None:
    """An owner that sends one is refused."""
    with pytest.raises(BadFrame, match="is no answer"):
        unpack_answer(parse_frame(pack_frame(Operation.PUT, b"")))


def test_messages_are_divided_by_their_number_and_size() -> None:
    """A list has at most both limits; a message that is larger than the limit is alone."""
    packed = [bytes(size) for size in (3, 3, 3, 1, 1, 1, 9, 1)]
    assert [[len(one) for one in batch] for batch in batches(packed, 3, 6)] == [[3, 3], [3, 1, 1], [1], [9], [1]]


def test_an_encoded_call_survives_a_round_trip() -> None:
    """Name, arguments and messages are the same."""
    name, arguments, messages = unpack_call(parse_frame(pack_call("x", 1, "ü", None, messages=pack_message(FULL, ""))).payload)
    assert (name, arguments, [fields(message) for message in messages]) == ("x", [1, "ü", None], [fields(FULL)])


@pytest.mark.parametrize("payload", [b"", b"\0\0\0\2[]", b"\0\0\0\1[", b"\0\0\0\2{}", b"\0\0\0\1\xff", b"\0\0\0\4null"])
def test_an_invalid_call_is_refused(payload: bytes) -> None:
    """The error is a named one."""
    with pytest.raises(BadFrame):
        unpack_call(payload)


def result_with(**fields: Any) -> PutResult:
    result: PutResult = PutResult.__new__(PutResult)
    for name, value in fields.items():
        setattr(result, name, value)
    return result


RESULT_FIELDS = {
    "status": PutStatus.PUT_OK, "reason": None, "queue_id": 7, "queue_offset": 1 << 40, "physical_offset": 1 << 50,
    "store_timestamp_ms": 1 << 41, "size_bytes": 1 << 20, "message_count": 1, "store_host": bytes(range(8)),
}  # fmt: skip


def test_results_and_errors_are_decoded_in_order() -> None:
    """Each result has its fields, each error its type and text."""
    outcomes: list[PutResult | Exception] = [result_with(**RESULT_FIELDS), InvalidMessage("no"), result_with(**RESULT_FIELDS)]
    packed = pack_results(outcomes, pack_error)
    first, error, last = unpack_results(packed, lambda data: unpack_error(data[HEADER.size :]))
    for found in (first, last):
        assert {name: getattr(found, name) for name in RESULT_FIELDS} == RESULT_FIELDS
    assert type(error) is InvalidMessage and str(error) == "no"


def test_results_that_are_cut_are_refused() -> None:
    """Wherever the cut is, except between two rows."""
    packed = pack_results([result_with(**RESULT_FIELDS)], pack_error)
    for size in range(10, len(packed)):
        with pytest.raises(BadFrame):
            unpack_results(packed[:size], unpack_error)
