"""Arrow batches of queues of a RabbitMQ folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from rabbitstore import RabbitMessage, VhostFolder
from rabbitstore.node_folder import NodeFolder
from rabbitstore.read.columns import COLUMNS, folder_batches, record_batches, schema
from storageio import StoreCorrupt
from storebytes.finding import UNSUPPORTED, Finding

from ..object_disk import disk_for
from ..schema import BODY_TEXT, STORE_COLUMN
from .batches import ReadRequest, damage_batches
from .splits import CLASSIC, RabbitSplit
from .stores import check_mounted

if TYPE_CHECKING:
    import pyarrow as pa

TYPE_COLUMN = "type"


def rabbit_batches(split: RabbitSplit, request: ReadRequest) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a queue in delivery order, and its damage as the options choose."""
    check_mounted(split.store)
    disk = disk_for(split.folder)
    is_classic = split.type == CLASSIC
    with closing(VhostFolder(split.folder, disk) if is_classic else NodeFolder(split.folder, split.vhost, disk)) as folder:
        reported = set() if split.is_first else set(folder.problems)
        bad: list[Finding] = []

        def on_bad(message: RabbitMessage, error: StoreCorrupt) -> None:
            bad.append(message.problem(error, "bad_properties"))

        for batch in _batches(folder, split, request, on_bad):
            yield batch
            yield from _problems(folder, bad, reported, split, request)
        yield from _problems(folder, bad, reported, split, request)


def _batches(
    folder: VhostFolder | NodeFolder,
    split: RabbitSplit,
    request: ReadRequest,
    on_bad: Callable[[RabbitMessage, StoreCorrupt], None],
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a split; a kernel builds those of intact segments of classic queues."""
    if isinstance(folder, NodeFolder):
        more = {
            STORE_COLUMN: lambda _: split.store,
            TYPE_COLUMN: lambda _: split.type,
            BODY_TEXT: lambda message: message.body.decode("utf-8", "replace"),
        }
        for built in record_batches(_messages(folder, split.queue), request.arrow, on_bad, request.options.batch_rows, more):
            yield built.batch
    elif split.queue is not None:
        names = [name for name in COLUMNS if name in (*request.schema.names, "body")]  # `folder_batches` counts bytes of bodies
        for built in folder_batches(folder, split.queue, schema(names), on_bad, request.options.batch_rows):
            yield _of_classic(built.batch, split, request.arrow)


def _of_classic(batch: pa.RecordBatch, split: RabbitSplit, requested: pa.Schema) -> pa.RecordBatch:
    """Return the requested columns, in their types; null for those of other types of queue."""
    import pyarrow as pa

    given = {STORE_COLUMN: split.store, TYPE_COLUMN: split.type}
    arrays = []
    for name, kind in zip(requested.names, requested.types, strict=True):
        if name in batch.schema.names and not (name == "body" and pa.types.is_string(kind)):
            arrays.append(batch.column(name).cast(kind))
        elif name in ("body", BODY_TEXT):
            arrays.append(pa.array([body.decode("utf-8", "replace") for body in batch.column("body").to_pylist()], kind))
        else:
            arrays.append(pa.repeat(pa.scalar(given.get(name), kind), batch.num_rows))
    return pa.RecordBatch.from_arrays(arrays, schema=requested)


def _messages(folder: NodeFolder, queue: str | None) -> Iterator[RabbitMessage]:
    """Yield the messages of a queue; without one those of all quorum queues."""
    for name in [one.queue for one in folder.quorum_queues] if queue is None else [queue]:
        yield from folder.messages(name)


def _problems(
    folder: VhostFolder | NodeFolder, bad: list[Finding], reported: set[Finding], split: RabbitSplit, request: ReadRequest
) -> Iterator[pa.RecordBatch]:
    """Report the damage, and the queues whose format is not known here, that are not in `reported` yet; add them."""
    unread = folder.unread if isinstance(folder, NodeFolder) else ()
    unknown = (Finding(name, 0, UNSUPPORTED, "a known version", "a later one") for name in unread)
    new = [problem for problem in dict.fromkeys([*folder.problems, *unknown, *bad]) if problem not in reported]
    reported.update(new)
    for problem in new:
        file = f"{split.folder}/{problem.file}"
        yield from damage_batches(
            Finding(file, problem.offset, problem.kind, problem.expected, problem.found), split.store, 0, request
        )
