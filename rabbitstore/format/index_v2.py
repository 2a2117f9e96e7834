"""Read `N.qi` and `N.qs`, the version-2 queue index and its store (docs/formats/rabbitmq-index-v2.md#index-file)."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat

from .layout import (
    V2_CHUNK,
    V2_ENTRY,
    V2_HAS_CRC,
    V2_HEAD,
    V2_HEAD_SIZE,
    V2_INDEX_MAGIC,
    V2_LOCATION,
    V2_PERSISTENT,
    V2_PRESENT,
    V2_QUEUE_STORE,
    V2_SHARED_STORE,
    V2_VERSION,
)
from .problems import Problem


class V2Entry(NamedTuple):
    """An unacknowledged entry.  A message in the queue's own store has a `location` (offset, length) instead of a `msg_id`."""

    seq_id: int
    persistent: bool
    msg_id: bytes | None
    location: tuple[int, int] | None
    size: int
    expiry_us: int
    offset: int


def check_head(data: bytes, magic: int, file: str) -> None:
    """Raise `UnsupportedFormat` for another magic or version, `StoreCorrupt` for a head that nobody has written."""
    if len(data) < V2_HEAD_SIZE or not any(data[: V2_HEAD.size]):
        expected = (hex(magic), V2_VERSION)
        raise StoreCorrupt("wrong file head", file=file, offset=0, expected=expected, found=data[: V2_HEAD.size])
    found_magic, version = V2_HEAD.unpack_from(data)[:2]
    if found_magic != magic:
        raise UnsupportedFormat("magic", file=file, offset=0, found=hex(found_magic), supported=hex(magic))
    if version != V2_VERSION:
        raise UnsupportedFormat("index version", file=file, offset=4, found=version, supported=str(V2_VERSION))


def read_index(data: bytes, first_seq_id: int, file: str, problems: list[Problem]) -> list[V2Entry]:
    """Return the entries that are neither acknowledged nor empty, by sequence number."""
    check_head(data, V2_INDEX_MAGIC, file)
    found = []
    for at in range(V2_HEAD_SIZE, len(data) - V2_ENTRY.size + 1, V2_ENTRY.size):
        status, flags, _, kind, location, size, expiry_us = V2_ENTRY.unpack_from(data, at)
        if status == 0:
            continue
        seq_id = first_seq_id + (at - V2_HEAD_SIZE) // V2_ENTRY.size
        if status != V2_PRESENT or kind not in (V2_SHARED_STORE, V2_QUEUE_STORE):
            problems.append(Problem(file, at, "bad_index_entry", "status 1, location 1 or 2", f"{status}, {kind}"))
            continue
        chunk = V2_LOCATION.unpack(location)[:2] if kind == V2_QUEUE_STORE else None
        msg_id = location if chunk is None else None
        found.append(V2Entry(seq_id, bool(flags & V2_PERSISTENT), msg_id, chunk, size, expiry_us, at))
    return found


def read_chunk(data: bytes, offset: int, length: int, file: str) -> bytes:
    """Return the term at `offset` of a `.qs` file; raise `StoreCorrupt` when it is not there or fails its checksum."""
    start = offset + V2_CHUNK.size
    if offset < V2_HEAD_SIZE or start + length > len(data):
        raise StoreCorrupt("message outside its file", file=file, offset=offset, expected=f"{length} bytes", found=len(data))
    stored, flags, crc, _ = V2_CHUNK.unpack_from(data, offset)
    if stored != length:
        raise StoreCorrupt("wrong message length", file=file, offset=offset, expected=length, found=stored)
    term = data[start : start + length]
    if flags & V2_HAS_CRC and zlib.crc32(term) & 0xFFFF != crc:
        raise StoreCorrupt("message fails its checksum", file=file, offset=offset, expected=hex(crc), found="another")
    return term
