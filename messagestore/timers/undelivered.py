"""Find the timers of a log that were not delivered, from the log alone.

A timer is delivered when its copy is in the log: a record under the real topic with the same UNIQ_KEY, due time, birth and
body; one that RocksDB delivered has no TIMER_DEQUEUE_MS. A timer that is rolled has a newer record under the timers' topic
instead, with one more in TIMER_ROLL_TIMES, or with TIMER_ROLL_LABEL in RocksDB.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from commitlog import Reader, StoredMessage
from commitlog.walk import LogFiles, Piece

from .layout import DELETES, DUE, REAL_TOPIC, ROLL_LABEL, ROLLS, TIMER_TOPIC, UNIQ_KEY

_DUE_NAME = DUE.encode()
_DUE_BYTES = re.compile(re.escape(_DUE_NAME))
TimerKey = tuple[str, str, int, int, int, int]


class TimerMessage(NamedTuple):
    """What a unit needs of a timer's record. `deletes` names the timer that it deletes, or is empty."""

    topic: str
    uniq_key: str
    due_ms: int
    queue_offset: int
    log_offset: int
    log_size: int
    store_ms: int
    deletes: str


def due_of(message: StoredMessage) -> int:
    """Return the time at which a timer is due, 0 if its property is no number."""
    return _number(message.properties.get(DUE, ""))


def rolls_of(message: StoredMessage) -> int:
    """Return how often a timer was rolled."""
    return _number(message.properties.get(ROLLS, ""))


def delete_keys(topic: str, uniq_key: str) -> tuple[str, str]:
    """Return the texts by which a message deletes a timer: with the topic since RocketMQ 5.3.1, the UNIQ_KEY alone before."""
    return f"{topic}+{uniq_key}", uniq_key


def undelivered_timers(files: LogFiles) -> list[TimerMessage]:
    """Walk the log and return the timers that have neither a delivered nor a rolled copy, in the order of their queue.

    A message that deletes a timer is returned while its timer is: the broker decides whether it matches. Copies come after
    their timer, so one walk is enough, and only undelivered timers are held in memory.
    """
    waiting = WaitingTimers()
    for message in _timer_messages(files):
        waiting.add(message)
    return waiting.timers()


class WaitingTimers:
    """The timers of a log that have no delivered or rolled copy yet, while its records are added in their order."""

    def __init__(self) -> None:
        """Begin before the first record."""
        self._waiting: dict[TimerKey, list[TimerMessage]] = {}

    def add(self, message: StoredMessage) -> None:
        """Add the next record; one without a timer's property changes nothing."""
        if _DUE_NAME not in message.properties_raw or DUE not in message.properties:
            return
        _take(self._waiting, done_by(message))
        if message.topic == TIMER_TOPIC:
            self._waiting.setdefault(key_of(message), []).append(timer_of(message))

    def timers(self) -> list[TimerMessage]:
        """Return the timers in the order of their queue."""
        found = (timer for same in self._waiting.values() for timer in same)
        return _without_useless_deletes(sorted(found, key=lambda timer: timer.queue_offset))


def _without_useless_deletes(timers: list[TimerMessage]) -> list[TimerMessage]:
    """Leave out messages that delete a timer which is not waiting: no copy of them is ever written."""
    waiting = {
        (timer.due_ms, text) for timer in timers if not timer.deletes for text in delete_keys(timer.topic, timer.uniq_key)
    }
    return [timer for timer in timers if not timer.deletes or (timer.due_ms, timer.deletes) in waiting]


def _timer_messages(files: LogFiles) -> Iterator[StoredMessage]:
    """Yield the records that may be timers or copies of timers: those with the bytes of their property's name."""
    for step in files.walk():
        if isinstance(step, Piece):
            yield from _in_piece(step)


def _in_piece(piece: Piece) -> Iterator[StoredMessage]:
    reader = Reader(piece.view, piece.base)
    stop = piece.start  # end of the last record that was decoded
    for found in _DUE_BYTES.finditer(piece.view, piece.start, piece.stop):
        if found.start() < stop:
            continue
        at = piece.positions[bisect_right(piece.positions, found.start()) - 1]
        message = reader.decode(at, 0)
        assert message is not None, "the walk checked it"
        stop = at + message.size
        if DUE in message.properties:
            yield message


def timer_of(message: StoredMessage) -> TimerMessage:
    """Return what a unit needs of a timer's record."""
    properties = message.properties
    return TimerMessage(
        properties.get(REAL_TOPIC, ""), properties.get(UNIQ_KEY, ""), due_of(message), message.queue_offset,
        message.physical_offset, message.size, message.store_timestamp_ms, properties.get(DELETES, ""),
    )  # fmt: skip


def key_of(timer: StoredMessage) -> TimerKey:
    """Return what a timer's record has in common with its delivered or rolled copy."""
    return _key(timer, timer.properties.get(REAL_TOPIC, ""), rolls_of(timer))


def done_by(copy: StoredMessage) -> TimerKey | None:
    """Return the key of the timer that a record is the delivered or rolled copy of; None for another record."""
    rolls = rolls_of(copy)
    if copy.topic == TIMER_TOPIC:
        before = rolls if ROLL_LABEL in copy.properties else rolls - 1
        return _key(copy, copy.properties.get(REAL_TOPIC, ""), before) if before >= 0 else None
    return _key(copy, copy.topic, rolls) if DUE in copy.properties else None


def _key(message: StoredMessage, topic: str, rolls: int) -> TimerKey:
    """Return what a timer and its copies have in common; `topic` is the real one."""
    uniq_key = message.properties.get(UNIQ_KEY, "")
    return topic, uniq_key, due_of(message), rolls, message.born_timestamp_ms, message.body_crc


def _take(waiting: dict[TimerKey, list[TimerMessage]], key: TimerKey | None) -> None:
    """Remove the oldest of the timers with a key."""
    if key is not None and (same := waiting.get(key)):
        del same[0]
        if not same:
            del waiting[key]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
