"""Write extended units: one for every unit of a queue, if a broker has them enabled.

The format: docs/formats/consumequeue.md#extended-unit.
"""

from __future__ import annotations

from commitlog.offset_files import file_name, list_offset_files, load_offset_files
from storageio import SECTOR_SIZE, Disk, InvalidMessage

from .ext import ExtUnit, ext_folder, unit_at
from .layout import EXT_ADDRESS_BASE, EXT_END, EXT_END_SIZE, EXT_UNIT, EXT_UNIT_SIZE_MAX, EXT_UNIT_SIZE_MIN
from .queue import EVERYTHING, READ_SIZE, zero_rest
from .queue_files import QueueFiles

END = EXT_END.to_bytes(2, "big", signed=True)
EMPTY_BITMAP_SIZE = 2  # zeros at the end of a unit without a bitmap


class ExtWriter:
    """The writer of one queue's extended units.  One thread appends."""

    def __init__(self, root: str, topic: str, queue_id: int, file_size_bytes: int, files: QueueFiles) -> None:
        """Set the parameters; `root` is the folder `consumequeue_ext`.  The end is found when it is first needed."""
        self.folder = ext_folder(root, topic, queue_id)
        self.file_size_bytes = file_size_bytes
        self._files = files
        self._starts: list[int] | None = None
        self._end = 0  # counted over all files
        self._flushed = 0

    @property
    def _disk(self) -> Disk:
        return self._files.disk

    @property
    def end(self) -> int:
        """Return the position of the next unit."""
        self._load()
        return self._end

    def _load(self) -> list[int]:
        """List the files and walk the last, on the first call."""
        if self._starts is None:
            found = load_offset_files(self._disk, self.folder, self.file_size_bytes)
            self._starts = [file.start_offset for file in found]
            self._end = self._walk(self._starts[-1])[0] if self._starts else 0
            self._flushed = self._starts[0] if self._starts else 0
        return self._starts

    def _path(self, start: int) -> str:
        return f"{self.folder}/{file_name(start)}"

    def _walk(self, start: int, last: int = EVERYTHING) -> tuple[int, bytes]:
        """Walk the contiguous units of a file that begin at or before `last`.

        Returns where they end, and the bytes of the last one.
        """
        at, unit = 0, b""
        read_at, data = 0, b""
        with self._files.borrow(self._path(start)) as file:
            while start + at <= last:
                found = unit_at(data, at - read_at)
                if found is None and (at > read_at or not data):
                    read_at, data = at, file.read(at, min(READ_SIZE, self.file_size_bytes - at))
                    found = unit_at(data, 0)
                if found is None:
                    break
                unit = data[at - read_at : at - read_at + found.size_bytes]
                at += found.size_bytes
        return start + at, unit

    def append(self, unit: ExtUnit) -> int:
        """Append a unit and return its address, which the queue's own unit holds in place of the tags code."""
        size = EXT_UNIT_SIZE_MIN + len(unit.bitmap)
        if size > min(EXT_UNIT_SIZE_MAX, self.file_size_bytes - EXT_END_SIZE):
            raise InvalidMessage(f"a bitmap of {len(unit.bitmap)} bytes is too long for an extended unit")
        starts = self._load()
        if not starts or self._end + size + EXT_END_SIZE > starts[-1] + self.file_size_bytes:
            self._roll()
        position = self._end
        packed = EXT_UNIT.pack(size, unit.tags_code, unit.store_timestamp_ms, len(unit.bitmap)) + unit.bitmap
        self._write(position, packed)
        self._end = position + size
        return position + EXT_ADDRESS_BASE

    def _roll(self) -> None:
        """Finish the last file and create the next."""
        starts = self._load()
        if not starts:
            self._disk.make_folder(self.folder)
        else:
            self._write(self._end, END)
            self._sync_full_file(starts[-1])
        start = starts[-1] + self.file_size_bytes if starts else 0
        with self._files.structure:
            self._files.create(self._path(start), self.file_size_bytes)
        self._starts = [*starts, start]
        self._end = start

    def _sync_full_file(self, start: int) -> None:
        """Sync a full file before the next one is created: a crash may then lose units of the last file only."""
        with self._files.borrow(self._path(start)) as file:
            file.sync()
        self._disk.sync_folder(self.folder)

    def _write(self, position: int, data: bytes) -> None:
        start = next(start for start in reversed(self._load()) if start <= position)
        with self._files.borrow(self._path(start)) as file:
            file.write(position - start, data)

    def truncate(self, address: int | None) -> bool:
        """Cut everything after the unit at an address, or everything if it is None.

        Returns False and cuts nothing if no whole unit lies there, or if one before it in its file is lost: a crash may lose
        pages in any order.
        """
        end = 0 if address is None else self._end_behind(address - EXT_ADDRESS_BASE)
        if end < 0:
            return False
        self._cut(end)
        return True

    def _end_behind(self, position: int) -> int:
        """Return the end of the unit that begins at a position, or -1 if there is none."""
        start = next((start for start in reversed(self._load()) if start <= position < start + self.file_size_bytes), None)
        if start is None:
            return -1
        end, unit = self._walk(start, position)
        return end if unit and end - len(unit) == position and not _is_torn(unit, position - start) else -1

    def _cut(self, end: int) -> None:
        """Delete the files that begin at or after `end`, and zero the rest of the last one."""
        kept = [start for start in self._load() if start < end]
        with self._files.structure:
            for found in list_offset_files(self._disk, self.folder):
                if found.start_offset not in kept:
                    self._files.delete(found.path)
        if kept:
            with self._files.borrow(self._path(kept[-1])) as file:
                zero_rest(file, end - kept[-1], self.file_size_bytes)
        self._starts, self._end = kept, end if kept else 0
        self._flushed = min(self._flushed, self._end)

    def delete_before(self, address: int) -> int:
        """Delete the files before the one of an address, never the last; return the number of deleted files."""
        starts = self._load()
        position = address - EXT_ADDRESS_BASE
        gone = [start for start in starts[:-1] if start + self.file_size_bytes <= position]
        with self._files.structure:
            for start in gone:
                self._files.delete(self._path(start))
        self._starts = [start for start in starts if start not in gone]
        return len(gone)

    def flush(self) -> bool:
        """Sync what was written; return whether there was anything."""
        if self._starts is None or self._flushed >= self._end:
            return False
        end = self._end
        self._disk.sync_folder(self.folder)
        for start in self._starts:
            if start + self.file_size_bytes > self._flushed and start < end:
                with self._files.borrow(self._path(start)) as file:
                    file.sync()
        self._flushed = end
        return True


def _is_torn(unit: bytes, at: int) -> bool:
    """Return whether a unit crosses a sector border and has only zeros after it, so that bytes may be lost.

    Without a bitmap its sizes agree nevertheless.
    """
    kept = SECTOR_SIZE - at % SECTOR_SIZE
    lost = unit[kept:] if len(unit) > EXT_UNIT_SIZE_MIN else unit[kept:-EMPTY_BITMAP_SIZE]
    return bool(lost) and not any(lost)
