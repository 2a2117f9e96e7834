"""The messages of queues as a table for programs that take Arrow streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from storageio import StoreCorrupt, StoreError
from storebytes.arrow_table import ArrowTable, Offsets, offset_of, word_set

from ..format.problems import UNSUPPORTED, Problem, to_unsupported
from .columns import COLUMNS, record_batches, schema
from .stored_message import StoredMessage
from .vhost_folder import SEQ_ID_MAX, VhostFolder

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS_MAX = 100


class QueueScan(ArrowTable):
    """The messages of some queues as an `ArrowTable`, in the order of `RabbitStore.messages`.

    Queues and sequence numbers select entries of the index before any message is read. Only the requested columns are built.
    Every message of the range is checked, whatever its routing keys: damage ends a read with an error, after the rows before
    it. Memory for one batch of rows is held. The store must be open.
    """

    def __init__(
        self, folder: Callable[[], VhostFolder], queues: str | Iterable[str] | None, columns: Sequence[str] | None,
        start: Offsets | None, stop: Offsets | None, routing_keys: str | Iterable[str] | None, include_acked: bool,
    ) -> None:  # fmt: skip
        """Create it; called by `RabbitStore.scan`. `folder()` opens a reader of the files as they are then."""
        self._folder = folder
        self.columns = COLUMNS if columns is None else tuple(columns)
        self._queues = word_set(queues, "queues")
        self._start, self._stop = start, stop
        self._routing_keys = word_set(routing_keys, "routing_keys")
        self._include_acked = include_acked
        self.schema = schema(self.columns)

    def __repr__(self) -> str:
        """Show the queues and the columns."""
        queues = "all queues" if self._queues is None else ", ".join(sorted(self._queues))
        return f"<QueueScan of {queues}: {', '.join(self.columns)}>"

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for built in record_batches(self._messages(), self.schema, _raise):
            yield built.batch

    def _messages(self) -> Iterator[StoredMessage]:
        """Yield the selected messages up to the first damage.

        What looks damaged is read again, because a message may have been acknowledged and deleted since its entry was read.
        """
        done: dict[str, int] = {}
        suspects: set[Problem] = set()
        for attempt in range(ATTEMPTS_MAX):
            with closing(self._folder()) as folder:
                yield from self._before_problem(folder, done)
            found = [problem for problem in folder.problems if problem in suspects or attempt == ATTEMPTS_MAX - 1]
            if found:
                raise _to_error(folder.path, found[0])
            if not folder.problems:
                return
            suspects.update(folder.problems)

    def _before_problem(self, folder: VhostFolder, done: dict[str, int]) -> Iterator[StoredMessage]:
        """Yield what was not yielded before; `done` has the next sequence number of each folder of a queue."""
        for queue in folder.queue_folders():
            if self._queues is not None and queue.queue not in self._queues:
                continue
            start = done.get(queue.folder, offset_of(self._start, queue.queue, 0))
            stop = offset_of(self._stop, queue.queue, SEQ_ID_MAX)
            for message in folder.messages_in(queue, include_acked=self._include_acked, start=start, stop=stop):
                if folder.problems:
                    return
                done[queue.folder] = message.seq_id + 1
                if self._routing_keys is None or not self._routing_keys.isdisjoint(message.routing_keys):
                    yield message


def _raise(_message: StoredMessage, error: StoreCorrupt) -> None:
    raise error


def _to_error(path: str, problem: Problem) -> StoreError:
    if problem.kind == UNSUPPORTED:
        return to_unsupported(path, problem)
    file, reason = f"{path}/{problem.file}", problem.kind.replace("_", " ")
    return StoreCorrupt(reason, file=file, offset=problem.offset, expected=problem.expected, found=problem.found)
