"""Decode a batch as RocketMQ clients send it (`docs/formats/put-rules.md#wire-batch`).

offset  size  field            of each member
0       4     total            whole member
4       4     magic            0
8       4     body_crc         0
12      4     flag
16      4     body_size        then the body
...     2     properties_size  then the properties
"""

from __future__ import annotations

from typing import Any

from commitlog import Message

from ._wire_batch_cy import decode_members

MEMBERS_MAX = 1 << 20


def decode_wire_batch(topic: str, queue_id: int, data: bytes, batch_properties: bytes, **fields: Any) -> list[Message]:
    """Return the messages of a batch, each with the batch's properties after its own. Raises `InvalidMessage`."""
    raw = data if isinstance(data, bytes) else bytes(memoryview(data))  # of a number, bytes() makes that many zeros
    return decode_members(topic, queue_id, raw, batch_properties, fields, MEMBERS_MAX)
