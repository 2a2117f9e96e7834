"""Read the timer log: units in files of one size, each named by the position of its first byte.

A unit never crosses the end of a file: a file ends with the size of the rest (4), zeros (8) and the magic of a blank record
(4). Zeros follow the written part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from commitlog.layout import MAGIC_BLANK
from commitlog.offset_files import OffsetFile
from commitlog.walk import LogFiles
from storageio import Disk, File, Kind, Mode, UnsupportedFormat
from storebytes.finding import Finding

from .layout import END_SIZE, LOG_NAME, MAGICS, UNIT, UNIT_SIZE, WHEEL_NAME, WHEEL_SIZE, TimerUnit

_PIECE = UNIT_SIZE << 14


class TimerLog:
    """The units of the timer log, in order."""

    def __init__(self, disk: Disk, root: str) -> None:
        """List the files without opening any."""
        self._disk = disk
        self.folder = os.path.join(root, LOG_NAME)
        self._listing = LogFiles(disk, [self.folder] if _is_folder(disk, self.folder) else [])
        self.files = self._listing.files
        self.file_size_bytes = self._listing.file_size_bytes  # 0 without files
        self.end = 0  # end of the last unit or closed file, once `units` is exhausted
        self.rest = b""  # the bytes at `end` if they are no unit

    def units(self) -> Iterator[TimerUnit]:
        """Yield every unit up to the end of the written part, or to the first invalid unit."""
        for found in self.files:
            self.end = found.start_offset
            with self._disk.open(found.path, Mode.READ) as file:
                yield from self._units(file, found)
            if self.end != found.start_offset + found.size_bytes:
                return

    def check(self) -> Iterator[Finding]:
        """Yield findings about names, sizes and gaps of the files; a broker loads only files of the configured size."""
        return self._listing.check()

    def find(self, position: int) -> OffsetFile | None:
        """Return the file that a position lies in."""
        return next((file for file in self.files if 0 <= position - file.start_offset < file.size_bytes), None)

    def _units(self, file: File, found: OffsetFile) -> Iterator[TimerUnit]:
        for at in range(0, found.size_bytes, _PIECE):
            data = file.read(at, _PIECE)
            for inner in range(0, len(data) - END_SIZE + 1, UNIT_SIZE):
                if _is_end(data[inner : inner + END_SIZE]):
                    self.end = found.start_offset + found.size_bytes
                    return
                unit = data[inner : inner + UNIT_SIZE]
                if len(unit) < UNIT_SIZE or int.from_bytes(unit[:4], "big") != UNIT_SIZE:
                    self.rest = unit if any(unit) else b""
                    return
                yield unpack_unit(unit, found.path, found.start_offset, at + inner)
                self.end = found.start_offset + at + inner + UNIT_SIZE


def refuse_unknown_layout(disk: Disk, root: str) -> None:
    """Raise `UnsupportedFormat` for a wheel of another length, or a timer log file that begins with an unknown unit."""
    wheel = os.path.join(root, WHEEL_NAME)
    entry = disk.stat(wheel)
    if entry is not None and entry.kind is Kind.FILE and entry.size_bytes not in (0, WHEEL_SIZE):
        raise UnsupportedFormat(
            "timer wheel of", file=wheel, found=f"{entry.size_bytes} bytes", supported=f"{WHEEL_SIZE} bytes"
        )
    for found in TimerLog(disk, root).files:
        with disk.open(found.path, Mode.READ) as file:
            _check_first_unit(found, file.read(0, UNIT_SIZE))


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


def _is_folder(disk: Disk, folder: str) -> bool:
    entry = disk.stat(os.path.join(folder, "."))
    return entry is not None and entry.kind is Kind.FOLDER


def unpack_unit(data: bytes, path: str, start: int, at: int) -> TimerUnit:
    """Return the unit in these bytes, at a place in the file that begins at `start`."""
    _, previous, magic, write_ms, delay_ms, log_offset, log_size, topic_hash, _ = UNIT.unpack(data)
    _check_magic(path, at, magic)
    return TimerUnit(start + at, previous, magic, write_ms, delay_ms, log_offset, log_size, topic_hash)
