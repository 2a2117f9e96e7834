"""Read and write `N.idx`, one segment of a version-1 queue index (docs/formats/rabbitmq-index.md)."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import SECTOR_SIZE

from .entry_cy import IndexEntry
from .layout import MSG_ID_SIZE, PUBLISH_BODY, SEGMENT_HEAD, SEGMENT_MARK, SEGMENT_PERSISTENT, SEGMENT_PUBLISH, SEGMENT_RELATIVE
from storebytes.finding import Finding
from .torn import is_torn_head

if not cython.compiled:
    from storebytes._bytes_cy import I64, Size, Source, get_i16, get_i32, get_i64, source_of_bytes, take_bytes

HEAD_SIZE: Size = SEGMENT_HEAD.size
EXPIRY_AT: Size = HEAD_SIZE + MSG_ID_SIZE
BODY_SIZE_AT: Size = EXPIRY_AT + 8
EMBEDDED_AT: Size = BODY_SIZE_AT + 4
TERM_AT: Size = HEAD_SIZE + PUBLISH_BODY.size
assert TERM_AT == EMBEDDED_AT + 4


def read_segment(
    data: bytes, first_seq_id: int, entries: int, file: str, problems: list[Finding]
) -> tuple[dict[int, IndexEntry], int]:
    """Return the entries by relative number, and where the valid bytes end.

    Only the order publish, delivered, acknowledged of one number is fixed.  Reading stops at the first bytes that are not an
    entry; what is wrong goes to `problems`.
    """
    found: dict[int, IndexEntry] = {}
    source: Source = source_of_bytes(data)
    first: I64 = first_seq_id
    limit: Size = entries
    at: Size = 0
    stop: Size = len(data)
    head: Size
    relative: Size
    embedded: Size
    entry: IndexEntry | None
    while stop - at >= HEAD_SIZE:
        if at % SECTOR_SIZE > SECTOR_SIZE - HEAD_SIZE and is_torn_head(data, at, HEAD_SIZE):
            break
        head = get_i16(source, at) & 0xFFFF
        relative = head & SEGMENT_RELATIVE
        if head & SEGMENT_PUBLISH:
            if stop - at < TERM_AT or relative >= limit:
                break
            embedded = get_i32(source, at + EMBEDDED_AT)
            if embedded < 0 or embedded > stop - at - TERM_AT:
                break
            if relative in found:
                problems.append(Finding(file, at, "published_twice", "one entry", f"relative number {relative}"))
            else:
                entry = IndexEntry.__new__(IndexEntry)
                entry.seq_id = first + relative
                entry.msg_id = take_bytes(source, at + HEAD_SIZE, MSG_ID_SIZE)
                entry.expiry_us = get_i64(source, at + EXPIRY_AT)
                entry.size = get_i32(source, at + BODY_SIZE_AT) & 0x7FFFFFFF
                entry.persistent = head & SEGMENT_PERSISTENT != 0
                entry.term = take_bytes(source, at + TERM_AT, embedded) if embedded else None
                entry.embedded = embedded != 0
                entry.file = file
                entry.offset = at
                entry.delivered = entry.acked = entry.in_store = entry.in_index = False
                found[relative] = entry
            at += TERM_AT + embedded
        elif head & SEGMENT_MARK:
            entry = found.get(relative)
            if entry is None:
                problems.append(Finding(file, at, "mark_without_publish", "a publish before", f"relative number {relative}"))
            elif not entry.delivered:
                entry.delivered = True
            elif not entry.acked:
                entry.acked = True
            else:
                problems.append(Finding(file, at, "mark_too_many", "two marks", f"relative number {relative}"))
            at += HEAD_SIZE
        else:
            break
    if at < stop and data.count(0, at) < stop - at:
        problems.append(Finding(file, at, "torn_segment", "an entry", f"{stop - at} other bytes"))
    return found, at


def write_segment(entries: dict[int, IndexEntry]) -> bytes:
    """Return the bytes of a segment with these entries by relative number: each publish, then its marks."""
    parts = []
    for relative, entry in sorted(entries.items()):
        term = entry.term or b""
        flags = SEGMENT_PUBLISH | (SEGMENT_PERSISTENT if entry.persistent else 0)
        parts.append(SEGMENT_HEAD.pack(flags | relative))
        parts.append(PUBLISH_BODY.pack(entry.msg_id, entry.expiry_us, entry.size, len(term)) + term)
        parts.append(SEGMENT_HEAD.pack(SEGMENT_MARK | relative) * (1 + entry.acked))
    return b"".join(parts)
