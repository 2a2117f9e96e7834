"""Decode the members of a batch as RocketMQ's clients send it; `wire_batch.py` has the layout."""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from commitlog._message_cy import Message
from storageio import InvalidMessage

if not cython.compiled:
    from storebytes._bytes_cy import I32, Size, Source, get_i16, get_i32, source_of_bytes

HEAD_SIZE = 20  # total, magic, checksum, flag, body's size
MEMBER_SIZE_MIN = 22


def decode_members(
    topic: str, queue_id: int, data: bytes, batch_properties: bytes, fields: dict[str, Any], members_max: int
) -> list[Message]:
    """Return the messages of a batch, each with the batch's properties after its own.  Raises `InvalidMessage`.

    Every length is checked before it is used.
    """
    source: Source = source_of_bytes(data)
    end: Size = len(data)
    at: Size = 0
    messages: list[Message] = []
    while at < end:
        left: Size = end - at
        if left < MEMBER_SIZE_MIN:
            raise InvalidMessage(f"batch member at {at}: {left} bytes are none")
        total: Size = get_i32(source, at)
        flag: I32 = get_i32(source, at + 12)
        body_size: Size = get_i32(source, at + 16)
        if total < MEMBER_SIZE_MIN or total > left or body_size < 0 or body_size > total - MEMBER_SIZE_MIN:
            raise InvalidMessage(f"batch member at {at}: sizes {total} and {body_size} in {left} bytes")
        body_at: Size = at + HEAD_SIZE
        raw_size: Size = get_i16(source, body_at + body_size) & 0xFFFF
        if MEMBER_SIZE_MIN + body_size + raw_size != total:
            raise InvalidMessage(f"batch member at {at}: properties of {raw_size} bytes do not end it")
        at += total
        raw: bytes = data[at - raw_size : at]
        if batch_properties:
            if raw_size and raw[raw_size - 1] != 2:
                raw += b"\x02"
            raw += batch_properties
        body: bytes = data[body_at : body_at + body_size]
        messages.append(Message(topic, body, queue_id=queue_id, flag=flag, properties_raw=raw, **fields))
        if len(messages) > members_max:
            raise InvalidMessage(f"a batch of more than {members_max} messages")
    if not messages:
        raise InvalidMessage("no messages")
    return messages
