"""Read the timer files of RocketMQ 5, as far as recovery must know where timers point (`docs/formats/timer-files.md`).

Integers are big-endian. A message with a delivery time is in the log under `rmq_sys_wheel_timer`; the timer log has one unit
for it:

    offset  size  field
    0       4     size            52
    4       8     previous        offset of the previous unit of the same slot, -1 for none
    12      4     magic           1; 2 more for a unit that is rolled to a later slot, 4 more for one that deletes a timer
    16      8     write_time_ms
    24      4     delay_ms        due time minus write time
    28      8     log_offset      of the message's record
    36      4     log_size        of the record
    40      4     topic_hash
    44      8     reserved        0

A unit never crosses the end of a file: a file ends with the size of the rest (4), zeros (8) and the magic of a blank record
(4). Zeros follow the written part. `timerwheel` has slots of 32 bytes: due time in seconds (8), first unit (8), last unit (8),
number of units (4), zero (4). `config/timercheck` begins with last_read_time_ms (8) and the flushed length of the timer log
(8). These files are never written here.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from commitlog.layout import MAGIC_BLANK
from commitlog.offset_files import OffsetFile
from commitlog.walk import LogFiles
from storageio import Disk, File, Kind, Mode, UnsupportedFormat

UNIT = struct.Struct(">iqiqiqiiq")
UNIT_SIZE = 52
assert UNIT.size == UNIT_SIZE
END_SIZE = 4 + 8 + 4  # end of a file: size of the rest, zero, magic of a blank record
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
MAGIC_DELETE = 4
MAGICS = (1, 3, 5, 7)
SLOT = struct.Struct(">qqqii")
WHEEL_SLOTS = 2 * 7 * 24 * 3600
WHEEL_SIZE = WHEEL_SLOTS * SLOT.size
assert WHEEL_SIZE == 38_707_200
CHECK = struct.Struct(">qq")  # the first two fields of timercheck
WHEEL_NAME = "timerwheel"
LOG_NAME = "timerlog"
CHECK_NAME = os.path.join("config", "timercheck")
_PIECE = UNIT_SIZE << 14  # a multiple of units and of slots
assert _PIECE % SLOT.size == 0


class TimerUnit(NamedTuple):
    """One unit; `place` is its offset in the whole timer log."""

    place: int
    magic: int
    due_ms: int
    log_offset: int
    log_size: int

    @property
    def log_end(self) -> int:
        """Return the physical end of the record that it points to."""
        return self.log_offset + self.log_size


class TimersBehind(NamedTuple):
    """The number of timers that point behind an offset of the log; `pending` of them are not delivered yet.

    `is_whole` is false if units are missing that the wheel or checkpoint refers to: then there may be more.
    """

    units: int
    pending: int
    is_whole: bool

    @property
    def any(self) -> bool:
        """Return whether a timer points, or may point, behind the offset."""
        return self.units > 0 or not self.is_whole


def timers_behind(disk: Disk, root: str, log_end: int) -> TimersBehind:
    """Count the units that point to a record ending behind `log_end`.

    Raises `UnsupportedFormat` for timer files of an unknown layout.
    """
    refuse_unknown_layout(disk, root)
    last_read_ms, flushed = _read_check(disk, os.path.join(root, CHECK_NAME))
    log = TimerLog(disk, root)
    units = pending = 0
    for unit in log.units():
        if unit.log_end > log_end:
            units += 1
            pending += unit.due_ms > last_read_ms and not unit.magic & MAGIC_DELETE
    is_whole = flushed <= log.end and _last_in_wheel(disk, os.path.join(root, WHEEL_NAME)) < log.end
    return TimersBehind(units, pending, is_whole)


class TimerLog:
    """The units of the timer log, in order."""

    def __init__(self, disk: Disk, root: str) -> None:
        """Create it without opening any file."""
        self._disk = disk
        self._files = _log_files(disk, root)
        self.end = 0  # end of the last unit or closed file, once `units` is exhausted

    def units(self) -> Iterator[TimerUnit]:
        """Yield every unit up to the end of the written part, or to the first invalid unit."""
        for found in self._files:
            self.end = found.start_offset
            file = self._disk.open(found.path, Mode.READ)
            try:
                yield from self._units(file, found)
            finally:
                file.close()
            if self.end != found.start_offset + found.size_bytes:
                return

    def _units(self, file: File, found: OffsetFile) -> Iterator[TimerUnit]:
        for at in range(0, found.size_bytes, _PIECE):
            data = file.read(at, _PIECE)
            for inner in range(0, len(data) - END_SIZE + 1, UNIT_SIZE):
                if _is_end(data[inner : inner + END_SIZE]):
                    self.end = found.start_offset + found.size_bytes
                    return
                if len(data) - inner < UNIT_SIZE or int.from_bytes(data[inner : inner + 4], "big") != UNIT_SIZE:
                    return
                yield _unit(data[inner : inner + UNIT_SIZE], found, at + inner)
                self.end = found.start_offset + at + inner + UNIT_SIZE


def refuse_unknown_layout(disk: Disk, root: str) -> None:
    """Raise `UnsupportedFormat` for a wheel of another length, or a timer log file that begins with an unknown unit."""
    wheel = os.path.join(root, WHEEL_NAME)
    entry = disk.stat(wheel)
    if entry is not None and entry.kind is Kind.FILE and entry.size_bytes not in (0, WHEEL_SIZE):
        raise UnsupportedFormat(
            "timer wheel of", file=wheel, found=f"{entry.size_bytes} bytes", supported=f"{WHEEL_SIZE} bytes"
        )
    for found in _log_files(disk, root):
        file = disk.open(found.path, Mode.READ)
        try:
            _check_first_unit(found, file.read(0, UNIT_SIZE))
        finally:
            file.close()


def _check_first_unit(found: OffsetFile, data: bytes) -> None:
    if len(data) < UNIT_SIZE or not any(data[:4]) or _is_end(data):
        return
    size, _, magic, *_ = UNIT.unpack(data)
    if size != UNIT_SIZE:
        raise UnsupportedFormat("timer unit size", file=found.path, offset=0, found=size, supported=str(UNIT_SIZE))
    _check_magic(found.path, 0, magic)


def _check_magic(path: str, at: int, magic: int) -> None:
    if magic not in MAGICS:
        raise UnsupportedFormat("timer unit magic", file=path, offset=at + 12, found=magic, supported="1, 3, 5, 7")


def _is_end(data: bytes) -> bool:
    """Return whether the file of the timer log ends here."""
    return int.from_bytes(data[12:16], "big", signed=True) == MAGIC_BLANK


def _log_files(disk: Disk, root: str) -> list[OffsetFile]:
    folder = os.path.join(root, LOG_NAME)
    entry = disk.stat(os.path.join(folder, "."))
    if entry is None or entry.kind is not Kind.FOLDER:
        return []
    return LogFiles(disk, [folder]).files


def _unit(data: bytes, found: OffsetFile, at: int) -> TimerUnit:
    _, _, magic, write_ms, delay_ms, log_offset, log_size, _, _ = UNIT.unpack(data)
    _check_magic(found.path, at, magic)
    return TimerUnit(found.start_offset + at, magic, write_ms + delay_ms, log_offset, log_size)


def _read_check(disk: Disk, path: str) -> tuple[int, int]:
    """Return (last read time, flushed length of the timer log); zeros if the file is missing or too short."""
    entry = disk.stat(path)
    if entry is None or entry.kind is not Kind.FILE or entry.size_bytes < CHECK.size:
        return 0, 0
    file = disk.open(path, Mode.READ)
    try:
        last_read_ms, flushed = CHECK.unpack(file.read(0, CHECK.size))
    finally:
        file.close()
    return last_read_ms, flushed


def _last_in_wheel(disk: Disk, path: str) -> int:
    """Return the greatest unit offset in any slot, -1 for none. Sparse ranges of the wheel are not read."""
    entry = disk.stat(path)
    last = -1
    if entry is None or entry.kind is not Kind.FILE:
        return last
    file = disk.open(path, Mode.READ)
    try:
        at = file.next_data(0)
        while at < entry.size_bytes:
            start = at - at % SLOT.size
            data = file.read(start, _PIECE)
            whole = data[: len(data) - len(data) % SLOT.size]
            last = max([last, *(slot[2] for slot in SLOT.iter_unpack(whole) if slot[0])])
            at = file.next_data(start + max(len(whole), SLOT.size))
    finally:
        file.close()
    return last
