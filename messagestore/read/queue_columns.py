"""Read a queue's messages as Arrow batches; units give the positions, and the columns are filled from the log's bytes.

No Python object is created per message.  If there are enough messages, two batches are filled in parallel, the second on a
thread of its own, which ends before either is returned: the kernel fills them without the GIL.  Needs pyarrow (extra
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

BATCH_BYTES = 4 << 20  # of records, so that a batch stays in the cache; one record may be larger
Confirm = Callable[[Queue, int, int, int], StoredMessage | None]


def read_queue_columns(
    log: CommitLog, queue: Queue | None, start: int, stop: int, columns: Sequence[str], confirm: Confirm,
    low: Callable[[Queue], int],
) -> pa.RecordBatchReader:  # fmt: skip
    """Return the columns of messages `start` to before `stop`; messages whose records left the log are skipped.

    `confirm(queue, queue_offset, physical_offset, size)` is called for a unit that points at no record of its size: it raises
    `StoreCorrupt`, or returns None if the record left the log meanwhile.  `low(queue)` returns where the queue begins now.
    """
    import pyarrow as pa  # takes 150 ms

    wanted = schema(columns)
    pieces = _pieces(log, queue, start, stop, columns, confirm, low) if queue is not None else iter(())
    return pa.RecordBatchReader.from_batches(wanted, pieces)


def _pieces(
    log: CommitLog, queue: Queue, start: int, stop: int, columns: Sequence[str], confirm: Confirm,
    low: Callable[[Queue], int],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield checked records of a queue, in order; each batch lies in one log file and is limited in rows and bytes."""
    at, stop = queue.unit_range(start, stop)
    while at < stop:
        units = queue.packed_units(at, min(stop - at, 2 * BATCH_ROWS))
        if units is None:  # a queue file was deleted in the meantime, perhaps by another process
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
    """Fill the first two batches of these units in parallel.

    Returns none if there is no second batch, and stops at a unit that does not match its record.
    """
    first = _planned(log, units[: BATCH_ROWS * UNIT_SIZE])
    rest = units[first.rows * UNIT_SIZE :] if first is not None else units[:0]
    second = _planned(log, rest[: BATCH_ROWS * UNIT_SIZE]) if len(rest) else None
    if first is None or second is None:
        return []
    found: list[pa.RecordBatch] = []

    def fill() -> None:
        with suppress(Exception):  # filled again later, where the error is raised
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
    """Return a batch of the first units, from one log file, up to the first unit that points at no record.

    Also returns the number of units that are done.
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
    """A batch to fill, of units that point into one file, up to the first that does not."""

    batch: Batch
    size_bytes: int

    @property
    def rows(self) -> int:
        """The number of planned rows; fewer are filled if a unit points at no whole record."""
        return len(self.batch.positions)

    def made(self, columns: Sequence[str]) -> pa.RecordBatch:
        """Fill the batch with its records, up to the first invalid one."""
        return checked_batch(self.batch, columns, CHECK_READ, self.size_bytes)


def _planned(log: CommitLog, units: memoryview) -> _Planned | None:
    """Plan a batch without reading any record; return None if the first unit points into no file."""
    import numpy as np  # takes 80 ms

    opened = _open(log, UNIT.unpack_from(units)[0])
    if opened is None:
        return None
    count = len(units) // UNIT_SIZE
    positions, sizes = np.empty(count, np.int64), np.empty(count, np.int32)
    rows, total = split_units(units, UNIT_SIZE, opened.base, len(opened.view), BATCH_BYTES, positions, sizes)
    return _Planned(Batch(opened.view, opened.base, positions[:rows], sizes[:rows]), total) if rows else None


def _count_before(units: memoryview, physical_offset: int) -> int:
    """Return how many leading units point below a physical offset."""
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
    """Map the file of a physical offset; return None if there is none."""
    file = log.queue.find(physical_offset)
    try:
        return None if file is None else _Opened(file.start_offset, log.queue.view(file))
    except DiskError:  # deleted in the meantime
        return None
