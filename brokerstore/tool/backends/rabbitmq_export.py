"""`export` of a RabbitMQ folder, a bounded batch in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from rabbitstore import VhostFolder
from rabbitstore.read import columns
from rabbitstore.read.json_cy import LineWriter
from storebytes.arrow_table import empty_batch

from ..filters import Filters
from . import ExportItem, ExportSource
from .rabbitmq_folder import BLOCK_SIZE, RabbitmqFolder

BATCH_ROWS = columns.BATCH_ROWS
COLUMNS = (*columns.COLUMNS[:-1], "body_base64")


def source(backend: RabbitmqFolder, form: str, filters: Filters, limit: int | None) -> ExportSource:
    """Export the messages that pass the filters; a position counts messages."""

    def items(position: int, _rows: int) -> Iterator[ExportItem]:
        with backend.open_folder() as folder:
            if form in ("parquet", "arrow") and not position and limit is None and filters == Filters(queue=filters.queue):
                yield from _all_batches(backend, folder, filters.queue)
                return
            found = filter(filters.accepts_delivery, backend.messages(folder, filters.queue))
            stop = None if limit is None else max(position, limit)
            yield from (_lines if form in ("jsonl", "csv") else _batches)(backend, islice(found, position, stop), position)

    chosen = [filters.queue, filters.from_offset, filters.to_offset, filters.key]
    about = {"folder": os.path.abspath(backend.target.path), "vhost": backend.target.vhost, "wanted": chosen}
    return ExportSource(items, about, 0, COLUMNS)


def _lines(backend: RabbitmqFolder, messages: Iterator[Any], position: int) -> Iterator[ExportItem]:
    """Yield blocks of lines; the first block is empty, so that a part has a beginning."""
    yield memoryview(b""), position, 0, 0
    for block, count, size, written in backend.blocks(LineWriter(), messages, BLOCK_SIZE):
        position += count
        yield block, position, size, written


def _batches(backend: RabbitmqFolder, messages: Iterator[Any], position: int) -> Iterator[ExportItem]:
    """Yield Arrow batches whose columns are the JSON keys; properties are JSON text, the body is bytes."""
    schema = columns.schema()
    yield from _items(schema, columns.record_batches(messages, schema, backend.add_bad_properties, BATCH_ROWS), position)


def _all_batches(backend: RabbitmqFolder, folder: VhostFolder, queue: str | None) -> Iterator[ExportItem]:
    """Yield the same for all messages, or those of a queue."""
    schema, on_bad = columns.schema(), backend.add_bad_properties
    found = columns.folder_batches(folder, queue, schema, on_bad, BATCH_ROWS)
    if backend.node is not None:
        found = chain(found, columns.record_batches(backend.node.messages(queue), schema, on_bad, BATCH_ROWS))
    yield from _items(schema, found, 0)


def _items(schema: Any, found: Iterator[columns.Built], position: int) -> Iterator[ExportItem]:
    yield empty_batch(schema), position, 0, 0
    for batch, count, size_bytes in found:
        position += count
        yield batch, position, size_bytes, batch.num_rows
