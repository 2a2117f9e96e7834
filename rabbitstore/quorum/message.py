"""A message of a quorum queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat

from ..format.container import CONTAINER
from ..format.content import content_of
from ..format.message import Content
from ..format.terms import Atom
from ..read.stored_message import RabbitMessage
from .command_cy import CommandReader
from .machine_parts import MessageInfo
from .messages import QuorumContent

READY, CHECKED_OUT, DEAD_LETTERED = "ready", "checked_out", "dead_lettered"
BODY_FIELD = {("e", 4): 2, ("enqueue", 4): 3, ("requeue", 6): 5}
_US_A_MS = 1000
_NO_ID = b""
_EXPIRATION = 8  # in the record of AMQP 0-9-1's properties


class Located(NamedTuple):
    """A message in a queue, with the consumer that holds it, and why it is dead-lettered or a start would drop it."""

    message: QuorumContent
    state: str
    consumer: str
    reason: str


@dataclass(unsafe_hash=True)
class QuorumMessage(RabbitMessage):
    """A message with the index of its entry as `seq_id`.

    `state` is ready, checked_out or dead_lettered (waiting for at-least-once dead-lettering).  `reason` is why it was
    dead-lettered, or why the next start of the server drops it.
    `acquired_count` counts deliveries that ended in a return, `delivery_count` only those that failed.
    """

    state: str
    consumer: str
    acquired_count: int
    delivery_count: int
    reason: str

    MORE: ClassVar = ("state", "consumer", "acquired_count", "delivery_count", "reason")

    def more(self) -> tuple[Any, ...]:
        """Return the fields that only a quorum queue has."""
        return self.state, self.consumer, self.acquired_count, self.delivery_count, self.reason


def message_term(command: Any) -> Any:
    """Return the message in a command; None for a command without one."""
    if not isinstance(command, tuple) or not command or not isinstance(command[0], str):
        return None
    at = BODY_FIELD.get((str(command[0]), len(command)))
    return None if at is None else command[at]


def read_content(term: Any, vhost: str, file: str, base: int) -> Content:
    """Return the content of a message term of any protocol; raise `StoreCorrupt` or `UnsupportedFormat`."""
    return content_of(term, file=file, base=base, needs_id=False)._replace(vhost=vhost, msg_id=_NO_ID)


def _is_container(term: Any) -> bool:
    return isinstance(term, tuple) and len(term) == 4 and term[0] == CONTAINER and isinstance(term[3], dict)


def _expiration(term: Any) -> int | None:
    """Return the time to live in a basic message in milliseconds: the queue has decoded the properties if there is one."""
    properties = term[3][2] if _is_basic(term) else None
    text = properties[_EXPIRATION] if isinstance(properties, tuple) and len(properties) > _EXPIRATION else None
    return int(text) if isinstance(text, bytes) and text.isdigit() else None


def _is_basic(term: Any) -> bool:
    return isinstance(term, tuple) and len(term) > 3 and term[0] == "basic_message" and isinstance(term[3], tuple)


def info_of(command: Any) -> MessageInfo:
    """Return what the queue machine needs of an enqueued message."""
    term = message_term(command)
    annotations = term[3] if _is_container(term) else {}
    given = command[3] if isinstance(command, tuple) and len(command) == 4 else None
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(size, int) for size in given):
        properties_size, size = given
    else:
        properties_size, size = _sizes(term)
    ttl, priority, count = (annotations.get(Atom(name)) for name in ("ttl", "p", "delivery_count"))
    return MessageInfo(
        size,
        ttl if isinstance(ttl, int) else _expiration(term),
        priority if isinstance(priority, int) else None,
        count if isinstance(count, int) else 0,
        properties_size,
    )


def info_of_command(command: CommandReader) -> MessageInfo:
    """Return `info_of` of the command that a reader has read."""
    return MessageInfo(
        command.size,
        command.ttl_ms if command.ttl_ms >= 0 else None,
        command.priority if command.priority >= 0 else None,
        properties_size=command.properties_size,
    )


def _sizes(term: Any) -> tuple[int, int]:
    """Return the sizes of properties and body in an old enqueue command, which does not carry them."""
    try:
        content = None if term is None else read_content(term, "", "", 0)
    except (StoreCorrupt, UnsupportedFormat):
        content = None
    return (0, 0) if content is None else (len(content.properties_bin), len(content.body))


def to_message(located: Located, content: Content, queue: str, where: tuple[str, int]) -> QuorumMessage:
    """Join the state of a message and its content."""
    message = located.message
    acquired, failed = message.acquired, message.delivery_count
    is_redelivered = acquired + failed > 0 or located.state == CHECKED_OUT
    expiry_us = (message.expiry_ms or 0) * _US_A_MS
    return QuorumMessage(  # in the order of the fields: a call by name takes three times as long
        queue, None, message.index, content.persistent, False, is_redelivered, expiry_us, len(content.body), True, where[0],
        where[1], content, located.state, located.consumer, acquired, failed, located.reason,
    )  # fmt: skip
