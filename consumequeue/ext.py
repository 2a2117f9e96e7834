"""Read extended units, the filter bitmaps that a broker may keep (docs/formats/consumequeue.md#extended-unit)."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from commitlog.offset_files import OffsetFile, common_file_size, list_offset_files, load_offset_files
from storageio import Disk, Mode, StoreCorrupt

from .layout import (
    EXT_ADDRESS_BASE,
    EXT_ADDRESS_MAX,
    EXT_FILE_SIZE_DEFAULT,
    EXT_UNIT,
    EXT_UNIT_SIZE_MIN,
)


class ExtUnit(NamedTuple):
    """The fields of an extended unit, which do not fit a queue unit."""

    tags_code: int
    store_timestamp_ms: int
    bitmap: bytes
    size_bytes: int


def is_ext_address(tags_code: int) -> bool:
    """Return whether a queue unit's tags code is the address of an extended unit."""
    return tags_code <= EXT_ADDRESS_MAX


class ConsumeQueueExt:
    """The files `<folder>/<20 digits>` of one queue's extended units.  Each call opens and closes what it reads."""

    def __init__(self, disk: Disk, folder: str, file_size_bytes: int | None = None) -> None:
        """List the files of `folder`, which is `consumequeue_ext/<topic>/<queue id>`.

        The file size is detected if it is not given.
        """
        self._disk = disk
        self.folder = folder
        self.file_size_bytes = file_size_bytes or self._found_size()
        self._files = load_offset_files(disk, folder, self.file_size_bytes)

    def _found_size(self) -> int:
        return common_file_size(list_offset_files(self._disk, self.folder)) or EXT_FILE_SIZE_DEFAULT

    def unit(self, tags_code: int) -> ExtUnit | None:
        """Return the unit at an address, or None if the code is no address or no whole unit lies there."""
        if not is_ext_address(tags_code):
            return None
        position = tags_code - EXT_ADDRESS_BASE
        index = bisect_right(self._files, position, key=lambda file: file.start_offset) - 1
        if index < 0 or position >= self._files[index].start_offset + self.file_size_bytes:
            return None
        with self._disk.open(self._files[index].path, Mode.READ) as file:
            at = position - self._files[index].start_offset
            return unit_at(file.read(at, EXT_UNIT_SIZE_MIN + (1 << 15)), 0)

    def tags_code(self, tags_code: int) -> int | None:
        """Return the tags code that a reader sees for a queue unit's value.

        That is the value itself, or for an address the code of its extended unit; None if there is no such unit.
        """
        if not is_ext_address(tags_code):
            return tags_code
        unit = self.unit(tags_code)
        return unit.tags_code if unit else None

    def units(self) -> Iterator[tuple[int, ExtUnit]]:
        """Yield (address, unit) of all units in order."""
        for file in self._files:
            yield from self._units_of(file)

    def _units_of(self, file: OffsetFile) -> Iterator[tuple[int, ExtUnit]]:
        """Yield (address, unit) of a file, up to a size that is not positive.

        Raises `StoreCorrupt` for a size that does not fit its unit.
        """
        with self._disk.open(file.path, Mode.READ) as opened:
            data = opened.read(0, self.file_size_bytes)
        at = 0
        while at + EXT_UNIT_SIZE_MIN <= len(data):
            size = int.from_bytes(data[at : at + 2], "big", signed=True)
            if size <= 0:
                return
            unit = unit_at(data, at)
            if unit is None:
                raise StoreCorrupt(
                    "extended unit", file=file.path, offset=at, expected="a unit whose sizes agree", found=f"{size} bytes"
                )
            yield file.start_offset + at + EXT_ADDRESS_BASE, unit
            at += size


def unit_at(data: bytes, at: int) -> ExtUnit | None:
    """Return the unit at a position, or None if its sizes are not positive, disagree or exceed the data."""
    if at + EXT_UNIT_SIZE_MIN > len(data):
        return None
    size, tags_code, store_time, bitmap_size = EXT_UNIT.unpack_from(data, at)
    if bitmap_size < 0 or size != EXT_UNIT_SIZE_MIN + bitmap_size or at + size > len(data):
        return None
    return ExtUnit(tags_code, store_time, data[at + EXT_UNIT_SIZE_MIN : at + size], size)


def ext_folder(root: str, topic: str, queue_id: int) -> str:
    """Return the folder of a queue's extended units; `root` is the folder `consumequeue_ext`."""
    return os.path.join(root, topic, str(queue_id))
