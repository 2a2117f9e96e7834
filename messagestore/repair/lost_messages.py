"""Which messages the holes of a log have swallowed, and in which hole each of them gets its place again.

A queue's unit says both.  Where queues are damaged too, a jump in the queue offsets of the records says which messages are
missing, and only that they lay in one of the holes between two records: they go, in their order, into the first hole that has
room for one more.  What no hole has room for is left out, so a number that jumped for another reason costs nothing.

Units of light queues at the place of another queue's unit are of the same message, whose filler stands in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from commitlog.layout import BLANK_SIZE
from consumequeue import ConsumeQueues

from ..write.lmq_units import is_light
from .fillers import Lost, least_size


class Gap(NamedTuple):
    """Queue offsets `first` to before `stop` that no record has, and the numbers of the holes that may have had them."""

    topic: str
    queue_id: int
    first: int
    stop: int
    first_hole: int
    last_hole: int


class Bounds(Protocol):
    """Of a hole: physical offsets."""

    @property
    def start(self) -> int:
        """Its first byte."""

    @property
    def stop(self) -> int:
        """Behind its last byte."""

    @property
    def file_end(self) -> int:
        """Of the file that it lies in."""


class _Unit(NamedTuple):
    """That points into a hole."""

    physical_offset: int
    topic: str
    queue_id: int
    place: int


Key = tuple[str, int, int]  # topic, queue id, queue offset


def swallowed(holes: Sequence[Bounds], gaps: list[Gap], queues: ConsumeQueues | None) -> dict[int, list[Lost]]:
    """Lost messages by the start of the hole that each of them is to be filled into, in their order there."""
    places = _Places(holes)
    for number, hole in enumerate(holes if queues is not None else ()):
        assert queues is not None
        places.put_known(number, sorted(_units_in(hole, queues)))
    for gap in sorted(gaps, key=lambda gap: (gap.last_hole, gap.first_hole)):  # who has the fewest holes left chooses first
        places.take(gap)
    return places.by_start()


def _units_in(hole: Bounds, queues: ConsumeQueues) -> Iterator[_Unit]:
    """Of all queues; also those of messages without a later record."""
    for queue in queues:
        place = queue.find_physical(hole.start)
        while (unit := queue.unit(place)) is not None and hole.start <= unit.physical_offset < hole.stop:
            yield _Unit(unit.physical_offset, queue.topic, queue.queue_id, place)
            place += 1


def _messages(units: list[_Unit]) -> Iterator[Lost]:
    """Of sorted units: one for those of light queues and the one that lies at the same place of the log."""
    for _, group in groupby(units, lambda unit: unit.physical_offset):
        there = list(group)
        lights = [unit for unit in there if is_light(unit.topic) and unit.queue_id == 0]
        first, *doubles = [unit for unit in there if unit not in lights] or lights[:1]
        light = tuple((unit.topic, unit.place) for unit in lights if unit is not first)
        yield Lost(first.topic, first.queue_id, first.place, light)
        yield from (Lost(unit.topic, unit.queue_id, unit.place) for unit in doubles)


class _Places:
    """How much room each hole has left, and what is in it."""

    def __init__(self, holes: Sequence[Bounds]) -> None:
        self._holes = holes
        self._known: dict[Key, int] = {}  # to the number of its hole
        self._in_hole: list[list[Lost]] = [[] for _ in holes]
        self._has_guessed: set[int] = set()
        self._room_bytes = [hole.stop - hole.start - (BLANK_SIZE if hole.stop == hole.file_end else 0) for hole in holes]

    def put_known(self, number: int, units: list[_Unit]) -> None:
        """Messages whose units say where they lay."""
        self._known.update((unit[1:], number) for unit in units)
        for lost in _messages(units):
            self._put(lost, number)

    def _put(self, lost: Lost, number: int) -> None:
        self._in_hole[number].append(lost)
        self._room_bytes[number] -= lost.least_bytes

    def take(self, gap: Gap) -> None:
        """Each missing message behind the one before it.  Ends when the holes are full, however far the numbers jump."""
        least, number = least_size(gap.topic), gap.first_hole
        for place in range(gap.first, gap.stop):
            key = (gap.topic, gap.queue_id, place)
            if key in self._known:
                number = max(number, self._known[key])
                continue
            while number <= gap.last_hole and self._room_bytes[number] < least:
                number += 1
            if number > gap.last_hole:
                return
            self._put(Lost(*key), number)
            self._has_guessed.add(number)

    def by_start(self) -> dict[int, list[Lost]]:
        """What came of it: in the order they lay in, or, where that is not known of all, of their numbers."""
        for number in self._has_guessed:
            self._in_hole[number].sort(key=lambda lost: lost.queue_offset)
        return {hole.start: lost for hole, lost in zip(self._holes, self._in_hole, strict=True) if lost}
