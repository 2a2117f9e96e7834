"""One consumer of several topics: a consumer of each, which are polled in turns."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Protocol

from commitlog import PutResult, StoredMessage
from commitlog.topic_names import RETRY_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS
from storageio import InvalidSetting
from storageio.settings import check_type

from ..property_names import FIRST_TOPIC
from ..write.progress import Progress
from .polled import FETCH_COUNT, Polled

DISCOVER_S = 1.0  # interval at which topics are compared with a pattern
Topics = list[str] | re.Pattern[str]


class TopicConsumer(Protocol):
    """What a consumer of several topics needs of the consumer of one."""

    def poll(self, max_count: int = FETCH_COUNT, timeout_s: float | None = 0) -> list[StoredMessage]:
        """Return up to `max_count` messages."""

    def ack(self, message: StoredMessage) -> bool:
        """Acknowledge a message in hand."""

    def nack(self, message: StoredMessage, *, delay_level: int = 0) -> PutResult | None:
        """Send a message back."""

    def extend(self, message: StoredMessage, seconds: float) -> bool:
        """Renew the visibility time of a message."""

    def give_back(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Deliver again what was delivered of a queue from an offset on."""

    def commit(self, *, sync: bool = False) -> None:
        """Acknowledge everything that was delivered."""

    def lag(self) -> int:
        """Return the number of unacknowledged messages."""

    def stop(self) -> None:
        """End the iteration over messages."""

    def close(self) -> None:
        """Leave the queues to others."""


class TopicSource(Protocol):
    """What a consumer of several topics needs of the store."""

    def topics(self) -> list[str]:
        """Return the names of all topics."""

    def wait(self, seen: int, timeout_s: float, is_ended: Callable[[], bool]) -> int:
        """Wait for messages that were put since the count was `seen`; return the count."""

    def wake(self) -> None:
        """End the wait, from any thread and from a signal handler."""

    def close(self) -> None:
        """Release what the waits need."""


class TopicsConsumer(Polled):
    """An iterator over the messages of several topics, which waits for more.  Any thread may use it; one at a time iterates.

    Each topic has its turn, so that none waits for another one's messages.  Offsets, order, acknowledgements and retries are
    those of a `Consumer` of each topic.
    """

    def __init__(
        self, source: TopicSource, open_one: Callable[[str, str, str], TopicConsumer], topics: Topics, group: str,
        timeout_s: float | None, start: str, missing_topic: str,
    ) -> None:  # fmt: skip
        """Create it for `MessageStore.consumer`; `open_one` takes a topic, `start` and `missing_topic`."""
        super().__init__(timeout_s)
        self.group = group
        self._source = source
        self._open_one = open_one
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        self._start, self._missing = start, missing_topic
        self._consumers: dict[str, TopicConsumer] = {}
        self._turn = 0
        self._seen = -1
        self._discovered_at = -DISCOVER_S
        try:
            for topic in _names(topics):
                self._open(topic)
            self._discover()
        except BaseException:
            self.close()
            raise
        self._start, self._missing = "first", "wait"  # of a topic that is created later

    @property
    def topics(self) -> list[str]:
        """The topics that it consumes, so far."""
        return list(self._consumers)

    def _open(self, topic: str) -> None:
        self._consumers[topic] = self._open_one(topic, self._start, self._missing)

    def _discover(self) -> None:
        """Consume topics that match the pattern and were created since the last look."""
        now = time.monotonic()
        if self._pattern is None or now - self._discovered_at < DISCOVER_S:
            return
        self._discovered_at = now
        for topic in self._source.topics():
            if topic not in self._consumers and _is_ordinary(topic) and self._pattern.fullmatch(topic):
                self._open(topic)

    # Iterating

    def poll(self, max_count: int = FETCH_COUNT, timeout_s: float | None = 0) -> list[StoredMessage]:
        """Return up to `max_count` messages; wait for the first until the timeout, or without limit if it is None.

        Finds every message that was put before the call; one of a new topic that matches a pattern after a second.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_ended():
            self._discover()
            found = self._poll_each(max_count)
            left_s = DISCOVER_S if deadline is None else deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            self._seen = self._source.wait(self._seen, min(left_s, DISCOVER_S), self._is_ended)
        for consumer in self._consumers.values() if self.is_stopped and not self.is_closed else ():
            consumer.poll(1)  # hands its queues over
        return []

    def _is_ended(self) -> bool:
        return self.is_closed or self.is_stopped

    def _poll_each(self, max_count: int) -> list[StoredMessage]:
        """Return messages of each topic: equal shares, and equal shares of what others left."""
        listed = list(self._consumers.values())
        order = [(self._turn + step) % len(listed) for step in range(len(listed))]
        found: list[StoredMessage] = []
        while order and len(found) < max_count:
            rich, share = [], max(1, (max_count - len(found)) // len(order))
            for position in order:
                count = min(share, max_count - len(found))
                taken = listed[position].poll(count, 0) if count else []
                found += taken
                if taken:
                    self._turn = position + 1
                if taken and len(taken) == count:
                    rich.append(position)
            order = rich
        return found

    def stop(self) -> None:
        """End the iteration, as `Consumer.stop`: from any thread and from a signal handler."""
        self.is_stopped = True
        for consumer in list(self._consumers.values()):
            consumer.stop()
        self._source.wake()

    # Acknowledging

    def _owners(self, message: StoredMessage) -> list[TopicConsumer]:
        """Return the consumers that may have delivered a message; of one that was sent back, that of its first topic."""
        check_type("message", message, StoredMessage)
        topic = message.topic
        if topic.startswith(RETRY_PREFIX) and topic not in self._consumers:
            first = message.all_properties.get(FIRST_TOPIC)
            if first is None:
                return list(self._consumers.values())
            topic = first
        return [self._consumers[topic]] if topic in self._consumers else []

    def ack(self, message: StoredMessage) -> bool:
        """Acknowledge a message, as `Consumer.ack`."""
        return any(consumer.ack(message) for consumer in self._owners(message))

    def nack(self, message: StoredMessage, *, delay_level: int = 0) -> PutResult | None:
        """Send a message back, as `Consumer.nack`."""
        for consumer in self._owners(message):
            result = consumer.nack(message, delay_level=delay_level)
            if result is not None:
                return result
        return None

    def extend(self, message: StoredMessage, seconds: float) -> bool:
        """Renew the visibility time of a message in hand, as `Consumer.extend`."""
        return any(consumer.extend(message, seconds) for consumer in self._owners(message))

    def give_back(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Deliver again what was delivered of a queue from an offset on, as `Consumer.give_back`."""
        for name, consumer in self._consumers.items():
            if topic == name or topic.startswith(RETRY_PREFIX):
                consumer.give_back(topic, queue_id, queue_offset)

    def commit(self, *, sync: bool = False) -> None:
        """Acknowledge everything that was delivered; with `sync` return when that is on the disk."""
        for consumer in self._consumers.values():
            consumer.commit(sync=sync)

    def lag(self) -> int:
        """Return the number of unacknowledged messages in the assigned queues of all topics."""
        return sum(consumer.lag() for consumer in self._consumers.values())

    def close(self) -> None:
        """Leave the queues to other consumers of the group.  Unacknowledged messages are delivered again."""
        self.is_closed = True
        for consumer in self._consumers.values():
            consumer.close()
        self._source.wake()
        self._source.close()


class OwnTopics:
    """The topics of a store in this process."""

    def __init__(self, topics: Callable[[], list[str]], progress: Progress) -> None:
        """Take the list of topics, and what counts the steps of the dispatcher."""
        self.topics = topics
        self._progress = progress

    def wait(self, seen: int, timeout_s: float, is_ended: Callable[[], bool]) -> int:
        """Wait for the next step of the dispatcher; return the number of steps."""
        self._progress.wait_until(lambda: self._progress.count != seen or is_ended(), timeout_s)
        return self._progress.count

    def wake(self) -> None:
        """End the wait, from any thread and from a signal handler."""
        self._progress.recheck()

    def close(self) -> None:
        """Do nothing: the store ends what it started."""


def consume_topics(
    source: TopicSource, consumer: Callable[..., TopicConsumer], topics: Topics, group: str, queues: list[int] | None,
    timeout_s: float | None, start: str, missing_topic: str, **options: Any,
) -> TopicsConsumer:  # fmt: skip
    """Return a consumer of several topics; `consumer` and `options` make that of each. Raises `InvalidSetting`."""
    if queues is not None:
        raise InvalidSetting(f"queues is {queues!r}: for a consumer of one topic")

    def opened(topic: str, start: str, missing_topic: str) -> TopicConsumer:
        return consumer(topic, group=group, start=start, missing_topic=missing_topic, **options)

    return TopicsConsumer(source, opened, topics, group, timeout_s, start, missing_topic)


def _names(topics: Topics) -> list[str]:
    """Return the names of a list; none of a pattern. Raises `InvalidSetting`."""
    if isinstance(topics, re.Pattern):
        return []
    names = list(topics)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidSetting(f"topics {names!r}: different names, at least one, or a compiled regular expression")
    return names


def _is_ordinary(topic: str) -> bool:
    """Return whether a topic has messages of programs: a pattern matches no topic of retries, delays or transactions."""
    return not topic.startswith(("%", SYSTEM_PREFIX)) and topic not in SYSTEM_TOPICS
