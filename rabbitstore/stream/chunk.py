"""Decode chunks: the head, and the entries of a user chunk (docs/formats/rabbitmq-streams.md#segment)."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat

from . import layout
from .compression import unpack
from .records_cy import StreamRecord, single_records

View = bytes | memoryview


class Chunk(NamedTuple):
    """The head of a chunk and the positions of its parts in the segment."""

    position: int
    kind: int
    entries: int
    records: int
    timestamp_ms: int
    epoch: int
    chunk_id: int
    crc: int
    data_at: int
    trailer_at: int
    stop: int

    @property
    def next_id(self) -> int:
        """The id of the chunk that follows."""
        return self.chunk_id + self.records


def check_file_head(data: View, magic: bytes, file: str) -> None:
    """Raise `StoreCorrupt` for another magic, `UnsupportedFormat` for another version."""
    if len(data) < layout.FILE_HEAD_SIZE:
        raise StoreCorrupt("file too short", file=file, offset=0, expected=f"{layout.FILE_HEAD_SIZE} bytes", found=len(data))
    found, version = layout.FILE_HEAD.unpack_from(data)
    if found != magic:
        raise StoreCorrupt("wrong magic", file=file, offset=0, expected=magic, found=found)
    if version != layout.FILE_VERSION:
        raise UnsupportedFormat("version", file=file, offset=4, found=version, supported=str(layout.FILE_VERSION))


def read_head(view: View, position: int, file: str) -> Chunk:
    """Decode the head at `position`; raise `StoreCorrupt` when it is damaged or the chunk does not fit in the segment."""
    left = len(view) - position
    if left < layout.CHUNK_HEAD.size:
        raise _bad("chunk is cut", file, position, f"{layout.CHUNK_HEAD.size} bytes", f"{left} bytes")
    head = layout.CHUNK_HEAD.unpack_from(view, position)
    first, kind, entries, records, timestamp, epoch, chunk_id, crc, data_size, trailer_size, filter_size, zeros = head
    if first >> 4 != layout.CHUNK_MAGIC or any(zeros) or 0 < filter_size < layout.FILTER_SIZE_MIN:
        raise _bad("wrong head of a chunk", file, position, "magic 5", bytes(view[position : position + 48]).hex())
    if first & 15 != layout.CHUNK_VERSION:
        raise UnsupportedFormat(
            "chunk version", file=file, offset=position, found=first & 15, supported=str(layout.CHUNK_VERSION)
        )
    if kind > layout.TRACKING_SNAPSHOT:
        raise UnsupportedFormat("chunk type", file=file, offset=position + 1, found=kind, supported="0, 1, 2")
    if not 0 < entries <= records or entries * layout.ENTRY_HEAD.size > data_size:
        raise _bad("wrong counts in a chunk", file, position + 2, f"entries in {data_size} bytes", f"{entries}, {records}")
    if chunk_id > layout.OFFSET_MAX:
        raise _bad("wrong chunk id", file, position + 24, f"at most {layout.OFFSET_MAX}", chunk_id)
    data_at = position + layout.CHUNK_HEAD.size + filter_size
    stop = data_at + data_size + trailer_size
    if stop > len(view):
        raise _bad("chunk is cut", file, position, f"end at {stop}", f"file ends at {len(view)}")
    return Chunk(position, kind, entries, records, timestamp, epoch, chunk_id, crc, data_at, data_at + data_size, stop)


def check_crc(view: View, chunk: Chunk, file: str) -> None:
    """Raise `StoreCorrupt` when the data section does not have the chunk's CRC."""
    found = zlib.crc32(view[chunk.data_at : chunk.trailer_at])
    if found != chunk.crc:
        raise _bad("wrong CRC of a chunk", file, chunk.position + 32, f"{chunk.crc:08x}", f"{found:08x}")


def read_records(view: View, chunk: Chunk, file: str) -> list[StreamRecord]:
    """Return every message of a user chunk; raise `StoreCorrupt` unless entries and records agree with the head."""
    if chunk.entries == chunk.records:
        single = single_records(memoryview(view), chunk.data_at, chunk.trailer_at, chunk.entries, chunk.chunk_id)
        if single is not None:
            return single
    data = bytes(view[chunk.data_at : chunk.trailer_at])
    found: list[StreamRecord] = []
    at = 0
    for _ in range(chunk.entries):
        if at >= len(data):
            break
        if data[at] & layout.IS_SUB_BATCH:
            at = _read_sub_batch(data, at, chunk, found, file)
        else:
            start, size = _sized(data, at, file, chunk.data_at)
            found.append(StreamRecord(chunk.chunk_id + len(found), chunk.data_at + at, data[start : start + size]))
            at = start + size
    if at != len(data) or len(found) != chunk.records:
        expected = f"{chunk.records} records in {len(data)} bytes"
        raise _bad("wrong counts in a chunk", file, chunk.data_at, expected, f"{len(found)} records in {at} bytes")
    return found


def _read_sub_batch(data: bytes, at: int, chunk: Chunk, found: list[StreamRecord], file: str) -> int:
    position = chunk.data_at + at
    start = at + layout.SUB_BATCH.size
    if start > len(data):
        raise _bad("entry is cut", file, position, f"{layout.SUB_BATCH.size} bytes", f"{len(data) - at} bytes")
    head, records, unpacked_size, size = layout.SUB_BATCH.unpack_from(data, at)
    if head & 15 or size > len(data) - start or len(found) + records > chunk.records:
        raise _bad("wrong head of a sub-batch", file, position, f"at most {len(data) - start} bytes", f"{records}, {size}")
    body = unpack(head >> 4 & 7, data[start : start + size], unpacked_size, file=file, base=position)
    inner = 0
    for _ in range(records):
        begin, length = _sized(body, inner, file, position)
        found.append(StreamRecord(chunk.chunk_id + len(found), position, body[begin : begin + length]))
        inner = begin + length
    if inner != len(body):
        raise _bad("sub-batch of another size", file, position, f"{inner} bytes", f"{len(body)} bytes")
    return start + int(size)


def _sized(data: bytes, at: int, file: str, base: int) -> tuple[int, int]:
    """Return where an entry's body starts, and its size."""
    start = at + layout.ENTRY_HEAD.size
    size = int(layout.ENTRY_HEAD.unpack_from(data, at)[0]) if start <= len(data) else 0
    if start + size > len(data):
        raise _bad("entry is cut", file, base + at, f"{size} bytes", f"{max(len(data) - start, 0)} bytes")
    return start, size


def _bad(reason: str, file: str, offset: int, expected: object, found: object) -> StoreCorrupt:
    return StoreCorrupt(reason, file=file, offset=offset, expected=expected, found=found)
