"""Progress of a group's retry queues, which the consumers of all its topics share.

A group has one retry topic for everything it reads.  Each consumer takes the messages of its own topic (property RETRY_TOPIC)
and skips the rest, so the group's offset may only move past messages that are acknowledged whatever their topic.
`RetryProgress` tracks that.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from commitlog import StoredMessage

from ..property_names import FIRST_TOPIC

if TYPE_CHECKING:
    from ..broker.config.consumer_offsets import ConsumerOffsets


class RetryProgress:
    """The acknowledged messages of one group's retry queue.  The consumers of a process share it."""

    def __init__(self, offsets: ConsumerOffsets, topic: str, group: str, queue_id: int) -> None:
        """Start at the committed offset."""
        self._offsets = offsets
        self._key = (topic, group, queue_id)
        self._guard = threading.Lock()
        self._done = offsets.done(topic, group, queue_id)
        self.base = offsets.get(topic, group, queue_id) or 0

    def begin_at(self, offset: int) -> None:
        """Forget everything before an offset, because those messages no longer exist."""
        with self._guard:
            if offset > self.base:
                self.base = offset
                self._done = {one for one in self._done if one >= offset}

    def is_done(self, offset: int) -> bool:
        """Return whether a message is acknowledged."""
        return offset < self.base or offset in self._done

    def done(self, offset: int) -> None:
        """Acknowledge one message; move the group's offset over all acknowledged messages that follow it without a gap."""
        with self._guard:
            if offset >= self.base:
                self._done.add(offset)
            before = self.base
            while self.base in self._done:
                self._done.remove(self.base)
                self.base += 1
            topic, group, queue_id = self._key
            if self.base != before:
                self._offsets.commit(topic, group, queue_id, self.base)
            elif offset in self._done:
                self._offsets.add_done(topic, group, queue_id, offset)


class RetryProgresses:
    """The retry progress of all groups of one open store."""

    def __init__(self) -> None:
        """Create it without any progress."""
        self._guard = threading.Lock()
        self._known: dict[tuple[str, str, int], RetryProgress] = {}

    def get(self, offsets: ConsumerOffsets, topic: str, group: str, queue_id: int) -> RetryProgress:
        """Return the progress of a queue; create it on first use."""
        with self._guard:
            key = (topic, group, queue_id)
            if key not in self._known:
                self._known[key] = RetryProgress(offsets, topic, group, queue_id)
            return self._known[key]

    def forget(self, group: str) -> None:
        """Forget the progress of a group, whose offsets were set or deleted."""
        with self._guard:
            self._known = {key: progress for key, progress in self._known.items() if key[1] != group}


def is_of_topic(message: StoredMessage, topic: str) -> bool:
    """Return whether a message of a retry topic came from `topic`."""
    return message.all_properties.get(FIRST_TOPIC, topic) == topic
