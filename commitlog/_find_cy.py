"""Lookup of a record by its physical offset: find the log file, its reader, and decode the record.

One call does it all; the only Python code that runs on the way is attribute access of the files.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ._message_cy import StoredMessage
from ._scan_cy import Reader
from .checks import CHECK_ALL
from .layout import RECORD_SIZE_MIN, SIZE_AT

if not cython.compiled:
    from storebytes._bytes_cy import I32, I64, Size, get_i32

LARGE_RECORD = 64 << 10  # bytes; 16 pages, read one by one, take a third of the time of 8 MiB in one read
NO_TIME = -1  # the store time of an offset where no record starts


class ReadableFile:
    """The part of a `MappedFile` that a lookup uses: the readers over its two maps, None until one is requested.

    A thread may read a field that another one replaces: both do it in a critical section, which costs nothing with a GIL.
    """

    __slots__ = ("_lookup", "_reader")

    _reader: Reader | None
    _lookup: Reader | None

    def reader_for(self, is_scan: bool) -> Reader | None:
        """Return the reader over the map of scans, or over that of lookups."""
        with cython.critical_section(self):
            return self._reader if is_scan else self._lookup

    def keep_reader(self, reader: Reader | None, is_scan: bool) -> None:
        """Keep the reader over one of the maps, or forget it."""
        with cython.critical_section(self):
            before = (self._reader, self._lookup) if cython.compiled else None  # freed after the section
            if is_scan:
                self._reader = reader
            else:
                self._lookup = reader
        del before

    def forget_readers(self) -> None:
        """Forget the readers over both maps."""
        with cython.critical_section(self):
            before = (self._reader, self._lookup) if cython.compiled else None
            self._reader = self._lookup = None
        del before


class FileList:
    """The part of a `MappedFileQueue` that a lookup uses: the files, oldest first; each change makes a new list."""

    __slots__ = ("_files", "_first", "_size")

    _files: list[Any]

    @property
    def files(self) -> list[Any]:
        """The files, oldest first."""
        with cython.critical_section(self):
            return self._files

    @files.setter
    def files(self, files: list[Any]) -> None:
        """Replace the list of files."""
        first: I64 = files[0].start_offset if files else 0
        size: I64 = self.file_size_bytes  # type: ignore[attr-defined]
        with cython.critical_section(self):
            before = self._files if cython.compiled else None
            self._files = files
            self._first = first
            self._size = size
        del before


class LogReaders:
    """The readers of a log's files, found by physical offset: those for single records, or those for many in a row."""

    __slots__ = ("_queue", "_scans")

    def __init__(self, queue: FileList, scans: LogReaders | None = None) -> None:
        """Take the `MappedFileQueue` of the log.

        With `scans`, the readers for many records in a row, the system does not read ahead (`MappedFile.lookup_view`).
        """
        self._queue = queue
        self._scans: LogReaders | None = scans

    def of_file(self, file: Any) -> Reader:
        """Return the reader over one file; the file keeps it as long as its map."""
        reader: Reader | None = file.reader_for(self._scans is None)
        if reader is None:
            reader = self._queue.new_reader(file, self._scans is None)  # type: ignore[attr-defined]
            file.keep_reader(reader, self._scans is None)
        return reader

    def reader_of(self, offset: I64) -> Reader | None:
        """Return the reader of the file that holds a physical offset, None if no file does."""
        queue: FileList = self._queue
        files: list[Any]
        first: I64
        size: I64
        with cython.critical_section(queue):
            files = queue._files
            first = queue._first
            size = queue._size
        if len(files) == 0:
            return None
        reader: Reader | None
        position: I64 = (offset - first) // size if offset >= first else -1
        if 0 <= position < len(files):
            held: ReadableFile = cython.cast(ReadableFile, files[position])
            with cython.critical_section(held):
                reader = held._reader if self._scans is None else held._lookup
            if reader is not None and reader.base <= offset < reader.base + reader.size:
                return reader
        file = self._queue.find(offset)  # type: ignore[attr-defined]
        return None if file is None else self.of_file(file)

    def min_offset(self) -> int:
        """Return the first offset of the log, 0 if it has no file."""
        files: list[Any] = self._queue.files
        return files[0].start_offset if len(files) > 0 else 0

    def for_record(self, reader: Reader, at: Size) -> Reader:
        """Return the reader for the record at `at`: that of scans for a large one, of which each page would be read alone."""
        if self._scans is not None and 0 <= at <= reader.size - RECORD_SIZE_MIN:
            if get_i32(reader._source, at + SIZE_AT) >= LARGE_RECORD:
                found: Reader | None = self._scans.reader_of(reader.base + at)
                return reader if found is None else found
        return reader

    def message_at(self, offset: I64, checks: I32 = CHECK_ALL) -> StoredMessage | None:
        """Return the record that starts at this offset, None if none does."""
        reader: Reader | None = self.reader_of(offset)
        if reader is None:
            return None
        reader.prefetch_record(offset - reader.base)
        return self.for_record(reader, offset - reader.base).decode(offset - reader.base, checks)

    def store_time(self, offset: I64) -> Size:
        """Return the store time of the record that starts at this offset, in ms, -1 if none does; see `Reader.store_time`."""
        reader: Reader | None = self.reader_of(offset)
        return NO_TIME if reader is None else reader.store_time(offset - reader.base)
