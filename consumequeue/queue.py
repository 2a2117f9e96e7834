"""The base class of all queues: a folder of files with contiguous units of one size.

Ordinary queues (`ordinary`) have one unit per message, batch queues (`batch`) one per record of many messages.
Readers know only `Queue`: they number units from the first one that the queue ever had, and get them in the format of
ordinary units.

Positions are bytes from the start of the queue.  `written` is the position of the next unit; from there on the last file is
zero.  Folders are listed and files opened on first use.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from commitlog.offset_files import file_name, list_offset_files, load_offset_files
from storageio import DiskError, File, StoreCorrupt, StoreError, StoreReadOnly, own_view

from .boundary import Boundary
from .layout import SIZE_AT, UNIT
from .queue_files import OpenMap, QueueFiles

PAGE_SIZE = 4096
BLOCK_UNITS = 200  # read in one call while searching for the end
READ_SIZE = 1 << 18  # bytes read in one call while scanning a whole file
ZEROS = bytes(READ_SIZE)
RECOVERED_FILES = 3  # a recovery scans this many last files (docs/formats/recovery.md#queues)
EVERYTHING = (1 << 63) - 1


class Queue(ABC):
    """The files of one queue of any kind.  One thread writes; any number read."""

    __slots__ = (
        "_files", "_flushed", "_is_new_name", "_mapped", "_root", "_starts", "_written", "file_size_bytes", "queue_id", "topic",
    )  # fmt: skip
    unit_size = 1

    def __init__(self, root: str, topic: str, queue_id: int, file_size_bytes: int, files: QueueFiles) -> None:
        """Create it; `root` is the folder of the topics, and `files` is shared by all queues of the store."""
        self._root = root
        self.topic = topic
        self.queue_id = queue_id
        self.file_size_bytes = file_size_bytes
        self._files = files
        self._starts: list[int] | None = None
        self._written = 0
        self._flushed = 0
        self._is_new_name = False
        self._mapped: OpenMap | None = None  # the last one used; the cache may have closed it

    def __repr__(self) -> str:
        """Show the topic and the queue id."""
        return f"<{type(self).__name__} {self.topic}-{self.queue_id}>"

    @property
    def folder(self) -> str:
        """The folder of the files: `<root>/<topic>/<queue id>`."""
        return (
            f"{self._root}/{self.topic}/{self.queue_id}"  # every append needs it, and os.path.join takes longer than the write
        )

    @property
    def starts(self) -> list[int]:
        """Start position of each file.  Every change makes a new list, so a reader may keep the one it has."""
        if self._starts is None:
            self._load()
        assert self._starts is not None
        return self._starts

    @property
    def written(self) -> int:
        """Position of the next unit."""
        if self._starts is None:
            self._load()
        return self._written

    @property
    def flushed(self) -> int:
        """Position up to which units are known to be on the disk."""
        if self._starts is None:
            self._load()
        return self._flushed

    def path(self, start: int) -> str:
        """Return the path of the file that begins at `start`."""
        return f"{self.folder}/{file_name(start)}"

    # Queries that every kind of queue implements

    @property
    @abstractmethod
    def min_offset(self) -> int:
        """First queue offset whose record the log still has."""

    @property
    @abstractmethod
    def max_offset(self) -> int:
        """Next queue offset; 0 without units."""

    @abstractmethod
    def unit_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return the numbers (first, stop) of the units that hold the queue offsets `start` to before `stop`."""

    @abstractmethod
    def packed_units(self, number: int, count: int) -> memoryview | None:
        """Return at most `count` units from a number on, as 20-byte units (`layout.UNIT`); None if there is no such unit."""

    @abstractmethod
    def offsets_of(self, number: int, count: int) -> Iterable[tuple[int, int]]:
        """Return (first queue offset, number of messages) of each of `count` units from a number on."""

    @abstractmethod
    def records_from(self, physical_offset: int) -> Iterator[int]:
        """Yield the physical offsets of the queue's records that begin at or after an offset of the log."""

    @abstractmethod
    def roll_next_file(self, queue_offset: int) -> int:
        """Return the first queue offset of the file after the one that `queue_offset` falls into."""

    @abstractmethod
    def offset_by_time(
        self, timestamp_ms: int, boundary: Boundary, store_time_of: Callable[[int, int], int] | Any, log_min_offset: int
    ) -> int:
        """Return the queue offset for a store time (`docs/formats/read-rules.md#offset-by-time`).

        `store_time_of` maps (physical offset, size) to a store time in milliseconds, or is a log's `LogReaders`.
        """

    def still_points_at(self, number: int, physical_offset: int, size_bytes: int) -> bool:
        """Return whether a unit, read again, still points at the same record; another process may have cut it."""
        packed = self.packed_units(number, 1)
        return packed is not None and UNIT.unpack(packed)[:2] == (physical_offset, size_bytes)

    @property
    def is_writable(self) -> bool:
        """Whether this process appends units."""
        return self._files.writable

    # Hooks for a kind of unit

    @abstractmethod
    def _count_valid(self, units: bytes) -> int:
        """Return how many valid units precede the first invalid one."""

    def _reset_cached_bounds(self) -> None:  # noqa: B027  (a batch queue derives nothing)
        """Drop cached values that were derived from the end of the queue, because the end changed."""

    # Finding the end

    def _load(self) -> None:
        """List the files and find the end by binary search, which is valid after a clean stop: units are contiguous then."""
        found = load_offset_files(self._files.disk, self.folder, self.file_size_bytes)
        starts = [file.start_offset for file in found]
        if starts and starts[0] % self.unit_size:
            requested = f"a multiple of {self.unit_size}"
            raise StoreCorrupt("file name", file=found[0].path, offset=0, expected=requested, found=starts[0])
        self._written = self._end_by_binary_search(starts)
        self._flushed = self._written
        self._starts = starts
        self._reset_cached_bounds()

    def _end_by_binary_search(self, starts: list[int]) -> int:
        for start in reversed(starts):
            if self._valid_at(start, start):
                return start + self.unit_size * self._count_by_binary_search(start)
        return starts[0] if starts else 0

    def _valid_at(self, start: int, at: int) -> bool:
        return self._count_valid(self._read(start, at, self.unit_size)) == 1

    def _count_by_binary_search(self, start: int) -> int:
        """Return the number of valid units in a file whose first unit is valid."""
        size = BLOCK_UNITS * self.unit_size
        blocks = -(-self.file_size_bytes // size)
        low = first_where(1, blocks, lambda block: not self._valid_at(start, start + block * size)) - 1
        return low * BLOCK_UNITS + self._count_valid(self._read(start, start + low * size, size))

    def _count_sound(self, units: bytes, log_end: int) -> int:
        """Return the number of units before the first that is invalid or, where overridden, points at or after `log_end`."""
        return self._count_valid(units)

    def _end_by_reading(self, start: int, at: int, log_end: int = EVERYTHING) -> int:
        """Check every unit from `at` on in the file that begins at `start`; return where the sound ones end."""
        size = READ_SIZE // self.unit_size * self.unit_size
        stop = start + self.file_size_bytes
        while at < stop:
            found = self._count_sound(self._read(start, at, size), log_end) * self.unit_size
            at += found
            if found < size:
                break
        return at

    def _is_first_unit_safe(self, start: int, safe_offset: int) -> bool:
        """Return whether a file's first unit, and so every earlier one, was on the disk before the crash."""
        return True

    def _end_before_torn_unit(self, end: int, safe_offset: int) -> int:
        """Return the end, moved back over last units that may have lost a sector and were not known to be on the disk."""
        return end

    def recover(self, safe_offset: int = EVERYTHING, log_end: int = EVERYTHING) -> int:
        """Find the end after an unclean stop, and return it; change no file (`drop_tail` does).

        The scan reads every unit of the last three files (`docs/formats/recovery.md#queues`).  It starts earlier if the first
        unit there points at or after `safe_offset`, because only units of earlier records are known to be on the disk.
        An invalid unit, or one of a record at or after `log_end`, is the end.
        """
        starts = self.starts
        first = max(0, len(starts) - RECOVERED_FILES)
        while first > 0 and not self._is_first_unit_safe(starts[first], safe_offset):
            first -= 1
        recovered = starts[first:]
        end = recovered[0] if recovered else 0
        for start, following in pairwise([*recovered, -1]):
            end = self._end_by_reading(start, start, log_end)
            if end < start + self.file_size_bytes or following < 0:
                break
        end = self._end_before_torn_unit(end, safe_offset)
        self._written = end
        self._flushed = min(recovered[0] if recovered else 0, end)
        self._reset_cached_bounds()
        return end

    def refresh(self) -> int:
        """Find new units, new files and deleted files, for a reader beside a live writer.

        Returns the position of the next unit.
        """
        before = end = self.written
        last = self._start_of(end)
        if last >= 0 and self._valid_at(last, end):
            end = self._end_by_reading(last, end)
        if last < 0 or end == last + self.file_size_bytes:
            found = load_offset_files(self._files.disk, self.folder, self.file_size_bytes)
            starts = [file.start_offset for file in found]
            end = max(end, starts[0] if starts else 0)
            for start in starts[bisect_right(starts, end - 1) :]:
                end = self._end_by_reading(start, start)
            self._starts = starts
        if end != before:
            self._written = end
            self._reset_cached_bounds()
        return end

    def reload(self) -> None:
        """Forget the files and find the end again, for a reader beside a writer that deleted files or cut units."""
        for start in self._starts or []:
            self._files.forget(self.path(start))
        self._starts = None
        self._written = 0
        self._reset_cached_bounds()

    def drop_tail(self) -> bool:
        """Delete files after the end and empty files, and zero the last file from the end on.

        RocketMQ leaves those bytes, and may take them for units after the next crash (`docs/formats/recovery.md#queues`).
        Returns whether anything but zeros was removed.
        """
        self._must_write()
        gone = [start for start in self.starts if start > self._written]
        has_units = any(self._valid_at(start, start) for start in gone)
        return self._cut([start for start in self.starts if start <= self._written]) or has_units

    def _cut(self, kept: list[int]) -> bool:
        """Delete all files but `kept`, and zero the last one from the end on; return whether that changed any byte."""
        with self._files.structure:
            self._delete_all_but(kept)
            if kept and self._written < kept[-1] + self.file_size_bytes:
                return self._zero_rest(kept[-1], self._written)
            return False

    def _delete_all_but(self, kept: list[int]) -> None:
        """Delete the files of this queue that are empty or not in `kept`, which becomes the list of files."""
        found = list_offset_files(self._files.disk, self.folder)
        gone = [file for file in found if file.start_offset not in kept or file.size_bytes == 0]
        self._starts = kept
        for file in gone:
            self._files.delete(file.path)
        if gone:
            self._files.disk.sync_folder(self.folder)

    def _zero_rest(self, start: int, at: int) -> bool:
        """Zero a file from `at` to its end, and sync it; return whether any byte changed."""
        with self._files.borrow(self.path(start)) as file:
            return zero_rest(file, at - start, self.file_size_bytes)

    # Reading

    def _read(self, start: int, at: int, size: int) -> bytes:
        """Return up to `size` bytes at `at` from the file that begins at `start`, and none after its end."""
        with self._files.borrow(self.path(start)) as file:
            return file.read(at - start, min(size, start + self.file_size_bytes - at))

    def _start_of(self, at: int) -> int:
        """Return the start of the file that contains position `at`, or -1."""
        starts = self.starts
        index = bisect_right(starts, at) - 1
        return starts[index] if index >= 0 and at < starts[index] + self.file_size_bytes else -1

    def read_unit(self, at: int) -> bytes | None:
        """Return the bytes of the unit at position `at`; None if nothing is written there."""
        start = self._start_of(at)
        if start < 0 or at >= self.written:
            return None
        try:
            return self._read(start, at, self.unit_size)
        except DiskError as error:
            if not self._is_gone(start, error):
                raise
            return None

    def _physical_at(self, at: int) -> int | None:
        """Return the physical offset with which the unit at a position begins, whatever its kind; None without a unit."""
        data = self.read_unit(at)
        return int.from_bytes(data[:SIZE_AT], "big", signed=True) if data else None

    def _first_at(self, physical_offset: int, low: int, high: int) -> int:
        """Return the number of the first unit in a range whose record begins at or after an offset; `high` if none does."""

        def is_behind(number: int) -> bool:
            found = self._physical_at(number * self.unit_size)
            return found is not None and found >= physical_offset

        return first_where(low, high, is_behind)

    def rest(self, at: int) -> memoryview | None:
        """Return the written units of one file from `at` on, without a copy; None if nothing is written there."""
        start = self._start_of(at)
        stop = min(self.written, start + self.file_size_bytes)
        view = self.file_view(start) if start >= 0 and at < stop else None
        return None if view is None else view[at - start : stop - start]

    def file_view(self, start: int) -> memoryview | None:
        """Return all bytes of the file that begins at `start`; None if it was deleted.  Bytes before `written` are units."""
        mapped = self._mapped
        view = mapped.view if mapped is not None and mapped.start == start else None
        try:
            while view is None:
                mapped = self._mapped = self._files.open_map(self.path(start), start, self.file_size_bytes)
                view = mapped.view
            return own_view(view)
        except DiskError as error:
            if not self._is_gone(start, error):
                raise
            return None

    def _is_gone(self, start: int, error: DiskError) -> bool:
        """Return whether another thread, or for a reader another process, deleted the file."""
        return start not in self.starts or (not self._files.writable and error.errno == errno.ENOENT)

    # Writing

    def _must_write(self) -> None:
        if not self._files.writable:
            raise StoreReadOnly(f"{self.folder}: opened for reading")

    def _ensure_space(self, expected: int) -> int:
        """Create a file if there is none or the last is full; return the free bytes.  The first file contains `expected`."""
        starts = self.starts
        if not starts:
            self._add_file(expected - expected % self.file_size_bytes)
        elif self._written >= starts[-1] + self.file_size_bytes:
            self._add_file(starts[-1] + self.file_size_bytes)
        assert self._starts is not None
        return self._starts[-1] + self.file_size_bytes - self._written

    def _add_file(self, start: int) -> None:
        with self._files.structure:
            starts = self.starts
            if not starts:
                self._files.disk.make_folder(self.folder)
            else:
                self._sync_full_file(starts[-1])
            self._is_new_name = True
            self._files.create(self.path(start), self.file_size_bytes)
            if not starts:
                self._flushed = start
            self._written = start
            self._starts = [*self.starts, start]

    def _sync_full_file(self, start: int) -> None:
        """Sync a full file before the next one is created, so that a crash loses units of the last file only.

        Otherwise a crash could lose an earlier file and keep a later one, which looks like a queue after retention.
        """
        if self._is_new_name or self._flushed < start + self.file_size_bytes:
            with self._files.borrow(self.path(start)) as file:
                file.sync()
            self._sync_name()
            if self._flushed >= start:
                self._flushed = max(self._flushed, start + self.file_size_bytes)

    def _write(self, data: bytes | memoryview) -> None:
        """Append bytes that fit into the last file."""
        start = self.starts[-1]
        with self._files.borrow(self.path(start)) as file:
            file.write(self._written - start, data)
        self._written += len(data)

    def flush(self, least_pages: int = 0) -> bool:
        """Sync written units and the names of new files if enough was written; return whether it synced.

        Enough is a full file, or at least `least_pages` pages (`docs/formats/mapped-files.md#flush-rule`); with 0 any unit.
        """
        if self._starts is None:
            return False
        flushed, written = self._flushed, self._written
        if not self._is_worth_it(flushed, written, least_pages):
            return False
        self._sync_name()
        for start in self._starts:
            if start < written and flushed < start + self.file_size_bytes:
                with self._files.borrow(self.path(start)) as file:
                    file.sync()
        self._flushed = written
        return True

    def mark_unsynced(self) -> None:
        """Count the last file and its name as not synced, because a writer may have been killed before it synced them.

        Earlier files were synced when they became full.
        """
        if self.starts:
            self._flushed = min(self._flushed, self.starts[-1])
            self._is_new_name = True

    def _sync_name(self) -> None:
        """Sync the folder if a file was created since the last flush."""
        if not self._is_new_name:
            return
        self._is_new_name = False  # before the call, because the writer may create another file meanwhile
        try:
            self._files.disk.sync_folder(self.folder)
        except StoreError:
            self._is_new_name = True
            raise

    def _is_worth_it(self, flushed: int, written: int, least_pages: int) -> bool:
        if written <= flushed:
            return False
        is_file_full = flushed // self.file_size_bytes != written // self.file_size_bytes
        return least_pages == 0 or is_file_full or written // PAGE_SIZE - flushed // PAGE_SIZE >= least_pages

    @abstractmethod
    def truncate(self, physical_offset: int) -> None:
        """Cut the units of records at or after `physical_offset`; zero the cut bytes and delete files after the end."""

    def delete_expired(self, log_min_offset: int) -> int:
        """Delete leading files whose last record left the log, never the last file; return the number deleted."""
        self._must_write()
        with self._files.structure:
            starts = self.starts
            kept = list(starts)
            while len(kept) > 1:
                last = self._physical_at(kept[0] + self.file_size_bytes - self.unit_size)
                if last is None or last >= log_min_offset:
                    break
                kept.pop(0)
            if len(kept) < len(starts):
                self._delete_all_but(kept)
        return len(starts) - len(kept)

    def destroy(self) -> None:
        """Delete all files and the queue's folder; a folder that contains anything else stays."""
        self._must_write()
        with self._files.structure:
            if self._files.disk.stat(self.folder) is None:
                return
            self._delete_all_but([])
            self._written = self._flushed = 0
            self._reset_cached_bounds()
            if not self._files.disk.list(self.folder):
                self._files.disk.delete_folder(self.folder)
                self._files.disk.sync_folder(os.path.dirname(self.folder))


def first_where(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first number from `low` to before `high` from which on `holds` is true; `high` if there is none."""
    return low + bisect_left(range(low, high), True, key=holds)


def zero_rest(file: File, at: int, size_bytes: int) -> bool:
    """Zero a file from `at` to its end, keep its holes, and sync it; return whether any byte changed."""
    is_changed = False
    at = min(file.next_data(at), size_bytes)
    while at < size_bytes:
        size = min(READ_SIZE, size_bytes - at)
        if file.read(at, size) != ZEROS[:size]:
            file.write(at, ZEROS[:size])
            is_changed = True
        at = min(file.next_data(at + size), size_bytes)
    if is_changed:
        file.sync()
    return is_changed
