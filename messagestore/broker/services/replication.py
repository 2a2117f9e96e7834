"""Copy raw log bytes from a master to a slave, to replicate a folder.

The master returns whole records from any offset (`read_log_bytes`). A store opened with `Role.SLAVE` appends them at its end
(`append_data`) after it checks that each is a whole record with its own offset and correct checksums. The slave's own
dispatcher builds queues and index, so both folders hold the same. A slave refuses puts.

    offset = slave.log_end
    while data := master.read_log_bytes(offset):
        offset = slave.append_data(offset, data)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commitlog import CHECK_ALL, STOPS, MappedFile, PutStatus, Reader, is_unknown_version
from commitlog._record_cy import check
from commitlog.checks import BAD_MAGIC, BLANK, TORN
from commitlog.cursor import is_whole_blank
from commitlog.findings import Location, unknown_version, unsupported_record
from commitlog.layout import BLANK_SIZE, BODY_SIZE_MAX_DEFAULT
from storageio import InvalidMessage, PutRejected, StoreCorrupt

from ...config import Role

if TYPE_CHECKING:
    from ...parts import StoreParts

READ_SIZE = 1 << 20
_BLANK_MAGIC = bytes.fromhex("cbd43194")


def read_log_bytes(parts: StoreParts, offset: int, max_bytes: int) -> bytes:
    """Return whole records of one file from `offset` on: about `max_bytes`, at least one record. Empty at the log's end.

    The result ends with a file's blank record, of which eight bytes are returned; the next range begins in the next file.
    Raises `StoreCorrupt` for damage, and `InvalidMessage` for an offset outside the log or inside a blank.
    """
    end = parts.dispatch_limit() if parts.writable else parts.log.queue.end_offset
    low = max(parts.log.min_offset, 0)
    if not low <= offset <= end:
        raise InvalidMessage(f"offset {offset}: the log has {low} to {end}")
    file = parts.log.queue.find(offset)
    if file is None or offset == end:
        return b""
    at = start = offset - file.start_offset
    stop = min(file.size_bytes, end - file.start_offset)
    reader = parts.log.reader(file)
    if _is_zeros(reader, file, at):
        if _is_end(parts, file, at):
            return b""
        if _is_zeros(reader, file, at):  # otherwise a writer has appended meanwhile
            raise InvalidMessage(f"offset {offset}: inside a blank, or behind the log's end; no record begins there")
    while at < stop and (at == start or at - start < max_bytes):
        size = reader.check(at, CHECK_ALL)
        if size <= 0:
            at = _stopped(parts, file, at, size, start)
            break
        if at > start and at + size - start > max_bytes:
            break
        at += size
    return bytes(parts.log.queue.view(file)[start:at])


def _is_zeros(reader: Reader, file: MappedFile, at: int) -> bool:
    """Return whether there are zeros at `at`, or too few bytes of the file for even a blank record."""
    return file.size_bytes - at < BLANK_SIZE or STOPS.get(reader.check(at, CHECK_ALL)) == "empty"


def _is_end(parts: StoreParts, file: MappedFile, at: int) -> bool:
    """Return whether zeros mark the end of the log.

    A writer knows its end. A reader scans the last file if necessary: no record ends in a zero or in a blank's magic number.
    """
    if parts.writable:
        return False
    before = bytes(parts.log.queue.view(file)[max(at - 4, 0) : at])
    if before and before[-1] and before != _BLANK_MAGIC:
        return True
    return parts.log.find_end().offset == file.start_offset + at


def _stopped(parts: StoreParts, file: MappedFile, at: int, code: int, start: int) -> int:
    """Return where the range ends at a place without a record.

    Raises `StoreCorrupt` only if no record precedes it in the range.
    """
    if code == BLANK:
        return at + BLANK_SIZE
    if at == start and STOPS[code] != "empty":
        raise StoreCorrupt(STOPS[code], file=file.path, offset=at, expected="a whole record", found="damage")
    return at


def append_data(parts: StoreParts, offset: int, data: bytes) -> int:
    """Append log bytes at the log's end; return the new end, which is where the next bytes go.

    An incomplete record at the end of `data` is ignored; it must come again with the next bytes. Invalid bytes anywhere in
    `data` leave the log unchanged: `StoreCorrupt` names their offset, `UnsupportedFormat` a record of an unknown version,
    `InvalidMessage` an offset that is not the end.
    """
    parts.check_open()
    if parts.config.broker_role is not Role.SLAVE:
        raise PutRejected(PutStatus.SERVICE_NOT_AVAILABLE, "only a slave takes log bytes")
    if not parts.flags.is_writeable:
        raise PutRejected(PutStatus.SERVICE_NOT_AVAILABLE, parts.flags.reason)
    with parts.slave_guard:
        return _Appending(parts, offset, data).run()


class _Appending:
    """One call of `append_data`."""

    def __init__(self, parts: StoreParts, offset: int, data: bytes) -> None:
        self._parts = parts
        self._log = parts.log
        self._data = data
        self._offset = offset

    def run(self) -> int:
        """Check everything, then write it file by file."""
        files, end = self._log.queue.files, self._log.written_offset
        is_empty = not files or end == files[0].start_offset < self._offset  # killed before its first byte
        begins_file = self._offset >= 0 and self._offset % self._log.file_size_bytes == 0
        if self._offset != end and not (is_empty and begins_file):
            raise InvalidMessage(f"bytes for offset {self._offset}: the log ends at {end}, and an empty one begins with a file")
        at, position = 0, self._offset
        pieces: list[tuple[int, bytes, int, bool]] = []  # (offset, records, newest store time, blank follows)
        while at < len(self._data):
            size, stamp, why = self._records(at, position)
            pieces.append((position, self._data[at : at + size], stamp, why == BLANK))
            at, position = at + size, position + size
            if why != BLANK:
                break
            left = self._file_end(position) - position
            at, position = at + min(left, len(self._data) - at), position + left
        if is_empty and pieces:
            self._begin(self._offset)
        for one in pieces:
            self._write(*one)
        self._parts.dispatcher.nudge()
        if self._parts.config.is_sync_flush and pieces:
            self._parts.flusher.wait(self._log.written_offset)
        return self._log.written_offset

    def _file_end(self, position: int) -> int:
        size = self._log.file_size_bytes
        return position - position % size + size

    def _records(self, start: int, position: int) -> tuple[int, int, int]:
        """Return (bytes of whole records, newest store time, why the scan stopped) for one file."""
        data, at, stamp = self._data, start, 0
        reader = Reader(data, position - start)
        stop = min(len(data), start + self._file_end(position) - position)
        limit = max(self._parts.config.max_message_size, BODY_SIZE_MAX_DEFAULT) + (1 << 17)
        while at < stop:
            where, left = position + at - start, self._file_end(position) - position - at + start
            code = check(data, at, stop, position - start, CHECK_ALL)
            if code == BLANK and not is_whole_blank(data[at : at + 4], left):
                raise _wrong("blank", where, f"a blank of {left} bytes", data[at : at + BLANK_SIZE])
            if code == BLANK or (code == TORN and stop == len(data) and stop - at < limit):
                return at - start, stamp, code
            if code == BAD_MAGIC:
                _refuse_unknown_version(data, at, position - start)
            if code <= 0:
                raise _wrong(STOPS[code], where, "whole records", data[at : at + 16])
            if code + BLANK_SIZE > left:
                raise _wrong("record", where, f"a record that leaves room for a blank in {left} bytes", data[at : at + 4])
            stamp = max(stamp, reader.store_time(at))
            at += code
        return at - start, stamp, TORN

    def _write(self, position: int, records: bytes, stamp: int, is_closed: bool) -> None:
        """Write records, and a blank record if the file is closed.

        The first size field is written last, so that a concurrent reader sees all records or none.
        """
        appender = self._log.appender
        is_at_end = appender.position == self._log.file_size_bytes or appender.end_offset % self._log.file_size_bytes == 0
        if is_at_end and (appender.position != 0 or appender.base != self._log.queue.files[-1].start_offset):
            self._make_file()
        file = self._log.queue.find(position)
        assert file is not None, "the file was made"
        at = position - file.start_offset
        with appender.lock:
            file.allocate(min(at + len(records) + BLANK_SIZE, file.size_bytes))
            if records:
                file.view[at + 4 : at + len(records)] = records[4:]
                file.view[at : at + 4] = records[:4]
            end = at + len(records)
            if is_closed:
                file.view[end + 4 : end + BLANK_SIZE] = _BLANK_MAGIC
                file.view[end : end + 4] = (file.size_bytes - end).to_bytes(4, "big")
                end = file.size_bytes
            appender.attach(file.view, file.start_offset, end, stamp)

    def _begin(self, position: int) -> None:
        """Create the first file; drop one without records."""
        self._log.queue.truncate(-1)
        self._make_file(position)
        self._parts.dispatcher.begin_again(position)

    def _make_file(self, first: int = 0) -> None:
        """Create the next file, or an empty log's file at `first`, and let the appender continue there."""
        appender, made = self._log.appender, self._log.queue.next_file(first)
        with appender.lock:
            appender.attach(made.view, made.start_offset, 0)


def _refuse_unknown_version(data: bytes, at: int, base: int) -> None:
    """Raise `UnsupportedFormat` for a record of an unknown version."""
    view = memoryview(data + bytes(BLANK_SIZE))  # a record is always followed by space for a blank record
    if is_unknown_version(view, at, base):
        raise unsupported_record(unknown_version("log bytes", Location(view, at, base))._replace(offset=base + at))


def _wrong(reason: str, offset: int, expected: str, found: bytes) -> StoreCorrupt:
    return StoreCorrupt(reason, file="log bytes", offset=offset, expected=expected, found=found.hex(" "))
