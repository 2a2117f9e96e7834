"""Arrow batches of a queue of a RabbitMQ folder, built from message objects; no kernel builds columns of this format."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from commitlog.findings import Finding
from rabbitstore import Problem, StoredMessage
from rabbitstore.format.properties import to_json
from rabbitstore.read.vhost_folder import VhostFolder
from storageio import StoreCorrupt

from ..object_disk import disk_for
from ..schema import BODY_TEXT, STORE_COLUMN
from .batches import ReadRequest, damage_batches
from .splits import RabbitSplit
from .stores import check_mounted

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 16 << 20  # of bodies in a batch; a single body may be larger

_CELLS: dict[str, Callable[[StoredMessage], Any]] = {
    "msg_id": lambda message: message.msg_id.hex(),
    "routing_keys": lambda message: [_text(key) for key in message.routing_keys],
    BODY_TEXT: lambda message: message.body.decode("utf-8", "replace"),
    "exchange": lambda message: _text(message.exchange),
    "properties": lambda message: json.dumps(to_json(message.properties)),
}


def rabbit_batches(split: RabbitSplit, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a queue in delivery order, and its damage as the options choose."""
    check_mounted(split.store)
    folder = VhostFolder(split.folder, disk_for(split.folder))
    try:
        reported = 0 if split.is_first else len(folder.problems)
        rows = _rows(folder, split, request)
        while batch := _some(rows, request.options.batch_rows):
            yield _batch(batch, request)
            reported = yield from _problems(folder, reported, split, request)
        yield from _problems(folder, reported, split, request)
    finally:
        folder.close()


def _rows(folder: VhostFolder, split: RabbitSplit, request: ReadRequest) -> Iterator[tuple[int, list[Any]]]:
    """Yield the body size and the cells of each message."""
    for message in folder.messages(split.queue) if split.queue is not None else ():
        try:
            yield len(message.body), [_cell(message, name, split.store) for name in request.schema.names]
        except StoreCorrupt as error:  # properties are decoded only on access
            found = Problem(
                message.file, message.offset, "bad_properties", f"{error.reason}: {error.expected}", str(error.found)
            )
            folder.problems.append(found)


def _cell(message: StoredMessage, name: str, store: str) -> Any:
    if name == STORE_COLUMN:
        return store
    return _CELLS[name](message) if name in _CELLS else getattr(message, name, None)


def _text(text: str) -> str:
    """Replace bytes that are not UTF-8 by U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _some(rows: Iterator[tuple[int, list[Any]]], count: int) -> list[list[Any]]:
    made, left = [], BATCH_BYTES
    for size, row in islice(rows, count):
        made.append(row)
        left -= size
        if left <= 0:
            break
    return made


def _batch(rows: list[list[Any]], request: ReadRequest) -> pa.RecordBatch:
    import pyarrow as pa

    columns = []
    for field, cells in zip(request.arrow, zip(*rows, strict=True), strict=True):
        is_text_body = field.name == "body" and pa.types.is_string(field.type)
        columns.append(pa.array([cell.decode("utf-8", "replace") for cell in cells] if is_text_body else cells, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=request.arrow)


def _problems(
    folder: VhostFolder, reported: int, split: RabbitSplit, request: ReadRequest
) -> Generator[pa.RecordBatch, None, int]:
    """Report the problems found since the last call; return how many there are now."""
    for problem in dict.fromkeys(folder.problems[reported:]):
        file = f"{split.folder}/{problem.file}"
        yield from damage_batches(
            Finding(file, problem.offset, problem.kind, problem.expected, problem.found), split.store, 0, request
        )
    return len(folder.problems)
