"""A message of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..format.amqp10 import Symbol
from ..format.amqp10_message import FILTER_VALUE, to_content, try_sections
from ..format.message import Content
from ..format.properties import encode
from ..read.stored_message import StoredMessage
from .chunk import Chunk, Record

_NO_PROPERTIES = encode({})


@dataclass(unsafe_hash=True)
class StreamMessage(StoredMessage):
    """A message with its offset as `seq_id`; `timestamp_ms` and `epoch` are those of its chunk.

    A message of a client of the stream protocol has the stream's name as routing key.  `raw` has the
    bytes as stored.  If they are not AMQP 1.0, they are the body, because a client may store anything.
    """

    timestamp_ms: int
    epoch: int
    filter_value: str | None
    raw: bytes

    def more_keys(self) -> dict[str, Any]:
        """Return the fields that only a stream has."""
        return {"timestamp_ms": self.timestamp_ms, "epoch": self.epoch, "filter_value": self.filter_value}


def to_message(record: Record, chunk: Chunk, queue: str, vhost: str, file: str) -> StreamMessage:
    """Convert a record of a chunk."""
    sections = try_sections(record.data)
    value = sections.annotations.get(Symbol(FILTER_VALUE)) if sections is not None else None
    if sections is not None:
        content = to_content(sections, vhost)
        content = content if content.routing_keys else content._replace(routing_keys=(queue,))
    else:
        content = Content(vhost, "", (queue,), _NO_PROPERTIES, record.data, b"", True)
    return StreamMessage(
        queue=queue,
        priority=None,
        seq_id=record.offset,
        persistent=True,
        acked=False,
        redelivered=False,
        expiry_us=0,
        size=len(content.body),
        embedded=False,
        file=file,
        offset=record.position,
        content=content,
        timestamp_ms=chunk.timestamp_ms,
        epoch=chunk.epoch,
        filter_value=value if isinstance(value, str) else None,
        raw=record.data,
    )
