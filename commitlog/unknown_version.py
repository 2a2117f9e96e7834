"""Distinguish a record of an unknown version from damage (`docs/formats/commitlog.md#unknown-versions`).

A position in the log is the start of a record of an unknown version if all of these hold:

- its magic is neither known nor zero;
- its size is at least that of the smallest record, and leaves room for a blank record in the file;
- it contains its own physical offset at the position that every known version uses;
- its bytes are not those of a known version with a changed magic: with no known magic the checksum over the whole record is
  correct.

At physical offset 0, and at a position that only a search has found, the record must also be framed: it is followed by a whole
record, a blank record that reaches the file's end, another such start, or zeros; or a checksum of it is correct.
"""

from __future__ import annotations

from storebytes._crc_cy import checksum

from ._record_cy import check, is_protected
from ._scan_cy import find_nonzero
from .checks import BLANK, CHECK_ALL, CHECK_BODY, CHECK_POSITION, EMPTY
from .cursor import is_whole_blank
from .layout import (
    BLANK_SIZE,
    BODY_CRC_AT,
    CRC_DIGITS,
    CRC_MASK,
    CRC_NAME,
    CRC_SIZE,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NAME_END,
    PAIR_END,
    PHYSICAL_OFFSET_AT,
    RECORD_SIZE_MIN,
    SIZE_AT,
)
from .mapped_file import MappedFile

_KNOWN = (MAGIC_V1, MAGIC_V2)
_WINDOW_BITS = 16  # offsets that share all but their last two bytes
_PIECE = 1 << 20


def is_unknown_version(view: memoryview, at: int, base: int, *, is_searched: bool = False) -> bool:
    """Return whether a record of an unknown version starts at `at`; `base` is the physical offset of the view's first byte."""
    if not _is_head(view, at, base) or _is_changed_magic(view, at, base):
        return False
    needs_frame = is_searched or base + at == 0
    return not needs_frame or _is_framed(view, at, base) or _has_checksum(view, at, base)


def fits_known_version(view: memoryview, at: int, base: int) -> bool:
    """Return whether all but the magic is a whole record of a known version: then only the magic may be damaged."""
    if not _is_head(view, at, base):
        return False
    changed = (_with_magic(view, at, magic) for magic in _KNOWN)
    return any(check(data, 0, len(data), base + at, CHECK_BODY | CHECK_POSITION) == len(data) for data in changed)


def find_unknown_version(file: MappedFile, start: int, stop: int | None = None) -> int:
    """Return the first position in start..stop of a file where such a record starts, or -1."""
    end = file.size_bytes if stop is None else stop
    if end - start < RECORD_SIZE_MIN:
        return -1
    for first, last in file.pieces_of_data(start, _PIECE):
        if first >= end:
            break
        low, high = max(start, first - PHYSICAL_OFFSET_AT), min(last, end)
        after = min(high + PHYSICAL_OFFSET_AT + 8, file.size_bytes)
        if find_nonzero(file.view, low, after) < 0:
            continue
        data = bytes(file.view[low:after])
        for at in _positions(data, low, high, file.start_offset):
            if is_unknown_version(file.view, at, file.start_offset, is_searched=True):
                return at
    return -1


def _integer(view: memoryview, at: int, size_bytes: int = 4) -> int:
    return int.from_bytes(view[at : at + size_bytes], "big", signed=True)


def _is_head(view: memoryview, at: int, base: int) -> bool:
    """Return whether size and physical offset are those of a record, and the magic is unknown."""
    if at + RECORD_SIZE_MIN + BLANK_SIZE > len(view):
        return False
    magic = _integer(view, at + MAGIC_AT)
    if magic in (0, MAGIC_BLANK, *_KNOWN):
        return False
    size = _integer(view, at + SIZE_AT)
    return RECORD_SIZE_MIN <= size <= len(view) - at - BLANK_SIZE and _integer(view, at + PHYSICAL_OFFSET_AT, 8) == base + at


def _with_magic(view: memoryview, at: int, magic: int) -> bytes:
    size = _integer(view, at + SIZE_AT)
    data = bytearray(view[at : at + size])
    data[MAGIC_AT : MAGIC_AT + 4] = magic.to_bytes(4, "big", signed=True)
    return bytes(data)


def _is_changed_magic(view: memoryview, at: int, base: int) -> bool:
    """Return whether the whole-record checksum is correct with a known magic: then the magic is damaged."""
    for magic in _KNOWN:
        data = _with_magic(view, at, magic)
        if check(data, 0, len(data), base + at, CHECK_ALL) == len(data) and is_protected(data, 0, len(data)):
            return True
    return False


def _is_framed(view: memoryview, at: int, base: int) -> bool:
    """Return whether the bytes directly after the record can follow one."""
    end = at + _integer(view, at + SIZE_AT)
    code = check(view, end, len(view), base, CHECK_POSITION)
    if code == BLANK:
        return is_whole_blank(view[end:], len(view) - end)
    return code > 0 or code == EMPTY or _is_head(view, end, base)


def _has_checksum(view: memoryview, at: int, base: int) -> bool:
    """Return whether the whole-record checksum is correct, or, in the layout of a known version, that of the body."""
    size = _integer(view, at + SIZE_AT)
    end = bytes(view[at + size - CRC_SIZE : at + size])
    digits = end[-1 - CRC_DIGITS : -1]
    if end.startswith(CRC_NAME + bytes([NAME_END])) and end[-1] == PAIR_END and digits.isdigit():
        return checksum(bytes(view[at : at + size - CRC_SIZE])) & CRC_MASK == int(digits[::-1])
    return any(view[at + BODY_CRC_AT : at + BODY_CRC_AT + 4]) and fits_known_version(view, at, base)


def _positions(data: bytes, low: int, high: int, base: int) -> list[int]:
    """Return each position of low..high that a record starting there would contain as its physical offset.

    `data` begins at `low`.  All offsets of a window share their first six bytes, which are searched for.
    """
    found = []
    window = (base + low) >> _WINDOW_BITS
    while (window << _WINDOW_BITS) < base + high:
        start = max((window << _WINDOW_BITS) - base, low)
        stop = min(((window + 1) << _WINDOW_BITS) - base, high)
        shared = window.to_bytes(6, "big")
        hit = data.find(shared, start - low + PHYSICAL_OFFSET_AT, stop - low + PHYSICAL_OFFSET_AT + 6)
        while hit >= 0:
            at = low + hit - PHYSICAL_OFFSET_AT
            if int.from_bytes(data[hit + 6 : hit + 8], "big") == (base + at) & 0xFFFF:
                found.append(at)
            hit = data.find(shared, hit + 1, stop - low + PHYSICAL_OFFSET_AT + 6)
        window += 1
    return found
