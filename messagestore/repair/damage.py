"""Find where a log is damaged, what lies behind the damage, and which messages are lost.

Holes are found by a scan that continues behind damage (`commitlog.walk`). Whether a hole is a crash tail or damage to safely
stored data: see `docs/explanation/torn-tail-and-damage.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from commitlog import Reader, StoredMessage
from commitlog.findings import UNKNOWN_VERSION, unsupported_record
from commitlog.layout import BLANK_SIZE, FILE_SIZE_DEFAULT, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from commitlog.offset_files import OffsetFile, file_name
from commitlog.walk import Blank, LogFiles, Piece
from storageio import StoreCorrupt
from storebytes.finding import Finding

from ..derive.kinds.batch import batch_unit
from ..recovery.log_end import LogEnd
from ..recovery.named_messages import NamedMessages, by_queue
from .fillers import MARK, Lost, least_size
from .lost_messages import Gap, Hole, lost_messages

MISSING_MAX = 10_000  # missing files in a row; a file name further away does not belong to this log
NO_RECORD_LOST = {"bad_blank_size", "missing_file", "empty"}  # kinds of hole that may have contained no record
MISSING_END = "missing_end"  # the kind of a hole behind the last record, where queues, index or `clean.json` name messages
OFFSET_MAX = (1 << 63) - 1
END_SIZE_MIN = least_size("") + len(MARK) + 128  # space for a filler in a hole whose last record has an unknown size


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
    lost_counts: list[int] = field(default_factory=list)  # for each hole, the number of messages that anything names in it
    lost_by_queue: dict[str, int] = field(default_factory=dict)  # messages that queues name in the holes
    cut_by_queue: dict[str, int] = field(default_factory=dict)  # and from the first hole on
    ends_if_cut: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # ends of queues: then, and now
    times: list[int] = field(default_factory=list)  # store time of the last record before each hole
    next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)  # the next queue offset of each queue
    findings: list[Finding] = field(default_factory=list)  # findings about file names, sizes and gaps

    @property
    def log_end(self) -> LogEnd:
        """Return the end of the whole records."""
        end = self.tail.start if self.tail is not None else self.end
        return LogEnd(end, self.last_store_timestamp_ms, end, self.last_offset)

    @property
    def is_damaged(self) -> bool:
        """Return whether safely stored data is damaged; opening for writing refuses such a store."""
        return self.first_damaged >= 0

    @property
    def end_with_holes(self) -> int:
        """Return the end of the log after all holes are filled."""
        return max([self.end, *(hole.stop for hole in self.holes)])


def survey(
    files: LogFiles, safe_ms: int, named: NamedMessages | None, progress: Callable[[int], None] | None = None,
    is_unnumbered: Callable[[str], bool] = lambda _topic: False, *, is_batch: Callable[[str], bool] = lambda _topic: False,
    force: bool = False, take: Callable[[Piece], None] | None = None,
    reach_of: Callable[[Survey], int] = lambda _found: -1,
) -> Survey:  # fmt: skip
    """Scan the whole log. Records stored at or before `safe_ms` were on disk at the last checkpoint.

    `progress` is called with the number of record bytes scanned since its last call, and `take` with each range of whole
    records. `is_unnumbered` names topics without ordinary queues, in which a missing record does not shift other queue offsets,
    and `is_batch` those with batch queues, whose consumers do not get past a gap. Raises `UnsupportedFormat` for a record of an
    unknown version; `force` treats it as damage if everything but its magic number is a whole record of a known version.
    `named` is what queues and index name, and `reach_of` returns how far the log reached by what lies beside it: what is
    missing behind its last record is a hole as well.
    """
    found = _walk(files, safe_ms, is_batch, in_detail=False, progress=progress, take=take, force=force)
    reach = reach_of(found)
    if found.holes or reach > found.end:
        found = _walk(files, safe_ms, is_batch, in_detail=True, force=force)
    _add_missing_end(found, files, named, reach, safe_ms)
    if found.holes:
        gaps = [gap for gap in found.gaps if gap.is_batch or not is_unnumbered(gap.topic)]
        found.lost = _continuing(found, lost_messages(found.holes, gaps, named))
        _count_lost(found, named)
    return found


def _continuing(found: Survey, lost: dict[int, list[Lost]]) -> dict[int, list[Lost]]:
    """Leave out messages behind the end of the log that do not continue their queue.

    Their units are those of another store, or others before them are lost too: a filler would leave a gap in the queue.
    """
    following = dict(found.next_offsets)
    kept: dict[int, list[Lost]] = {}
    for start, messages in sorted(lost.items()):
        for one in messages:
            queue_key = one.topic, one.queue_id
            expected = following.get(queue_key, one.queue_offset)
            if start < found.end or one.queue_offset == expected:
                kept.setdefault(start, []).append(one)
                following[queue_key] = max(expected, one.queue_offset + one.messages)
    return kept


def _add_missing_end(found: Survey, files: LogFiles, named: NamedMessages | None, reach: int, safe_ms: int) -> None:
    """Add holes for what is named behind the last record: one for each file that it would be in.

    After a clean stop, and after a crash if the checkpoint is newer than the last record, it was on the disk.
    """
    tail, size = found.tail, files.file_size_bytes or FILE_SIZE_DEFAULT
    end = tail.start if tail is not None else found.end
    if reach <= end:
        return
    is_safe = safe_ms > max(found.last_store_timestamp_ms, 0)
    start = end
    if not files.files:  # the files before the first that is named may have expired
        units = named.between(0, reach) if named is not None else ()
        start = min((unit.physical_offset for unit in units), default=0) // size * size
    while start < reach and len(found.holes) < MISSING_MAX:
        file_end = (start // size + 1) * size
        stop = min(max(reach, start + END_SIZE_MIN), file_end)
        if file_end - stop < BLANK_SIZE:
            stop = file_end
        missing = Finding(file_name(start), 0, MISSING_END, f"records up to {reach}", f"the log ends at {end}")
        finding = tail.finding if tail is not None and start == end else missing
        found.holes.append(Hole(start, stop, file_end, finding))
        found.records_after.append(found.records)
        found.times.append(found.last_store_timestamp_ms)
        start = file_end
    if found.first_damaged < 0 and is_safe:
        found.first_damaged = found.holes[0].start
    found.tail = None


def _count_lost(found: Survey, named: NamedMessages | None) -> None:
    """Count what queues and index name in the holes, and what cutting the log at the first of them loses."""
    for hole in found.holes:
        units = list(named.between(hole.start, hole.stop)) if named is not None else []
        messages = {unit.physical_offset: unit.messages for unit in units}
        indexed = named.indexed(hole.start, hole.stop) - set(messages) if named is not None else set()
        count = max(sum(messages.values()) + len(indexed), sum(one.messages for one in found.lost.get(hole.start, ())))
        found.lost_counts.append(count or (hole.finding.kind not in NO_RECORD_LOST))
        for queue, number in by_queue(iter(units)).items():
            found.lost_by_queue[queue] = found.lost_by_queue.get(queue, 0) + number
    if named is not None:
        found.ends_if_cut = named.ends_at(found.holes[0].start)
        ends = found.ends_if_cut.items()
        found.cut_by_queue = {f"{topic}/{number}": now - then for (topic, number), (then, now) in sorted(ends) if now > then}


def _walk(
    files: LogFiles, safe_ms: int, is_batch: Callable[[str], bool], *, in_detail: bool,
    progress: Callable[[int], None] | None = None, take: Callable[[Piece], None] | None = None, force: bool,
) -> Survey:  # fmt: skip
    """Scan the log once. `in_detail` decodes every record, to find lost messages and records older than `safe_ms`."""
    _refuse_wide_gaps(files)
    found = Survey(findings=[finding for finding in files.check() if finding.is_problem])
    walk = _DamageWalk(files, safe_ms, found, is_batch, in_detail)
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
            text, found = f"at most {MISSING_MAX} files missing before it", f"a gap from {before.start_offset} on"
            raise StoreCorrupt("too far behind", file=after.path, offset=0, expected=text, found=found)


class _DamageWalk:
    """Converts the steps of a scan into holes."""

    def __init__(self, files: LogFiles, safe_ms: int, found: Survey, is_batch: Callable[[str], bool], in_detail: bool) -> None:
        self._files = files
        self._is_batch = is_batch
        self._in_detail = in_detail
        self._starts = {file.path: file.start_offset for file in files.files}
        self._size = files.file_size_bytes
        first = files.files[0] if files.files else None
        self._reached = first.start_offset if first else 0  # start of the current or next file
        if first is not None and not first.size_bytes:  # the scan does not report it, and what follows it is behind a hole
            self._reached -= self._size
        self._short = [file for file in files.files if 0 < file.size_bytes < self._size]  # not entered yet
        self._safe_ms = safe_ms
        self._found = found
        self._open: list[Hole] = []  # holes whose end is not known yet
        self._next: dict[tuple[str, int], int] = {}  # next expected queue offset
        self._last_hole: dict[tuple[str, int], int] = {}  # number of holes when the queue was last seen

    def problem(self, finding: Finding) -> None:
        """Begin a hole, unless one is open in this file."""
        self._enter(finding.file)
        start = self._files.step_offset(self._starts[finding.file] + finding.offset)
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
            self._sequence(message)
        found.last_store_timestamp_ms, found.last_offset = message.store_timestamp_ms, message.physical_offset
        if found.holes and found.first_damaged < 0 and message.store_timestamp_ms <= self._safe_ms:
            found.first_damaged = found.holes[0].start
        found.records += 1

    def _enter(self, path: str) -> None:
        """Add a hole of one file's length for each file missing before this one, and for the lost end of a short one."""
        start = self._starts[path]
        while self._short and self._short[0].start_offset < start:
            self._end_short(self._short.pop(0))
        while self._size and self._reached + self._size < start:
            self._reached += self._size
            finding = Finding(path, 0, "missing_file", file_name(self._reached), file_name(start))
            self._open.append(Hole(self._reached, self._reached, self._reached + self._size, finding))
        self._reached = max(self._reached, start)

    def _end_short(self, file: OffsetFile) -> None:
        """Add a hole for the end that a file lost at a border of records, where the scan finds nothing wrong."""
        end = file.start_offset + self._size
        at = max(self._found.end, file.start_offset)
        if at < end and not any(hole.file_end == end for hole in self._open):
            finding = Finding(file.path, file.size_bytes, "wrong_file_size", f"{self._size} bytes", f"{file.size_bytes} bytes")
            self._open.append(Hole(at, at, end, finding))

    def _close(self, stop: int) -> None:
        """End every open hole at `stop`, or at the end of its file."""
        for hole in self._open:
            self._found.holes.append(hole._replace(stop=min(stop, hole.file_end)))
            self._found.records_after.append(self._found.records)
            self._found.times.append(self._found.last_store_timestamp_ms)
        self._open = []

    def _sequence(self, message: StoredMessage) -> None:
        """Record a jump in the queue offsets: these messages were in the holes since the queue was last seen."""
        queue_key, is_batch = (message.topic, message.queue_id), self._is_batch(message.topic)
        queue_offset, count = message.queue_offset, 1
        if is_batch:
            unit = batch_unit(message)
            if not unit.is_valid:
                return  # a record without numbers is in no queue
            queue_offset, count = unit.base_offset, unit.batch_size
        expected, since, now = self._next.get(queue_key), self._last_hole.get(queue_key, 0), len(self._found.holes)
        if expected is not None and queue_offset > expected and now > since:
            self._found.gaps.append(Gap(*queue_key, expected, queue_offset, since, now - 1, is_batch))
        self._next[queue_key] = queue_offset + count
        self._last_hole[queue_key] = now

    def finish(self) -> None:
        """Make the hole that is still open the tail; nothing behind its first byte is whole."""
        self._found.next_offsets = self._next
        if self._open:
            self._found.tail = self._open[0]
