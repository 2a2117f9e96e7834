"""Records as lines of ASCII JSON, copied from the log's bytes into a buffer without an object for each message.

`fields.FIELDS` gives the keys and their order.  Unusual records are left to the caller: property names that
are not UTF-8, more than PAIRS_MAX properties, an IPv4 address mapped into an IPv6 one (Python versions format it differently).
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ._scan_cy import column_of
from .fields import FIELDS, HEX, HOST, ID, INT, KEYS, LONG, PROPERTIES, TAGS, TOPIC
from .layout import (
    BODY_AT, BORN_HOST_AT, BORN_HOST_V6, HOST_GROWTH, HOST_SIZE, HOST_SIZE_V6, PHYSICAL_OFFSET_AT, SIZE_AT, STORE_HOST_AT,
    STORE_HOST_V6, STORE_TIME_AT, SYS_FLAG_AT,
)  # fmt: skip

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32, Bool, I32s, I64s, Size, Source, Target, find_byte, get_i16, get_i32, get_i64, has_bytes, i32s_of,
        i64s_of, is_same, put_base64, put_bytes, put_decimal, put_hex, put_json_text, source_of, source_of_bytes, target_of,
        window,
    )  # fmt: skip

    from ._record_cy import check_record, topic_position, topic_size_at, topic_size_size
    from ._scan_cy import split_row

PAIRS_MAX = 128
FIXED_SIZE_MAX = 1024  # a line without body, topic and properties: less than 400 for WORDS, less than 400 for the rest, slack
TEXT_GROWTH = 6  # maximum JSON characters for a byte
PROPERTIES_GROWTH = 24  # twice as text, once more as one-letter keys in quotes, and separators
QUOTE, COMMA, COLON, DOT, OPEN, CLOSE, SPACE = 34, 44, 58, 46, 91, 93, 32
UNUSUAL = -1
_BRACKETS = {KEYS: "[]", PROPERTIES: "{}", TAGS: ("", ""), INT: ("", ""), LONG: ("", "")}
_OPENINGS, _CLOSINGS = zip(*(_BRACKETS.get(field.kind, '""') for field in FIELDS), strict=True)
FIELD_COUNT = len(FIELDS)
# What stands before each field, after the last one, for a missing text, and for bytes that are not UTF-8.
WORDS = (
    *(
        f'{before}"{field.json_name}":{opening}'
        for before, field, opening in zip(("{", *(f"{mark}," for mark in _CLOSINGS)), FIELDS, _OPENINGS, strict=False)
    ),
    _CLOSINGS[FIELD_COUNT - 1] + "}\n", "null", "\\ufffd",
)  # fmt: skip
END_WORD, NULL_WORD, REPLACEMENT_WORD = FIELD_COUNT, FIELD_COUNT + 1, FIELD_COUNT + 2
WORD_CAPACITY = 48  # all words are copied with this size: with a constant one the compiler needs no call
_PADDED = b"".join(word.encode().ljust(WORD_CAPACITY) for word in WORDS)
_SIZES_HELD: memoryview = memoryview(array("i", map(len, WORDS)))
_WORDS: Source = source_of_bytes(_PADDED)
_SIZES: I32s = i32s_of(_SIZES_HELD)
_KINDS_HELD: memoryview = memoryview(array("i", [field.kind for field in FIELDS]))
_POSITIONS_HELD: memoryview = memoryview(array("i", [field.at for field in FIELDS]))
_KINDS: I32s = i32s_of(_KINDS_HELD)
_LOCATIONS: I32s = i32s_of(_POSITIONS_HELD)
_TAGS: Source = source_of_bytes(b"TAGS")
_KEYS: Source = source_of_bytes(b"KEYS")
assert len(_PADDED) == WORD_CAPACITY * len(WORDS) and sum(map(len, WORDS)) < 400


def render(buffer: Any, positions: Any, start: int, out: Any) -> tuple[int, int, int]:
    """Write lines of the checked records at `positions` (64-bit), from entry `start` on, into `out`.

    Returns (the entry where it stopped, bytes written, maximum size of the next line: 0 if the entry is left to the caller).
    """
    held: memoryview = memoryview(buffer).cast("B")
    locations: memoryview = column_of(positions, 8)
    held_out: memoryview = memoryview(out).cast("B")
    columns: list[memoryview] = [memoryview(array(kind, [0] * PAIRS_MAX)) for kind in ("q", "i", "q", "i")]
    source: Source = source_of(held)
    target: Target = target_of(held_out)
    records: I64s = i64s_of(locations)
    names: I64s = i64s_of(columns[0])
    name_sizes: I32s = i32s_of(columns[1])
    values: I64s = i64s_of(columns[2])
    value_sizes: I32s = i32s_of(columns[3])
    limit: Size = len(held)
    capacity: Size = len(held_out)
    rows: Size = len(locations)
    row: Size = start
    at: Size = 0
    need: Size = 0
    if held_out.readonly or row < 0:
        raise ValueError("a buffer to write to and an entry from 0 on are wanted")
    with cython.nogil:
        while row < rows:
            record: Size = records[row]
            if record < 0 or record > limit or check_record(source, record, limit, 0, 0) <= 0:
                need = UNUSUAL
                break
            need = _line_size_max(source, record)
            if need > capacity - at:
                break
            stop: Size = _put_line(target, at, source, record, names, name_sizes, values, value_sizes)
            if stop < 0:
                need = 0
                break
            at = stop
            row += 1
    if need < 0:
        raise ValueError(f"entry {row}: no record lies at {locations[row]}")
    return row, at, need


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _line_size_max(source: Source, record: Size) -> Size:
    """Return the maximum size of the record's line in bytes."""
    position: Size = topic_position(source, record)
    topic_size: Size = topic_size_at(source, record, position)
    rest: Size = record + get_i32(source, record + SIZE_AT) - position - topic_size
    return FIXED_SIZE_MAX + (position - record) * 4 // 3 + TEXT_GROWTH * topic_size + PROPERTIES_GROWTH * rest


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _word(out: Target, at: Size, index: Size) -> Size:
    """Write one of WORDS; return the position after it.  What is written behind it is overwritten, or left in the slack."""
    put_bytes(out, at, _WORDS, WORD_CAPACITY * index, 48)
    size: Size = _SIZES[index]
    return at + size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_line(
    out: Target, at: Size, source: Source, record: Size, names: I64s, name_sizes: I32s, values: I64s, value_sizes: I32s
) -> Size:  # fmt: skip
    """Write a line; return the position after it, or UNUSUAL."""
    topic_at: Size = topic_position(source, record)
    topic_size: Size = topic_size_at(source, record, topic_at)
    topic_start: Size = topic_at + topic_size_size(source, record)
    properties_at: Size = topic_start + topic_size
    properties_size: Size = get_i16(source, properties_at)
    pairs: Size = split_row(source, properties_at + 2, properties_size, 0, PAIRS_MAX, names, name_sizes, values, value_sizes)
    if pairs < 0:
        return UNUSUAL
    sys_flag: I32 = get_i32(source, record + SYS_FLAG_AT)
    born_grown: Size = HOST_GROWTH if sys_flag & BORN_HOST_V6 else 0
    grown: Size = born_grown + (HOST_GROWTH if sys_flag & STORE_HOST_V6 else 0)
    body_at: Size = record + BODY_AT + grown
    kinds: I32s = _KINDS
    positions: I32s = _LOCATIONS
    field: Size = 0
    while field < FIELD_COUNT:
        at = _word(out, at, field)
        kind: I32 = kinds[field]
        position: Size = record + positions[field]
        if grown and positions[field] >= STORE_TIME_AT:
            position += grown if positions[field] > STORE_HOST_AT else born_grown
        if kind == INT:
            at = put_decimal(out, at, get_i32(source, position))
        elif kind == LONG:
            at = put_decimal(out, at, get_i64(source, position))
        elif kind == HEX:
            at = put_hex(out, at, source, position, 4, False)
        elif kind == HOST:
            is_born: Bool = positions[field] == BORN_HOST_AT
            at = _put_host(out, at, source, position, _host_size(sys_flag & (BORN_HOST_V6 if is_born else STORE_HOST_V6)))
        elif kind == ID:
            at = put_hex(out, at, source, record + STORE_HOST_AT + born_grown, _host_size(sys_flag & STORE_HOST_V6), True)
            at = put_hex(out, at, source, record + PHYSICAL_OFFSET_AT, 8, True)
        elif kind == TOPIC:
            at = put_json_text(out, at, source, topic_start, topic_size)
        elif kind == TAGS:
            slot: Size = _find(source, names, name_sizes, pairs, _TAGS)
            at = _word(out, at, NULL_WORD) if slot < 0 else _put_quoted(out, at, source, values[slot], value_sizes[slot])
        elif kind == KEYS:
            slot = _find(source, names, name_sizes, pairs, _KEYS)
            if slot >= 0:
                at = _put_keys(out, at, source, values[slot], value_sizes[slot])
        elif kind == PROPERTIES:
            at = _put_properties(out, at, source, pairs, names, name_sizes, values, value_sizes)
        else:
            at = put_base64(out, at, source, body_at, topic_at - body_at)
        if at < 0:
            return UNUSUAL
        field += 1
    return _word(out, at, END_WORD)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _host_size(is_v6: I32) -> Size:
    """Return the size of a host as stored."""
    return HOST_SIZE_V6 if is_v6 else HOST_SIZE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_host(out: Target, at: Size, source: Source, position: Size, size: Size) -> Size:
    """Write `ip:port`, IPv6 in brackets; return UNUSUAL for an IPv4 address mapped into an IPv6 one."""
    if size == HOST_SIZE_V6:
        at = _put_v6(out, at, source, position)
        if at < 0:
            return UNUSUAL
    else:
        byte: Size = 0
        while byte < 4:
            at = put_decimal(out, at, source[position + byte])
            out[at] = DOT
            at += 1
            byte += 1
        at -= 1
    out[at] = COLON
    return put_decimal(out, at + 1, get_i32(source, position + size - 4))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_v6(out: Target, at: Size, source: Source, position: Size) -> Size:
    """Write groups in hex without leading zeros; the first longest run of two or more zero groups becomes `::`."""
    if get_i64(source, position) == 0 and get_i32(source, position + 8) == 0xFFFF:
        return UNUSUAL
    run: Size = _zero_run(source, position)
    group: Size = 0
    out[at] = OPEN
    at += 1
    while group < 8:
        if group == run // 16 and run >= 0:
            out[at] = COLON
            at += 1
            group += run % 16
            if group == 8:
                out[at] = COLON
                at += 1
        else:
            if group > 0:
                out[at] = COLON
                at += 1
            at = _put_group(out, at, get_i16(source, position + 2 * group) & 0xFFFF)
            group += 1
    out[at] = CLOSE
    return at + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _zero_run(source: Source, position: Size) -> Size:
    """Return 16 x the first group of the longest run of zero groups + its length; -1 if no run has two groups."""
    best: Size = -1
    length: Size = 0
    group: Size = 0
    while group < 8:
        length = length + 1 if get_i16(source, position + 2 * group) == 0 else 0
        group += 1
        if length > 1 and (best < 0 or length > best % 16):
            best = 16 * (group - length) + length
    return best


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_group(out: Target, at: Size, value: I32) -> Size:
    """Write a group in hex without leading zeros."""
    shift: I32 = 12
    while shift > 0 and value >> shift == 0:
        shift -= 4
    while shift >= 0:
        digit: I32 = value >> shift & 15
        out[at] = digit + (48 if digit < 10 else 87)
        at += 1
        shift -= 4
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_properties(
    out: Target, at: Size, source: Source, pairs: Size, names: I64s, name_sizes: I32s, values: I64s, value_sizes: I32s
) -> Size:  # fmt: skip
    """Write all pairs; return the position after them, or UNUSUAL."""
    slot: Size = 0
    while slot < pairs:
        at = _put_name(out, at, source, names[slot], name_sizes[slot])
        if at < 0:
            return UNUSUAL
        out[at] = COLON
        at = _put_quoted(out, at + 1, source, values[slot], value_sizes[slot])
        slot += 1
        if slot < pairs:
            out[at] = COMMA
            at += 1
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_name(out: Target, at: Size, source: Source, start: Size, size: Size) -> Size:
    """Write a name as a JSON string; return UNUSUAL if it is not UTF-8.

    Two such names can become equal as text, and of equal names the last one counts.
    """
    stop: Size = _put_quoted(out, at, source, start, size)
    if stop - at > size + 2 and has_bytes(
        window(out, at, stop - at), stop - at, window(_WORDS, WORD_CAPACITY * REPLACEMENT_WORD, 6), 6
    ):
        return UNUSUAL
    return stop


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find(source: Source, names: I64s, name_sizes: I32s, pairs: Size, needle: Source) -> Size:
    """Return the index of the pair with a four-letter name, -1 if there is none."""
    slot: Size = 0
    while slot < pairs:
        if is_same(source, names[slot], name_sizes[slot], needle, 4):
            return slot
        slot += 1
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_quoted(out: Target, at: Size, source: Source, start: Size, size: Size) -> Size:
    """Write a JSON string with its quotes."""
    out[at] = QUOTE
    at = put_json_text(out, at + 1, source, start, size)
    out[at] = QUOTE
    return at + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_keys(out: Target, at: Size, source: Source, start: Size, size: Size) -> Size:
    """Write the words of a text as JSON strings, separated by commas."""
    words: Source = window(source, start, size)
    is_first: Bool = True
    begin: Size = 0
    while begin < size:
        end: Size = find_byte(words, begin, size, SPACE)
        if end > begin:
            if not is_first:
                out[at] = COMMA
                at += 1
            at = _put_quoted(out, at, source, start + begin, end - begin)
            is_first = False
        begin = end + 1
    return at
