"""Read the records of a split exactly as a walk over the whole file would find them.

A split begin..end owns the records that *start* in it; the last one may extend past its end.  Where a split begins inside a
file, the walk starts one maximum record size earlier and goes from record to record to the first one at or after `begin`.
So damage before `begin`, bytes that a truncation left, and bodies that contain copies of records get the same verdict as in
a walk from the file's first byte, and exactly one split reports each damaged place.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING

from commitlog import CHECK_POSITION, STOPS, Reader, find_record
from commitlog._scan_cy import scan
from commitlog.checks import EMPTY, TORN
from commitlog.columns import Batch
from commitlog.cursor import is_file_end
from commitlog.entry_layout import ENTRY_HEADER_SIZE
from commitlog.findings import Location, describe
from commitlog.layout import BODY_SIZE_MAX_DEFAULT, RECORD_ALLOWANCE
from storageio import Disk, DiskError, Mode
from storebytes.finding import Finding

from ..errors import DataLost
from ..object_disk import disk_for, is_remote
from .stores import check_mounted

if TYPE_CHECKING:
    from .splits import LogSplit

PIECE_BYTES = 64 << 20  # of a file mapped per step
SEARCH_BACK = BODY_SIZE_MAX_DEFAULT + RECORD_ALLOWANCE  # the largest record, unless the broker's maxMessageSize was raised
BATCH_BYTES = 16 << 20  # of records in one batch; one record may be more


class SplitReader:
    """A window of a split's file: a map, or fetched bytes.  All positions are physical offsets."""

    def __init__(self, split: LogSplit) -> None:
        """Open the first window.  Raises `DataLost` for a deleted file."""
        self.split = split
        self.file_end = split.file_start + split.file_size
        self.low = max(split.file_start, split.begin - SEARCH_BACK)
        self._disk: Disk = disk_for(split.file)
        self._is_part = is_remote(split.file)
        self.view = memoryview(b"")
        self.base = split.file_start  # of the first byte of `view`
        self.slide(self.low)

    def slide(self, at: int, size_bytes: int = PIECE_BYTES) -> None:
        """Move the window to start at `at` or before; release the old one."""
        try:
            with self._disk.open(self.split.file, Mode.READ) as file:
                if self._is_part:
                    stop = min(self.file_end, at + size_bytes + SEARCH_BACK)
                    self.view = memoryview(file.read(at - self.split.file_start, stop - at))
                    self.base = at
                else:
                    self.view = file.map(self.split.file_size, writable=False).view  # this also releases the old map's pages
        except DiskError as error:
            raise _gone(self.split, error) from error
        self._slid_at = at

    @property
    def reach(self) -> int:
        """Return the physical offset after `view`."""
        return self.base + len(self.view)

    def has_more(self, at: int) -> bool:
        """Fetch more of a record that starts at `at` and ends after `view`; return whether there was more."""
        if self.reach >= self.file_end:
            return False
        size = self.integer(at)
        if at == self.base and len(self.view) >= size:
            return False
        self.slide(at, max(size, PIECE_BYTES))
        return True

    def keep_small(self, at: int) -> None:
        """Release the part that the walk has passed, once it is large enough."""
        if at - self._slid_at > PIECE_BYTES:
            self.slide(at)

    def integer(self, at: int) -> int:
        """Read a signed big-endian 32-bit integer; records and blanks start with their size."""
        return int.from_bytes(self.view[at - self.base : at - self.base + 4], "big", signed=True)

    def header_size(self, at: int) -> int:
        """Return the size of the entry header at an offset, 0 if there is none."""
        return ENTRY_HEADER_SIZE if Location(self.view, at - self.base, self.base).is_entry else 0

    def time_at(self, at: int) -> int:
        """Return the store time of a checked record."""
        return Reader(self.view, self.base).store_time(at - self.base)

    def describe(self, at: int, why: str) -> Finding:
        """Return a finding for a position; its offset is relative to the file."""
        found = describe(self.split.file, Location(self.view, at - self.base, self.base), why)
        return found._replace(offset=at - self.split.file_start)

    def is_done(self, at: int, why: str) -> bool:
        """Return whether a finished file ends there: with a blank over the rest, or with too little space for one."""
        return is_file_end(why, self.file_end - at, self.view[at - self.base :])


def walk(reader: SplitReader, checks: int, batch_rows: int) -> Iterator[Batch | Finding]:
    """Yield batches of whole records that pass `checks`, and a finding for each damaged place between them."""
    at, last_ms = aligned(reader)
    split = reader.split
    while at < split.end:
        reader.keep_small(at)
        batch, at, why = _rows(reader, at, checks, batch_rows)
        if batch is not None:
            last_ms = max(last_ms, reader.time_at(reader.base + int(batch.positions[-1])))
            yield from _bounded(batch)
        if at >= split.end or why == "full" or (why == STOPS[TORN] and reader.has_more(at)):
            continue
        if reader.is_done(at, why):
            return
        finding = reader.describe(at, why)
        ahead = _next_newer(reader, at + 1, last_ms)
        if why == STOPS[EMPTY] and ahead < 0 and split.is_open_end:
            return  # the end of the log's last file, which planning did not search for
        yield finding
        at = split.end if ahead < 0 else ahead


def aligned(reader: SplitReader) -> tuple[int, int]:
    """Return the offset of the first record at or after `begin`, and the store time of the one before."""
    split, at, last_ms = reader.split, reader.low, 0
    if at > split.file_start:
        found = find_record(reader.view, at - reader.base, len(reader.view), reader.base, _limit(reader))
        at = split.end if found < 0 else reader.base + found
    while at < split.begin:
        stop = min(split.begin, reader.reach)
        position, why, records, _, last = scan(reader.view, at - reader.base, stop - reader.base, reader.base, CHECK_POSITION)
        at = reader.base + position
        last_ms = reader.time_at(reader.base + last) if records else last_ms
        if at >= split.begin:
            break
        size = Reader(reader.view, reader.base).check(at - reader.base, CHECK_POSITION)
        if size > 0:
            start = at + reader.header_size(at)
            return (at, last_ms) if start >= split.begin else (at + size, reader.time_at(start))
        if size == TORN and reader.has_more(at):
            continue
        if reader.is_done(at, why):
            return split.end, last_ms
        ahead = _next_newer(reader, at + 1, last_ms)
        at = split.end if ahead < 0 else ahead
    return at, last_ms


def _limit(reader: SplitReader) -> int:
    """Return the end of the split, or of `view` if that comes first, as a position in `view`."""
    return min(reader.split.end, reader.reach) - reader.base


def _rows(reader: SplitReader, at: int, checks: int, batch_rows: int) -> tuple[Batch | None, int, str]:
    """Return records up to the split's end, or the one that extends past it; then where and why the scan stopped."""
    import numpy as np  # 80 ms

    view, base = reader.view, reader.base
    positions, sizes = np.empty(batch_rows, np.int64), np.empty(batch_rows, np.int32)
    limit = _limit(reader)
    stop = min(limit, at - base + BATCH_BYTES)  # pages that were read stay in memory until the map is released
    after, why, rows, _, _ = scan(view, at - base, stop, base, checks, positions, sizes)
    if rows == 0 and why == STOPS[TORN]:
        after, why, rows, _, _ = scan(view, at - base, len(view), base, checks, positions[:1], sizes[:1])
        if rows and base + int(positions[0]) >= reader.split.end:  # only the header of its entry starts in the split
            return None, reader.split.end, "full"
    elif rows and (why == STOPS[TORN] or (why == "end" and stop < limit)):
        why = "full"  # the next call continues there
    return (Batch(view, base, positions[:rows], sizes[:rows]) if rows else None), base + after, why


def _bounded(batch: Batch) -> Iterator[Batch]:
    """Split a batch into parts of bounded size."""
    import numpy as np

    done, rows = 0, len(batch.positions)
    while done < rows:
        ends = batch.positions[done:] + batch.sizes[done:] - batch.positions[done]
        part = max(1, int(np.searchsorted(ends, BATCH_BYTES, "right")))
        yield batch._replace(positions=batch.positions[done : done + part], sizes=batch.sizes[done : done + part])
        done += part


def _next_newer(reader: SplitReader, at: int, last_ms: int) -> int:
    """Return the next record before the split's end that is not older than the last good one, or -1.

    A truncation leaves older records.
    """
    while at < reader.split.end:
        view, base = reader.view, reader.base
        found = find_record(view, at - base, len(view), base, _limit(reader))
        if found < 0:
            if reader.reach >= reader.split.end:
                return -1
            at = max(at + 1, reader.reach - SEARCH_BACK)  # an earlier record would have been complete
            reader.slide(at)
            continue
        at = base + found
        if reader.time_at(at) >= last_ms:
            return at
        at += reader.integer(at)
    return -1


def _gone(split: LogSplit, error: DiskError) -> Exception:
    if error.errno != errno.ENOENT:
        return error
    check_mounted(split.store)
    found = "none: retention deleted it while it was read; failOnDataLoss=false continues without it"
    return DataLost(split.file, split.begin - split.file_start, "the file", found)
