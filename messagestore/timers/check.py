"""Check the timer files: units against each other and against the log, slots against the units, the checkpoint against both.

Units and slots of delivered timers are not compared with the log: the broker never clears them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from commitlog.walk import LogFiles
from storageio import Disk, StoreCorrupt, UnsupportedFormat
from storebytes.finding import FINDINGS_MAX, Finding
from storebytes.java_hash import java_hash_code

from ..abort_file import AbortFile
from .layout import (
    CHECK_NAME,
    MAGIC_ROLL,
    NO_UNIT,
    PRECISION_MS,
    REAL_TOPIC,
    WHEEL_SLOTS,
    Slot,
    TimerCheckpoint,
    TimerUnit,
    slot_s,
)
from .pending import is_pending
from .records import TimerRecords
from .timer_log import TimerLog, refuse_unknown_layout
from .undelivered import due_of
from .wheel import read_timer_checkpoint, used_slots, wheel_path, wheel_snapshots


def timer_findings(disk: Disk, root: str, files: LogFiles, queue_end: int | None) -> Iterator[Finding]:
    """Yield what is wrong with the timer files, at most `FINDINGS_MAX` and the last of a kind; nothing without timers.

    `queue_end` is the next offset of queue 0 of the timers' topic, None if it is not known.
    """
    counts: Counter[str] = Counter()
    last: dict[str, Finding] = {}
    for finding in _all_findings(disk, root, files, queue_end):
        counts[finding.kind] += 1
        last[finding.kind] = finding
        if counts[finding.kind] <= FINDINGS_MAX:
            yield finding
    for kind, finding in last.items():
        if counts[kind] > FINDINGS_MAX:
            yield finding._replace(found=f"{finding.found}, the last of {counts[kind]} of this kind")


def _all_findings(disk: Disk, root: str, files: LogFiles, queue_end: int | None) -> Iterator[Finding]:
    try:
        refuse_unknown_layout(disk, root)
        yield from _TimerCheck(disk, root, files).findings(queue_end)
    except UnsupportedFormat as error:
        yield Finding(error.file, error.offset or 0, "timer_layout", error.supported, f"{error.what} {error.found}")
    except StoreCorrupt as error:
        yield Finding(error.file, error.offset, "timer_checkpoint", str(error.expected), str(error.found))


class _TimerCheck:
    """One check; the units of pending timers are kept by slot."""

    def __init__(self, disk: Disk, root: str, files: LogFiles) -> None:
        self._disk = disk
        self._root = root
        self._log = TimerLog(disk, root)
        self._records = TimerRecords(disk, files)
        self._stop = files.end_offset
        self._low = files.files[0].start_offset if files.files else 0
        self._previous: dict[int, dict[int, int]] = {}  # of each slot: the previous unit of each unit
        self._check = TimerCheckpoint()
        self._complete = 0

    def findings(self, queue_end: int | None) -> Iterator[Finding]:
        check = read_timer_checkpoint(self._disk, self._root)
        self._check = check or TimerCheckpoint()
        snapshots = wheel_snapshots(self._disk, self._root)
        self._complete = snapshots[-1][0] if snapshots else self._check.flushed  # the wheel has the units before this position
        yield from self._log.check()
        yield from self._units()
        yield from self._end()
        yield from self._slots()
        yield from self._checkpoint(check, queue_end)

    def _units(self) -> Iterator[Finding]:
        for unit in self._log.units():
            if not NO_UNIT <= unit.previous < unit.position:
                expected = f"{NO_UNIT}, or less than its own position {unit.position}"
                yield self._of_unit(unit, 4, "timer_chain", expected, unit.previous)
            if is_pending(unit, self._check):
                self._previous.setdefault(slot_s(unit.due_ms), {})[unit.position] = unit.previous
                yield from self._record(unit)

    def _record(self, unit: TimerUnit) -> Iterator[Finding]:
        """Compare a unit with its record, unless retention deleted that or it is younger than the checked end of the log."""
        if unit.log_offset < self._low or (self._stop is not None and unit.log_end > self._stop):
            return
        message = self._records.read(unit)
        if isinstance(message, str):
            yield self._of_unit(unit, 28, "timer_record", f"a timer of {unit.log_size} bytes at {unit.log_offset}", message)
            return
        due_ms = due_of(message)
        if not unit.magic & MAGIC_ROLL and slot_s(max(due_ms, unit.write_ms)) != slot_s(unit.due_ms):
            yield self._of_unit(unit, 16, "timer_due", f"{due_ms}, as its message has", unit.due_ms)
        topic_hash = java_hash_code(message.properties.get(REAL_TOPIC, ""))
        if topic_hash != unit.topic_hash:
            yield self._of_unit(unit, 40, "timer_topic", topic_hash, unit.topic_hash)

    def _of_unit(self, unit: TimerUnit, field_at: int, kind: str, expected: int | str, found: int | str) -> Finding:
        file = self._log.find(unit.position)
        assert file is not None, "a unit was read from a file"
        return Finding(file.path, unit.position - file.start_offset + field_at, kind, expected, found)

    def _end(self) -> Iterator[Finding]:
        """Report bytes after the last unit. Those after the flushed part are what a crash left: the broker drops them."""
        end, flushed = self._log.end, self._check.flushed
        file = self._log.find(end)
        path = os.path.join(self._root, CHECK_NAME)
        if self._log.rest and file is not None:
            at, rest = end - file.start_offset, self._log.rest[:16].hex(" ")
            yield Finding(file.path, at, "timer_unit", "a unit of 52 bytes", rest, is_problem=end < flushed)
        if end < flushed:
            yield Finding(path, 8, "timer_log_end", f"at most {end}, where the timer log ends", flushed)

    def _slots(self) -> Iterator[Finding]:
        """Compare the slots of pending timers with their units."""
        path = wheel_path(self._disk, self._root)
        left = dict.fromkeys(self._previous)
        for slot in used_slots(self._disk, self._root):
            if slot.number != slot.due_s % WHEEL_SLOTS:
                yield Finding(path, slot.offset, "timer_slot_time", f"a time of slot {slot.number}", slot.due_s)
            elif slot.due_s >= slot_s(self._check.last_read_ms):
                left.pop(slot.due_s, None)
                yield from self._slot(path, slot)
        for due_s in left:
            units = self._previous[due_s]
            if max(units) < self._complete:
                offset = Slot(due_s % WHEEL_SLOTS, due_s, 0, 0, 0).offset
                yield Finding(path, offset, "timer_slot", f"{len(units)} units of {due_s * PRECISION_MS}", "no slot")

    def _checkpoint(self, check: TimerCheckpoint | None, queue_end: int | None) -> Iterator[Finding]:
        path = os.path.join(self._root, CHECK_NAME)
        if check is None:
            if self._log.end:
                yield Finding(path, 0, "timer_checkpoint", "a file, because there are timers", "none")
            return
        if not check.last_read_ms and self._log.end and not AbortFile(self._disk, self._root).is_present:
            yield Finding(path, 0, "timer_checkpoint", "the time of a slot, as after every clean stop", "zeros")
        for at, offset in ((16, check.queue_offset), (24, check.master_queue_offset)):
            if queue_end is not None and offset > queue_end:
                yield Finding(path, at, "timer_queue_offset", f"at most {queue_end}, the end of the timers' queue", offset)

    def _slot(self, path: str, slot: Slot) -> Iterator[Finding]:
        """Check that the units of a slot are all in its chain.

        The broker writes a slot after its units: one with a unit that is not flushed yet may be older, and is read again then.
        """
        units = self._previous.get(slot.due_s, {})
        if units and max(units) >= self._complete:
            return
        chain = _chain(slot.last, units)
        if slot.last not in units or len(chain) != len(units):
            expected = f"{len(units)} units up to {max(units)}" if units else "no unit"
            yield Finding(path, slot.offset + 16, "timer_slot", expected, f"{len(chain)} units from {slot.last}")


def _chain(last: int, previous: dict[int, int]) -> set[int]:
    """Return the units of a slot that the broker reaches from the last one."""
    found: set[int] = set()
    while last in previous and last not in found:
        found.add(last)
        last = previous[last]
    return found
