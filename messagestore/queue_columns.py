"""A queue's messages as Arrow batches: units give the places, and the columns are made of the log's own bytes.

No Python object is made for a message.  Needs pyarrow (extra `arrow`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog import CHECK_ALL, CommitLog, StoredMessage
from commitlog._scan_cy import Reader
from commitlog.arrow_columns import record_batch, schema
from commitlog.columns import BATCH_BYTES, BATCH_ROWS, Batch
from consumequeue import ConsumeQueue
from consumequeue.layout import UNIT_SIZE
from storageio import DiskError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

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
    pieces = queue_batches(log, queue, start, stop, confirm) if queue is not None else iter(())
    return pa.RecordBatchReader.from_batches(wanted, (record_batch(piece, columns) for piece in pieces))


def queue_batches(log: CommitLog, queue: ConsumeQueue, start: int, stop: int, confirm: Confirm) -> Iterator[Batch]:
    """Checked records of a queue, in order; a batch lies in one log file and is bounded in rows and bytes."""
    at = start
    while at < stop:
        units = _units(queue, at, min(stop - at, BATCH_ROWS))
        if not len(units):
            if at >= queue.min_offset:
                return
            at = queue.min_offset  # a queue file was deleted meanwhile
            continue
        count = _alike(log, units)
        batch = _batch(log, queue, at, units[:count], confirm)
        if batch is not None:
            yield batch
        at += count


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


def _batch(log: CommitLog, queue: ConsumeQueue, at: int, units: np.ndarray[Any, Any], confirm: Confirm) -> Batch | None:
    """The records of units that point into one file; None when the file left the log."""
    import numpy as np  # 80 ms

    physicals, sizes = units["physical"].astype(np.int64), units["size"].astype(np.int32)
    opened = _open(log, int(physicals[0]))
    packed = np.ascontiguousarray(units).view(np.uint8)
    if opened is not None and opened.reader.count_records(packed, UNIT_SIZE) == len(units):
        return Batch(opened.view, opened.base, physicals - opened.base, sizes)
    rows = []
    for row, (physical, size) in enumerate(zip(physicals.tolist(), sizes.tolist(), strict=True)):
        is_here = opened is not None and _is_record(opened, physical, size)
        if not is_here and physical >= log.min_offset:
            confirm(queue, at + row, physical, size)
            is_here = opened is not None and _is_record(opened, physical, size)
        if is_here:
            rows.append(row)
    if opened is None or not rows:
        return None
    return Batch(opened.view, opened.base, physicals[rows] - opened.base, sizes[rows])


class _Opened(NamedTuple):
    """A log file that was found and mapped."""

    base: int
    view: memoryview
    reader: Reader


def _open(log: CommitLog, physical_offset: int) -> _Opened | None:
    """None when the file left the log, or never was in it."""
    file = log.queue.find(physical_offset)
    try:
        return None if file is None else _Opened(file.start_offset, log.queue.view(file), log.reader(file))
    except DiskError:  # deleted since it was found
        return None


def _is_record(opened: _Opened, physical_offset: int, size: int) -> bool:
    """Whether a whole record of that size begins there."""
    place = physical_offset - opened.base
    return 0 <= place <= len(opened.view) and opened.reader.check(place, CHECK_ALL) == size
