"""Read a segment of a queue index in which every byte is as expected, without the GIL.

Formats: docs/formats/rabbitmq-index.md, docs/formats/rabbitmq-index-v2.md#index-file.  Any other segment is left to
`IndexV1.segment` and `IndexV2.segment`, which know what to do about it.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ..format.content_cy import ContentParts
from ..format.entry_cy import IndexEntry
from ..format.index_v2 import EXPIRY_MAX_US, EXPIRY_MIN_US, OFFSET_MAX, encode_head
from ..format.layout import (
    MSG_ID_SIZE, V2_CHUNK, V2_ENTRY, V2_HAS_CRC, V2_HEAD_SIZE, V2_INDEX_MAGIC, V2_PERSISTENT, V2_PRESENT, V2_QUEUE_STORE,
    V2_SEGMENT_ENTRIES, V2_STORE_MAGIC,
)  # fmt: skip
from .json_cy import LineWriter

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64, Bool, I32s, I64s, Size, Source, Target, get_i16, get_i32, get_i64, i32s_of, i64s_of, is_same_at, put_bytes,
        put_hex, source_of, source_of_bytes, take_bytes, target_of,
    )  # fmt: skip
    from storebytes._crc_cy import crc32

    from ..format.content_cy import locate, take_binary, take_keys
    from ..format.segment_cy import (
        ACKED, BODY_SIZE, DELIVERED, EXPIRY, HEAD_SIZE, PERSISTENT, POSITION, SEQ_ID, STATE, STRIDE, TERM, TERM_SIZE, close_up,
        entry_of, scan_segment,
    )  # fmt: skip

LIST: Size = 108
LIST_HEAD: Size = 5  # tag and 32-bit length of a list or a binary
ENTRY: Size = V2_ENTRY.size
CHUNK: Size = V2_CHUNK.size
V2_HEAD: Size = V2_HEAD_SIZE
V2_ENTRIES: Size = V2_SEGMENT_ENTRIES
EXPIRY_MIN: I64 = EXPIRY_MIN_US
EXPIRY_MAX: I64 = EXPIRY_MAX_US
POSITION_MAX: I64 = OFFSET_MAX
OWN_MARK: Size = V2_PRESENT << 24 | V2_PERSISTENT << 16 | V2_QUEUE_STORE  # status, flags, 0, kind of location
CHUNK_MARK: Size = V2_HAS_CRC
FLAGS_MAX: Size = V2_PERSISTENT
# counts
MESSAGES: Size = 0
DURABLE: Size = 1
EXPIRING: Size = 2
BYTES: Size = 3
LARGEST: Size = 4
CONTAINERS: Size = 5
LOWEST: Size = 6
HIGHEST: Size = 7
STEPS: Size = 8
NUMBERS: Size = 7  # columns of numbers, and in all
COLUMNS: Size = 10
Route = tuple[bytes | None, bytes, tuple[str, ...]]
SIZE_STEPS = (128, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576)
STEP_COUNT: Size = len(SIZE_STEPS)
_steps_held = memoryview(array("q", SIZE_STEPS))
_steps: I64s = i64s_of(_steps_held)


class SegmentColumns(NamedTuple):
    """Messages of a segment, column by column.

    `numbers` has sequence number, expiry, size, offset, 1 for a persistent message, and its row in `routes` and in `blocks`,
    the different routes (virtual host if the message has it, exchange, routing keys) and property blocks.  `ids` are
    hexadecimal digits; body k lies between two numbers of `begins`, k and k + 1, in `bodies`.
    """

    messages: int
    file: str
    numbers: list[memoryview]
    routes: list[Route]
    blocks: list[bytes]
    ids: bytearray
    begins: memoryview
    bodies: bytearray


class IntactSegment:
    """The entries of a segment with nothing to correct or to report, by sequence number.

    `count_messages` sets the numbers.  `lowest`, `highest` (sequence numbers) and `containers` are of all entries, the others
    of those that are not acknowledged.  `size_bytes` and `largest` are of bodies; `sizes` counts bodies up to each of
    `SIZE_STEPS`, and above the last.
    """

    __slots__ = (
        "_data", "_file", "_held", "_is_v2", "_rows", "containers", "count", "expiring", "highest", "largest", "lowest",
        "messages", "persistent", "size_bytes", "sizes",
    )  # fmt: skip

    def __init__(self, data: memoryview, file: str, capacity: int, is_v2: bool) -> None:
        """`data` are the bytes of `file`, which has the messages; there is room for as many entries."""
        self._data: memoryview = data
        self._file = file
        self._is_v2 = is_v2
        self._held: memoryview = memoryview(array("q", bytes(8 * capacity * STRIDE)))
        self._rows: I64s = i64s_of(self._held)
        self.count = 0
        self.messages = self.persistent = self.expiring = self.size_bytes = self.largest = self.containers = 0
        self.lowest = self.highest = -1
        self.sizes: tuple[int, ...] = ()

    def entries(self) -> list[IndexEntry]:
        """Return the entries, acknowledged ones too."""
        return [self.entry(row) for row in range(self.count)]

    def entry(self, row: Size) -> IndexEntry:
        """Return the entry of a row."""
        source: Source = source_of(self._data)
        entry: IndexEntry = entry_of(source, self._rows, row, self._file)
        if not self._is_v2:
            entry.msg_id = take_bytes(source, entry.offset + HEAD_SIZE, MSG_ID_SIZE)
        return entry

    def write_lines(self, lines: LineWriter, row: Size, owner: Any, bound: I64, capacity: Size) -> Size:
        """Write the lines of unacknowledged messages from a row on, up to one left to the caller or to `capacity` bytes.

        `owner` is the queue and its virtual host; messages before the sequence number `bound` are redelivered.  Return the row
        reached.
        """
        source: Source = source_of(self._data)
        rows: I64s = self._rows
        parts: ContentParts = ContentParts()
        last: ContentParts = ContentParts()
        is_first: Bool = True
        at: Size
        start: Size
        queue, vhost = owner
        lines.file = lines.text(self._file, 1)
        lines.more = b""
        lines.is_acked = False
        lines.is_embedded = True
        while row < self.count and lines.size < capacity:
            at = row * STRIDE
            start = rows[at + TERM]
            if not rows[at + STATE] & ACKED:
                if not rows[at + TERM_SIZE] or not locate(parts, source, start, start + rows[at + TERM_SIZE]):
                    break
                if source[parts.body_at] != LIST or get_i32(source, parts.body_at + 1) != 1:
                    break
                if is_first or not _has_same_route(source, parts, last):
                    name = vhost if parts.is_container else take_binary(source, parts.vhost_at).decode("utf-8", "replace")
                    lines.head = lines.text((queue, name), 0)
                    exchange = take_binary(source, parts.exchange_at).decode("utf-8", "replace")
                    lines.route = lines.text((exchange, take_keys(source, parts.keys_at)), 2)
                    is_first = False
                if not self._write_line(lines, source, at, parts, rows[at + SEQ_ID] < bound):
                    break
                parts, last = last, parts
            row += 1
        return row

    def _write_line(self, lines: LineWriter, source: Source, at: Size, parts: ContentParts, is_redelivered: Bool) -> Bool:
        """Write one line, whose route is set; return false for properties that the kernel does not write."""
        rows: I64s = self._rows
        body_at: Size = parts.body_at + LIST_HEAD
        lines.is_redelivered = is_redelivered
        lines.source = source
        lines.at = parts.block_at + LIST_HEAD
        lines.stop = lines.at + get_i32(source, parts.block_at + 1)
        return lines.line(
            rows[at + SEQ_ID], take_bytes(source, parts.id_at, MSG_ID_SIZE), rows[at + STATE] & PERSISTENT, rows[at + EXPIRY],
            rows[at + BODY_SIZE], rows[at + POSITION], source, body_at + LIST_HEAD, get_i32(source, body_at + 1),
        )  # fmt: skip

    def columns(self) -> SegmentColumns | None:
        """Return the unacknowledged messages as columns; None when one is in a form that is left to the caller."""
        capacity: Size = self.count
        if capacity == 0:
            return None
        held: memoryview = memoryview(array("q", bytes(8 * capacity * COLUMNS)))
        out: I64s = i64s_of(held)
        source: Source = source_of(self._data)
        rows: I64s = self._rows
        parts: ContentParts = ContentParts()
        last: ContentParts = ContentParts()
        routes: list[Route] = []
        blocks: list[bytes] = []
        made: Size = 0
        total: Size = 0
        row: Size
        at: Size
        size: Size
        for row in range(capacity):
            at = row * STRIDE
            if rows[at + STATE] & ACKED:
                continue
            if not rows[at + TERM_SIZE] or not locate(parts, source, rows[at + TERM], rows[at + TERM] + rows[at + TERM_SIZE]):
                return None
            size = 0
            if source[parts.body_at] == LIST:
                if get_i32(source, parts.body_at + 1) != 1:
                    return None
                size = get_i32(source, parts.body_at + LIST_HEAD + 1)
            if made == 0 or not _has_same_route(source, parts, last):
                vhost = None if parts.is_container else take_binary(source, parts.vhost_at)
                routes.append((vhost, take_binary(source, parts.exchange_at), take_keys(source, parts.keys_at)))
            if made == 0 or not _is_same_binary(source, parts.block_at, last.block_at):
                blocks.append(take_binary(source, parts.block_at))
            out[made] = rows[at + SEQ_ID]
            out[capacity + made] = rows[at + EXPIRY]
            out[2 * capacity + made] = rows[at + BODY_SIZE]
            out[3 * capacity + made] = rows[at + POSITION]
            out[4 * capacity + made] = rows[at + STATE] & PERSISTENT
            out[5 * capacity + made] = len(routes) - 1
            out[6 * capacity + made] = len(blocks) - 1
            out[7 * capacity + made] = parts.id_at
            out[8 * capacity + made] = parts.body_at + 2 * LIST_HEAD
            out[9 * capacity + made] = size
            total += size
            made += 1
            parts, last = last, parts
        numbers = [held[column * capacity : column * capacity + made] for column in range(NUMBERS)]
        return SegmentColumns(made, self._file, numbers, routes, blocks, *self._texts(held, made, total))

    def _texts(self, held: memoryview, made: Size, total: Size) -> tuple[bytearray, memoryview, bytearray]:
        """Return the ids in hexadecimal digits, where each body begins and the last one ends, and the bodies."""
        ids = bytearray(2 * MSG_ID_SIZE * made + 1)
        bodies = bytearray(total + 1)
        begins: memoryview = memoryview(array("i", bytes(4 * (made + 1))))
        held_ids: memoryview = memoryview(ids)
        held_bodies: memoryview = memoryview(bodies)
        source: Source = source_of(self._data)
        numbers: I64s = i64s_of(held)
        out_ids: Target = target_of(held_ids)
        out: Target = target_of(held_bodies)
        out_begins: I32s = i32s_of(begins)
        capacity: Size = self.count
        at: Size = 0
        row: Size
        with cython.nogil:
            for row in range(made):
                put_hex(out_ids, 2 * MSG_ID_SIZE * row, source, numbers[7 * capacity + row], MSG_ID_SIZE, False)
                put_bytes(out, at, source, numbers[8 * capacity + row], numbers[9 * capacity + row])
                at += numbers[9 * capacity + row]
                out_begins[row + 1] = at
        return ids, begins, bodies

    def count_messages(self) -> bool:
        """Check every message and count.  Return false when one is in no file of the queue, or is not a whole message of a
        usual form with the id of its entry.
        """
        held: memoryview = memoryview(array("q", bytes(8 * (STEPS + STEP_COUNT + 1))))
        counts: I64s = i64s_of(held)
        source: Source = source_of(self._data)
        parts: ContentParts = ContentParts()
        is_whole: Bool
        with cython.nogil:
            is_whole = _count(source, self._rows, self.count, self._is_v2, parts, counts)
        if is_whole:
            self.messages, self.persistent, self.expiring = counts[MESSAGES], counts[DURABLE], counts[EXPIRING]
            self.size_bytes, self.largest, self.containers = counts[BYTES], counts[LARGEST], counts[CONTAINERS]
            self.lowest, self.highest = counts[LOWEST], counts[HIGHEST]
            self.sizes = tuple(held[STEPS:])
        return is_whole

    def scan(self, first_seq_id: I64, capacity: Size) -> Bool:
        """Find the entries of a version-1 segment; return whether it is intact."""
        source: Source = source_of(self._data)
        stop: Size = len(self._data)
        row: Size
        with cython.nogil:
            if scan_segment(source, 0, stop, first_seq_id, capacity, self._rows, -1) != stop:
                return False
            self.count = close_up(self._rows, capacity)
            for row in range(self.count):
                if self._rows[row * STRIDE + EXPIRY] < 0:
                    return False
        return True

    def scan_v2(self, index: bytes, first_seq_id: I64) -> Bool:
        """Find the entries of a version-2 segment; return whether it is intact."""
        source: Source = source_of_bytes(index)
        stop: Size = len(index)
        terms: Source = source_of(self._data)
        end: Size = len(self._data)
        with cython.nogil:
            self.count = _scan_v2(source, stop, terms, end, first_seq_id, self._rows)
        return self.count >= 0


def read_intact(data: bytes | memoryview, number: int, entries: int, file: str) -> IntactSegment | None:
    """Return the version-1 segment `number` of so many entries, whose bytes are `data`; None unless it is intact."""
    found = IntactSegment(memoryview(data), file, entries, False)
    return found if found.scan(number * entries, entries) else None


def read_intact_v2(index: bytes, stored: bytes | memoryview, number: int, file: str) -> IntactSegment | None:
    """Return the version-2 segment `number`, whose `.qs` file is `file`.

    None unless all of its messages are persistent and whole in `stored`.
    """
    if index[:V2_HEAD] != encode_head(V2_INDEX_MAGIC, number) or stored[:V2_HEAD] != encode_head(V2_STORE_MAGIC, number):
        return None
    if (len(index) - V2_HEAD) % ENTRY or (len(index) - V2_HEAD) // ENTRY > V2_ENTRIES:
        return None
    found = IntactSegment(memoryview(stored), file, (len(index) - V2_HEAD) // ENTRY, True)
    return found if found.scan_v2(index, number * V2_ENTRIES) else None


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan_v2(source: Source, stop: Size, terms: Source, end: Size, first: I64, rows: I64s) -> Size:
    """Fill the rows of a version-2 segment; return how many there are, or -1 for one that is not intact."""
    at: Size = V2_HEAD
    row: Size = 0
    written: Size = V2_HEAD  # end of the last message: entries that share one could make a batch of any size
    position: I64
    size: Size
    expiry: I64
    start: Size
    while at < stop:
        if source[at]:
            position = get_i64(source, at + 4)
            size = get_i32(source, at + 12)
            expiry = get_i64(source, at + 24)
            if (
                get_i32(source, at) != OWN_MARK
                or get_i32(source, at + 16)
                or size <= 0
                or not written <= position < POSITION_MAX
            ):
                return -1
            if expiry and not EXPIRY_MIN <= expiry < EXPIRY_MAX:
                return -1
            start = position + CHUNK
            if start > end or size > end - start or get_i32(terms, position) != size:
                return -1
            if terms[position + 4] != CHUNK_MARK or terms[position + 7] or get_i32(source, at + 20) < 0:
                return -1
            if (crc32(terms, start, size) ^ get_i16(terms, position + 5)) & 0xFFFF:
                return -1
            rows[row + STATE] = PERSISTENT | DELIVERED
            rows[row + SEQ_ID] = first + (at - V2_HEAD) // ENTRY
            rows[row + EXPIRY] = expiry
            rows[row + BODY_SIZE] = get_i32(source, at + 20)
            rows[row + POSITION] = position
            rows[row + TERM] = start
            rows[row + TERM_SIZE] = size
            written = start + size
            row += STRIDE
        elif source[at + 1] > FLAGS_MAX or source[at + 2]:
            return -1
        at += ENTRY
    return row // STRIDE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _has_same_route(source: Source, parts: ContentParts, last: ContentParts) -> Bool:
    """Return whether two messages have the same virtual host, exchange and routing keys."""
    size: Size = parts.block_at - parts.start
    if parts.is_container != last.is_container:
        return False
    if not parts.is_container:
        return size == last.block_at - last.start and is_same_at(source, parts.start, size, source, last.start)
    if not _is_same_binary(source, parts.exchange_at, last.exchange_at):
        return False
    size = parts.keys_end - parts.keys_at
    return size == last.keys_end - last.keys_at and is_same_at(source, parts.keys_at, size, source, last.keys_at)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_same_binary(source: Source, at: Size, other: Size) -> Bool:
    """Return whether two binaries of located messages are equal."""
    size: Size = get_i32(source, at + 1)
    return size == get_i32(source, other + 1) and is_same_at(source, at + LIST_HEAD, size, source, other + LIST_HEAD)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count(source: Source, rows: I64s, count: Size, is_v2: Bool, parts: ContentParts, counts: I64s) -> Bool:
    """Count the entries of some rows; return false for a message that is not as `count_messages` wants it."""
    at: Size = 0
    stop: Size = count * STRIDE
    start: Size
    size: I64
    step: Size
    counts[LOWEST] = rows[SEQ_ID] if count > 0 else -1
    counts[HIGHEST] = rows[stop - STRIDE + SEQ_ID] if count > 0 else -1
    while at < stop:
        start = rows[at + TERM]
        if not rows[at + TERM_SIZE] or not locate(parts, source, start, start + rows[at + TERM_SIZE]):
            return False
        if not is_v2 and not is_same_at(source, parts.id_at, MSG_ID_SIZE, source, rows[at + POSITION] + HEAD_SIZE):
            return False
        counts[CONTAINERS] += parts.is_container
        if not rows[at + STATE] & ACKED:
            size = rows[at + BODY_SIZE]
            counts[MESSAGES] += 1
            counts[DURABLE] += rows[at + STATE] & PERSISTENT
            counts[EXPIRING] += rows[at + EXPIRY] != 0
            counts[BYTES] += size
            counts[LARGEST] = max(counts[LARGEST], size)
            step = 0
            while step < STEP_COUNT and size > _steps[step]:
                step += 1
            counts[STEPS + step] += 1
        at += STRIDE
    return True
