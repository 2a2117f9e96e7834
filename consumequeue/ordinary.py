"""Queues of 20-byte units, appended by RocketMQ's rules and read by queue offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

from commitlog.offset_files import list_offset_files
from storageio import SECTOR_SIZE, InvalidMessage

from ._time_cy import offset_by_time as search_store_times
from ._units_cy import count_below, count_new, count_repeated, count_valid, find_lost_front
from .layout import PRE_BLANK, UNIT, UNIT_SIZE
from .queue import READ_SIZE, Queue, first_where
from .queue_files import QueueFiles

CHECK_SIZE = 12_800 * UNIT_SIZE  # bytes of units checked in one call
NO_RECORD = -1  # greatest record end of a queue without units
END_MAX = (1 << 63) - 1


class Unit(NamedTuple):
    """Physical offset and size of a message's record, and the hash of its tags."""

    physical_offset: int
    size_bytes: int
    tags_code: int


class ConsumeQueue(Queue):
    """A queue of 20-byte units, one per message; the queue offset is the number of the unit.

    An open queue takes a few hundred bytes and no descriptor or map; its files are listed on first use.
    """

    __slots__ = ("_max_physical_offset", "_min_offset")
    unit_size = UNIT_SIZE

    def __init__(self, root: str, topic: str, queue_id: int, file_size_bytes: int, files: QueueFiles) -> None:
        """Create it as `Queue`; `file_size_bytes` is a multiple of the unit size."""
        super().__init__(root, topic, queue_id, file_size_bytes, files)
        self._max_physical_offset: int | None = None
        self._min_offset: int | None = None

    def _count_valid(self, units: bytes) -> int:
        return count_valid(units)

    def _count_sound(self, units: bytes, log_end: int) -> int:
        return count_below(units, log_end)

    def drop_files_after_gap(self) -> None:
        """Delete files after a gap in the file names, after an unclean stop and before the files are loaded.

        A crash can lose a file's name or size and keep a later file, because RocketMQ does not sync full files first.  It can
        also restore a deleted file without its neighbour.  The first contiguous group with records still in the log is kept.
        Files after a gap were never synced, so their units are dispatched again from the log.
        """
        self._must_write()
        groups: list[list[int]] = [[]]
        found = list_offset_files(self._files.disk, self.folder)
        for file in found:
            if file.size_bytes == 0:
                break
            if groups[-1] and file.start_offset != groups[-1][-1] + self.file_size_bytes:
                groups.append([])
            groups[-1].append(file.start_offset)
        while len(groups) > 1 and self._is_file_expired(groups[0][-1]):
            groups.pop(0)
        kept = groups[0]
        if len(kept) < len(found):
            with self._files.structure:
                self._delete_all_but(kept)
            self._starts = None

    def _is_file_expired(self, start: int) -> bool:
        """Return whether all records that the file's units point at were deleted."""
        last = self._read(start, start + self.file_size_bytes - UNIT_SIZE, UNIT_SIZE)
        return bool(count_valid(last)) and UNIT.unpack(last)[0] < self._files.log_min_offset

    def _is_first_unit_safe(self, start: int, safe_offset: int) -> bool:
        first = self._read(start, start, UNIT_SIZE)
        return bool(count_valid(first)) and UNIT.unpack(first)[0] < safe_offset

    def _end_before_torn_unit(self, end: int, safe_offset: int) -> int:
        """Return the end, moved back over a last unit that may be torn.

        If a unit crosses a sector boundary and the part after it is zeros, the physical offset may be right and the tags code
        lost.  The unit is dispatched again from the log.
        """
        end = self._end_before_lost_front(end, safe_offset)
        start = self._start_of(end - UNIT_SIZE)
        if start < 0:
            return end
        kept = SECTOR_SIZE - (end - UNIT_SIZE - start) % SECTOR_SIZE
        unit = self._read(start, end - UNIT_SIZE, UNIT_SIZE)
        is_whole = kept >= UNIT_SIZE or any(unit[kept:]) or UNIT.unpack(unit)[0] < safe_offset
        return end if is_whole else end - UNIT_SIZE

    def _end_before_lost_front(self, end: int, safe_offset: int) -> int:
        """Return the end, moved back to the first unit that lost the part before a sector boundary.

        Such a unit points before the record of its predecessor.  Units of records before `safe_offset` were on the disk, so the
        backward search stops there.
        """
        for start in reversed(self.starts):
            stop = min(end - start, self.file_size_bytes)
            while stop > UNIT_SIZE:
                first = max(0, stop - CHECK_SIZE)
                found, is_over = find_lost_front(self._read(start, start + first, stop - first), first, safe_offset)
                end = start + found if found >= 0 else end
                if is_over:
                    return end
                stop = first + UNIT_SIZE  # each unit is compared with its predecessor
        return end

    def _reset_cached_bounds(self) -> None:
        self._max_physical_offset = None
        if self._min_offset is not None and self._min_offset * UNIT_SIZE > self._written:
            self._min_offset = None

    def reload(self) -> None:
        """Forget the minimum as well."""
        self._min_offset = None
        super().reload()

    # Bounds

    @property
    def max_offset(self) -> int:
        """Number of the next unit."""
        return self.written // UNIT_SIZE

    @property
    def min_offset(self) -> int:
        """Number of the first unit, blanks excluded, whose record the log still has (see `correct_min_offset`)."""
        if self._min_offset is None:
            self._min_offset = self._first_unit()
            self._min_offset = self._corrected(self._files.log_min_offset)
        starts = self.starts
        return max(self._min_offset, starts[0] // UNIT_SIZE) if starts else self._min_offset

    @property
    def bounds(self) -> tuple[list[int], int, int]:
        """The starts of the files, the position of the next unit, and the minimum, in one call."""
        if self._starts is None:
            self._load()
        assert self._starts is not None
        if self._min_offset is None:
            return self._starts, self._written, self.min_offset
        first = self._starts[0] // UNIT_SIZE if self._starts else 0
        return self._starts, self._written, self._min_offset if self._min_offset > first else first

    @property
    def max_physical_offset(self) -> int:
        """End of the last unit's record, -1 without one; blanks point at no record (`docs/formats/consumequeue.md#blanks`)."""
        if self._max_physical_offset is None:
            last = self.read_unit(self.written - UNIT_SIZE)
            unit = Unit._make(UNIT.unpack(last)) if last and last != PRE_BLANK else None
            end = unit.physical_offset + unit.size_bytes if unit else NO_RECORD
            self._max_physical_offset = min(end, END_MAX)
        return self._max_physical_offset

    def _first_unit(self) -> int:
        """Return the number of the first unit after the blanks of the first file."""
        starts = self.starts
        low = starts[0] // UNIT_SIZE if starts else 0
        if self.read_unit(low * UNIT_SIZE) != PRE_BLANK:
            return low
        high = min(self.max_offset, low + self.file_size_bytes // UNIT_SIZE)
        return first_where(low, high, lambda number: self.read_unit(number * UNIT_SIZE) != PRE_BLANK)

    @property
    def is_min_known(self) -> bool:
        """Whether the minimum was read since loading; if not, it is corrected when it is first read."""
        return self._min_offset is not None

    def correct_min_offset(self, log_min_offset: int) -> int:
        """Move the minimum past units whose records left the log (`docs/formats/recovery.md#minimum-offsets`); return it.

        RocketMQ searches only the first file, and its minimum is too low while every record of that file has left the log.
        """
        self._min_offset = self._corrected(log_min_offset)
        return self._min_offset

    def _corrected(self, log_min_offset: int) -> int:
        known, stop = self.min_offset, self.max_offset
        if log_min_offset <= 0:
            return known
        last = self.unit(stop - 1)
        if last is None or known >= stop:
            return known
        if last.physical_offset < log_min_offset:
            return stop
        return self.find_physical(log_min_offset, known)

    def roll_next_file(self, queue_offset: int) -> int:
        """Return the first queue offset of the file after the one that contains `queue_offset`."""
        units = self.file_size_bytes // UNIT_SIZE
        return queue_offset + units - queue_offset % units

    # Reading

    def unit(self, queue_offset: int) -> Unit | None:
        """Return the unit of a queue offset; None if there is none."""
        data = self.read_unit(queue_offset * UNIT_SIZE) if queue_offset >= 0 else None
        return Unit._make(UNIT.unpack(data)) if data else None

    def index_buffer(self, queue_offset: int) -> memoryview | None:
        """Return the packed units from a queue offset to the end of their file, without a copy (RocketMQ's getIndexBuffer).

        Returns None for an offset below the minimum or without a unit.
        """
        return self.rest(queue_offset * UNIT_SIZE) if queue_offset >= self.min_offset else None

    def unit_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range, limited to the queue: the number of a unit is its queue offset."""
        return max(start, self.min_offset), min(stop, self.max_offset)

    def packed_units(self, number: int, count: int) -> memoryview | None:
        """Return the units up to the end of their file, without a copy."""
        packed = self.index_buffer(number)
        return None if packed is None else packed[: count * UNIT_SIZE]

    def offsets_of(self, number: int, count: int) -> Iterable[tuple[int, int]]:
        """Return consecutive offsets: each unit has one message."""
        return zip(range(number, number + count), repeat(1), strict=False)

    def records_from(self, physical_offset: int) -> Iterator[int]:
        """Yield the physical offsets in the order of the queue."""
        return (unit.physical_offset for _, unit in self.units(self.find_physical(physical_offset)))

    offset_by_time = search_store_times  # the kernel itself, which saves a frame per call

    def units(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Unit]]:
        """Yield (queue offset, unit) from `start`, or the minimum if that is greater, to before `stop`, across files."""
        at = max(start, self.min_offset)
        end = self.max_offset if stop is None else min(stop, self.max_offset)
        while at < end:
            packed = self.rest(at * UNIT_SIZE)
            if packed is None:
                return
            packed = packed[: (end - at) * UNIT_SIZE]
            for fields in UNIT.iter_unpack(packed):
                yield at, Unit._make(fields)
                at += 1

    def find_physical(self, physical_offset: int, low: int | None = None) -> int:
        """Return the first queue offset whose record begins at or after `physical_offset`; the maximum if none does.

        The search starts at queue offset `low`, by default the minimum.
        """
        return self._first_at(physical_offset, self.min_offset if low is None else low, self.max_offset)

    # Writing

    def append(self, physical_offset: int, size_bytes: int, tags_code: int, queue_offset: int) -> int:
        """Append one unit as `append_run` does."""
        return self.append_run(queue_offset, UNIT.pack(physical_offset, size_bytes, tags_code))

    def append_run(self, queue_offset: int, units: bytes | bytearray | memoryview) -> int:
        """Append packed units of consecutive queue offsets from `queue_offset` on; return the number written.

        The rules are in `docs/formats/consumequeue.md#how-a-unit-gets-its-place`: repeats are skipped, and units after a gap
        are appended at the end with a warning.  If the disk fails midway, earlier units stay, and the same call again
        continues after them.
        """
        self._must_write()
        packed = memoryview(units).cast("B")
        count = len(packed) // UNIT_SIZE
        if self._follows(queue_offset, len(packed)):
            fresh, top = count_new(packed, self.max_physical_offset)
            if fresh == count:  # the usual case, in which none of the special cases below applies
                self._write(packed)
                self._max_physical_offset = top
                return count
        if len(packed) % UNIT_SIZE or queue_offset < 0 or count_valid(packed) < count:
            raise InvalidMessage(f"{self!r}: {len(packed)} bytes at offset {queue_offset} are no run of units")
        done = added = 0
        while done < count:
            done += count_repeated(packed[done * UNIT_SIZE :], self.max_physical_offset)
            if done == count:
                break
            step, is_written = self._append_some(queue_offset + done, packed[done * UNIT_SIZE :])
            done += step
            added += step if is_written else 0
        return added

    def _follows(self, queue_offset: int, size_bytes: int) -> bool:
        """Return whether units of this size and offset come right after the last one, in the same file."""
        starts = self._starts
        if not starts or size_bytes % UNIT_SIZE or queue_offset * UNIT_SIZE != self._written:
            return False
        return starts[-1] < self._written and self._written + size_bytes <= starts[-1] + self.file_size_bytes

    def _append_some(self, queue_offset: int, packed: memoryview) -> tuple[int, bool]:
        """Return (number of units processed, whether they were written).  The first one's record must not be a repeat."""
        expected = queue_offset * UNIT_SIZE
        if not count_new(packed[:UNIT_SIZE], NO_RECORD)[0]:
            raise InvalidMessage(f"{self!r}: no log is as long as {UNIT.unpack(packed[:UNIT_SIZE])} says")
        self._ensure_space(expected)
        if queue_offset and self._is_untouched():
            self._fill_blanks_up_to(expected)
        taken = (self._written - expected) // UNIT_SIZE
        if queue_offset and taken > 0:
            return min(taken, len(packed) // UNIT_SIZE), False
        if queue_offset and taken < 0:
            import logging  # takes 10 ms, and readers never need it

            log = logging.getLogger(f"brokerstore.{__name__}")
            log.warning("%r: unit %d goes to place %d", self, queue_offset, self._written // UNIT_SIZE)
        free_bytes = self.starts[-1] + self.file_size_bytes - self._written
        if not queue_offset and taken:
            free_bytes = UNIT_SIZE  # offset 0 is accepted at any position, but the units after it are not
        count, top = count_new(packed[:free_bytes], self.max_physical_offset)
        self._write(packed[: count * UNIT_SIZE])
        self._max_physical_offset = top
        return count, True

    def _is_untouched(self) -> bool:
        """Return whether the only file is empty."""
        return len(self.starts) == 1 and self._written == self.starts[0]

    def _fill_blanks_up_to(self, expected: int) -> None:
        """Fill the first file with blanks up to the queue's first unit (`docs/formats/consumequeue.md#blanks`)."""
        start = self.starts[0]
        if start < expected < start + self.file_size_bytes:
            self._write(PRE_BLANK * ((expected - start) // UNIT_SIZE))
        if start <= expected < start + self.file_size_bytes:
            self._min_offset = expected // UNIT_SIZE
            self._max_physical_offset = NO_RECORD

    # Truncating and deleting

    def truncate(self, physical_offset: int) -> None:
        """Cut the units of records at or after `physical_offset`, from the last file back.

        Cut bytes are zeroed and files after the end deleted (`docs/formats/recovery.md#truncation`).
        """
        self._must_write()
        kept = list(self.starts)
        end = 0
        while kept:
            start = kept[-1]
            end = self._end_below(start, physical_offset)
            if end > start:
                break
            kept.pop()
        self._written = end if kept else 0
        self._flushed = min(self._flushed, self._written)
        self._reset_cached_bounds()
        self._cut(kept)
        self._min_offset = min(self.min_offset, self.max_offset) if kept else None

    def _end_below(self, start: int, physical_offset: int) -> int:
        """Return where the leading units of a file that point below `physical_offset` end."""
        at = start
        size = READ_SIZE // UNIT_SIZE * UNIT_SIZE
        stop = min(self._written, start + self.file_size_bytes)
        while at < stop:
            units = self._read(start, at, min(size, stop - at))
            found = count_below(units, physical_offset)
            at += found * UNIT_SIZE
            if found * UNIT_SIZE < len(units):
                break
        return at

    def is_expired(self, log_min_offset: int) -> bool:
        """Return whether every unit's record left the log; False without units."""
        last = self.unit(self.max_offset - 1)
        return last is not None and last.physical_offset < log_min_offset
