"""The next queue offset of every topic and queue (docs/formats/consumequeue.md#queue-offsets)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import InvalidMessage

from .layout import MAGIC_V1, MAGIC_V2, QUEUES_MAX, TOPIC_SIZE_MAX, TOPIC_SIZE_MAX_V1

if not cython.compiled:
    from storebytes._bytes_cy import I64s, Bool, Size, i64s_of

QUEUES_FIRST = 8


class TopicQueues:
    """A topic's name as stored in records, and the next queue offset of each of its queues."""

    __slots__ = ("_capacity", "_held", "_next", "_next_offsets", "encoded", "magic", "name")

    def __init__(self, name: str) -> None:
        """Raise `InvalidMessage` for a name that no record can hold."""
        encoded: bytes = _encode_topic(name)
        self.name = name
        self.magic = MAGIC_V1 if _is_short(name, encoded) else MAGIC_V2
        self.encoded = len(encoded).to_bytes(1 if self.magic == MAGIC_V1 else 2, "big") + encoded
        self._capacity = 0
        self._next_offsets: Any = array("q")
        self._held = memoryview(b"")
        self._grow(QUEUES_FIRST - 1)

    def _grow(self, queue_id: Size) -> Bool:
        """Make room for a queue; a view of the old buffer stays valid."""
        capacity: Size = max(QUEUES_FIRST, self._capacity)
        while capacity <= queue_id:
            capacity *= 2
        grown = array("q", bytes(8 * capacity))
        grown[: self._capacity] = self._next_offsets
        with cython.critical_section(self):
            self._next_offsets = grown
            self._held = memoryview(grown)
            self._next: I64s = i64s_of(self._held)
            self._capacity = capacity
        return True

    def _counters(self) -> Any:
        """Return the array of next offsets, which another thread may replace by a larger one."""
        with cython.critical_section(self):
            return self._next_offsets

    def next_offset(self, queue_id: int) -> int:
        """Return the next offset of a queue, 0 if it never had a message."""
        counters = self._counters()
        return int(counters[queue_id]) if 0 <= queue_id < len(counters) else 0

    def set_next_offset(self, queue_id: int, queue_offset: int) -> None:
        """Set the next offset of a queue, when a store is opened or truncated."""
        if not 0 <= queue_id < QUEUES_MAX:
            raise InvalidMessage(f"queue id {queue_id}: 0 to {QUEUES_MAX - 1}")
        if queue_id >= self._capacity:
            self._grow(queue_id)
        self._next_offsets[queue_id] = queue_offset

    def queues(self) -> Iterator[tuple[int, int]]:
        """Yield (queue id, next offset) of every queue that has had a message."""
        for queue_id, queue_offset in enumerate(self._counters()):
            if queue_offset:
                yield queue_id, queue_offset


def _encode_topic(name: str) -> bytes:
    """Encode a name in UTF-8; raise `InvalidMessage` if it is empty or its size does not fit."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"topic {name!r} is no text: {error}") from error
    if not 0 < len(encoded) <= TOPIC_SIZE_MAX:
        raise InvalidMessage(f"topic of {len(encoded)} bytes: 1 to {TOPIC_SIZE_MAX} wanted")
    return encoded


def _is_short(name: str, encoded: bytes) -> bool:
    """Return whether the topic size fits one byte (docs/formats/commitlog.md#magic-and-version).

    RocketMQ counts characters and lets the byte count overflow; a name whose bytes do not fit is V2 here, which RocketMQ can
    read.
    """
    return len(name.encode("utf-16-le")) // 2 <= TOPIC_SIZE_MAX_V1 and len(encoded) <= TOPIC_SIZE_MAX_V1


class QueueOffsets:
    """The next queue offset of every topic and queue (docs/formats/consumequeue.md#queue-offsets)."""

    __slots__ = ("_known", "_last", "_topics")

    def __init__(self, known: Callable[[str], list[tuple[int, int]]] | None = None) -> None:
        """Take `known(topic)`, which returns (queue id, next offset) for the existing queues and is called once a topic.

        Without it every queue starts at 0.
        """
        self._topics: dict[str, TopicQueues] = {}
        self._last: TopicQueues | None = None  # usually also the next one that is appended to
        self._known = known

    def topic(self, name: str) -> TopicQueues:
        """Return the queues of a topic, created on first use."""
        found: TopicQueues | None = self._topics.get(name)
        if found is None:
            found = TopicQueues(name)
            if self._known is not None:
                for queue_id, queue_offset in self._known(name):
                    found.set_next_offset(queue_id, queue_offset)
            found = self._topics.setdefault(name, found)  # another thread may have been faster
        return found

    def appended(self, name: str) -> TopicQueues:
        """Return `topic`; the caller holds the lock of the appender, which protects `_last`."""
        found: TopicQueues | None = self._last
        if found is not None and found.name is name:
            return found
        found = self.topic(name)
        self._last = found
        return found

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the next offset of a queue, 0 if it never had a message."""
        return self.topic(topic).next_offset(queue_id)

    def set_next_offset(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the next offset of a queue, when a store is opened or truncated."""
        self.topic(topic).set_next_offset(queue_id, queue_offset)

    def queues(self) -> Iterator[tuple[str, int, int]]:
        """Yield (topic, queue id, next offset) of every queue that has had a message."""
        for name, found in list(self._topics.items()):
            for queue_id, queue_offset in found.queues():
                yield name, queue_id, queue_offset
