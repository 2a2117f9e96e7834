"""Batch queues: one 46-byte unit per record of several messages (`docs/formats/consumequeue.md#batch-unit`).

The search by time uses the times in the units, in one file, and returns a batch's first queue offset.  The steps are RocketMQ's
and are tested against the answers of a real store; its UPPER falls back to the minimum if the search ends on a later batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any, NamedTuple

from storageio import InvalidMessage

from .boundary import Boundary
from .layout import BATCH_UNIT, BATCH_UNIT_SIZE, UNIT
from .queue import Queue, first_where

NO_COMPACTED_OFFSET = -1
RESERVED = 0
BATCH_SIZE_MAX = 32767
EMPTY = -1  # minimum of a queue without units


class BatchUnit(NamedTuple):
    """Position of a record and the `batch_size` queue offsets that it holds, from `base_offset` on."""

    physical_offset: int
    size_bytes: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    batch_size: int
    compacted_offset: int = NO_COMPACTED_OFFSET
    reserved: int = RESERVED

    @property
    def is_valid(self) -> bool:
        """Whether the fields are those of a unit; the first invalid unit ends the queue."""
        return self.physical_offset >= 0 and self.size_bytes > 0 and self.base_offset >= 0 and self.batch_size > 0


class BatchQueue(Queue):
    """A queue of 46-byte units in `batchconsumequeue/<topic>/<queue id>/<20 digits>`."""

    __slots__ = ()
    unit_size = BATCH_UNIT_SIZE

    def _count_valid(self, units: bytes) -> int:
        found = map(BatchUnit._make, BATCH_UNIT.iter_unpack(units[: len(units) // BATCH_UNIT_SIZE * BATCH_UNIT_SIZE]))
        return sum(1 for _ in takewhile(lambda unit: unit.is_valid, found))

    def unit(self, index: int) -> BatchUnit | None:
        """Return unit number `index`, counted from the first one that the queue ever had; None if there is none."""
        data = self.read_unit(index * BATCH_UNIT_SIZE) if index >= 0 else None
        return BatchUnit._make(BATCH_UNIT.unpack(data)) if data else None

    @property
    def first_index(self) -> int:
        """Number of the first unit that is not deleted."""
        return self.starts[0] // BATCH_UNIT_SIZE if self.starts else 0

    @property
    def stop_index(self) -> int:
        """Number of the next unit."""
        return self.written // BATCH_UNIT_SIZE

    @property
    def last_unit(self) -> BatchUnit | None:
        """The last unit; None for an empty queue."""
        return self.unit(self.stop_index - 1)

    @property
    def min_offset(self) -> int:
        """First queue offset whose record the log still has, -1 without units.

        As in RocketMQ, only the first file is searched; if all of its records left the log, its first unit counts.
        """
        first = self.unit(self.first_index)
        if first is None:
            return EMPTY
        if first.physical_offset >= self._files.log_min_offset:
            return first.base_offset
        stop = min(self.stop_index, self.first_index + self.file_size_bytes // BATCH_UNIT_SIZE)
        found = self._first_at(self._files.log_min_offset, self.first_index, stop)
        kept = self.unit(found) if found < stop else None
        return (kept or first).base_offset

    @property
    def max_offset(self) -> int:
        """Next queue offset, 0 without units."""
        last = self.last_unit
        return last.base_offset + last.batch_size if last else 0

    @property
    def max_physical_offset(self) -> int:
        """*Start* of the last unit's record (in an ordinary queue it is the end), -1 without units."""
        last = self.last_unit
        return last.physical_offset if last else EMPTY

    def units(self) -> Iterator[BatchUnit]:
        """Yield all units of the queue."""
        return self._units_at(self.first_index, self.stop_index - self.first_index)

    def index_of(self, queue_offset: int) -> int:
        """Return the number of the unit that holds a queue offset; `stop_index` if none does."""

        def ends_behind(number: int) -> bool:
            unit = self.unit(number)
            return unit is not None and unit.base_offset + unit.batch_size > queue_offset

        return first_where(self.first_index, self.stop_index, ends_behind)

    def unit_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return the units whose messages overlap the range."""
        first = self.index_of(max(start, self.min_offset))
        last = self.index_of(stop) if stop < self.max_offset else self.stop_index
        unit = self.unit(last)
        return first, last + 1 if unit is not None and unit.base_offset < stop else last

    def _units_at(self, number: int, count: int) -> Iterator[BatchUnit]:
        at, stop = number * BATCH_UNIT_SIZE, (number + count) * BATCH_UNIT_SIZE
        while at < stop and (packed := self.rest(at)) is not None:
            packed = packed[: stop - at]
            yield from map(BatchUnit._make, BATCH_UNIT.iter_unpack(packed))
            at += len(packed)

    def packed_units(self, number: int, count: int) -> memoryview | None:
        """Return a copy of the units in the format of ordinary units."""
        return memoryview(b"".join(UNIT.pack(*unit[:3]) for unit in self._units_at(number, count))) or None

    def offsets_of(self, number: int, count: int) -> Iterable[tuple[int, int]]:
        """Return the first queue offset of each batch and its size."""
        return ((unit.base_offset, unit.batch_size) for unit in self._units_at(number, count))

    def records_from(self, physical_offset: int) -> Iterator[int]:
        """Yield the physical offsets in the order of the queue."""
        first = self._first_at(physical_offset, self.first_index, self.stop_index)
        return (unit.physical_offset for unit in self._units_at(first, self.stop_index - first))

    def roll_next_file(self, queue_offset: int) -> int:
        """Return the first queue offset of the next file; the maximum in the last file."""
        per_file = self.file_size_bytes // BATCH_UNIT_SIZE
        following = self.unit((self.index_of(queue_offset) // per_file + 1) * per_file)
        return following.base_offset if following is not None else self.max_offset

    def offset_by_time(self, timestamp_ms: int, boundary: Boundary, store_time_of: Any, log_min_offset: int) -> int:
        """Search the store times in the units; the log is not read."""
        return batch_offset_by_time(self, timestamp_ms, boundary)

    def still_points_at(self, number: int, physical_offset: int, size_bytes: int) -> bool:
        """Check as `Queue` does, after a `reload` in a process that does not write."""
        if not self.is_writable:
            self.reload()
        return super().still_points_at(number, physical_offset, size_bytes)

    def append(self, unit: BatchUnit) -> bool:
        """Append a unit; return False for a repeat, whose record does not begin after the last one's."""
        self._must_write()
        if not unit.is_valid or unit.batch_size > BATCH_SIZE_MAX:
            raise InvalidMessage(f"{self!r}: {unit} is no unit")
        if unit.physical_offset <= self.max_physical_offset:
            return False
        self._ensure_space(self.written)
        self._write(BATCH_UNIT.pack(*unit))
        return True

    def truncate(self, physical_offset: int) -> None:
        """Cut the units of records at or after `physical_offset`; zero the cut bytes and delete files after the end."""
        self._must_write()
        low = self._first_at(physical_offset, self.first_index, self.stop_index)
        starts = self.starts
        self._written = low * BATCH_UNIT_SIZE if starts else 0
        self._flushed = min(self._flushed, self._written)
        self._cut([start for start in starts if start < self._written or start == starts[0]])

    def delete_expired(self, log_min_offset: int) -> int:
        """Delete leading files as every queue does.  Corrects `min_offset` too, as RocketMQ does."""
        self._files.log_min_offset = log_min_offset
        return super().delete_expired(log_min_offset)


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

    def is_late(number: int) -> bool:
        unit = queue.unit(number)
        return unit is not None and unit.store_timestamp_ms >= timestamp_ms

    low = first_where(queue.first_index, queue.stop_index, is_late)
    left, right = queue.unit(low - 1) if low > queue.first_index else None, queue.unit(low)
    if left is None or right is None:
        known = left or right
        return known.base_offset if known else 0
    is_left = timestamp_ms - left.store_timestamp_ms <= right.store_timestamp_ms - timestamp_ms
    return left.base_offset if is_left else right.base_offset
