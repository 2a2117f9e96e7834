"""Find a queue offset by time in a batch queue.

The search uses the times in the units, in one file, and returns a batch's first queue offset.  The steps are RocketMQ's and
are tested against the answers of a real store; its UPPER falls back to the minimum if the search ends on a later batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .boundary import Boundary
from .layout import BATCH_UNIT_SIZE

if TYPE_CHECKING:
    from .batch import BatchQueue, BatchUnit


def batch_offset_by_time(queue: BatchQueue, timestamp_ms: int, boundary: Boundary) -> int:
    """Return the first queue offset of the batch for a time, or 0 for a queue without units."""
    if boundary is Boundary.NEAREST:
        return _nearest(queue, timestamp_ms)
    first, last = _file_for(queue, timestamp_ms)
    newest = queue.unit(last)
    if newest is None:
        return 0
    if timestamp_ms >= newest.store_timestamp_ms:
        return newest.base_offset
    found = _search(queue, first, last, timestamp_ms, boundary is Boundary.UPPER)
    return max(found.base_offset if found else 0, queue.min_offset)


def _file_for(queue: BatchQueue, timestamp_ms: int) -> tuple[int, int]:
    """Return the first and last unit number of the last file that begins at or before the time.

    If there is none, the first file is taken.
    """
    first = queue.first_index
    starts = [start for start in queue.starts if start < queue.written]
    for start in reversed(starts):
        unit = queue.unit(start // BATCH_UNIT_SIZE)
        if unit is not None and unit.store_timestamp_ms <= timestamp_ms:
            first = start // BATCH_UNIT_SIZE
            break
    return first, min(queue.stop_index, first + queue.file_size_bytes // BATCH_UNIT_SIZE) - 1


def _search(queue: BatchQueue, left: int, right: int, timestamp_ms: int, is_upper: bool) -> BatchUnit | None:
    """Search as RocketMQ's binarySearchRight does; every iteration narrows the range."""
    while left <= right:
        middle = (left + right) // 2
        unit = queue.unit(middle)
        if unit is None:
            return None
        time = unit.store_timestamp_ms
        if middle in (left, right):
            if time >= timestamp_ms:
                return unit
            left = middle + 1
        elif is_upper and time <= timestamp_ms:
            left = middle
        elif is_upper:
            right = middle - 1
        elif time < timestamp_ms:
            left = middle + 1
        else:
            right = middle
    return None


def _nearest(queue: BatchQueue, timestamp_ms: int) -> int:
    """Return the first queue offset of the batch nearest to the time, the earlier of two at the same distance."""
    low, high = queue.first_index, queue.stop_index
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is not None and unit.store_timestamp_ms >= timestamp_ms:
            high = middle
        else:
            low = middle + 1
    left, right = queue.unit(low - 1) if low > queue.first_index else None, queue.unit(low)
    if left is None or right is None:
        known = left or right
        return known.base_offset if known else 0
    is_left = timestamp_ms - left.store_timestamp_ms <= right.store_timestamp_ms - timestamp_ms
    return left.base_offset if is_left else right.base_offset
