"""Read the messages that units point to, of the timer log or of a queue."""

from __future__ import annotations

from commitlog import CHECK_ALL, STOPS, MappedFile, Reader, StoredMessage
from commitlog.offset_files import OffsetFile
from commitlog.walk import LogFiles
from storageio import Disk

from .layout import TIMER_TOPIC, TimerUnit


class TimerRecords:
    """The messages of timers; the log file that was used last stays mapped."""

    def __init__(self, disk: Disk, files: LogFiles) -> None:
        """Create it without opening any file."""
        self._disk = disk
        self._files = files
        self._found: OffsetFile | None = None
        self._reader: Reader | None = None

    def read(self, unit: TimerUnit) -> StoredMessage | str:
        """Return the timer's message, or what is at its place instead."""
        message = self.record_at(unit.log_offset, unit.log_size)
        if isinstance(message, StoredMessage) and message.topic != TIMER_TOPIC:
            return f"a record of topic {message.topic}"
        return message

    def record_at(self, offset: int, expected_size: int) -> StoredMessage | str:
        """Return the message of that size at a physical offset, or what is there instead."""
        found = self._files.find(offset)
        if found is None:
            return "no file of the log"
        if found != self._found or self._reader is None:
            self._found = found
            self._reader = Reader(MappedFile.of(self._disk, found, writable=False).view, found.start_offset)
        at = offset - found.start_offset
        size = self._reader.check(at, CHECK_ALL)
        if size <= 0:
            return f"no record: {STOPS[size]}"
        if size != expected_size:
            return f"a record of {size} bytes"
        message = self._reader.decode(at, 0)
        assert message is not None
        return message
