"""Find the messages of version-2 index entries in `N.qs`, past damage in either file.

A message has a checksum, an entry has none.  So an entry that points beside a message is damaged; its message is the one
that no other entry has and whose location differs in one byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat

from ..format.container import START as CONTAINER_START
from ..format.content import decode_content
from ..format.index_v2 import V2Entry, read_chunk
from ..format.layout import V2_CHUNK, V2_HAS_CRC, V2_HEAD_SIZE, V2_LOCATION
from ..format.message import Content

_SEARCH_FACTOR = 16  # bytes of damaged messages that are checked, in multiples of the file's size
_SEARCHES_MAX = 256  # damaged entries of one file whose message is searched


class StoredChunk(NamedTuple):
    """A message in `N.qs` by its location; `is_damaged` when the bytes before it are not as they should be."""

    offset: int
    length: int
    term: bytes
    is_damaged: bool = False


class QueueStore:
    """The bytes of one `N.qs`."""

    def __init__(self, data: bytes, rows: Iterable[V2Entry], file: str) -> None:
        """`rows` are the entries of the index file of the same number."""
        self.data = data
        self.file = file
        self._searches = 0
        self._rows = list(rows)

    def is_unwritten(self, row: V2Entry) -> bool:
        """Return whether the server was killed after it wrote an index entry and before it wrote the message.

        It writes whole messages in the order of their entries, so the file ends with the message of an entry before this one.
        A file that is cut elsewhere has lost messages.
        """
        assert row.location is not None
        return row.location[0] >= len(self.data) and row.seq_id > self._last_written and self._ends_whole

    @cached_property
    def _last_written(self) -> int:
        """The last entry whose message is in the file."""
        return max(
            (row.seq_id for row in self._rows if row.location is not None and row.location[0] < len(self.data)), default=-1
        )

    @cached_property
    def _ends_whole(self) -> bool:
        at = V2_HEAD_SIZE
        if not any(self.data[:V2_HEAD_SIZE]):
            return False
        while at + V2_CHUNK.size < len(self.data):
            at += V2_CHUNK.size + int.from_bytes(self.data[at : at + 4], "big")
        return at == len(self.data)

    def find(self, row: V2Entry) -> StoredChunk:
        """Return the message of an entry; raise `StoreCorrupt` when it is not there."""
        assert row.location is not None
        offset, length = row.location
        try:
            term = read_chunk(self.data, offset, length, self.file)
        except StoreCorrupt:
            found = self._behind_damaged_head(offset, length) or self._elsewhere(row)
            if found is None:
                raise
            return found
        _length, flags, _crc, reserved = V2_CHUNK.unpack_from(self.data, offset)
        return StoredChunk(offset, length, term, flags > V2_HAS_CRC or reserved != 0)

    def _behind_damaged_head(self, offset: int, length: int) -> StoredChunk | None:
        """Return the message when only the length, the flags or one bit of the checksum before it are damaged."""
        start = offset + V2_CHUNK.size
        if offset < V2_HEAD_SIZE or start + length > len(self.data):
            return None
        crc = V2_CHUNK.unpack_from(self.data, offset)[2]
        term = self.data[start : start + length]
        is_same = ((zlib.crc32(term) & 0xFFFF) ^ crc).bit_count() <= 1
        return StoredChunk(offset, length, term, True) if is_same and try_content(term) is not None else None

    def _elsewhere(self, row: V2Entry) -> StoredChunk | None:
        """Return the only message without an entry whose location differs in one byte.

        Messages are in the order of their entries.  So one before that of an earlier entry is an acknowledged message.
        """
        self._searches += 1
        if self._searches > _SEARCHES_MAX or row.location is None:
            return None
        known = V2_LOCATION.pack(*row.location, 0)
        low = max((at for seq_id, at in self._located if seq_id < row.seq_id), default=0)
        high = min((at for seq_id, at in self._located if seq_id > row.seq_id), default=len(self.data))
        between = (one for one in self.free if low < one.offset < high)
        found = [one for one in between if _is_near(known, V2_LOCATION.pack(one.offset, one.length, 0))]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _located(self) -> list[tuple[int, int]]:
        """Number and offset of each entry whose message is where it says."""
        located = [(row.seq_id, row.location) for row in self._rows if row.location is not None]
        return [(seq_id, location[0]) for seq_id, location in located if self._is_whole(*location)]

    @cached_property
    def free(self) -> list[StoredChunk]:
        """The whole messages that no entry refers to: acknowledged ones, and those of damaged entries."""
        taken = {offset for _seq_id, offset in self._located}
        return [one for one in self.chunks if one.offset not in taken]

    def _is_whole(self, offset: int, length: int) -> bool:
        try:
            read_chunk(self.data, offset, length, self.file)
        except StoreCorrupt:
            return False
        return True

    @cached_property
    def chunks(self) -> list[StoredChunk]:
        """All whole messages with a checksum, in the order of the file; damaged bytes are skipped."""
        found, at, budget = [], V2_HEAD_SIZE, _SEARCH_FACTOR * len(self.data)
        while at + V2_CHUNK.size < len(self.data) and budget > 0:
            length, flags = V2_CHUNK.unpack_from(self.data, at)[:2]
            if flags == V2_HAS_CRC and length and self._is_whole(at, length):
                start = at + V2_CHUNK.size
                found.append(StoredChunk(at, length, self.data[start : start + length]))
                at = start + length
                continue
            budget -= min(length, len(self.data))
            after = self.data.find(CONTAINER_START, at + V2_CHUNK.size + 1)
            if after < 0:
                break
            at = max(at + 1, after - V2_CHUNK.size)
        return found


def try_content(term: bytes) -> Content | None:
    """Decode a message; return None for a damaged or unsupported one."""
    try:
        return decode_content(term)
    except (StoreCorrupt, UnsupportedFormat):
        return None


def _is_near(left: bytes, right: bytes) -> bool:
    return sum(one != other for one, other in zip(left, right, strict=True)) == 1


def body_size(term: bytes) -> int:
    """Return the size of a message's body; 0 for a damaged one."""
    content = try_content(term)
    return 0 if content is None else len(content.body)


def is_persistent(term: bytes) -> bool:
    """Return whether a message survives a restart."""
    content = try_content(term)
    return content is not None and content.persistent
