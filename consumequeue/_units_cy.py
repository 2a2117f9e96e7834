"""Walk over packed queue units, without the GIL; the callers bound every buffer."""

from __future__ import annotations

from array import array

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import SECTOR_SIZE

from .layout import PHYSICAL_OFFSET_MAX, PRE_BLANK, SIZE_AT, UNIT_SIZE

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32,
        I64,
        Bool,
        I64s,
        Nothing,
        Size,
        Source,
        get_i32,
        get_i64,
        i64s_of,
        is_same,
        source_of,
        source_of_bytes,
    )

NO_SIZE = 0  # the size field if there is no unit
_BLANK: Source = source_of_bytes(PRE_BLANK)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_valid(source: Source, at: Size) -> Bool:
    """Return whether the offset is not negative and the size is positive."""
    return get_i64(source, at) >= 0 and get_i32(source, at + SIZE_AT) > NO_SIZE


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count_valid(source: Source, count: Size) -> Size:
    index: Size = 0
    while index < count and _is_valid(source, UNIT_SIZE * index):
        index += 1
    return index


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count_below(source: Source, count: Size, physical_offset: I64) -> Size:
    index: Size = 0
    while index < count and _is_valid(source, UNIT_SIZE * index) and get_i64(source, UNIT_SIZE * index) < physical_offset:
        index += 1
    return index


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _run(source: Source, count: Size, needs_new: Bool, state: I64s) -> Nothing:
    """Count the leading units that all advance the greatest record end, or all do not.

    state[0] = greatest record end, in and out; state[1] = number of units.
    """
    index: Size = 0
    offset: I64 = 0
    size: I32 = 0
    top: I64 = state[0]
    while index < count:
        offset = get_i64(source, UNIT_SIZE * index)
        size = get_i32(source, UNIT_SIZE * index + SIZE_AT)
        if offset < 0 or offset > PHYSICAL_OFFSET_MAX or size <= NO_SIZE:
            break
        if (offset + size > top) != needs_new:
            break
        if needs_new:
            top = offset + size
        index += 1
    state[0] = top
    state[1] = index


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_lost(source: Source, at: Size, kept: Size) -> Bool:
    """Return whether the unit at `at` begins with `kept` zeros and points before the unit that precedes it."""
    before: Size = at - UNIT_SIZE
    if get_i64(source, at) > get_i64(source, before) or is_same(source, before, UNIT_SIZE, _BLANK, UNIT_SIZE):
        return False
    index: Size = 0
    while index < kept and source[at + index] == 0:
        index += 1
    return index == kept


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _lost_front(source: Source, size: Size, position: Size, safe_offset: I64, state: I64s) -> Nothing:
    """Search sector borders backwards for units that lost their first bytes.

    state[0] = position of the first such unit, or -1; state[1] = 1 if a unit before `safe_offset` ended the search.
    """
    border: Size = (position + size - 1) // SECTOR_SIZE * SECTOR_SIZE
    state[0] = -1
    state[1] = 0
    while border > position:
        kept: Size = border % UNIT_SIZE
        at: Size = border - kept - position
        if at < UNIT_SIZE:
            break
        if kept > 0 and _is_lost(source, at, kept):
            state[0] = position + at
        if get_i64(source, at - UNIT_SIZE) < safe_offset:
            state[1] = 1
            break
        border -= SECTOR_SIZE


def find_lost_front(units: bytes | memoryview, position: int, safe_offset: int) -> tuple[int, bool]:
    """Find the first unit that lost the bytes before a sector border.

    The units begin at byte `position` of their file.  Returns the unit's position, or -1, and whether the search is finished:
    it goes backwards until a unit points before `safe_offset`.
    """
    held: memoryview = memoryview(units).cast("B")
    source: Source = source_of(held)
    size: Size = len(held) // UNIT_SIZE * UNIT_SIZE
    first: Size = position
    limit: I64 = safe_offset
    held_state: memoryview = memoryview(array("q", [0, 0]))
    state: I64s = i64s_of(held_state)
    with cython.nogil:
        _lost_front(source, size, first, limit, state)
    return state[0], state[1] != 0


def count_valid(units: bytes | memoryview) -> int:
    """Return the number of units before the first invalid one."""
    held: memoryview = memoryview(units).cast("B")
    source: Source = source_of(held)
    count: Size = len(held) // UNIT_SIZE
    found: Size = 0
    with cython.nogil:
        found = _count_valid(source, count)
    return found


def count_below(units: bytes | memoryview, physical_offset: int) -> int:
    """Return the number of units before the first that is invalid or points at or after `physical_offset`."""
    held: memoryview = memoryview(units).cast("B")
    source: Source = source_of(held)
    count: Size = len(held) // UNIT_SIZE
    limit: I64 = physical_offset
    found: Size = 0
    with cython.nogil:
        found = _count_below(source, count, limit)
    return found


def count_new(units: bytes | memoryview, max_physical_offset: int) -> tuple[int, int]:
    """Return the number of leading units that each advance the greatest record end, and that end after them."""
    return _count_run(units, max_physical_offset, True)


def count_repeated(units: bytes | memoryview, max_physical_offset: int) -> int:
    """Return the number of leading units whose record ends at or before `max_physical_offset`."""
    return _count_run(units, max_physical_offset, False)[0]


def _count_run(units: bytes | memoryview, max_physical_offset: int, needs_new: bool) -> tuple[int, int]:
    held: memoryview = memoryview(units).cast("B")
    source: Source = source_of(held)
    count: Size = len(held) // UNIT_SIZE
    new: Bool = needs_new
    held_state: memoryview = memoryview(array("q", [max_physical_offset, 0]))
    state: I64s = i64s_of(held_state)
    with cython.nogil:
        _run(source, count, new, state)
    return state[1], state[0]
