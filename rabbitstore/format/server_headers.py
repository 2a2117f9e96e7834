"""The headers that the server makes from a message's annotations at delivery (docs/formats/rabbitmq-4.md#the-message-term).

A dead-lettered message has its history in the annotation `deaths` and in binary keys `x-...`; neither is in the property block
that its publisher sent.  Its time to live is `undefined`, which removes the property `expiration`.
"""

from __future__ import annotations

from typing import Any

from . import properties as blocks
from .properties import Typed
from .terms import UNDEFINED, Atom

_DEATHS, _TTL, _DEATHS_RECORD = Atom("deaths"), Atom("ttl"), "deaths"
_FIRST_TIME, _DEATH_TTL = Atom("first_time"), Atom("ttl")


def with_server_headers(block: bytes, annotations: dict[Any, Any]) -> bytes:
    """Return the property block that a consumer gets; raise `TypeError`, `ValueError` or `KeyError` for damage."""
    is_expired = annotations.get(_TTL) == UNDEFINED
    deaths = annotations.get(_DEATHS)
    extra = {key: value for key, value in annotations.items() if not isinstance(key, Atom) and key.startswith(b"x-")}
    if not is_expired and deaths is None and not extra:
        return block
    properties = blocks.decode(block)
    if is_expired:
        properties.pop("expiration", None)
    headers = dict(properties.get("headers", {}))
    if deaths is not None:
        headers |= _death_headers(deaths)
    headers |= {_text(key): found for key, value in extra.items() if (found := _header(value)) is not None}
    if headers:
        properties["headers"] = headers
    return blocks.encode(properties)


def _header(value: Any) -> Any:
    """Return the header of an annotation; None for a type that the server leaves out."""
    if isinstance(value, Atom):
        return {"true": True, "false": False}.get(value)
    if isinstance(value, int):
        return Typed("l", value)
    return _text(value) if isinstance(value, bytes) else None


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _death_headers(deaths: Any) -> dict[str, Any]:
    """Return `x-death`, newest first; with the first death where the annotation is the record of before 4.0."""
    if isinstance(deaths, list):
        return {"x-death": [_death(key, record) for key, record in deaths]}
    name, first, _last, records = deaths
    if name != _DEATHS_RECORD:
        raise ValueError("not a record of deaths")
    queue, reason = first
    return {
        "x-death": [_death(key, record) for key, record in records.items()],
        "x-first-death-reason": str(reason),
        "x-first-death-queue": _text(queue),
        "x-first-death-exchange": _text(records[first][1]),
    }


def _death(key: Any, record: Any) -> dict[str, Any]:
    queue, reason = key
    _name, exchange, routing_keys, count, facts = record
    found: dict[str, Any] = {
        "count": Typed("l", count),
        "reason": str(reason),
        "queue": _text(queue),
        "time": Typed("T", facts[_FIRST_TIME] // 1000),
        "exchange": _text(exchange),
        "routing-keys": [_text(key) for key in routing_keys],
    }
    ttl = facts.get(_DEATH_TTL, UNDEFINED)
    return found if ttl == UNDEFINED else {"original-expiration": str(ttl)} | found
