"""What a stored message is made of: the `basic_message` term of 3.10, or the container of 3.13 and later (`container`).

See docs/formats/rabbitmq-terms.md and docs/formats/rabbitmq-4.md.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from storageio import InvalidMessage, StoreCorrupt, UnsupportedFormat, random_bytes

from . import properties as blocks
from .container import CONTAINER, read_container
from .content_cy import CLASS_ID, NAME, encode_parts, split_term
from .terms import FALSE, TRUE, Atom, Term, decode, is_damaged_name


class Content(NamedTuple):
    """One message without its place in a queue.

    `properties_bin` is the AMQP property block as it came over the wire (`rabbitstore.properties` decodes it).
    """

    vhost: str
    exchange: str
    routing_keys: tuple[str, ...]
    properties_bin: bytes
    body: bytes
    msg_id: bytes
    persistent: bool


class OfContent:
    """What a message says of itself, for everything that has its `content`."""

    content: Content

    @property
    def vhost(self) -> str:
        """As the message says."""
        return self.content.vhost

    @property
    def msg_id(self) -> bytes:
        """16 opaque bytes."""
        return self.content.msg_id

    @property
    def exchange(self) -> str:
        """What it was published to; empty for the default exchange."""
        return self.content.exchange

    @property
    def routing_keys(self) -> tuple[str, ...]:
        """Several when CC or BCC headers were used."""
        return self.content.routing_keys

    @property
    def body(self) -> bytes:
        """The payload."""
        return self.content.body

    @cached_property
    def properties(self) -> dict[str, Any]:
        """AMQP's, by name; absent ones are not in it.  `StoreCorrupt` when the block is damaged."""
        return blocks.decode(self.content.properties_bin)


def new_msg_id() -> bytes:
    """16 opaque bytes; nothing is ever read out of them."""
    return random_bytes(16)


def encode_content(content: Content) -> bytes:
    """The term, byte-equal to RabbitMQ's."""
    if len(content.msg_id) != 16:
        raise InvalidMessage(f"a message id has 16 bytes, not {len(content.msg_id)}")
    return encode_parts(*content)


def decode_content(term: bytes, *, file: str = "", base: int = 0) -> Content:
    """Return the message of a term; `file` and `base` (offset of the term in it) go into the errors.

    `StoreCorrupt` when the bytes are damaged, `UnsupportedFormat` when they are a whole term of another kind.
    """
    parts = split_term(term)
    if parts is not None:
        return tuple.__new__(Content, parts)  # without the check of their number, which is right
    found = decode(term, file=file, base=base)
    _refuse_unknown(found, file, base)
    try:
        content = Content(*read_container(found, file, base)) if _name(found) == CONTAINER else _content(found)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        text = repr(found)[:80]
        raise StoreCorrupt("not a message", file=file, offset=base, expected="a message", found=text) from error
    return content


def _name(term: Term) -> str:
    """Return the name of a record; an empty one for a term of another shape."""
    name = term[0] if isinstance(term, tuple) and term else None
    return str(name) if isinstance(name, Atom) else ""


def _refuse_unknown(term: Term, file: str, base: int) -> None:
    """Raise `UnsupportedFormat` for a whole term that is a record of another name or number of fields."""
    name = _name(term)
    if not name or not isinstance(term, tuple) or is_damaged_name(name, NAME):
        return
    if (name, len(term)) not in _SHAPES:
        found = f"{name} of {len(term)} fields"
        raise UnsupportedFormat("message term", file=file, offset=base, found=found, supported="basic_message of 6, mc of 4")


_SHAPES = ((NAME, 6), (CONTAINER, 4))


def is_message(term: bytes, msg_id: bytes) -> bool:
    """Whether a term is a whole message of this id; not when a crash tore it.

    True for a message of an unsupported format: it is whole, and its id cannot be told.
    """
    parts = split_term(term)
    if parts is None:
        try:
            parts = decode_content(term)
        except UnsupportedFormat:
            return True
        except StoreCorrupt:
            return False
    return bool(parts[5] == msg_id)


def _content(term: Any) -> Content:
    """`ValueError`, `TypeError` or `AttributeError` when the shape is another."""
    name, resource, keys, content, msg_id, persistent = term
    _resource, vhost, _exchange, exchange = resource
    _content_name, class_id, _decoded, properties_bin, _protocol, parts = content
    if name != NAME or class_id != CLASS_ID or persistent not in (TRUE, FALSE):
        raise ValueError("another record")
    if len(msg_id) != 16 or not isinstance(properties_bin, bytes) or isinstance(properties_bin, Atom):
        raise ValueError("another record")
    return Content(
        vhost.decode("utf-8", "replace"),
        exchange.decode("utf-8", "replace"),
        tuple(key.decode("utf-8", "surrogateescape") for key in keys),
        properties_bin,
        b"".join(reversed(parts)),
        msg_id,
        persistent == TRUE,
    )
