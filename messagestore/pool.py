"""The transient store pool: appends go to memory and are committed to the log file later (format page, section 6.4).

Active under the three conditions of row R8: enabled, no slave, asynchronous flush.  A log file under construction has a
buffer of its own length before it.  *Written* is in the buffer: it dies with this process.  *Committed* was written to the
file with `pwrite`: every process sees it, reads and dispatch begin there.  *Flushed* is on the disk.

A buffer goes back when its file is full and committed.  When none is left the put fails at once: memory is bounded.  The
bytes of the files are those of the mapped path; behind a blank record nothing is committed, so old bytes of a buffer never
reach a file.
"""

from __future__ import annotations

import errno
import threading

from commitlog import CommitLog, MappedFile
from commitlog.layout import BLANK_SIZE
from storageio import DiskError

COMMIT_PIECE = 4 << 20
PAGE_SIZE = 4096


class BufferPool:
    """Up to `count` buffers of one size, made when first wanted and used again.  Untouched pages take no memory."""

    def __init__(self, size_bytes: int, count: int) -> None:
        """Makes none yet."""
        self._size_bytes = size_bytes
        self._left = count
        self._idle: list[memoryview] = []
        self._guard = threading.Lock()

    @property
    def available(self) -> int:
        """How many can be had now."""
        return len(self._idle) + self._left

    def borrow(self, path: str) -> memoryview:
        """A writable buffer for a file.  Raises `DiskError` when there is none, and waits for nobody."""
        with self._guard:
            if self._idle:
                return self._idle.pop()
            if self._left == 0:
                raise DiskError("borrow a buffer", path, errno.ENOMEM, "every buffer of the transient store pool is in use")
            self._left -= 1
        import numpy  # 80 ms, and few stores have a pool

        return numpy.zeros(self._size_bytes, dtype=numpy.uint8).data

    def give_back(self, buffer: memoryview) -> None:
        """For the next file."""
        with self._guard:
            self._idle.append(buffer)


class _Buffered:
    """A log file with its buffer; `end` is where its bytes end, known once the next file was begun."""

    def __init__(self, file: MappedFile, buffer: memoryview) -> None:
        self.file = file
        self.buffer = buffer
        self.end: int | None = None


class PooledFiles:
    """The write end of a log, in memory: gives the appender its buffers, and commits them.

    `next_file` is called under the append lock; `commit` by one thread at a time.
    """

    def __init__(self, log: CommitLog, count: int) -> None:
        """Takes the place of the log's own files at its next `attach` and roll-over."""
        self._log = log
        self.pool = BufferPool(log.file_size_bytes, count)
        self._buffered: list[_Buffered] = []
        self._guard = threading.Lock()
        self.committed_offset = log.written_offset

    def attach(self, file: MappedFile, store_timestamp_ms: int) -> None:
        """Go on in a file that holds records up to `file.written`."""
        self.committed_offset = file.start_offset + file.written
        buffer = self.pool.borrow(file.path)
        self._buffered.append(_Buffered(file, buffer))
        self._log.appender.attach(buffer, file.start_offset, file.written, store_timestamp_ms)

    def next_file(self) -> tuple[memoryview, int]:
        """A buffer first, so that no file is made for nothing."""
        buffer = self.pool.borrow(f"log file at {self._log.queue.end_offset}")
        try:
            made = self._log.queue.next_file()
        except BaseException:
            self.pool.give_back(buffer)
            raise
        with self._guard:
            if self._buffered:
                self._buffered[-1].end = self._end_of_closed()
            self._buffered.append(_Buffered(made, buffer))
        return buffer, made.start_offset

    def _end_of_closed(self) -> int:
        """Of the file that the appender is about to close: behind the head of the blank record that it writes next."""
        position = self._log.appender.position
        has_blank = self._log.file_size_bytes - position >= BLANK_SIZE
        return position + BLANK_SIZE if has_blank else position

    def commit(self, least_pages: int = 0) -> int:
        """Bring what is written to the files, oldest first; the committed offset.

        With `least_pages` a file that is not full waits until so many pages were begun (section 6.2).
        """
        with self._log.appender.lock:  # no roll-over now: a closed file has its blank
            base, position = self._log.appender.base, self._log.appender.position
            with self._guard:
                entries = list(self._buffered)
        for entry in entries:
            is_closed = entry.file.start_offset != base
            goal = entry.end if is_closed and entry.end is not None else position
            if is_closed or _is_worth_it(entry.file.committed, goal, least_pages):
                self._commit_file(entry, goal)
            if is_closed:
                self._finish(entry)
        return self.committed_offset

    def _commit_file(self, entry: _Buffered, goal: int) -> None:
        """Piece by piece; after an error the position stays behind what went well.

        Only the end of a record is told to others, when all before it is in the file.
        """
        file = entry.file
        file.written = max(file.written, goal)
        while file.committed < goal:
            stop = min(goal, file.committed + COMMIT_PIECE)
            file.write(file.committed, entry.buffer[file.committed : stop])
            file.committed = stop
        self.committed_offset = file.start_offset + goal

    def _finish(self, entry: _Buffered) -> None:
        """The file is full: its rest is zero already."""
        entry.file.written = entry.file.committed = entry.file.size_bytes
        self.committed_offset = entry.file.end_offset
        with self._guard:
            self._buffered.remove(entry)
        self.pool.give_back(entry.buffer)


def _is_worth_it(committed: int, written: int, least_pages: int) -> bool:
    if least_pages > 0:
        return written // PAGE_SIZE - committed // PAGE_SIZE >= least_pages
    return written > committed
