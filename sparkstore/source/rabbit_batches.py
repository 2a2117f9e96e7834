"""Arrow batches of queues of a RabbitMQ folder, built from message objects; no kernel builds columns of this format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from commitlog.findings import Finding
from rabbitstore import Problem, StoredMessage
from rabbitstore.format.problems import UNSUPPORTED
from rabbitstore.format.properties import to_json
from rabbitstore.node_folder import NodeFolder
from rabbitstore.read.vhost_folder import VhostFolder
from storageio import StoreCorrupt

from ..object_disk import disk_for
from ..schema import BODY_TEXT, STORE_COLUMN
from .batches import ReadRequest, damage_batches
from .splits import CLASSIC, RabbitSplit
from .stores import check_mounted

if TYPE_CHECKING:
    import pyarrow as pa

TYPE_COLUMN = "type"
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
    folder = _open(split)
    try:
        reported = set() if split.is_first else set(folder.problems)
        rows = _rows(folder, split, request)
        while batch := _some(rows, request.options.batch_rows):
            yield _batch(batch, request)
            yield from _problems(folder, reported, split, request)
        yield from _problems(folder, reported, split, request)
    finally:
        folder.close()


class ClassicQueues:
    """The classic queues of a virtual host."""

    def __init__(self, folder: VhostFolder) -> None:
        """Take an open folder."""
        self._folder = folder
        self.close = folder.close
        self.found: list[Problem] = []

    def messages(self, queue: str | None) -> Iterator[StoredMessage]:
        """Yield the messages of a queue."""
        return self._folder.messages(queue) if queue is not None else iter(())

    @property
    def problems(self) -> list[Problem]:
        """Return the damage met so far."""
        return [*self._folder.problems, *self.found]


class OtherQueues:
    """The quorum queues, or one stream, of a node."""

    def __init__(self, folder: NodeFolder, type: str) -> None:
        """Take an open folder."""
        self._folder = folder
        self._type = type
        self.close = folder.close
        self.found: list[Problem] = []

    def messages(self, queue: str | None) -> Iterator[StoredMessage]:
        """Yield the messages of a queue; without one those of all quorum queues."""
        names = [one.queue for one in self._folder.quorum_queues] if queue is None else [queue]
        for name in names:
            yield from self._folder.messages(name)

    @property
    def problems(self) -> list[Problem]:
        """Return the damage met so far, and the queues whose format is not known here."""
        unread = (Problem(name, 0, UNSUPPORTED, "a known version", "a later one") for name in self._folder.unread)
        return [*self._folder.problems, *unread, *self.found]


def _open(split: RabbitSplit) -> ClassicQueues | OtherQueues:
    disk = disk_for(split.folder)
    if split.type == CLASSIC:
        return ClassicQueues(VhostFolder(split.folder, disk))
    return OtherQueues(NodeFolder(split.folder, split.vhost, disk), split.type)


def _rows(folder: ClassicQueues | OtherQueues, split: RabbitSplit, request: ReadRequest) -> Iterator[tuple[int, list[Any]]]:
    """Yield the body size and the cells of each message."""
    for message in folder.messages(split.queue):
        try:
            yield len(message.body), [_cell(message, name, split) for name in request.schema.names]
        except StoreCorrupt as error:  # properties are decoded only on access
            found = Problem(
                message.file, message.offset, "bad_properties", f"{error.reason}: {error.expected}", str(error.found)
            )
            folder.found.append(found)


def _cell(message: StoredMessage, name: str, split: RabbitSplit) -> Any:
    if name in (STORE_COLUMN, TYPE_COLUMN):
        return split.store if name == STORE_COLUMN else split.type
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
    folder: ClassicQueues | OtherQueues, reported: set[Problem], split: RabbitSplit, request: ReadRequest
) -> Iterator[pa.RecordBatch]:
    """Report the problems that are not in `reported` yet, and add them."""
    new = [problem for problem in dict.fromkeys(folder.problems) if problem not in reported]
    reported.update(new)
    for problem in new:
        file = f"{split.folder}/{problem.file}"
        yield from damage_batches(
            Finding(file, problem.offset, problem.kind, problem.expected, problem.found), split.store, 0, request
        )
