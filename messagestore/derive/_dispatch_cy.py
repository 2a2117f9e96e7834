"""Turn records into consume queue units and index items, one range of the log per call, without the GIL.

Each queue (a topic and a queue id) has a number, in the order of first use.  Units are grouped by queue, so that a queue gets
one write for all of its units in a range.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from commitlog.topic_names import SCHEDULE_TOPIC
from commitlog.checks import STOPS
from commitlog.layout import (
    BORN_HOST_AT,
    BORN_HOST_V6,
    HOST_SIZE,
    HOST_SIZE_V6,
    PAIR_END,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)  # fmt: skip
from consumequeue.layout import UNIT_SIZE
from indexfile._index_cy import IndexBuffer
from indexfile.layout import END_OFFSET_AT, TAGS_LEFT_OUT, TAGS_OPTIONAL

from .kinds.ordinary import ELSEWHERE, IGNORED, ORDINARY, SCHEDULED

if not cython.compiled:
    from commitlog._record_cy import check_step, record_in, topic_position, topic_size_at, topic_size_size
    from indexfile._index_cy import next_item, put_item, put_optional
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
        find_byte,
        get_i16,
        get_i32,
        get_i64,
        i32s_of,
        i64s_of,
        is_same_at,
        java_hash,
        prefetch,
        put_bytes,
        put_i32,
        put_i64,
        source_of,
        source_of_bytes,
        target_of,
        window,
    )  # fmt: skip

# reasons to stop besides `checks.STOPS`: Python makes room and calls again
NEW_QUEUE = -20
INDEX_FULL = -21
WHYS = {**STOPS, NEW_QUEUE: "new_queue", INDEX_FULL: "index_full"}

UNITS_MAX = 32768  # units per call of `dispatch`
AHEAD_RECORDS = 8  # prefetch distance: memory latency exceeds the time that one record takes
CACHE_LINE_SIZE = 64
LEVEL_MAX = (1 << 31) - 1  # RocketMQ reads 32 bits
QUEUES_FIRST = 64  # a power of two
NAME_SIZE_USUAL = 64
NO_QUEUE = -1  # a free slot
FOUND_SIZE = 9  # begin and end of UNIQ_KEY, KEYS, TAGS, DELAY; then whether records have units elsewhere
SPACE = 32
_UNIQ_KEY: Source = source_of_bytes(b"UNIQ_KEY\x01")
_KEYS: Source = source_of_bytes(b"KEYS\x01")
_TAGS: Source = source_of_bytes(b"TAGS\x01")
_DELAY: Source = source_of_bytes(b"DELAY\x01")
_LISTED: Source = source_of_bytes(b"INNER_MULTI_QUEUE_OFFSET\x01")
_TAG_KIND: Source = source_of_bytes(b"T#")


class QueueTable:
    """A table of queues (topic and queue id), each with a number, found by an open-addressing hash."""

    __slots__ = (
        "_arrays", "_codes", "_held", "_kinds", "_mask", "_name_at", "_name_size", "_names", "_names_size", "_queue_ids",
        "_slots", "queues",
    )  # fmt: skip

    def __init__(self) -> None:
        """Create an empty table of queues."""
        self.queues: list[tuple[str, int]] = []
        self._names_size = 0
        self._grow(QUEUES_FIRST, QUEUES_FIRST * NAME_SIZE_USUAL)

    def _grow(self, capacity: Size, names_capacity: Size) -> None:
        """Enlarge the columns, and place every queue in a hash table of twice the capacity."""
        names = bytearray(names_capacity)
        columns: Any = [array(kind, bytes(array(kind).itemsize * capacity)) for kind in "qiiii"]
        if self.queues:
            names[: self._names_size] = self._arrays[0][: self._names_size]
            for fresh, old in zip(columns, self._arrays[1:], strict=True):
                fresh[: len(old)] = old
        slots = array("i", [NO_QUEUE]) * (2 * capacity)
        self._arrays: Any = [names, *columns]
        held: list[memoryview] = [memoryview(column) for column in (names, *columns, slots)]
        self._held = held
        self._names: Target = target_of(held[0])
        self._name_at: I64s = i64s_of(held[1])
        self._name_size: I32s = i32s_of(held[2])
        self._queue_ids: I32s = i32s_of(held[3])
        self._codes: I32s = i32s_of(held[4])
        self._kinds: I32s = i32s_of(held[5])
        self._slots: I32s = i32s_of(held[6])
        self._mask = 2 * capacity - 1
        for queue in range(len(self.queues)):
            self._position(queue)

    def _position(self, queue: Size) -> None:
        """Put a queue into the first free slot of its probe sequence."""
        slot: Size = _first_slot(self._names, self._name_at[queue], self._name_size[queue], self._queue_ids[queue], self._mask)
        while self._slots[slot] >= 0:
            slot = (slot + 1) & self._mask
        self._slots[slot] = queue

    def add(self, name: bytes, queue_id: int, kind: int) -> int:
        """Add a queue and return its number."""
        queue: Size = len(self.queues)
        capacity: Size = len(self._arrays[1])
        names_capacity: Size = len(self._arrays[0])
        if queue == capacity or self._names_size + len(name) > names_capacity:
            self._grow(2 * capacity, 2 * names_capacity + len(name))
        self._arrays[0][self._names_size : self._names_size + len(name)] = name
        self._name_at[queue] = self._names_size
        self._name_size[queue] = len(name)
        self._queue_ids[queue] = queue_id
        self._codes[queue] = java_hash(source_of_bytes(name + b"#"), 0, len(name) + 1, 0)
        self._kinds[queue] = kind
        self._names_size += len(name)
        self.queues.append((name.decode("utf-8", "replace"), queue_id))
        self._position(queue)
        return queue


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _first_slot(names: Source, at: Size, size: Size, queue_id: I32, mask: Size) -> Size:
    """Return the slot where the search for a queue begins."""
    code: Size = java_hash(names, at, size, 0) & 0x7FFFFFFF
    return (code * 31 + queue_id * 40503) >> 5 & mask


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_queue(table: QueueTable, source: Source, at: Size, size: Size, queue_id: I32) -> Size:
    """Return the number of a topic and queue id, or NEW_QUEUE."""
    slot: Size = _first_slot(source, at, size, queue_id, table._mask)
    queue: Size = table._slots[slot]
    while queue >= 0:
        if table._queue_ids[queue] == queue_id and table._name_size[queue] == size:
            if is_same_at(source, at, size, table._names, table._name_at[queue]):
                return queue
        slot = (slot + 1) & table._mask
        queue = table._slots[slot]
    return NEW_QUEUE


class Dispatcher:
    """Turns ranges of the log into runs of units.  Each thread needs its own."""

    __slots__ = (
        "_counts", "_counts_array", "_delay_levels", "_delays", "_found", "_held", "_irregular", "_offsets", "_sorted",
        "_sorted_offsets", "_state", "_unit_queues", "_units", "last_offset", "last_store_timestamp_ms", "made", "table",
    )  # fmt: skip

    def __init__(self, delays_ms: list[int]) -> None:
        """Create the buffers; `delays_ms[level - 1]` is how long a scheduled message of a level waits."""
        buffers: list[Any] = [
            bytearray(UNIT_SIZE * UNITS_MAX), bytearray(UNIT_SIZE * UNITS_MAX), array("i", bytes(4 * UNITS_MAX)),
            array("q", bytes(8 * UNITS_MAX)), array("q", bytes(8 * UNITS_MAX)), array("i", [0] * FOUND_SIZE),
            array("q", [0] * 4), array("q", [*delays_ms, 0]),
        ]  # fmt: skip
        held: list[memoryview] = [memoryview(buffer) for buffer in buffers]
        self.table = QueueTable()
        self._held = held
        self._units: Target = target_of(held[0])
        self._sorted: Target = target_of(held[1])
        self._unit_queues: I32s = i32s_of(held[2])
        self._offsets: I64s = i64s_of(held[3])
        self._sorted_offsets: I64s = i64s_of(held[4])
        self._found: I32s = i32s_of(held[5])
        self._state: I64s = i64s_of(held[6])
        self._delays: I64s = i64s_of(held[7])
        self._delay_levels = len(delays_ms)
        self._counts_array: Any = array("i")
        self.made = 0
        self.last_store_timestamp_ms = 0
        self.last_offset = -1

    def dispatch(
        self, buffer: Any, start: int, stop: int, base: int, checks: int, index: IndexBuffer | None, keys_done: int,
        kind_of: Any,
    ) -> tuple[int, str, int]:  # fmt: skip
        """Dispatch the records from `start` to `stop` of a buffer that begins at physical offset `base`.

        Gathers units, which `runs` returns, until their buffer is full, and puts keys into `index` unless it is None.
        `kind_of(topic)` returns ORDINARY, IGNORED or ELSEWHERE.  Returns the position where it stopped, the reason ("end",
        "full", "index_full", or a name of `checks.STOPS`), and the `keys_done` for the call that continues there; 0 begins a
        record.
        """
        held: memoryview = memoryview(buffer).cast("B")
        source: Source = source_of(held)
        if not 0 <= start <= stop <= len(held):
            raise ValueError(f"{start}..{stop} is not inside the buffer of {len(held)} bytes")
        at: Size = start
        end: Size = stop
        begin: I64 = base
        checks_made: I32 = checks
        done: Size = keys_done
        has_index: Bool = index is not None
        used: IndexBuffer = index if index is not None else _NO_INDEX
        why: Size = NEW_QUEUE
        self.made = 0
        self._found[8] = 0
        while why == NEW_QUEUE:
            with cython.nogil:
                _dispatch(self, self.table, used, has_index, source, at, end, begin, checks_made, done)
            at = self._state[0]
            why = self._state[1]
            done = self._state[2]
            if why == NEW_QUEUE:
                self._add_queue(held, at, kind_of)
        return at, "end" if at == end else "full" if why > 0 else WHYS[why], done

    def _add_queue(self, held: memoryview, at: Size, kind_of: Any) -> None:
        """Add the topic and queue id of the record or entry at `at` to the table."""
        source: Source = source_of(held)
        at = record_in(source, at)
        position: Size = topic_position(source, at)
        size: Size = topic_size_at(source, at, position)
        position += topic_size_size(source, at)
        name: bytes = bytes(held[position : position + size])
        topic = name.decode("utf-8", "replace")
        kind = int(kind_of(topic)) or (SCHEDULED if topic == SCHEDULE_TOPIC else ORDINARY)
        self.table.add(name, get_i32(source, at + QUEUE_ID_AT), kind)

    @property
    def has_elsewhere(self) -> bool:
        """Whether a record of the last `dispatch` may have units in queues that are not built here; False is certain."""
        return bool(self._found[8])

    def forget_ignored(self) -> None:
        """Forget all queues if one of them is ignored, so that `kind_of` is asked again."""
        queue: Size
        table: QueueTable = self.table
        for queue in range(len(table.queues)):
            if table._kinds[queue] == IGNORED:
                self.table = QueueTable()
                return

    def runs(self) -> Iterator[tuple[str, int, int, memoryview]]:
        """Yield (topic, queue id, first queue offset, packed units) of the gathered units, each run without a gap inside.

        The units are valid until the next `dispatch`.
        """
        queues: Size = len(self.table.queues)
        counts: Any = array("i", [0]) * (queues + 1)
        irregular: Any = array("i", [0]) * (queues + 1)
        held: memoryview = memoryview(counts)
        held_irregular: memoryview = memoryview(irregular)
        out_counts: I32s = i32s_of(held)
        out_irregular: I32s = i32s_of(held_irregular)
        made: Size = self.made
        with cython.nogil:
            _sort(self, made, queues, out_counts, out_irregular)
        start = 0
        units: memoryview = self._held[1]
        for queue in range(queues):
            stop: int = counts[queue]
            if stop > start:
                topic, queue_id = self.table.queues[queue]
                yield from self._queue_runs(topic, queue_id, units, start, stop, bool(irregular[queue]))
            start = stop

    def _queue_runs(
        self, topic: str, queue_id: int, units: memoryview, start: int, stop: int, irregular: bool
    ) -> Iterator[tuple[str, int, int, memoryview]]:
        """Yield one run of a queue, or more if its queue offsets have gaps."""
        offsets: memoryview = self._held[4]
        if not irregular:
            yield topic, queue_id, offsets[start], units[UNIT_SIZE * start : UNIT_SIZE * stop]
            return
        first = start
        for row in range(start + 1, stop + 1):
            if row == stop or offsets[row] != offsets[row - 1] + 1:
                yield topic, queue_id, offsets[first], units[UNIT_SIZE * first : UNIT_SIZE * row]
                first = row


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sort(table: Dispatcher, made: Size, queues: Size, stops: I32s, irregular: I32s) -> Nothing:
    """Group the units by queue, in order.

    stops[queue] = where the queue's units end; irregular[queue] = 1 if its queue offsets have a gap.
    """
    row: Size
    queue: Size
    for row in range(made):
        stops[table._unit_queues[row]] += 1
    total: Size = 0
    for queue in range(queues):
        count: Size = stops[queue]
        stops[queue] = total
        total += count
    for row in range(made):
        queue = table._unit_queues[row]
        position: Size = stops[queue]
        put_bytes(table._sorted, UNIT_SIZE * position, table._units, UNIT_SIZE * row, UNIT_SIZE)
        table._sorted_offsets[position] = table._offsets[row]
        stops[queue] = position + 1
    start: Size = 0
    for queue in range(queues):
        for row in range(start + 1, stops[queue]):
            if table._sorted_offsets[row] != table._sorted_offsets[row - 1] + 1:
                irregular[queue] = 1
        start = stops[queue]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _dispatch(
    table: Dispatcher, queues: QueueTable, index: IndexBuffer, has_index: Bool, source: Source, at: Size, stop: Size, base: I64,
    checks: I32, done: Size,
) -> Nothing:  # fmt: skip
    """Dispatch records until something needs the caller.

    state = position, reason, and as in `dispatch` the keys done of the record there.
    """
    size: Size = 1
    found: I32s = table._found
    while at < stop:
        if table.made >= UNITS_MAX:
            size = 1
            break
        size = check_step(source, at, stop, base, checks)
        if size <= 0:
            break
        step: Size = size
        start: Size = record_in(source, at)
        size -= start - at
        position: Size = topic_position(source, start)
        name_size: Size = topic_size_at(source, start, position)
        position += topic_size_size(source, start)
        queue: Size = _find_queue(queues, source, position, name_size, get_i32(source, start + QUEUE_ID_AT))
        if queue < 0:
            size = queue
            break
        position += name_size
        properties_size: Size = get_i16(source, position)
        properties: Source = window(source, position + 2, properties_size)
        _find_properties(properties, properties_size, found)
        store_ms: I64 = _store_time(source, start)
        offset: I64 = get_i64(source, start + PHYSICAL_OFFSET_AT)
        transaction: I32 = get_i32(source, start + SYS_FLAG_AT) & TRANSACTION_MASK
        if has_index:
            if next_item(index) >= index.limit:
                size = INDEX_FULL
                break
            if transaction != TRANSACTION_ROLLBACK and (done > 0 or _is_new(index, offset)):
                done = _index_keys(index, properties, found, queues._codes[queue], offset, store_ms, done)
                if done > 0:
                    size = INDEX_FULL
                    break
            done = 0
        if queues._kinds[queue] == ELSEWHERE:
            found[8] = 1
        elif queues._kinds[queue] != IGNORED and (transaction == TRANSACTION_NONE or transaction == TRANSACTION_COMMIT):
            _add_unit(table, queues, queue, properties, found, offset, size, store_ms, get_i64(source, start + QUEUE_OFFSET_AT))
        table.last_store_timestamp_ms = store_ms
        table.last_offset = base + start
        ahead: Size = start + AHEAD_RECORDS * step  # most records are as long as the one before
        prefetch(source, ahead - CACHE_LINE_SIZE, 3 * CACHE_LINE_SIZE)
        at += step
        size = 1
    table._state[0] = at
    table._state[1] = size
    table._state[2] = done


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_new(index: IndexBuffer, offset: I64) -> Bool:
    """Return whether a record's keys are not in the index yet.

    In an empty file, the record at which the previous file ended counts as new: perhaps only some of its keys fit there.
    (RocketMQ indexes an equal offset again in every case; a query drops duplicates.)
    """
    end: I64 = get_i64(index._target, END_OFFSET_AT)
    return offset > end or (offset == end and next_item(index) <= 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_unit(
    table: Dispatcher, queues: QueueTable, queue: Size, properties: Source, found: I32s, offset: I64, size: Size, store_ms: I64,
    queue_offset: I64,
) -> Nothing:  # fmt: skip
    """Append one unit to the gathered ones."""
    made: Size = table.made
    code: I64 = 0
    if found[4]:
        code = java_hash(properties, found[4], found[5] - found[4], 0)
    if queues._kinds[queue] == SCHEDULED and found[6]:
        due: I64 = _due_time(table, properties, found[6], found[7], store_ms)
        if due > 0:
            code = due
    put_i64(table._units, UNIT_SIZE * made, offset)
    put_i32(table._units, UNIT_SIZE * made + 8, size)
    put_i64(table._units, UNIT_SIZE * made + 12, code)
    table._unit_queues[made] = queue
    table._offsets[made] = queue_offset
    table.made = made + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _due_time(table: Dispatcher, properties: Source, at: Size, stop: Size, store_ms: I64) -> I64:
    """Return when a scheduled message is due, its store time plus its level's delay, or 0 if it has no level.

    See docs/formats/broker-topics.md#delays.
    """
    level: Size = 0
    if properties[at] == 43:
        at += 1
    while at < stop:
        digit: I32 = properties[at] - 48
        if digit < 0 or digit > 9:
            return 0
        level = level * 10 + digit
        if level > LEVEL_MAX:
            return 0
        at += 1
    if level <= 0:
        return 0
    if table._delay_levels == 0:
        return store_ms + 1000
    delay: I64 = table._delays[level - 1 if level <= table._delay_levels else table._delay_levels - 1]
    return store_ms + delay


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _store_time(source: Source, at: Size) -> I64:
    """Return the store time of a checked record."""
    is_v6: I32 = get_i32(source, at + SYS_FLAG_AT) & BORN_HOST_V6
    return get_i64(source, at + BORN_HOST_AT + (HOST_SIZE_V6 if is_v6 else HOST_SIZE))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_properties(properties: Source, size: Size, found: I32s) -> Nothing:
    """Find the last UNIQ_KEY, KEYS, TAGS and DELAY of a record.

    found = begin and end of each value; begin 0 if the property is missing.
    """
    found[0] = 0
    found[2] = 0
    found[4] = 0
    found[6] = 0
    at: Size = 0
    while at < size:
        end: Size = find_byte(properties, at, size, PAIR_END)
        _record_pair(properties, at, end, found)
        at = end + 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _record_pair(properties: Source, at: Size, end: Size, found: I32s) -> Nothing:
    """Store the begin and end of a pair's value, if the pair is a searched one and its value is not empty."""
    size: Size = end - at
    if size > 5 and is_same_at(properties, at, 5, _KEYS, 0):
        found[2] = at + 5
        found[3] = end
    elif size > 5 and is_same_at(properties, at, 5, _TAGS, 0):
        found[4] = at + 5
        found[5] = end
    elif size > 9 and is_same_at(properties, at, 9, _UNIQ_KEY, 0):
        found[0] = at + 9
        found[1] = end
    elif size > 6 and is_same_at(properties, at, 6, _DELAY, 0):
        found[6] = at + 6
        found[7] = end
    elif size > 25 and is_same_at(properties, at, 25, _LISTED, 0):
        found[8] = 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _index_keys(index: IndexBuffer, properties: Source, found: I32s, code: I32, offset: I64, store_ms: I64, done: Size) -> Size:
    """Add an item for UNIQ_KEY, for each word of KEYS and, if wanted, for TAGS; skip the first `done` - 1 if `done` > 0.

    Returns 0 if all are added; if the file is full, one more than the number of keys that are added.  `code` is the hash of
    `topic#`.
    """
    skip: Size = done - 1 if done > 0 else 0
    key: Size = 0
    at: Size = found[0]
    if at:
        if key >= skip and not put_item(index, java_hash(properties, at, found[1] - at, code), offset, store_ms):
            return key + 1  # pragma: no cover - the caller saw room for one item
        key += 1
    at = found[2]
    while at and at < found[3]:
        end: Size = find_byte(properties, at, found[3], SPACE)
        if end > at:
            if key >= skip and not put_item(index, java_hash(properties, at, end - at, code), offset, store_ms):
                return key + 1
            key += 1
        at = end + 1
    at = found[4]
    if index.tag_items != TAGS_LEFT_OUT and at and key >= skip:
        code = java_hash(properties, at, found[5] - at, java_hash(_TAG_KIND, 0, 2, code))
        if index.tag_items == TAGS_OPTIONAL:
            is_added: Bool = put_optional(index, code, offset)
        else:
            is_added = put_item(index, code, offset, store_ms)
        if not is_added:
            return key + 1
    return 0


_NO_INDEX = IndexBuffer(bytearray(40 + 4 + 40), 1, 2)
