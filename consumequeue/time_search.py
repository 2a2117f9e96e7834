"""From a time to a queue offset (section 8.3)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from .consume_queue import ConsumeQueue
from .layout import UNIT_SIZE

StoreTimeOf = Callable[[int, int], int]
"""(physical offset, size) -> store time in ms, or -1 where the log has no such record."""


class Boundary(Enum):
    """Which message answers when none, or several, were stored at the time asked for."""

    LOWER = "lower"  # the first stored then or later
    UPPER = "upper"  # the last stored then or earlier
    NEAREST = "nearest"  # the one closest in time, the earlier of two


class _File:
    """The written range of one file as the search sees it: unit numbers and their store times."""

    def __init__(self, queue: ConsumeQueue, start: int, store_time_of: StoreTimeOf, log_min_offset: int) -> None:
        self._queue = queue
        self._store_time_of = store_time_of
        self._log_min_offset = log_min_offset
        self.first = start // UNIT_SIZE
        self.floor = max(queue.min_offset, self.first)
        self.ceiling = min(queue.written, start + queue.file_size_bytes) // UNIT_SIZE - 1

    def time(self, queue_offset: int) -> int:
        """-1 when unknown."""
        unit = self._queue.unit(queue_offset)
        return self._store_time_of(unit.physical_offset, unit.size_bytes) if unit else -1

    def is_gone(self, queue_offset: int) -> bool:
        """Whether the record lies before the log."""
        unit = self._queue.unit(queue_offset)
        return unit is None or unit.physical_offset < self._log_min_offset

    def search(self, timestamp_ms: int, boundary: Boundary) -> int:
        """The queue offset within this file, by RocketMQ's steps."""
        is_lower = boundary is Boundary.LOWER
        if self.time(self.ceiling) < timestamp_ms:
            return self.ceiling + 1 if is_lower else self.ceiling
        if self.time(self.floor) > timestamp_ms:
            return self.first if is_lower else 0
        return self._halve(timestamp_ms, is_lower)

    def _halve(self, timestamp_ms: int, is_lower: bool) -> int:
        low, high = self.floor, self.ceiling
        left, right = self.first - 1, self.first - 1
        while low <= high:
            middle = (low + high) // 2
            if self.is_gone(middle):
                low, left = middle + 1, middle
                continue
            time = self.time(middle)
            if time < 0:
                return 0
            if time == timestamp_ms:
                return self._walk(middle, timestamp_ms, -1 if is_lower else 1)
            if time > timestamp_ms:
                high, right = middle - 1, middle
            else:
                low, left = middle + 1, middle
        return right if is_lower else left

    def _walk(self, found: int, timestamp_ms: int, step: int) -> int:
        """The last in this direction with the same time."""
        while self.floor <= found + step <= self.ceiling and self.time(found + step) == timestamp_ms:
            found += step
        return found


def offset_by_time(
    queue: ConsumeQueue, timestamp_ms: int, boundary: Boundary, store_time_of: StoreTimeOf, log_min_offset: int = 0
) -> int:
    """The queue offset for a time, between the queue's minimum and maximum.  0 for a queue without units."""
    if boundary is Boundary.NEAREST:
        return _nearest(queue, timestamp_ms, store_time_of, log_min_offset)
    starts = [start for start in queue.starts if start < queue.written]
    files = [_File(queue, start, store_time_of, log_min_offset) for start in starts]
    file = _choose(files, timestamp_ms, boundary)
    found = file.search(timestamp_ms, boundary) if file else 0
    return min(max(found, queue.min_offset), queue.max_offset)


def _choose(files: list[_File], timestamp_ms: int, boundary: Boundary) -> _File | None:
    """By the store times of first and last units; an unknown time is -1."""
    if boundary is Boundary.LOWER:
        for file in files[:-1]:
            if file.time(file.ceiling) >= timestamp_ms:
                return file
        return files[-1] if files else None
    for file in reversed(files):
        if file.time(file.first) <= timestamp_ms:
            return file
    return None


def _nearest(queue: ConsumeQueue, timestamp_ms: int, store_time_of: StoreTimeOf, log_min_offset: int) -> int:
    """The nearer neighbour, of two equally near the earlier; before all the first, after all the last."""
    first, last = queue.min_offset, queue.max_offset - 1
    if last < first:
        return first
    right = offset_by_time(queue, timestamp_ms, Boundary.LOWER, store_time_of, log_min_offset)
    if right > last:
        return last
    left = right - 1
    right_time, left_time = _time(queue, right, store_time_of), _time(queue, left, store_time_of)
    if left < first or left_time < 0 or right_time == timestamp_ms:
        return right
    return left if timestamp_ms - left_time <= right_time - timestamp_ms else right


def _time(queue: ConsumeQueue, queue_offset: int, store_time_of: StoreTimeOf) -> int:
    unit = queue.unit(queue_offset)
    return store_time_of(unit.physical_offset, unit.size_bytes) if unit else -1
