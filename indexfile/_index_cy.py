"""Add keys to the bytes of one index file, and look them up.

An item is written before the slot that leads to it.  The count is written after both, and only the end times follow it, as in
RocketMQ: a reader beside the writer never follows a chain into an item that does not exist yet.
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from .layout import (
    BAD_COUNT,
    BAD_HASH,
    BAD_PREVIOUS,
    BAD_SLOT,
    BEGIN_OFFSET_AT,
    BEGIN_TIME_AT,
    NEXT_ITEM_AT,
    END_OFFSET_AT,
    END_TIME_AT,
    FIRST_ITEM,
    HEADER_SIZE,
    ITEM_KEY_HASH_AT,
    ITEM_PHYSICAL_OFFSET_AT,
    ITEM_PREVIOUS_AT,
    ITEM_SECONDS_AT,
    ITEM_SIZE,
    KEY_HASH_NONE,
    NO_ITEM,
    SECONDS_MAX,
    SECONDS_OPTIONAL,
    SLOT_SIZE,
    SLOTS_USED_AT,
    SOUND,
    TAGS_LEFT_OUT,
)

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32,
        I64,
        Bool,
        I32s,
        I64s,
        Nothing,
        Size,
        Source,
        Target,
        get_i32,
        get_i64,
        i32s_of,
        i64s_of,
        java_hash,
        java_hash_of_text,
        prefetch,
        publish_i32,
        put_i32,
        put_i64,
        source_of_bytes,
        take_bytes,
        target_of,
    )

MS_PER_SECOND = 1000
BLOCK_SLOTS = 1024  # checked in one loop
PAGE_SIZE = 4096
AHEAD_ITEMS = 16  # prefetch distance of `replay`
_JOINT: Source = source_of_bytes(b"#")
TIME_MAX_MS = 1 << 61  # a damaged begin must not overflow when seconds are added


class IndexBuffer:
    """The bytes of an index file: header, slots, items.

    Keeps the buffer alive.  One thread puts; any number of threads select.
    """

    __slots__ = ("_target", "_view", "has_sound_slots", "is_writable", "items", "limit", "slots", "tag_items")

    def __init__(self, buffer: Any, slots: int, items: int) -> None:
        """Take a contiguous buffer with room for all slots and items; `items` includes the unused item 0."""
        view: memoryview = memoryview(buffer).cast("B")
        if slots < 1 or items < 1 or len(view) < HEADER_SIZE + SLOT_SIZE * slots + ITEM_SIZE * items:
            raise ValueError(f"a buffer of {len(view)} bytes has no room for {slots} slots and {items} items")
        self._view = view
        self._target: Target = target_of(view)
        self.slots = slots
        self.items = items
        self.limit = items  # the items before this one have blocks, so they can be stored
        self.is_writable = not view.readonly
        self.has_sound_slots = False
        self.tag_items = TAGS_LEFT_OUT  # what a dispatcher does with items of tags

    @property
    def data(self) -> memoryview:
        """Return the whole buffer, for callers that read many items."""
        return self._view

    def header(self) -> bytes:
        """Return a copy of the 40 bytes of the header."""
        return take_bytes(self._target, 0, HEADER_SIZE)

    def space(self) -> int:
        """Return how many more keys fit."""
        return space_of(self)

    def is_repeat(self, physical_offset: int) -> bool:
        """Return whether a record lies before the last one indexed here, so that it is already indexed."""
        return is_before_end(self, physical_offset)

    def put(self, topic: bytes, key: bytes, physical_offset: int, store_timestamp_ms: int) -> bool:
        """Add one key (docs/formats/indexfile.md#putting-a-key); return False if there is no room."""
        if not self.is_writable:
            raise ValueError("the index was opened for reading")
        return put_item(self, hash_of(topic, key), physical_offset, store_timestamp_ms)

    def put_items(self, hashes: Any, offsets: Any, times_ms: Any, start: int) -> int:
        """Add keys by hash, from number `start` of the columns on; return the number of the first one that did not fit."""
        if not self.is_writable:
            raise ValueError("the index was opened for reading")
        held_hashes: memoryview = memoryview(hashes)
        held_offsets: memoryview = memoryview(offsets)
        held_times: memoryview = memoryview(times_ms)
        sizes = (held_hashes.itemsize, held_offsets.itemsize, held_times.itemsize)
        rows: Size = len(held_hashes)
        if sizes != (4, 8, 8) or not rows == len(held_offsets) == len(held_times) or not 0 <= start < rows:
            raise ValueError("columns of one length with 32, 64 and 64 bits are wanted")
        codes: I32s = i32s_of(held_hashes)
        begins: I64s = i64s_of(held_offsets)
        times: I64s = i64s_of(held_times)
        row: Size = start
        with cython.nogil:
            while row < rows and put_item(self, codes[row], begins[row], times[row]):
                row += 1
        return row

    def select(self, code: int, start: int, begin_ms: int, end_ms: int, found: Any) -> tuple[int, int]:
        """Write the physical offsets of a key's items, newest first, to `found`, a writable array of 64-bit integers.

        `code` is the result of `hash_of`; `start` is 0 or the second number that the previous call returned.  Returns the
        number of offsets and where to continue, 0 at the end of the chain.  Only hashes are compared.
        """
        held: memoryview = memoryview(found)
        if held.itemsize != 8 or held.readonly or not held.c_contiguous:
            raise ValueError("a writable array of 64-bit integers is wanted")
        out: I64s = i64s_of(held)
        capacity: Size = len(held)
        hash_code: I32 = code
        at: I32 = start
        begin: I64 = begin_ms
        end: I64 = end_ms
        held_state: memoryview = memoryview(array("q", [0, 0, 0]))
        state: I64s = i64s_of(held_state)
        with cython.nogil:
            walk(self, key_hash(hash_code), at, begin, end, out, capacity, state)
        return state[0], state[1]

    def has_all_slots(self) -> bool:
        """Return whether as many slots are in use as the header says, or more, if a writer adds items meanwhile.

        A file that passed is not checked again, except by `check`.
        """
        expected: I32 = get_i32(self._target, SLOTS_USED_AT)
        found: I32 = 0
        with cython.nogil:
            found = _count_used(self._target, 0, self.slots, SECONDS_MAX)
        self.has_sound_slots = found >= expected
        return found >= expected

    def new_replay(self) -> tuple[memoryview, memoryview]:
        """Return the memory that calls of `check` with rising limits share: the newest item of each slot, and a state."""
        zeros = memoryview(bytearray(4 * self.slots))  # zeros take no memory until written
        return zeros, memoryview(array("q", [0, 0, FIRST_ITEM, 0]))

    def check(
        self, limit: int, replayed: tuple[memoryview, memoryview] | None = None, written: array[int] | None = None
    ) -> tuple[int, int]:  # fmt: skip
        """Replay the puts of the first `limit` items, or of all, and return the kind of damage and its item or slot.

        Returns (SOUND, 0) if every chain is what the puts would have made.  With `replayed` a call continues where the last one
        stopped.  `written` has the first and last slot, plus one, of each range that is no hole; others are not read.
        """
        held_written: memoryview = memoryview(array("q", [0, self.slots]) if written is None else written)
        parts: Size = len(held_written) // 2
        ranges: I64s = i64s_of(held_written if parts else memoryview(array("q", [0, 0])))
        zeros: memoryview
        held_state: memoryview
        zeros, held_state = self.new_replay() if replayed is None else replayed
        held: memoryview = zeros.cast("i")
        heads: I32s = i32s_of(held)
        heads_bytes: Target = target_of(zeros)
        state: I64s = i64s_of(held_state)
        most: Size = limit
        with cython.nogil:
            replay(self, most, heads, heads_bytes, ranges, parts, state)
        return held_state[0], held_state[1]

    def keep_items(self, next_item: int, log_end: int) -> int:
        """Drop items after a crash, and return the number that the next item gets.

        Keeps the items before `next_item`, which were on the disk with their slots, except the last ones whose record begins
        at or after `log_end`.  A slot that leads to a dropped item leads to its newest kept item afterwards.
        """
        if not self.is_writable:
            raise ValueError("the index was opened for reading")
        count: I32 = min(max(next_item, FIRST_ITEM), self.items)
        end: I64 = log_end
        held: memoryview = memoryview(bytearray(self.slots))
        is_cut: Target = target_of(held)
        with cython.nogil:
            count = _count_below(self, count, end)
            _set_header(self, count, _relink_slots(self, count, is_cut))
        return count

    def last_item(self, next_item: int, log_end: int) -> tuple[int, int] | None:
        """Return (key hash, physical offset) of the last item before `next_item` whose record lies before `log_end`."""
        count: I32 = min(max(next_item, FIRST_ITEM), self.items)
        end: I64 = log_end
        count = _count_below(self, count, end)
        if count == FIRST_ITEM:
            return None
        at: Size = HEADER_SIZE + SLOT_SIZE * self.slots + ITEM_SIZE * (count - 1)
        return get_i32(self._target, at + ITEM_KEY_HASH_AT), _item_offset(self, count - 1)

    def without_last_record(self, next_item: int, log_end: int) -> int:
        """Return the next item number if the items of the last record before `log_end` are dropped as well.

        Without a hint that says how far the items are complete, the last record may lack some of its keys.
        """
        count: I32 = min(max(next_item, FIRST_ITEM), self.items)
        end: I64 = log_end
        count = _count_below(self, count, end)
        return _count_below(self, count, _item_offset(self, count - 1)) if count > FIRST_ITEM else count


class MappedIndex:
    """The part of an `IndexFile` that a query kernel reads: its bytes, or None if it is not mapped.

    A thread may read a field that another one replaces: both do it in a critical section, which costs nothing with a GIL.
    """

    __slots__ = ("_mapped",)

    _mapped: IndexBuffer | None

    @property
    def mapped(self) -> IndexBuffer | None:
        """The bytes of the file, None if it is not mapped."""
        with cython.critical_section(self):
            return self._mapped

    @mapped.setter
    def mapped(self, mapped: IndexBuffer | None) -> None:
        """Keep the bytes, or forget them."""
        with cython.critical_section(self):
            before = self._mapped if cython.compiled else None  # freed after the section
            self._mapped = mapped
        del before


class IndexList:
    """The part of `IndexFiles` that a query kernel reads: the files from oldest to newest, and the maximum number of hits.

    `searched` has the same files, with a `FilteredFiles` in place of those that have a filter.
    """

    __slots__ = ("_listed", "_searched", "max_matches")

    _listed: list[Any]
    _searched: list[Any]
    max_matches: Size

    @property
    def listed(self) -> list[Any]:
        """The files from oldest to newest."""
        with cython.critical_section(self):
            return self._listed

    @property
    def searched(self) -> list[Any]:
        """The files and groups of files that a query searches."""
        with cython.critical_section(self):
            return self._searched

    def set_files(self, listed: list[Any], searched: list[Any]) -> None:
        """Replace both lists in one step."""
        with cython.critical_section(self):
            before = (self._listed, self._searched) if cython.compiled else None  # freed after the section
            self._listed = listed
            self._searched = searched
        del before


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _slot_at(index: IndexBuffer, hash_code: I32) -> Size:
    """Return the position of a key hash's slot.

    Uses a 32-bit remainder: a 64-bit one takes the processor longer than the rest of the function.
    """
    return HEADER_SIZE + SLOT_SIZE * (hash_code % index.slots)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _item_offset(index: IndexBuffer, at: I32) -> I64:
    """Return the physical offset of an item's record."""
    return get_i64(index._target, HEADER_SIZE + SLOT_SIZE * index.slots + ITEM_SIZE * at + ITEM_PHYSICAL_OFFSET_AT)


def hash_at(index: IndexBuffer, at: Size) -> I32:
    """Return the key hash of an item, without its sign, which only damage sets."""
    return get_i32(index._target, HEADER_SIZE + SLOT_SIZE * index.slots + ITEM_SIZE * at + ITEM_KEY_HASH_AT) & SECONDS_MAX


def is_blank(index: IndexBuffer, at: Size) -> Bool:
    """Return whether an item has neither hash nor offset, as one that the disk lost."""
    return hash_at(index, at) == 0 and _item_offset(index, at) == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count_below(index: IndexBuffer, count: I32, log_end: I64) -> I32:
    """Return the next item number if the last items whose record begins at or after `log_end` are dropped."""
    while count > FIRST_ITEM and _item_offset(index, count - 1) >= log_end:
        count -= 1
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _relink_slots(index: IndexBuffer, count: I32, is_cut: Target) -> I32:
    """Make slots that lead to items from `count` on lead to their newest item before it; return the number of used slots.

    Walks the items backwards, and only until each such slot has found its item.
    """
    out: Target = index._target
    items_at: Size = HEADER_SIZE + SLOT_SIZE * index.slots
    slot: Size
    slots: Size = index.slots
    cut: Size = 0
    used: I32 = 0
    start: Size = 0
    while start < slots:
        stop: Size = start + BLOCK_SLOTS if start + BLOCK_SLOTS < slots else slots
        found: I32 = _count_used(out, start, stop, count)
        if found < 0:
            found = 0
            for slot in range(start, stop):
                head: I32 = get_i32(out, HEADER_SIZE + SLOT_SIZE * slot)
                if head < NO_ITEM or head >= count:
                    put_i32(out, HEADER_SIZE + SLOT_SIZE * slot, NO_ITEM)
                    is_cut[slot] = 1
                    cut += 1
                elif head != NO_ITEM:
                    found += 1
        used += found
        start = stop
    at: I32 = count - 1
    while at >= FIRST_ITEM and cut > 0:
        slot = key_hash(get_i32(out, items_at + ITEM_SIZE * at + ITEM_KEY_HASH_AT)) % slots
        if is_cut[slot] == 1:
            put_i32(out, HEADER_SIZE + SLOT_SIZE * slot, at)
            is_cut[slot] = 0
            cut -= 1
            used += 1
        at -= 1
    return used


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count_used(out: Target, start: Size, stop: Size, count: I32) -> I32:
    """Return how many slots from start to stop are used, or -1 if one leads to an item at or after `count`.

    Nearly every slot is good after a crash: the loop has no branch, so that a compiler can vectorize it.
    """
    slot: Size
    used: I32 = 0
    bad: I32 = 0
    for slot in range(start, stop):
        head: I32 = get_i32(out, HEADER_SIZE + SLOT_SIZE * slot)
        used += head != NO_ITEM
        bad |= (head < NO_ITEM) | (head >= count)
    return -1 if bad else used


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _set_header(index: IndexBuffer, count: I32, used: I32) -> Nothing:
    """Set counts, end offset and end time after items were dropped."""
    out: Target = index._target
    if count > FIRST_ITEM:
        last: Size = HEADER_SIZE + SLOT_SIZE * index.slots + ITEM_SIZE * (count - 1)
        seconds: I64 = get_i32(out, last + ITEM_SECONDS_AT)
        put_i64(out, END_OFFSET_AT, _item_offset(index, count - 1))
        put_i64(out, END_TIME_AT, get_i64(out, BEGIN_TIME_AT) + seconds * MS_PER_SECOND)
    put_i32(out, SLOTS_USED_AT, used)
    put_i32(out, NEXT_ITEM_AT, count)


def key_hash(code: I32) -> I32:
    """Return the absolute value of a Java hash, which an item stores; 0 for -2147483648, which has none."""
    if code == KEY_HASH_NONE:
        return 0
    return -code if code < 0 else code


def put_item(index: IndexBuffer, code: I32, physical_offset: I64, store_ms: I64) -> Bool:
    """Add an item for a key's Java hash and update the header (docs/formats/indexfile.md#putting-a-key).

    Returns False if there is no room.  In a file that follows a full one, the begin is preset: the first item's seconds count
    from there, then the begin is replaced.
    """
    out: Target = index._target
    count: I32 = next_item(index)
    if count >= index.limit:
        return False
    hash_code: I32 = key_hash(code)
    slot_at: Size = _slot_at(index, hash_code)
    previous: I32 = get_i32(out, slot_at)
    if previous <= NO_ITEM or previous > count:
        previous = NO_ITEM
    begin_ms: I64 = get_i64(out, BEGIN_TIME_AT)
    seconds: I64 = (store_ms - begin_ms) // MS_PER_SECOND if 0 < begin_ms < store_ms else 0
    item_at: Size = HEADER_SIZE + SLOT_SIZE * index.slots + ITEM_SIZE * count
    put_i32(out, item_at + ITEM_KEY_HASH_AT, hash_code)
    put_i64(out, item_at + ITEM_PHYSICAL_OFFSET_AT, physical_offset)
    put_i32(out, item_at + ITEM_SECONDS_AT, seconds if seconds < SECONDS_MAX else SECONDS_MAX)
    put_i32(out, item_at + ITEM_PREVIOUS_AT, previous)
    publish_i32(out, slot_at, count)
    if count <= FIRST_ITEM:
        put_i64(out, BEGIN_OFFSET_AT, physical_offset)
        put_i64(out, BEGIN_TIME_AT, store_ms)
    used: I32 = get_i32(out, SLOTS_USED_AT)
    if previous == NO_ITEM and used < SECONDS_MAX:
        put_i32(out, SLOTS_USED_AT, used + 1)
    publish_i32(out, NEXT_ITEM_AT, count + 1)
    put_i64(out, END_OFFSET_AT, physical_offset)
    put_i64(out, END_TIME_AT, store_ms)
    return True


def put_optional(index: IndexBuffer, code: I32, physical_offset: I64) -> Bool:
    """Add an item that an index may have or lack, for a comparison; return False if there is no room."""
    count: I32 = next_item(index)
    if not put_item(index, code, physical_offset, 0):
        return False
    put_i32(index._target, HEADER_SIZE + SLOT_SIZE * index.slots + ITEM_SIZE * count + ITEM_SECONDS_AT, SECONDS_OPTIONAL)
    return True


def is_optional(index: IndexBuffer, at: Size) -> Bool:
    """Return whether `put_optional` added an item."""
    return get_i32(index._target, HEADER_SIZE + SLOT_SIZE * index.slots + ITEM_SIZE * at + ITEM_SECONDS_AT) == SECONDS_OPTIONAL


def next_item(index: IndexBuffer) -> I32:
    """Return the header's count, at least 1."""
    count: I32 = get_i32(index._target, NEXT_ITEM_AT)
    return count if count > FIRST_ITEM else FIRST_ITEM


def begins_at(index: IndexBuffer) -> I64:
    """Return the header's begin time in ms."""
    return get_i64(index._target, BEGIN_TIME_AT)


def ends_at(index: IndexBuffer) -> I64:
    """Return the header's end time in ms."""
    return get_i64(index._target, END_TIME_AT)


def space_of(index: IndexBuffer) -> Size:
    """Return how many more keys fit before blocks are allocated or the next file is created.

    A dispatch kernel stops before a record with more keys, so that its caller can create the next file.
    """
    used: Size = next_item(index)
    return index.limit - used if used < index.limit else 0


def is_before_end(index: IndexBuffer, physical_offset: I64) -> Bool:
    """Return whether a record lies before the end offset; False for the last record itself, which is indexed again."""
    return physical_offset < get_i64(index._target, END_OFFSET_AT)


def prefetch_slot(index: IndexBuffer, hash_code: I32) -> Nothing:
    """Prefetch a slot that `walk` will read soon."""
    prefetch(index._target, _slot_at(index, hash_code), SLOT_SIZE)


def is_unused(index: IndexBuffer, hash_code: I32) -> Bool:
    """Return whether a slot is empty."""
    return get_i32(index._target, _slot_at(index, hash_code)) == NO_ITEM


def is_bare(index: IndexBuffer, hash_code: I32) -> Bool:
    """Return whether no slot of a slot's page is in use, in a file that has items and was not checked by `has_all_slots`.

    A page of 1,024 slots is empty in a file with few items, or because the disk lost it.
    """
    first: Size = _slot_at(index, hash_code) // PAGE_SIZE * PAGE_SIZE
    stop: Size = min(first + PAGE_SIZE, HEADER_SIZE + SLOT_SIZE * index.slots)
    at: Size = max(first, HEADER_SIZE)
    if index.has_sound_slots:
        return False
    while at < stop:
        if get_i32(index._target, at) != NO_ITEM:
            return False
        at += SLOT_SIZE
    return next_item(index) > FIRST_ITEM


def prefetch_newest(index: IndexList, hash_code: I32) -> Nothing:
    """Prefetch a slot of the newest file, which is the only file of most stores."""
    files: list[Any]
    buffer: IndexBuffer | None
    with cython.critical_section(index):
        files = index._listed
    if files:
        newest: MappedIndex = cython.cast(MappedIndex, files[len(files) - 1])
        with cython.critical_section(newest):
            buffer = newest._mapped
        if buffer is not None:
            prefetch_slot(buffer, hash_code)


def walk(
    index: IndexBuffer, hash_code: I32, start: I32, begin_ms: I64, end_ms: I64, found: I64s, capacity: Size, state: I64s
) -> Nothing:
    """Follow a slot's chain (docs/formats/indexfile.md#querying-a-key) for no more steps than there are items.

    state[0] = number of hits, state[1] = item to continue at, or 0, state[2] = 1 if the chain is damaged.  No put makes a chain
    that leads to an item of another slot, forwards, or behind the last item.
    """
    source: Target = index._target
    count: I32 = next_item(index)
    items_at: Size = HEADER_SIZE + SLOT_SIZE * index.slots
    first_ms: I64 = get_i64(source, BEGIN_TIME_AT)
    first_ms = min(first_ms, TIME_MAX_MS)
    at: I32 = start
    if at == NO_ITEM:
        at = get_i32(source, _slot_at(index, hash_code))
    slot: I32 = hash_code % index.slots
    hits: Size = 0
    steps: I32 = 0
    is_damaged: Bool = at < NO_ITEM or (at > count and at > next_item(index))
    while NO_ITEM < at <= count and at < index.items and count > FIRST_ITEM and hits < capacity and steps < count:
        steps += 1
        item_at: Size = items_at + ITEM_SIZE * at
        seconds: I64 = get_i32(source, item_at + ITEM_SECONDS_AT)
        found_hash: I32 = get_i32(source, item_at + ITEM_KEY_HASH_AT)
        if found_hash < 0 or (found_hash != hash_code and found_hash % index.slots != slot):
            is_damaged = True
        if seconds < 0:
            is_damaged = True
            break
        time_ms: I64 = first_ms + seconds * MS_PER_SECOND
        is_in_time: Bool = begin_ms <= time_ms <= end_ms
        if at == FIRST_ITEM and begin_ms <= first_ms <= end_ms:
            is_in_time = True  # its seconds may count from the file before
        if is_in_time and found_hash == hash_code:
            found[hits] = get_i64(source, item_at + ITEM_PHYSICAL_OFFSET_AT)
            hits += 1
        previous: I32 = get_i32(source, item_at + ITEM_PREVIOUS_AT)
        is_damaged = is_damaged or previous < NO_ITEM or previous >= at
        at = previous if previous != at and time_ms >= begin_ms else NO_ITEM
    state[0] = hits
    state[2] = is_damaged
    state[1] = at if hits == capacity and steps < count else NO_ITEM


def replay(
    index: IndexBuffer, limit: Size, heads: I32s, heads_bytes: Target, written: I64s, parts: Size, state: I64s
) -> Nothing:  # fmt: skip
    """Rebuild the chains of the first `limit` items and compare them with the file.

    heads[slot] = newest item of the slot so far; `heads_bytes` is the same memory.  state[0] = kind of damage, state[1] = its
    item, slot or count, state[2] = the next item, state[3] = slots in use so far.
    """
    source: Target = index._target
    count: I32 = next_item(index)
    items_at: Size = HEADER_SIZE + SLOT_SIZE * index.slots
    used: I32 = state[3]
    at: I32 = state[2]
    hash_code: I32 = 0
    slot: Size = 0
    state[0] = SOUND
    state[1] = 0
    if count > index.items:
        state[0] = BAD_COUNT
        state[1] = count
        return
    while at < count and at <= limit:
        if count - at > AHEAD_ITEMS:
            hash_code = get_i32(source, items_at + ITEM_SIZE * (at + AHEAD_ITEMS) + ITEM_KEY_HASH_AT)
            if hash_code >= 0:
                prefetch(heads_bytes, SLOT_SIZE * (hash_code % index.slots), SLOT_SIZE)
        hash_code = get_i32(source, items_at + ITEM_SIZE * at + ITEM_KEY_HASH_AT)
        if hash_code < 0:
            state[0] = BAD_HASH
            state[1] = at
            return
        slot = hash_code % index.slots
        if get_i32(source, items_at + ITEM_SIZE * at + ITEM_PREVIOUS_AT) != heads[slot]:
            state[0] = BAD_PREVIOUS
            state[1] = at
            return
        if heads[slot] == NO_ITEM:
            used += 1
        heads[slot] = at
        at += 1
    state[2] = at
    state[3] = used
    if at < count:
        return
    slot = _wrong_slot(index, heads, written, parts)
    if slot < index.slots:
        state[0] = BAD_SLOT
        state[1] = slot
        return
    if used != get_i32(source, SLOTS_USED_AT):
        state[0] = BAD_COUNT
        state[1] = used


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _wrong_slot(index: IndexBuffer, heads: I32s, written: I64s, parts: Size) -> Size:
    """Return the first slot that does not lead to its newest item, or the number of slots."""
    source: Target = index._target
    slots: Size = index.slots
    slot: Size = 0
    part: Size = 0
    while part <= parts:
        start: Size = written[2 * part] if part < parts else slots
        stop: Size = written[2 * part + 1] if part < parts else slots
        while slot < start:
            if heads[slot] != NO_ITEM:
                return slot
            slot += 1
        while slot < stop:
            if get_i32(source, HEADER_SIZE + SLOT_SIZE * slot) != heads[slot]:
                return slot
            slot += 1
        part += 1
    return slots


def hash_of_texts(topic: str, key: str) -> I32:
    """Return the hash that `hash_of` returns for the UTF-8 bytes, without creating bytes objects.

    A lone surrogate counts as a question mark, as in Java.
    """
    code: I32 = java_hash_of_text(topic, 0)
    code = java_hash(_JOINT, 0, 1, code)
    return java_hash_of_text(key, code)


def hash_of(topic: bytes, key: bytes) -> I32:
    """Return Java's hash of `topic#key`, both UTF-8."""
    code: I32 = java_hash(source_of_bytes(topic), 0, len(topic), 0)
    code = java_hash(_JOINT, 0, 1, code)
    return java_hash(source_of_bytes(key), 0, len(key), code)
