"""Encodings of a record as one value of bytes, and functions that read all of it again."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from .own_store import TAGS


def packed(key: bytes, body: bytes) -> bytes:
    """Encode a key and a body as one value."""
    return struct.pack(">H", len(key)) + key + body


def opened(value: bytes) -> int:
    """Decode key and body; return their total length."""
    size = struct.unpack_from(">H", value)[0]
    return len(value[2 : 2 + size]) + len(value[2 + size :])


class Codec(NamedTuple):
    """An encoding: `pack(number, key, body)`, and `opened(value)`, which reads everything in it."""

    pack: Callable[[int, bytes, bytes], bytes]
    opened: Callable[[bytes], int]


PAIR = Codec(lambda _number, key, body: packed(key, body), opened)


def whole_messages() -> Codec:
    """Return the fastest general encoding of a whole message."""
    import msgspec

    fields = [("body", bytes), ("topic", str), ("tags", str), ("keys", list[bytes]), ("properties", dict[str, str])]
    whole = msgspec.defstruct("Whole", fields, array_like=True, gc=False)
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(whole).decode

    def read(value: bytes) -> int:
        message = decode(value)
        size = len(message.body) + len(message.topic) + len(message.tags)  # type: ignore[attr-defined]
        return size + len(message.keys) + len(message.properties)  # type: ignore[attr-defined]

    return Codec(lambda number, key, body: encode(whole(body, "T", TAGS[number & 3], [key], {})), read)


def messages_with_properties() -> Codec:
    """Return the same with tags and keys as properties, as in RocketMQ."""
    import msgspec

    fields = [("body", bytes), ("topic", str), ("properties", dict[str, str])]
    kind = msgspec.defstruct("WithProperties", fields, array_like=True, gc=False)
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode

    def read(value: bytes) -> int:
        message = decode(value)
        properties = message.properties  # type: ignore[attr-defined]
        size = len(message.body) + len(message.topic)  # type: ignore[attr-defined]
        return size + len(properties["TAGS"]) + len([properties["KEYS"]]) + len(properties)

    def pack(number: int, key: bytes, body: bytes) -> bytes:
        return encode(kind(body, "T", {"KEYS": key.decode(), "TAGS": TAGS[number & 3]}))

    return Codec(pack, read)
