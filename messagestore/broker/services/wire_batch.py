"""Encode and decode a batch as RocketMQ clients send it (`docs/formats/put-rules.md#wire-batch`).

offset  size  field            of each member
0       4     total            whole member
4       4     magic            0
8       4     body_crc         0
12      4     flag
16      4     body_size        then the body
...     2     properties_size  then the properties
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from commitlog import Message, encode_properties
from storageio import InvalidMessage

HEAD = struct.Struct(">iiiii")
PROPERTIES_SIZE = struct.Struct(">H")
MEMBERS_MAX = 1 << 20


def encode_wire_batch(messages: Sequence[Message]) -> bytes:
    """Return the encoded members, one after the other."""
    parts = []
    for message in messages:
        raw = encode_properties(message)
        total = HEAD.size + len(message.body) + PROPERTIES_SIZE.size + len(raw)
        parts += [HEAD.pack(total, 0, 0, message.flag, len(message.body)), message.body, PROPERTIES_SIZE.pack(len(raw)), raw]
    return b"".join(parts)


def decode_wire_batch(topic: str, queue_id: int, data: bytes, batch_properties: bytes, **fields: Any) -> list[Message]:
    """Return the messages of a batch, each with the batch's properties after its own. Raises `InvalidMessage`."""
    messages: list[Message] = []
    at = 0
    while at < len(data):
        flag, body, raw, size = _member(data, at)
        if raw and batch_properties and not raw.endswith(b"\x02"):
            raw += b"\x02"
        whole = raw + batch_properties
        messages.append(Message(topic, body, queue_id=queue_id, flag=flag, properties_raw=whole, **fields))
        at += size
        if len(messages) > MEMBERS_MAX:
            raise InvalidMessage(f"a batch of more than {MEMBERS_MAX} messages")
    if not messages:
        raise InvalidMessage("no messages")
    return messages


def _member(data: bytes, at: int) -> tuple[int, bytes, bytes, int]:
    """Return (flag, body, properties, size) of the member at an offset; every length is checked before it is used."""
    left = len(data) - at
    if left < HEAD.size + PROPERTIES_SIZE.size:
        raise InvalidMessage(f"batch member at {at}: {left} bytes are none")
    total, _, _, flag, body_size = HEAD.unpack_from(data, at)
    if not HEAD.size + PROPERTIES_SIZE.size <= total <= left or not 0 <= body_size <= total - HEAD.size - PROPERTIES_SIZE.size:
        raise InvalidMessage(f"batch member at {at}: sizes {total} and {body_size} in {left} bytes")
    body_at = at + HEAD.size
    (properties_size,) = PROPERTIES_SIZE.unpack_from(data, body_at + body_size)
    if HEAD.size + body_size + PROPERTIES_SIZE.size + properties_size != total:
        raise InvalidMessage(f"batch member at {at}: properties of {properties_size} bytes do not end it")
    end = at + total
    return flag, data[body_at : body_at + body_size], data[end - properties_size : end], total
