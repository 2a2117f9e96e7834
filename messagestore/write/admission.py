"""Decide which topics accept puts, and with how many queues; write each to topics.json before its first message."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING
from unicodedata import category

from commitlog.layout import QUEUES_MAX
from commitlog.topic_names import DEAD_PREFIX, INTERNAL_TOPICS, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX, is_virtual_topic
from storageio import InvalidMessage
from storageio.settings import check_type

from ..broker.config.topics import BATCH_QUEUES, MESSAGE_TYPE, PERM_DEFAULT, PRIORITIES, QUEUE_TYPE
from ..property_names import SYSTEM_QUEUES

if TYPE_CHECKING:
    from ..broker.config.topics import TopicConfig
    from ..parts import StoreParts

LOG = logging.getLogger(f"brokerstore.{__name__}")
CLIENT_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")  # Unicode's categories of control characters, format characters and spaces
TOPIC_SIZE_MAX = 127  # bytes; a retry topic may be longer
TOPIC_SIZE_LIMIT = 255


class Admission:
    """The topics that are written to topics.json.

    Every put reads `queues_of`, which never contains a topic with batch queues or priorities: those have a table of their own.
    """

    def __init__(self, parts: StoreParts) -> None:
        """Create it for a store whose dispatcher is there, which looks at every topic again when one is created."""
        self._parts = parts
        self._topics = parts.topics
        self._guard = threading.Lock()
        self.queues_of: dict[str, int] = {}
        self.batch_queues_of: dict[str, int] = {}
        self.ranked_queues_of: dict[str, int] = {}  # of topics with priorities

    def admit(self, topic: str, queues: int | None = None) -> int:
        """Register a topic, write it to topics.json if it is new, and return its number of write queues.

        It is for every topic that a folder can have, also the broker's own. Raises `InvalidMessage` for others.
        """
        reason = folder_problem(topic) or self._size_problem(topic)
        if reason:
            raise InvalidMessage(reason)
        with self._guard:
            known = self._topics.get(topic)
            if known is None:
                self._write_down_existing()
                usual = len(self._parts.levels.current_ms) if topic == SCHEDULE_TOPIC else SYSTEM_QUEUES.get(topic)
                known = self._topics.create(topic, queues or usual, perm=PERM_DEFAULT)
                self._parts.dispatcher.forget_ignored()
            self._topics.persist()
            return self._take(known)

    def create(self, topic: str, queues: int | None = None) -> int:
        """Create a topic for a program, and return its number of write queues, which an existing topic keeps.

        Raises `InvalidMessage` for the name of a new one that no program should use.
        """
        check_type("topic", topic, str)
        if self._topics.get(topic) is None and not internal_problem(topic) and (reason := topic_problem(topic)):
            raise InvalidMessage(reason)
        return self.admit(topic, queues)

    def remove(self, topic: str) -> None:
        """Remove a topic from topics.json, so that the next put creates it."""
        with self._guard:
            self._forget(topic)
            self._topics.delete(topic)
            self._topics.persist()

    def problem(self, topic: str) -> str | None:
        """Return why a program's messages cannot be put to a topic, or None. A topic that exists keeps its name."""
        known = self._topics.get(topic)
        if known is None:
            return topic_problem(topic) or self._size_problem(topic)
        if known.is_compacted:
            return f"topic {topic} is compacted: a broker's consumers would not see it"
        return folder_problem(topic) or internal_problem(topic) or self._size_problem(topic)

    def _size_problem(self, topic: str) -> str | None:
        """Return why brokers of the store's version could not read a record of the topic, or None."""
        size = len(topic.encode())
        if self._parts.broker_version.has_long_topics or size <= TOPIC_SIZE_MAX:
            return None
        return f"a topic of {size} bytes: brokers before RocketMQ 5 read at most {TOPIC_SIZE_MAX}"

    def queue_problem(self, topic: str, queue_id: int) -> str | None:
        """Return why a program's message cannot be put to a queue of an admitted topic, or None.

        No broker sends a consumer to queues beyond the number of the topic. The log refuses an id that no record can have.
        """
        known = self._topics.get(topic)
        count = max(known.read_queues, known.write_queues, 1) if known is not None else 0
        return f"queue id {queue_id}: topic {topic} has {count} queues" if count <= queue_id < QUEUES_MAX else None

    def priority_problem(self, topic: str) -> str | None:
        """Return why a message with a priority cannot be put to a topic, or None; retries and dead letters keep theirs."""
        known = self._topics.get(topic)
        if (known is not None and known.has_priorities) or topic.startswith((RETRY_PREFIX, DEAD_PREFIX)):
            return None
        how = f"create_topic({topic!r}, queues=10, attributes={ {MESSAGE_TYPE: PRIORITIES} })"
        return f"topic {topic} has no priorities; {how} makes one with priorities 0 to 9"

    def set_attributes(self, topic: str, attributes: dict[str, str]) -> None:
        """Replace the attributes of an admitted topic.

        Raises `InvalidMessage` if that changes the queue type of a topic that has messages: readers would no longer find them.
        """
        before, batch = self._topics.get(topic), self._parts.derived.batch
        was_batch = (before is not None and before.is_batch) or batch.knows(topic)
        has_queues = bool(self._parts.queues.queue_ids(topic) or batch.queue_ids(topic))
        has_messages = has_queues or any(self._parts.offsets.topic(topic).queues())
        if was_batch != (attributes.get(QUEUE_TYPE) == BATCH_QUEUES) and has_messages:
            raise InvalidMessage(f"topic {topic} has messages: {QUEUE_TYPE}={BATCH_QUEUES} cannot be added or removed")
        with self._guard:
            known = self._topics.create(topic, attributes=attributes)
            self._topics.persist()
            self._forget(topic)
            self._take(known)
            self._parts.dispatcher.forget_ignored()

    def _take(self, known: TopicConfig) -> int:
        number = max(1, known.write_queues)
        if not self.queues(known.name):
            reason = client_problem(known.name)
            if reason:
                LOG.warning("no client of RocketMQ can use topic %r: %s", known.name, reason)
        if known.is_compacted or internal_problem(known.name):
            return number  # each put of a program looks it up, and is refused
        ranked = self.ranked_queues_of if known.has_priorities else self.queues_of
        (self.batch_queues_of if known.is_batch else ranked)[known.name] = number
        return number

    def queues(self, topic: str) -> int:
        """Return the number of queues to which an admitted topic's messages are put; 0 for another topic."""
        return self.queues_of.get(topic) or self.batch_queues_of.get(topic) or self.ranked_queues_of.get(topic, 0)

    def _forget(self, topic: str) -> None:
        for table in (self.queues_of, self.batch_queues_of, self.ranked_queues_of):
            table.pop(topic, None)

    def _write_down_existing(self) -> None:
        """Add topics that already have queues to an empty table: a topic missing from a table counts as deleted."""
        if not self._topics.names():
            for name in self._parts.queues.topics():
                if not is_virtual_topic(name):
                    self._topics.create(name, max(self._parts.queues.queue_ids(name), default=0) + 1)


def topic_problem(topic: str) -> str | None:
    """Return why a program cannot put messages to a new topic, or None (`docs/formats/put-rules.md#names-of-topics`)."""
    reason = folder_problem(topic) or internal_problem(topic)
    if reason is None and any(category(character) in UNSEEN for character in topic):
        return f"topic {topic!r} has white space or control characters in its name"
    return reason


def internal_problem(topic: str) -> str | None:
    """Return why only a broker's services put messages to a topic: RocketMQ's `isNotAllowedSendTopic`, timers and POP."""
    is_internal = topic in INTERNAL_TOPICS or topic.startswith(SYSTEM_PREFIX)
    return f"topic {topic} takes only the broker's own messages" if is_internal else None


def client_problem(name: str) -> str | None:
    """Return why RocketMQ's clients and brokers refuse the name of a topic, or None."""
    if len(name) > TOPIC_SIZE_MAX:
        return f"a name of {len(name)} characters; at most {TOPIC_SIZE_MAX}"
    return None if CLIENT_NAME.fullmatch(name) else "a name has ASCII letters, digits, %, |, _ and - only"


def folder_problem(topic: str) -> str | None:
    """Return why no record or folder can have a topic, or None (`docs/formats/put-rules.md#checks-before-a-write`)."""
    check_type("topic", topic, str)
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        return f"topic {topic!r} is no text"
    if not topic:
        return "a topic has a name"
    if size > TOPIC_SIZE_LIMIT or (size > TOPIC_SIZE_MAX and not topic.startswith(RETRY_PREFIX)):
        return f"a topic of {size} bytes; at most {TOPIC_SIZE_MAX}, a retry topic {TOPIC_SIZE_LIMIT}"
    if topic in {".", ".."} or any(character in "/\\\0\x01\x02" for character in topic):
        return f"topic {topic!r} cannot name a folder"
    return None
