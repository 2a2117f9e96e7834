"""Find a queue offset by time (docs/formats/read-rules.md#offset-by-time).

Units come from the mapped queue file, store times from the log's own bytes.  If the store's clock was set back, times are not
in order and the binary search ends at some message, as RocketMQ's does.  One difference: among messages of one time RocketMQ
steps from one to the next, while this module continues the binary search.  Both return a message of that time whose neighbour
has another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from commitlog._find_cy import LogReaders

from .boundary import Boundary
from .layout import SIZE_AT, UNIT_SIZE

if not cython.compiled:
    from storebytes._bytes_cy import I64, Bool, Size, Source, get_i32, get_i64, source_of

StoreTimeOf = Callable[[int, int], int]
"""(physical offset, size) -> store time in ms, or -1 where the log has no such record."""
LOWER = Boundary.LOWER
NEAREST = Boundary.NEAREST
NO_TIME = -1
_NOTHING = memoryview(b"")


class TimeFile:
    """The written range of one queue file as the search sees it: unit numbers and their store times."""

    __slots__ = ("_count", "_first", "_held", "_invoke", "_log_min_offset", "_readers", "_source", "ceiling", "floor")

    def __init__(self, queue: Any, start: I64, written: I64, low: I64, store_time_of: Any, log_min_offset: I64) -> None:
        """Map the file that begins at byte `start`; `written` is the end of the queue and `low` its minimum.

        A file that was deleted meanwhile has no units, and so no times.
        """
        held: memoryview | None = queue.file_view(start)
        self._held = _NOTHING if held is None else held
        self._source: Source = source_of(self._held)
        self._count = max(0, min(len(self._held), written - start)) // UNIT_SIZE
        self._readers: LogReaders | None = store_time_of if isinstance(store_time_of, LogReaders) else None
        self._invoke = store_time_of
        self._log_min_offset = log_min_offset
        self._first = start // UNIT_SIZE
        self.floor = max(low, self._first)
        self.ceiling = self._first + self._count - 1

    def time(self, queue_offset: I64) -> Size:
        """Return the store time of a unit in ms, or -1 if it is unknown."""
        index: Size = queue_offset - self._first
        if index < 0 or index >= self._count:
            return NO_TIME
        physical: I64 = get_i64(self._source, UNIT_SIZE * index)
        if self._readers is not None:
            return self._readers.store_time(physical)
        return self._invoke(physical, get_i32(self._source, UNIT_SIZE * index + SIZE_AT))  # type: ignore[no-any-return]

    def is_gone(self, queue_offset: I64) -> Bool:
        """Return whether the unit's record lies before the log."""
        index: Size = queue_offset - self._first
        return index < 0 or index >= self._count or get_i64(self._source, UNIT_SIZE * index) < self._log_min_offset

    def search(self, timestamp_ms: I64, is_lower: Bool) -> Size:
        """Return the queue offset within this file, by RocketMQ's steps."""
        if self.time(self.ceiling) < timestamp_ms:
            return self.ceiling + 1 if is_lower else self.ceiling
        if self.time(self.floor) > timestamp_ms:
            return self._first if is_lower else 0
        return self._halve(timestamp_ms, is_lower)

    def _halve(self, timestamp_ms: I64, is_lower: Bool) -> Size:
        low: I64 = self.floor
        high: I64 = self.ceiling
        left: I64 = self._first - 1
        right: I64 = self._first - 1
        while low <= high:
            middle: I64 = (low + high) // 2
            if self.is_gone(middle):
                low, left = middle + 1, middle
                continue
            time: I64 = self.time(middle)
            if time < 0:
                return 0
            if time == timestamp_ms:
                return self._edge(middle, low - 1 if is_lower else high + 1, timestamp_ms)
            if time > timestamp_ms:
                high, right = middle - 1, middle
            else:
                low, left = middle + 1, middle
        return right if is_lower else left

    def _edge(self, found: I64, other: I64, timestamp_ms: I64) -> Size:
        """Return the last unit with the time of `found` in the direction of `other`, which has another time."""
        while other - found > 1 or found - other > 1:
            middle: I64 = (found + other) // 2
            if self.time(middle) == timestamp_ms:
                found = middle
            else:
                other = middle
        return found


def offset_by_time(
    queue: Any, timestamp_ms: I64, boundary: Boundary, store_time_of: StoreTimeOf | LogReaders, log_min_offset: I64 = 0
) -> int:
    """Return the queue offset for a time, between the queue's minimum and maximum; 0 for a queue without units."""
    if boundary is NEAREST:
        return _nearest(queue, timestamp_ms, store_time_of, log_min_offset)
    is_lower: Bool = boundary is LOWER
    bounds: tuple[list[int], int, int] = queue.bounds
    written: I64 = bounds[1]
    low: I64 = bounds[2]
    file: TimeFile | None = _choose(queue, bounds[0], written, timestamp_ms, is_lower, low, store_time_of, log_min_offset)
    found: I64 = file.search(timestamp_ms, is_lower) if file is not None else 0
    found = max(found, low)
    return min(found, written // UNIT_SIZE)


@cython.cfunc
def _choose(
    queue: Any, starts: list[int], written: I64, timestamp_ms: I64, is_lower: Bool, low: I64, store_time_of: Any,
    log_min_offset: I64,
) -> TimeFile | None:  # fmt: skip
    """Choose the file by the store times of first and last units; an unknown time is -1."""
    if starts and starts[len(starts) - 1] >= written:
        starts = [start for start in starts if start < written]
    file: TimeFile
    if is_lower:
        for start in starts:
            file = TimeFile(queue, start, written, low, store_time_of, log_min_offset)
            if start == starts[len(starts) - 1] or file.time(file.ceiling) >= timestamp_ms:
                return file
        return None
    for start in reversed(starts):
        file = TimeFile(queue, start, written, low, store_time_of, log_min_offset)
        if file.time(start // UNIT_SIZE) <= timestamp_ms:
            return file
    return None


def _nearest(queue: Any, timestamp_ms: I64, store_time_of: Any, log_min_offset: I64) -> int:
    """Return the unit nearest to the time, the earlier of two at the same distance.

    A time before all units gives the first, a time after all gives the last.
    """
    first, last = queue.min_offset, queue.max_offset - 1
    if last < first:
        return first  # type: ignore[no-any-return]
    right = offset_by_time(queue, timestamp_ms, LOWER, store_time_of, log_min_offset)
    if right > last:
        return last  # type: ignore[no-any-return]
    left = right - 1
    right_time, left_time = _time(queue, right, store_time_of), _time(queue, left, store_time_of)
    if left < first or left_time < 0 or right_time == timestamp_ms:
        return right
    return left if timestamp_ms - left_time <= right_time - timestamp_ms else right


def _time(queue: Any, queue_offset: int, store_time_of: Any) -> int:
    """Return the store time of one unit in any file, in ms, or -1 if it is unknown."""
    unit = queue.unit(queue_offset)
    if unit is None:
        return NO_TIME
    if isinstance(store_time_of, LogReaders):
        return store_time_of.store_time(unit.physical_offset)
    return store_time_of(unit.physical_offset, unit.size_bytes)  # type: ignore[no-any-return]
