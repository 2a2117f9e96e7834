"""Read a version-2 segment in which every byte is as expected, in one loop (docs/formats/rabbitmq-index-v2.md#index-file).

Anything else is left to `QueueFolder.segment_v2`, which knows what to do about it.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ..format.entry_cy import IndexEntry
from ..format.index_v2 import EXPIRY_MAX_US, EXPIRY_MIN_US, OFFSET_MAX, encode_head
from ..format.layout import (
    V2_CHUNK, V2_ENTRY, V2_HAS_CRC, V2_HEAD_SIZE, V2_INDEX_MAGIC, V2_PERSISTENT, V2_PRESENT, V2_QUEUE_STORE,
    V2_SEGMENT_ENTRIES, V2_STORE_MAGIC,
)  # fmt: skip

if not cython.compiled:
    from storebytes._bytes_cy import I64, Size, Source, get_i16, get_i32, get_i64, source_of_bytes, take_bytes
    from storebytes._crc_cy import crc32

ENTRY: Size = V2_ENTRY.size
CHUNK: Size = V2_CHUNK.size
HEAD: Size = V2_HEAD_SIZE
ENTRIES_MAX: Size = V2_SEGMENT_ENTRIES
EXPIRY_MIN: I64 = EXPIRY_MIN_US
EXPIRY_MAX: I64 = EXPIRY_MAX_US
PLACE_MAX: I64 = OFFSET_MAX
OWN_MARK: Size = V2_PRESENT << 24 | V2_PERSISTENT << 16 | V2_QUEUE_STORE  # status, flags, 0, kind of location
CHUNK_MARK: Size = V2_HAS_CRC
FLAGS_MAX: Size = V2_PERSISTENT


def read_intact(index: bytes, stored: bytes, number: int, file: str) -> list[IndexEntry] | None:
    """Return the entries of segment `number`, whose `.qs` file is `file`.

    None unless all of them are persistent and have whole messages in `stored`.
    """
    if index[:HEAD] != encode_head(V2_INDEX_MAGIC, number) or stored[:HEAD] != encode_head(V2_STORE_MAGIC, number):
        return None
    source: Source = source_of_bytes(index)
    terms: Source = source_of_bytes(stored)
    found: list[IndexEntry] = []
    stop: Size = len(index)
    end: Size = len(stored)
    first: I64 = number * V2_SEGMENT_ENTRIES
    at: Size = HEAD
    place: I64
    size: Size
    expiry: I64
    start: Size
    entry: IndexEntry
    if (stop - HEAD) % ENTRY or (stop - HEAD) // ENTRY > ENTRIES_MAX:
        return None
    while at < stop:
        if source[at]:
            place = get_i64(source, at + 4)
            size = get_i32(source, at + 12)
            expiry = get_i64(source, at + 24)
            if get_i32(source, at) != OWN_MARK or get_i32(source, at + 16) or size <= 0 or not HEAD <= place < PLACE_MAX:
                return None
            if expiry and not EXPIRY_MIN <= expiry < EXPIRY_MAX:
                return None
            start = place + CHUNK
            if start > end or size > end - start or get_i32(terms, place) != size:
                return None
            if terms[place + 4] != CHUNK_MARK or terms[place + 7]:
                return None
            if (crc32(terms, start, size) ^ get_i16(terms, place + 5)) & 0xFFFF:
                return None
            entry = IndexEntry.__new__(IndexEntry)
            entry.seq_id = first + (at - HEAD) // ENTRY
            entry.msg_id = b""
            entry.expiry_us = expiry
            entry.size = get_i32(source, at + 20)
            if entry.size < 0:
                return None
            entry.persistent = entry.embedded = entry.delivered = True
            entry.acked = entry.in_store = entry.in_index = False
            entry.term = take_bytes(terms, start, size)
            entry.file = file
            entry.offset = place
            found.append(entry)
        elif source[at + 1] > FLAGS_MAX or source[at + 2]:
            return None
        at += ENTRY
    return found
