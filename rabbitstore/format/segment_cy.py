"""Read and write `N.idx`, one segment of a version-1 queue index (docs/formats/rabbitmq-index.md)."""

from __future__ import annotations

from array import array

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
    from storebytes._bytes_cy import I64, I64s, Size, Source, get_i16, get_i32, get_i64, i64s_of, source_of_bytes, take_bytes

HEAD_SIZE: Size = SEGMENT_HEAD.size
EXPIRY_AT: Size = HEAD_SIZE + MSG_ID_SIZE
BODY_SIZE_AT: Size = EXPIRY_AT + 8
EMBEDDED_AT: Size = BODY_SIZE_AT + 4
PUBLISH_SIZE: Size = HEAD_SIZE + PUBLISH_BODY.size
# columns of a row
STATE: Size = 0
SEQ_ID: Size = 1
EXPIRY: Size = 2
BODY_SIZE: Size = 3
POSITION: Size = 4
TERM: Size = 5
TERM_SIZE: Size = 6
STRIDE: Size = 7
# bits of a state
PERSISTENT: Size = 1
DELIVERED: Size = 2
ACKED: Size = 4


def read_segment(
    data: bytes, first_seq_id: int, entries: int, file: str, problems: list[Finding]
) -> tuple[dict[int, IndexEntry], int]:
    """Return the entries by relative number, and where the valid bytes end.

    Only the order publish, delivered, acknowledged of one number is fixed.  Reading stops at the first bytes that are not an
    entry; what is wrong goes to `problems`.
    """
    held: memoryview = memoryview(array("q", bytes(8 * entries * STRIDE)))
    rows: I64s = i64s_of(held)
    source: Source = source_of_bytes(data)
    first: I64 = first_seq_id
    limit: Size = entries
    stop: Size = len(data)
    whole: Size = -1  # where an entry is that only looks torn
    at: Size = 0
    head: Size
    relative: Size
    row: Size
    end: Size
    while True:
        at = scan_segment(source, at, stop, first, limit, rows, whole)
        if stop - at < HEAD_SIZE or is_torn_head(data, at, HEAD_SIZE):
            break
        head = get_i16(source, at) & 0xFFFF
        relative = head & SEGMENT_RELATIVE
        row = relative * STRIDE
        end = at + HEAD_SIZE
        kind = expected = ""
        if head & SEGMENT_PUBLISH:
            end = after_publish(source, at, stop)
            if end < 0 or relative >= limit:
                break
            if rows[row + SEQ_ID]:
                kind, expected = "published_twice", "one entry"
        elif not head & SEGMENT_MARK:
            break
        elif relative >= limit or not rows[row + SEQ_ID]:
            kind, expected = "mark_without_publish", "a publish before"
        elif rows[row + STATE] & ACKED:
            kind, expected = "mark_too_many", "two marks"
        if kind:
            problems.append(Finding(file, at, kind, expected, f"relative number {relative}"))
            at = end
        else:
            whole = at
    if at < stop and data.count(0, at) < stop - at:
        problems.append(Finding(file, at, "torn_segment", "an entry", f"{stop - at} other bytes"))
    found: dict[int, IndexEntry] = {}
    for row in range(close_up(rows, limit)):
        entry = entry_of(source, rows, row, file)
        entry.msg_id = take_bytes(source, entry.offset + HEAD_SIZE, MSG_ID_SIZE)
        found[entry.seq_id - first] = entry
    return found, at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def scan_segment(source: Source, at: Size, stop: Size, first: I64, capacity: Size, rows: I64s, whole: Size) -> Size:
    """Fill the rows of entries from `at` on; return where the first one is that is not as expected, or looks torn.

    The entry at `whole` is not torn.  A row is that of a relative number; its sequence number is one higher, so that it is not
    zero, until `close_up`.
    """
    head: Size
    row: Size
    end: Size
    while stop - at >= HEAD_SIZE:
        if at % SECTOR_SIZE > SECTOR_SIZE - HEAD_SIZE and source[at + 1] == 0 and at != whole:
            break
        head = get_i16(source, at) & 0xFFFF
        row = (head & SEGMENT_RELATIVE) * STRIDE
        if head & SEGMENT_RELATIVE >= capacity:
            break
        if head & SEGMENT_PUBLISH:
            end = after_publish(source, at, stop)
            if end < 0 or rows[row + SEQ_ID]:
                break
            rows[row + STATE] = PERSISTENT if head & SEGMENT_PERSISTENT else 0
            rows[row + SEQ_ID] = 1 + first + (head & SEGMENT_RELATIVE)
            rows[row + EXPIRY] = get_i64(source, at + EXPIRY_AT)
            rows[row + BODY_SIZE] = get_i32(source, at + BODY_SIZE_AT) & 0x7FFFFFFF
            rows[row + POSITION] = at
            rows[row + TERM] = at + PUBLISH_SIZE
            rows[row + TERM_SIZE] = end - at - PUBLISH_SIZE
            at = end
        elif head & SEGMENT_MARK and rows[row + SEQ_ID] and not rows[row + STATE] & ACKED:
            rows[row + STATE] += ACKED if rows[row + STATE] & DELIVERED else DELIVERED
            at += HEAD_SIZE
        else:
            break
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def after_publish(source: Source, at: Size, stop: Size) -> Size:
    """Return where the publish at `at` ends, with its message; -1 if it does not fit."""
    embedded: Size
    if stop - at < PUBLISH_SIZE:
        return -1
    embedded = get_i32(source, at + EMBEDDED_AT)
    return at + PUBLISH_SIZE + embedded if 0 <= embedded <= stop - at - PUBLISH_SIZE else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def close_up(rows: I64s, capacity: Size) -> Size:
    """Remove rows without an entry, and return how many are left."""
    count: Size = 0
    position: Size
    column: Size
    for position in range(capacity):
        if rows[position * STRIDE + SEQ_ID]:
            for column in range(STRIDE):
                rows[count * STRIDE + column] = rows[position * STRIDE + column]
            rows[count * STRIDE + SEQ_ID] -= 1
            count += 1
    return count


@cython.cfunc
def entry_of(source: Source, rows: I64s, row: Size, file: str) -> IndexEntry:
    """Return the entry of a row, without an id; `source` is what has its message."""
    at: Size = row * STRIDE
    entry: IndexEntry = IndexEntry.__new__(IndexEntry)
    entry.seq_id = rows[at + SEQ_ID]
    entry.msg_id = b""
    entry.expiry_us = rows[at + EXPIRY]
    entry.size = rows[at + BODY_SIZE]
    entry.persistent = rows[at + STATE] & PERSISTENT != 0
    entry.delivered = rows[at + STATE] & DELIVERED != 0
    entry.acked = rows[at + STATE] & ACKED != 0
    entry.term = take_bytes(source, rows[at + TERM], rows[at + TERM_SIZE]) if rows[at + TERM_SIZE] else None
    entry.embedded = rows[at + TERM_SIZE] != 0
    entry.file = file
    entry.offset = rows[at + POSITION]
    entry.in_store = entry.in_index = False
    return entry


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
