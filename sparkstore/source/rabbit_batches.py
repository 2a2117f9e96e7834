"""Arrow batches of queues of a RabbitMQ folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from rabbitstore import RabbitMessage, VhostFolder
from rabbitstore.node_folder import NodeFolder
from rabbitstore.read.columns import record_batches
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
        more = {
            STORE_COLUMN: lambda _: split.store,
            TYPE_COLUMN: lambda _: split.type,
            BODY_TEXT: lambda message: message.body.decode("utf-8", "replace"),
        }

        def on_bad(message: RabbitMessage, error: StoreCorrupt) -> None:
            bad.append(message.problem(error, "bad_properties"))

        for built in record_batches(_messages(folder, split.queue), request.arrow, on_bad, request.options.batch_rows, more):
            yield built.batch
            yield from _problems(folder, bad, reported, split, request)
        yield from _problems(folder, bad, reported, split, request)


def _messages(folder: VhostFolder | NodeFolder, queue: str | None) -> Iterator[RabbitMessage]:
    """Yield the messages of a queue; without one those of all quorum queues of a node."""
    names = [queue] if queue is not None else []
    if queue is None and isinstance(folder, NodeFolder):
        names = [one.queue for one in folder.quorum_queues]
    for name in names:
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
