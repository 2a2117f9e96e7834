"""Iterate over the log as it grows, in the writing process or beside a writer in another process, brokerstore's or a broker.

Beside a writer, nothing is locked or written.  Writes through a map raise no file event and change no file time, so a follower
polls: every 10 ms, and every 30 ms after a while without records.  What it finds may be half written.  It accepts a record
if its offset, its lengths and the CRC of its body agree and one of these holds: the CRC over the whole record is valid; a
valid header, a blank or the file's end follows; a queue unit points at it; the bytes were the same in two polls.

`end="durable"` returns only what is certainly on the disk: in the writing process what was flushed; beside a writer what was
stored three seconds before the checkpoint's time or earlier, or everything if there is no abort file.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from array import array
from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from commitlog import CHECK_ALL, CHECK_POSITION, MappedFile, Reader, StoredMessage, find_record, without_fillers
from commitlog._record_cy import is_protected
from commitlog._scan_cy import scan
from commitlog.checks import CHECK_READ
from commitlog.cursor import is_file_end
from commitlog.layout import BODY_SIZE_MAX_DEFAULT, FOREVER_MS, RECORD_ALLOWANCE
from storageio import Closing, DiskError, StoreClosed, StoreCorrupt, StoreRewound

from ..abort_file import durable_ms

if TYPE_CHECKING:
    from ..parts import StoreParts

ENDS = ("written", "durable")
POLL_S = 0.010
IDLE_POLL_S = 0.030  # finds a record within 50 ms of its put
IDLE_AFTER_S = 1.0
CLOSE_POLL_S = 0.5  # the writing process is notified of progress; it only polls whether it was closed
BATCH = 256
ANCHOR_SIZE = 128  # bytes kept of the last accepted record, with its offsets, times and the CRC of its body
DAMAGE_AFTER_S = 1.0  # bytes that are no record and stay unchanged for this time may be damage
DAMAGE_REACH = 2 * (BODY_SIZE_MAX_DEFAULT + RECORD_ALLOWANCE)


class Follower(Closing):
    """An iterator over the log that waits for more.  One thread iterates; any thread may close it.

    `position` is the physical offset after the last returned message.  Records that were deleted before they were read are
    skipped and counted in `skipped_bytes`.
    """

    def __init__(self, parts: StoreParts, start: int | None, end: str, timeout_s: float | None) -> None:
        """Create it for `MessageStore.follow`."""
        if end not in ENDS:
            raise ValueError(f"end {end!r}: one of {', '.join(ENDS)}")
        self._parts = parts
        self._log = parts.log
        self._is_durable = end == "durable"
        self._timeout_s = timeout_s
        self._at = max(parts.log.min_offset, 0) if start is None else start
        self.position = self._at
        self.skipped_bytes = 0
        self._ready: deque[StoredMessage] = deque()
        self._is_closed = False

    def __iter__(self) -> Iterator[StoredMessage]:
        """Return the follower itself."""
        return self

    def __next__(self) -> StoredMessage:
        """Return the next message; the iteration ends at `close`, or if no message came within the timeout."""
        if not self._ready and not self._wait():
            raise StopIteration
        message = self._ready.popleft()
        self.position = message.physical_offset + message.size
        return message

    def poll(self, max_count: int = BATCH) -> list[StoredMessage]:
        """Return up to `max_count` messages that exist now, without waiting."""
        if len(self._ready) < max_count:
            self._ready.extend(self._checked_take())
        found = [self._ready.popleft() for _ in range(min(max_count, len(self._ready)))]
        if found:
            self.position = found[-1].physical_offset + found[-1].size
        return found

    def close(self) -> None:
        """End the iteration, even of a thread that waits."""
        self._is_closed = True
        self._parts.progress.notify()

    def _wait(self) -> bool:
        """Wait until messages are ready; return False after the timeout or when closed."""
        began = time.monotonic()
        while not self._is_closed:
            seen = self._parts.progress.count
            self._ready.extend(self._checked_take())
            if self._ready:
                return True
            waited_s = time.monotonic() - began
            if self._timeout_s is not None and waited_s >= self._timeout_s:
                return False
            left_s = CLOSE_POLL_S if self._timeout_s is None else self._timeout_s - waited_s
            self._parts.progress.wait(seen, min(left_s, self._pause_s(waited_s)))
        return False

    def _checked_take(self) -> list[StoredMessage]:
        if self._is_closed:
            raise StoreClosed("the follower is closed")
        self._parts.check_open()
        while found := self._take():
            if messages := without_fillers(found):
                return messages
        return []

    @abstractmethod
    def _take(self) -> list[StoredMessage]:
        """Return the next messages from `_at` on, and move `_at` behind them."""

    @abstractmethod
    def _pause_s(self, waited_s: float) -> float:
        """Return the seconds until the next poll."""

    def _move_to(self, offset: int, *, is_gap: bool = False) -> None:
        if is_gap:
            self.skipped_bytes += max(0, offset - self._at)
        self._at = offset


class OwnFollower(Follower):
    """A follower in the writing process.  Dispatcher and flusher, which checked every record, notify it."""

    def _pause_s(self, waited_s: float) -> float:
        return CLOSE_POLL_S

    def _take(self) -> list[StoredMessage]:
        parts = self._parts
        limit = parts.flusher.flushed_offset if self._is_durable else parts.dispatch_limit()
        while self._at < limit:
            file = self._log.queue.find(self._at)
            if file is None:  # retention deleted it
                self._move_to(max(self._log.min_offset, 0), is_gap=True)
                continue
            at, stop = self._at - file.start_offset, min(file.size_bytes, limit - file.start_offset)
            try:
                messages, at, why = self._log.reader(file).decode_range(at, stop, BATCH, CHECK_READ)
            except DiskError:  # deleted in the meantime
                if self._at >= self._log.min_offset:
                    raise
                continue
            is_file_done = is_file_end(why, file.size_bytes - at, any_blank=True)  # as the dispatcher
            self._move_to(file.end_offset if is_file_done else file.start_offset + at)
            if messages:
                return messages
            if not is_file_done:
                raise StoreCorrupt(why, file=file.path, offset=at, expected="a record", found="none")
        return []


class _Anchor(NamedTuple):
    """The last accepted record, which identifies the log."""

    file: MappedFile
    offset: int
    end: int  # the physical offset after it
    view: memoryview  # of the map, which stays readable if the file is deleted
    head: bytes


class LogFollower(Follower):
    """A follower beside a writer in another process."""

    def __init__(self, parts: StoreParts, start: int | None, end: str, timeout_s: float | None) -> None:
        """Create it for `MessageStore.follow`."""
        parts.refresh()
        super().__init__(parts, start, end, timeout_s)
        self._file: MappedFile | None = None
        self._view = memoryview(b"")
        self._reader = Reader(self._view)
        self._gone: set[int] = set()  # open files that expired
        self._anchor: _Anchor | None = None
        self._uncertain: tuple[int, bytes, float] | None = None  # an uncertain position, its bytes, and when it was first seen
        self._positions = array("q", bytes(8 * (BATCH + 1)))
        self._sizes = array("i", bytes(4 * (BATCH + 1)))

    def _pause_s(self, waited_s: float) -> float:
        return POLL_S if waited_s < IDLE_AFTER_S or self._uncertain is not None else IDLE_POLL_S

    def _take(self) -> list[StoredMessage]:
        self._check_anchor()
        self._check_files()
        safe_ms = self._safe_ms()
        while self._find_file():
            assert self._file is not None
            file, at = self._file, self._at - self._file.start_offset
            where, why, rows, _, _ = scan(
                self._view, at, file.size_bytes, file.start_offset, CHECK_ALL, self._positions, self._sizes
            )
            is_file_done = is_file_end(why, len(self._view) - where, self._view[where:])
            sure = rows if rows and (is_file_done or self._is_last_sure(file, rows, why)) else max(0, rows - 1)
            messages = self._decode(file, at, sure, safe_ms)
            if messages:
                return messages
            if rows or not is_file_done:
                self._suspect(file, at, why, rows)
                return []
            self._move_to(file.end_offset)
        return []

    # Position

    def _find_file(self) -> bool:
        """Open the file that contains `_at` and its map.

        Both stay open even if the file is renamed or deleted.
        """
        file = self._file
        if file is not None and file.start_offset <= self._at < file.end_offset:
            return True
        while (found := self._found_file()) is not None:
            if self._take_in_hand(found):
                return True
        self._file = None
        return False

    def _found_file(self) -> MappedFile | None:
        """Return the file that contains `_at`, or None if there is none yet.

        Moves `_at` to the start of the log if its records are deleted.
        """
        found = self._log.queue.find(self._at)
        if found is None:
            self._parts.refresh()
            low = self._log.min_offset
            if low > self._at:
                self._move_to(low, is_gap=True)
            found = self._log.queue.find(self._at)
        return found

    def _take_in_hand(self, file: MappedFile) -> bool:
        """Open a file; return False if it was deleted in the meantime, so that the caller searches again."""
        try:
            view = self._log.queue.view(file)
        except DiskError:
            if self._is_there(file):
                raise
            self._parts.refresh(again=True)
            return False
        self._file, self._view, self._reader = file, view, Reader(view, file.start_offset)
        return True

    def _check_anchor(self) -> None:
        """Raise `StoreRewound` if the last accepted record changed, because the writer recovered to an earlier end."""
        if self._anchor is not None and bytes(self._anchor.view) != self._anchor.head:
            raise self._rewound(self._anchor)

    def _check_files(self) -> None:
        """Notice that an open file was deleted or replaced: it expired, or a writer created it again."""
        for file in (self._file, self._anchor.file if self._anchor else None):
            if file is None or file.start_offset in self._gone or self._is_there(file):
                continue
            self._parts.refresh(again=True)
            if file.start_offset < self._log.min_offset:
                self._gone.add(file.start_offset)
                continue
            self._file = None
            if self._anchor is not None:
                self._find_anchor(self._anchor)

    def _find_anchor(self, anchor: _Anchor) -> None:
        """Continue after the last accepted record, in the current files of those names.

        Raises `StoreRewound` if the record changed.
        """
        if anchor.file.start_offset not in self._gone:
            file = self._log.queue.find(anchor.offset)
            at = anchor.offset - file.start_offset if file is not None else 0
            view = self._log.queue.view(file)[at : at + len(anchor.head)] if file is not None else memoryview(b"")
            if file is None or bytes(view) != anchor.head:
                raise self._rewound(anchor)
            self._anchor = anchor._replace(file=file, view=view)
        self._at = anchor.end

    def _is_there(self, file: MappedFile) -> bool:
        entry = self._parts.disk.stat(file.path)
        return entry is not None and entry.inode == file.inode

    def _rewound(self, anchor: _Anchor) -> StoreRewound:
        return StoreRewound(f"the record at physical offset {anchor.offset} changed: the writer was recovered to less")

    # Which records are accepted

    def _is_last_sure(self, file: MappedFile, rows: int, why: str) -> bool:
        """Return whether the last record found, which nothing valid follows, is whole."""
        at, size = self._positions[rows - 1], self._sizes[rows - 1]
        if why == "full":
            return False  # the next scan begins with it
        return (
            is_protected(self._view, at, size)
            or self._has_unit(at, size)
            or self._is_unchanged(file.start_offset + at, bytes(self._view[at : at + size]))
        )

    def _has_unit(self, at: int, size: int) -> bool:
        """Return whether a queue unit points at the record, so that its writer has finished it."""
        message = self._reader.decode(at, CHECK_POSITION)
        view = self._parts.view
        if message is None or view is None:
            return False
        queue = view.get(message.topic, message.queue_id)
        unit = queue.unit(message.queue_offset) if queue is not None else None
        return unit is not None and (unit.physical_offset, unit.size_bytes) == (message.physical_offset, size)

    def _is_unchanged(self, offset: int, data: bytes) -> bool:
        """Return whether an earlier poll saw the same bytes."""
        seen, now = self._uncertain, time.monotonic()
        if seen is None or seen[:2] != (offset, data):
            self._uncertain = (offset, data, now)
            return False
        return now - seen[2] >= POLL_S / 2

    def _decode(self, file: MappedFile, at: int, sure: int, safe_ms: int) -> list[StoredMessage]:
        """Decode the first `sure` records of the scan, and accept those stored up to `safe_ms`."""
        if not sure:
            return []
        stop = self._positions[sure - 1] + self._sizes[sure - 1]
        messages, _, _ = self._reader.decode_range(at, stop, sure, CHECK_POSITION)
        if safe_ms < FOREVER_MS:
            messages = list(takewhile(lambda message: message.store_timestamp_ms <= safe_ms, messages))
        if messages:
            last = messages[-1]
            position = last.physical_offset - file.start_offset
            view = self._view[position : position + min(last.size, ANCHOR_SIZE)]
            end = last.physical_offset + last.size
            self._anchor = _Anchor(file, last.physical_offset, end, view, bytes(view))
            self._move_to(end)
            self._uncertain = None
        return messages

    def _suspect(self, file: MappedFile, at: int, why: str, rows: int) -> None:
        """Raise `StoreCorrupt` if the bytes are damage and not a record that is still being written.

        Damage does not change, and a whole record follows it.
        """
        if rows or why == "empty":
            return
        head = bytes(self._view[at : at + ANCHOR_SIZE])
        seen, now = self._uncertain, time.monotonic()
        if seen is None or seen[:2] != (self._at, head):
            self._uncertain = (self._at, head, now)
        elif now - seen[2] > DAMAGE_AFTER_S:
            self._uncertain = (self._at, head, now)
            size = file.size_bytes
            if find_record(self._view, at + 1, size, file.start_offset, min(size, at + DAMAGE_REACH)) >= 0:
                raise StoreCorrupt(why, file=file.path, offset=at, expected="a record", found=head[:16].hex(" "))

    def _safe_ms(self) -> int:
        """Return the store time up to which records may be accepted."""
        return durable_ms(self._parts.disk, self._parts.paths.root) if self._is_durable else FOREVER_MS
