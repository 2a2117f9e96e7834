"""Read and write `N.qi` and `N.qs`, the version-2 queue index and its store (docs/formats/rabbitmq-index-v2.md#index-file)."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from storageio import StoreCorrupt, UnsupportedFormat
from storebytes.finding import Finding

from .layout import (
    MSG_ID_SIZE,
    V2_CHUNK,
    V2_ENTRY,
    V2_HAS_CRC,
    V2_HEAD,
    V2_HEAD_SIZE,
    V2_IN_MEMORY,
    V2_INDEX_MAGIC,
    V2_LOCATION,
    V2_PERSISTENT,
    V2_PRESENT,
    V2_QUEUE_STORE,
    V2_SEGMENT_ENTRIES,
    V2_SHARED_STORE,
    V2_VERSION,
)

NO_ENTRY = bytes(V2_ENTRY.size)
_FILE_SIZE = V2_HEAD_SIZE + V2_SEGMENT_ENTRIES * V2_ENTRY.size
_REST_AT = V2_HEAD.size - 16  # after magic and version
_NEXT_VERSIONS = (V2_VERSION + 1, V2_VERSION + 2)
OFFSET_MAX = 1 << 40
EXPIRY_MIN_US, EXPIRY_MAX_US = 1_262_304_000_000_000, 4_102_444_800_000_000  # the years 2010 to 2100


class V2Entry(NamedTuple):
    """An unacknowledged entry.  A message in the queue's own store has a `location` (offset, length) instead of a `msg_id`;
    one that was only in the server's memory has neither.
    """

    seq_id: int
    persistent: bool
    msg_id: bytes | None
    location: tuple[int, int] | None
    size: int
    expiry_us: int
    offset: int


def encode_head(magic: int, number: int) -> bytes:
    """Return the head of file `number`."""
    first = number * V2_SEGMENT_ENTRIES
    return V2_HEAD.pack(magic, V2_VERSION, first, first + V2_SEGMENT_ENTRIES).ljust(V2_HEAD_SIZE, b"\0")


def encode_entry(persistent: bool, msg_id: bytes, location: tuple[int, int] | None, size: int, expiry_us: int) -> bytes:
    """Return the entry of a message in the shared store, at a location in the queue's own, or, without an id, in memory."""
    flags = V2_PERSISTENT if persistent else 0
    if location is None:
        return V2_ENTRY.pack(V2_PRESENT, flags, 0, V2_SHARED_STORE if msg_id else V2_IN_MEMORY, msg_id, size, expiry_us)
    return V2_ENTRY.pack(V2_PRESENT, flags, 0, V2_QUEUE_STORE, V2_LOCATION.pack(*location, 0), size, expiry_us)


def encode_chunk(term: bytes) -> bytes:
    """Return a message of `N.qs` with its checksum."""
    return V2_CHUNK.pack(len(term), V2_HAS_CRC, zlib.crc32(term) & 0xFFFF, 0) + term


def is_unwritten(data: bytes) -> bool:
    """Return whether the index file was created, but its head never reached the disk: no entry can be in it."""
    return len(data) <= V2_HEAD_SIZE and not any(data)


def check_head(data: bytes, magic: int, number: int, file: str) -> None:
    """Raise `UnsupportedFormat` for another magic or version, `StoreCorrupt` for a damaged head.

    The head names its version twice over: by its magic, its version and the range of its numbers.  If one bit of one differs,
    it is damaged; version 3 or 4 is another format.
    """
    expected = encode_head(magic, number)
    if data[:V2_HEAD_SIZE] == expected:
        return
    damaged = StoreCorrupt(
        "wrong file head", file=file, offset=0, expected=expected[: V2_HEAD.size], found=data[: V2_HEAD.size]
    )
    if len(data) < V2_HEAD_SIZE or not any(data[: V2_HEAD.size]):
        raise damaged
    found_magic, version = V2_HEAD.unpack_from(data)[:2]
    has_rest = data[_REST_AT:V2_HEAD_SIZE] == expected[_REST_AT:]
    if found_magic != magic and not (has_rest and version == V2_VERSION and (found_magic ^ magic).bit_count() == 1):
        raise UnsupportedFormat("magic", file=file, offset=0, found=hex(found_magic), supported=hex(magic))
    is_bit = has_rest and found_magic == magic and (version ^ V2_VERSION).bit_count() == 1 and version not in _NEXT_VERSIONS
    if version != V2_VERSION and not is_bit:
        raise UnsupportedFormat("index version", file=file, offset=4, found=version, supported=str(V2_VERSION))
    raise damaged


def read_index(data: bytes, number: int, file: str, problems: list[Finding]) -> list[V2Entry]:
    """Return the entries that are neither acknowledged nor empty, by sequence number.

    A damaged entry is returned too unless only its status is set.  The server checks the unused bits of acknowledged ones too:
    after a kill it only clears their status.  Raise `UnsupportedFormat` for another magic or version.
    """
    try:
        check_head(data, V2_INDEX_MAGIC, number, file)
    except StoreCorrupt as error:
        problems.append(Finding(file, 0, "bad_index_head", str(error.expected), str(error.found)))
    stop = min(len(data), _FILE_SIZE)
    torn = (stop - V2_HEAD_SIZE) % V2_ENTRY.size
    if stop < len(data) or (torn and stop > V2_HEAD_SIZE):
        expected = f"{V2_HEAD_SIZE} bytes and at most {V2_SEGMENT_ENTRIES} whole entries"
        problems.append(Finding(file, stop - torn, "torn_index", expected, f"{len(data)} bytes"))
    found = []
    for at in range(V2_HEAD_SIZE, stop - V2_ENTRY.size + 1, V2_ENTRY.size):
        if data[at]:
            entry = _read_entry(data, at, number, file, problems)
            if entry is not None:
                found.append(entry)
        elif data[at + 1] > V2_PERSISTENT or data[at + 2]:
            problems.append(Finding(file, at, "bad_index_entry", "unused bits of zero", f"{data[at + 1]}, {data[at + 2]}"))
    return found


def cleared_entries(data: bytes, number: int) -> list[V2Entry]:
    """Return the persistent entries of which only the status is zero, by sequence number.

    An acknowledgement clears all of an entry, and a start after a kill only the status of one whose message it does not find.
    """
    statuses, flags = data[V2_HEAD_SIZE :: V2_ENTRY.size], data[V2_HEAD_SIZE + 1 :: V2_ENTRY.size]
    is_any = int.from_bytes(flags, "little") & ~int.from_bytes(statuses, "little")
    if not is_any or data[:V2_HEAD_SIZE] != encode_head(V2_INDEX_MAGIC, number):
        return []
    positions = (V2_HEAD_SIZE + position * V2_ENTRY.size for position in range(len(flags)))
    cleared = (at for at in positions if not data[at] and data[at + 1] == V2_PERSISTENT and at + V2_ENTRY.size <= len(data))
    found = (_read_entry(data, at, number, "", []) for at in cleared)
    return [entry for entry in found if entry is not None]


def _read_entry(data: bytes, at: int, number: int, file: str, problems: list[Finding]) -> V2Entry | None:
    status, flags, reserved, kind, location, size, expiry_us = V2_ENTRY.unpack_from(data, at)
    offset, length, zero = V2_LOCATION.unpack(location)
    is_right = status == V2_PRESENT and flags <= V2_PERSISTENT and not reserved and (kind != V2_QUEUE_STORE or not zero)
    shown = _kind_of(location)
    if not is_right or kind != shown:
        expected = f"{V2_PRESENT}, {flags & V2_PERSISTENT}, 0, {shown}"
        problems.append(Finding(file, at, "bad_index_entry", expected, f"{status}, {flags}, {reserved}, {kind}"))
        if not any(data[at + 1 : at + V2_ENTRY.size]):
            return None
    if expiry_us and not EXPIRY_MIN_US <= expiry_us < EXPIRY_MAX_US:
        problems.append(Finding(file, at, "bad_index_entry", "no expiry, or a time of this century", f"{expiry_us} us"))
        expiry_us = 0
    seq_id = number * V2_SEGMENT_ENTRIES + (at - V2_HEAD_SIZE) // V2_ENTRY.size
    return V2Entry(
        seq_id,
        bool(flags & V2_PERSISTENT),
        location if shown == V2_SHARED_STORE else None,
        (offset, length) if shown == V2_QUEUE_STORE else None,
        size,
        expiry_us,
        at,
    )


def _kind_of(location: bytes) -> int:
    """Return the kind of a location by its bytes: an id is random, a place in a file ends with zeros and begins with some."""
    offset, length, zero = V2_LOCATION.unpack(location)
    if not any(location):
        return V2_IN_MEMORY
    return V2_QUEUE_STORE if not zero or (V2_HEAD_SIZE <= offset < OFFSET_MAX and length) else V2_SHARED_STORE


def read_chunk(data: bytes | memoryview, offset: int, length: int, file: str) -> bytes:
    """Return the term at `offset` of a `.qs` file; raise `StoreCorrupt` when it is not there or fails its checksum."""
    start = offset + V2_CHUNK.size
    if offset < V2_HEAD_SIZE or start + length > len(data):
        raise StoreCorrupt("message outside its file", file=file, offset=offset, expected=f"{length} bytes", found=len(data))
    stored, flags, crc, _ = V2_CHUNK.unpack_from(data, offset)
    if stored != length:
        raise StoreCorrupt("wrong message length", file=file, offset=offset, expected=length, found=stored)
    term = bytes(data[start : start + length])
    if flags & V2_HAS_CRC and zlib.crc32(term) & 0xFFFF != crc:
        raise StoreCorrupt("message fails its checksum", file=file, offset=offset, expected=hex(crc), found="another")
    return term


assert len(encode_entry(True, bytes(MSG_ID_SIZE), None, 0, 0)) == V2_ENTRY.size
