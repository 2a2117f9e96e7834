"""Streams of RabbitMQ 4.0.5 and 4.3.6 equal what the restarted servers delivered."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

from rabbitstore.format.properties import Typed
from rabbitstore.stream import stream_folders
from rabbitstore.stream.check import check_stream

from .conftest import tracking_of


def plain(value: Any) -> Any:
    """Return a header as the accounts have it: its client read floats as integers."""
    if isinstance(value, Typed):
        return plain_typed(value)
    if isinstance(value, float | bytes):
        return int(value) if isinstance(value, float) else {"bytes": value.hex()}
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def plain_typed(value: Typed) -> dict[Any, Any] | int:
    if value.code == "D":
        scale, number = value.value
        return {"decimal": str(Decimal(number).scaleb(-scale))}
    forms = {"f": int, "T": lambda when: {"timestamp": when}, "x": lambda data: {"bytes": data.hex()}}
    return forms.get(value.code, lambda other: other)(value.value)


def test_every_message_is_what_the_server_delivered(source: Any) -> None:
    """Order, offset, id, body, route, properties and headers are equal in every stream."""
    for name in source.names():
        stream = source.stream(name)
        found = {message.seq_id: message for message in stream.messages()}
        delivered = source.manifest["queues"][name]["delivered"]
        offsets = [row["properties"]["headers"]["x-stream-offset"] for row in delivered]
        assert sorted(offsets) == offsets and stream.problems == []
        for offset, row in zip(offsets, delivered, strict=True):
            message = found.pop(offset)
            properties = {part: plain(value) for part, value in message.properties.items()}
            assert properties.pop("message_id") == row["message_id"]
            properties["headers"] = properties.get("headers", {}) | {"x-stream-offset": offset}
            assert properties == row["properties"], (name, offset)
            assert (message.exchange, message.routing_keys) == (row["exchange"], (row["routing_key"],))
            assert hashlib.sha256(message.body).hexdigest() == source.body(row)
        assert name == "s.batched" or not found


def test_compressed_batches_have_every_published_message(sources: dict[str, Any]) -> None:
    """The server does not deliver them to AMQP consumers; all confirmed messages are in the stream, in order."""
    source = sources["rabbitmq4-streams"]
    sent = [row for row in source.manifest["published"] if row["queues"] == ["s.batched"]]
    found = list(source.stream("s.batched").messages())
    assert [message.seq_id for message in found] == list(range(60))
    assert [message.properties["message_id"] for message in found] == [f"m{row['n']}" for row in sent]
    for message, row in zip(found, sent, strict=True):
        assert hashlib.sha256(message.body).hexdigest() == source.body({"message_id": f"m{row['n']}"})


def test_a_healthy_stream_has_no_problem(source: Any) -> None:
    """Every chunk, entry, tracking entry and index record passes."""
    for stream in stream_folders(str(source.node)):
        checked = check_stream(stream)
        assert (checked.problems, checked.notes) == ([], [])
        assert checked.messages == sum(1 for _ in stream.messages())


def test_names_come_from_the_messages(source: Any) -> None:
    """A stream that messages reached through the default exchange has its name; another has the folder's."""
    names = {name: source.stream(name, is_named=False).queue for name in source.names()}
    assert all(found in (name, f"__{name.replace('.', '_')}") for name, found in names.items())
    assert names["s.mixed" if "s.mixed" in names else "s.live"] in ("s.mixed", "s.live")


def test_stored_offsets_are_those_that_readers_stored(sources: dict[str, Any]) -> None:
    """The last stored offset of each reader counts."""
    source = sources["rabbitmq4-streams"]
    stored = {row["reader"]: row["offset"] for row in source.manifest["other"] if row["event"] == "offset"}
    assert tracking_of(source.stream("s.protocol")).offsets == stored
    assert tracking_of(source.stream("s.mixed")).offsets == {}


def test_json_has_the_keys_of_any_message(sources: dict[str, Any]) -> None:
    """A message of a stream adds its chunk's time and epoch and its filter value."""
    message = next(sources["rabbitmq4-streams"].stream("s.filtered").messages())
    shown = message.to_json()
    assert (shown["queue"], shown["seq_id"], shown["filter_value"], shown["epoch"]) == ("s.filtered", 0, "colour-0", 1)
    assert shown["properties"]["headers"] == {"x-stream-filter-value": "colour-0"}
