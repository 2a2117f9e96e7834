"""A message of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..format.amqp10 import Symbol
from ..format.amqp10_cy import Converter
from ..format.amqp10_message import FILTER_VALUE, to_content, try_sections
from ..format.message import Content
from ..format.properties import encode
from ..read.stored_message import RabbitMessage
from .chunk import Chunk
from .records_cy import StreamRecord

_NO_PROPERTIES = encode({})


@dataclass(unsafe_hash=True)
class StreamMessage(RabbitMessage):
    """A message with its offset as `seq_id`; `timestamp_ms` and `epoch` are those of its chunk.

    A message of a client of the stream protocol has the stream's name as routing key.  `raw` has the
    bytes as stored.  If they are not AMQP 1.0, they are the body, because a client may store anything.
    """

    timestamp_ms: int
    epoch: int
    filter_value: str | None
    raw: bytes

    MORE: ClassVar = ("timestamp_ms", "epoch", "filter_value")

    def more(self) -> tuple[Any, ...]:
        """Return the fields that only a stream has."""
        return self.timestamp_ms, self.epoch, self.filter_value


def to_message(record: StreamRecord, chunk: Chunk, queue: str, vhost: str, file: str, converter: Converter) -> StreamMessage:
    """Convert a record of a chunk; the converter may be used for one message after another."""
    found = converter.convert(record.data)
    if found is not None:
        exchange, keys, block, body, is_durable, filter_value = found
        content = Content(vhost, exchange, keys or (queue,), block, body, b"", is_durable)
    else:
        content, filter_value = _decoded(record.data, queue, vhost)
    return StreamMessage(  # in the order of the fields: a call by name takes three times as long
        queue, None, record.offset, True, False, False, 0, len(content.body), False, file, record.position, content,
        chunk.timestamp_ms, chunk.epoch, filter_value, record.data,
    )  # fmt: skip


def _decoded(data: bytes, queue: str, vhost: str) -> tuple[Content, str | None]:
    """Return the message and its filter value."""
    sections = try_sections(data)
    if sections is None:
        return Content(vhost, "", (queue,), _NO_PROPERTIES, data, b"", True), None
    content = to_content(sections, vhost)
    value = sections.annotations.get(Symbol(FILTER_VALUE))
    found = content if content.routing_keys else content._replace(routing_keys=(queue,))
    return found, value if isinstance(value, str) else None
