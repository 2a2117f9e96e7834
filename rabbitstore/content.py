"""What a stored message is made of: the `basic_message` term (format page, section 2)."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from storageio import InvalidMessage, StoreCorrupt, random_bytes

from .terms import FALSE, NONE, TRUE, Atom, Term, decode, encode

FRAGMENT_SIZE = 131064  # frame_max - 8 as RabbitMQ ships
_CLASS_ID = 60
_PROTOCOL = Atom("rabbit_framing_amqp_0_9_1")
_NAME, _RESOURCE, _EXCHANGE, _CONTENT = Atom("basic_message"), Atom("resource"), Atom("exchange"), Atom("content")


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


def new_msg_id() -> bytes:
    """16 opaque bytes; nothing is ever read out of them."""
    return random_bytes(16)


def _bare(term: Term) -> bytes:
    """A term without the version byte."""
    return encode(term)[1:]


_START = encode((_NAME,))[:1] + b"h\x06" + _bare(_NAME) + b"h\x04" + _bare(_RESOURCE)
_CONTENT_START = b"h\x06" + _bare(_CONTENT) + _bare(_CLASS_ID) + _bare(NONE)
_PROTOCOL_TERM = _bare(_PROTOCOL)
_ENDS = {True: _bare(TRUE), False: _bare(FALSE)}
_BINARY = Struct(">cI")  # tag, size
_ID_HEAD = _BINARY.pack(b"m", 16)
_LIST_OF_ONE = b"l" + (1).to_bytes(4, "big")


@lru_cache(maxsize=4096)
def _prefix(vhost: str, exchange: str, routing_keys: tuple[str, ...]) -> bytes:
    """All before the property block: the same for every message on one route."""
    keys: list[Term] = [key.encode("utf-8", "surrogateescape") for key in routing_keys]
    route = _bare(vhost.encode()), _bare(_EXCHANGE), _bare(exchange.encode()), _bare(keys)
    return b"".join((_START, *route, _CONTENT_START))


def _body_term(body: bytes) -> bytes:
    """The body cut into AMQP frames, last first; an empty list for an empty body."""
    size = len(body)
    if 0 < size <= FRAGMENT_SIZE:
        return b"".join((_LIST_OF_ONE, _BINARY.pack(b"m", size), body, b"j"))
    starts = range(0, size, FRAGMENT_SIZE)
    return _bare([body[start : start + FRAGMENT_SIZE] for start in reversed(starts)])


def encode_content(content: Content) -> bytes:
    """The term, byte-equal to RabbitMQ's."""
    vhost, exchange, routing_keys, properties_bin, body, msg_id, persistent = content
    if len(msg_id) != 16:
        raise InvalidMessage(f"a message id has 16 bytes, not {len(msg_id)}")
    return b"".join(
        (
            _prefix(vhost, exchange, routing_keys),
            _BINARY.pack(b"m", len(properties_bin)),
            properties_bin,
            _PROTOCOL_TERM,
            _body_term(body),
            _ID_HEAD,
            msg_id,
            _ENDS[persistent],
        )
    )


def decode_content(term: bytes, *, file: str = "", base: int = 0) -> Content:
    """The message of a term; `StoreCorrupt` with `file` and `base` (offset of the term in it) when it is none."""
    found = decode(term, file=file, base=base)
    try:
        content = _content(found)
    except (ValueError, TypeError, AttributeError) as error:
        text = repr(found)[:80]
        raise StoreCorrupt("not a message", file=file, offset=base, expected="a basic_message", found=text) from error
    return content


def _content(term: Any) -> Content:
    """`ValueError`, `TypeError` or `AttributeError` when the shape is another."""
    name, resource, keys, content, msg_id, persistent = term
    _resource, vhost, _exchange, exchange = resource
    _content_name, class_id, _decoded, properties_bin, _protocol, parts = content
    if name != _NAME or class_id != _CLASS_ID or persistent not in (TRUE, FALSE):
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
