"""`export` of a RabbitMQ folder, a bounded batch in memory at a time."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..filters import Filters
from . import ExportItem, ExportSource
from .rabbitmq import BLOCK_SIZE, RabbitmqBackend

BATCH_ROWS, BATCH_BYTES = 4096, 8 << 20
COLUMNS = (
    "queue", "vhost", "seq_id", "msg_id", "persistent", "acked", "redelivered", "expiry_us", "size", "embedded", "file",
    "offset", "exchange", "routing_keys", "properties", "body_base64",
)  # fmt: skip
_TEXTS = ("queue", "vhost", "msg_id", "file", "exchange", "properties")
_FLAGS = ("persistent", "acked", "redelivered", "embedded")


def source(backend: RabbitmqBackend, form: str, filters: Filters, limit: int | None) -> ExportSource:
    """Export the messages that pass the filters; a position counts messages."""

    def items(position: int, _rows: int) -> Iterator[ExportItem]:
        with backend.open_folder() as folder:
            found = filter(filters.accepts_delivery, backend.messages(folder, filters.queue))
            stop = None if limit is None else max(position, limit)
            yield from (_lines if form in ("jsonl", "csv") else _batches)(backend, islice(found, position, stop), position)

    chosen = [filters.queue, filters.from_offset, filters.to_offset, filters.key]
    about = {"folder": os.path.abspath(backend.target.path), "vhost": backend.target.vhost, "wanted": chosen}
    return ExportSource(items, about, 0, COLUMNS)


def _lines(backend: RabbitmqBackend, messages: Iterator[Any], position: int) -> Iterator[ExportItem]:
    """Yield blocks of lines; the first block is empty, so that a part has a beginning."""
    yield memoryview(b""), position, 0, 0
    for block, count, size, written in backend.json_blocks(messages, BLOCK_SIZE):
        position += count
        yield block, position, size, written


def _batches(backend: RabbitmqBackend, messages: Iterator[Any], position: int) -> Iterator[ExportItem]:
    """Yield Arrow batches whose columns are the JSON keys; properties are JSON text, the body is bytes."""
    import pyarrow as pa

    schema = _schema()
    yield pa.RecordBatch.from_pylist([], schema=schema), position, 0, 0
    rows: list[dict[str, Any]] = []
    size = 0
    for number, message in enumerate(messages, position + 1):
        position = number
        size += message.size
        found = backend.to_json(message)
        if found is not None:
            rows.append(_row(found))
        if len(rows) == BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(rows, schema=schema), position, size, len(rows)
            rows, size = [], 0
    yield pa.RecordBatch.from_pylist(rows, schema=schema), position, size, len(rows)


def _row(found: dict[str, Any]) -> dict[str, Any]:
    properties = json.dumps(found["properties"])
    return {**found, "properties": properties, "body": b64decode(found["body_base64"])}


def _schema() -> Any:
    import pyarrow as pa

    kinds: dict[str, Any] = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_FLAGS, pa.bool_())
    kinds |= {"routing_keys": pa.list_(pa.string()), "body": pa.binary()}
    return pa.schema([(name, kinds.get(name, pa.int64())) for name in (*COLUMNS[:-1], "body")])
