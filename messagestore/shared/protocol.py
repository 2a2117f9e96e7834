"""The frames between the owner of a store and the other processes.

A frame is a header and a payload. Header: size of the payload (4 bytes), version (1), operation (1), flags (2), all
big-endian. A payload has at most FRAME_MAX bytes. Answers come in the order of the requests.

| Operation | Payload |
|---|---|
| HELLO | id of the process, and with WATCH those of its consumers; the first frame, answered with VALUE |
| PUT | one message |
| PUT_MANY | messages one behind the other |
| PUT_EACH | messages one behind the other, each put for itself |
| CALL | size of a JSON list (4 bytes), the list: name and arguments, then messages |
| RESULT | the result of a put: a row of numbers, the store's host, the reason |
| RESULTS | the results of PUT_EACH: see `_packing_cy.py` |
| VALUE | JSON |
| ERROR | JSON: name of the type and its arguments |
| HANDED | messages that a put hands to a poll that waits: for each its physical offset and its queue's turn (8 bytes each) |

`_packing_cy.py` has the bytes of messages and of results.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from commitlog import Message, decode_properties
from storageio import InvalidMessage, UnsupportedFormat
from storageio.local_sockets import LocalSocket

from ..property_names import UNIQUE_KEY
from ._packing_cy import BadFrame, unpack_messages

VERSION = 1
FRAME_MAX = 64 << 20
BATCH_BYTES = 32 << 20  # of messages in one frame, unless one alone is larger
RECEIVE_BYTES = 1 << 16  # of a connection's buffer; a larger frame gets a buffer of its own
HEADER = struct.Struct(">IBBH")
COUNT = struct.Struct(">I")
HANDED_ROW = struct.Struct(">qq")


class Operation(IntEnum):
    """What a frame is."""

    HELLO = 1
    PUT = 2
    PUT_MANY = 3
    CALL = 4
    PUT_EACH = 5
    RESULT = 16
    VALUE = 17
    ERROR = 18
    RESULTS = 19
    HANDED = 20


AGAIN, NO_CHECK = 1, 2  # flags: an owner before may have answered the request already; `check=False`
WATCH = 1  # flag of HELLO: the connection ends with the process


class Frame(NamedTuple):
    """One request or answer."""

    operation: int
    flags: int
    payload: bytes


def pack_frame(operation: Operation, payload: bytes, flags: int = 0) -> bytes:
    """Return the bytes of a frame. Raises `InvalidMessage` for one that is too large."""
    if len(payload) > FRAME_MAX:
        raise InvalidMessage(f"a request of {len(payload)} bytes: at most {FRAME_MAX}")
    return HEADER.pack(len(payload), VERSION, operation, flags) + payload


def marked_again(data: bytes) -> bytes:
    """Return a request with the flag AGAIN."""
    size, version, operation, flags = HEADER.unpack_from(data)
    return HEADER.pack(size, version, operation, flags | AGAIN) + data[HEADER.size :]


def parse_frame(data: bytes) -> Frame:
    """Return the frame of complete bytes."""
    _, _, operation, flags = HEADER.unpack_from(data)
    return Frame(operation, flags, data[HEADER.size :])


class FrameReader:
    """Splits what a connection receives into frames. It keeps its buffer: a new one for each call costs more than the call."""

    def __init__(self, connection: LocalSocket) -> None:
        """Read from a connection."""
        self._connection = connection
        self._view = memoryview(bytearray(RECEIVE_BYTES))
        self._end = 0  # of what was received and not taken, from the beginning of the buffer

    def read(self) -> list[Frame]:
        """Return all whole frames that have arrived; wait for the first. Raises `PeerGone` at the end."""
        while not (found := self._taken()):
            self._end += self._connection.receive_into(self._view[self._end :])
        return found

    def _taken(self) -> list[Frame]:
        found = []
        at, end, view = 0, self._end, self._view
        requested = RECEIVE_BYTES
        while end - at >= HEADER.size:
            size, version, operation, flags = HEADER.unpack_from(view, at)
            if version != VERSION:
                raise UnsupportedFormat("protocol version", file="owner.socket", found=version, supported=str(VERSION))
            if size > FRAME_MAX:
                raise BadFrame(f"a frame of {size} bytes: at most {FRAME_MAX}")
            stop = at + HEADER.size + size
            if end < stop:
                requested = max(requested, stop - at)
                break
            found.append(Frame(operation, flags, bytes(view[at + HEADER.size : stop])))
            at = stop
        if at or requested > len(view):
            self._keep(at, requested)
        return found

    def _keep(self, start: int, size_bytes: int) -> None:
        """Move the begin of a frame to the front of a buffer that holds all of it."""
        before, rest = self._view, self._end - start
        if size_bytes != len(before):
            self._view = memoryview(bytearray(size_bytes))
        if rest:
            self._view[:rest] = before[start : self._end]
        self._end = rest


# Messages


def batches(packed: list[bytes], count_max: int, bytes_max: int) -> Iterator[list[bytes]]:
    """Yield packed messages in lists of so many at most, which fit a frame."""
    batch: list[bytes] = []
    size = 0
    for item in packed:
        if batch and (size + len(item) > bytes_max or len(batch) == count_max):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item)
    if batch:
        yield batch


def unique_key_of(message: Message) -> str:
    """Return the UNIQ_KEY that `pack_message` gave a message."""
    raw = message.properties_raw
    pairs = decode_properties(raw) if raw is not None else message.properties or {}
    return pairs[UNIQUE_KEY]


# Calls


def pack_call(name: str, *arguments: Any, messages: bytes = b"", flags: int = 0) -> bytes:
    """Return the request to call one of the service's methods."""
    listed = json.dumps([name, *arguments]).encode()
    return pack_frame(Operation.CALL, COUNT.pack(len(listed)) + listed + messages, flags)


def unpack_call(payload: bytes) -> tuple[str, list[Any], list[Message]]:
    """Return name, arguments and messages of a call. Raises `BadFrame`."""
    try:
        end = COUNT.size + COUNT.unpack_from(payload)[0]
        name, *arguments = json.loads(payload[COUNT.size : end])
    except (struct.error, ValueError, TypeError) as error:
        raise BadFrame(f"no call: {error}") from error
    return str(name), arguments, unpack_messages(payload, end)
