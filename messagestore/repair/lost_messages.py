"""Determine which messages were lost in the holes of a log, and which hole gets the filler record of each.

A unit of a queue tells both. Where queues are damaged too, a jump in the queue offsets of the records tells which messages are
missing, and only that they were in one of the holes between two records. Their fillers go, in order, into the first hole that
has enough space. Messages that fit into no hole are ignored, so a jump with another cause does no harm.

Units of virtual topics with the same physical offset as another queue's unit belong to the same message, whose filler is in
all of them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from commitlog.layout import BLANK_SIZE
from commitlog.topic_names import is_virtual_topic
from consumequeue import BATCH_SIZE_MAX
from storebytes.finding import Finding

from ..recovery.named_messages import NamedMessages, NamedUnit
from .fillers import Lost


class Gap(NamedTuple):
    """Queue offsets that no record has: `first` to before `stop`.

    `first_hole` and `last_hole` are the numbers of the first and last hole that may contain the missing records.
    """

    topic: str
    queue_id: int
    first: int
    stop: int
    first_hole: int
    last_hole: int
    is_batch: bool = False  # whether one record may have many of them


class Hole(NamedTuple):
    """Bytes start..stop of the log that are not whole records; physical offsets."""

    start: int
    stop: int
    file_end: int  # end of the file that contains it
    finding: Finding


Key = tuple[str, int, int]  # topic, queue id, queue offset


def lost_messages(holes: Sequence[Hole], gaps: list[Gap], named: NamedMessages | None) -> dict[int, list[Lost]]:
    """Return lost messages by the start of the hole that they are to be filled into, in their order there."""
    positions = _Holes(holes)
    for number, hole in enumerate(holes if named is not None else ()):
        assert named is not None
        positions.put_known(number, sorted(named.between(hole.start, hole.stop)))
    for gap in sorted(gaps, key=lambda gap: (gap.last_hole, gap.first_hole)):  # gaps with the fewest later holes choose first
        positions.take(gap)
    return positions.by_start()


def _messages(units: list[NamedUnit]) -> Iterator[Lost]:
    """Yield the messages of sorted units; units of virtual topics are merged with the unit at the same physical offset."""
    for _, group in groupby(units, lambda unit: unit.physical_offset):
        there = list(group)
        virtual = [unit for unit in there if is_virtual_topic(unit.topic) and unit.queue_id == 0]
        first, *doubles = [unit for unit in there if unit not in virtual] or virtual[:1]
        listed = tuple((unit.topic, unit.queue_offset) for unit in virtual if unit is not first)
        yield Lost(first.topic, first.queue_id, first.queue_offset, listed, first.messages)
        yield from (Lost(unit.topic, unit.queue_id, unit.queue_offset, messages=unit.messages) for unit in doubles)


class _Holes:
    """The remaining space and the assigned messages of each hole."""

    def __init__(self, holes: Sequence[Hole]) -> None:
        self._holes = holes
        self._known: dict[Key, tuple[int, int]] = {}  # message -> number of its hole, and messages in its record
        self._known_offsets: dict[tuple[str, int], list[int]] = {}  # queue offsets of these by queue, sorted
        self._in_hole: list[list[Lost]] = [[] for _ in holes]
        self._has_guessed: set[int] = set()
        self._hole_bytes = [hole.stop - hole.start - (BLANK_SIZE if hole.stop == hole.file_end else 0) for hole in holes]

    def put_known(self, number: int, units: list[NamedUnit]) -> None:
        """Assign messages whose units tell their physical offsets."""
        for unit in units:
            self._known[unit[1:4]] = number, unit.messages
            insort(self._known_offsets.setdefault(unit[1:3], []), unit.queue_offset)
        for lost in _messages(units):
            self._put(lost, number)

    def _put(self, lost: Lost, number: int) -> None:
        self._in_hole[number].append(lost)
        self._hole_bytes[number] -= lost.least_bytes

    def take(self, gap: Gap) -> None:
        """Assign the missing messages of a gap in order. Ends when the holes are full, however large the gap is."""
        number, position = gap.first_hole, gap.first
        while position < gap.stop:
            key = (gap.topic, gap.queue_id, position)
            if key in self._known:
                hole, messages = self._known[key]
                number, position = max(number, hole), position + messages
                continue
            lost = Lost(*key, messages=self._unknown(gap, position))
            while number <= gap.last_hole and self._hole_bytes[number] < lost.least_bytes:
                number += 1
            if number > gap.last_hole:
                return
            self._put(lost, number)
            self._has_guessed.add(number)
            position += lost.messages

    def _unknown(self, gap: Gap, position: int) -> int:
        """Return how many queue offsets from `position` on one filler closes: in a batch queue, up to the next known record."""
        if not gap.is_batch:
            return 1
        known = self._known_offsets.get((gap.topic, gap.queue_id), [])
        behind = bisect_right(known, position)
        return min([gap.stop - position, BATCH_SIZE_MAX, *(at - position for at in known[behind : behind + 1])])

    def by_start(self) -> dict[int, list[Lost]]:
        """Return the result: in log order, or in queue offset order where the log order is not known."""
        for number in self._has_guessed:
            self._in_hole[number].sort(key=lambda lost: lost.queue_offset)
        return {hole.start: lost for hole, lost in zip(self._holes, self._in_hole, strict=True) if lost}
