"""Many records into Arrow buffers in one pass: each is checked, decoded and copied while it is in the processor's cache.

Nothing here allocates or runs Python code, so the GIL is released.  The caller provides the buffers of the columns; the pass
stops before the first row that does not fit.
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ._scan_cy import column_of
from .layout import (
    BODY_AT, BORN_HOST_AT, BORN_HOST_V6, CRC_NAME, CRC_SIZE, HOST_GROWTH, HOST_SIZE, HOST_SIZE_V6, PAIR_END,
    PHYSICAL_OFFSET_AT, PROPERTIES_SIZE_MAX, STORE_HOST_V6, STORE_TIME_AT, SYS_FLAG_AT,
)  # fmt: skip

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32, I64, Bool, I32s, I64s, Size, Source, Target, find_byte, get_i16, get_i32, get_i64, i32s_of, i64s_of,
        is_same, is_same_at, prefetch, put_bytes, put_hex, source_of, source_of_bytes, target_of, window,
    )  # fmt: skip

    from ._record_cy import check_record, growth, has_trailer, topic_size_at, topic_size_size
    from ._scan_cy import split_row

AHEAD = 3  # rows that are prefetched
PREFETCHED_MAX = 4096  # bytes of a row that are prefetched
SPACE = 32
INT_MAX = 0x7FFFFFFF
PAIRS_MAX = PROPERTIES_SIZE_MAX // 4 + 1  # in one record: a pair takes four bytes, the last one three
_CRC_NAME: Source = source_of_bytes(CRC_NAME)
_KEYS: Source = source_of_bytes(b"KEYS\x01")
_TAGS: Source = source_of_bytes(b"TAGS\x01")


class TextColumn:
    """Values one after another: 32-bit offsets and bytes.  `mask`: one bit for each value that is present, initially zeros."""

    __slots__ = (
        "_capacity",
        "_data",
        "_held",
        "_held_mask",
        "_held_offsets",
        "_mask",
        "_offsets",
        "_positions",
        "count",
        "high",
        "used",
    )

    def __init__(self, offsets: Any, data: Any, mask: Any = None) -> None:
        """Take the buffers; `offsets` has one entry more than the maximum number of values."""
        self._held_offsets = column_of(offsets, 4)
        self._held = memoryview(data).cast("B")
        self._held_mask = memoryview(bytearray(8) if mask is None else mask).cast("B")
        if len(self._held_offsets) < 1 or self._held.readonly or self._held_mask.readonly:
            raise ValueError("room for an offset, and data that can be written, are wanted")
        if mask is not None and 8 * len(self._held_mask) < len(self._held_offsets) - 1:
            raise ValueError("a bit for each value is wanted")
        self._offsets: I32s = i32s_of(self._held_offsets)
        self._data: Target = target_of(self._held)
        self._mask: Target = target_of(self._held_mask)
        self._positions = len(self._held_offsets) - 1
        self._capacity = min(len(self._held), INT_MAX)
        self.count = 0  # number of values
        self.used = 0  # bytes of data
        self.high = 0  # all bytes of `_add_text` or-ed: below 128 if all are ASCII
        self._offsets[0] = 0


class Columns:
    """The output columns: numbers by their offset in a record with IPv4 hosts, and text columns or None.

    `wide` and `narrow` hold 64-bit and 32-bit numbers, column after column, each with room for `rows`.  `keys` and `pairs` have
    where the words and the properties of each row end.
    """

    __slots__ = (
        "_has_hosts", "_has_properties", "_has_texts", "_held", "_name_sizes", "_names", "_narrow", "_narrow_count",
        "_narrow_positions", "_value_sizes", "_values", "_wide", "_wide_count", "_wide_positions", "body", "born_host", "keys",
        "message_id", "names", "pairs", "rows", "store_host", "tags", "topic", "values", "words",
    )  # fmt: skip

    def __init__(
        self, rows: int, wide: Any, wide_positions: Any, narrow: Any, narrow_positions: Any, body: TextColumn | None = None,
        topic: TextColumn | None = None, tags: TextColumn | None = None, words: TextColumn | None = None, keys: Any = None, *,
        born_host: TextColumn | None = None, store_host: TextColumn | None = None, message_id: TextColumn | None = None,
        names: TextColumn | None = None, values: TextColumn | None = None, pairs: Any = None,
    ) -> None:  # fmt: skip
        """Take the buffers; `keys` and `pairs` have 32-bit offsets, one more than rows."""
        held = [column_of(wide, 8), column_of(wide_positions, 4), column_of(narrow, 4), column_of(narrow_positions, 4)]
        held += [column_of(array("i") if ends is None else ends, 4) for ends in (keys, pairs)]
        is_split = names is not None and values is not None
        scratch = [memoryview(array(kind, [0]) * (PAIRS_MAX if is_split else 1)) for kind in ("q", "i", "q", "i")]
        held += scratch
        self._held: list[memoryview] = held
        self.rows = rows
        self._wide_count = len(held[1])
        self._narrow_count = len(held[3])
        if rows < 0 or len(held[0]) < rows * self._wide_count or len(held[2]) < rows * self._narrow_count:
            raise ValueError("more rows than places for them")
        if words is not None and len(held[4]) <= rows:
            raise ValueError("more rows than places for their keys")
        if is_split and len(held[5]) <= rows:
            raise ValueError("more rows than places for their pairs")
        for positions, width in ((held[1], 8), (held[3], 4)):
            for position in positions:
                if not 0 <= position <= BODY_AT - width:
                    raise ValueError(f"no number lies at {position}")
        self._wide: I64s = i64s_of(held[0])
        self._wide_positions: I32s = i32s_of(held[1])
        self._narrow: I32s = i32s_of(held[2])
        self._narrow_positions: I32s = i32s_of(held[3])
        self.keys: I32s = i32s_of(held[4])
        self.pairs: I32s = i32s_of(held[5])
        self._names: I64s = i64s_of(scratch[0])
        self._name_sizes: I32s = i32s_of(scratch[1])
        self._values: I64s = i64s_of(scratch[2])
        self._value_sizes: I32s = i32s_of(scratch[3])
        self.body = body
        self.topic = topic
        self.tags = tags
        self.words = words
        self.born_host = born_host
        self.store_host = store_host
        self.message_id = message_id
        self.names = names if is_split else None
        self.values = values if is_split else None
        self._has_hosts = born_host is not None or store_host is not None or message_id is not None
        self._has_properties = tags is not None or words is not None or is_split
        self._has_texts = body is not None or topic is not None or self._has_hosts or self._has_properties

    def fill(self, buffer: Any, base: int, positions: Any, sizes: Any, rows: int, checks: int) -> int:
        """Fill the columns and return the number of rows filled.

        Stops before the first position without a record of its size, and before a row that does not fit.  `base` is the
        physical offset of the buffer's first byte.  Must be called once only.
        """
        held: memoryview = memoryview(buffer).cast("B")
        held_positions: memoryview = column_of(positions, 8)
        held_sizes: memoryview = column_of(sizes, 4)
        if not 0 <= rows <= min(len(held_positions), len(held_sizes), self.rows):
            raise ValueError("more rows than places for them")
        source: Source = source_of(held)
        limit: Size = len(held)
        begin: I64 = base
        locations: I64s = i64s_of(held_positions)
        lengths: I32s = i32s_of(held_sizes)
        number: Size = rows
        checks_made: I32 = checks
        row: Size = 0
        if self.words is not None:
            self.keys[0] = 0
        if self.names is not None:
            self.pairs[0] = 0
        with cython.nogil:
            row = _fill(self, source, limit, begin, locations, lengths, number, checks_made)
        return row


def split_units(units: Any, stride: int, base: int, limit: int, bytes_max: int, positions: Any, sizes: Any) -> tuple[int, int]:
    """Split entries of `stride` bytes, each with a physical offset and a size, into columns: (rows, bytes of their records).

    Stops before the first record that is not inside the `limit` bytes from `base` on, or that makes more than `bytes_max`
    bytes.
    """
    held: memoryview = memoryview(units).cast("B")
    held_positions: memoryview = column_of(positions, 8)
    held_sizes: memoryview = column_of(sizes, 4)
    source: Source = source_of(held)
    locations: I64s = i64s_of(held_positions)
    lengths: I32s = i32s_of(held_sizes)
    step: Size = stride
    if step < 12:
        raise ValueError(f"an entry of {stride} bytes holds no offset and size")
    count: Size = min(len(held) // step, len(held_positions), len(held_sizes))
    begin: I64 = base
    capacity: Size = limit
    most: Size = bytes_max
    total: Size = 0
    row: Size = 0
    with cython.nogil:
        while row < count:
            physical: I64 = get_i64(source, step * row)
            size: I32 = get_i32(source, step * row + 8)
            if physical < begin or not _is_inside(physical - begin, size, capacity) or (row > 0 and total + size > most):
                break
            locations[row] = physical - begin
            lengths[row] = size
            total += size
            row += 1
    return row, total


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(
    columns: Columns, source: Source, limit: Size, base: I64, positions: I64s, sizes: I32s, rows: Size, checks: I32
) -> Size:
    """Fill row by row; prefetch the bytes of the next rows."""
    row: Size = 0
    while row < rows:
        ahead: Size = row + AHEAD
        if ahead < rows and _is_inside(positions[ahead], sizes[ahead], limit):
            prefetch(source, positions[ahead], sizes[ahead] if sizes[ahead] < PREFETCHED_MAX else PREFETCHED_MAX)
        at: Size = positions[row]
        if not _is_inside(at, sizes[row], limit) or check_record(source, at, limit, base, checks) != sizes[row]:
            break
        if columns._has_texts and not _add_texts(columns, source, at, row):
            break
        _add_numbers(columns, source, at, row)
        row += 1
    return row


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_inside(at: I64, size: I32, limit: Size) -> Bool:
    """Return whether a range that the caller passed lies in the buffer."""
    return at >= 0 and 0 < size <= limit and at <= limit - size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_numbers(columns: Columns, source: Source, at: Size, row: Size) -> Bool:
    """Copy the numbers of a checked record; IPv6 hosts shift the fields after them."""
    sys_flag: I32 = get_i32(source, at + SYS_FLAG_AT)
    born_grown: Size = HOST_GROWTH if sys_flag & BORN_HOST_V6 else 0
    grown: Size = born_grown + (HOST_GROWTH if sys_flag & STORE_HOST_V6 else 0)
    wide: I64s = columns._wide  # in local variables, which a store to a column cannot change
    narrow: I32s = columns._narrow
    positions: I32s = columns._wide_positions
    count: Size = columns._wide_count
    rows: Size = columns.rows
    slot: Size = row
    index: Size = 0
    position: Size
    while index < count:
        position = positions[index]
        if grown and position >= STORE_TIME_AT:
            position += grown if position > STORE_TIME_AT else born_grown
        wide[slot] = get_i64(source, at + position)
        slot += rows
        index += 1
    positions = columns._narrow_positions
    count = columns._narrow_count
    slot = row
    index = 0
    while index < count:
        position = positions[index]
        if grown and position >= STORE_TIME_AT:
            position += grown if position > STORE_TIME_AT else born_grown
        narrow[slot] = get_i32(source, at + position)
        slot += rows
        index += 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_hosts(columns: Columns, source: Source, at: Size) -> Bool:
    """Copy the hosts and the message id of a checked record; return False if one of them does not fit."""
    sys_flag: I32 = get_i32(source, at + SYS_FLAG_AT)
    position: Size = at + BORN_HOST_AT
    size: Size = HOST_SIZE_V6 if sys_flag & BORN_HOST_V6 else HOST_SIZE
    if columns.born_host is not None and not _add(columns.born_host, source, position, size):
        return False
    position += size + 8
    size = HOST_SIZE_V6 if sys_flag & STORE_HOST_V6 else HOST_SIZE
    if columns.store_host is not None and not _add(columns.store_host, source, position, size):
        return False
    return columns.message_id is None or _add_id(columns.message_id, source, position, size, at + PHYSICAL_OFFSET_AT)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_id(column: TextColumn, source: Source, host_at: Size, host_size: Size, offset_at: Size) -> Bool:
    """Add a message id: store host and physical offset in upper-case hex."""
    size: Size = 2 * (host_size + 8)
    if size > column._capacity - column.used or column.count >= column._positions:
        return False
    put_hex(column._data, column.used, source, host_at, host_size, True)
    put_hex(column._data, column.used + 2 * host_size, source, offset_at, 8, True)
    column.used += size
    column.count += 1
    column._offsets[column.count] = column.used
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_texts(columns: Columns, source: Source, at: Size, row: Size) -> Bool:
    """Copy hosts, body, topic and properties of a checked record; return False if one of them does not fit."""
    if columns._has_hosts and not _add_hosts(columns, source, at):
        return False
    position: Size = at + growth(source, at) + BODY_AT
    body_size: Size = get_i32(source, position - 4)
    if columns.body is not None and not _add(columns.body, source, position, body_size):
        return False
    position += body_size
    topic_size: Size = topic_size_at(source, at, position)
    position += topic_size_size(source, at)
    if columns.topic is not None and not _add_text(columns.topic, source, position, topic_size):
        return False
    if not columns._has_properties:
        return True
    position += topic_size
    size: Size = get_i16(source, position)
    if has_trailer(source, position + 2 + size, size):
        size -= CRC_SIZE
    if columns.names is not None and columns.values is not None:
        if not _add_pairs(columns, columns.names, columns.values, source, position + 2, size, row):
            return False
    return (columns.tags is None and columns.words is None) or _add_tags_and_keys(columns, source, position + 2, size, row)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_pairs(
    columns: Columns, names_column: TextColumn, values_column: TextColumn, source: Source, start: Size, size: Size, row: Size
) -> Bool:
    """Copy every pair but the checksum, which may also stand before other pairs."""
    names: I64s = columns._names
    sizes: I32s = columns._name_sizes
    count: Size = split_row(source, start, size, 0, PAIRS_MAX, names, sizes, columns._values, columns._value_sizes)
    pair: Size = 0
    while pair < count:
        if not is_same(source, names[pair], sizes[pair], _CRC_NAME, 8):
            if not _add_text(names_column, source, names[pair], sizes[pair]):
                return False
            if not _add_text(values_column, source, columns._values[pair], columns._value_sizes[pair]):
                return False
        pair += 1
    columns.pairs[row + 1] = names_column.count
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_tags_and_keys(columns: Columns, source: Source, start: Size, size: Size, row: Size) -> Bool:
    """Copy tags and keys; of equal names the last pair counts."""
    properties: Source = window(source, start, size)
    tags_at: Size = -1
    tags_size: Size = 0
    keys_at: Size = 0
    keys_size: Size = 0
    at: Size = 0
    while at < size:
        end: Size = find_byte(properties, at, size, PAIR_END)
        if end - at > 5 and is_same_at(properties, at, 5, _TAGS, 0):
            tags_at = at + 5
            tags_size = end - tags_at
        elif end - at > 5 and is_same_at(properties, at, 5, _KEYS, 0):
            keys_at = at + 5
            keys_size = end - keys_at
        at = end + 1
    if columns.tags is not None:
        if tags_at >= 0:
            _mark(columns.tags, row)
        if not _add_text(columns.tags, properties, tags_at, tags_size):
            return False
    if columns.words is not None:
        if not _add_words(columns.words, properties, keys_at, keys_at + keys_size):
            return False
        columns.keys[row + 1] = columns.words.count
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_words(column: TextColumn, source: Source, at: Size, stop: Size) -> Bool:
    """Add the words between spaces; empty words are skipped."""
    while at < stop:
        end: Size = find_byte(source, at, stop, SPACE)
        if end > at and not _add_text(column, source, at, end - at):
            return False
        at = end + 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _mark(column: TextColumn, row: Size) -> Bool:
    """Set the bit of a row that has a value."""
    column._mask[row >> 3] |= 1 << (row & 7)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add(column: TextColumn, source: Source, at: Size, size: Size) -> Bool:
    """Add a value; return False if it does not fit."""
    if size > column._capacity - column.used or column.count >= column._positions:
        return False
    if size > 0:
        put_bytes(column._data, column.used, source, at, size)
    column.used += size
    column.count += 1
    column._offsets[column.count] = column.used
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_text(column: TextColumn, source: Source, at: Size, size: Size) -> Bool:
    """Add a value and record whether its bytes are ASCII."""
    high: I32 = 0  # a local variable, which the bytes cannot change
    index: Size = 0
    while index < size:
        high |= source[at + index]
        index += 1
    column.high |= high
    return _add(column, source, at, size)
