"""The queues of the kombu transport on a shared store."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from brokerstore.migrate import topic_of
from commitlog import Message, StoredMessage
from messagestore import SharedConsumer, SharedStore
from storageio import InvalidMessage, StoreFull

from .bindings import TOPIC as BINDINGS_TOPIC

LOG = logging.getLogger("brokerstore.kombu")
GROUP = "kombu"
TRANSIENT_TOPIC = "kombu_transient"
PRIORITY = "KOMBU_PRIORITY"
PRIORITY_MAX = 9  # of kombu's messages
POLL_S = 1.0  # how often a topic of another priority is looked for
_STEP = re.compile(r":\d+\Z", re.ASCII)
_END = re.compile(r"(%3A\d+|-[0-9a-f]{16})\Z", re.ASCII)
PURGED_COUNT = 256
FETCH_COUNT = 32


def topic_of_step(name: str, step: int) -> str:
    """Return the topic of a queue's messages of one step of priority, other than the lowest."""
    return topic_of(f"{name}:{step}")


def topic_of_queue(name: str) -> str:
    """Return the topic of a queue; no other queue, step of priority or topic of this transport has it.

    Each byte but letters, digits, `_` and `-` is `%XX`, so the name can be read from it, unless it is too long and ends in a
    hash. A name that ends as a step does has small hex digits there.
    """
    topic = topic_of(name)
    if topic in (BINDINGS_TOPIC, TRANSIENT_TOPIC):
        return f"%{ord(topic[0]):02X}{topic[1:]}"
    if _STEP.search(name):
        return _END.sub(lambda end: end[0].swapcase(), topic)
    return topic


class KombuQueue(Protocol):
    """What a channel needs of a queue. Any thread may call `ack`; one at a time may call the others."""

    def put(self, body: bytes, priority: int) -> None:
        """Add a message with a priority from 0 to 9."""

    def get(self) -> StoredMessage | None:
        """Return the next message, or None if there is none now."""

    def ack(self, message: StoredMessage) -> None:
        """Acknowledge a message that `get` returned."""

    def size(self) -> int:
        """Return the number of messages that no process has."""

    def purge(self) -> int:
        """Remove the messages that no process has, and return their number."""

    def close(self) -> None:
        """Leave what is not acknowledged to other processes."""


class TaskQueue:
    """A queue that outlives its processes: one topic for each step of priority, consumed by one group.

    The group divides the topic's queues among the processes that consume, so each message is in one living process. What a
    process had when it ended goes to another one.
    """

    def __init__(self, store: SharedStore, name: str, steps: Sequence[int], parts: int) -> None:
        """`steps`: the lowest priority of each topic, ascending; `parts`: queues of a topic, so consuming processes at most.

        Messages of other steps are consumed as well, because a process that put them may have declared the queue otherwise.
        """
        self._store = store
        self._parts = parts
        self._lowest = steps[0]
        self.steps = steps
        all_steps = {*steps, *range(steps[0], PRIORITY_MAX + 1)}
        self._topics = {step: topic_of_step(name, step) if step != steps[0] else topic_of_queue(name) for step in all_steps}
        self._created: set[str] = set()
        self._consumers: dict[int, SharedConsumer] = {}
        self._ready: deque[StoredMessage] = deque()
        self._of_topic: dict[str, SharedConsumer] = {}
        self._unacked = 0
        self._guard = threading.Lock()
        self._checked_at_s = -POLL_S

    def create(self, step: int) -> str:
        """Create the topic of a step if this process did not, and return it."""
        topic = self._topics[step]
        if topic not in self._created:
            try:
                self._store.create_topic(topic, self._parts)
            except InvalidMessage as error:
                if topic not in self._store.topics():
                    raise
                LOG.warning("%s", error)
            self._created.add(topic)
            self._checked_at_s = -POLL_S
        return topic

    def put(self, body: bytes, priority: int) -> None:
        """Add a message to the topic of the highest step that its priority reaches."""
        step = max((step for step in self.steps if self._lowest <= step <= priority), default=self._lowest)
        self._store.put(Message(self.create(step), body))

    def get(self) -> StoredMessage | None:
        """Return the next message, of the highest priority first."""
        if self._ready:
            return self._handed_out(self._ready.popleft())
        self._open_consumers()
        for step in sorted(self._consumers, reverse=True):
            found = self._consumers[step].poll(1, 0)
            if found:
                return self._handed_out(found[0])
        return None

    def _handed_out(self, message: StoredMessage) -> StoredMessage:
        with self._guard:
            self._unacked += 1
        return message

    def _open_consumers(self) -> None:
        """Open the consumer of the lowest step, and those of others once they have a message."""
        now = time.monotonic()
        if now - self._checked_at_s < POLL_S:
            return
        self._checked_at_s = now
        existing = set(self._store.topics())
        for step, topic in self._topics.items():
            if step not in self._consumers and (step == self._lowest or topic in existing):
                self.create(step)
                self._consumers[step] = self._of_topic[topic] = self._store.consumer(topic, group=GROUP)

    def ack(self, message: StoredMessage) -> None:
        """Acknowledge a message; nothing happens if the group gave it to another process meanwhile."""
        with self._guard:
            self._unacked -= 1
        consumer = self._of_topic.get(message.topic)
        if consumer is not None:
            consumer.ack(message)

    def wait(self, timeout_s: float) -> None:
        """Wait for a message of the lowest step, at most for the time-out."""
        self._open_consumers()
        if not self._ready:
            self._ready.extend(self._consumers[self._lowest].poll(1, timeout_s))

    def size(self) -> int:
        """Return the number of messages that no process acknowledged, without those that this process handed out."""
        store, total = self._store, 0
        for topic in set(store.topics()).intersection(self._topics.values()):
            committed = store.committed_offsets(topic, GROUP)
            for queue_id in store.queue_ids(topic):
                low = max(store.min_offset(topic, queue_id), committed.get(queue_id, 0))
                total += max(0, store.max_offset(topic, queue_id) - low)
        with self._guard:
            return max(0, total - self._unacked)

    def purge(self) -> int:
        """Acknowledge what this process can get: everything, if no other process consumes."""
        self._checked_at_s = -POLL_S
        self._open_consumers()
        count = len(self._ready)
        while self._ready:
            message = self._ready.popleft()
            self._of_topic[message.topic].ack(message)
        for consumer in self._consumers.values():
            while found := consumer.poll(PURGED_COUNT, 0):
                count += len(found)
                for message in found:
                    consumer.ack(message)
        return count

    def close(self) -> None:
        """Close the consumers until the next message is wanted; other processes get what is not acknowledged."""
        consumers, self._consumers, self._of_topic = self._consumers, {}, {}
        self._ready.clear()
        self._checked_at_s = -POLL_S
        for consumer in consumers.values():
            consumer.close()


class TransientQueue:
    """A queue of one process: messages of one topic that have its name as their tag, from its declaration by this process on.

    Each process that consumes gets every message. Nothing is kept when the process ends, and a full store drops messages: a
    worker that could not send its events and answers could not empty it.
    """

    def __init__(self, store: SharedStore, name: str) -> None:
        """Begin after the messages that are there."""
        self._store = store
        self._tag = topic_of(name)
        self._ready: list[StoredMessage] = []
        self._position = store.max_offset(TRANSIENT_TOPIC, 0)
        self._drops = False

    def put(self, body: bytes, priority: int) -> None:
        """Add a message for the processes that declared the queue."""
        properties = {PRIORITY: str(priority)}
        try:
            self._store.put(Message(TRANSIENT_TOPIC, body, tags=self._tag, queue_id=0, properties=properties))
            self._drops = False
        except StoreFull as error:
            if not self._drops:
                LOG.warning("messages for %s are dropped: %s", self._tag, error)
            self._drops = True

    def get(self) -> StoredMessage | None:
        """Return the next message, of the highest priority first, or None."""
        self._fetch()
        found = max(self._ready, key=_priority_of, default=None)
        if found is not None:
            self._ready.remove(found)
        return found

    def _fetch(self) -> None:
        """Read on until there are some messages, or the topic ends."""
        while len(self._ready) < FETCH_COUNT:
            page = self._store.get(TRANSIENT_TOPIC, 0, self._position, FETCH_COUNT, tags={self._tag})
            self._ready.extend(page.messages)
            if page.next_offset <= self._position:
                return
            self._position = page.next_offset

    def ack(self, _message: StoredMessage) -> None:
        """Do nothing: the position is this process's own."""

    def size(self) -> int:
        """Return the number of messages after the position, up to a page."""
        self._fetch()
        return len(self._ready)

    def purge(self) -> int:
        """Go to the end."""
        count = self.size()
        self._ready.clear()
        self._position = self._store.max_offset(TRANSIENT_TOPIC, 0)
        return count

    def close(self) -> None:
        """Do nothing: there is no consumer."""


def _priority_of(message: StoredMessage) -> int:
    return int(message.properties.get(PRIORITY, 0))
