"""The messages of queues as a table for programs that take Arrow streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from storageio import StoreCorrupt
from storebytes.arrow_table import ArrowTable, Offsets, offset_of, word_set

from .columns import COLUMNS, record_batches, schema
from .stored_message import RabbitMessage
from .undamaged import undamaged_messages
from .vhost_folder import SEQ_ID_MAX, VhostFolder

if TYPE_CHECKING:
    import pyarrow as pa


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

    def _messages(self) -> Iterator[RabbitMessage]:
        """Yield the selected messages up to the first damage."""
        keys = self._routing_keys
        for message in undamaged_messages(self._folder, self._range_of, include_acked=self._include_acked):
            if keys is None or not keys.isdisjoint(message.routing_keys):
                yield message

    def _range_of(self, queue: str) -> range | None:
        if self._queues is not None and queue not in self._queues:
            return None
        return range(offset_of(self._start, queue, 0), offset_of(self._stop, queue, SEQ_ID_MAX))


def _raise(_message: RabbitMessage, error: StoreCorrupt) -> None:
    raise error
