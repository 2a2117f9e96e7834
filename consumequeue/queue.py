"""A queue: a folder of files that hold units of one size, end to end, and what every kind of queue answers.

Ordinary queues and LMQs (`ordinary`) have one unit per message, batch queues (`batch`) one per record of many messages.
Readers know only `Queue`: they number units from the first one that the queue ever had, and ask for them in the form of
ordinary units.

Positions are bytes in the whole queue.  `written` is where the next unit goes; behind it the last file is zero.  Nothing is
listed or opened before it is needed.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from commitlog.offset_files import file_name, list_offset_files, load_offset_files
from storageio import DiskError, File, StoreCorrupt, StoreError, StoreReadOnly

from .boundary import Boundary
from .layout import UNIT
from .queue_files import OpenMap, QueueFiles

PAGE_SIZE = 4096
BLOCK_UNITS = 200  # read at once while the end is looked for
READ_SIZE = 1 << 18  # read at once while a whole file is walked
ZEROS = bytes(READ_SIZE)
RECOVERED_FILES = 3  # a scan begins so many files before the end (section 5.2 a)
EVERYTHING = (1 << 63) - 1


class Queue(ABC):
    """The files of one queue of any kind.  One thread writes; any number read."""

    __slots__ = (
        "_files", "_flushed", "_is_new_name", "_mapped", "_root", "_starts", "_written", "file_size_bytes", "queue_id", "topic",
    )  # fmt: skip
    unit_size = 1

    def __init__(self, root: str, topic: str, queue_id: int, file_size_bytes: int, files: QueueFiles) -> None:
        """`root`: the folder that holds the topics; `files`: shared by all queues of the set."""
        self._root = root
        self.topic = topic
        self.queue_id = queue_id
        self.file_size_bytes = file_size_bytes
        self._files = files
        self._starts: list[int] | None = None
        self._written = 0
        self._flushed = 0
        self._is_new_name = False
        self._mapped: OpenMap | None = None  # the last one that was asked for; the cache may have let it go

    def __repr__(self) -> str:
        """For people who debug."""
        return f"<{type(self).__name__} {self.topic}-{self.queue_id}>"

    @property
    def folder(self) -> str:
        """`<root>/<topic>/<queue id>`."""
        return f"{self._root}/{self.topic}/{self.queue_id}"  # every append asks, and a join takes longer than the write

    @property
    def starts(self) -> list[int]:
        """Where each file begins.  A new list after every change, so that a reader may keep the one it has."""
        if self._starts is None:
            self._load()
        assert self._starts is not None
        return self._starts

    @property
    def written(self) -> int:
        """Where the next unit goes."""
        if self._starts is None:
            self._load()
        return self._written

    @property
    def flushed(self) -> int:
        """Up to where the units are known to be on the disk."""
        if self._starts is None:
            self._load()
        return self._flushed

    def path(self, start: int) -> str:
        """Of the file that begins at `start`."""
        return f"{self.folder}/{file_name(start)}"

    # What every kind of queue answers

    @property
    @abstractmethod
    def min_offset(self) -> int:
        """The first queue offset whose record the log still has."""

    @property
    @abstractmethod
    def max_offset(self) -> int:
        """The next queue offset; 0 without units."""

    @abstractmethod
    def unit_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return the numbers (first, stop) of the units that hold the queue offsets `start` to before `stop`."""

    @abstractmethod
    def packed_units(self, number: int, count: int) -> memoryview | None:
        """Return at most `count` units from a number on, as 20-byte units (`layout.UNIT`); None when it has none there."""

    @abstractmethod
    def offsets_of(self, number: int, count: int) -> Iterable[tuple[int, int]]:
        """Return (first queue offset, number of messages) of each of `count` units from a number on."""

    @abstractmethod
    def records_from(self, physical_offset: int) -> Iterator[int]:
        """Yield the physical offsets of the queue's records that begin at an offset of the log or behind it."""

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
        """Return whether a unit, read again, points at the same record: another process may have cut it meanwhile."""
        packed = self.packed_units(number, 1)
        return packed is not None and UNIT.unpack(packed)[:2] == (physical_offset, size_bytes)

    @property
    def is_writable(self) -> bool:
        """Whether this process appends units."""
        return self._files.writable

    # What a kind of unit knows

    @abstractmethod
    def _count_valid(self, units: bytes) -> int:
        """Return how many valid units precede the first invalid one."""

    def _moved(self) -> None:  # noqa: B027  (a batch queue derives nothing)
        """Forget what was derived from the end, which was found anew."""

    # Finding the end

    def _load(self) -> None:
        """List the files and find the end as after a clean stop: by halving, which trusts that valid units stand together."""
        found = load_offset_files(self._files.disk, self.folder, self.file_size_bytes)
        starts = [file.start_offset for file in found]
        if starts and starts[0] % self.unit_size:
            wanted = f"a multiple of {self.unit_size}"
            raise StoreCorrupt("file name", file=found[0].path, offset=0, expected=wanted, found=starts[0])
        self._written = self._end_by_halving(starts)
        self._flushed = self._written
        self._starts = starts
        self._moved()

    def _end_by_halving(self, starts: list[int]) -> int:
        for start in reversed(starts):
            if self._valid_at(start, start):
                return start + self.unit_size * self._count_by_halving(start)
        return starts[0] if starts else 0

    def _valid_at(self, start: int, at: int) -> bool:
        return self._count_valid(self._read(start, at, self.unit_size)) == 1

    def _count_by_halving(self, start: int) -> int:
        """Of units in a file whose first unit is valid."""
        low, high = 0, -(-self.file_size_bytes // (self.unit_size * BLOCK_UNITS))  # block `low` begins validly, `high` does not
        while high - low > 1:
            middle = (low + high) // 2
            if self._valid_at(start, start + middle * BLOCK_UNITS * self.unit_size):
                low = middle
            else:
                high = middle
        block = low * BLOCK_UNITS
        return block + self._count_valid(self._read(start, start + block * self.unit_size, BLOCK_UNITS * self.unit_size))

    def _count_sound(self, units: bytes, log_end: int) -> int:
        """How many units stand before the first that is none, or that points at `log_end` or behind it."""
        return self._count_valid(units)

    def _end_by_reading(self, start: int, at: int, log_end: int = EVERYTHING) -> int:
        """Where the sound units from `at` on end, in the file that begins at `start`; every one is looked at."""
        size = READ_SIZE // self.unit_size * self.unit_size
        stop = start + self.file_size_bytes
        while at < stop:
            found = self._count_sound(self._read(start, at, size), log_end) * self.unit_size
            at += found
            if found < size:
                break
        return at

    def _is_vouched(self, start: int, safe_offset: int) -> bool:
        """Whether a file begins with a unit that was on the disk before the crash, and so everything before it was."""
        return True

    def _before_torn(self, end: int, safe_offset: int) -> int:
        """The end without a last unit that nobody vouches for and of which a lost sector may have taken a part."""
        return end

    def recover(self, safe_offset: int = EVERYTHING, log_end: int = EVERYTHING) -> int:
        """Find the end as after an unclean stop: read every unit from the third file before the end (section 5.2 a).

        And from further back, where that file begins with units of records behind `safe_offset`: those are not vouched for.
        A unit of a record at `log_end` or behind it is the end too.
        Returns where the next unit goes.  Changes no file: see `drop_tail`.
        """
        starts = self.starts
        first = max(0, len(starts) - RECOVERED_FILES)
        while first > 0 and not self._is_vouched(starts[first], safe_offset):
            first -= 1
        recovered = starts[first:]
        end = recovered[0] if recovered else 0
        for start, following in pairwise([*recovered, -1]):
            end = self._end_by_reading(start, start, log_end)
            if end < start + self.file_size_bytes or following < 0:
                break
        end = self._before_torn(end, safe_offset)
        self._written = end
        self._flushed = min(recovered[0] if recovered else 0, end)
        self._moved()
        return end

    def refresh(self) -> int:
        """For a reader beside a live writer: take in units and files that have come, and files that went.

        Returns where the next unit goes.
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
            self._moved()
        return end

    def reload(self) -> None:
        """For a reader beside a writer that took files or units away: forget what was seen, and find the end anew."""
        for start in self._starts or []:
            self._files.forget(self.path(start))
        self._starts = None
        self._written = 0
        self._moved()

    def drop_tail(self) -> bool:
        """Make the files agree with the end: delete those behind it, and those of no bytes, and zero the rest of the last.

        RocketMQ leaves the rest as it is, and may take it for units after the next crash (section 5.3).  Returns whether
        anything but zeros went.
        """
        self._must_write()
        gone = [start for start in self.starts if start > self._written]
        has_units = any(self._valid_at(start, start) for start in gone)
        return self._cut([start for start in self.starts if start <= self._written]) or has_units

    def _cut(self, kept: list[int]) -> bool:
        """Delete all files but these and zero what is behind the end in the last; whether there was anything but zeros."""
        with self._files.structure:
            self._delete_all_but(kept)
            if kept and self._written < kept[-1] + self.file_size_bytes:
                return self._zero_rest(kept[-1], self._written)
            return False

    def _delete_all_but(self, kept: list[int]) -> None:
        """Of this folder's files.  `kept` becomes the list."""
        found = list_offset_files(self._files.disk, self.folder)
        gone = [file for file in found if file.start_offset not in kept or file.size_bytes == 0]
        self._starts = kept
        for file in gone:
            self._files.delete(file.path)
        if gone:
            self._files.disk.sync_folder(self.folder)

    def _zero_rest(self, start: int, at: int) -> bool:
        """Zero what is not zero from `at` to the file's end, and sync it; whether there was any."""
        with self._files.borrow(self.path(start)) as file:
            return zero_rest(file, at - start, self.file_size_bytes)

    # Reading

    def _read(self, start: int, at: int, size: int) -> bytes:
        """Up to `size` bytes at `at` of the file that begins at `start`, none past its end."""
        with self._files.borrow(self.path(start)) as file:
            return file.read(at - start, min(size, start + self.file_size_bytes - at))

    def _start_of(self, at: int) -> int:
        """Where the file with position `at` begins, or -1."""
        starts = self.starts
        index = bisect_right(starts, at) - 1
        return starts[index] if index >= 0 and at < starts[index] + self.file_size_bytes else -1

    def read_unit(self, at: int) -> bytes | None:
        """The bytes of one written unit, None when there is none at `at`."""
        start = self._start_of(at)
        if start < 0 or at >= self.written:
            return None
        try:
            return self._read(start, at, self.unit_size)
        except DiskError as error:
            if not self._is_gone(start, error):
                raise
            return None

    def rest(self, at: int) -> memoryview | None:
        """The written units of one file from `at` on, without a copy.  None when there is none at `at`."""
        start = self._start_of(at)
        stop = min(self.written, start + self.file_size_bytes)
        view = self.file_view(start) if start >= 0 and at < stop else None
        return None if view is None else view[at - start : stop - start]

    def file_view(self, start: int) -> memoryview | None:
        """All bytes of the file that begins at `start`, of which those before `written` are units; None when it went."""
        mapped = self._mapped
        view = mapped.view if mapped is not None and mapped.start == start else None
        try:
            while view is None:
                mapped = self._mapped = self._files.open_map(self.path(start), start, self.file_size_bytes)
                view = mapped.view
            return view
        except DiskError as error:
            if not self._is_gone(start, error):
                raise
            return None

    def _is_gone(self, start: int, error: DiskError) -> bool:
        """Whether another thread deleted the file meanwhile, or, for a reader, another process."""
        return start not in self.starts or (not self._files.writable and error.errno == errno.ENOENT)

    # Writing

    def _must_write(self) -> None:
        if not self._files.writable:
            raise StoreReadOnly(f"{self.folder}: opened for reading")

    def _make_room(self, expected: int) -> int:
        """Have a file that is not full, and return how many bytes fit.  The first one begins where `expected` falls."""
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
                self._settle(starts[-1])
            self._is_new_name = True
            self._files.create(self.path(start), self.file_size_bytes)
            if not starts:
                self._flushed = start
            self._written = start
            self._starts = [*self.starts, start]

    def _settle(self, start: int) -> None:
        """Bring a full file to the disk before the next one is made: a crash may then lose units of the last file alone.

        Otherwise it could lose the first file and keep the second, and nobody could tell that from what retention leaves.
        """
        if self._is_new_name or self._flushed < start + self.file_size_bytes:
            with self._files.borrow(self.path(start)) as file:
                file.sync()
            self._sync_name()
            if self._flushed >= start:
                self._flushed = max(self._flushed, start + self.file_size_bytes)

    def _write(self, data: bytes | memoryview) -> None:
        """Append bytes that fit the last file."""
        start = self.starts[-1]
        with self._files.borrow(self.path(start)) as file:
            file.write(self._written - start, data)
        self._written += len(data)

    def flush(self, least_pages: int = 0) -> bool:
        """Sync what was written if it is worth it (section 6.2); whether it was.  A new file's name is synced too.

        Worth it: a file became full, or at least `least_pages` pages were begun; with 0: anything was written.
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

    def doubt(self) -> None:
        """After an unclean stop: whoever wrote may have died before its syncs, so the next flush makes them.

        Only of the last file, and of its name: a file before it was synced when it became full.
        """
        if self.starts:
            self._flushed = min(self._flushed, self.starts[-1])
            self._is_new_name = True

    def _sync_name(self) -> None:
        """A file that was made since the last flush."""
        if not self._is_new_name:
            return
        self._is_new_name = False  # before the call: the writer may make another file meanwhile
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

    def destroy(self) -> None:
        """Delete all files and the queue's folder.  A folder that still holds something else stays."""
        self._must_write()
        with self._files.structure:
            if self._files.disk.stat(self.folder) is None:
                return
            self._delete_all_but([])
            self._written = self._flushed = 0
            self._moved()
            if not self._files.disk.list(self.folder):
                self._files.disk.delete_folder(self.folder)
                self._files.disk.sync_folder(os.path.dirname(self.folder))


def zero_rest(file: File, at: int, size_bytes: int) -> bool:
    """Zero what is not zero from `at` to a file's end, and sync it; whether there was any.  What takes no room goes on so."""
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
