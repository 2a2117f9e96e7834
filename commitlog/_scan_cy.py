"""Decode the records of a log range: find them, decode them to message objects, and copy them to columns.

A walk stops at the first position without a record and returns which of `checks.STOPS` applies.  Columns are buffers of native
integers that the caller provides; nothing here allocates except message objects.
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ._message_cy import StoredMessage
from .checks import BAD_BODY_CRC, BAD_ENTRY, BAD_RECORD_CRC, CHECK_ALL, STOPS
from .entry_layout import (
    ENTRY_HEADER_SIZE, ENTRY_INDEX_AT, ENTRY_MAGIC, ENTRY_POSITION_AT, ENTRY_SIZE_AT, ENTRY_TERM_AT, ENTRY_UNIT_SIZE,
)  # fmt: skip
from .layout import (
    BODY_CRC_AT, BORN_HOST_AT, BORN_HOST_V6, BORN_TIME_AT, FILLER_FLAGS, FLAG_AT, HOST_SIZE, HOST_SIZE_V6, MAGIC_AT,
    MAGIC_V1, MAGIC_V2, NAME_END, PAIR_END, PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECORD_SIZE_MIN,
    SIZE_AT, STORE_HOST_V6, SYS_FLAG_AT,
)  # fmt: skip

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32, I64, Bool, I32s, I64s, Nothing, Size, Source, Target, find_byte, get_i16, get_i32, get_i64, i32s_of,
        i64s_of, is_same, is_same_at, prefetch, put_bytes, source_of, source_of_bytes, take_bytes, take_view, target_of, window,
    )  # fmt: skip

    from ._record_cy import (
        carries_checksum, check_record, check_step, is_filler_at, record_in, store_time_of,
        topic_position, topic_size_at, topic_size_size,
    )  # fmt: skip

SPACE = 32
_KEYS: Source = source_of_bytes(b"KEYS")
_UNIQ_KEY: Source = source_of_bytes(b"UNIQ_KEY")
NAMES_MAX = 65536  # texts of topics that one reader keeps
AHEAD = 4  # units whose records are prefetched
AHEAD_VIEWS = 8
HEADS_AHEAD = 16  # records whose heads are prefetched
PREFETCHED_MAX = 4096  # bytes of a record that are prefetched
RECORD_PREFETCH_SIZE = 1536
CHECKED_MAX = 256 << 20  # bytes that one search spends on wrong checksums; real damage costs a few megabytes
SMALL_RECORD_SIZE = 16 << 10  # after CHECKED_MAX, only records up to this size are checked
BLOCK_SIZE = 4096  # compared with zeros in one step
_ZERO_BYTES = bytes(BLOCK_SIZE)  # keeps the memory of the next
_ZERO_BLOCK: Source = source_of_bytes(_ZERO_BYTES)
PAIRS_COMPARED_MAX = 256  # how many earlier pairs are compared to find a duplicate name


class Reader:
    """Decoder of the records of one buffer.  `base` is the physical offset of the buffer's first byte."""

    __slots__ = ("_last", "_names", "_source", "_view", "base", "size")

    def __init__(self, buffer: Any, base: int = 0) -> None:
        """Hold the buffer: a map stays valid as long as this reader exists."""
        self._view = memoryview(buffer).cast("B")
        self._source: Source = source_of(self._view)
        self.size = len(self._view)
        self._names: dict[bytes, tuple[bytes, str]] = {}
        self._last: tuple[bytes, str] = (b"", "")  # of `_names`, so it is not freed when another thread replaces it
        self.base = base

    def decode(self, at: Size, checks: I32 = CHECK_ALL) -> StoredMessage | None:
        """Return the record at `at`, None if there is none; `check` returns what is found instead."""
        if at < 0 or at > self.size or check_record(self._source, at, self.size, self.base, checks) <= 0:
            return None
        return self._decode(at)

    def decode_keyed(self, at: Size, topic: bytes, key: bytes, checks: I32 = CHECK_ALL) -> StoredMessage | None:
        """Decode like `decode`, but return None for another topic or without the key, before a checksum is computed.

        A key is a word of the property KEYS or the whole of UNIQ_KEY; bytes are compared.
        """
        source: Source = self._source
        if at < 0 or at > self.size or check_record(source, at, self.size, self.base, 0) <= 0:
            return None
        position: Size = topic_position(source, at)
        topic_size: Size = topic_size_at(source, at, position)
        position += topic_size_size(source, at)
        if not is_same(source, position, topic_size, source_of_bytes(topic), len(topic)):
            return None
        position += topic_size
        if not _has_key(source, position + 2, get_i16(source, position), source_of_bytes(key), len(key)):
            return None
        return self.decode(at, checks)

    def store_time(self, at: Size) -> Size:
        """Return the store time of the record at `at` in ms, -1 if none with this physical offset starts there.

        Only the first bytes are read, because a search by time reads many records, each in another page.
        """
        if at < 0 or at > self.size - RECORD_SIZE_MIN:
            return -1
        size: Size = get_i32(self._source, at + SIZE_AT)
        if not self._begins(at, size):
            return -1
        return store_time_of(self._source, at)

    def _begins(self, at: Size, size: Size) -> Bool:
        """Return whether a record of that size and physical offset starts at `at`; only its first bytes are read."""
        if not self._has_space(at, size):
            return False
        magic: I32 = get_i32(self._source, at + MAGIC_AT)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or get_i32(self._source, at + SIZE_AT) != size:
            return False
        return get_i64(self._source, at + PHYSICAL_OFFSET_AT) == self.base + at

    def _has_space(self, at: Size, size: Size) -> Bool:
        """Return whether a record of that size fits at `at`."""
        return at >= 0 and size >= RECORD_SIZE_MIN and at <= self.size and size <= self.size - at

    def check(self, at: int, checks: int = CHECK_ALL) -> int:
        """Return the size of the record or entry at `at`, or a code of `checks.STOPS`."""
        position: Size = at
        checks_made: I32 = checks
        if not 0 <= position <= self.size:
            raise ValueError(f"{at} is not inside the buffer of {self.size} bytes")
        return check_step(self._source, position, self.size, self.base, checks_made)

    def decode_range(
        self, at: Size, stop: Size, count_max: Size, checks: I32 = CHECK_ALL
    ) -> tuple[list[StoredMessage], int, str]:
        """Decode up to `count_max` consecutive records that end by `stop`: (messages, next position, reason of the stop)."""
        messages: list[StoredMessage] = []
        if not 0 <= at <= stop <= self.size:
            raise ValueError(f"{at}..{stop} is not inside the buffer of {self.size} bytes")
        while at < stop and len(messages) < count_max:
            size: Size = check_step(self._source, at, stop, self.base, checks)
            if size <= 0:
                return messages, at, STOPS[size]
            messages.append(self._decode(record_in(self._source, at)))
            at += size
        return messages, at, "end" if at == stop else "full"

    def decode_units(self, units: Any, stride: Size, bytes_max: Size, checks: I32 = CHECK_ALL) -> list[StoredMessage]:
        """Decode the records of units: entries of `stride` bytes that start with a physical offset and a size.

        Stops at the first unit that does not match a record of its size in this buffer, and after `bytes_max` bytes of records.
        """
        held: memoryview = memoryview(units).cast("B")
        source: Source = source_of(held)
        count: Size = len(held) // stride
        index: Size
        left: Size = bytes_max
        messages: list[StoredMessage] = []
        for index in range(count):
            if index + AHEAD < count:
                self._prefetch_unit(source, stride * (index + AHEAD), PREFETCHED_MAX)
            size: Size = get_i32(source, stride * index + 8)
            position: Size = get_i64(source, stride * index) - self.base
            if left <= 0 or not self._is_record(position, size, checks):
                break
            messages.append(self._decode(position))
            left -= size
        return messages

    def views(self, units: Any, stride: Size, is_checked: Bool = True) -> list[memoryview]:
        """Return the bytes of the records of units as views of the buffer; only position and size are checked.

        Without `is_checked` the units are trusted within the buffer, and no record is read.
        """
        held: memoryview = memoryview(units).cast("B")
        source: Source = source_of(held)
        count: Size = len(held) // stride
        index: Size
        found: list[memoryview] = []
        for index in range(count):
            if is_checked and index + AHEAD_VIEWS < count:
                self._prefetch_unit(source, stride * (index + AHEAD_VIEWS), PHYSICAL_OFFSET_AT + 8)
            size: Size = get_i32(source, stride * index + 8)
            position: Size = get_i64(source, stride * index) - self.base
            if not (self._begins(position, size) if is_checked else self._has_space(position, size)):
                break
            found.append(take_view(self._view, position, size))
        return found

    def prefetch_record(self, at: Size) -> Bool:
        """Prefetch what most records need, before the size is known."""
        if at < 0 or at >= self.size:
            return False
        prefetch(self._source, at, min(self.size - at, RECORD_PREFETCH_SIZE))
        return True

    def _prefetch_unit(self, units: Source, at: Size, most: Size) -> Bool:
        """Prefetch the record of a later unit."""
        size: Size = get_i32(units, at + 8)
        position: Size = get_i64(units, at) - self.base
        if size <= 0 or position < 0 or position > self.size or size > self.size - position:
            return False
        prefetch(self._source, position, min(size, most))
        return True

    def _is_record(self, position: Size, size: Size, checks: I32) -> Bool:
        """Return whether a record of that size starts at a position."""
        if size <= 0 or position < 0 or position > self.size:
            return False
        return check_record(self._source, position, self.size, self.base, checks) == size

    def _decode(self, at: Size) -> StoredMessage:
        """Decode a record that was checked."""
        source: Source = self._source
        message: StoredMessage = StoredMessage.__new__(StoredMessage)
        sys_flag: I32 = get_i32(source, at + SYS_FLAG_AT)
        message.size = get_i32(source, at + SIZE_AT)
        message.magic = get_i32(source, at + MAGIC_AT)
        message.body_crc = get_i32(source, at + BODY_CRC_AT)
        message.queue_id = get_i32(source, at + QUEUE_ID_AT)
        message.flag = get_i32(source, at + FLAG_AT)
        message.queue_offset = get_i64(source, at + QUEUE_OFFSET_AT)
        message.physical_offset = get_i64(source, at + PHYSICAL_OFFSET_AT)
        message.sys_flag = sys_flag
        message.born_timestamp_ms = get_i64(source, at + BORN_TIME_AT)
        message._properties = None
        message._was_read = False
        position: Size = at + BORN_HOST_AT
        message._born_high = 0
        if sys_flag & BORN_HOST_V6:
            message._born_high = get_i64(source, position)
            message._born_low = get_i64(source, position + 8)
            position += HOST_SIZE_V6
        else:
            message._born_low = get_i32(source, position)
            position += HOST_SIZE
        message.born_port = get_i32(source, position - 4)
        message.store_timestamp_ms = get_i64(source, position)
        position += 8
        message._store_high = 0
        if sys_flag & STORE_HOST_V6:
            message._store_high = get_i64(source, position)
            message._store_low = get_i64(source, position + 8)
            position += HOST_SIZE_V6
        else:
            message._store_low = get_i32(source, position)
            position += HOST_SIZE
        message.store_port = get_i32(source, position - 4)
        message.reconsume_times = get_i32(source, position)
        message.prepared_transaction_offset = get_i64(source, position + 4)
        body_size: Size = get_i32(source, position + 12)
        position += 16
        message.body = take_bytes(source, position, body_size)
        position += body_size
        topic_size: Size = topic_size_at(source, at, position)
        position += topic_size_size(source, at)
        message.topic = self._name(source, position, topic_size)
        position += topic_size
        message.properties_raw = take_bytes(source, position + 2, get_i16(source, position))
        return message

    def _name(self, source: Source, at: Size, size: Size) -> str:
        """Return the topic as text, one string object per topic; usually it is the last one again."""
        last: tuple[bytes, str] = self._last
        topic: bytes = last[0]
        if is_same(source, at, size, source_of_bytes(topic), len(topic)):
            return last[1]
        encoded: bytes = take_bytes(source, at, size)
        known: tuple[bytes, str] | None = self._names.get(encoded)
        if known is None:
            known = (encoded, encoded.decode("utf-8", "replace"))
            if len(self._names) >= NAMES_MAX:
                return known[1]
            known = self._names.setdefault(encoded, known)
        with cython.critical_section(self):
            self._last = known
        return known[1]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _has_key(source: Source, start: Size, size: Size, key: Source, key_size: Size) -> Bool:
    """Return whether the properties contain a key; of equal names the last pair counts, empty words are ignored."""
    properties: Source = window(source, start, size)
    in_keys: Bool = False
    is_unique: Bool = False
    at: Size = 0
    while at < size:
        end: Size = find_byte(properties, at, size, PAIR_END)
        middle: Size = find_byte(properties, at, end, NAME_END)
        if at < middle < end - 1:
            if is_same(properties, at, middle - at, _KEYS, 4):
                in_keys = _has_word(properties, middle + 1, end, key, key_size)
            elif is_same(properties, at, middle - at, _UNIQ_KEY, 8):
                is_unique = is_same(properties, middle + 1, end - middle - 1, key, key_size)
        at = end + 1
    return in_keys or is_unique


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _has_word(source: Source, at: Size, stop: Size, word: Source, word_size: Size) -> Bool:
    """Return whether the word is one of those between spaces; an empty word never is."""
    while at < stop:
        end: Size = find_byte(source, at, stop, SPACE)
        if word_size > 0 and is_same(source, at, end - at, word, word_size):
            return True
        at = end + 1
    return False


def scan(
    buffer: Any, start: int, stop: int, base: int = 0, checks: int = CHECK_ALL, positions: Any = None, sizes: Any = None, *,
    count_protected: bool = False, before: int = -1,
) -> tuple[int, str, int, int, int]:  # fmt: skip
    """Walk over consecutive records, and fill their positions (64-bit) and sizes (32-bit) if columns for them are given.

    Returns (end position, reason of the stop, records, records with a checksum property, the last record or -1).  The reason is
    "full" if the columns have no place for the next record.  Checksum properties are counted only with `count_protected`: that
    takes as long as all the rest of a walk by headers.

    The entries of a DLedger log must follow each other, and the first one that of the record at position `before`, unless that
    is -1.  `start`, `stop` and the end position are those of entries, all else means their records.
    """
    held: memoryview = memoryview(buffer).cast("B")
    held_positions: memoryview = column_of(array("q", [0]) if positions is None else positions, 8)
    held_sizes: memoryview = column_of(array("i", [0]) if sizes is None else sizes, 4)
    state: memoryview = memoryview(array("q", [0, 1, 0, 0, -1]))
    source: Source = source_of(held)
    at: Size = start
    end: Size = stop
    begin: I64 = base
    checks_made: I32 = checks
    capacity: Size = min([len(held)] + [len(column) for column in (positions, sizes) if column is not None])
    out_positions: I64s = i64s_of(held_positions)
    out_sizes: I32s = i32s_of(held_sizes)
    with_positions: Bool = positions is not None
    with_sizes: Bool = sizes is not None
    with_protected: Bool = count_protected
    earlier: Size = before
    found: I64s = i64s_of(state)
    if not 0 <= at <= end <= len(held):
        raise ValueError(f"{start}..{stop} is not inside the buffer of {len(held)} bytes")
    if not -1 <= before < len(held):
        raise ValueError(f"{before} is not inside the buffer of {len(held)} bytes")
    with cython.nogil:
        _scan(
            source,
            at,
            end,
            begin,
            checks_made,
            capacity,
            with_positions,
            out_positions,
            with_sizes,
            out_sizes,
            with_protected,
            earlier,
            found,
        )
    why = "end" if state[0] == stop else "full" if state[1] > 0 else STOPS[state[1]]
    return state[0], why, state[2], state[3], state[4]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan(
    source: Source, at: Size, stop: Size, base: I64, checks: I32, capacity: Size, with_positions: Bool,
    positions: I64s, with_sizes: Bool, sizes: I32s, with_protected: Bool, before: Size, state: I64s,
) -> Nothing:  # fmt: skip
    """Fill state: end position, last result, records, records with a checksum property, the last record."""
    step: Size = 1
    row: Size = 0
    protected: Size = 0
    last: Size = -1
    while at < stop and row < capacity:
        step = check_step(source, at, stop, base, checks)
        if step <= 0:
            break
        start: Size = record_in(source, at)
        size: Size = step - (start - at)
        if start > at and before >= ENTRY_HEADER_SIZE and not _follows(source, before - ENTRY_HEADER_SIZE, at):
            step = BAD_ENTRY
            break
        if with_protected and carries_checksum(source, start, size):
            protected += 1
        if with_positions:
            positions[row] = start
        if with_sizes:
            sizes[row] = size
        last = start
        before = start if start > at else -1  # behind damage a record may have lost its header
        at += step
        row += 1
    state[0] = at
    state[1] = step
    state[2] = row
    state[3] = protected
    state[4] = last


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _follows(source: Source, before: Size, at: Size) -> Bool:
    """Return whether the entry at `at` may follow the one at `before`, which may be no entry."""
    if get_i32(source, before) != ENTRY_MAGIC:
        return True
    if get_i64(source, at + ENTRY_INDEX_AT) != get_i64(source, before + ENTRY_INDEX_AT) + 1:
        return False
    return get_i64(source, at + ENTRY_TERM_AT) >= get_i64(source, before + ENTRY_TERM_AT)


def entry_units(buffer: Any, positions: Any) -> bytearray:
    """Return the index units of the DLedger entries whose records lie at these positions, 32 bytes each; zeros without one."""
    held: memoryview = memoryview(buffer).cast("B")
    held_positions: memoryview = column_of(positions, 8)
    locations: I64s = i64s_of(held_positions)
    source: Source = source_of(held)
    limit: Size = len(held)
    count: Size = len(held_positions)
    units = bytearray(ENTRY_UNIT_SIZE * count)
    held_units: memoryview = memoryview(units)
    target: Target = target_of(held_units)
    row: Size
    for row in range(count):
        at: Size = locations[row] - ENTRY_HEADER_SIZE
        if at < 0 or at + ENTRY_HEADER_SIZE > limit or get_i32(source, at) != ENTRY_MAGIC:
            continue
        unit: Size = ENTRY_UNIT_SIZE * row
        put_bytes(target, unit, source, at, 4)
        put_bytes(target, unit + 4, source, at + ENTRY_POSITION_AT, 8)
        put_bytes(target, unit + 12, source, at + ENTRY_SIZE_AT, 4)
        put_bytes(target, unit + 16, source, at + ENTRY_INDEX_AT, 16)  # index and term
    return units


def find_fillers(buffer: Any, positions: Any) -> list[int]:
    """Return which of the records at these positions (64-bit) are fillers; a position may be wrong."""
    held: memoryview = memoryview(buffer).cast("B")
    source: Source = source_of(held)
    limit: Size = len(held)
    return [row for row in find_flagged(held, positions, FILLER_FLAGS) if is_filler_at(source, positions[row], limit)]


def find_flagged(buffer: Any, positions: Any, flags: I32) -> list[int]:
    """Return which of the records at these positions (64-bit) have any of these system flags; a position may be wrong."""
    held: memoryview = memoryview(buffer).cast("B")
    held_positions: memoryview = column_of(positions, 8)
    source: Source = source_of(held)
    limit: Size = len(held)
    locations: I64s = i64s_of(held_positions)
    count: Size = len(held_positions)
    row: Size
    found: list[int] = []
    for row in range(count):
        _prefetch_head(source, limit, locations, row + HEADS_AHEAD, count)
        at: Size = locations[row]
        if 0 <= at <= limit - RECORD_SIZE_MIN and get_i32(source, at + SYS_FLAG_AT) & flags:
            found.append(row)
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _prefetch_head(source: Source, limit: Size, locations: I64s, row: Size, count: Size) -> Nothing:
    """Prefetch the fixed fields of the record of a row, which has no other use of the processor's cache."""
    if row < count and 0 <= locations[row] <= limit - RECORD_SIZE_MIN:
        prefetch(source, locations[row], RECORD_SIZE_MIN)


def find_record(buffer: Any, start: int, stop: int, base: int, until: int = -1) -> int:
    """Return the first position from `start` on, before `until`, of a record that passes every check, -1 without one.

    The record must contain its own physical offset and end by `stop`; `until` -1 means `stop`.  It is used to resume a walk
    after damage or in the middle of a file.
    """
    held: memoryview = memoryview(buffer).cast("B")
    source: Source = source_of(held)
    at: Size = start
    end: Size = stop
    begin: I64 = base
    limit: Size = stop if until < 0 else until
    found: Size
    if limit > end:
        raise ValueError(f"{until} lies behind {stop}")
    if not 0 <= at <= end <= len(held):
        raise ValueError(f"{start}..{stop} is not inside the buffer of {len(held)} bytes")
    with cython.nogil:
        found = _find_record(source, at, end, begin, limit)
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_record(source: Source, at: Size, stop: Size, base: I64, limit: Size) -> Size:
    """Search for the first byte of the magic; only few positions need the full check.

    Data can be crafted to look like the start of a long record at every 91 bytes, each with a checksum to compute.  To keep the
    work proportional to the bytes searched, a search that met many of them skips long records.
    """
    piece: Size = 1 << 12
    spent: Size = 0
    size: Size
    while at + 8 <= stop and at < limit:
        end: Size = at + MAGIC_AT + piece
        end = min(end, stop)
        ahead: Source = window(source, at + MAGIC_AT, end - at - MAGIC_AT)
        step: Size = find_byte(ahead, 0, end - at - MAGIC_AT, 0xDA)
        at += step
        if at + MAGIC_AT < end and at < limit:
            if spent < CHECKED_MAX or (at + 4 <= stop and get_i32(source, at + SIZE_AT) <= SMALL_RECORD_SIZE):
                size = check_record(source, at, stop, base, 7)
                if size > 0:
                    return at
                if size == BAD_BODY_CRC or size == BAD_RECORD_CRC:
                    spent += get_i32(source, at + SIZE_AT)
            at += 1
    return -1


def find_nonzero(buffer: Any, start: int, stop: int) -> int:
    """Return the first position in start..stop whose byte is not zero, -1 without one."""
    held: memoryview = memoryview(buffer).cast("B")
    source: Source = source_of(held)
    at: Size = start
    end: Size = stop
    found: Size
    if not 0 <= at <= end <= len(held):
        raise ValueError(f"{start}..{stop} is not inside the buffer of {len(held)} bytes")
    with cython.nogil:
        found = _find_nonzero(source, at, end)
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_nonzero(source: Source, at: Size, stop: Size) -> Size:
    """Compare whole blocks with zeros, then the bytes of the first one that differs."""
    while at < stop:
        size: Size = stop - at if stop - at < BLOCK_SIZE else BLOCK_SIZE
        if not is_same_at(source, at, size, _ZERO_BLOCK, 0):
            while source[at] == 0:
                at += 1
            return at
        at += size
    return -1


def split_row(
    source: Source, start: Size, size: Size, pairs: Size, capacity: Size, names: I64s, name_sizes: I32s, values: I64s,
    value_sizes: I32s,
) -> Size:  # fmt: skip
    """Add the pairs of one row; return the number of pairs so far, or -1 if they do not fit."""
    properties: Source = window(source, start, size)
    first: Size = pairs
    at: Size = 0
    while at < size:
        end: Size = find_byte(properties, at, size, PAIR_END)
        middle: Size = find_byte(properties, at, end, NAME_END)
        if at < middle < end - 1:
            slot: Size = _slot_of(source, start + at, middle - at, first, pairs, names, name_sizes)
            if slot == pairs:
                if pairs >= capacity:
                    return -1
                pairs += 1
            names[slot] = start + at
            name_sizes[slot] = middle - at
            values[slot] = start + middle + 1
            value_sizes[slot] = end - middle - 1
        at = end + 1
    return pairs


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _slot_of(source: Source, at: Size, size: Size, first: Size, pairs: Size, names: I64s, name_sizes: I32s) -> Size:
    """Return the index of a pair of the same name in this row, or of a new one."""
    slot: Size = first if pairs - first <= PAIRS_COMPARED_MAX else pairs - PAIRS_COMPARED_MAX
    while slot < pairs:
        if name_sizes[slot] == size and is_same_at(source, at, size, source, names[slot]):
            return slot
        slot += 1
    return pairs


def column_of(column: Any, item_size: int) -> memoryview:
    """Return the column's buffer; a wrong item size is rejected before any pointer is taken."""
    view: memoryview = memoryview(column)
    if (
        view.itemsize != item_size
        or view.format not in ("i", "l", "q")
        or not view.c_contiguous
        or view.ndim != 1
        or view.readonly
    ):
        raise ValueError(f"a contiguous writable column of {item_size}-byte integers is wanted")
    return view


def with_content(
    message: StoredMessage, body: bytes, sys_flag: int, flag: int, properties_raw: bytes, queue_offset: int
) -> StoredMessage:
    """Return a copy of a message with another content: that of a decoded body, or of one message of a batch."""
    made: StoredMessage = StoredMessage.__new__(StoredMessage)
    made.topic, made.body, made.properties_raw = message.topic, body, properties_raw
    made.size, made.magic, made.body_crc = message.size, message.magic, message.body_crc
    made.queue_id, made.flag, made.sys_flag = message.queue_id, flag, sys_flag
    made.reconsume_times, made.queue_offset = message.reconsume_times, queue_offset
    made.physical_offset, made.prepared_transaction_offset = message.physical_offset, message.prepared_transaction_offset
    made.born_timestamp_ms, made.born_port = message.born_timestamp_ms, message.born_port
    made.store_timestamp_ms, made.store_port = message.store_timestamp_ms, message.store_port
    made._born_high, made._born_low = message._born_high, message._born_low
    made._store_high, made._store_low = message._store_high, message._store_low
    made._properties, made._was_read = None, False
    return made
