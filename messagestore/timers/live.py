"""The timer files of a store that delivers its timers: units are appended, and slots and checkpoint follow with each flush.

Between two flushes only the timer log is written, behind the flushed part: after a crash that part is cut off, and the messages
behind it get units again. Slots of pending timers are in memory.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from commitlog.layout import MAGIC_BLANK
from commitlog.offset_files import file_name
from storageio import Disk, File, Kind, Mode, StoreCorrupt
from storebytes.java_hash import java_hash_code

from .layout import (
    CHECK,
    CHECK_NAME,
    CHECK_SIZE,
    END_SIZE,
    LOG_NAME,
    NO_UNIT,
    PRECISION_MS,
    SLOT,
    UNIT,
    UNIT_SIZE,
    WHEEL_NAME,
    WHEEL_SIZE,
    WHEEL_SLOTS,
    Slot,
    TimerCheckpoint,
    TimerUnit,
    slot_s,
)
from .new_files import slot_of
from .pending import is_pending
from .timer_log import TimerLog, unpack_unit
from .undelivered import TimerMessage
from .wheel import used_slots, wheel_snapshots

_END = struct.Struct(">iqi")


@dataclass(slots=True)
class _Chain:
    """A slot of pending timers."""

    first: int
    last: int
    units: int


class LiveTimers:
    """The timer files of one store. Only one thread calls it."""

    def __init__(self, disk: Disk, root: str, log_file_size: int, check: TimerCheckpoint) -> None:
        """Create it without pending timers and without opening a file; `load` reads what there is."""
        self._disk = disk
        self._root = root
        self._file_size = log_file_size
        self.check = check  # what the file has
        self.last_read_ms = check.last_read_ms
        self.queue_offset = check.queue_offset
        self._end = check.flushed
        self._slots: dict[int, _Chain] = {}  # due second -> slot
        self._changed: set[int] = set()  # slots to be written
        self._unwritten: list[tuple[int, bytes]] = []
        self._written: dict[int, File] = {}  # start of a timer log file -> the open file
        self._unsynced: set[int] = set()
        self.is_dirty = False

    # Opening

    def load(self, *, trusts_wheel: bool, cuts: bool) -> bool:
        """Read the slots of pending timers; return False if the files lack something.

        With `trusts_wheel`, as after a clean stop, they are read from the wheel. Otherwise they are made from the units, up to
        the flushed part if `cuts`; what follows it is cut off, and the wheel is corrected with the next flush.
        """
        if wheel_snapshots(self._disk, self._root):  # a broker would load the last one instead of what is written here
            return False
        log = TimerLog(self._disk, self._root)
        if trusts_wheel and self._load_wheel(log):
            return True
        for unit in log.units():
            if cuts and unit.position >= self._end:
                break
            if is_pending(unit, self.check):
                self._link(unit)
        if log.end < self._end:
            return False
        if cuts:
            self._cut(log)
        else:
            self._end = log.end
        self._changed |= self._slots.keys()
        stale = (slot.due_s for slot in used_slots(self._disk, self._root) if slot.due_s >= slot_s(self.last_read_ms))
        self._changed.update(due_s for due_s in stale if due_s not in self._slots)
        self.is_dirty = bool(self._changed)
        return True

    def _load_wheel(self, log: TimerLog) -> bool:
        """Read the wheel; return False if it and the timer log do not end with the flushed part."""
        found = log.find(self._end)
        if found is not None and any(self._read(found.start_offset, self._end - found.start_offset, 4)):
            return False
        for slot in used_slots(self._disk, self._root):
            if slot.due_s >= slot_s(self.last_read_ms):
                if not NO_UNIT < slot.last < self._end or slot.number != slot.due_s % WHEEL_SLOTS:
                    self._slots.clear()
                    return False
                self._slots[slot.due_s] = _Chain(slot.first, slot.last, slot.units)
        return True

    def _cut(self, log: TimerLog) -> None:
        """Drop what follows the flushed part of the timer log."""
        for found in log.files:
            if found.start_offset >= self._end:
                self._disk.delete(found.path)
            elif found.start_offset + found.size_bytes > self._end:
                file = self._file(found.start_offset)
                file.truncate(self._end - found.start_offset)
                file.truncate(found.size_bytes)
                file.sync()
        if log.files:
            self._disk.sync_folder(log.folder)

    def last_unit(self) -> TimerUnit | None:
        """Return the unit that ends the timer log, None without one."""
        position = self._end - UNIT_SIZE
        start = position - position % self._file_size
        data = self._read(start, position - start, UNIT_SIZE) if position >= 0 else b""
        if len(data) < UNIT_SIZE or int.from_bytes(data[:4], "big") != UNIT_SIZE:
            return None
        return unpack_unit(data, os.path.join(self._root, LOG_NAME, file_name(start)), start, position - start)

    # Timers

    @property
    def next_due_s(self) -> int | None:
        """The first second that has timers, None without one."""
        return min(self._slots, default=None)

    @property
    def due_seconds(self) -> list[int]:
        """The seconds that have timers."""
        return list(self._slots)

    def add(self, timer: TimerMessage, now_ms: int, floor_ms: int) -> None:
        """Append the unit of a timer, in a slot that is not before `floor_ms`; both times are whole seconds."""
        slot_ms, magic = slot_of(timer, now_ms)
        slot_ms = max(slot_ms, floor_ms)
        write_ms = min(now_ms, slot_ms)
        position = self._next_position()
        chain = self._slots.get(slot_s(slot_ms))
        previous = chain.last if chain is not None else NO_UNIT
        at = timer.log_offset, timer.log_size, java_hash_code(timer.topic)
        unit = TimerUnit(position, previous, magic, write_ms, slot_ms - write_ms, *at)
        self._unwritten.append((position, UNIT.pack(UNIT_SIZE, *unit[1:], 0)))
        self._end = position + UNIT_SIZE
        self._link(unit)
        self._changed.add(slot_s(slot_ms))
        self.is_dirty = True

    def units_of(self, due_s: int) -> list[TimerUnit]:
        """Return the units of a slot, oldest first. Raises `StoreCorrupt` for a chain that leads nowhere."""
        self._write()
        found = []
        position = self._slots[due_s].last
        while position != NO_UNIT:
            start = position - position % self._file_size
            data = self._read(start, position - start, UNIT_SIZE)
            path = os.path.join(self._root, LOG_NAME, file_name(start))
            unit = unpack_unit(data, path, start, position - start)
            if not NO_UNIT <= unit.previous < position:
                raise StoreCorrupt(
                    "timer chain", file=path, offset=position - start + 4, expected=f"-1 to {position}", found=unit.previous
                )
            found.append(unit)
            position = unit.previous
        return found[::-1]

    def finish(self, due_s: int) -> None:
        """Record that the timers of a slot, and of all before it, were delivered."""
        del self._slots[due_s]
        self._changed.discard(due_s)
        self.last_read_ms = (due_s + 1) * PRECISION_MS
        self.is_dirty = True

    def _link(self, unit: TimerUnit) -> None:
        chain = self._slots.setdefault(slot_s(unit.due_ms), _Chain(unit.position, unit.position, 0))
        chain.last = unit.position
        chain.units += -1 if unit.deletes else 1

    def _next_position(self) -> int:
        """Return where the next unit goes; close a file in which it does not fit."""
        left = self._file_size - self._end % self._file_size
        if left >= UNIT_SIZE + END_SIZE:
            return self._end
        self._unwritten.append((self._end, _END.pack(left, 0, MAGIC_BLANK)))
        return self._end + left

    # Writing

    def flush(self) -> None:
        """Write and sync timer log and wheel; `write_checkpoint` follows."""
        self._write()
        for start in sorted(self._unsynced):
            self._written[start].sync()
        self._unsynced.clear()
        if self._changed:
            self._write_slots()

    def write_checkpoint(self, check: TimerCheckpoint) -> None:
        """Write the checkpoint after everything that it counts is synced."""
        path = os.path.join(self._root, CHECK_NAME)
        file, is_new = self._sized(path, CHECK_SIZE)
        with file:
            file.write(0, CHECK.pack(*check))
            file.sync()
        if is_new:
            self._disk.sync_folder(os.path.dirname(path))
        self.check = check
        self.is_dirty = False
        self._delete_delivered()

    def next_checkpoint(self, now_ms: int) -> TimerCheckpoint:
        """Return the checkpoint of what is in memory now."""
        old = self.check
        at = self.last_read_ms, self._end, self.queue_offset, self.queue_offset
        return TimerCheckpoint(*at, old.state_version, now_ms, old.counter + 1)

    def close(self) -> None:
        """Close the open files."""
        while self._written:
            self._written.popitem()[1].close()

    def _write(self) -> None:
        """Write the units that are in memory only, neighbours together."""
        while self._unwritten:
            start = self._unwritten[0][0] // self._file_size * self._file_size
            count = sum(position < start + self._file_size for position, _ in self._unwritten)
            data = b"".join(data for _, data in self._unwritten[:count])
            self._file(start).write(self._unwritten[0][0] - start, data)
            self._unsynced.add(start)
            del self._unwritten[:count]

    def _write_slots(self) -> None:
        file, is_new = self._sized(os.path.join(self._root, WHEEL_NAME), WHEEL_SIZE)
        with file:
            for due_s in self._changed:
                chain = self._slots.get(due_s)
                fields = (due_s, chain.first, chain.last, chain.units, 0) if chain is not None else (0, 0, 0, 0, 0)
                file.write(Slot(due_s % WHEEL_SLOTS, due_s, 0, 0, 0).offset, SLOT.pack(*fields))
            file.sync()
        if is_new:
            self._disk.sync_folder(self._root)
        self._changed.clear()

    def _delete_delivered(self) -> None:
        """Delete files whose timers were all delivered. The last unit stays, because a broker continues after it."""
        low = min((chain.first for chain in self._slots.values()), default=self.check.flushed)
        low = min(low, self.check.flushed - UNIT_SIZE)
        folder = os.path.join(self._root, LOG_NAME)
        for start in [start for start in self._written if start + self._file_size <= low]:
            self._written.pop(start).close()
        for found in TimerLog(self._disk, self._root).files if low >= self._file_size else ():
            if found.start_offset + found.size_bytes <= low:
                self._disk.delete(os.path.join(folder, file_name(found.start_offset)))

    def _read(self, start: int, at: int, size: int) -> bytes:
        return self._file(start).read(at, size)

    def _file(self, start: int) -> File:
        """Return a file of the timer log; create it if there is none."""
        if start not in self._written:
            folder = os.path.join(self._root, LOG_NAME)
            file, is_new = self._sized(os.path.join(folder, file_name(start)), self._file_size)
            self._written[start] = file
            if is_new:
                self._disk.sync_folder(folder)
                self._disk.sync_folder(self._root)
        return self._written[start]

    def _sized(self, path: str, size: int) -> tuple[File, bool]:
        """Open a file for writing; return it, and whether it was created with this size."""
        entry = self._disk.stat(path)
        is_new = entry is None or (entry.kind is Kind.FILE and entry.size_bytes == 0)
        if is_new:
            self._disk.make_folder(os.path.dirname(path))
        file = self._disk.open(path, Mode.CREATE if is_new else Mode.WRITE)
        if is_new:
            file.truncate(size)
        return file, is_new
