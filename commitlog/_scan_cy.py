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
from .checks import BAD_BODY_CRC, BAD_RECORD_CRC, CHECK_ALL, STOPS
from .layout import (
    BODY_AT, BODY_CRC_AT, BORN_HOST_AT, BORN_HOST_V6, BORN_TIME_AT, CRC_SIZE, FLAG_AT, HOST_SIZE, HOST_SIZE_V6, MAGIC_AT,
    MAGIC_V1, MAGIC_V2, NAME_END, PAIR_END, PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECORD_SIZE_MIN,
    SIZE_AT, STORE_HOST_V6, SYS_FLAG_AT,
)  # fmt: skip

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32, I64, Bool, I32s, I64s, Nothing, Size, Source, Target, find_byte, get_i16, get_i32, get_i64, i32s_of,
        i64s_of, is_same, is_same_at, prefetch, put_bytes, source_of, source_of_bytes, take_bytes, take_view, target_of, window,
    )  # fmt: skip

    from ._record_cy import check_record, growth, has_trailer, is_filler_at, topic_place, topic_size_at, topic_size_size

SPACE = 32
_KEYS: Source = source_of_bytes(b"KEYS")
_UNIQ_KEY: Source = source_of_bytes(b"UNIQ_KEY")
NAMES_MAX = 65536  # texts of topics that one reader keeps
AHEAD = 4  # units whose records are prefetched
AHEAD_VIEWS = 8
PREFETCHED_MAX = 4096  # bytes of a record that are prefetched
RECORD_PREFETCH_SIZE = 1536
CHECKED_MAX = 256 << 20  # bytes that one search spends on wrong checksums; real damage costs a few megabytes
SMALL_RECORD_SIZE = 16 << 10  # after CHECKED_MAX, only records up to this size are checked
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
        place: Size = topic_place(source, at)
        topic_size: Size = topic_size_at(source, at, place)
        place += topic_size_size(source, at)
        if not is_same(source, place, topic_size, source_of_bytes(topic), len(topic)):
            return None
        place += topic_size
        if not _has_key(source, place + 2, get_i16(source, place), source_of_bytes(key), len(key)):
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
        is_long: Bool = (get_i32(self._source, at + SYS_FLAG_AT) & BORN_HOST_V6) != 0
        return get_i64(self._source, at + BORN_HOST_AT + (HOST_SIZE_V6 if is_long else HOST_SIZE))

    def _begins(self, at: Size, size: Size) -> Bool:
        """Return whether a record of that size and physical offset starts at `at`; only its first bytes are read."""
        if not self._has_room(at, size):
            return False
        magic: I32 = get_i32(self._source, at + MAGIC_AT)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or get_i32(self._source, at + SIZE_AT) != size:
            return False
        return get_i64(self._source, at + PHYSICAL_OFFSET_AT) == self.base + at

    def _has_room(self, at: Size, size: Size) -> Bool:
        """Return whether a record of that size fits at `at`."""
        return at >= 0 and size >= RECORD_SIZE_MIN and at <= self.size and size <= self.size - at

    def check(self, at: int, checks: int = CHECK_ALL) -> int:
        """Return the size of the record at `at`, or a code of `checks.STOPS`."""
        place: Size = at
        wanted: I32 = checks
        if not 0 <= place <= self.size:
            raise ValueError(f"{at} is not inside the buffer of {self.size} bytes")
        return check_record(self._source, place, self.size, self.base, wanted)

    def decode_range(
        self, at: Size, stop: Size, count_max: Size, checks: I32 = CHECK_ALL
    ) -> tuple[list[StoredMessage], int, str]:
        """Decode up to `count_max` consecutive records that end by `stop`: (messages, next position, reason of the stop)."""
        messages: list[StoredMessage] = []
        if not 0 <= at <= stop <= self.size:
            raise ValueError(f"{at}..{stop} is not inside the buffer of {self.size} bytes")
        while at < stop and len(messages) < count_max:
            size: Size = check_record(self._source, at, stop, self.base, checks)
            if size <= 0:
                return messages, at, STOPS[size]
            messages.append(self._decode(at))
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
            place: Size = get_i64(source, stride * index) - self.base
            if left <= 0 or not self._is_record(place, size, checks):
                break
            messages.append(self._decode(place))
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
            place: Size = get_i64(source, stride * index) - self.base
            if not (self._begins(place, size) if is_checked else self._has_room(place, size)):
                break
            found.append(take_view(self._view, place, size))
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
        place: Size = get_i64(units, at) - self.base
        if size <= 0 or place < 0 or place > self.size or size > self.size - place:
            return False
        prefetch(self._source, place, min(size, most))
        return True

    def _is_record(self, place: Size, size: Size, checks: I32) -> Bool:
        """Return whether a record of that size starts at a position."""
        if size <= 0 or place < 0 or place > self.size:
            return False
        return check_record(self._source, place, self.size, self.base, checks) == size

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
        place: Size = at + BORN_HOST_AT
        message._born_high = 0
        if sys_flag & BORN_HOST_V6:
            message._born_high = get_i64(source, place)
            message._born_low = get_i64(source, place + 8)
            place += HOST_SIZE_V6
        else:
            message._born_low = get_i32(source, place)
            place += HOST_SIZE
        message.born_port = get_i32(source, place - 4)
        message.store_timestamp_ms = get_i64(source, place)
        place += 8
        message._store_high = 0
        if sys_flag & STORE_HOST_V6:
            message._store_high = get_i64(source, place)
            message._store_low = get_i64(source, place + 8)
            place += HOST_SIZE_V6
        else:
            message._store_low = get_i32(source, place)
            place += HOST_SIZE
        message.store_port = get_i32(source, place - 4)
        message.reconsume_times = get_i32(source, place)
        message.prepared_transaction_offset = get_i64(source, place + 4)
        body_size: Size = get_i32(source, place + 12)
        place += 16
        message.body = take_bytes(source, place, body_size)
        place += body_size
        topic_size: Size = topic_size_at(source, at, place)
        place += topic_size_size(source, at)
        message.topic = self._name(source, place, topic_size)
        place += topic_size
        message.properties_raw = take_bytes(source, place + 2, get_i16(source, place))
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


def count(buffer: Any, start: int, stop: int, base: int = 0, checks: int = CHECK_ALL) -> tuple[int, str, int, int, int]:
    """Walk from start to stop: (end position, reason, records, records with a checksum, the last record or -1)."""
    held: memoryview = memoryview(buffer).cast("B")
    state: memoryview = memoryview(array("q", [0] * 5))
    source: Source = source_of(held)
    at: Size = start
    end: Size = stop
    begin: I64 = base
    wanted: I32 = checks
    found: I64s = i64s_of(state)
    if not 0 <= at <= end <= len(held):
        raise ValueError(f"{start}..{stop} is not inside the buffer of {len(held)} bytes")
    with cython.nogil:
        _count(source, at, end, begin, wanted, found)
    return state[0], "end" if state[0] == stop else STOPS[state[1]], state[2], state[3], state[4]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count(source: Source, at: Size, stop: Size, base: I64, checks: I32, state: I64s) -> Nothing:
    """Fill state: end position, last result, records, protected records, the last record."""
    size: Size = 1
    records: Size = 0
    protected: Size = 0
    last: Size = -1
    while at < stop:
        size = check_record(source, at, stop, base, checks)
        if size <= 0:
            break
        protected += 1 if _is_protected(source, at, size) else 0
        records += 1
        last = at
        at += size
    state[0] = at
    state[1] = size
    state[2] = records
    state[3] = protected
    state[4] = last


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_protected(source: Source, at: Size, size: Size) -> Bool:
    """Return whether a checked record carries the checksum property."""
    if source[at + size - 1] != PAIR_END:
        return False
    place: Size = topic_place(source, at)
    place += topic_size_size(source, at) + topic_size_at(source, at, place)
    return has_trailer(source, at + size, get_i16(source, place))


def scan(buffer: Any, start: int, stop: int, base: int, checks: int, positions: Any, sizes: Any) -> tuple[int, str, int]:
    """Fill positions (64-bit) and sizes (32-bit) of records: (end position, reason of the stop, rows filled)."""
    held: memoryview = memoryview(buffer).cast("B")
    held_positions: memoryview = column_of(positions, 8)
    held_sizes: memoryview = column_of(sizes, 4)
    state: memoryview = memoryview(array("q", [0] * 3))
    source: Source = source_of(held)
    at: Size = start
    end: Size = stop
    begin: I64 = base
    wanted: I32 = checks
    room: Size = min(len(held_positions), len(held_sizes))
    out_positions: I64s = i64s_of(held_positions)
    out_sizes: I32s = i32s_of(held_sizes)
    found: I64s = i64s_of(state)
    if not 0 <= at <= end <= len(held):
        raise ValueError(f"{start}..{stop} is not inside the buffer of {len(held)} bytes")
    with cython.nogil:
        _scan(source, at, end, begin, wanted, room, out_positions, out_sizes, found)
    return state[0], "end" if state[0] == stop else "full" if state[1] > 0 else STOPS[state[1]], state[2]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan(
    source: Source, at: Size, stop: Size, base: I64, checks: I32, room: Size, positions: I64s, sizes: I32s, state: I64s
) -> Nothing:
    """Fill state: end position, last result, rows."""
    size: Size = 1
    row: Size = 0
    while at < stop and row < room:
        size = check_record(source, at, stop, base, checks)
        if size <= 0:
            break
        positions[row] = at
        sizes[row] = size
        at += size
        row += 1
    state[0] = at
    state[1] = size
    state[2] = row


def find_fillers(buffer: Any, positions: Any) -> list[int]:
    """Return which of the records at these positions (64-bit) are fillers; a position may be wrong."""
    held: memoryview = memoryview(buffer).cast("B")
    held_positions: memoryview = column_of(positions, 8)
    source: Source = source_of(held)
    limit: Size = len(held)
    places: I64s = i64s_of(held_positions)
    count: Size = len(held_positions)
    row: Size
    found: list[int] = []
    for row in range(count):
        if is_filler_at(source, places[row], limit):
            found.append(row)
    return found


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


def fill_fixed(buffer: Any, positions: Any, rows: int, columns: list[Any]) -> None:
    """Copy the fixed fields of checked records to columns, in this order and of these widths in bytes:

    size 4, magic 4, body_crc 4, queue_id 4, flag 4, queue_offset 8, physical_offset 8, sys_flag 4, born_timestamp_ms 8,
    store_timestamp_ms 8, reconsume_times 4, prepared_transaction_offset 8.
    """
    widths = (4, 4, 4, 4, 4, 8, 8, 4, 8, 8, 4, 8)
    held: memoryview = memoryview(buffer).cast("B")
    views: list[memoryview] = [column_of(column, width) for column, width in zip(columns, widths, strict=True)]
    places: memoryview = column_of(positions, 8)
    source: Source = source_of(held)
    starts: I64s = i64s_of(places)
    if not 0 <= rows <= min([len(places)] + [len(view) for view in views]):
        raise ValueError("more rows than places for them")
    number: Size = rows
    sizes: I32s = i32s_of(views[0])
    magics: I32s = i32s_of(views[1])
    body_crcs: I32s = i32s_of(views[2])
    queue_ids: I32s = i32s_of(views[3])
    flags: I32s = i32s_of(views[4])
    queue_offsets: I64s = i64s_of(views[5])
    physical_offsets: I64s = i64s_of(views[6])
    sys_flags: I32s = i32s_of(views[7])
    born_times: I64s = i64s_of(views[8])
    store_times: I64s = i64s_of(views[9])
    reconsumes: I32s = i32s_of(views[10])
    prepareds: I64s = i64s_of(views[11])
    limit: Size = len(held)
    row: Size = 0
    with cython.nogil:
        while row < number:
            at: Size = starts[row]
            if not _is_record(source, at, limit):
                break
            sizes[row] = get_i32(source, at + SIZE_AT)
            magics[row] = get_i32(source, at + MAGIC_AT)
            body_crcs[row] = get_i32(source, at + BODY_CRC_AT)
            queue_ids[row] = get_i32(source, at + QUEUE_ID_AT)
            flags[row] = get_i32(source, at + FLAG_AT)
            queue_offsets[row] = get_i64(source, at + QUEUE_OFFSET_AT)
            physical_offsets[row] = get_i64(source, at + PHYSICAL_OFFSET_AT)
            sys_flag: I32 = get_i32(source, at + SYS_FLAG_AT)
            sys_flags[row] = sys_flag
            born_times[row] = get_i64(source, at + BORN_TIME_AT)
            place: Size = at + BORN_HOST_AT + (HOST_SIZE_V6 if sys_flag & BORN_HOST_V6 else HOST_SIZE)
            store_times[row] = get_i64(source, place)
            place += 8 + (HOST_SIZE_V6 if sys_flag & STORE_HOST_V6 else HOST_SIZE)
            reconsumes[row] = get_i32(source, place)
            prepareds[row] = get_i64(source, place + 4)
            row += 1
    if row < rows:
        raise ValueError(f"row {row}: no record lies at {places[row]}")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_record(source: Source, at: Size, limit: Size) -> Bool:
    """Return whether a record with consistent lengths is at a position that the caller passed."""
    return 0 <= at <= limit and check_record(source, at, limit, 0, 0) > 0


def locate(buffer: Any, positions: Any, rows: int, starts: list[Any], sizes: list[Any]) -> None:
    """Fill positions (64-bit) and sizes (32-bit) of body, topic, properties, born host and store host of checked records.

    The checksum property is not part of the properties.
    """
    held: memoryview = memoryview(buffer).cast("B")
    places: memoryview = column_of(positions, 8)
    start_views: list[memoryview] = [column_of(column, 8) for column in starts]
    size_views: list[memoryview] = [column_of(column, 4) for column in sizes]
    source: Source = source_of(held)
    records: I64s = i64s_of(places)
    if len(start_views) != 5 or len(size_views) != 5:
        raise ValueError("five columns of starts and five of sizes wanted")
    if not 0 <= rows <= min([len(places)] + [len(view) for view in start_views + size_views]):
        raise ValueError("more rows than places for them")
    number: Size = rows
    body_starts: I64s = i64s_of(start_views[0])
    topic_starts: I64s = i64s_of(start_views[1])
    properties_starts: I64s = i64s_of(start_views[2])
    born_starts: I64s = i64s_of(start_views[3])
    store_starts: I64s = i64s_of(start_views[4])
    body_sizes: I32s = i32s_of(size_views[0])
    topic_sizes: I32s = i32s_of(size_views[1])
    properties_sizes: I32s = i32s_of(size_views[2])
    born_sizes: I32s = i32s_of(size_views[3])
    store_sizes: I32s = i32s_of(size_views[4])
    limit: Size = len(held)
    row: Size = 0
    with cython.nogil:
        while row < number:
            at: Size = records[row]
            if not _is_record(source, at, limit):
                break
            sys_flag: I32 = get_i32(source, at + SYS_FLAG_AT)
            born_starts[row] = at + BORN_HOST_AT
            born_sizes[row] = HOST_SIZE_V6 if sys_flag & BORN_HOST_V6 else HOST_SIZE
            store_starts[row] = at + BORN_HOST_AT + born_sizes[row] + 8
            store_sizes[row] = HOST_SIZE_V6 if sys_flag & STORE_HOST_V6 else HOST_SIZE
            place: Size = at + growth(source, at) + BODY_AT
            body_starts[row] = place
            body_sizes[row] = get_i32(source, place - 4)
            place += body_sizes[row]
            topic_sizes[row] = topic_size_at(source, at, place)
            place += topic_size_size(source, at)
            topic_starts[row] = place
            place += topic_sizes[row]
            properties_starts[row] = place + 2
            properties_sizes[row] = get_i16(source, place)
            if has_trailer(source, place + 2 + properties_sizes[row], properties_sizes[row]):
                properties_sizes[row] -= CRC_SIZE
            row += 1
    if row < rows:
        raise ValueError(f"row {row}: no record lies at {places[row]}")


def gather(buffer: Any, starts: Any, sizes: Any, rows: int, offsets: Any, data: Any) -> int:
    """Copy ranges one after another into `data` and fill 32-bit `offsets` (rows + 1 of them); return the bytes copied.

    A start of -1 is a missing value of no bytes.  Raises `ValueError` if `data` is too small.
    """
    held: memoryview = memoryview(buffer).cast("B")
    held_starts: memoryview = column_of(starts, 8)
    held_sizes: memoryview = column_of(sizes, 4)
    held_offsets: memoryview = column_of(offsets, 4)
    held_data: memoryview = memoryview(data).cast("B")
    if held_data.readonly or not 0 <= rows <= min(len(held_starts), len(held_sizes), len(held_offsets) - 1):
        raise ValueError("more rows than places for them, or data that cannot be written")
    source: Source = source_of(held)
    out: Target = target_of(held_data)
    from_starts: I64s = i64s_of(held_starts)
    from_sizes: I32s = i32s_of(held_sizes)
    to_offsets: I32s = i32s_of(held_offsets)
    number: Size = rows
    room: Size = min(len(held_data), 0x7FFFFFFF)
    limit: Size = len(held)
    copied: Size = 0
    row: Size = 0
    with cython.nogil:
        to_offsets[0] = 0
        while row < number:
            if from_starts[row] >= 0:
                if not _is_inside(from_starts[row], from_sizes[row], limit) or copied + from_sizes[row] > room:
                    break
                put_bytes(out, copied, source, from_starts[row], from_sizes[row])
                copied += from_sizes[row]
            row += 1
            to_offsets[row] = copied
    if row < rows:
        raise ValueError(f"row {row} does not fit the data column, or lies outside the buffer")
    return copied


def find_values(buffer: Any, starts: Any, sizes: Any, rows: int, name: bytes, value_starts: Any, value_sizes: Any) -> None:
    """Fill the position and size of the value of property `name` in each row; the position is -1 if it has none."""
    held: memoryview = memoryview(buffer).cast("B")
    views: list[memoryview] = [column_of(starts, 8), column_of(sizes, 4), column_of(value_starts, 8), column_of(value_sizes, 4)]
    if not 0 <= rows <= min([len(view) for view in views]):
        raise ValueError("more rows than places for them")
    source: Source = source_of(held)
    wanted: Source = source_of_bytes(name)
    wanted_size: Size = len(name)
    from_starts: I64s = i64s_of(views[0])
    from_sizes: I32s = i32s_of(views[1])
    to_starts: I64s = i64s_of(views[2])
    to_sizes: I32s = i32s_of(views[3])
    number: Size = rows
    limit: Size = len(held)
    row: Size = 0
    with cython.nogil:
        while row < number and _is_inside(from_starts[row], from_sizes[row], limit):
            _find_value(source, from_starts[row], from_sizes[row], wanted, wanted_size, to_starts, to_sizes, row)
            row += 1
    if row < rows:
        raise ValueError(f"row {row} lies outside the buffer")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_inside(start: I64, size: I32, limit: Size) -> Bool:
    """Return whether a range that the caller passed lies in the buffer."""
    return start >= 0 and 0 <= size <= limit and start <= limit - size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_value(
    source: Source, start: Size, size: Size, wanted: Source, wanted_size: Size, starts: I64s, sizes: I32s, row: Size
) -> Nothing:
    """Find a value in one row's properties; the last pair of that name counts."""
    properties: Source = window(source, start, size)
    at: Size = 0
    starts[row] = -1
    sizes[row] = 0
    while at < size:
        end: Size = find_byte(properties, at, size, PAIR_END)
        middle: Size = find_byte(properties, at, end, NAME_END)
        if at < middle < end - 1 and is_same(properties, at, middle - at, wanted, wanted_size):
            starts[row] = start + middle + 1
            sizes[row] = end - middle - 1
        at = end + 1


def split_pairs(
    buffer: Any,
    starts: Any,
    sizes: Any,
    rows: int,
    pair_ends: Any,
    name_starts: Any,
    name_sizes: Any,
    value_starts: Any,
    value_sizes: Any,
) -> int:
    """Split each row's properties into pairs; return their number.  `pair_ends` (32-bit, rows + 1) has where a row's pairs end.

    Of equal names in a row the last one stays.  Raises `ValueError` if the pair columns are too small: a pair takes at least
    four bytes of properties, the last one three.
    """
    held: memoryview = memoryview(buffer).cast("B")
    ends: memoryview = column_of(pair_ends, 4)
    views: list[memoryview] = [
        column_of(starts, 8), column_of(sizes, 4), column_of(name_starts, 8), column_of(name_sizes, 4),
        column_of(value_starts, 8), column_of(value_sizes, 4),
    ]  # fmt: skip
    if not 0 <= rows <= min(len(views[0]), len(views[1]), len(ends) - 1):
        raise ValueError("more rows than places for them")
    source: Source = source_of(held)
    from_starts: I64s = i64s_of(views[0])
    from_sizes: I32s = i32s_of(views[1])
    names: I64s = i64s_of(views[2])
    names_sizes: I32s = i32s_of(views[3])
    values: I64s = i64s_of(views[4])
    values_sizes: I32s = i32s_of(views[5])
    out_ends: I32s = i32s_of(ends)
    room: Size = min([len(view) for view in views[2:]])
    number: Size = rows
    limit: Size = len(held)
    row: Size = 0
    pairs: Size = 0
    with cython.nogil:
        out_ends[0] = 0
        while row < number and _is_inside(from_starts[row], from_sizes[row], limit):
            pairs = split_row(source, from_starts[row], from_sizes[row], pairs, room, names, names_sizes, values, values_sizes)
            if pairs < 0:
                break
            row += 1
            out_ends[row] = pairs
    if row < rows:
        raise ValueError(f"row {row} lies outside the buffer, or the pair columns are too small")
    return pairs


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def split_row(
    source: Source, start: Size, size: Size, pairs: Size, room: Size, names: I64s, name_sizes: I32s, values: I64s,
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
                if pairs >= room:
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
