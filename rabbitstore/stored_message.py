"""A message as it lies in a folder."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from . import properties as blocks
from .content import Content, OfContent


@dataclass(frozen=True)
class StoredMessage(OfContent):
    """A message with its place in a queue.

    `seq_id` is the queue's number of it; `redelivered` the flag that a broker started on this folder would deliver it with;
    `expiry_us` is absolute (microseconds since 1970), 0 for none; `size` counts the body's bytes; `file` (relative to the
    virtual host's folder) and `offset` say where its bytes are: the record in a store, or the entry that embeds it.
    `priority` is that of its part of a priority queue, None for an ordinary queue.
    """

    queue: str
    priority: int | None
    seq_id: int
    persistent: bool
    acked: bool
    redelivered: bool
    expiry_us: int
    size: int
    embedded: bool
    file: str
    offset: int
    content: Content

    def to_json(self) -> dict[str, Any]:
        """The object that the tool prints, with exactly these keys."""
        return {
            "queue": self.queue,
            "vhost": self.vhost,
            "seq_id": self.seq_id,
            "msg_id": self.msg_id.hex(),
            "persistent": self.persistent,
            "acked": self.acked,
            "redelivered": self.redelivered,
            "expiry_us": self.expiry_us,
            "size": self.size,
            "embedded": self.embedded,
            "file": self.file,
            "offset": self.offset,
            "exchange": self.exchange,
            "routing_keys": [key.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for key in self.routing_keys],
            "properties": blocks.to_json(self.properties),
            "body_base64": base64.b64encode(self.body).decode(),
        }
