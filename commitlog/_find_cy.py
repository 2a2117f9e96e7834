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

if not cython.compiled:
    from storebytes._bytes_cy import I32, I64, Size

NO_TIME = -1  # the store time of an offset where no record starts


class ReadableFile:
    """The part of a `MappedFile` that a lookup uses: the reader over its map, None until one is requested."""

    __slots__ = ("reader",)

    reader: Reader | None


class FileList:
    """The part of a `MappedFileQueue` that a lookup uses: the files, oldest first; each change makes a new list."""

    __slots__ = ("files",)

    files: list[Any]


class LogReaders:
    """The readers of a log's files, found by physical offset."""

    __slots__ = ("_files", "_first", "_queue", "_size")

    def __init__(self, queue: FileList) -> None:
        """Take the `MappedFileQueue` of the log."""
        self._queue = queue
        self._files: Any = None  # the list that `_first` and `_size` describe
        self._first = 0
        self._size = 1

    def of_file(self, file: Any) -> Reader:
        """Return the reader over one file; the file keeps it as long as its map."""
        reader: Reader | None = file.reader
        if reader is None:
            reader = file.reader = Reader(self._queue.view(file), file.start_offset)  # type: ignore[attr-defined]
        return reader

    def reader_of(self, offset: I64) -> Reader | None:
        """Return the reader of the file that holds a physical offset, None if no file does."""
        files: list[Any] = self._queue.files
        if len(files) == 0:
            return None
        reader: Reader | None
        if files is not self._files:
            self._first = files[0].start_offset
            self._size = self._queue.file_size_bytes  # type: ignore[attr-defined]
            self._files = files
        place: I64 = (offset - self._first) // self._size if offset >= self._first else -1
        if 0 <= place < len(files):
            held: ReadableFile = cython.cast(ReadableFile, files[place])
            reader = held.reader
            if reader is not None and reader.base <= offset < reader.base + reader.size:
                return reader
        file = self._queue.find(offset)  # type: ignore[attr-defined]
        return None if file is None else self.of_file(file)

    def min_offset(self) -> int:
        """Return the first offset of the log, 0 if it has no file."""
        files: list[Any] = self._queue.files
        return files[0].start_offset if len(files) > 0 else 0

    def message_at(self, offset: I64, checks: I32 = CHECK_ALL) -> StoredMessage | None:
        """Return the record that starts at this offset, None if none does."""
        reader: Reader | None = self.reader_of(offset)
        if reader is None:
            return None
        reader.prefetch_record(offset - reader.base)
        return reader.decode(offset - reader.base, checks)

    def store_time(self, offset: I64) -> Size:
        """Return the store time of the record that starts at this offset, in ms, -1 if none does; see `Reader.store_time`."""
        reader: Reader | None = self.reader_of(offset)
        return NO_TIME if reader is None else reader.store_time(offset - reader.base)
