"""The records of a stretch of one log file, as a walk over the whole file would find them.

A stretch begin..end owns the records that *start* in it; the last one may reach past its end.  Where a stretch begins in the
middle of a file, the walk is taken up one greatest record earlier and goes from record to record to the first that starts at
or behind `begin`.  So damage before `begin`, bytes that a truncation left behind, and a body that holds copies of records are
judged as a walk from the file's first byte judges them, and whatever is wrong is said by exactly one stretch.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commitlog._scan_cy import Reader, count, find_record, scan
from commitlog.checks import BLANK, CHECK_PLACE, EMPTY, STOPS, TORN
from commitlog.columns import Batch
from commitlog.findings import Finding, Place, describe
from commitlog.layout import BLANK_SIZE, BODY_SIZE_MAX_DEFAULT, RECORD_ALLOWANCE
from storageio import Disk, DiskError, Mode

from ..errors import DataLost
from ..object_disk import disk_for, is_remote

if TYPE_CHECKING:
    from .splits import LogSplit

PIECE_BYTES = 64 << 20  # of a file held at once
LOOK_BACK = BODY_SIZE_MAX_DEFAULT + RECORD_ALLOWANCE  # the greatest record, unless a broker was told otherwise
BATCH_BYTES = 16 << 20  # of records in one batch; one record may be more


class Stretch:
    """The bytes of a file around the place of a walk: a map of it, or what was fetched.  All places are physical offsets."""

    def __init__(self, split: LogSplit) -> None:
        """Opens.  Raises `DataLost` for a file that is gone."""
        self.split = split
        self.file_end = split.file_start + split.file_size
        self.low = max(split.file_start, split.begin - LOOK_BACK)
        self._disk: Disk = disk_for(split.file)
        self._is_part = is_remote(split.file)
        self.view = memoryview(b"")
        self.base = split.file_start  # of the first byte of `view`
        self.slide(self.low)

    def slide(self, at: int, size_bytes: int = PIECE_BYTES) -> None:
        """Have what lies from `at` on; let go of what lies before."""
        try:
            file = self._disk.open(self.split.file, Mode.READ)
            try:
                if self._is_part:
                    stop = min(self.file_end, at + size_bytes + LOOK_BACK)
                    self.view = memoryview(file.read(at - self.split.file_start, stop - at))
                    self.base = at
                else:
                    self.view = file.map(self.split.file_size, writable=False).view  # the pages of the old map go with it
            finally:
                file.close()
        except DiskError as error:
            raise _gone(self.split, error) from error
        self._slid_at = at

    @property
    def reach(self) -> int:
        """Up to where `view` goes."""
        return self.base + len(self.view)

    def has_more(self, at: int) -> bool:
        """Whether what begins at `at`, and ends behind `view`, was fetched now."""
        if self.reach >= self.file_end:
            return False
        size = self.integer(at)
        if at == self.base and len(self.view) >= size:
            return False
        self.slide(at, max(size, PIECE_BYTES))
        return True

    def keep_small(self, at: int) -> None:
        """Let go of what a walk has behind it, now and then."""
        if at - self._slid_at > PIECE_BYTES:
            self.slide(at)

    def integer(self, at: int) -> int:
        """The signed big-endian four bytes there; a record and a blank begin with their size."""
        return int.from_bytes(self.view[at - self.base : at - self.base + 4], "big", signed=True)

    def time_at(self, at: int) -> int:
        """The store time of a checked record."""
        message = Reader(self.view, self.base).decode(at - self.base, 0)
        assert message is not None, "a record that was checked"
        return message.store_timestamp_ms

    def describe(self, at: int, why: str) -> Finding:
        """What is wrong at a place; the finding's offset is one in the file."""
        found = describe(self.split.file, Place(self.view, at - self.base, self.base), why)
        return found._replace(offset=at - self.split.file_start)

    def is_done(self, at: int, why: str) -> bool:
        """Whether a file ends properly there: in a blank over its rest, or with too little room for one."""
        left = self.file_end - at
        is_blank = why == STOPS[BLANK] and self.integer(at) == left
        return left == 0 or is_blank or (why == STOPS[TORN] and left < BLANK_SIZE)


def walk(stretch: Stretch, checks: int, batch_rows: int) -> Iterator[Batch | Finding]:
    """Batches of whole records, checked as `checks` says, and what is wrong between them."""
    at, last_ms = _aligned(stretch)
    split = stretch.split
    while at < split.end:
        stretch.keep_small(at)
        batch, at, why = _rows(stretch, at, checks, batch_rows)
        if batch is not None:
            last_ms = max(last_ms, stretch.time_at(stretch.base + int(batch.positions[-1])))
            yield from _bounded(batch)
        if at >= split.end or why == "full" or (why == STOPS[TORN] and stretch.has_more(at)):
            continue
        if stretch.is_done(at, why):
            return
        finding = stretch.describe(at, why)
        ahead = _next_newer(stretch, at + 1, last_ms)
        if why == STOPS[EMPTY] and ahead < 0 and split.is_open_end:
            return  # the log's last file, whose end nobody looked for: here it is
        yield finding
        at = split.end if ahead < 0 else ahead


def _aligned(stretch: Stretch) -> tuple[int, int]:
    """Where the first record that starts at or behind `begin` lies, and the store time of the one before."""
    split, at, last_ms = stretch.split, stretch.low, 0
    if at > split.file_start:
        found = find_record(stretch.view, at - stretch.base, len(stretch.view), stretch.base, _limit(stretch))
        at = split.end if found < 0 else stretch.base + found
    while at < split.begin:
        stop = min(split.begin, stretch.reach)
        place, why, records, _, last = count(stretch.view, at - stretch.base, stop - stretch.base, stretch.base, CHECK_PLACE)
        at = stretch.base + place
        last_ms = stretch.time_at(stretch.base + last) if records else last_ms
        if at >= split.begin:
            break
        size = Reader(stretch.view, stretch.base).check(at - stretch.base, CHECK_PLACE)
        if size > 0:
            return at + size, stretch.time_at(at)
        if size == TORN and stretch.has_more(at):
            continue
        if stretch.is_done(at, why):
            return split.end, last_ms
        ahead = _next_newer(stretch, at + 1, last_ms)
        at = split.end if ahead < 0 else ahead
    return at, last_ms


def _limit(stretch: Stretch) -> int:
    """The end of the stretch as far as `view` goes, as a place in it."""
    return min(stretch.split.end, stretch.reach) - stretch.base


def _rows(stretch: Stretch, at: int, checks: int, batch_rows: int) -> tuple[Batch | None, int, str]:
    """Records that end by the stretch's end, behind them the one that reaches past it; where and why that stopped."""
    import numpy as np  # 80 ms

    view, base = stretch.view, stretch.base
    positions, sizes = np.empty(batch_rows, np.int64), np.empty(batch_rows, np.int32)
    limit = _limit(stretch)
    stop = min(limit, at - base + BATCH_BYTES)  # what is looked at is in memory until the map goes
    after, why, rows = scan(view, at - base, stop, base, checks, positions, sizes)
    if rows == 0 and why == STOPS[TORN]:
        after, why, rows = scan(view, at - base, len(view), base, checks, positions[:1], sizes[:1])
    elif rows and (why == STOPS[TORN] or (why == "end" and stop < limit)):
        why = "full"  # looked at again, from there on
    return (Batch(view, base, positions[:rows], sizes[:rows]) if rows else None), base + after, why


def _bounded(batch: Batch) -> Iterator[Batch]:
    """In parts of bounded size."""
    import numpy as np

    done, rows = 0, len(batch.positions)
    while done < rows:
        ends = batch.positions[done:] + batch.sizes[done:] - batch.positions[done]
        part = max(1, int(np.searchsorted(ends, BATCH_BYTES, "right")))
        yield batch._replace(positions=batch.positions[done : done + part], sizes=batch.sizes[done : done + part])
        done += part


def _next_newer(stretch: Stretch, at: int, last_ms: int) -> int:
    """The next record before the end that lies where it says and is no older than the last good one; -1 without one.

    Older ones are what a truncation left behind.
    """
    while at < stretch.split.end:
        view, base = stretch.view, stretch.base
        found = find_record(view, at - base, len(view), base, _limit(stretch))
        if found < 0:
            if stretch.reach >= stretch.split.end:
                return -1
            at = max(at + 1, stretch.reach - LOOK_BACK)  # a record that began before would have been whole
            stretch.slide(at)
            continue
        message: Any = Reader(view, base).decode(found, 0)
        if message.store_timestamp_ms >= last_ms:
            return base + found
        at = base + found + message.size
    return -1


def _gone(split: LogSplit, error: DiskError) -> Exception:
    if error.errno != errno.ENOENT:
        return error
    return DataLost(split.file, split.begin - split.file_start, "the file", "none: retention took it while it was wanted")
