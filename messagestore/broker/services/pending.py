"""Find which records of the log are still needed: those that some group has not acknowledged, or that wait for their delivery.

A record is needed by the queues that it is in. A queue needs its records from the smallest offset on that a group of its topic
has committed; all of them if no group is known. A group is known once it has committed an offset of the topic, and while a
consumer of it is open. So retry topics and dead letters are kept until they are consumed, and half messages and op records
until transactions are decided, whose progress is a group's as well. Delay levels and timers have a progress of their own.
A topic with the attribute `brokerstore.retention=limits` needs nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from commitlog.topic_names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC
from consumequeue import Queue
from consumequeue.layout import UNIT

from ...timers.layout import TIMER_TOPIC
from ..config.topics import is_deleted
from .timers import NOTHING_PENDING

if TYPE_CHECKING:
    from ...parts import StoreParts
    from .delays import Delays
    from .timers import Timers
    from .transactions import Transactions

Progress = dict[str, list[dict[int, int]]]  # topic -> the committed offsets of each group, by queue id


class Unacknowledged(NamedTuple):
    """Messages of a range of the log that a group has not acknowledged."""

    topic: str
    group: str
    messages: int


class PendingMessages:
    """Finds the pending messages of one store that is open for writing. The caller holds the housekeeper's guard."""

    def __init__(self, parts: StoreParts, delays: Delays, timers: Timers, transactions: Transactions) -> None:
        """Create it; nothing is read."""
        self._parts = parts
        self._delays = delays
        self._timers = timers
        self._transactions = transactions
        self._oldest: tuple[str, int] | None = None  # a queue that needed the first log file when it was looked at

    def first_offset(self, least: int) -> int:
        """Return the lowest physical offset of a pending record, or one after the end of the log without any.

        An offset below `least` may be another record's: it is returned as soon as it is found. The next call begins with the
        queue that it was found in, so while that queue holds the log, a call costs two reads.
        """
        if self._oldest is not None:
            topic, queue_id = self._oldest
            found = self._first_needed(topic, queue_id, [*self._progress_of(topic)])
            if found < least:
                return found
            self._oldest = None
        lowest = self._timers.first_pending(least)
        progress = self._progress()
        for topic in self._parts.lookup.topics() if lowest >= least else ():
            for queue_id in self._parts.lookup.queue_ids(topic):
                found = self._first_needed(topic, queue_id, progress.get(topic, []))
                if found < least:
                    self._oldest = topic, queue_id
                    return found
                lowest = min(lowest, found)
        return lowest

    def _progress(self) -> Progress:
        """Return the progress of all groups, by topic."""
        topics: dict[str, set[str]] = {}
        table = self._parts.consumer_offsets()
        for group, topic in (*table.pairs(), *self._parts.sharing.pairs()):
            topics.setdefault(topic, set()).add(group)
        return {topic: [table.offsets_of(topic, group) for group in groups] for topic, groups in topics.items()}

    def _progress_of(self, topic: str) -> Iterator[dict[int, int]]:
        """Yield the committed offsets of each group of one topic."""
        table = self._parts.consumer_offsets()
        open_groups = {group for group, name in self._parts.sharing.pairs() if name == topic}
        for group in {*table.groups(topic), *open_groups}:
            yield table.offsets_of(topic, group)

    def _first_needed(self, topic: str, queue_id: int, groups: list[dict[int, int]]) -> int:
        """Return the physical offset of the first record that a queue needs; a deleted topic needs none."""
        config = self._parts.topics.get(topic)
        if (config is not None and config.keeps_no_files) or is_deleted(self._parts.topics, topic):
            return NOTHING_PENDING
        start = self._progress_in(topic, queue_id, groups)
        return min((_position(queue, start) for queue in self._parts.lookup.each(topic, queue_id)), default=NOTHING_PENDING)

    def _progress_in(self, topic: str, queue_id: int, groups: list[dict[int, int]]) -> int:
        """Return the queue offset of the first message that somebody needs."""
        if topic == SCHEDULE_TOPIC:
            return self._delays.next_offset(queue_id + 1)
        if topic == TIMER_TOPIC:
            return self._timers.queue_offset
        if topic in (HALF_TOPIC, OP_TOPIC):
            self._transactions.save_progress(loads=True)
            groups = [*self._progress_of(topic)]
        return min((offsets.get(queue_id, 0) for offsets in groups), default=0)

    def unacknowledged(self, begin: int, end: int) -> list[Unacknowledged]:
        """Return what known groups have not acknowledged of the records between two physical offsets, where it is anything."""
        table = self._parts.consumer_offsets()
        found = []
        for group, topic in table.pairs():
            if topic == OP_TOPIC:
                continue
            offsets = table.offsets_of(topic, group)
            count = sum(
                _count(queue, offsets.get(queue.queue_id, 0), begin, end) for queue in self._parts.lookup.of_topic(topic)
            )
            if count:
                found.append(Unacknowledged(topic, group, count))
        return found


def _position(queue: Queue, start: int) -> int:
    """Return the physical offset of a queue's first record from a queue offset on."""
    start = max(start, queue.min_offset, 0)
    if start >= queue.max_offset:
        return NOTHING_PENDING
    return _physical_offset(queue, queue.unit_range(start, start + 1)[0])


def _physical_offset(queue: Queue, number: int) -> int:
    """Return where the record of a unit begins; 0 if the unit cannot be read, so that nothing is deleted."""
    packed = queue.packed_units(number, 1)
    return int(UNIT.unpack(packed)[0]) if packed is not None else 0


def _count(queue: Queue, acknowledged: int, begin: int, end: int) -> int:
    """Return how many messages of a range of the log a group has not acknowledged."""
    return max(0, _offset_at(queue, end) - max(_offset_at(queue, begin), acknowledged))


def _offset_at(queue: Queue, physical_offset: int) -> int:
    """Return the first queue offset whose record begins at or after an offset of the log; the maximum if none does."""
    low, stop = queue.unit_range(max(queue.min_offset, 0), queue.max_offset)
    low += bisect_left(range(low, stop), physical_offset, key=lambda number: _physical_offset(queue, number))
    if low >= stop:
        return queue.max_offset
    first: Iterable[tuple[int, int]] = queue.offsets_of(low, 1)
    return next(iter(first))[0]
