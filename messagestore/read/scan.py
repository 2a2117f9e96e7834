"""A topic's messages as a table for programs that take Arrow streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from commitlog.arrow_columns import schema
from commitlog.fields import COLUMNS
from commitlog.row_filter import IN, Condition, RowFilter
from commitlog.topic_names import SCHEDULE_TOPIC
from storebytes.arrow_table import ArrowTable, Offsets, offset_of, word_set

from .queue_columns import Selection

if TYPE_CHECKING:
    import pyarrow as pa

Time = datetime | int
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Scanned(Protocol):
    """What a scan calls of an open store."""

    def queue_ids(self, topic: str) -> list[int]: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int: ...
    def read_selection(
        self, topic: str, queue_id: int, start: int, stop: int | None, selection: Selection
    ) -> pa.RecordBatchReader: ...


class Scan(ArrowTable):
    """A topic's messages as an `ArrowTable`.

    Rows are in the order of queue ids, and of offsets within a queue. Each read starts again, and ends where the queues end at
    that time. Memory for one batch of rows is held, whatever the size of the store. The store must be open.

    Offsets and times select a range of each queue; times are found by binary search. Tags are compared with the codes in the
    queue before any record is read. Only the requested columns are built. Every record of the range that has one of the tags is
    checked, whatever the other filters.
    """

    def __init__(
        self, store: Callable[[], _Scanned], topic: str, queues: Iterable[int] | None, columns: Sequence[str] | None,
        begin: Time | None, end: Time | None, start: Offsets | None, stop: Offsets | None,
        tags: str | Iterable[str] | None, keys: str | Iterable[str] | None, decode_limit_bytes: int | None = None,
    ) -> None:  # fmt: skip
        """Create it; called by `scan` of a store. `store()` returns the store with everything that was put before the call."""
        self._store = store
        self.topic = topic
        self.columns = COLUMNS if columns is None else tuple(columns)
        self._queues = None if queues is None else sorted(set(queues))
        self._begin_ms, self._end_ms = _milliseconds(begin, "begin"), _milliseconds(end, "end")
        self._start, self._stop = start, stop
        self._decode_limit_bytes = decode_limit_bytes
        self._selection = self._select(word_set(tags, "tags"), word_set(keys, "keys"))
        self.schema = schema(self.columns)

    def _select(self, tags: frozenset[str] | None, keys: frozenset[str] | None) -> Selection:
        """Return what a queue's reader compares; the codes of delayed messages are not codes of tags."""
        conditions = []
        if self._begin_ms is not None:
            conditions.append(Condition("store_timestamp_ms", "ge", self._begin_ms))
        if self._end_ms is not None:
            conditions.append(Condition("store_timestamp_ms", "lt", self._end_ms))
        if tags is not None:
            conditions.append(Condition("tags", IN, tuple(sorted(tags))))
        row_filter = RowFilter(tuple(conditions), keys=keys) if conditions or keys is not None else None
        tags = None if self.topic == SCHEDULE_TOPIC else tags
        return Selection(self.columns, tags, row_filter, self._decode_limit_bytes)

    def __repr__(self) -> str:
        """Show the topic and the columns."""
        return f"<Scan of {self.topic}: {', '.join(self.columns)}>"

    def _batches(self) -> Iterator[pa.RecordBatch]:
        store = self._store()
        queue_ids = store.queue_ids(self.topic) if self._queues is None else self._queues
        if not queue_ids:  # an unknown topic is an error
            yield from store.read_selection(self.topic, 0, 0, 0, self._selection)
        for queue_id in queue_ids:
            start, stop = self._range(store, queue_id)
            if start < stop:
                yield from store.read_selection(self.topic, queue_id, start, stop, self._selection)

    def _range(self, store: _Scanned, queue_id: int) -> tuple[int, int]:
        """Return the queue offsets that the filters by offset and time leave."""
        start, stop = store.min_offset(self.topic, queue_id), store.max_offset(self.topic, queue_id)
        if self._begin_ms is not None:
            start = max(start, store.offset_by_time(self.topic, queue_id, self._begin_ms))
        if self._end_ms is not None:
            found = store.offset_by_time(self.topic, queue_id, self._end_ms)
            stop = min(stop, found) if found > 0 else stop  # 0: perhaps the search met an unreadable time
        return max(start, offset_of(self._start, queue_id, start)), min(stop, offset_of(self._stop, queue_id, stop))


def _milliseconds(given: Time | None, name: str) -> int | None:
    if isinstance(given, datetime):
        microseconds = (given.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)
        return -(-microseconds // 1000)  # store times are whole milliseconds
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    raise TypeError(f"{name}: a datetime or milliseconds expected, found {type(given).__name__}")
