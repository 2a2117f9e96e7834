"""Put and select on one index file's bytes.

Items are written before the slot that leads to them and the count last but the end times, as RocketMQ does: a reader
beside the writer never follows a chain into an item that is not there.
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
    SLOT_SIZE,
    SLOTS_USED_AT,
    SOUND,
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
        put_i32,
        put_i64,
        source_of_bytes,
        target_of,
    )

MS_PER_SECOND = 1000
BLOCK_SLOTS = 1024  # looked at together
_JOINT: Source = source_of_bytes(b"#")
TIME_MAX_MS = 1 << 61  # a damaged begin must not overflow when seconds are added


class IndexBuffer:
    """An index file's bytes: header, slots, items.  Keeps the buffer alive; one thread puts, any number select."""

    __slots__ = ("_target", "_view", "is_writable", "items", "slots")

    def __init__(self, buffer: Any, slots: int, items: int) -> None:
        """A contiguous buffer with room for all slots and items; items includes the unused item 0."""
        view: memoryview = memoryview(buffer).cast("B")
        if slots < 1 or items < 1 or len(view) < HEADER_SIZE + SLOT_SIZE * slots + ITEM_SIZE * items:
            raise ValueError(f"a buffer of {len(view)} bytes has no room for {slots} slots and {items} items")
        self._view = view
        self._target: Target = target_of(view)
        self.slots = slots
        self.items = items
        self.is_writable = not view.readonly

    @property
    def data(self) -> memoryview:
        """All of it, for who reads many items at once."""
        return self._view

    def header(self) -> bytes:
        """The first forty bytes as they are now."""
        return bytes(self._view[:HEADER_SIZE])

    def room(self) -> int:
        """How many more keys fit."""
        return room_of(self)

    def is_repeat(self, physical_offset: int) -> bool:
        """Whether a record lies before the last one indexed here: then it was indexed (section 3.3)."""
        return is_before_end(self, physical_offset)

    def put(self, topic: bytes, key: bytes, physical_offset: int, store_timestamp_ms: int) -> bool:
        """Add one key (section 3.2); false when the file is full."""
        if not self.is_writable:
            raise ValueError("the index was opened for reading")
        return put_item(self, hash_of(topic, key), physical_offset, store_timestamp_ms)

    def select(self, code: int, start: int, begin_ms: int, end_ms: int, found: Any) -> tuple[int, int]:
        """Physical offsets of a key's items, newest first, into `found`, an array of 64-bit integers.

        `code` is what `hash_of` gives, `start` 0 or what the call before returned second.  Returns (how many, where to go
        on; 0: nowhere).  Only hashes are compared.
        """
        held: memoryview = memoryview(found)
        if held.itemsize != 8 or held.readonly or not held.c_contiguous:
            raise ValueError("a writable array of 64-bit integers is wanted")
        out: I64s = i64s_of(held)
        room: Size = len(held)
        hash_code: I32 = code
        at: I32 = start
        begin: I64 = begin_ms
        end: I64 = end_ms
        held_state: memoryview = memoryview(array("q", [0, 0]))
        state: I64s = i64s_of(held_state)
        with cython.nogil:
            walk(self, key_hash(hash_code), at, begin, end, out, room, state)
        return state[0], state[1]

    def check(self, limit: int) -> tuple[int, int]:
        """Put the first `limit` items again in mind, and all of them if they are fewer: (kind of damage, item or slot).

        (SOUND, 0) when every chain is what the puts would have made.
        """
        held: memoryview = memoryview(bytearray(4 * self.slots)).cast("i")  # zeros that take no memory before one is written
        heads: I32s = i32s_of(held)
        held_state: memoryview = memoryview(array("q", [0, 0]))
        state: I64s = i64s_of(held_state)
        most: Size = limit
        with cython.nogil:
            replay(self, most, heads, state)
        return state[0], state[1]

    def keep_items(self, next_item: int, log_end: int) -> int:
        """After a crash: keep the items before `next_item`, which were on the disk with their slots; the new next item.

        Of these go the ones whose record lies at or behind `log_end`.  Slots that lead to an item that goes lead to the
        newest kept one of theirs afterwards.
        """
        if not self.is_writable:
            raise ValueError("the index was opened for reading")
        count: I32 = min(max(next_item, FIRST_ITEM), self.items)
        end: I64 = log_end
        held: memoryview = memoryview(bytearray(self.slots))
        is_cut: Target = target_of(held)
        with cython.nogil:
            count = _count_below(self, count, end)
            _set_header(self, count, _mend_slots(self, count, is_cut))
        return count

    def last_item(self, next_item: int, log_end: int) -> tuple[int, int] | None:
        """(key hash, physical offset) of the last item before `next_item` whose record lies before `log_end`."""
        count: I32 = min(max(next_item, FIRST_ITEM), self.items)
        end: I64 = log_end
        count = _count_below(self, count, end)
        if count == FIRST_ITEM:
            return None
        at: Size = HEADER_SIZE + SLOT_SIZE * self.slots + ITEM_SIZE * (count - 1)
        return get_i32(self._target, at + ITEM_KEY_HASH_AT), _item_offset(self, count - 1)

    def without_last_record(self, next_item: int, log_end: int) -> int:
        """How many items there are before `next_item`, item 0 too, without those of the last record before `log_end`.

        Of a record only some of its keys may be there when no note tells up to where all are.
        """
        count: I32 = min(max(next_item, FIRST_ITEM), self.items)
        end: I64 = log_end
        count = _count_below(self, count, end)
        return _count_below(self, count, _item_offset(self, count - 1)) if count > FIRST_ITEM else count


class MappedIndex:
    """What a query wants of an `IndexFile`: its bytes, None where there is no map."""

    __slots__ = ("mapped",)

    mapped: IndexBuffer | None


class IndexList:
    """What a query wants of `IndexFiles`: the files from oldest to newest, and how many hits it may give."""

    __slots__ = ("listed", "max_matches")

    listed: list[Any]
    max_matches: Size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _slot_at(index: IndexBuffer, hash_code: I32) -> Size:
    """Where the slot of a key hash lies.  A remainder of 32 bits: one of 64 takes the processor longer than the rest."""
    return HEADER_SIZE + SLOT_SIZE * (hash_code % index.slots)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _item_offset(index: IndexBuffer, at: I32) -> I64:
    """The record of an item."""
    return get_i64(index._target, HEADER_SIZE + SLOT_SIZE * index.slots + ITEM_SIZE * at + ITEM_PHYSICAL_OFFSET_AT)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count_below(index: IndexBuffer, count: I32, log_end: I64) -> I32:
    """The next item when the last ones whose record lies at or behind `log_end` go."""
    while count > FIRST_ITEM and _item_offset(index, count - 1) >= log_end:
        count -= 1
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _mend_slots(index: IndexBuffer, count: I32, is_cut: Target) -> I32:
    """Slots that lead to items from `count` on lead to the newest one before it; how many slots are used.

    The items are gone through backwards, and only until each such slot has found its item.
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
    """How many slots from start to stop lead to an item; -1 when one leads to none before `count`.

    Nearly every slot after a crash is good: no branch in the loop, so that a compiler takes many slots at once.
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
    """After items went."""
    out: Target = index._target
    if count > FIRST_ITEM:
        last: Size = HEADER_SIZE + SLOT_SIZE * index.slots + ITEM_SIZE * (count - 1)
        seconds: I64 = get_i32(out, last + ITEM_SECONDS_AT)
        put_i64(out, END_OFFSET_AT, _item_offset(index, count - 1))
        put_i64(out, END_TIME_AT, get_i64(out, BEGIN_TIME_AT) + seconds * MS_PER_SECOND)
    put_i32(out, SLOTS_USED_AT, used)
    put_i32(out, NEXT_ITEM_AT, count)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def key_hash(code: I32) -> I32:
    """What an item keeps of a Java hash: its absolute value, 0 for the one that has none."""
    if code == KEY_HASH_NONE:
        return 0
    return -code if code < 0 else code


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_item(index: IndexBuffer, code: I32, physical_offset: I64, store_ms: I64) -> Bool:
    """Add an item for a key's Java hash and update the header; false when the file is full (section 3.2).

    A file that was rolled to has its begin preset: the first item's seconds count from there, then the begin is replaced.
    """
    out: Target = index._target
    count: I32 = next_item(index)
    if count >= index.items:
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
    put_i32(out, slot_at, count)
    if count <= FIRST_ITEM:
        put_i64(out, BEGIN_OFFSET_AT, physical_offset)
        put_i64(out, BEGIN_TIME_AT, store_ms)
    used: I32 = get_i32(out, SLOTS_USED_AT)
    if previous == NO_ITEM and used < SECONDS_MAX:
        put_i32(out, SLOTS_USED_AT, used + 1)
    put_i32(out, NEXT_ITEM_AT, count + 1)
    put_i64(out, END_OFFSET_AT, physical_offset)
    put_i64(out, END_TIME_AT, store_ms)
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def next_item(index: IndexBuffer) -> I32:
    """The header's count; what is not positive reads as 1."""
    count: I32 = get_i32(index._target, NEXT_ITEM_AT)
    return count if count > FIRST_ITEM else FIRST_ITEM


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def begins_at(index: IndexBuffer) -> I64:
    """The header's begin, in ms."""
    return get_i64(index._target, BEGIN_TIME_AT)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def ends_at(index: IndexBuffer) -> I64:
    """The header's end, in ms."""
    return get_i64(index._target, END_TIME_AT)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def room_of(index: IndexBuffer) -> Size:
    """How many more keys fit: a dispatch kernel hands a record with more keys to `IndexFiles.build`, which rolls."""
    used: Size = next_item(index)
    return index.items - used if used < index.items else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_before_end(index: IndexBuffer, physical_offset: I64) -> Bool:
    """Strictly: the last record itself is indexed again."""
    return physical_offset < get_i64(index._target, END_OFFSET_AT)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def ask_for_slot(index: IndexBuffer, hash_code: I32) -> Nothing:
    """Have a slot on its way from memory, for a `walk` soon."""
    prefetch(index._target, _slot_at(index, hash_code), SLOT_SIZE)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_unused(index: IndexBuffer, hash_code: I32) -> Bool:
    """Whether a slot leads nowhere."""
    return get_i32(index._target, _slot_at(index, hash_code)) == NO_ITEM


@cython.cfunc
@cython.exceptval(check=False)
def ask_for_newest(index: IndexList, hash_code: I32) -> Nothing:
    """Have a slot of the newest file, the only one of most stores, on its way from memory."""
    files: list[Any] = index.listed
    if files:
        newest: MappedIndex = cython.cast(MappedIndex, files[len(files) - 1])
        buffer: IndexBuffer | None = newest.mapped
        if buffer is not None:
            ask_for_slot(buffer, hash_code)


@cython.cfunc
@cython.exceptval(check=False)
def leads_nowhere(index: IndexList, hash_code: I32) -> Bool:
    """Whether all files say at once that they have no such key; False where one of them would have to be mapped for that."""
    for item in index.listed:
        file: MappedIndex = cython.cast(MappedIndex, item)
        buffer: IndexBuffer | None = file.mapped
        if buffer is None or not is_unused(buffer, hash_code):
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def walk(
    index: IndexBuffer, hash_code: I32, start: I32, begin_ms: I64, end_ms: I64, found: I64s, room: Size, state: I64s
) -> Nothing:
    """Follow a slot's chain (section 3.6).  state = hits, where to go on.  No more steps than there are items."""
    source: Target = index._target
    count: I32 = next_item(index)
    items_at: Size = HEADER_SIZE + SLOT_SIZE * index.slots
    first_ms: I64 = get_i64(source, BEGIN_TIME_AT)
    first_ms = min(first_ms, TIME_MAX_MS)
    at: I32 = start
    if at == NO_ITEM:
        at = get_i32(source, _slot_at(index, hash_code))
    hits: Size = 0
    steps: I32 = 0
    while NO_ITEM < at <= count and at < index.items and count > FIRST_ITEM and hits < room and steps < count:
        steps += 1
        item_at: Size = items_at + ITEM_SIZE * at
        seconds: I64 = get_i32(source, item_at + ITEM_SECONDS_AT)
        if seconds < 0:
            break
        time_ms: I64 = first_ms + seconds * MS_PER_SECOND
        is_in_time: Bool = begin_ms <= time_ms <= end_ms
        if at == FIRST_ITEM and begin_ms <= first_ms <= end_ms:
            is_in_time = True  # its seconds may count from the file before
        if is_in_time and get_i32(source, item_at + ITEM_KEY_HASH_AT) == hash_code:
            found[hits] = get_i64(source, item_at + ITEM_PHYSICAL_OFFSET_AT)
            hits += 1
        previous: I32 = get_i32(source, item_at + ITEM_PREVIOUS_AT)
        at = previous if previous != at and time_ms >= begin_ms else NO_ITEM
    state[0] = hits
    state[1] = at if hits == room and steps < count else NO_ITEM


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def replay(index: IndexBuffer, limit: Size, heads: I32s, state: I64s) -> Nothing:
    """heads[slot] = the newest item so far.  state = kind of damage, where."""
    source: Target = index._target
    count: I32 = next_item(index)
    items_at: Size = HEADER_SIZE + SLOT_SIZE * index.slots
    used: I32 = 0
    at: I32 = FIRST_ITEM
    hash_code: I32 = 0
    slot: Size = 0
    state[0] = SOUND
    state[1] = 0
    if count > index.items:
        state[0] = BAD_COUNT
        state[1] = count
        return
    while at < count and at <= limit:
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
    if at < count:
        return
    slot = 0
    while slot < index.slots:
        if get_i32(source, HEADER_SIZE + SLOT_SIZE * slot) != heads[slot]:
            state[0] = BAD_SLOT
            state[1] = slot
            return
        slot += 1
    if used != get_i32(source, SLOTS_USED_AT):
        state[0] = BAD_COUNT
        state[1] = used


def hash_of_texts(topic: str, key: str) -> I32:
    """As `hash_of`, without a bytes object of either: half a character becomes a question mark, as in Java."""
    code: I32 = java_hash_of_text(topic, 0)
    code = java_hash(_JOINT, 0, 1, code)
    return java_hash_of_text(key, code)


def hash_of(topic: bytes, key: bytes) -> I32:
    """Java's hash of `topic#key`, both UTF-8."""
    code: I32 = java_hash(source_of_bytes(topic), 0, len(topic), 0)
    code = java_hash(_JOINT, 0, 1, code)
    return java_hash(source_of_bytes(key), 0, len(key), code)
