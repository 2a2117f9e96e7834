"""A message as the files of a folder have it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, ClassVar

from storageio import StoreCorrupt
from storebytes.finding import Finding, finding_of

from ..format import properties as blocks
from ..format.content import HasContent
from ..format.message import Content


@dataclass(unsafe_hash=True)  # not frozen: making a frozen one of so many fields takes longer than reading the message
class RabbitMessage(HasContent):
    """A message with its position in a queue.

    `seq_id` is its number in the queue, `redelivered` the flag with which a broker started on this folder delivers it.
    `expiry_us` is absolute (microseconds since 1970), 0 for none; `size` is the body's in bytes.  `file` (relative to the
    virtual host's folder) and `offset` locate the record in a store, or the index entry that embeds the message.
    `priority` is None for an ordinary queue.
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

    MORE: ClassVar[tuple[str, ...]] = ()

    def more(self) -> tuple[Any, ...]:
        """Return the values of `MORE`, the keys that only messages of this kind of queue have in JSON."""
        return ()

    def problem(self, error: StoreCorrupt, kind: str) -> Finding:
        """Return the problem that an error in a part of the message describes, at the place of the message."""
        return finding_of(error, kind)._replace(file=self.file, offset=self.offset)

    def to_json(self) -> dict[str, Any]:
        """Return the object that the tool prints; scripts depend on its keys.  `json_cy.LineWriter` writes the same."""
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
            **dict(zip(self.MORE, self.more(), strict=True)),
        }
