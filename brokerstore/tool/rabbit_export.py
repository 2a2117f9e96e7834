"""`export` of a RabbitMQ folder; one bounded batch in memory at a time."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Iterator
from itertools import islice
from typing import Any

from rabbitstore.repair.check import size_bytes

from .export import Item, Order, export_items
from .output import json_line
from .rabbit_commands import open_folder, shown_json, vhost_path
from .target import Target
from .wanted import RabbitWanted

BATCH_ROWS, BATCH_BYTES = 4096, 8 << 20
_TEXTS = ("queue", "vhost", "msg_id", "file", "exchange", "properties")
_FLAGS = ("persistent", "acked", "redelivered", "embedded")


def export_messages(target: Target, order: Order, wanted: RabbitWanted) -> int:
    """Every wanted message in the order of the queues; what is damaged is said and passed over, and makes the exit code 1."""

    def items(position: int, _rows: int, told: list[Any]) -> Iterator[Item]:
        with open_folder(target, told) as folder:
            found = filter(wanted.takes, folder.messages(wanted.queue))
            stop = None if order.limit is None else max(position, order.limit)
            yield from (_lines if order.form == "jsonl" else _batches)(islice(found, position, stop), position, told)

    about = {"folder": os.path.abspath(target.path), "vhost": target.vhost, "wanted": list(wanted)}
    return export_items(items, order, about, size_bytes(vhost_path(target)))


def _lines(messages: Iterator[Any], position: int, told: list[Any]) -> Iterator[Item]:
    """`position` counts messages of the folder; so that a part has a beginning, an empty block first."""
    yield memoryview(b""), position, 0, 0
    for number, message in enumerate(messages, position + 1):
        made = shown_json(message, told)
        yield memoryview(b"" if made is None else json_line(made).encode("ascii")), number, message.size, int(made is not None)


def _batches(messages: Iterator[Any], position: int, told: list[Any]) -> Iterator[Item]:
    """Arrow batches with the keys of JSON as columns; properties as JSON text, the body as bytes."""
    import pyarrow as pa

    schema = _schema()
    yield pa.RecordBatch.from_pylist([], schema=schema), position, 0, 0
    rows: list[dict[str, Any]] = []
    size = 0
    for number, message in enumerate(messages, position + 1):
        position = number
        size += message.size
        made = shown_json(message, told)
        if made is not None:
            rows.append(_row(made))
        if len(rows) == BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(rows, schema=schema), position, size, len(rows)
            rows, size = [], 0
    yield pa.RecordBatch.from_pylist(rows, schema=schema), position, size, len(rows)


def _row(made: dict[str, Any]) -> dict[str, Any]:
    properties = json.dumps(made["properties"])
    return {**made, "properties": properties, "body": b64decode(made["body_base64"])}


def _schema() -> Any:
    import pyarrow as pa

    kinds: dict[str, Any] = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_FLAGS, pa.bool_())
    kinds |= {"routing_keys": pa.list_(pa.string()), "body": pa.binary()}
    names = (
        "queue", "vhost", "seq_id", "msg_id", "persistent", "acked", "redelivered", "expiry_us", "size", "embedded", "file",
        "offset", "exchange", "routing_keys", "properties", "body",
    )  # fmt: skip
    return pa.schema([(name, kinds.get(name, pa.int64())) for name in names])
