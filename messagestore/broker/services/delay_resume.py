"""Find delayed messages that were delivered although `delayOffset.json` does not count them.

This is needed after an unclean stop, and where the file does not belong to the log: a copy has no such file, and a slave's log
receives the deliveries of its master. A level is delivered in queue order, so every message before the last delivered one is
done: delivered or skipped. A delivered record keeps the properties, body and born time of the waiting one. Such a record in the
queue that the waiting message names, stored after the file was last written, is the delivery of exactly one message.

`brokerstore/delays.json` holds the end of the log at the time the file was written. Without it, for example in a folder of a
real broker or a slave, a level is searched from its first message on, so that equal messages are told apart by counting.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from commitlog import StoredMessage, is_java_number
from commitlog.topic_names import SCHEDULE_TOPIC
from storageio import Disk

from ...property_names import DELAY, INNER_BASE, MULTI_QUEUE_OFFSET, REAL_QUEUE, REAL_TOPIC
from ...sidecar import read_sidecar, write_sidecar

if TYPE_CHECKING:
    from ...parts import StoreParts
    from ..config.delay_offsets import DelayOffsets

NAME = "delays.json"
FORGOTTEN = -1  # the position in the store of a slave
PRINT_SIZE = 16
ADDED = (INNER_BASE, MULTI_QUEUE_OFFSET)  # properties that a delivery gets


def write_delay_sidecar(disk: Disk, folder: str, position: int, offsets: dict[int, int]) -> None:
    """Write the end of the log at the time when these offsets were true."""
    write_sidecar(disk, os.path.join(folder, NAME), {"position": position, "offsets": offsets})


def read_delay_sidecar(disk: Disk, folder: str) -> tuple[int, dict[int, int]] | None:
    """Return (log position, level to offset), or None if there is no readable file."""
    return read_sidecar(disk, os.path.join(folder, NAME), _parsed)


def delete_delay_sidecar(disk: Disk, folder: str) -> None:
    """Record that the log may receive deliveries that no file counts from now on."""
    write_delay_sidecar(disk, folder, FORGOTTEN, {})


def is_forgotten(disk: Disk, folder: str) -> bool:
    """Return whether the log may have received deliveries since the offsets were last written."""
    sidecar = read_delay_sidecar(disk, folder)
    return sidecar is not None and sidecar[0] == FORGOTTEN


def _parsed(sidecar: Any) -> tuple[int, dict[int, int]]:
    return int(sidecar["position"]), {int(level): int(offset) for level, offset in sidecar["offsets"].items()}


def delivered_since(parts: StoreParts, offsets: DelayOffsets) -> dict[int, int]:
    """Return the next queue offset of each level that is ahead of the file."""
    sidecar = read_delay_sidecar(parts.disk, parts.paths.own)
    if sidecar is not None and sidecar[0] > parts.log.written_offset:
        sidecar = None  # the log was cut after the file was written, or the store is only read and its end not known
    further = {}
    for queue_id in parts.queues.queue_ids(SCHEDULE_TOPIC):
        level, known = queue_id + 1, offsets.get(queue_id + 1)
        position, start = (sidecar[0], sidecar[1].get(level, 0)) if sidecar is not None else (FORGOTTEN, 0)
        found = _Search(parts, position).go_on(queue_id, start)
        if found > known:
            further[level] = found
    return further


class _Search:
    """A search of the log behind a position for deliveries of one level."""

    def __init__(self, parts: StoreParts, position: int) -> None:
        """Create a search. With `FORGOTTEN` as the position, it starts behind the first message that is searched for."""
        self._parts = parts
        self._position = position
        self._found: dict[tuple[str, int], _Deliveries] = {}

    def go_on(self, queue_id: int, start: int) -> int:
        """Return the offset behind the last delivered message from `start` on; undelivered ones before it were skipped."""
        queue = self._parts.queues.get(SCHEDULE_TOPIC, queue_id)
        assert queue is not None, "one that was listed"
        newest_ms = self._parts.log.appender.last_store_timestamp_ms if self._parts.writable else self._parts.now_ms()
        at = max(start, queue.min_offset)
        for position, unit in queue.units(at):
            waiting = self._parts.log.message_at(unit.physical_offset)
            if waiting is not None and waiting.store_timestamp_ms >= newest_ms:
                break
            if waiting is not None and self._was_delivered(waiting):
                at = position + 1
        return at

    def _was_delivered(self, waiting: StoredMessage) -> bool:
        if self._position == FORGOTTEN:
            self._position = waiting.physical_offset
        return self._of_queue(waiting).take(waiting)

    def _of_queue(self, waiting: StoredMessage) -> _Deliveries:
        """Return the deliveries in the queue that the waiting message belongs to."""
        pairs = waiting.all_properties
        topic, queue_id = pairs.get(REAL_TOPIC, ""), pairs.get(REAL_QUEUE, "")
        key = (topic, int(queue_id) if is_java_number(queue_id, 32) else -1)
        if key not in self._found:
            self._found[key] = _Deliveries(self._behind(*key))
        return self._found[key]

    def _behind(self, topic: str, queue_id: int) -> Iterator[StoredMessage]:
        """Yield the delayed messages of a queue or batch queue behind the position."""
        found = map(self._parts.log.message_at, self._parts.lookup.records_from(topic, queue_id, self._position))
        return (message for message in found if message is not None and DELAY in message.all_properties)


class _Deliveries:
    """The deliveries in one queue, in log order. Each delivery, and all before it, can match only once."""

    def __init__(self, messages: Iterator[StoredMessage]) -> None:
        """Read the deliveries. Only their fingerprints are kept, because a whole log may have to be searched."""
        self._positions: dict[bytes, list[int]] = {}
        self._next = 0
        for message in messages:
            self._positions.setdefault(_print(message), []).append(message.physical_offset)

    def take(self, waiting: StoredMessage) -> bool:
        """Return whether this message has an unused delivery, and use it up."""
        paths = self._positions.get(_print(waiting), [])
        index = bisect_left(paths, max(self._next, waiting.physical_offset + 1))
        if index == len(paths):
            return False
        self._next = paths[index] + 1
        return True


def _print(message: StoredMessage) -> bytes:
    """Return a short hash of what a waiting message and its delivery have in common."""
    pairs = sorted(pair for pair in message.properties.items() if pair[0] not in ADDED)
    parts = (message.born_timestamp_ms, message.body_crc, len(message.body), message.reconsume_times, pairs)
    return blake2b(repr(parts).encode(), digest_size=PRINT_SIZE).digest()
