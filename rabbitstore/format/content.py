"""The stored message: the `basic_message` term of 3.10 (docs/formats/rabbitmq-terms.md) or the container of 3.13 and later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from storageio import InvalidMessage, StoreCorrupt, UnsupportedFormat, random_bytes

from . import properties as blocks
from .container import CONTAINER, read_amqp_0_9_1, read_container
from .content_cy import CLASS_ID, NAME, check_msg_id, encode_parts, split_container, split_term
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
        content = (
            read_container(found, file, base, needs_id=needs_id) if is_container else _content(found, file, base, needs_id)
        )
    except (ValueError, TypeError, AttributeError, LookupError, InvalidMessage) as error:
        text = repr(found)[:80]
        if not _is_damaged_record(found):
            raise UnsupportedFormat(
                "message term", file=file, offset=base, found=text, supported="those of 3.8 to 4.3"
            ) from error
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


_KNOWN_WORDS = """
    basic_message resource exchange content none true false rabbit_framing_amqp_0_9_1 P_basic undefined
    mc mc_amqpl mc_amqp mc_mqtt mqtt_msg v1 x rk id d p ttl ts rts deaths
"""
_WORDS = frozenset(_KNOWN_WORDS.split())
_DEPTH_MAX = 6  # of the records around properties and body


def _is_damaged_record(term: Term) -> bool:
    """Return whether a whole term that is not understood is a known record with damage, and not one of another form.

    No record: no server stores it as a message.  In a record the damage is in a name or in the class: one character differs
    from a known name, a character is no text, or one bit of the class differs.
    """
    if not isinstance(term, tuple):
        return True
    records = (part for part in term if isinstance(part, tuple) and len(part) > 1 and part[0] == "content")
    classes = (part[1] for part in records if isinstance(part[1], int))
    return any((one ^ CLASS_ID).bit_count() == 1 for one in classes) or any(map(_is_damaged_word, _atoms(term, 0)))


def _atoms(term: Any, depth: int) -> Iterator[Atom]:
    """Yield the atoms of the outer records."""
    if isinstance(term, Atom):
        yield term
    elif isinstance(term, tuple | list | dict) and depth < _DEPTH_MAX:
        for part in term:
            yield from _atoms(part, depth + 1)
        for part in term.values() if isinstance(term, dict) else ():
            yield from _atoms(part, depth + 1)


def _is_damaged_word(found: Atom) -> bool:
    if found in _WORDS:
        return False
    if not found.isprintable() or "\ufffd" in found:
        return True
    known = (word for word in _WORDS if len(word) == len(found))
    return any(sum(one != other for one, other in zip(found, word, strict=True)) == 1 for word in known)


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


def _content(term: Any, file: str, base: int, needs_id: bool) -> Content:
    """Convert a `basic_message`; raise `ValueError`, `TypeError` or `AttributeError` for another form.

    Quorum queues of RabbitMQ 3.10 to 3.12 store an empty id.
    """
    name, resource, keys, content, msg_id, persistent = term
    _resource, vhost, _exchange, exchange = resource
    if name != NAME or persistent not in (TRUE, FALSE) or (len(msg_id) != MSG_ID_SIZE and (msg_id or needs_id)):
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
