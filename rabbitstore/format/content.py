"""The stored message: the `basic_message` term of 3.10 (docs/formats/rabbitmq-terms.md) or the container of 3.13 and later."""

from __future__ import annotations

from typing import Any

from storageio import InvalidMessage, StoreCorrupt, UnsupportedFormat, random_bytes

from . import properties as blocks
from .container import CONTAINER, read_amqp_0_9_1, read_container
from .content_cy import NAME, check_msg_id, encode_parts, split_container, split_term
from .layout import MSG_ID_SIZE
from .message import Content
from .terms import FALSE, TRUE, Atom, Term, is_damaged_name
from .terms_cy import decode


class HasContent:
    """The fields of `content` as attributes."""

    content: Content
    _properties: dict[str, Any] | None = None

    @property
    def vhost(self) -> str:
        """The name of the virtual host in the message."""
        return self.content.vhost

    @property
    def msg_id(self) -> bytes:
        """The id: 16 opaque bytes."""
        return self.content.msg_id

    @property
    def exchange(self) -> str:
        """The name of the exchange; empty for the default exchange."""
        return self.content.exchange

    @property
    def routing_keys(self) -> tuple[str, ...]:
        """The routing keys; CC and BCC headers add to the first."""
        return self.content.routing_keys

    @property
    def body(self) -> bytes:
        """The payload of the message."""
        return self.content.body

    @property
    def properties(self) -> dict[str, Any]:
        """The AMQP properties that are set, by name, decoded once.  Raises `StoreCorrupt` when the block is damaged.

        Not a `cached_property`: the first access to one of an object yields the processor forty times in CPython 3.13t.
        """
        found = self._properties
        if found is None:
            found = blocks.decode(self.content.properties_bin)
            object.__setattr__(self, "_properties", found)  # a class may be frozen
        return found


def new_msg_id() -> bytes:
    """Return a new message id: random bytes without a meaning."""
    return random_bytes(MSG_ID_SIZE)


def encode_content(content: Content) -> bytes:
    """Encode the term with the bytes that RabbitMQ writes."""
    check_msg_id(content.msg_id)
    return encode_parts(*content)


def decode_content(term: bytes, *, file: str = "", base: int = 0, vhost: str = "") -> Content:
    """Decode the message of a term; errors name `file` and the offset `base` of the term in it.

    `vhost` is the virtual host of a message container, whose term does not have its name.

    Raise `StoreCorrupt` for damaged bytes, `UnsupportedFormat` for a whole term of another kind.
    """
    parts = split_container(term, vhost)
    if parts is None:
        parts = split_term(term)
    if parts is not None:
        return tuple.__new__(Content, parts)  # faster than `Content(*parts)`
    content = content_of(decode(term, file=file, base=base), file=file, base=base)
    return content if content.vhost else content._replace(vhost=vhost)


def content_of(found: Term, *, file: str = "", base: int = 0, needs_id: bool = True) -> Content:
    """Return the message of a decoded term; raise the same errors."""
    _refuse_unknown(found, file, base)
    try:
        is_container = _name(found) == CONTAINER
        content = read_container(found, file, base, needs_id=needs_id) if is_container else _content(found, file, base)
    except (ValueError, TypeError, AttributeError, LookupError, InvalidMessage) as error:
        text = repr(found)[:80]
        raise StoreCorrupt("not a message", file=file, offset=base, expected="a message", found=text) from error
    return content


def _name(term: Term) -> str:
    """Return the name of a record; an empty one for any other term."""
    name = term[0] if isinstance(term, tuple) and term else None
    return str(name) if isinstance(name, Atom) else ""


def _refuse_unknown(term: Term, file: str, base: int) -> None:
    """Raise `UnsupportedFormat` for a record of another name or number of fields."""
    name = _name(term)
    if isinstance(term, tuple) and (name, len(term)) in _SHAPES:
        return
    if not name or not isinstance(term, tuple) or is_damaged_name(name, NAME) or _is_damaged_container(name, len(term)):
        return
    found = f"{name} of {len(term)} fields"
    raise UnsupportedFormat("message term", file=file, offset=base, found=found, supported="basic_message of 6, mc of 4")


def _is_damaged_container(name: str, size: int) -> bool:
    """Return whether one bit of the short name of a message container differs."""
    if len(name) != len(CONTAINER) or size != _CONTAINER_SIZE:
        return False
    return sum((ord(one) ^ ord(known)).bit_count() for one, known in zip(name, CONTAINER, strict=True)) == 1


_CONTAINER_SIZE = 4
_SHAPES = ((NAME, 6), (CONTAINER, _CONTAINER_SIZE))


def is_message(term: bytes, msg_id: bytes) -> bool:
    """Return whether a term is a whole message of this id.

    True for a message of an unsupported format: it is whole, and nothing here can read its id.
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


def _content(term: Any, file: str, base: int) -> Content:
    """Convert a `basic_message`; raise `ValueError`, `TypeError` or `AttributeError` for another form."""
    name, resource, keys, content, msg_id, persistent = term
    _resource, vhost, _exchange, exchange = resource
    if name != NAME or persistent not in (TRUE, FALSE) or len(msg_id) != MSG_ID_SIZE:
        raise ValueError("another record")
    properties_bin, body = read_amqp_0_9_1(content, file, base)
    return Content(
        vhost.decode("utf-8", "replace"),
        exchange.decode("utf-8", "replace"),
        tuple(key.decode("utf-8", "surrogateescape") for key in keys),
        properties_bin,
        body,
        msg_id,
        persistent == TRUE,
    )
