"""Which messages the holes of a log have swallowed, and in which hole each of them gets its place again.

A queue's unit says both.  Where queues are damaged too, a jump in the queue offsets of the records says which messages are
missing, and only that they lay in one of the holes between two records: they go, in their order, into the first hole that has
room for one more.  What no hole has room for is left out, so a number that jumped for another reason costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from commitlog.layout import BLANK_SIZE
from consumequeue import ConsumeQueues

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


def swallowed(holes: Sequence[Bounds], gaps: list[Gap], queues: ConsumeQueues | None) -> dict[int, list[Lost]]:
    """Lost messages by the start of the hole that each of them is to be filled into."""
    known = _of_units(holes, queues) if queues is not None else {}
    places = _Places(holes, known)
    for gap in sorted(gaps, key=lambda gap: (gap.last_hole, gap.first_hole)):  # who has the fewest holes left chooses first
        places.take(gap)
    return places.by_start()


def _of_units(holes: Sequence[Bounds], queues: ConsumeQueues) -> dict[Lost, int]:
    """Messages whose units point into a hole, with the hole's number; also those without a later record."""
    found = {}
    for queue in queues:
        for number, hole in enumerate(holes):
            place = queue.find_physical(hole.start)
            while (unit := queue.unit(place)) is not None and hole.start <= unit.physical_offset < hole.stop:
                found[Lost(queue.topic, queue.queue_id, place)] = number
                place += 1
    return found


class _Places:
    """How much room each hole has left, and what is in it."""

    def __init__(self, holes: Sequence[Bounds], known: dict[Lost, int]) -> None:
        self._holes = holes
        self._known = known
        self._in_hole: list[list[Lost]] = [[] for _ in holes]
        self._room_bytes = [hole.stop - hole.start - (BLANK_SIZE if hole.stop == hole.file_end else 0) for hole in holes]
        for lost, number in known.items():
            self._put(lost, number)

    def _put(self, lost: Lost, number: int) -> None:
        self._in_hole[number].append(lost)
        self._room_bytes[number] -= least_size(lost.topic)

    def take(self, gap: Gap) -> None:
        """Each missing message behind the one before it.  Ends when the holes are full, however far the numbers jump."""
        least, number = least_size(gap.topic), gap.first_hole
        for place in range(gap.first, gap.stop):
            lost = Lost(gap.topic, gap.queue_id, place)
            if lost in self._known:
                number = max(number, self._known[lost])
                continue
            while number <= gap.last_hole and self._room_bytes[number] < least:
                number += 1
            if number > gap.last_hole:
                return
            self._put(lost, number)

    def by_start(self) -> dict[int, list[Lost]]:
        """What came of it."""
        return {hole.start: lost for hole, lost in zip(self._holes, self._in_hole, strict=True) if lost}
