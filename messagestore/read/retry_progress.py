"""What a consumer reads beside its topic: messages of the topic that came back in `%RETRY%group`.

A group has one retry topic for all that it reads.  Each consumer takes what its own topic sent there (property RETRY_TOPIC)
and leaves the rest to the others, so the group's offset may move only past what all of them are done with: `RetryProgress`
keeps that.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from commitlog import StoredMessage

from ..broker.services.names import FIRST_TOPIC

if TYPE_CHECKING:
    from ..broker.config.consumer_offsets import ConsumerOffsets


class RetryProgress:
    """How far one group's retry queue is done with.  Shared by the consumers of a process."""

    def __init__(self, offsets: ConsumerOffsets, topic: str, group: str, queue_id: int) -> None:
        """Goes on from what is committed."""
        self._offsets = offsets
        self._key = (topic, group, queue_id)
        self._guard = threading.Lock()
        self._done: set[int] = set()
        self.base = offsets.get(topic, group, queue_id) or 0

    def begin_at(self, offset: int) -> None:
        """Nothing is left before an offset."""
        with self._guard:
            if offset > self.base:
                self.base = offset
                self._done = {one for one in self._done if one >= offset}

    def is_done(self, offset: int) -> bool:
        """Whether somebody acknowledged it."""
        return offset < self.base or offset in self._done

    def done(self, offset: int) -> None:
        """Be done with one message; the group's offset moves as far as everything before is done."""
        with self._guard:
            if offset >= self.base:
                self._done.add(offset)
            before = self.base
            while self.base in self._done:
                self._done.remove(self.base)
                self.base += 1
            if self.base != before:
                topic, group, queue_id = self._key
                self._offsets.commit(topic, group, queue_id, self.base)


class RetryProgresses:
    """Those of one open store."""

    def __init__(self) -> None:
        """None yet."""
        self._guard = threading.Lock()
        self._known: dict[tuple[str, str, int], RetryProgress] = {}

    def get(self, offsets: ConsumerOffsets, topic: str, group: str, queue_id: int) -> RetryProgress:
        """Made when it is first asked for."""
        with self._guard:
            key = (topic, group, queue_id)
            if key not in self._known:
                self._known[key] = RetryProgress(offsets, topic, group, queue_id)
            return self._known[key]


def is_of_topic(message: StoredMessage, topic: str) -> bool:
    """Whether a message of a retry topic was first one of `topic`."""
    return message.all_properties.get(FIRST_TOPIC, topic) == topic
