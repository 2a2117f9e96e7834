"""`export` of a RocketMQ folder, a bounded batch in memory at a time, and its side of `diff`."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from commitlog import StoredMessage
from commitlog.fields import COLUMNS as COLUMNS_OF_LOG
from commitlog.fields import FIELDS, HEX, PROPERTIES, Field
from commitlog.walk import LogFiles, Piece
from storageio import InvalidMessage
from storebytes.arrow_table import empty_batch
from storebytes.finding import Finding

from ..export_forms import CHECKSUM
from ..filters import RecordFilter
from ..message_json import BLOCK_SIZE, line_blocks, message_line, message_of
from . import Contents, ExportItem, ExportSource
from .rocketmq_folder import RocketmqFolder, walk_ahead
from .rocketmq_offsets import filled_queues

COLUMNS = (*COLUMNS_OF_LOG[:-1], "body_base64")


def source(folder: RocketmqFolder, form: str, record_filter: RecordFilter, limit: int | None) -> ExportSource:
    """Export the records that pass the filter; a position is the physical offset after the last record."""
    files = folder.files()

    def items(position: int, rows: int) -> Iterator[ExportItem]:
        if position and files.files and position < files.files[0].start_offset:
            begin = files.files[0].start_offset
            raise InvalidMessage(f"the export stopped at {position}, but the log now begins at {begin}")
        left = None if limit is None else limit - rows
        write = _lines if form in ("jsonl", "csv") else _batches
        if folder.decodes:
            write = partial(_decoded_lines if write is _lines else _decoded_batches, folder)
        return write(_pieces_from(folder, files, position), record_filter, position, left)

    about: dict[str, Any] = {
        "folders": [os.path.abspath(path) for path in folder.facts.log_folders],
        "wanted": list(record_filter),
    }
    about |= {"decode": True} if folder.decodes else {}
    return ExportSource(items, about, sum(file.size_bytes for file in files.files), COLUMNS)


def _pieces_from(folder: RocketmqFolder, files: LogFiles, start: int) -> Iterator[Piece]:
    """Iterate over good records from a physical offset on; report the damage from there on."""
    for finding in files.check():
        folder.add(finding)
    files.files = [file for file in files.files if file.start_offset + file.size_bytes > start]
    begins = {file.path: file.start_offset for file in files.files}
    for step in walk_ahead(files):
        if isinstance(step, Finding) and begins[step.file] + step.offset >= start:
            folder.add(step)
        elif isinstance(step, Piece) and step.base + step.stop > start:
            first = bisect_left(step.positions, start - step.base)
            left = step._replace(start=max(step.start, start - step.base), positions=step.positions[first:])
            yield from folder.without_fillers(left)
    folder.report_fillers()


def _lines(pieces: Iterator[Piece], record_filter: RecordFilter, position: int, left: int | None) -> Iterator[ExportItem]:
    """Yield blocks of at most `left` lines in all; the first block is empty, so that a part has a beginning."""
    yield memoryview(b""), position, 0, 0
    for piece in pieces if left != 0 else ():
        positions = record_filter.positions(piece)[:left]
        at, before = piece.start, 0
        for block, done in line_blocks(piece, positions):
            stop = positions[done] if done < len(positions) else piece.stop
            yield block, piece.base + stop, stop - at, done - before
            at, before = stop, done
        if not positions:
            yield memoryview(b""), piece.base + piece.stop, piece.stop - at, 0
        if left is not None:
            left -= len(positions)
            if left == 0:
                return


def _batches(pieces: Iterator[Piece], record_filter: RecordFilter, position: int, left: int | None) -> Iterator[ExportItem]:
    """Yield Arrow batches of at most `left` rows in all; the first is empty, so that an empty log has its columns."""
    import pyarrow as pa

    from commitlog.arrow_columns import record_batch
    from commitlog.columns import row_batches

    plain = _plain_schema()
    yield empty_batch(plain), position, 0, 0
    for piece in pieces if left != 0 else ():
        for rows in row_batches(piece.view, piece.base, piece.positions, piece.stop):
            batch = record_batch(rows)
            columns = [column.cast(_plain(column.type)) for column in batch.columns]
            size = int(rows.sizes.sum())
            end = piece.base + int(rows.positions[0]) + size
            chosen = record_filter.rows(pa.RecordBatch.from_arrays(columns, schema=plain)).slice(0, left)
            yield chosen, end, size, chosen.num_rows
            if left is not None:
                left -= chosen.num_rows
                if left == 0:
                    return


def _decoded_lines(
    folder: RocketmqFolder, pieces: Iterator[Piece], record_filter: RecordFilter, position: int, left: int | None
) -> Iterator[ExportItem]:
    """Do as `_lines`, with decoded messages; all messages of a batch are in one block."""
    yield memoryview(b""), position, 0, 0
    for rows, after, size in _decoded_rows(folder, pieces, record_filter):
        rows = rows[:left]
        yield memoryview(b"".join(map(message_line, rows))), after, size, len(rows)
        if left is not None:
            left -= len(rows)
            if left == 0:
                return


def _decoded_batches(
    folder: RocketmqFolder, pieces: Iterator[Piece], record_filter: RecordFilter, position: int, left: int | None
) -> Iterator[ExportItem]:
    """Do as `_batches`, with decoded messages, whose columns are made from objects."""
    import pyarrow as pa

    plain = _plain_schema()
    yield empty_batch(plain), position, 0, 0
    for rows, after, size in _decoded_rows(folder, pieces, record_filter):
        rows = rows[:left]
        columns = {field.name: [_cell(message, field) for message in rows] for field in FIELDS}
        batch = pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in plain], schema=plain)
        yield batch, after, size, len(rows)
        if left is not None:
            left -= len(rows)
            if left == 0:
                return


def _decoded_rows(
    folder: RocketmqFolder, pieces: Iterator[Piece], record_filter: RecordFilter
) -> Iterator[tuple[list[StoredMessage], int, int]]:
    """Yield the messages of some records, the position after these, and their bytes."""
    for piece in pieces:
        at, rows, size = piece.start, [], 0
        positions = record_filter.positions(piece)
        for number, start in enumerate(positions, 1):
            decoded = list(folder.decoded([message_of(piece, start)]))
            rows += decoded
            size += sum(len(message.body) for message in decoded)
            if size >= BLOCK_SIZE and number < len(positions):
                yield rows, piece.base + positions[number], positions[number] - at
                at, rows, size = positions[number], [], 0
        yield rows, piece.base + piece.stop, piece.stop - at


def _cell(message: StoredMessage, field: Field) -> Any:
    """Return a field as the columns of the log have it."""
    if field.kind == PROPERTIES:
        return list(message.all_properties.items())
    value = getattr(message, field.name)
    return f"{value & 0xFFFFFFFF:08x}" if field.kind == HEX else value


def _plain_schema() -> Any:
    import pyarrow as pa

    from commitlog.arrow_columns import schema

    return pa.schema([field.with_type(_plain(field.type)) for field in schema()])


def _plain(kind: Any) -> Any:
    """Replace a dictionary type by its values' type, because each file format treats dictionaries in its own way."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def contents(folder: RocketmqFolder, stack: ExitStack) -> Contents:
    """Open the store for a comparison."""
    store = stack.enter_context(folder.open_store())
    undispatched = folder.incomplete_keys(store).get("undispatched_messages", 0)
    queues: set[tuple[Any, ...]] = {(topic, queue_id) for topic in store.topics() for queue_id in filled_queues(store, topic)}
    count = sum(store.max_offset(*queue) - store.min_offset(*queue) for queue in queues)

    def messages(queue: tuple[Any, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
        for record in store.read(*queue):
            yield record.queue_offset, _compared(record)

    return Contents(queues, count, messages, undispatched)


def _compared(message: StoredMessage) -> dict[str, Any]:
    """Return the fields that are equal in a store and its copy, wherever the records lie."""
    properties = {name: value for name, value in message.all_properties.items() if name != CHECKSUM}
    return {
        "body": message.body, "properties": properties, "flag": message.flag, "sys_flag": message.sys_flag,
        "born_timestamp_ms": message.born_timestamp_ms, "born_host": message.born_host,
        "reconsume_times": message.reconsume_times,
    }  # fmt: skip
