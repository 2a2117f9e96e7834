"""The ring: a mapped file of fixed size between the appender and the log files.

    0     header: magic, ring size, slack; two marks in turn, each a number, a physical offset and their CRC
    4096  the ring: the byte of physical offset p lies at p mod size
          slack: a record that crosses the ring's end continues here; the overhang is copied to the start later
          one block of scratch

Everything before the offset of the newest valid mark, which is the end of a record, is in the log files.  What a killed
process appended after it is still in the ring, record by record, each with its offset and checksums; `restore` writes it to
the files.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from typing import NamedTuple
from zlib import crc32

from commitlog import CHECK_ALL, CommitLog, MappedFile
from commitlog._record_cy import check
from commitlog.checks import BLANK
from commitlog.cursor import is_whole_blank
from commitlog.layout import BLANK_SIZE
from storageio import DIRECT_BLOCK, Disk, DiskError, File, Map, Mode, own_view

LOG = logging.getLogger(f"brokerstore.{__name__}")
RING_NAME = "ring"
MAGIC = b"BSRING01"
HEAD = struct.Struct("<8sQQ")
HEADER = struct.Struct("<QQ")
HEADER_CRC = struct.Struct("<I")
HEADERS_AT = (64, 128)


def whole_blocks(size_bytes: int) -> int:
    """Round a size up to whole blocks."""
    return -(-size_bytes // DIRECT_BLOCK) * DIRECT_BLOCK


class Ring:
    """The ring file and its map."""

    def __init__(self, disk: Disk, folder: str, size_bytes: int, slack_bytes: int) -> None:
        """Create the file; the records of an older one must already be restored."""
        self._disk = disk
        self.path = os.path.join(folder, RING_NAME)
        self.size_bytes = size_bytes
        self._number = 0
        disk.make_folder(folder)
        if disk.stat(self.path) is not None:
            disk.delete(self.path)
            disk.sync_folder(folder)
        total = DIRECT_BLOCK + size_bytes + slack_bytes + DIRECT_BLOCK
        with disk.open(self.path, Mode.CREATE) as file:
            file.allocate(total)
            self._map: Map = file.map(total, writable=True)
        self._map.populate(0, total)
        self._whole = self._map.view
        self._header = self._map.view[:DIRECT_BLOCK]
        self.scratch = self._map.view[total - DIRECT_BLOCK :]
        HEAD.pack_into(self._header, 0, MAGIC, size_bytes, slack_bytes)

    @property
    def view(self) -> memoryview:
        """The ring and the slack behind it; empty after `close`."""
        return own_view(self._whole)[DIRECT_BLOCK:-DIRECT_BLOCK]

    def note(self, offset: int) -> None:
        """Record that everything before `offset` is in the files.

        If the process is killed in the middle, the older mark stays valid.
        """
        self._number += 1
        text = HEADER.pack(self._number, offset)
        at = HEADERS_AT[self._number % 2]
        self._header[at : at + HEADER.size + HEADER_CRC.size] = text + HEADER_CRC.pack(crc32(text))

    def pieces(self, start: int, stop: int) -> list[memoryview]:
        """Return the bytes between two physical offsets, in one or two pieces."""
        first = start % self.size_bytes
        end = first + stop - start
        if end <= self.size_bytes:
            return [self.view[first:end]] if stop > start else []
        view = self.view
        return [view[first : self.size_bytes], view[: end - self.size_bytes]]

    def close(self, *, keep: bool) -> None:
        """Close the map; without `keep` delete the file, since everything is in the log."""
        self._whole = self.scratch = self._header = memoryview(b"")
        self._map.close()
        if not keep:
            self._disk.delete(self.path)


class _Left(NamedTuple):
    """The header of a ring file."""

    view: memoryview
    size_bytes: int
    slack_bytes: int
    offset: int  # everything before it is in the log files


def _read(file: File) -> _Left | None:
    """Parse the header; return None if the file is no ring."""
    total = file.size()
    if total < 4 * DIRECT_BLOCK:
        return None
    whole = file.map(total, writable=False).view
    magic, size_bytes, slack_bytes = HEAD.unpack_from(whole, 0)
    if magic != MAGIC or size_bytes + slack_bytes + 2 * DIRECT_BLOCK != total:
        return None
    headers = []
    for at in HEADERS_AT:
        text = bytes(whole[at : at + HEADER.size])
        if HEADER_CRC.unpack_from(whole, at + HEADER.size)[0] == crc32(text):
            headers.append(HEADER.unpack(text))
    if not headers:
        return None
    return _Left(whole[DIRECT_BLOCK : total - DIRECT_BLOCK], size_bytes, slack_bytes, max(headers)[1])


def restore(disk: Disk, folder: str, log: CommitLog, *, is_torn: bool) -> int:
    """Write to the log files what a killed process left in its ring, delete the ring, and return the number of records.

    `is_torn` is whether there is an abort file.  After a clean stop, even a broker's, the ring holds nothing new.
    """
    path = os.path.join(folder, RING_NAME)
    if disk.stat(path) is None:
        return 0
    restored = 0
    with disk.open(path, Mode.READ) as file:
        left = _read(file) if is_torn else None
        if left is not None:
            restored = _Restoring(log, left).run()
    if restored:
        LOG.warning("%d records that were only in the ring were brought to the log", restored)
    disk.delete(path)
    disk.sync_folder(folder)
    return restored


class _Restoring:
    """Writes the records of a ring that may not be in the log files."""

    def __init__(self, log: CommitLog, left: _Left) -> None:
        self._log = log
        self._left = left
        self._touched: dict[str, MappedFile] = {}

    def run(self) -> int:
        """Write records and return their number.

        Stops at the first position without a whole record of its offset, or where the log has another record.
        """
        count, at = 0, self._left.offset
        while (file := self._log.queue.find(at)) is not None:
            found = self._find(file, at)
            if found is None:
                break
            data, is_blank = found
            if not self._write(file, at - file.start_offset, data):
                break
            at = file.end_offset if is_blank else at + len(data)
            count += not is_blank
        for file in self._touched.values():
            file.flushed = 0
            file.flush()
        return count

    def _find(self, file: MappedFile, at: int) -> tuple[memoryview, bool] | None:
        """Return the record or blank at a physical offset, from the ring or from the slack behind it."""
        index = at % self._left.size_bytes
        for position in (index, index + self._left.size_bytes):
            stop = min(len(self._left.view), position + file.end_offset - at)
            if position >= stop:
                continue
            size = check(self._left.view, position, stop, at - position, CHECK_ALL)
            if size > 0:
                return self._left.view[position : position + size], False
            if size == BLANK and is_whole_blank(self._left.view[position:], file.end_offset - at):
                return self._left.view[position : position + BLANK_SIZE], True
        return None

    def _write(self, file: MappedFile, position: int, data: memoryview) -> bool:
        """Write a record.

        Returns False if the log has another whole record there, which another process wrote after the crash.
        """
        there = self._log.select(file.start_offset + position, len(data))
        if there == data:
            return True
        if self._log.check(file.start_offset + position) > 0:
            LOG.warning("the log has another record at %d than the ring: the ring is left", file.start_offset + position)
            return False
        file.write(position, data)
        self._touched[file.path] = file
        return True


def is_refusal(error: DiskError) -> bool:
    """Return whether the error means that the file system cannot bypass the page cache."""
    return error.errno in (errno.EINVAL, errno.EOPNOTSUPP)
