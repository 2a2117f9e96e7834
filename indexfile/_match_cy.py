"""Compare index items, in the order in which a dispatcher adds them, with those of index files.

Most indexes hold exactly the items of the log's records, in log order.  The kernel goes through both sides together and lists
the physical offsets at which they differ; a caller gathers the items of those offsets and compares them as sets.  An index may
have or lack the optional items of a record, which follow its others.
"""

from __future__ import annotations

from array import array

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ._index_cy import IndexBuffer
from .layout import FIRST_ITEM, HEADER_SIZE, ITEM_KEY_HASH_AT, ITEM_PHYSICAL_OFFSET_AT, ITEM_SIZE, SLOT_SIZE

if not cython.compiled:
    from storebytes._bytes_cy import I32, I64, Bool, I64s, Nothing, Size, get_i32, get_i64, i64s_of

    from ._index_cy import is_optional, next_item

DIFFERING_MAX = 4096  # offsets listed in one call
SAME_RECORD_MAX = 32  # items of one record that are compared with each other; a record with more is listed
NO_OFFSET = -1


class ItemMatcher:
    """One comparison.  `unique` counts the different items of the records whose items agree."""

    __slots__ = ("_differing", "_held", "_state", "at", "differing_found", "differing_made", "unique")

    def __init__(self) -> None:
        """Start at the first item of an index."""
        self.at = FIRST_ITEM  # next item of the index file
        self.unique = 0
        self.differing_made = array("q")  # offsets whose items in the log differ from those in the index
        self.differing_found = array("q")  # offsets of items in the index that are not the next ones of the log
        differing = array("q", bytes(8 * 2 * DIFFERING_MAX))
        state = array("q", [0, 0, 0, 0, 0, NO_OFFSET])
        held: list[memoryview] = [memoryview(differing), memoryview(state)]
        self._held = held
        self._differing: I64s = i64s_of(held[0])
        self._state: I64s = i64s_of(held[1])

    def match(self, made: IndexBuffer, start: int, found: IndexBuffer | None, low: int, end: int) -> int:
        """Match the items of `made` from `start` on with those of `found` from `at` on; return where it stopped in `made`.

        Stops at the end of `made`, or of `found`, from which the caller goes on with the next file and `at` = 1.  With no
        `found` left, all items are listed.  Items of records outside of low..end are no part of the comparison.
        """
        first: Size = start
        least: I64 = low
        most: I64 = end
        has_found: Bool = found is not None
        used: IndexBuffer = found if found is not None else made
        stop: Size = next_item(made)
        last: Size = min(next_item(used), used.items) if has_found else 0
        while True:
            at: Size = self.at
            with cython.nogil:
                _match(made, first, stop, used, at, last, least, most, self._differing, self._state)
            first = self._state[0]
            self.at = self._state[1]
            self.unique += self._state[2]
            self._keep()
            if first >= stop or (has_found and self.at >= last):
                return first

    def list_last(self, made: IndexBuffer, low: int, end: int) -> None:
        """List the last record of `made`, whose further items follow in the next buffer."""
        stop: Size = next_item(made)
        offset: I64 = _offset(made, stop - 1)
        if stop > FIRST_ITEM and low <= offset < end and self._state[5] != offset:
            self.unique -= _unique_before(made, stop)
            self._state[5] = offset
            self.differing_made.append(offset)

    def rest(self, found: IndexBuffer, low: int, end: int) -> None:
        """List the offsets of the items of an index from `at` on, which the log does not have."""
        last: Size = min(next_item(found), found.items)
        position: Size = self.at
        least: I64 = low
        most: I64 = end
        while position < last:
            with cython.nogil:
                _rest(found, position, last, least, most, self._differing, self._state)
            position = self._state[1]
            self._state[3] = 0
            self._keep()
        self.at = position

    def _keep(self) -> None:
        """Move the listed offsets to the growing lists."""
        differing: memoryview = self._held[0]
        made: int = self._state[3]
        found: int = self._state[4]
        self.differing_made.frombytes(differing[:made].tobytes())
        self.differing_found.frombytes(differing[DIFFERING_MAX : DIFFERING_MAX + found].tobytes())


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _position(index: IndexBuffer, item: Size) -> Size:
    """Return the position of an item."""
    return HEADER_SIZE + SLOT_SIZE * index.slots + ITEM_SIZE * item


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _offset(index: IndexBuffer, item: Size) -> I64:
    return get_i64(index._target, _position(index, item) + ITEM_PHYSICAL_OFFSET_AT)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash(index: IndexBuffer, item: Size) -> I32:
    return get_i32(index._target, _position(index, item) + ITEM_KEY_HASH_AT)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _match(
    made: IndexBuffer, item: Size, stop: Size, found: IndexBuffer, at: Size, last: Size, low: I64, end: I64, differing: I64s,
    state: I64s,
) -> Nothing:  # fmt: skip
    """Fill state: next item of `made`, next item of `found`, counted items, listed offsets of each side.

    state[5] is the last offset listed for `made`: its further items are neither listed again nor counted.
    """
    unique: Size = 0
    differing_made: Size = 0
    differing_found: Size = 0
    listed: I64 = state[5]
    while item < stop and differing_made < DIFFERING_MAX and differing_found < DIFFERING_MAX:
        offset: I64 = _offset(made, item)
        if offset < low or offset >= end:
            item += 1
            continue
        may_lack: Bool = is_optional(made, item)
        is_differing: Bool = last == 0
        if is_differing and may_lack:
            item += 1
            continue
        if not is_differing:
            if at >= last:
                break
            there: I64 = _offset(found, at)
            if there < low or there >= end:
                at += 1
                continue
            if may_lack:
                at += 1 if there == offset and _hash(found, at) == _hash(made, item) else 0
                item += 1
                continue
            if there != offset and (there < offset or (at + 1 < last and _offset(found, at + 1) == offset)):
                differing[DIFFERING_MAX + differing_found] = there
                differing_found += 1
                at += 1
                continue
            if there == offset:
                is_differing = _hash(found, at) != _hash(made, item)
                at += 1
            else:
                is_differing = True
        if offset != listed and (is_differing or _is_long(made, item)):
            differing[differing_made] = offset
            differing_made += 1
            if item > FIRST_ITEM and _offset(made, item - 1) == offset:
                unique -= _unique_before(made, item)
            listed = offset
        elif offset != listed and not _is_repeat(made, item):
            unique += 1
        item += 1
    state[0] = item
    state[1] = at
    state[2] = unique
    state[3] = differing_made
    state[4] = differing_found
    state[5] = listed


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_long(made: IndexBuffer, item: Size) -> Bool:
    """Return whether a record has so many items that comparing all of them would take long."""
    return item > SAME_RECORD_MAX and _offset(made, item - SAME_RECORD_MAX) == _offset(made, item)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_repeat(made: IndexBuffer, item: Size) -> Bool:
    """Return whether an earlier item of the same record has the same hash."""
    before: Size = item - 1
    while before >= FIRST_ITEM and _offset(made, before) == _offset(made, item):
        if _hash(made, before) == _hash(made, item):
            return True
        before -= 1
    return False


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _unique_before(made: IndexBuffer, item: Size) -> Size:
    """Return how many items of the record of the item before were counted."""
    before: Size = item - 1
    offset: I64 = _offset(made, before)
    count: Size = 0
    while before >= FIRST_ITEM and _offset(made, before) == offset:
        count += 0 if is_optional(made, before) or _is_repeat(made, before) else 1
        before -= 1
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _rest(found: IndexBuffer, at: Size, last: Size, low: I64, end: I64, differing: I64s, state: I64s) -> Nothing:
    """List offsets in low..end: state[1] = next item, state[4] = listed offsets."""
    listed: Size = 0
    while at < last and listed < DIFFERING_MAX:
        offset: I64 = _offset(found, at)
        if low <= offset < end:
            differing[DIFFERING_MAX + listed] = offset
            listed += 1
        at += 1
    state[1] = at
    state[4] = listed
