"""Count records and bytes in groups: by topic and queue, by topic and period, or by period alone."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from .layout import QUEUE_ID_AT, SIZE_AT

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64, Bool, I64s, Nothing, Size, Source, get_i32, i64s_of, is_same_at, java_hash, source_of,
    )  # fmt: skip

    from ._record_cy import store_time_of, topic_position, topic_size_at, topic_size_size

BY_QUEUE = 0  # otherwise a period in milliseconds, negative without topics
SLOTS = 4096  # groups that the kernel finds by itself; Python finds the others
NO_GROUP = -1
STRIDE = 7  # columns of a group: number, begin and size of its topic, records, bytes, first time, last time


class Tally:
    """Records, bytes, first and last store time of each group, in order of first use."""

    __slots__ = ("_groups", "_held", "_known", "_names", "_period_ms", "_slots", "_state")

    def __init__(self, period_ms: int = BY_QUEUE, *, with_topic: bool = True) -> None:
        """Group by topic and queue id, or by store time divided by `period_ms`, with or without the topic."""
        self._period_ms = period_ms if with_topic else -period_ms
        self._known: dict[tuple[bytes, int], int] = {}
        self._names = bytearray(b"\0")
        self._groups = array("q", [0] * STRIDE)  # a group that no record has, so that the buffer is never empty
        slots = array("q", [NO_GROUP]) * SLOTS
        state = array("q", [0] * 4)
        self._held: list[memoryview] = [memoryview(slots), memoryview(state)]
        self._slots: I64s = i64s_of(self._held[0])
        self._state: I64s = i64s_of(self._held[1])

    def add(self, buffer: Any, positions: Any) -> None:
        """Count the checked records at these positions of a buffer."""
        held: memoryview = memoryview(buffer).cast("B")
        held_positions: memoryview = memoryview(positions)
        if held_positions.itemsize != 8 or not held_positions.c_contiguous:
            raise ValueError("an array of 64-bit integers is wanted")
        row = 0
        while row < len(held_positions):
            row = self._advance(held, held_positions, row)
            if row < len(held_positions):
                self._find(held)

    def _advance(self, held: memoryview, held_positions: memoryview, start: int) -> int:
        """Count records from a row on; return the row whose group was not found. The views of the columns end here."""
        held_names: memoryview = memoryview(self._names)
        held_groups: memoryview = memoryview(self._groups)
        source: Source = source_of(held)
        positions: I64s = i64s_of(held_positions)
        names: Source = source_of(held_names)
        groups: I64s = i64s_of(held_groups)
        row: Size = start
        count: Size = len(held_positions)
        period: I64 = self._period_ms
        with cython.nogil:
            _add(source, positions, row, count, period, names, groups, self._slots, self._state)
        found: int = self._state[0]
        return found

    def _find(self, held: memoryview) -> None:
        """Enter the group of the record that the kernel did not find."""
        slot, number = self._state[1], self._state[2]
        at, size = self._state[3] >> 16, self._state[3] & 0xFFFF
        topic = bytes(held[at : at + size])
        group = self._known.get((topic, number))
        if group is None:
            group = len(self._groups) // STRIDE
            self._known[topic, number] = group
            self._groups.extend([number, len(self._names), size, 0, 0, 0, 0])
            self._names += topic
        self._slots[slot] = group

    def rows(self) -> Iterator[tuple[bytes, int, int, int, int, int]]:
        """Yield topic, queue id or number of the period, records, bytes, first and last store time of each group."""
        for (topic, number), group in self._known.items():
            counts: list[int] = self._groups[STRIDE * group + 3 : STRIDE * group + STRIDE].tolist()
            yield topic, number, counts[0], counts[1], counts[2], counts[3]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add(
    source: Source, positions: I64s, row: Size, count: Size, period: I64, names: Source, groups: I64s, slots: I64s, state: I64s
) -> Nothing:
    """Count records until one has a group that is in no slot.

    state = the row reached; slot, number, and position << 16 | size of the topic of the group to enter.
    """
    while row < count:
        at: Size = positions[row]
        size: Size = 0
        position: Size = at
        if period >= 0:
            position = topic_position(source, at)
            size = topic_size_at(source, at, position)
            position += topic_size_size(source, at)
        time_ms: I64 = store_time_of(source, at)
        number: I64 = get_i32(source, at + QUEUE_ID_AT)
        if period != BY_QUEUE:
            number = _period(time_ms, period if period > 0 else -period)
        slot: Size = (java_hash(source, position, size, 0) * 31 + (number & 0xFFFF) * 40503) & (SLOTS - 1)
        group: I64 = slots[slot]
        if group < 0 or not _is_group(groups, STRIDE * group, number, size, source, position, names):
            state[1] = slot
            state[2] = number
            state[3] = position << 16 | size
            break
        first: Size = STRIDE * group + 3
        if groups[first] == 0 or time_ms < groups[first + 2]:
            groups[first + 2] = time_ms
        if groups[first] == 0 or time_ms > groups[first + 3]:
            groups[first + 3] = time_ms
        groups[first] += 1
        groups[first + 1] += get_i32(source, at + SIZE_AT)
        row += 1
    state[0] = row


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_group(groups: I64s, first: Size, number: I64, size: Size, source: Source, position: Size, names: Source) -> Bool:
    """Return whether a group has this number and topic."""
    if groups[first] != number or groups[first + 2] != size:
        return False
    return is_same_at(source, position, size, names, groups[first + 1])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _period(time_ms: I64, period: I64) -> I64:
    """Divide and round down; C rounds towards zero."""
    return time_ms // period if time_ms >= 0 else -((period - 1 - time_ms) // period)
