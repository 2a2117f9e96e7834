"""A queue's messages as Arrow batches: units give the places, and the columns are made of the log's own bytes.

No Python object is made for a message.  Needs pyarrow (extra `arrow`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog import CHECK_ALL, CommitLog, StoredMessage
from commitlog.arrow_columns import checked_batch, schema
from commitlog.columns import BATCH_ROWS, Batch
from consumequeue import ConsumeQueue
from consumequeue.layout import UNIT_SIZE
from storageio import DiskError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BATCH_BYTES = 4 << 20  # of records, so that a batch stays near the processor; one record may be more
Confirm = Callable[[ConsumeQueue, int, int, int], StoredMessage | None]


def read_queue_columns(
    log: CommitLog, queue: ConsumeQueue | None, start: int, stop: int, columns: Sequence[str], confirm: Confirm
) -> pa.RecordBatchReader:
    """The wanted columns of messages `start` to before `stop`; those whose records left the log are passed over.

    `confirm(queue, queue_offset, physical_offset, size)` is asked about a unit that points at no record of its size: it
    raises `StoreCorrupt`, or answers None when the record left the log meanwhile.
    """
    import pyarrow as pa  # 150 ms

    wanted = schema(columns)
    pieces = _pieces(log, queue, start, stop, columns, confirm) if queue is not None else iter(())
    return pa.RecordBatchReader.from_batches(wanted, pieces)


def _pieces(
    log: CommitLog, queue: ConsumeQueue, start: int, stop: int, columns: Sequence[str], confirm: Confirm
) -> Iterator[pa.RecordBatch]:
    """Checked records of a queue, in order; a batch lies in one log file and is bounded in rows and bytes."""
    at = start
    while at < stop:
        units = _units(queue, at, min(stop - at, BATCH_ROWS))
        if not len(units):
            if at >= queue.min_offset:
                return
            at = queue.min_offset  # a queue file was deleted meanwhile
            continue
        piece, passed = _piece(log, queue, at, units[: _alike(log, units)], columns, confirm)
        if piece is not None:
            yield piece
        at += passed


def _units(queue: ConsumeQueue, at: int, count: int) -> np.ndarray[Any, Any]:
    """Up to `count` units of one queue file."""
    import numpy as np  # 80 ms

    packed = queue.index_buffer(at)
    data = b"" if packed is None else packed[: count * UNIT_SIZE]
    return np.frombuffer(data, np.dtype([("physical", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]))


def _alike(log: CommitLog, units: np.ndarray[Any, Any]) -> int:
    """How many of the first units point into one log file and stay within a batch's bytes; at least 1."""
    import numpy as np  # 80 ms

    files = units["physical"].astype(np.int64) // log.file_size_bytes
    same = int(np.argmax(files != files[0])) or len(units)
    ends = np.cumsum(units["size"][:same].astype(np.int64))
    return max(1, int(np.searchsorted(ends, BATCH_BYTES, "right")))


def _piece(
    log: CommitLog, queue: ConsumeQueue, at: int, units: np.ndarray[Any, Any], columns: Sequence[str], confirm: Confirm
) -> tuple[pa.RecordBatch | None, int]:
    """The records of the first of these units, which point into one file: up to the first that points at none.

    Beside it the number of units that are done with.
    """
    import numpy as np  # 80 ms

    physicals, sizes = units["physical"].astype(np.int64), units["size"].astype(np.int32)
    first, size = int(physicals[0]), int(sizes[0])
    opened = _open(log, first)
    for is_confirmed in (False, True):
        if opened is not None:
            batch = Batch(opened.view, opened.base, physicals - opened.base, sizes)
            made = checked_batch(batch, columns, CHECK_ALL)
            if made.num_rows:
                return made, made.num_rows
        if not is_confirmed and first >= log.min_offset:
            confirm(queue, at, first, size)
    is_gone = physicals < log.min_offset
    return None, (int(np.argmin(is_gone)) or len(units)) if is_gone[0] else 1


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
