"""Find puts that repeat the `dedup_id` of an earlier put to their topic (`docs/formats/put-rules.md#deduplication`).

The window is in memory.  It is filled from the log: the first such put to a topic reads what was stored there within it, and in
the topics where delayed messages wait.  So it is that of the log after a restart, a kill and a takeover.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from commitlog import PutResult, PutStatus, StoredMessage
from commitlog.checks import CHECK_READ
from commitlog.topic_names import SCHEDULE_TOPIC
from consumequeue import Boundary, Queue
from consumequeue.layout import UNIT

from ...property_names import DEDUP_ID, REAL_TOPIC
from ...timers.layout import DUE, ROLLS, TIMER_TOPIC
from ...write.putting import refused

if TYPE_CHECKING:
    from ...parts import StoreParts

IDS_MAX = 1 << 20  # of a store at a time, in some 200 MiB of memory
DROPPED_MAX = 64  # old ids that one put drops, so that none takes long
UNITS = 1024
_ROW = struct.Struct(">iqqqi")  # queue id, queue offset, physical offset, store time, size; the store's host follows
_MARK = DEDUP_ID.encode() + b"\x01"


class DedupWindow:
    """The ids of the puts to one open store within the last `dedup_window_ms` milliseconds."""

    def __init__(self, parts: StoreParts) -> None:
        """Create it without reading anything."""
        self._parts = parts
        self._guard = threading.Lock()  # from the look for an id to the put of its message, so that two threads put it once
        self._puts: OrderedDict[str, bytes] = OrderedDict()  # by topic and id, the oldest first
        self._read: set[str] = set()

    def append(self, topic: str, dedup_id: str, append: Callable[[], PutResult]) -> PutResult:
        """Return what `append` returns, or without a call of it the result of the first put with this id as a duplicate.

        A put beyond IDS_MAX ids is refused: without its id a later duplicate would be stored.
        """
        key = f"{topic}\x01{dedup_id}"  # no topic has this character
        with self._guard:
            now_ms = self._parts.now_ms()
            self._read_earlier(topic, now_ms)
            self._drop_old(now_ms)
            known = self._puts.get(key)
            if known is not None and self._counts(topic, known, now_ms):
                return _duplicate(known)
            if len(self._puts) >= IDS_MAX:
                reason = f"{IDS_MAX} ids were put within dedup_window_ms={self._parts.config.dedup_window_ms}"
                return refused(PutStatus.SERVICE_NOT_AVAILABLE, reason)
            result = append()
            if result.status is PutStatus.PUT_OK:
                self._puts.pop(key, None)  # so that the id is the last one
                self._puts[key] = _packed(result, result.store_host)
            return result

    def _counts(self, topic: str, row: bytes, now_ms: int) -> bool:
        """Return whether a put is within the window, and not of a topic that was deleted since."""
        _, _, physical_offset, time_ms, _ = _ROW.unpack_from(row)
        deleted = self._parts.deleted.entries.get(topic)
        return not self._is_old(time_ms, now_ms) and (deleted is None or physical_offset >= deleted.before)

    def _is_old(self, time_ms: int, now_ms: int) -> bool:
        return now_ms - time_ms >= self._parts.config.dedup_window_ms

    def _drop_old(self, now_ms: int) -> None:
        for _ in range(min(DROPPED_MAX, len(self._puts))):
            key = next(iter(self._puts))
            if not self._is_old(_ROW.unpack_from(self._puts[key])[3], now_ms):
                return
            del self._puts[key]

    def forget(self, topic: str, before: int) -> None:
        """Forget the ids of a topic whose records before a physical offset were deleted."""
        with self._guard:
            start = f"{topic}\x01"
            for key in [key for key, row in self._puts.items() if key.startswith(start) and _ROW.unpack_from(row)[2] < before]:
                del self._puts[key]

    # What was put before this store was opened

    def _read_earlier(self, topic: str, now_ms: int) -> None:
        """Add what was put within the window, unless that was done."""
        if topic in self._read:
            return
        found = [] if self._read else [
            (pairs[REAL_TOPIC], message)
            for waiting in (SCHEDULE_TOPIC, TIMER_TOPIC)
            for message in self._stored(waiting, now_ms)
            if REAL_TOPIC in (pairs := message.properties) and ROLLS not in pairs  # a rolled timer is not put, it waits on
        ]  # fmt: skip
        found += [
            (topic, message)
            for message in self._stored(topic, now_ms)
            if not {REAL_TOPIC, DUE} & message.properties.keys()  # a delivered one was put when its delay began
        ]
        for name, message in sorted(found, key=lambda one: one[1].physical_offset):
            key = f"{name}\x01{message.properties[DEDUP_ID]}"
            self._puts[key] = _packed(message, bytes.fromhex(message.message_id)[:-8])  # the id is the host and the offset
        self._read.add(topic)

    def _stored(self, topic: str, now_ms: int) -> Iterator[StoredMessage]:
        """Yield the messages of a topic's queues that were stored within the window and have an id."""
        log = self._parts.log
        since_ms = now_ms - self._parts.config.dedup_window_ms + 1
        for queue in self._parts.lookup.of_topic(topic):
            low = queue.offset_by_time(since_ms, Boundary.LOWER, log.readers, self._parts.low_offset)
            for physical_offset in _records(queue, low):
                message = log.message_at(physical_offset, CHECK_READ)
                if message is None or _MARK not in message.properties_raw:
                    continue
                if message.store_timestamp_ms >= since_ms and DEDUP_ID in message.properties:
                    yield message


def _records(queue: Queue, low: int) -> Iterator[int]:
    """Yield the physical offsets of a queue's records from a queue offset on."""
    at, stop = queue.unit_range(max(low, queue.min_offset, 0), queue.max_offset)
    while at < stop:
        units = queue.packed_units(at, min(UNITS, stop - at))
        if units is None:
            return
        for physical_offset, _, _ in UNIT.iter_unpack(units):
            yield physical_offset
            at += 1


def _packed(put: PutResult | StoredMessage, host: bytes) -> bytes:
    size = put.size_bytes if isinstance(put, PutResult) else put.size
    return _ROW.pack(put.queue_id, put.queue_offset, put.physical_offset, put.store_timestamp_ms, size) + host


def _duplicate(row: bytes) -> PutResult:
    """Return the result of a put that wrote nothing because the message is stored."""
    result: PutResult = PutResult.__new__(PutResult)
    result.status, result.reason, result.cause, result.message_count = PutStatus.PUT_OK, None, None, 0
    numbers = _ROW.unpack_from(row)
    result.queue_id, result.queue_offset, result.physical_offset, result.store_timestamp_ms, result.size_bytes = numbers
    result.store_host = row[_ROW.size :]
    return result
