"""After an unclean stop: which delayed messages were delivered already although `delayOffset.json` does not say so.

Deliveries of a level come in the order of its queue, so what was delivered is a front part of what is left.  A delivered
record keeps the waiting one's properties, body and born time; such a record in the queue that the waiting one names, stored
after the file was last written, is its delivery.  `brokerstore/delays.json` holds the log's end as it was when the file was
written; without it (a real broker wrote the folder) every record behind the waiting one counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commitlog import StoredMessage
from storageio import Disk, replace_file

from ..own_notes import read_own_note
from .names import DELAY, REAL_QUEUE, REAL_TOPIC, SCHEDULE_TOPIC

if TYPE_CHECKING:
    from ..broker_config.delay_offsets import DelayOffsets
    from ..engine import Engine

NAME = "delays.json"
SIZE_MAX = 1 << 20
Print = tuple[int, int, int, int, frozenset[tuple[str, str]]]


def write_delay_note(disk: Disk, folder: str, position: int, offsets: dict[int, int]) -> None:
    """Where the log ended when these offsets were true."""
    disk.make_folder(folder)
    data = json.dumps({"position": position, "offsets": {str(level): offset for level, offset in offsets.items()}})
    replace_file(disk, os.path.join(folder, NAME), data.encode())


def read_delay_note(disk: Disk, folder: str) -> tuple[int, dict[int, int]] | None:
    """None when there is none that can be read."""
    return read_own_note(disk, os.path.join(folder, NAME), SIZE_MAX, _parsed)


def _parsed(note: Any) -> tuple[int, dict[int, int]]:
    return int(note["position"]), {int(level): int(offset) for level, offset in note["offsets"].items()}


def delivered_since(engine: Engine, offsets: DelayOffsets) -> dict[int, int]:
    """Level to the queue offset to go on at, of the levels that came further than the file says."""
    note = read_delay_note(engine.disk, engine.places.own)
    if note is not None and note[0] > engine.log.written_offset:
        note = None  # the log was cut since
    further = {}
    for queue_id in engine.queues.queue_ids(SCHEDULE_TOPIC):
        level, known = queue_id + 1, offsets.get(queue_id + 1)
        position, start = (note[0], note[1].get(level, 0)) if note is not None else (-1, known)
        found = _Search(engine, position).go_on(queue_id, start)
        if found > known:
            further[level] = found
    return further


class _Search:
    """Deliveries behind a place of the log, of one level."""

    def __init__(self, engine: Engine, position: int) -> None:
        """`position` -1: behind the first message that is looked for."""
        self._engine = engine
        self._position = position
        self._candidates: dict[tuple[str, int], Iterator[StoredMessage]] = {}

    def go_on(self, queue_id: int, start: int) -> int:
        """Behind the last message from `start` on that was delivered."""
        queue = self._engine.queues.get(SCHEDULE_TOPIC, queue_id)
        if queue is None:
            return 0
        newest_ms = self._engine.log.appender.last_store_timestamp_ms
        at = max(start, queue.min_offset)
        for place, unit in queue.units(at):
            waiting = self._engine.log.message_at(unit.physical_offset)
            if waiting is None or waiting.store_timestamp_ms >= newest_ms or not self._was_delivered(waiting):
                return place
        return max(at, queue.max_offset)

    def _was_delivered(self, waiting: StoredMessage) -> bool:
        if self._position < 0:
            self._position = waiting.physical_offset
        wanted = _print(waiting)
        return any(_print(found) == wanted for found in self._of_queue(waiting))

    def _of_queue(self, waiting: StoredMessage) -> Iterator[StoredMessage]:
        """What the waiting one's own queue holds, from where the last delivery was found."""
        pairs = waiting.all_properties
        topic, queue_id = pairs.get(REAL_TOPIC, ""), pairs.get(REAL_QUEUE, "")
        key = (topic, int(queue_id) if queue_id.isdecimal() else -1)
        if key not in self._candidates:
            self._candidates[key] = self._behind(*key)
        return self._candidates[key]

    def _behind(self, topic: str, queue_id: int) -> Iterator[StoredMessage]:
        queue = self._engine.queues.get(topic, queue_id)
        if queue is None:
            return
        for _, unit in queue.units(queue.find_physical(self._position)):
            message = self._engine.log.message_at(unit.physical_offset)
            if message is not None and DELAY in message.all_properties:
                yield message


def _print(message: StoredMessage) -> Print:
    """What a waiting message and its delivery have in common."""
    pairs = frozenset(message.properties.items())
    return message.born_timestamp_ms, message.body_crc, len(message.body), message.reconsume_times, pairs
