"""A message of a quorum queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storageio import StoreCorrupt, UnsupportedFormat

from ..format.amqp10 import Special, Symbol
from ..format.amqp10_message import read_sections, to_content
from ..format.container import CONTAINER
from ..format.content import Content, content_of
from ..format.terms import FALSE, Atom
from ..read.stored_message import StoredMessage
from .machine import Message, MessageInfo

READY, CHECKED_OUT, DEAD_LETTERED = "ready", "checked_out", "dead_lettered"
_BODY_FIELD = {("e", 4): 2, ("enqueue", 4): 3, ("requeue", 6): 5}
_AMQP_1_0, _STORED_FORM = "mc_amqp", "v1"
_US_A_MS = 1000
_NO_ID = b""


@dataclass(frozen=True)
class QuorumMessage(StoredMessage):
    """A message with the index of its entry as `seq_id`.

    `state` is ready, checked_out or dead_lettered (waiting for at-least-once dead-lettering, with its `reason`).
    `acquired_count` counts deliveries that ended in a return, `delivery_count` only those that failed.
    """

    state: str
    consumer: str
    acquired_count: int
    delivery_count: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the object that the tool prints; scripts depend on its keys."""
        names = ("state", "consumer", "acquired_count", "delivery_count", "reason")
        return super().to_json() | {name: getattr(self, name) for name in names}


def message_term(command: Any) -> Any:
    """Return the message in a command; None for a command without one."""
    if not isinstance(command, tuple) or not command or not isinstance(command[0], str):
        return None
    at = _BODY_FIELD.get((str(command[0]), len(command)))
    return None if at is None else command[at]


def read_content(term: Any, vhost: str, file: str, base: int) -> Content:
    """Return the content of a message term, of AMQP 0-9-1 or 1.0; raise `StoreCorrupt` or `UnsupportedFormat`."""
    if _is_container(term) and term[1] == _AMQP_1_0:
        return _amqp_1_0(term, vhost, file, base)
    return content_of(term, file=file, base=base, needs_id=False)._replace(vhost=vhost, msg_id=_NO_ID)


def _is_container(term: Any) -> bool:
    return isinstance(term, tuple) and len(term) == 4 and term[0] == CONTAINER and isinstance(term[3], dict)


def _amqp_1_0(term: Any, vhost: str, file: str, base: int) -> Content:
    """Read the stored form of a message that was received by AMQP 1.0."""
    data, annotations = term[2], term[3]
    if not isinstance(data, tuple) or not data or data[0] != _STORED_FORM or len(data) < 3:
        found = str(data[0]) if isinstance(data, tuple) and data else "no record"
        raise UnsupportedFormat("form of an AMQP 1.0 message", file=file, offset=base, found=found, supported=_STORED_FORM)
    encoded = next((part for part in data[2:] if isinstance(part, bytes)), None)
    if encoded is None:
        raise StoreCorrupt("not a message", file=file, offset=base, expected="sections", found=repr(data)[:60])
    sections = read_sections(encoded, file=file, base=base)
    sections.annotations |= _annotations(data[1])
    content = to_content(sections, vhost)
    keys, exchange, identity = (annotations.get(Atom(name)) for name in ("rk", "x", "id"))
    return content._replace(
        exchange=_text(exchange),
        routing_keys=tuple(map(_text, keys)) if isinstance(keys, list) else (),
        msg_id=identity if isinstance(identity, bytes) else _NO_ID,
        persistent=annotations.get(Atom("d")) != FALSE,
    )


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else ""


def _annotations(term: Any) -> dict[Any, Any]:
    """Return message annotations, which the record has as a list of tagged pairs."""
    found: dict[Any, Any] = {}
    for row in term if isinstance(term, list) else []:
        if isinstance(row, tuple) and len(row) == 2 and isinstance(row[0], tuple) and len(row[0]) == 2:
            kind, value = row[1] if isinstance(row[1], tuple) and len(row[1]) == 2 else ("", row[1])
            if kind == "timestamp":
                value = Special("timestamp", value)
            elif isinstance(value, bytes) and kind in ("utf8", "symbol"):
                value = _text(value)
            elif isinstance(value, Atom):
                value = {"true": True, "false": False}.get(value)
            found[Symbol(_text(row[0][1]))] = value
    return found


def info_of(command: Any) -> MessageInfo:
    """Return what the queue machine needs of an enqueued message."""
    term = message_term(command)
    annotations = term[3] if _is_container(term) else {}
    size = command[3][1] if isinstance(command, tuple) and len(command) == 4 and isinstance(command[3], tuple) else None
    ttl, priority, count = (annotations.get(Atom(name)) for name in ("ttl", "p", "delivery_count"))
    return MessageInfo(
        size if isinstance(size, int) else _body_size(term),
        ttl if isinstance(ttl, int) else None,
        priority if isinstance(priority, int) else 0,
        count if isinstance(count, int) else 0,
    )


def _body_size(term: Any) -> int:
    """Return the size of the body of an old enqueue command, which does not carry it."""
    try:
        return len(read_content(term, "", "", 0).body) if term is not None else 0
    except (StoreCorrupt, UnsupportedFormat):
        return 0


def to_message(
    message: Message, content: Content, queue: str, where: tuple[str, int], state: str, detail: str = ""
) -> QuorumMessage:
    """Join the state of a message and its content; `detail` is the consumer's tag or the reason."""
    return QuorumMessage(
        queue=queue,
        priority=None,
        seq_id=message.index,
        persistent=content.persistent,
        acked=False,
        redelivered=message.acquired + message.delivery_count > 0 or state == CHECKED_OUT,
        expiry_us=(message.expiry_ms or 0) * _US_A_MS,
        size=len(content.body),
        embedded=True,
        file=where[0],
        offset=where[1],
        content=content,
        state=state,
        consumer=detail if state == CHECKED_OUT else "",
        acquired_count=message.acquired,
        delivery_count=message.delivery_count,
        reason=detail if state == DEAD_LETTERED else "",
    )
