"""Encode message containers of AMQP 0-9-1 as RabbitMQ 4 does (docs/formats/rabbitmq-4.md#the-message-term)."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from storageio import StoreCorrupt

from . import properties as blocks
from .container import START
from .content_cy import check_msg_id
from .message import Content

_U32, _I32 = Struct(">I"), Struct(">i")
_HAS_PRIORITY, _HAS_TIMESTAMP = 0x0800, 0x0040  # in the first 16 bits of a property block
_MS_PER_S = 1000
_FRAGMENT_SIZE = 131064  # RabbitMQ's default frame_max - 8


def _atom(name: str) -> bytes:
    return b"w" + bytes((len(name),)) + name.encode()


def _binary(data: bytes) -> bytes:
    return b"m" + _U32.pack(len(data)) + data


def _list(items: list[bytes]) -> bytes:
    return b"l" + _U32.pack(len(items)) + b"".join(map(_binary, items)) + b"j" if items else b"j"


def _integer(number: int) -> bytes:
    """Encode an integer in its shortest form, as the server does."""
    if 0 <= number < 256:
        return bytes((97, number))
    if -(1 << 31) <= number < 1 << 31:
        return b"b" + _I32.pack(number)
    data = abs(number).to_bytes((abs(number).bit_length() + 7) // 8, "little")
    return bytes((110, len(data), number < 0)) + data


_HEAD = START + _atom("mc_amqpl") + b"h\x06" + _atom("content") + _integer(60) + _atom("none")
_PROTOCOL = _atom("rabbit_framing_amqp_0_9_1")
_ID, _DURABLE, _PRIORITY, _TTL, _ROUTING_KEYS, _EXCHANGE, _TIMESTAMP, _ARRIVAL = map(
    _atom, ("id", "d", "p", "ttl", "rk", "x", "ts", "rts")
)
_FALSE = _atom("false")


@lru_cache(maxsize=4096)
def _route(exchange: str, routing_keys: tuple[str, ...]) -> bytes:
    keys = [key.encode("utf-8", "surrogateescape") for key in routing_keys]
    return _EXCHANGE + _binary(exchange.encode()) + _ROUTING_KEYS + _list(keys)


def encode_container(content: Content, *, ttl_ms: int | None, now_ms: int) -> bytes:
    """Encode a message that arrives now; the server takes time to live, priority and timestamp from the annotations."""
    check_msg_id(content.msg_id)
    fragments = [content.body[start : start + _FRAGMENT_SIZE] for start in range(0, len(content.body), _FRAGMENT_SIZE)]
    annotations = [_ID + _binary(content.msg_id), _ARRIVAL + _integer(now_ms)]
    if not content.persistent:
        annotations.append(_DURABLE + _FALSE)
    if ttl_ms is not None:
        annotations.append(_TTL + _integer(ttl_ms))
    annotations += _from_properties(content.properties_bin)
    parts = (_HEAD, _binary(content.properties_bin), _PROTOCOL, _list(fragments[::-1]))
    count = len(annotations) + 2
    return b"".join((*parts, b"t", _U32.pack(count), _route(content.exchange, content.routing_keys), *annotations))


def _from_properties(block: bytes) -> list[bytes]:
    """Return the annotations of priority and timestamp; none for a block that cannot be read."""
    flags = int.from_bytes(block[:2], "big")
    if not flags & (_HAS_PRIORITY | _HAS_TIMESTAMP):
        return []
    try:
        found = blocks.decode(block)
    except StoreCorrupt:
        return []
    priority, timestamp = found.get("priority"), found.get("timestamp")
    parts = [] if priority is None else [_PRIORITY + _integer(priority)]
    return parts if timestamp is None else [*parts, _TIMESTAMP + _integer(timestamp * _MS_PER_S)]
