"""Messages as the `expected.json` of a case lists what a restarted server delivered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from rabbitstore.format.properties import Typed, to_json
from rabbitstore.read.stored_message import RabbitMessage


def delivered(messages: Iterable[RabbitMessage]) -> dict[str, list[dict[str, Any]]]:
    """Return the messages by virtual host and queue, in order, with the keys of the case."""
    found: dict[str, list[dict[str, Any]]] = {}
    for message in messages:
        row = {
            "size": len(message.body),
            "sha256": hashlib.sha256(message.body).hexdigest(),
            "redelivered": message.redelivered,
            "exchange": message.exchange,
            "routing_key": message.routing_keys[0],
            "properties": _plain(message.properties),
        }
        found.setdefault(f"{message.vhost}|{message.queue}", []).append(row)
    return found


def _plain(value: Any) -> Any:
    """Write header values of AMQP as the case does."""
    if isinstance(value, Typed):
        if value.code == "x":
            return {"bytes": value.value.hex()}
        kinds = {"T": "timestamp", "D": "decimal"}
        return {kinds[value.code]: to_json(value)} if value.code in kinds else _plain(value.value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else to_json(value)


def persistent(messages: Iterable[RabbitMessage]) -> Iterable[RabbitMessage]:
    """Leave out what a server drops when it starts."""
    return (message for message in messages if message.persistent)
