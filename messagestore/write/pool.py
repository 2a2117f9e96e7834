"""The transient store pool: appends go to a ring and are committed to the log files past the page cache.

It is active if it is enabled, the store is no slave, and flushes are asynchronous
(`docs/formats/mapped-files.md#transient-store-pool`).  *Written* means in the ring, a mapped file: it survives this process,
and `ring.restore` writes it to the log.  *Committed* means in the log file: every process sees it, reads and dispatch begin
there.  *Flushed* means on the disk.

Whole blocks are committed with `O_DIRECT`; the last, partial block is padded with zeros and written again later.  If
the file system refuses that, or a log file is not a whole number of blocks, exact bytes go through the page cache.  A put
that finds the ring full commits on its own thread.  The bytes of the files are those of the mapped path.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from commitlog import CommitLog, MappedFile
from commitlog.layout import BLANK_SIZE, RECORD_ALLOWANCE
from storageio import DIRECT_BLOCK, Disk, DiskError

from .ring import Ring, is_refusal, whole_blocks

LOG = logging.getLogger(f"brokerstore.{__name__}")
COMMIT_PIECE = 32 << 20  # large: between two pieces a busy put may hold the interpreter for milliseconds
PAGE_SIZE = 4096
PIN_PAUSE_S = 0.0002
READER_PAUSES = 250  # pauses without progress of the reader, after which puts continue
NOT_PINNED = 1 << 62
STEPS = 16
ZEROS_AHEAD = 256 << 10
SMALL_GROUP = 64 << 10


class _Buffered:
    """A log file that is not committed to its end; `end` is where its bytes end, set when the next file begins."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.end: int | None = None


class PooledFiles:
    """The write end of a log with a ring: reserves space for the appender, and commits.

    `next_file` and `_reserve_more` are called under the append lock, which is always taken before `_committing`.
    """

    def __init__(
        self, log: CommitLog, disk: Disk, folder: str, ring_size_bytes: int, *, zeroes_ahead: bool = False,
        reader_offset: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        """Create the ring; it replaces the log's own files at the next `attach` and roll-over.

        Set `zeroes_ahead` if a sync follows every small commit.  The first write to an allocated block changes the file
        system's journal, which makes its sync slower, so zeros are written to many blocks ahead.  Records at and
        behind `reader_offset()` stay in the ring for the dispatcher.
        """
        self._log = log
        record_max = min(log.appender.body_size_max + RECORD_ALLOWANCE, log.file_size_bytes)
        size = max(whole_blocks(ring_size_bytes), whole_blocks(2 * record_max) + 2 * DIRECT_BLOCK)
        self.ring = Ring(disk, folder, size, whole_blocks(record_max + BLANK_SIZE))
        self._size = size
        self._step = size // STEPS  # space is reserved in steps, so that most recent records stay readable
        self._is_direct = log.file_size_bytes % DIRECT_BLOCK == 0
        self._zeroes_ahead = zeroes_ahead
        self._zeroed = 0  # every block before this physical offset was written to
        self._buffered: list[_Buffered] = []
        self._guard = threading.Lock()  # guards the list
        self._committing = threading.Lock()
        self._reserving = threading.Lock()  # guards reserved and pinned ranges
        self.reader_offset = reader_offset or (lambda: NOT_PINNED)  # no reader needs earlier records in the ring
        self._pinned = NOT_PINNED
        self._base = 0  # of the file with the last reserved space
        self._lap = 0  # the physical offset that the ring's first byte stands for
        self._first = NOT_PINNED  # where the ring's content begins
        self._given = 0  # up to where the ring may have been overwritten
        self.committed_offset = log.written_offset
        log.appender.write_through(self._reserve_more)

    def attach(self, file: MappedFile, store_timestamp_ms: int) -> None:
        """Continue in a file that holds records up to `file.written`."""
        start = file.start_offset + file.written
        self._begin(file.start_offset, start)
        head = start % DIRECT_BLOCK if self._is_direct else 0  # whole blocks are written
        self._first = start
        index = start % self._size
        self.ring.view[index - head : index] = file.view[file.written - head : file.written]
        self._record_start(start)
        self._buffered.append(_Buffered(file))
        self._log.appender.attach(self.ring.view, file.start_offset, file.written, store_timestamp_ms)
        self._log.appender.set_reserved(self._lap - file.start_offset, file.written)  # the first append may be a blank

    def _begin(self, base: int, start: int) -> None:
        """Set the file and the lap of the ring for appends that begin at a physical offset."""
        self._base = base
        self._lap = start - start % self._size

    def next_file(self) -> tuple[memoryview, int]:
        """Begin the next file; called with the append lock held, before the current file gets its blank record."""
        made = self._log.queue.next_file()
        with self._guard:
            if self._buffered:
                self._buffered[-1].end = self._end_of_closed()
            self._buffered.append(_Buffered(made))
        if len(self._buffered) == 1:
            self._record_start(made.start_offset)
        self._first = min(self._first, made.start_offset)
        return self.ring.view, made.start_offset

    def _end_of_closed(self) -> int:
        """Return where the current file ends: behind the head of its blank record, if there is space for one."""
        position = self._log.appender.position
        has_blank = self._log.file_size_bytes - position >= BLANK_SIZE
        return position + BLANK_SIZE if has_blank else position

    # Space

    def _reserve_more(self, position: int, size_bytes: int) -> None:
        """Reserve space in the ring for at least one record of this size; called with the append lock held."""
        appender = self._log.appender
        base = appender.base
        start = base + position
        if base != self._base:
            for entry in self._buffered[-2:-1]:
                self._settle(entry.file.start_offset + (entry.end or 0))
            self._begin(base, start)
        self._settle(start)
        least = start + size_bytes
        most = min(start + self._step, self._lap + self._size, base + self._log.file_size_bytes - BLANK_SIZE)
        end = self._give(least, max(most, least))
        index = start - self._lap
        self.ring.view[index : index + BLANK_SIZE] = bytes(BLANK_SIZE)  # stale bytes must not look like a record
        appender.set_reserved(self._lap - base, end - base)

    def _give(self, least: int, most: int) -> int:
        """Return up to where records may be written; wait until that is at least `least`."""
        while True:
            self._wait_for_space(least + BLANK_SIZE)
            unread = self._wait_for_reader(least + BLANK_SIZE)
            with self._reserving:  # a range may have been pinned in the meantime
                end = min(most, min(self._limit(), unread) - BLANK_SIZE)
                if end >= least:
                    self._given = max(self._given, end + BLANK_SIZE)
                    return end

    def _settle(self, end: int) -> None:
        """Copy what was written beyond the ring's end to its start, up to `end`."""
        over = end - self._lap - self._size
        if over >= 0:
            self.ring.view[:over] = self.ring.view[self._size : self._size + over]
            self._lap += self._size

    def _limit(self) -> int:
        """Return up to where the ring may be overwritten without losing uncommitted or pinned records."""
        oldest = min(self.committed_offset, self._pinned)
        return oldest - oldest % DIRECT_BLOCK + self._size

    def _wait_for_space(self, end: int) -> None:
        """Wait for a commit in progress and for readers of the ring; without a commit in progress, commit on this thread."""
        while True:
            is_committing = self._committing.locked()  # read first: what such a commit frees is in the limit
            if end <= self._limit():
                return
            committed = self.committed_offset
            is_full = end > committed - committed % DIRECT_BLOCK + self._size
            if is_full and not is_committing:
                self._write_out(self._entries(), self._log.appender.base, self._log.appender.position, 0)
            else:
                time.sleep(PIN_PAUSE_S)

    def _wait_for_reader(self, end: int) -> int:
        """Return up to where writing does not overtake a reader that is close behind.

        The reader would otherwise have to read the file past the page cache, at a third of the speed, and never catch up.  So
        puts wait for a reader that advances, but not for one that is stuck or already far behind.
        """
        offset, pauses = self.reader_offset(), 0
        while offset + self._size >= self._given and pauses < READER_PAUSES:
            limit = offset - offset % DIRECT_BLOCK + self._size
            if end <= limit:
                return limit
            time.sleep(PIN_PAUSE_S)
            before, offset = offset, self.reader_offset()
            pauses = pauses + 1 if offset == before else 0
        return NOT_PINNED

    # Reading

    def pin(self, offset: int, size_bytes: int) -> tuple[memoryview, int, int] | None:
        """Pin committed records in the ring; see `WriteBuffers.pin`.

        A record that crosses the ring's end is returned alone; the records before it are returned without it.  This does not
        take the append lock, because a put that holds it may wait for the reader.
        """
        with self._reserving:
            if offset < self._first or offset + self._size < self._given:
                return None
            self._pinned = offset
        index, view = offset % self._size, self.ring.view
        if index + size_bytes > self._size:
            record_size = int.from_bytes(view[index : index + 4], "big")
            size_bytes = min(size_bytes, max(self._size - index, record_size))
        return view, index, size_bytes

    def unpin(self) -> None:
        """Unpin the range that `pin` returned."""
        self._pinned = NOT_PINNED

    # Committing

    def _entries(self) -> list[_Buffered]:
        with self._guard:
            return list(self._buffered)

    def _settle_written(self) -> tuple[int, int]:
        """Return (base, position) of the appender with everything before it in place; called with the append lock held."""
        appender = self._log.appender
        base, position = appender.base, appender.position
        if base == self._base:
            self._settle(base + position)
            if not appender.is_closed:
                appender.set_reserved(self._lap - base, appender.reserved_end)
        return base, position

    def commit(self, least_pages: int = 0) -> int:
        """Write everything written to the files, oldest first, and return the committed offset.

        With `least_pages`, a file that is not full waits until so many more pages are reached.
        """
        with self._log.appender.lock:  # no roll-over now: a closed file has its blank
            base, position = self._settle_written()
            entries = self._entries()
        return self._write_out(entries, base, position, least_pages)

    def _write_out(self, entries: list[_Buffered], base: int, position: int, least_pages: int) -> int:
        """Commit what was appended when the entries were listed; another thread may already have done it."""
        with self._committing:
            for entry in entries:
                is_closed = entry.file.start_offset != base
                goal = entry.end if is_closed and entry.end is not None else position
                if is_closed or _is_worth_it(entry.file.committed, goal, least_pages):
                    self._commit_file(entry.file, goal)
                if is_closed:
                    self._finish(entry)
        return self.committed_offset

    def _commit_file(self, file: MappedFile, goal: int) -> None:
        """Commit a file piece by piece; after an error the position covers the pieces that succeeded.

        The committed offset, which others see, only moves at the end, to the end of a record.
        """
        if file.committed >= goal:
            return
        file.written = max(file.written, goal)
        while file.committed < goal:
            stop = min(goal, file.committed - file.committed % PAGE_SIZE + max(COMMIT_PIECE, PAGE_SIZE))
            self._write_piece(file, file.committed, stop)
            file.committed = stop
        self._record_start(file.start_offset + goal)

    def _write_piece(self, file: MappedFile, start: int, stop: int) -> None:
        """Write past the page cache, or through it where the file system cannot bypass it."""
        base = file.start_offset
        if self._is_direct:
            try:
                if self._zeroes_ahead and stop - start <= SMALL_GROUP:
                    self._write_zeros(file, start, stop)
                file.write_direct(start - start % DIRECT_BLOCK, self._blocks(base + start, base + stop))
                return
            except DiskError as error:
                if not is_refusal(error):
                    raise
                LOG.info("commits go through the page cache: %s", error)
                self._is_direct = False
        for piece in self.ring.pieces(base + start, base + stop):
            file.write(start, piece)
            start += len(piece)

    def _write_zeros(self, file: MappedFile, start: int, stop: int) -> None:
        """Write zeros to the blocks of a commit and to some behind them, never to a block with committed bytes."""
        if file.start_offset + stop <= self._zeroed:
            return
        first = max(whole_blocks(start), self._zeroed - file.start_offset)
        count = (min(first + ZEROS_AHEAD, file.size_bytes) - first) // DIRECT_BLOCK
        if count > 0:
            self.ring.scratch[:] = bytes(DIRECT_BLOCK)
            file.write_direct(first, [self.ring.scratch] * count)
        self._zeroed = file.start_offset + first + max(count, 0) * DIRECT_BLOCK

    def _blocks(self, start: int, stop: int) -> list[memoryview]:
        """Return the whole blocks around a range, the last one padded with zeros."""
        rest = stop % DIRECT_BLOCK
        pieces = self.ring.pieces(start - start % DIRECT_BLOCK, stop - rest)
        if rest:
            index = (stop - rest) % self._size
            self.ring.scratch[:rest] = self.ring.view[index : index + rest]
            self.ring.scratch[rest:] = bytes(DIRECT_BLOCK - rest)
            pieces.append(self.ring.scratch)
        return pieces

    def _record_start(self, offset: int) -> None:
        """Record that everything before `offset` is in the files."""
        self.ring.note(offset)
        self.committed_offset = offset

    def _finish(self, entry: _Buffered) -> None:
        """Mark a file as full; its rest is already zero."""
        entry.file.written = entry.file.committed = entry.file.size_bytes
        if self.committed_offset < entry.file.end_offset:
            self._record_start(entry.file.end_offset)
        with self._guard:
            if entry in self._buffered:
                self._buffered.remove(entry)

    def close(self, *, is_clean: bool) -> None:
        """Close the ring after the last append.  Unless `is_clean`, the ring stays for the next open."""
        self.ring.close(keep=not is_clean)


def _is_worth_it(committed: int, written: int, least_pages: int) -> bool:
    if least_pages > 0:
        return written // PAGE_SIZE - committed // PAGE_SIZE >= least_pages
    return written > committed
