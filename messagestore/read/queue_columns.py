"""A queue's messages as Arrow batches: units give the places, and the columns are made of the log's own bytes.

No Python object is made for a message.  Where there is enough for two batches they are made at the same time, the second on a
thread of its own, which ends before either is handed out: a kernel fills them without the interpreter.  Needs pyarrow (extra
`arrow`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from commitlog import CommitLog, StoredMessage
from commitlog._rows_cy import split_units
from commitlog.arrow_columns import checked_batch, schema
from commitlog.checks import CHECK_READ
from commitlog.columns import BATCH_ROWS, Batch
from consumequeue import Queue
from consumequeue.layout import UNIT, UNIT_SIZE
from storageio import DiskError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 4 << 20  # of records, so that a batch stays near the processor; one record may be more
Confirm = Callable[[Queue, int, int, int], StoredMessage | None]


def read_queue_columns(
    log: CommitLog, queue: Queue | None, start: int, stop: int, columns: Sequence[str], confirm: Confirm,
    low: Callable[[Queue], int],
) -> pa.RecordBatchReader:  # fmt: skip
    """The wanted columns of messages `start` to before `stop`; those whose records left the log are passed over.

    `confirm(queue, queue_offset, physical_offset, size)` is asked about a unit that points at no record of its size: it
    raises `StoreCorrupt`, or answers None when the record left the log meanwhile.  `low(queue)`: where the queue begins now.
    """
    import pyarrow as pa  # 150 ms

    wanted = schema(columns)
    pieces = _pieces(log, queue, start, stop, columns, confirm, low) if queue is not None else iter(())
    return pa.RecordBatchReader.from_batches(wanted, pieces)


def _pieces(
    log: CommitLog, queue: Queue, start: int, stop: int, columns: Sequence[str], confirm: Confirm,
    low: Callable[[Queue], int],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Checked records of a queue, in order; a batch lies in one log file and is bounded in rows and bytes."""
    at, stop = queue.unit_range(start, stop)
    while at < stop:
        units = queue.packed_units(at, min(stop - at, 2 * BATCH_ROWS))
        if units is None:  # a queue file was deleted meanwhile, perhaps by another process
            now = low(queue)
            if at >= now:
                return
            at = now
            continue
        for made in (both := _two_at_once(log, units, columns)):
            yield made
            at += made.num_rows
        if not both:
            piece, passed = _piece(log, queue, at, units[: BATCH_ROWS * UNIT_SIZE], columns, confirm)
            if piece is not None:
                yield piece
            at += passed


def _two_at_once(log: CommitLog, units: memoryview, columns: Sequence[str]) -> list[pa.RecordBatch]:
    """The first two batches of these units; one or none where something is not as the units say, or there are not two."""
    first = _planned(log, units[: BATCH_ROWS * UNIT_SIZE])
    rest = units[first.rows * UNIT_SIZE :] if first is not None else units[:0]
    second = _planned(log, rest[: BATCH_ROWS * UNIT_SIZE]) if len(rest) else None
    if first is None or second is None:
        return []
    found: list[pa.RecordBatch] = []

    def fill() -> None:
        with suppress(Exception):  # made again alone, where it is raised
            found.append(second.made(columns))

    beside = threading.Thread(target=fill, name="brokerstore-columns", daemon=True)
    beside.start()
    try:
        made = first.made(columns)
    finally:
        beside.join()
    return [batch for batch in (made, *(found if made.num_rows == first.rows else ())) if batch.num_rows]


def _piece(
    log: CommitLog, queue: Queue, at: int, units: memoryview, columns: Sequence[str], confirm: Confirm
) -> tuple[pa.RecordBatch | None, int]:
    """The records of the first of these units: of one log file, up to the first unit that points at no record.

    Beside it the number of units that are done with.
    """
    physical, size, _ = UNIT.unpack_from(units)
    for is_confirmed in (False, True):
        planned = _planned(log, units)
        made = planned.made(columns) if planned is not None else None
        if made is not None and made.num_rows:
            return made, made.num_rows
        if not is_confirmed and physical >= log.min_offset:
            confirm(queue, at, physical, size)
    return None, max(1, _count_before(units, log.min_offset))


class _Planned(NamedTuple):
    """A batch to be made: of units that point into one file, up to the first that does not."""

    batch: Batch
    size_bytes: int

    @property
    def rows(self) -> int:
        """Fewer are made where a unit points at no whole record."""
        return len(self.batch.positions)

    def made(self, columns: Sequence[str]) -> pa.RecordBatch:
        """Its records, up to the first that is none."""
        return checked_batch(self.batch, columns, CHECK_READ, self.size_bytes)


def _planned(log: CommitLog, units: memoryview) -> _Planned | None:
    """None when the first unit points nowhere.  Touches no record."""
    import numpy as np  # 80 ms

    opened = _open(log, UNIT.unpack_from(units)[0])
    if opened is None:
        return None
    count = len(units) // UNIT_SIZE
    positions, sizes = np.empty(count, np.int64), np.empty(count, np.int32)
    rows, total = split_units(units, UNIT_SIZE, opened.base, len(opened.view), BATCH_BYTES, positions, sizes)
    return _Planned(Batch(opened.view, opened.base, positions[:rows], sizes[:rows]), total) if rows else None


def _count_before(units: memoryview, physical_offset: int) -> int:
    """How many units in a row, from the first on, point below an offset."""
    count = 0
    for physical, _, _ in UNIT.iter_unpack(units):
        if physical >= physical_offset:
            break
        count += 1
    return count


class _Opened(NamedTuple):
    """A log file that was found and mapped."""

    base: int
    view: memoryview


def _open(log: CommitLog, physical_offset: int) -> _Opened | None:
    """None when the file left the log, or never was in it."""
    file = log.queue.find(physical_offset)
    try:
        return None if file is None else _Opened(file.start_offset, log.queue.view(file))
    except DiskError:  # deleted since it was found
        return None
