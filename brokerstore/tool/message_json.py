"""A message as JSON; the keys are fixed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from commitlog import StoredMessage

from .output import json_line

CHUNK_LINES, CHUNK_SIZE = 512, 1 << 20  # of what is written at once


def message_json(message: StoredMessage) -> dict[str, Any]:
    """Every field; hosts as `ip:port`, IPv6 in brackets; properties with RocketMQ's checksum property."""
    fields = _fields(message)
    fields["body_base64"] = b64encode(message.body).decode("ascii")
    return fields


def _fields(message: StoredMessage) -> dict[str, Any]:
    """With the body as it is."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "magic": f"{message.magic & 0xFFFFFFFF:08x}",
        "body_crc": message.body_crc,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp_ms": message.born_timestamp_ms,
        "born_host": message.born_host,
        "store_timestamp_ms": message.store_timestamp_ms,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "message_id": message.message_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.all_properties,
        "body_base64": message.body,
    }


def message_lines(messages: Iterable[StoredMessage]) -> Iterator[str]:
    """The same as lines of JSON in ASCII, many in one string."""
    encode = _quick_encoder()
    lines: list[str] = []
    size = 0
    for message in messages:
        line = encode(message)
        lines.append(line)
        size += len(line)
        if len(lines) == CHUNK_LINES or size > CHUNK_SIZE:
            yield "".join(lines)
            lines, size = [], 0
    yield "".join(lines)


def _quick_encoder() -> Callable[[StoredMessage], str]:
    """msgspec writes base64 and ASCII several times as fast as the standard library; what is not ASCII it does not escape."""
    try:
        import msgspec
    except ModuleNotFoundError:
        return lambda message: json_line(message_json(message))
    quick = msgspec.json.Encoder().encode

    def encode(message: StoredMessage) -> str:
        data = quick(_fields(message))
        return data.decode("ascii") + "\n" if data.isascii() else json_line(message_json(message))

    return encode
