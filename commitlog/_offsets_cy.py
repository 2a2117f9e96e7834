"""Where each queue goes on: the next queue offset of every topic and queue (format page, section 2.4)."""

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
    """A topic's name as records hold it, and the next queue offset of each of its queues."""

    __slots__ = ("_capacity", "_held", "_next", "_next_offsets", "encoded", "magic", "name")

    def __init__(self, name: str) -> None:
        """Raises `InvalidMessage` for a name that no record can hold."""
        encoded: bytes = _encode_topic(name)
        self.name = name
        self.magic = MAGIC_V1 if _is_short(name, encoded) else MAGIC_V2
        self.encoded = len(encoded).to_bytes(1 if self.magic == MAGIC_V1 else 2, "big") + encoded
        self._capacity = 0
        self._next_offsets: Any = array("q")
        self._held = memoryview(b"")
        self._grow(QUEUES_FIRST - 1)

    def _grow(self, queue_id: Size) -> Bool:
        """Make room for a queue; the old buffer lives while a view of it does."""
        capacity: Size = max(QUEUES_FIRST, self._capacity)
        while capacity <= queue_id:
            capacity *= 2
        grown = array("q", bytes(8 * capacity))
        grown[: self._capacity] = self._next_offsets
        self._next_offsets = grown
        self._held = memoryview(grown)
        self._next: I64s = i64s_of(self._held)
        self._capacity = capacity
        return True

    def next_offset(self, queue_id: int) -> int:
        """0 for a queue that never had a message."""
        return int(self._next_offsets[queue_id]) if 0 <= queue_id < self._capacity else 0

    def set_next_offset(self, queue_id: int, queue_offset: int) -> None:
        """At opening, and when a store is cut."""
        if not 0 <= queue_id < QUEUES_MAX:
            raise InvalidMessage(f"queue id {queue_id}: 0 to {QUEUES_MAX - 1}")
        if queue_id >= self._capacity:
            self._grow(queue_id)
        self._next_offsets[queue_id] = queue_offset

    def queues(self) -> Iterator[tuple[int, int]]:
        """(queue id, next offset) of every queue that has had a message."""
        for queue_id, queue_offset in enumerate(self._next_offsets):
            if queue_offset:
                yield queue_id, queue_offset


def _encode_topic(name: str) -> bytes:
    """UTF-8, not empty, not too long for two bytes of length."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"topic {name!r} is no text: {error}") from error
    if not 0 < len(encoded) <= TOPIC_SIZE_MAX:
        raise InvalidMessage(f"topic of {len(encoded)} bytes: 1 to {TOPIC_SIZE_MAX} wanted")
    return encoded


def _is_short(name: str, encoded: bytes) -> bool:
    """Whether one byte of length does (section 1.1, version rule).

    The real store counts characters and lets the bytes overflow; a name whose bytes do not fit is V2 here, which it reads.
    """
    return len(name.encode("utf-16-le")) // 2 <= TOPIC_SIZE_MAX_V1 and len(encoded) <= TOPIC_SIZE_MAX_V1


class QueueOffsets:
    """The next queue offset of every topic and queue (section 2.4)."""

    __slots__ = ("_known", "_last", "_topics")

    def __init__(self, known: Callable[[str], list[tuple[int, int]]] | None = None) -> None:
        """`known(topic)` gives (queue id, next offset) of what the store has already, asked once a topic; without it every
        queue begins at 0.
        """
        self._topics: dict[str, TopicQueues] = {}
        self._last: TopicQueues | None = None  # mostly the next one too: a topic, once made, stays
        self._known = known

    def topic(self, name: str) -> TopicQueues:
        """Made on first use."""
        found: TopicQueues | None = self._last
        if found is not None and found.name is name:
            return found
        found = self._topics.get(name)
        if found is None:
            found = TopicQueues(name)
            if self._known is not None:
                for queue_id, queue_offset in self._known(name):
                    found.set_next_offset(queue_id, queue_offset)
            found = self._topics.setdefault(name, found)  # another thread may have been faster
        self._last = found
        return found

    def next_offset(self, topic: str, queue_id: int) -> int:
        """0 for what never had a message."""
        return self.topic(topic).next_offset(queue_id)

    def set_next_offset(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """At opening, and when a store is cut."""
        self.topic(topic).set_next_offset(queue_id, queue_offset)

    def queues(self) -> Iterator[tuple[str, int, int]]:
        """(topic, queue id, next offset) of every queue that has had a message."""
        for name, found in list(self._topics.items()):
            for queue_id, queue_offset in found.queues():
                yield name, queue_id, queue_offset
