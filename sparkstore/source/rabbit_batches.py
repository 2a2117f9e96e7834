"""Arrow batches of queues of a RabbitMQ folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
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
    with closing(_open(split)) as folder:
        reported = set() if split.is_first else set(folder.problems)
        more = {
            STORE_COLUMN: lambda _: split.store,
            TYPE_COLUMN: lambda _: split.type,
            BODY_TEXT: lambda message: message.body.decode("utf-8", "replace"),
        }
        messages, on_bad = folder.messages(split.queue), partial(_add_bad_properties, folder)
        for built in record_batches(messages, request.arrow, on_bad, request.options.batch_rows, more):
            yield built.batch
            yield from _problems(folder, reported, split, request)
        yield from _problems(folder, reported, split, request)


class ClassicQueues:
    """The classic queues of a virtual host."""

    def __init__(self, folder: VhostFolder) -> None:
        """Take an open folder."""
        self._folder = folder
        self.close = folder.close
        self.found: list[Finding] = []

    def messages(self, queue: str | None) -> Iterator[RabbitMessage]:
        """Yield the messages of a queue."""
        return self._folder.messages(queue) if queue is not None else iter(())

    @property
    def problems(self) -> list[Finding]:
        """Return the damage met so far."""
        return [*self._folder.problems, *self.found]


class OtherQueues:
    """The quorum queues, or one stream, of a node."""

    def __init__(self, folder: NodeFolder, type: str) -> None:
        """Take an open folder."""
        self._folder = folder
        self._type = type
        self.close = folder.close
        self.found: list[Finding] = []

    def messages(self, queue: str | None) -> Iterator[RabbitMessage]:
        """Yield the messages of a queue; without one those of all quorum queues."""
        names = [one.queue for one in self._folder.quorum_queues] if queue is None else [queue]
        for name in names:
            yield from self._folder.messages(name)

    @property
    def problems(self) -> list[Finding]:
        """Return the damage met so far, and the queues whose format is not known here."""
        unread = (Finding(name, 0, UNSUPPORTED, "a known version", "a later one") for name in self._folder.unread)
        return [*self._folder.problems, *unread, *self.found]


def _open(split: RabbitSplit) -> ClassicQueues | OtherQueues:
    disk = disk_for(split.folder)
    if split.type == CLASSIC:
        return ClassicQueues(VhostFolder(split.folder, disk))
    return OtherQueues(NodeFolder(split.folder, split.vhost, disk), split.type)


def _add_bad_properties(folder: ClassicQueues | OtherQueues, message: RabbitMessage, error: StoreCorrupt) -> None:
    folder.found.append(message.problem(error, "bad_properties"))


def _problems(
    folder: ClassicQueues | OtherQueues, reported: set[Finding], split: RabbitSplit, request: ReadRequest
) -> Iterator[pa.RecordBatch]:
    """Report the problems that are not in `reported` yet, and add them."""
    new = [problem for problem in dict.fromkeys(folder.problems) if problem not in reported]
    reported.update(new)
    for problem in new:
        file = f"{split.folder}/{problem.file}"
        yield from damage_batches(
            Finding(file, problem.offset, problem.kind, problem.expected, problem.found), split.store, 0, request
        )
