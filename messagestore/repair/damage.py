"""Find where a log is damaged, what lies behind the damage, and which messages are lost.

Holes are found by a scan that continues behind damage (`commitlog.walk`). Whether a hole is a crash tail or damage to safely
stored data: see `docs/explanation/torn-tail-and-damage.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from commitlog import StoredMessage
from commitlog._scan_cy import Reader
from commitlog.findings import UNKNOWN_VERSION, Finding, unsupported_record
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from commitlog.offset_files import file_name
from commitlog.walk import Blank, LogFiles, Piece
from consumequeue import ConsumeQueues
from storageio import StoreCorrupt

from .fillers import Lost
from .lost_messages import Gap, lost_messages

MISSING_MAX = 10_000  # missing files in a row; a file name further away does not belong to this log


class Hole(NamedTuple):
    """Bytes start..stop of the log that are not whole records; physical offsets."""

    start: int
    stop: int
    file_end: int  # end of the file that contains it
    finding: Finding


@dataclass
class Survey:
    """The result of one scan of a log."""

    records: int = 0
    end: int = 0  # physical offset behind the last whole record or blank
    last_offset: int = -1
    last_store_timestamp_ms: int = 0
    holes: list[Hole] = field(default_factory=list)  # holes followed by whole records
    tail: Hole | None = None  # the hole at the end, followed by no whole record
    first_damaged: int = -1  # start of the first hole before a safely stored record
    records_after: list[int] = field(default_factory=list)  # for each hole, the number of whole records before it
    gaps: list[Gap] = field(default_factory=list)  # jumps in queue offsets across holes
    lost: dict[int, list[Lost]] = field(default_factory=dict)  # lost messages by the start of their hole
    times: list[int] = field(default_factory=list)  # store time of the last record before each hole
    findings: list[Finding] = field(default_factory=list)  # findings about file names, sizes and gaps

    @property
    def is_damaged(self) -> bool:
        """Return whether safely stored data is damaged; opening for writing refuses such a store."""
        return self.first_damaged >= 0


def survey(
    files: LogFiles, safe_ms: int, queues: ConsumeQueues | None, progress: Callable[[int], None] | None = None,
    is_unnumbered: Callable[[str], bool] = lambda _topic: False, *, force: bool = False,
    take: Callable[[Piece], None] | None = None,
) -> Survey:  # fmt: skip
    """Scan the whole log. Records stored at or before `safe_ms` were on disk at the last checkpoint.

    `progress` is called with the number of record bytes scanned since its last call, and `take` with each range of whole
    records. `is_unnumbered` names topics without
    ordinary queues, in which a missing record does not shift other queue offsets. Raises `UnsupportedFormat` for a record of an
    unknown version; `force` treats it as damage if everything but its magic number is a whole record of a known version.
    """
    found = _walk(files, safe_ms, in_detail=False, progress=progress, take=take, force=force)
    if found.holes:
        found = _walk(files, safe_ms, in_detail=True, force=force)
        found.lost = lost_messages(found.holes, [gap for gap in found.gaps if not is_unnumbered(gap.topic)], queues)
    return found


def _walk(
    files: LogFiles, safe_ms: int, *, in_detail: bool, progress: Callable[[int], None] | None = None,
    take: Callable[[Piece], None] | None = None, force: bool,
) -> Survey:  # fmt: skip
    """Scan the log once. `in_detail` decodes every record, to find lost messages and records older than `safe_ms`."""
    _refuse_wide_gaps(files)
    found = Survey(findings=[finding for finding in files.check() if finding.is_problem])
    walk = _Walk(files, safe_ms, found, in_detail)
    for step in files.walk():
        if isinstance(step, Piece):
            walk.piece(step)
            if take is not None:
                take(step)
            if progress is not None:
                progress(step.stop - step.start)
        elif isinstance(step, Blank):
            walk.blank(step)
        elif step.is_problem:
            if step.kind == UNKNOWN_VERSION and not (force and files.fits_known_version(step)):
                raise unsupported_record(step)
            walk.problem(step)
    walk.finish()
    return found


def _refuse_wide_gaps(files: LogFiles) -> None:
    """Raise `StoreCorrupt` for an implausibly wide gap between files.

    This comes first, because the scan does not report a file without records, whose name may contain any number.
    """
    for before, after in pairwise(files.files):
        if (size := files.file_size_bytes) and after.start_offset - before.start_offset > size * MISSING_MAX:
            told, found = f"at most {MISSING_MAX} files missing before it", f"a gap from {before.start_offset} on"
            raise StoreCorrupt("too far behind", file=after.path, offset=0, expected=told, found=found)


class _Walk:
    """Converts the steps of a scan into holes."""

    def __init__(self, files: LogFiles, safe_ms: int, found: Survey, in_detail: bool) -> None:
        self._in_detail = in_detail
        self._starts = {file.path: file.start_offset for file in files.files}
        self._size = files.file_size_bytes
        first = files.files[0] if files.files else None
        self._reached = first.start_offset if first else 0  # start of the current or next file
        if first is not None and not first.size_bytes:  # the scan does not report it, and what follows it is behind a hole
            self._reached -= self._size
        self._safe_ms = safe_ms
        self._found = found
        self._open: list[Hole] = []  # holes whose end is not known yet
        self._next: dict[tuple[str, int], int] = {}  # next expected queue offset
        self._last_hole: dict[tuple[str, int], int] = {}  # number of holes when the queue was last seen

    def problem(self, finding: Finding) -> None:
        """Begin a hole, unless one is open in this file."""
        self._enter(finding.file)
        start = self._starts[finding.file] + finding.offset
        end = self._starts[finding.file] + max(self._size, 1)
        if not self._open or self._open[-1].file_end != end:
            self._open.append(Hole(start, start, end, finding))

    def blank(self, step: Blank) -> None:
        """Take the blank record that ends a file."""
        self._enter(step.file)
        self._close(self._starts[step.file] + step.offset)
        self._found.end = max(self._found.end, self._starts[step.file] + self._size)

    def piece(self, step: Piece) -> None:
        """Take a range of whole records, which ends any open hole."""
        found = self._found
        self._enter(step.file)
        self._close(step.base + step.start)
        if self._in_detail:
            for message in step.messages():
                self._record(message)
        else:
            found.records += len(step.positions)
            self._take_last(step)
        found.end = step.base + step.stop

    def _take_last(self, step: Piece) -> None:
        """Note time and offset of the last record of a piece."""
        last = step.positions[-1]
        self._found.last_store_timestamp_ms = Reader(step.view, step.base).store_time(last)
        self._found.last_offset = step.base + last

    def _record(self, message: StoredMessage) -> None:
        """Count a record and detect what is missing before it."""
        found = self._found
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            self._sequence((message.topic, message.queue_id), message.queue_offset)
        found.last_store_timestamp_ms, found.last_offset = message.store_timestamp_ms, message.physical_offset
        if found.holes and found.first_damaged < 0 and message.store_timestamp_ms <= self._safe_ms:
            found.first_damaged = found.holes[0].start
        found.records += 1

    def _enter(self, path: str) -> None:
        """Add a hole of one file's length for each file missing before this one."""
        start = self._starts[path]
        while self._size and self._reached + self._size < start:
            self._reached += self._size
            finding = Finding(path, 0, "missing_file", file_name(self._reached), file_name(start))
            self._open.append(Hole(self._reached, self._reached, self._reached + self._size, finding))
        self._reached = max(self._reached, start)

    def _close(self, stop: int) -> None:
        """End every open hole at `stop`, or at the end of its file."""
        for hole in self._open:
            self._found.holes.append(hole._replace(stop=min(stop, hole.file_end)))
            self._found.records_after.append(self._found.records)
            self._found.times.append(self._found.last_store_timestamp_ms)
        self._open = []

    def _sequence(self, queue_key: tuple[str, int], queue_offset: int) -> None:
        """Record a jump in the queue offsets: these messages were in the holes since the queue was last seen."""
        expected, since, now = self._next.get(queue_key), self._last_hole.get(queue_key, 0), len(self._found.holes)
        if expected is not None and queue_offset > expected and now > since:
            self._found.gaps.append(Gap(*queue_key, expected, queue_offset, since, now - 1))
        self._next[queue_key] = queue_offset + 1
        self._last_hole[queue_key] = now

    def finish(self) -> None:
        """Make the hole that is still open the tail; nothing behind its first byte is whole."""
        if self._open:
            self._found.tail = self._open[0]
