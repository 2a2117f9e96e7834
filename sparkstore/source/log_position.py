"""The durable end of a log, and a stream's position in it.

A stream's offset is a physical offset and, if known, an *anchor*: the record there or the last one before it, identified by
its offset, store time and body CRC.  A store that was rewound or replaced has a different record at that offset.

Beside a writer (an abort file exists), records stored up to three seconds before the checkpoint's time are durable.  In a
store that nobody writes, everything up to the last whole record is.  Files are preallocated, so their length is no evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from commitlog import CHECK_POSITION, MappedFile, Reader, StoredMessage, find_record
from commitlog.columns import Batch, fixed_columns
from commitlog.cursor import FileCursor
from commitlog.layout import FOREVER_MS
from commitlog.offset_files import OffsetFile
from commitlog.walk import LogFiles
from messagestore.abort_file import durable_ms
from storageio import REAL_DISK, DiskError, StoreRewound

from ..errors import BadOption, DataLost
from .start_position import StartPosition

COMPARISONS = 3  # a writer may open or close the store meanwhile


class Anchor(NamedTuple):
    """A record that identifies a position in the log."""

    physical_offset: int
    store_timestamp_ms: int
    body_crc: int

    @classmethod
    def of(cls, message: StoredMessage) -> Anchor:
        """Build the anchor of a record."""
        return cls(message.physical_offset, message.store_timestamp_ms, message.body_crc)


class Position(NamedTuple):
    """A stream's offset: records before `physical_offset` have been read.

    `starting` is the query's start position where it was more than a physical offset.
    """

    physical_offset: int
    anchor: Anchor | None = None
    starting: StartPosition | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that Spark keeps in the checkpoint."""
        anchor = {} if self.anchor is None else {"stand": self.anchor._asdict()}
        starting = {} if self.starting is None else {"starting": self.starting.to_json()}
        return {"physical_offset": self.physical_offset} | anchor | starting

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Position:
        """Parse the JSON form.  Raises `BadOption` for another source's checkpoint."""
        try:
            anchor = found.get("stand")
            fields = None if anchor is None else Anchor(*(int(anchor[name]) for name in Anchor._fields))
            starting = StartPosition.of_json(found["starting"]) if "starting" in found else None
            return cls(int(found["physical_offset"]), fields, starting)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadOption(
                f"checkpoint: expected an offset with 'physical_offset', found {found!r}; "
                "give this query a checkpoint of its own"
            ) from error


class LogEnds:
    """Finds the durable end of one store's log repeatedly, without locks or writes."""

    def __init__(self, root: str, log_folders: list[str], file_bytes: int | None = None) -> None:
        """Remember the paths; `root` contains checkpoint and abort file."""
        self._root = root
        self._folders = log_folders
        self._file_bytes = file_bytes
        self._known = Position(0)  # the last end found: the next search starts there

    def files(self) -> list[OffsetFile]:
        """Return the files that are not empty, oldest first."""
        return [file for file in LogFiles(REAL_DISK, self._folders, self._file_bytes).files if file.size_bytes]

    def low(self) -> int:
        """Return the first physical offset of the log."""
        return min((file.start_offset for file in self.files()), default=0)

    def start_by_time(self, timestamp_ms: int, slack_ms: int) -> int:
        """Return the start of the file before which no record has this store time or a later one.

        `slack_ms` is how far the broker's clock may have been set back."""
        files = self.files()
        for file in reversed(files):
            first = self._first_time(file)
            if first is not None and first + slack_ms < timestamp_ms:
                return file.start_offset
        return files[0].start_offset if files else 0

    def end(self, before_ms: int | None = None) -> Position:
        """Return the position after the last durable record, or before the first one stored at or after `before_ms`."""
        limit_ms = FOREVER_MS if before_ms is None else before_ms - 1
        for _ in range(COMPARISONS):
            safe_ms = durable_ms(REAL_DISK, self._root)
            found = self._end(min(safe_ms, limit_ms), is_live=safe_ms < FOREVER_MS)
            if safe_ms < FOREVER_MS or durable_ms(REAL_DISK, self._root) == FOREVER_MS:
                break  # else a writer opened the store meanwhile, and the end found may be inside its records
        self._known = found
        return found

    def cut(self, start: int, size_bytes: int, end: Position) -> Position:
        """Return the first record at least `size_bytes` after `start`, or `end` if that comes first."""
        requested = start + max(1, size_bytes)
        if requested >= end.physical_offset:
            return end
        file = next((found for found in self.files() if found.start_offset <= requested < _end_of(found)), None)
        if file is None:
            return Position(requested)
        view = self._view(file)
        found = find_record(view, requested - file.start_offset, len(view), file.start_offset)
        if found < 0:
            return min(Position(_end_of(file)), end, key=lambda position: position.physical_offset)
        message = Reader(view, file.start_offset).decode(found, CHECK_POSITION)
        assert message is not None, "a record that was checked"
        position = Position(message.physical_offset, Anchor.of(message))
        return position if position.physical_offset < end.physical_offset else end

    def cut_messages(self, start: int, messages: int, end: Position) -> Position:
        """Return the position after `messages` records from `start` on, or `end` if that comes first; only headers are read."""
        left = messages
        for file in self.files():
            if _end_of(file) <= start or file.start_offset >= end.physical_offset:
                continue
            mapped = MappedFile.of(REAL_DISK, file, writable=False)
            begin = max(0, start - file.start_offset)
            if begin:
                begin = find_record(mapped.view, begin, len(mapped.view), file.start_offset)
            if begin < 0:
                continue
            for positions, sizes in FileCursor(mapped, begin, past_damage=True, past_zeros=True).pieces():
                if len(positions) < left:
                    left -= len(positions)
                    continue
                message = Reader(mapped.view, file.start_offset).decode(int(positions[left - 1]), CHECK_POSITION)
                assert message is not None, "a record that was checked"
                found = Position(message.physical_offset + int(sizes[left - 1]), Anchor.of(message))
                return found if found.physical_offset < end.physical_offset else end
        return end

    def check(self, position: Position) -> None:
        """Raise `StoreRewound` if the log has a different record at the anchor.

        An anchor that retention deleted is no evidence.
        """
        anchor = position.anchor
        if anchor is None:
            return
        files = self.files()
        file = next((found for found in files if found.start_offset <= anchor.physical_offset < _end_of(found)), None)
        if files and anchor.physical_offset < files[0].start_offset:
            return
        found = self._message_at(file, anchor.physical_offset) if file is not None else None
        if found is None or Anchor.of(found) != anchor:
            now = "none" if found is None else f"one stored at {found.store_timestamp_ms}"
            raise StoreRewound(
                f"{self._root}: the store was truncated by a recovery, or replaced: at physical offset "
                f"{anchor.physical_offset} expected the record stored at {anchor.store_timestamp_ms}, "
                f"where the stream stopped, found {now}"
            )

    # Search

    def _end(self, limit_ms: int, *, is_live: bool) -> Position:
        """Find the end in the newest file whose first record is within the limit."""
        files = self.files()
        for file in reversed(files):
            try:
                first = self._first_time(file)
                if first is not None and first <= limit_ms:
                    return self._end_in(file, limit_ms, is_live)
            except DiskError:
                if REAL_DISK.stat(file.path) is not None:
                    raise
        return Position(files[0].start_offset if files else 0)

    def _first_time(self, file: OffsetFile) -> int | None:
        """Return the store time of a file's first record, or None."""
        found, _, _ = Reader(self._view(file), file.start_offset).decode_range(0, file.size_bytes, 1, CHECK_POSITION)
        return found[0].store_timestamp_ms if found else None

    def _message_at(self, file: OffsetFile, physical_offset: int) -> StoredMessage | None:
        view = self._view(file)
        return Reader(view, file.start_offset).decode(physical_offset - file.start_offset, CHECK_POSITION)

    def _view(self, file: OffsetFile) -> memoryview:
        return MappedFile.of(REAL_DISK, file, writable=False).view

    def _end_in(self, file: OffsetFile, limit_ms: int, is_live: bool) -> Position:
        """Return the position after the last record of a file within the limit."""
        import numpy as np  # 80 ms

        mapped = MappedFile.of(REAL_DISK, file, writable=False)
        begin, last_ms = self._begin_in(file)
        cursor = FileCursor(mapped, begin, last_ms=last_ms, past_damage=True, past_zeros=not is_live)
        end, last = file.start_offset + begin, self._known.anchor if begin else None
        for positions, sizes in cursor.pieces():
            rows = Batch(mapped.view, file.start_offset, np.asarray(positions), np.asarray(sizes))
            times = fixed_columns(rows, ["store_timestamp_ms"])["store_timestamp_ms"]
            del rows  # it holds the map
            late = (times > limit_ms).nonzero()[0]
            count = int(late[0]) if len(late) else len(times)
            if count:
                message = Reader(mapped.view, file.start_offset).decode(positions[count - 1], 0)
                assert message is not None, "a record that was checked"
                end, last = message.physical_offset + message.size, Anchor.of(message)
            if len(late):
                break
        return Position(_end_of(file) if cursor.is_finished else end, last)

    def _begin_in(self, file: OffsetFile) -> tuple[int, int]:
        """Return where to start the search in a file: after the last end found, if its anchor is still there."""
        known = self._known
        if known.anchor is None or not file.start_offset < known.physical_offset < _end_of(file):
            return 0, 0
        message = (
            self._message_at(file, known.anchor.physical_offset) if known.anchor.physical_offset >= file.start_offset else None
        )
        if message is None or Anchor.of(message) != known.anchor:
            return 0, 0
        return known.physical_offset - file.start_offset, known.anchor.store_timestamp_ms


def check_begin(ends: LogEnds, begin: int, is_error: bool) -> int:
    """Return the first offset that can be read from `begin` on.  Raises `DataLost` for deleted records if `is_error`."""
    files = ends.files()
    low = files[0].start_offset if files else 0
    if begin < low and is_error:
        raise DataLost(files[0].path, 0, f"records from physical offset {begin} on", f"the first is at {low}")
    return max(begin, low)


def _end_of(file: OffsetFile) -> int:
    return file.start_offset + file.size_bytes
