"""What a walk over a whole log needs: positions of checked records, and a search for bytes that are not zero."""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from .checks import STOPS
from .layout import PAIR_END

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32, I64, Bool, I64s, Nothing, Size, Source, get_i16, i64s_of, is_same_at, source_of, source_of_bytes,
    )  # fmt: skip

    from ._record_cy import check_record, has_trailer, topic_place, topic_size_at, topic_size_size

BLOCK_SIZE = 4096
_ZERO_BYTES = bytes(BLOCK_SIZE)  # keeps the memory of the next
_ZERO_BLOCK: Source = source_of_bytes(_ZERO_BYTES)


def scan_positions(buffer: Any, start: int, stop: int, base: int, checks: int, positions: Any) -> tuple[int, str, int, int]:
    """Fill positions (64-bit) of records: (end position, reason of the stop, rows filled, records with a checksum property)."""
    held: memoryview = memoryview(buffer).cast("B")
    held_positions: memoryview = memoryview(positions)
    if held_positions.itemsize != 8 or held_positions.readonly or not held_positions.c_contiguous:
        raise ValueError("a writable array of 64-bit integers is wanted")
    state: memoryview = memoryview(array("q", [0] * 4))
    source: Source = source_of(held)
    at: Size = start
    end: Size = stop
    begin: I64 = base
    wanted: I32 = checks
    room: Size = len(held_positions)
    out: I64s = i64s_of(held_positions)
    found: I64s = i64s_of(state)
    if not 0 <= at <= end <= len(held):
        raise ValueError(f"{start}..{stop} is not inside the buffer of {len(held)} bytes")
    with cython.nogil:
        _scan_positions(source, at, end, begin, wanted, room, out, found)
    return state[0], "end" if state[0] == stop else "full" if state[1] > 0 else STOPS[state[1]], state[2], state[3]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan_positions(
    source: Source, at: Size, stop: Size, base: I64, checks: I32, room: Size, positions: I64s, state: I64s
) -> Nothing:
    """Fill state: end position, last result, rows, records with a checksum property."""
    size: Size = 1
    row: Size = 0
    protected: Size = 0
    while at < stop and row < room:
        size = check_record(source, at, stop, base, checks)
        if size <= 0:
            break
        protected += 1 if _is_protected(source, at, size) else 0
        positions[row] = at
        at += size
        row += 1
    state[0] = at
    state[1] = size
    state[2] = row
    state[3] = protected


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
