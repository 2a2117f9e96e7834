"""The commit log: its files, its write end, and reads by physical offset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from typing import NamedTuple, Protocol

from storageio import FREE_THREADED, REAL_DISK, Closing, Disk, StoreCorrupt, UnknownStore, UnsupportedFormat

from ._append_cy import Appender
from ._find_cy import LogReaders
from ._message_cy import Message, StoredMessage
from ._offsets_cy import QueueOffsets
from ._scan_cy import Reader, scan
from .checks import BAD_MAGIC, BLANK, CHECK_ALL, EMPTY, STOPS, TORN
from .cursor import is_file_end
from .findings import Location, unknown_version, unsupported_record
from .hosts import HOST_DEFAULT, encode_host
from .layout import (
    BLANK_SIZE,
    BODY_SIZE_MAX_DEFAULT,
    FILE_SIZE_DEFAULT,
    FILLER_FLAGS,
    MAGIC_BLANK,
    TRANSACTION_ROLLBACK,
)
from .log_paths import LogPaths
from .mapped_file import MappedFile
from .mapped_file_queue import MappedFileQueue
from .offset_files import common_file_size
from .topic_names import FILLER_TOPIC
from .unknown_version import find_unknown_version, is_unknown_version


class Stop(NamedTuple):
    """Where and why a walk over records ended: `end` (of the requested range), `empty`, or another name of `checks.STOPS`."""

    offset: int
    why: str
    records: int
    protected: int
    last_offset: int = -1  # the last record of the walk


class WriteBuffers(Protocol):
    """Buffers between the appender and the files: appends go to memory and reach the files when they are committed."""

    committed_offset: int

    def attach(self, file: MappedFile, store_timestamp_ms: int) -> None:
        """Let the appender continue at `file.written`."""

    def next_file(self) -> tuple[memoryview, int]:
        """Return what `Appender` expects of its `next_file`."""

    def commit(self, least_pages: int = 0) -> int:
        """Write what is appended to the files; return the committed offset."""

    def pin(self, offset: int, size_bytes: int) -> tuple[memoryview, int, int] | None:
        """Return appended bytes from a physical offset on, as (view, index of the offset, number of contiguous bytes).

        They stay valid until `unpin`, which must follow every call.  Return None if they are no longer in memory but in the
        file.
        """

    def unpin(self) -> None:
        """Allow the pinned bytes to be overwritten."""


class CommitLog(Closing):
    """Records, back to back, in files that each end in a blank record.

    A writer continues after the last record.  The caller provides the queue offsets (`offsets`), because the log alone does not
    keep them.  This is not a store: it has no threads, lock file or abort file.
    """

    def __init__(
        self,
        paths: LogPaths,
        *,
        disk: Disk = REAL_DISK,
        file_size_bytes: int | None = None,
        new_file_size_bytes: int = FILE_SIZE_DEFAULT,
        writable: bool = False,
        offsets: QueueOffsets | None = None,
        host: str = HOST_DEFAULT,
        with_crc: bool = True,
        clock: Callable[[], int] | None = None,
        body_size_max: int = BODY_SIZE_MAX_DEFAULT,
        on_failed: Callable[[], None] | None = None,
    ) -> None:
        """Open the log.  The file size is given or that of its files; an empty log gets `new_file_size_bytes`.

        `on_failed` is called if the sync of a full file fails.
        """
        listed = paths.listed()
        size = file_size_bytes or common_file_size(sorted(chain.from_iterable(listed))) or new_file_size_bytes
        self.disk = disk
        self.queue = MappedFileQueue(disk, paths, size, writable=writable, on_failed=on_failed)
        self.queue.load(listed)
        self.scan_readers = LogReaders(self.queue)
        self.readers = LogReaders(self.queue, self.scan_readers)
        self.appender = Appender(
            self._next_file, size, offsets or QueueOffsets(), encode_host(host), with_crc, clock, body_size_max
        )
        self.buffers: WriteBuffers | None = None  # set before `attach`
        self._paths = paths
        self._is_prepared = not writable

    @property
    def file_size_bytes(self) -> int:
        """The size of every file."""
        return self.queue.file_size_bytes

    @property
    def min_offset(self) -> int:
        """The first offset of the log, -1 if there is no file."""
        return self.queue.min_offset

    @property
    def written_offset(self) -> int:
        """The offset after the last byte appended."""
        return self.appender.end_offset

    @property
    def committed_offset(self) -> int:
        """The offset after the last byte in the files; without buffers that is the written offset."""
        return self.written_offset if self.buffers is None else self.buffers.committed_offset

    @property
    def flushed_offset(self) -> int:
        """The offset up to which everything is on the disk."""
        for file in reversed(self.queue.files):
            if file.flushed > 0:
                return file.start_offset + file.flushed
        return max(self.min_offset, 0)

    def attach(self, offset: int, store_timestamp_ms: int = 0) -> None:
        """Continue writing at a physical offset: where recovery found the end of the records."""
        self._prepare_folders()
        self.queue.truncate(offset)
        if self.buffers is not None:
            self.buffers.committed_offset = offset
            self.queue.allocates_whole = True
            if self.queue.files:
                self.queue.files[-1].allocate(self.queue.files[-1].size_bytes)
        else:
            self.appender.allocate_with(self._allocate)
        if self.queue.files and not self.queue.files[-1].is_full:
            last = self.queue.files[-1]
            if self.buffers is not None:
                self.buffers.attach(last, store_timestamp_ms)
                return
            self.appender.attach(last.view, last.start_offset, last.written, store_timestamp_ms)
        elif self.queue.files:
            last = self.queue.files[-1]
            self.appender.attach(last.view, last.start_offset, last.size_bytes, store_timestamp_ms)

    def _prepare_folders(self) -> None:
        """Create the folders and delete empty files that a crash left.  Until the first write every byte stays as it is."""
        if self._is_prepared:
            return
        self._paths.make()
        for files in self._paths.listed():
            if files and files[-1].size_bytes == 0:
                self.disk.delete(files[-1].path)
        self._is_prepared = True

    def _allocate(self, end: int) -> int:
        """Allocate blocks of the last file; the appender calls this under its lock, before it writes there."""
        return self.queue.files[-1].allocate(end)

    def _next_file(self) -> tuple[memoryview, int]:
        """Return the next file; the appender calls this under its lock, before it closes the present file with a blank."""
        self._prepare_folders()
        if self.buffers is not None:
            return self.buffers.next_file()
        files = self.queue.files
        base, position = self.appender.base, self.appender.position
        last = files[-1].start_offset if files else -1
        is_taken = base > last or (base == last and position > 0)
        made = self.queue.next_file() if is_taken else files[-1]  # after an interrupt the last file may be unused
        return made.view, made.start_offset

    def end_file(self) -> bool:
        """End the last file here with a blank record, and continue in the next one; return whether that was possible.

        The next one begins with padding: a log without any record would look like one that lost its end.  A log with buffers
        only changes files when one is full.  Raises `DiskError` if there is no space for one more file.
        """
        if self.buffers is not None:
            return False
        self.queue.prepare_next()  # puts do not wait for its creation
        appender = self.appender
        with appender.lock:
            position, left = appender.position, self.file_size_bytes - appender.position
            if appender.is_closed or position == 0 or left < BLANK_SIZE:
                return False
            last = self.queue.files[-1]
            last.allocate(position + BLANK_SIZE)
            view, base = self._next_file()
            last.view[position + 4 : position + BLANK_SIZE] = (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
            last.view[position : position + 4] = left.to_bytes(4, "big")  # last: until then the records end here
            appender.attach(view, base, 0)
        appender.append(Message(FILLER_TOPIC, b"", queue_id=0, sys_flag=FILLER_FLAGS | TRANSACTION_ROLLBACK))
        return True

    def update_written(self) -> None:
        """Copy the appender's position to the files; without buffers everything written counts as committed."""
        with self.appender.lock:
            base, position = self.appender.base, self.appender.position
            files = self.queue.files
        if self.buffers is not None:
            self._update_buffered(files, base, position)
            return
        for file in reversed(files):
            goal = position if file.start_offset == base else file.size_bytes if file.start_offset < base else 0
            if file.committed == file.size_bytes == goal:
                break
            file.written = file.committed = goal

    def _update_buffered(self, files: list[MappedFile], base: int, position: int) -> None:
        """Set `written` only; the buffers set `committed`."""
        for file in reversed(files):
            if file.start_offset <= base:
                file.written = position if file.start_offset == base else file.size_bytes
                if file.committed == file.size_bytes:
                    break

    def commit(self, least_pages: int = 0) -> int:
        """Write the buffers to the files; return the committed offset."""
        return self.written_offset if self.buffers is None else self.buffers.commit(least_pages)

    def flush(self, least_pages: int = 0) -> int:
        """Sync every file with committed bytes to sync, oldest first; return the flushed offset."""
        self.update_written()
        unsynced = []
        for file in reversed(self.queue.files):
            if file.flushed == file.size_bytes:
                break
            unsynced.append(file)
        for file in reversed(unsynced):
            if file.can_flush(least_pages):
                file.flush()
        return self.flushed_offset

    def mark_unsynced(self, offset: int) -> None:
        """Count the file of `offset` and all later ones as not synced: a killed process may have left such bytes in them."""
        for file in self.queue.files:
            if file.end_offset > offset:
                file.flushed = 0

    def reader(self, file: MappedFile) -> Reader:
        """Return the reader of one file for many records in a row, kept as long as its map."""
        return self.scan_readers.of_file(file)

    def own_reader(self, file: MappedFile) -> Reader:
        """Return a reader of one file that the calling thread may take views from; see `storageio.own_view`."""
        return Reader(self.queue.view(file), file.start_offset) if FREE_THREADED else self.reader(file)

    def message_at(self, offset: int, checks: int = CHECK_ALL) -> StoredMessage | None:
        """Return the record that starts at a physical offset, None if none does."""
        return self.readers.message_at(offset, checks)

    def expect_lookups(self, offsets: Iterable[int]) -> None:
        """Let the system read the records at these physical offsets, without waiting for them."""
        for file, found in groupby(sorted(offsets), self.queue.find):
            if file is not None:
                file.expect_lookups([offset - file.start_offset for offset in found])

    def first_message(self, file: MappedFile) -> StoredMessage | None:
        """Return the record with which a file begins, None if it begins with none."""
        found, _, _ = self.reader(file).decode_range(0, file.size_bytes, 1)
        return found[0] if found else None

    def select(self, offset: int, size_bytes: int) -> memoryview | None:
        """Return raw bytes inside one file, as a view of the map; None if they are not all there."""
        file = self.queue.find(offset)
        if file is None or size_bytes < 0 or offset + size_bytes > file.end_offset:
            return None
        position = offset - file.start_offset
        return self.queue.view(file)[position : position + size_bytes]

    def check(self, offset: int, checks: int = CHECK_ALL) -> int:
        """Return the size of the record at `offset`, or a code of `checks.STOPS`."""
        file = self.queue.find(offset)
        if file is None:
            return TORN
        return self.reader(file).check(offset - file.start_offset, checks)

    def walk_file(self, file: MappedFile, start: int | None = None, checks: int = CHECK_ALL, stop: int | None = None) -> Stop:
        """Walk whole records from `start` (default: the first byte) up to `stop`, or to the first position without one."""
        at = 0 if start is None else start - file.start_offset
        end = file.size_bytes if stop is None else stop - file.start_offset
        where, why, records, protected, last = scan(
            self.queue.view(file), at, end, file.start_offset, checks, count_protected=True
        )
        last_offset = file.start_offset + last if last >= 0 else -1
        return Stop(file.start_offset + where, why, records, protected, last_offset)

    def is_end(self, stop: Stop) -> bool:
        """Return whether a walk ended where the last file of a whole log may end: in zeros, or at the file's end."""
        file = self.queue.find(stop.offset)
        left = file.end_offset - stop.offset if file else 0
        return stop.why in ("end", STOPS[EMPTY]) or is_file_end(stop.why, left, any_blank=True)  # RocketMQ reads on, too

    def find_end(self) -> Stop:
        """Return the end of the records, by a walk of the last file that starts with one; nothing is changed.

        Raises `StoreCorrupt` if that walk ends in anything but zeros or the file's end: then recovery is required first.
        """
        for file in reversed(self.queue.files):
            stop = self.walk_file(file)
            if stop.records == 0 and stop.offset == file.start_offset and stop.why == STOPS[EMPTY]:
                continue
            if not self.is_end(stop):
                raise self.problem(stop)
            if stop.why == STOPS[BLANK]:
                return stop._replace(offset=file.end_offset, why="end")
            return stop
        return Stop(max(self.min_offset, 0), "empty", 0, 0)

    def problem(self, stop: Stop) -> StoreCorrupt | UnsupportedFormat:
        """Return the error for a walk that ended at a bad position; a record of an unknown version is not damage."""
        file = self.queue.find(stop.offset)
        assert file is not None, "a walk ends in a file"
        at = stop.offset - file.start_offset
        if stop.why == STOPS[BAD_MAGIC] and is_unknown_version(self.queue.view(file), at, file.start_offset):
            return unsupported_record(unknown_version(file.path, Location(self.queue.view(file), at, file.start_offset)))
        found = bytes(self.queue.view(file)[at : at + 16]).hex(" ")
        return StoreCorrupt(stop.why, file=file.path, offset=at, expected="a record, a blank or zeros", found=found)

    def refuse_unknown_version(self, offset: int) -> None:
        """Raise `UnsupportedFormat` for a record of an unknown version at or after `offset`."""
        for file in self.queue.files:
            at = max(0, offset - file.start_offset)
            if at >= file.size_bytes:
                continue
            view = self.queue.view(file)
            is_first = file.start_offset + at == offset
            found = at if is_first and is_unknown_version(view, at, file.start_offset) else find_unknown_version(file, at)
            if found >= 0:
                raise unsupported_record(unknown_version(file.path, Location(view, found, file.start_offset)))

    def find_record(self, offset: int) -> int:
        """Return the first whole record at or after `offset` that has its own offset, in any file; -1 if there is none."""
        for file in self.queue.files:
            if file.end_offset <= offset:
                continue
            found = file.find_record(max(0, offset - file.start_offset))
            if found >= 0:
                return file.start_offset + found
        return -1

    def messages(self, start: int | None = None, stop: int | None = None, checks: int = CHECK_ALL) -> Iterator[StoredMessage]:
        """Yield every record from `start` on that ends by `stop`, in log order, over all files.

        Raises `StoreCorrupt` at the first bad position.
        """
        for file in self.queue.files:
            at = max(0, (start or 0) - file.start_offset)
            if at >= file.size_bytes:
                continue
            end = file.size_bytes if stop is None else min(file.size_bytes, stop - file.start_offset)
            if end <= at:
                return
            reader = self.reader(file)
            why = "full"
            while why == "full":
                batch, at, why = reader.decode_range(at, end, 256, checks)
                yield from batch
            if why == STOPS[TORN] and end < file.size_bytes and reader.check(at, checks) != TORN:
                return
            where = Stop(file.start_offset + at, why, 0, 0)
            if why != "end" and not self.is_end(where):
                raise self.problem(where)
            if why == STOPS[EMPTY]:
                return

    def close(self) -> None:
        """Close appender, maps and descriptors; nothing is synced."""
        if not self.appender.is_closed:
            self.appender.close()
        self.queue.close()


def open_log(folder: str, disk: Disk = REAL_DISK, file_size_bytes: int | None = None) -> CommitLog:
    """Open a log for reading; several folders are separated by commas.  Raises `UnknownStore` if a folder is missing."""
    paths = LogPaths.parse(disk, folder)
    for path in paths.folders:
        if disk.stat(path) is None:
            raise UnknownStore(f"{path}: no such folder")
    return CommitLog(paths, disk=disk, file_size_bytes=file_size_bytes)
