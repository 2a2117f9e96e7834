"""Where a log is damaged, what lies behind the damage, and which messages it took.

Holes are found by the walk that goes on past damage (`commitlog.walk`).  Whether a hole is a crash tail or damage to safely
stored data: `ARCHITECTURE.md`, "A torn tail is not damage".
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
from .lost_messages import Gap, swallowed

MISSING_MAX = 10_000  # files in a row that are taken for lost; a name that is further off is no file of this log


class Hole(NamedTuple):
    """Bytes start..stop of the log that are no whole records; physical offsets."""

    start: int
    stop: int
    file_end: int  # of the file that it lies in
    finding: Finding


@dataclass
class Survey:
    """What one walk over a log found."""

    records: int = 0
    end: int = 0  # behind the last whole record or blank
    last_offset: int = -1
    last_store_timestamp_ms: int = 0
    holes: list[Hole] = field(default_factory=list)  # with whole records behind them
    tail: Hole | None = None  # with none behind it
    first_damaged: int = -1  # the first hole that has a safely stored record behind it
    records_after: list[int] = field(default_factory=list)  # for each hole, whole records in front of it
    gaps: list[Gap] = field(default_factory=list)  # in the queue offsets of the records, across holes
    lost: dict[int, list[Lost]] = field(default_factory=dict)  # by the hole's start
    times: list[int] = field(default_factory=list)  # store time of the last record in front of each hole
    findings: list[Finding] = field(default_factory=list)  # of files: names, sizes, gaps

    @property
    def is_damaged(self) -> bool:
        """Whether safely stored data is hurt: opening for writing would refuse."""
        return self.first_damaged >= 0


def survey(
    files: LogFiles, safe_ms: int, queues: ConsumeQueues | None, progress: Callable[[int], None] | None = None,
    is_unnumbered: Callable[[str], bool] = lambda _topic: False, *, force: bool = False,
) -> Survey:  # fmt: skip
    """Walk the whole log.  `safe_ms`: what was stored at or before it was on the disk at the last checkpoint.

    `progress` is called with the bytes of records that were looked at since it was called last.  `is_unnumbered`: topics
    without ordinary queues, in which a missing record moves no other's number.  Raises `UnsupportedFormat` for a record of an
    unknown version; `force` takes one for damage if all but its magic is a whole record of a known version.
    """
    found = _walk(files, safe_ms, in_detail=False, progress=progress, force=force)
    if found.holes:
        found = _walk(files, safe_ms, in_detail=True, force=force)
        found.lost = swallowed(found.holes, [gap for gap in found.gaps if not is_unnumbered(gap.topic)], queues)
    return found


def _walk(
    files: LogFiles, safe_ms: int, *, in_detail: bool, progress: Callable[[int], None] | None = None, force: bool
) -> Survey:
    """One pass.  `in_detail` looks at every record: which messages the holes have swallowed, and which are older than safe."""
    _refuse_wide_gaps(files)
    found = Survey(findings=[finding for finding in files.check() if finding.is_problem])
    walk = _Walk(files, safe_ms, found, in_detail)
    for step in files.walk():
        if isinstance(step, Piece):
            walk.piece(step)
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
    """Before anything is made of them: a file without a record, which no step of the walk tells of, may have any number."""
    for before, after in pairwise(files.files):
        if (size := files.file_size_bytes) and after.start_offset - before.start_offset > size * MISSING_MAX:
            told, found = f"at most {MISSING_MAX} files missing before it", f"a gap from {before.start_offset} on"
            raise StoreCorrupt("too far behind", file=after.path, offset=0, expected=told, found=found)


class _Walk:
    """Turns the steps of a walk into holes."""

    def __init__(self, files: LogFiles, safe_ms: int, found: Survey, in_detail: bool) -> None:
        self._in_detail = in_detail
        self._starts = {file.path: file.start_offset for file in files.files}
        self._size = files.file_size_bytes
        self._reached = files.files[0].start_offset if files.files else 0  # first byte of the file looked at, or the next
        self._safe_ms = safe_ms
        self._found = found
        self._open: list[Hole] = []  # begun and not seen to end
        self._next: dict[tuple[str, int], int] = {}  # queue offset expected next
        self._last_hole: dict[tuple[str, int], int] = {}  # number of holes when the lane was last seen

    def problem(self, finding: Finding) -> None:
        """Begin a hole, if none is open in this file."""
        self._enter(finding.file)
        start = self._starts[finding.file] + finding.offset
        end = self._starts[finding.file] + max(self._size, 1)
        if not self._open or self._open[-1].file_end != end:
            self._open.append(Hole(start, start, end, finding))

    def blank(self, step: Blank) -> None:
        """The file is over."""
        self._enter(step.file)
        self._close(self._starts[step.file] + step.offset)
        self._found.end = max(self._found.end, self._starts[step.file] + self._size)

    def piece(self, step: Piece) -> None:
        """Whole records: what is open ends here."""
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
        """Only the last record of a piece is looked at."""
        last = Reader(step.view, step.base).decode(step.positions[-1], 0)
        assert last is not None, "a record that was checked"
        self._found.last_store_timestamp_ms, self._found.last_offset = last.store_timestamp_ms, last.physical_offset

    def _record(self, message: StoredMessage) -> None:
        """Count it, and see what is missing before it."""
        found = self._found
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            self._sequence((message.topic, message.queue_id), message.queue_offset)
        found.last_store_timestamp_ms, found.last_offset = message.store_timestamp_ms, message.physical_offset
        if found.holes and found.first_damaged < 0 and message.store_timestamp_ms <= self._safe_ms:
            found.first_damaged = found.holes[0].start
        found.records += 1

    def _enter(self, path: str) -> None:
        """Files that are missing before this one are holes as long as a file."""
        start = self._starts[path]
        while self._size and self._reached + self._size < start:
            self._reached += self._size
            finding = Finding(path, 0, "missing_file", file_name(self._reached), file_name(start))
            self._open.append(Hole(self._reached, self._reached, self._reached + self._size, finding))
        self._reached = max(self._reached, start)

    def _close(self, stop: int) -> None:
        """Every open hole ends at `stop`, or at its file's end."""
        for hole in self._open:
            self._found.holes.append(hole._replace(stop=min(stop, hole.file_end)))
            self._found.records_after.append(self._found.records)
            self._found.times.append(self._found.last_store_timestamp_ms)
        self._open = []

    def _sequence(self, lane: tuple[str, int], queue_offset: int) -> None:
        """A jump in the queue offsets says what the holes since the lane was last seen have swallowed."""
        expected, since, now = self._next.get(lane), self._last_hole.get(lane, 0), len(self._found.holes)
        if expected is not None and queue_offset > expected and now > since:
            self._found.gaps.append(Gap(*lane, expected, queue_offset, since, now - 1))
        self._next[lane] = queue_offset + 1
        self._last_hole[lane] = now

    def finish(self) -> None:
        """What is still open is the tail; from its first byte on nothing is whole."""
        if self._open:
            self._found.tail = self._open[0]
