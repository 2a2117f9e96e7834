"""The frames between the owner of a store and the other processes.

A frame is a header and a payload. Header: size of the payload (4 bytes), version (1), operation (1), flags (2), all
big-endian. A payload has at most FRAME_MAX bytes. Answers come in the order of the requests.

| Operation | Payload |
|---|---|
| HELLO | id of the process, as text; the first frame of a connection, answered with VALUE |
| PUT | one message |
| PUT_MANY | messages one behind the other |
| CALL | size of a JSON list (4 bytes), the list: name and arguments, then messages |
| RESULT | the result of a put: a row of numbers, the store's host, the reason |
| VALUE | JSON |
| ERROR | JSON: name of the type and its arguments |

A message is a row of numbers (`_FIXED`), the sizes of its texts (4 bytes each), the texts in UTF-8, its encoded properties and
its body. Texts: topic, then tags, hosts, keys, and names and values of properties, as far as the mask has them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from commitlog import Message, decode_properties, encode_properties
from storageio import InvalidMessage, StoreError, UnsupportedFormat
from storageio.local_sockets import LocalSocket

from ..broker.services.names import UNIQUE_KEY
from ..broker.services.putting import with_pairs

VERSION = 1
FRAME_MAX = 64 << 20
BATCH_BYTES = 32 << 20  # of messages in one frame, unless one alone is larger
RECEIVE_BYTES = 1 << 18
TEXTS_MAX = 1 << 16
HEADER = struct.Struct(">IBBH")
COUNT = struct.Struct(">I")
_FIXED = struct.Struct(">iiiiqqHHHII")  # numbers of a message; mask, keys, properties; sizes of raw properties and body


class Operation(IntEnum):
    """What a frame is."""

    HELLO = 1
    PUT = 2
    PUT_MANY = 3
    CALL = 4
    RESULT = 16
    VALUE = 17
    ERROR = 18


AGAIN, NO_CHECK = 1, 2  # flags: an owner before may have answered the request already; `check=False`
WATCH = 1  # flag of HELLO: the connection ends with the process
TAGS, BORN_HOST, STORE_HOST, KEYS, PROPERTIES, RAW = 1, 2, 4, 8, 16, 32  # mask: fields of a message that are not None


class BadFrame(StoreError):
    """Bytes that are no frame of this protocol."""


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
    """Splits what a connection receives into frames."""

    def __init__(self, connection: LocalSocket) -> None:
        """Read from a connection."""
        self._connection = connection
        self._data = bytearray()

    def read(self) -> list[Frame]:
        """Return all whole frames that have arrived; wait for the first. Raises `PeerGone` at the end."""
        while not (found := self._taken()):
            self._data += self._connection.receive(RECEIVE_BYTES)
        return found

    def _taken(self) -> list[Frame]:
        found = []
        at, data = 0, self._data
        while len(data) - at >= HEADER.size:
            size, version, operation, flags = HEADER.unpack_from(data, at)
            if version != VERSION:
                raise UnsupportedFormat("protocol version", file="owner.socket", found=version, supported=str(VERSION))
            if size > FRAME_MAX:
                raise BadFrame(f"a frame of {size} bytes: at most {FRAME_MAX}")
            end = at + HEADER.size + size
            if len(data) < end:
                break
            found.append(Frame(operation, flags, bytes(data[at + HEADER.size : end])))
            at = end
        del data[:at]
        return found


# Messages


def pack_message(message: Message, unique_key: str) -> bytes:
    """Return the bytes of a message, with this UNIQ_KEY unless it has one."""
    try:
        return _pack_message(message, unique_key)
    except (AttributeError, TypeError, UnicodeEncodeError) as error:
        if type(message) is not Message:
            raise TypeError(f"a Message is wanted, not {type(message).__name__}") from error
        encode_properties(message)  # raises what a put in one process does
        raise InvalidMessage(str(error)) from error


def _pack_message(message: Message, unique_key: str) -> bytes:
    mask, texts = 0, [message.topic]
    for bit, text in ((TAGS, message.tags), (BORN_HOST, message.born_host), (STORE_HOST, message.store_host)):
        if text is not None:
            mask |= bit
            texts.append(text)
    keys, properties, raw = message.keys, message.properties, message.properties_raw
    if keys is not None:
        mask |= KEYS
        texts += keys
    if raw is not None:
        mask |= RAW
        if UNIQUE_KEY not in decode_properties(raw):
            raw = with_pairs(raw, {UNIQUE_KEY: unique_key})
    elif properties is None or UNIQUE_KEY not in properties:
        properties = {**(properties or {}), UNIQUE_KEY: unique_key}
    if properties is not None:
        mask |= PROPERTIES
        for pair in properties.items():
            texts += pair
    encoded = [text.encode() for text in texts]
    if len(encoded) > TEXTS_MAX:
        raise InvalidMessage(f"a message with {len(encoded)} keys and properties")
    fixed = _FIXED.pack(
        message.queue_id, message.flag, message.sys_flag, message.reconsume_times, message.born_timestamp_ms,
        message.prepared_transaction_offset, mask, len(keys or ()), len(properties or ()), len(raw or b""), len(message.body),
    )  # fmt: skip
    sizes = struct.pack(f">{len(encoded)}I", *map(len, encoded))
    return b"".join((fixed, sizes, *encoded, raw or b"", message.body))


def unpack_message(data: bytes, at: int) -> tuple[Message, int]:
    """Return the message at a position and where the next one begins. Raises `BadFrame`."""
    try:
        return _unpack_message(data, at)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise BadFrame(f"no message at byte {at} of {len(data)}: {error}") from error


def _unpack_message(data: bytes, at: int) -> tuple[Message, int]:
    row = _FIXED.unpack_from(data, at)
    queue_id, flag, sys_flag, reconsume_times, born_ms, prepared, mask, key_count, pair_count, raw_size, body_size = row
    single = 1 + (mask & (TAGS | BORN_HOST | STORE_HOST)).bit_count()
    count = single + key_count + 2 * pair_count
    sizes = struct.unpack_from(f">{count}I", data, at + _FIXED.size)
    at += _FIXED.size + 4 * count
    if at + sum(sizes) + raw_size + body_size > len(data):
        raise BadFrame(f"a message that ends behind byte {len(data)}")
    texts = []
    for size in sizes:
        texts.append(data[at : at + size].decode())
        at += size
    names = iter(texts)
    topic = next(names)
    tags = next(names) if mask & TAGS else None
    born_host = next(names) if mask & BORN_HOST else None
    store_host = next(names) if mask & STORE_HOST else None
    keys = texts[single : single + key_count] if mask & KEYS else None
    pairs = texts[single + key_count :]
    properties = dict(zip(pairs[::2], pairs[1::2], strict=True)) if mask & PROPERTIES else None
    raw = data[at : at + raw_size] if mask & RAW else None
    at += raw_size
    body = data[at : at + body_size]
    message = Message(
        topic, body, tags, keys, properties, queue_id, flag, sys_flag, born_ms, born_host, store_host, reconsume_times,
        prepared, raw,
    )  # fmt: skip
    return message, at + body_size


def unpack_messages(data: bytes, at: int = 0) -> list[Message]:
    """Return the messages from a position to the end."""
    found = []
    while at < len(data):
        message, at = unpack_message(data, at)
        found.append(message)
    return found


def batches(packed: list[bytes]) -> Iterator[list[bytes]]:
    """Yield packed messages in lists that fit a frame."""
    batch: list[bytes] = []
    size = 0
    for item in packed:
        if batch and size + len(item) > BATCH_BYTES:
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
