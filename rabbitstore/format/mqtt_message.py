"""Messages that were received by MQTT and their form in AMQP 0-9-1, as the server converts them for a consumer."""

from __future__ import annotations

from typing import Any

from . import properties as blocks
from .terms import Atom

_RECORD = "mqtt_msg"
_SHORT_MAX = 255
_QOS_MAX = 2
_USER, _REPLY, _CORRELATION, _TYPE, _EXPIRY = (
    Atom(name) for name in ("User-Property", "Response-Topic", "Correlation-Data", "Content-Type", "Message-Expiry-Interval")
)
_TTL, _TIMESTAMP = Atom("ttl"), Atom("ts")
_LEVELS = str.maketrans("/+.", ".*/")  # of a topic; a dot in it becomes a slash


def mqtt_fields(data: Any, annotations: dict[Any, Any]) -> tuple[bytes, bytes]:
    """Return property block and body; raise `ValueError`, `TypeError` or `AttributeError` for damage."""
    name, _retain, qos, _topic, _dup, _packet_id, payload, properties, *_timestamp = data
    if name != _RECORD or not isinstance(qos, int) or not 0 <= qos <= _QOS_MAX:
        raise ValueError("not a message of MQTT")
    body = payload if isinstance(payload, bytes) else b"".join(payload)
    found = _properties(properties, annotations) | {"delivery_mode": 2 if qos else 1}
    return blocks.encode(found), body


def _properties(properties: dict[Any, Any], annotations: dict[Any, Any]) -> dict[str, Any]:
    headers = _headers(properties)
    found: dict[str, Any] = {}
    content_type = properties.get(_TYPE)
    if content_type is not None and len(content_type) <= _SHORT_MAX and content_type.isascii():
        found["content_type"] = content_type.decode("ascii")
    correlation = properties.get(_CORRELATION)
    if correlation is not None:
        if len(correlation) <= _SHORT_MAX and _is_text(correlation):
            found["correlation_id"] = correlation.decode()
        else:
            headers["x-correlation-id"] = correlation
    ttl, timestamp = annotations.get(_TTL), annotations.get(_TIMESTAMP)
    if isinstance(ttl, int):
        found["expiration"] = str(ttl)
    elif ttl is None and isinstance(properties.get(_EXPIRY), int):
        found["expiration"] = str(properties[_EXPIRY] * 1000)
    if isinstance(timestamp, int):
        found["timestamp"] = timestamp // 1000
    if headers:
        found["headers"] = dict(sorted(headers.items()))
    return found


def _headers(properties: dict[Any, Any]) -> dict[str, Any]:
    """Return the user properties; the first of several with one name counts."""
    headers: dict[str, Any] = {}
    for name, value in properties.get(_USER, []):
        if len(name) <= _SHORT_MAX:
            headers.setdefault(name.decode("utf-8", "surrogateescape"), value)
    topic = properties.get(_REPLY)
    if topic is not None:
        headers["x-reply-to-topic"] = topic.decode("utf-8", "surrogateescape").translate(_LEVELS)
    return headers


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False
