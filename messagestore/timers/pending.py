"""Find the timers that wait for their delivery: units whose slot was not read yet, and messages that have no unit yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from commitlog import StoredMessage
from commitlog.walk import LogFiles
from consumequeue import ConsumeQueue
from storageio import Disk

from ..rocksdb.store_rows import stored_timers
from .layout import DELETES, REAL_TOPIC, TIMER_TOPIC, UNIQ_KEY, TimerCheckpoint, TimerUnit, slot_s
from .records import TimerRecords
from .timer_log import TimerLog, refuse_unknown_layout
from .undelivered import delete_keys, due_of
from .wheel import read_timer_checkpoint, used_slots


class TimersBehind(NamedTuple):
    """The number of timers that point behind an offset of the log; `pending` of them are not delivered yet.

    `is_whole` is false if units are missing that the wheel or checkpoint refers to: then there may be more.
    """

    units: int
    pending: int
    is_whole: bool

    @property
    def any(self) -> bool:
        """Return whether a timer points, or may point, behind the offset."""
        return self.units > 0 or not self.is_whole


def timers_behind(disk: Disk, root: str, log_end: int) -> TimersBehind:
    """Count the units that point to a record ending behind `log_end`.

    Raises `UnsupportedFormat` for timer files of an unknown layout.
    """
    refuse_unknown_layout(disk, root)
    check = read_timer_checkpoint(disk, root) or TimerCheckpoint()
    log = TimerLog(disk, root)
    units = pending = 0
    for unit in log.units():
        if unit.log_end > log_end:
            units += 1
            pending += is_pending(unit, check) and not unit.deletes
    last = max((slot.last for slot in used_slots(disk, root)), default=-1)
    return TimersBehind(units, pending, check.flushed <= log.end and last < log.end)


def is_pending(unit: TimerUnit, check: TimerCheckpoint) -> bool:
    """Return whether the slot of a unit was not delivered when the checkpoint was written."""
    return slot_s(unit.due_ms) >= slot_s(check.last_read_ms)


@dataclass
class PendingTopic:
    """The pending timers of one topic; times are those that the producers asked for."""

    topic: str
    timers: int = 0
    next_due_ms: int = 0
    last_due_ms: int = 0

    def add(self, due_ms: int) -> None:
        """Add one timer to the counts."""
        self.next_due_ms = min(self.next_due_ms, due_ms) if self.timers else due_ms
        self.last_due_ms = max(self.last_due_ms, due_ms)
        self.timers += 1


@dataclass
class PendingTimers:
    """The pending timers of a store by topic, sorted by name.

    `unreadable` counts units whose message is not in the log any more, so that they will never be delivered.
    """

    topics: list[PendingTopic] = field(default_factory=list)
    unreadable: int = 0

    @property
    def timers(self) -> int:
        """Return the number of pending timers of all topics."""
        return sum(topic.timers for topic in self.topics)

    @property
    def next_due_ms(self) -> int | None:
        """Return when the next timer is due, or None without one."""
        return min((topic.next_due_ms for topic in self.topics), default=None)


def pending_timers(disk: Disk, root: str, files: LogFiles, queue: ConsumeQueue | None) -> PendingTimers:
    """Count the pending timers by topic. `queue` is queue 0 of the timers' topic, if the store has it.

    A timer that a message deletes is not counted. Raises `UnsupportedFormat` and `StoreCorrupt` for unreadable timer files.
    """
    refuse_unknown_layout(disk, root)
    return _Pending(disk, root, files, queue).count()


def pending_messages(disk: Disk, root: str, files: LogFiles, queue: ConsumeQueue | None) -> Iterator[StoredMessage]:
    """Yield the message of each pending timer; arguments and errors are those of `pending_timers`."""
    refuse_unknown_layout(disk, root)
    return _Pending(disk, root, files, queue).messages()


class _Pending:
    """Counts the timers of one store."""

    def __init__(self, disk: Disk, root: str, files: LogFiles, queue: ConsumeQueue | None) -> None:
        self._check = read_timer_checkpoint(disk, root) or TimerCheckpoint()
        self._log = TimerLog(disk, root)
        self._records = TimerRecords(disk, files)
        self._queue = queue
        stored = stored_timers(disk, root)
        self._rows = stored.pending() if stored is not None else []
        taken_in = stored.queue_offset if stored is not None else 0
        self._next_offset = max(self._check.queue_offset, taken_in)  # of the first message without a unit or row
        self._result = PendingTimers()

    def count(self) -> PendingTimers:
        topics: dict[str, PendingTopic] = {}
        for message in self.messages():
            name = message.properties.get(REAL_TOPIC, TIMER_TOPIC)
            topics.setdefault(name, PendingTopic(name)).add(due_of(message))
        self._result.topics = [topics[name] for name in sorted(topics)]
        return self._result

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the message of each timer that no other one deletes."""
        deleted = {(due_s, message.properties[DELETES]) for due_s, message in self._deleting()}  # in the slot of its timer
        for due_s, message in chain(self._with_unit(), self._with_row(), self._without_unit()):
            names = delete_keys(message.properties.get(REAL_TOPIC, ""), message.properties.get(UNIQ_KEY, ""))
            if DELETES not in message.properties and not any((due_s, text) in deleted for text in names):
                yield message

    def _deleting(self) -> Iterator[tuple[int, StoredMessage]]:
        """Yield slot and message of each unit that deletes a timer."""
        for unit in self._log.units():
            if unit.deletes and is_pending(unit, self._check):
                message = self._records.read(unit)
                if isinstance(message, StoredMessage) and DELETES in message.properties:
                    yield slot_s(unit.due_ms), message

    def _with_unit(self) -> Iterator[tuple[int, StoredMessage]]:
        for unit in self._log.units():
            if is_pending(unit, self._check):
                message = self._records.read(unit)
                if isinstance(message, StoredMessage):
                    self._next_offset = max(self._next_offset, message.queue_offset + 1)
                    yield slot_s(unit.due_ms), message
                else:
                    self._result.unreadable += not unit.deletes

    def _with_row(self) -> Iterator[tuple[int, StoredMessage]]:
        """Yield the messages of the timers in RocksDB."""
        for row in self._rows:
            message = self._records.record_at(row.log_offset, row.size_bytes)
            if isinstance(message, StoredMessage):
                yield slot_s(row.due_ms), message
            else:
                self._result.unreadable += 1

    def _without_unit(self) -> Iterator[tuple[int, StoredMessage]]:
        """Yield the messages of the timers' topic that the broker has not read yet."""
        for _, unit in self._queue.units(self._next_offset) if self._queue is not None else ():
            message = self._records.read(TimerUnit(0, 0, 0, 0, 0, unit.physical_offset, unit.size_bytes, 0))
            if isinstance(message, StoredMessage):
                yield slot_s(due_of(message)), message
