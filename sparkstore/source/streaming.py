"""The streaming source: follow a log by physical offset, batch by batch, up to its durable end.

    spark.readStream.format("brokerstore").option("maxBytesPerTrigger", "64m").load("/data/store")

Options of the batch source (`options.py`), and

    maxBytesPerTrigger   maximum bytes of the log in one batch, to within a record; default: everything available
    maxMessagesPerTrigger    maximum number of records in one batch, whatever their topic; also maxOffsetsPerTrigger
    minOffsetsPerTrigger     wait for so many records, whatever their topic, before a batch is made
    maxTriggerDelay          but not longer than this: a number with ms, s, m or h (default 15m)
    startingOffsets      earliest (default), latest, a physical offset, or JSON with queue offsets; this and startingTimestamp
                         apply only to a new query: a resumed one keeps its original start
    endingOffsets, endingTimestamp    end of the stream
    failOnDataLoss       true (default): records that retention deleted before they were read, and a store that was rewound, are
                         errors; false: the stream logs a warning and continues with the records that exist

A batch [a, b) owns the records that start in it, so a batch may be cut anywhere.  Offsets: `log_position.py`.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from brokerstore.identify import FolderKind
from storageio import REAL_DISK, StoreError, StoreRewound, UnknownStore

from ..errors import BadOption
from ..object_disk import is_remote
from ..options import EARLIEST, OFFSET_MAX, by_our_names, parse_read_options, refuse_foreign_options, size_of
from ..schema import check_schema
from .batches import ReadRequest, record_batches
from .log_position import LogEnds, Position, check_begin
from .queue_starts import check_queue_starts, check_queues_exist, messages_behind, with_group_offsets
from .splits import CLOCK_SLACK_MS, LogSplit, log_range
from .start_position import StartPosition
from .stores import FoundStore, find_stores
from .worker import one_line_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

LOG = logging.getLogger(f"brokerstore.{__name__}")
MAX_BYTES = "maxBytesPerTrigger"
MAX_MESSAGES = "maxMessagesPerTrigger"
MIN_MESSAGES, MAX_DELAY, MAX_DELAY_DEFAULT = "minOffsetsPerTrigger", "maxTriggerDelay", "15m"
STARTING = "startingOffsets"
LATEST = "latest"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@one_line_errors
class BrokerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader: one instance lives in a process beside the driver as long as the query, copies read in tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType, store: FoundStore, among: list[FoundStore]) -> None:
        """Follow one store `among` those of the query.  Raises `BadOption`, `UnknownColumn` and `UnknownStore`."""
        given = by_our_names(options)
        self._max_bytes = _max_bytes(given.pop(MAX_BYTES.lower(), None))
        self._max_messages = _positive(MAX_MESSAGES, given.pop(MAX_MESSAGES.lower(), None))
        self._min_messages = _positive(MIN_MESSAGES, given.pop(MIN_MESSAGES.lower(), None))
        self._delay_s = _duration_s(MAX_DELAY, given.pop(MAX_DELAY.lower(), MAX_DELAY_DEFAULT))
        self._batch_s = time.monotonic()  # when the last batch was planned
        self._planned: int | None = None  # where the last planned batch ended
        self._from_latest = given.get(STARTING.lower(), "").lower() == LATEST
        if self._from_latest:
            del given[STARTING.lower()]
        parsed = parse_read_options(given)
        refuse_foreign_options(parsed, is_rabbit=False)
        check_schema(schema, options=parsed)
        self._options = parsed
        self.shows_trace = parsed.shows_trace
        self.request = ReadRequest.of(replace(parsed, start=EARLIEST, begin_ms=None), schema)  # offsets say where it began
        self._store, self._among = store, among
        self._ends = LogEnds(_root(self._store), list(self._store.log_folders), parsed.file_bytes)
        self._target: Position | None = None

    @property
    def fails_on_data_loss(self) -> bool:
        """Return the option `failOnDataLoss`."""
        return self._options.fail_on_data_loss

    # Offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Return the start of a query without a checkpoint."""
        position = self._initial()
        return position._replace(starting=StartPosition.of(self._options)).to_json()

    def _initial(self) -> Position:
        check_queues_exist(self._among, self._options)
        self._options = options = with_group_offsets([self._store], self._options)
        low = self._ends.low()
        if self._from_latest:
            return self._end()
        if options.start.is_physical:
            return Position(options.start.physical_offset)
        check_queue_starts(self._store, options, low)
        if options.begin_ms is not None:
            low = max(low, self._ends.start_by_time(options.begin_ms, CLOCK_SLACK_MS))
        return Position(low)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Return the end of the next batch; it is `start` if nothing new is durable."""
        begin = Position.of_json(start)
        made = self._next(start, begin, limit)
        self._planned = Position.of_json(made).physical_offset
        return made

    def _next(self, start: dict[str, Any], begin: Position, limit: ReadLimit) -> dict[str, Any]:
        is_known = self._is_known(begin)
        end = self._end()
        if self._target is not None and self._target.physical_offset < end.physical_offset:
            end = self._target
        if end.physical_offset <= begin.physical_offset:
            return start if is_known else end._replace(starting=begin.starting).to_json()
        if is_known and self._waits_for_more(begin, end):
            return start
        self._batch_s = time.monotonic()
        if isinstance(limit, ReadMaxBytes):
            end = self._ends.cut(self._begin(begin.physical_offset), limit.max_bytes, end)
        if self._max_messages is not None:
            end = self._ends.cut_messages(self._begin(begin.physical_offset), self._max_messages, end)
        return end._replace(starting=begin.starting).to_json()

    def _waits_for_more(self, begin: Position, end: Position) -> bool:
        """Return whether fewer records than `minOffsetsPerTrigger` are there, and the delay is not over.

        A run with `availableNow` takes what there is, as with Kafka's source.
        """
        if self._min_messages is None or self._target is not None or time.monotonic() - self._batch_s >= self._delay_s:
            return False
        if self._min_messages == 1:
            return False
        fewer = self._ends.cut_messages(self._begin(begin.physical_offset), self._min_messages - 1, end)
        return fewer.physical_offset >= end.physical_offset

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """Return a limit in bytes if the option is set."""
        return ReadAllAvailable() if self._max_bytes is None else ReadMaxBytes(self._max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Limit this run to the records that are durable now."""
        self._target = self._end()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Return the durable end for the query's progress report, and how far behind it the query is.

        `backlog_bytes` are the bytes of the log after the batch planned last, `backlog_messages` the messages there by topic
        and queue, as far as the queues in the folder have them, and `store_timestamp_ms` is the time of the last record.
        """
        end = self._end()
        behind: dict[str, Any] = {}
        if self._planned is not None:
            behind = {"backlog_bytes": max(0, end.physical_offset - self._planned)}
            messages = messages_behind(self._store, self._options, self._planned)
            behind |= {} if messages is None else {"backlog_messages": messages}
        newest = {} if end.anchor is None else {"store_timestamp_ms": end.anchor.store_timestamp_ms}
        return end.to_json() | behind | newest

    def _end(self) -> Position:
        """Return the durable end, or the end that the options set if that comes first."""
        end = self._ends.end(self._options.end_ms)
        stop = self._options.stop.physical_offset
        return end if end.physical_offset <= stop else Position(stop)

    def _is_known(self, position: Position) -> bool:
        """Return whether the log still has the position's anchor.  Raises `StoreRewound` where that is an error."""
        try:
            self._ends.check(position)
        except StoreRewound as error:
            if self._options.fail_on_data_loss:
                raise
            LOG.warning("%s; continuing with the records that exist", error)
            return False
        return True

    def _begin(self, offset: int) -> int:
        """Return `offset` or the log's start if that is later.  Raises `DataLost` where that is an error."""
        begin = check_begin(self._ends, offset, self._options.fail_on_data_loss)
        if begin > offset:
            LOG.warning("%s: %d bytes of the log were deleted before they were read", self._store.path, begin - offset)
        return begin

    # Reads

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the splits of a batch, which an earlier run may have planned already."""
        first, last = Position.of_json(start), Position.of_json(end)
        for position in (first, last):
            self._is_known(position)
        if last.physical_offset <= first.physical_offset:
            return []
        begin = self._begin(first.physical_offset)
        made = log_range(self._store, begin, last.physical_offset, self._options.split_bytes, self._options.file_bytes)
        return [StreamPartition(split, first.starting) for split in made]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a split in a task."""
        if not isinstance(partition, StreamPartition):
            return iter(())
        return record_batches(partition.value, self.request.beginning(partition.starting))


@one_line_errors
class FailedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error that prevented a reader, at the first call."""

    def __init__(self, error: StoreError, shows_trace: bool) -> None:
        """Keep the error and its form."""
        self._error = error
        self.shows_trace = shows_trace

    def _raise(self, *_arguments: Any, **_named: Any) -> Any:
        raise self._error

    initialOffset = latestOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = partitions = read = _raise  # noqa: N815


class StreamPartition(InputPartition):
    """A split of a batch and the start position of its query; pickled for a task."""

    def __init__(self, split: LogSplit, starting: StartPosition | None) -> None:
        """Keep the split as the value that Spark passes on."""
        super().__init__(split)
        self.starting = starting


def _max_bytes(text: str | None) -> int | None:
    try:
        found = None if text is None else size_of(text)
    except ValueError:
        found = 0
    if found is not None and found <= 0:
        raise BadOption(f"option {MAX_BYTES}: expected a positive number of bytes (k, m or g may follow), found {text!r}")
    return found


def _positive(name: str, text: str | None) -> int | None:
    if text is not None and not (text.isascii() and text.isdigit() and 0 < int(text[:19]) <= OFFSET_MAX):
        raise BadOption(f"option {name}: expected a positive whole number, found {text!r}")
    return None if text is None else int(text)


def _duration_s(name: str, text: str) -> float:
    """Parse a number with a unit.

    >>> _duration_s("maxTriggerDelay", "90s"), _duration_s("maxTriggerDelay", "15m")
    (90.0, 900.0)
    """
    found = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h)", text.strip())
    if found is None:
        raise BadOption(f"option {name}: expected a number with ms, s, m or h, found {text!r}")
    return int(found[1]) * _SECONDS[found[2]]


def followed_stores(paths: tuple[str, ...]) -> list[FoundStore]:
    """Return the stores to follow.  Raises `BadOption` and `UnknownStore` for what a stream cannot follow."""
    if any(is_remote(path) for path in paths):
        raise BadOption(f"path {', '.join(paths)}: a stream follows only stores in a mounted folder")
    found = find_stores(paths)
    if found[0].is_rabbit:
        raise UnknownStore(f"{found[0].path}: a RabbitMQ folder has no log to follow; read it as a batch")
    return found


def _root(store: FoundStore) -> str:
    """Return the folder of checkpoint and abort file; for a bare log folder it is the parent."""
    if store.kind is not FolderKind.LOG:
        return store.path
    above = os.path.dirname(os.path.abspath(store.path))
    has_any = any(REAL_DISK.stat(os.path.join(above, name)) is not None for name in ("checkpoint", "abort"))
    return above if has_any else store.path
