"""Handle messages that a consumer sends back, as a real broker does (`docs/formats/broker-topics.md#messages-sent-back`).

A message sent back for the n-th time waits in delay level 3 + n, unless the consumer names a level, and then appears in
`%RETRY%group`. After the group's `retryMaxTimes` it goes to `%DLQ%group` immediately and is not retried, and so does a message
whose `ttl` is over. A dead letter has neither `ttl` nor `dedup_id`, so that it stays, and can be put to its topic again.

A record that holds many messages is refused, as in a broker: neither topic has batch queues, and without flag and count a
client could not split the record.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from commitlog import Message, PutResult, StoredMessage, is_java_number
from commitlog.topic_names import DEAD_PREFIX, RETRY_PREFIX
from storageio import InvalidMessage

from ...property_names import (
    DEDUP_ID,
    DELAY,
    EXPIRED_MS,
    FIRST_ID,
    FIRST_TOPIC,
    INNER_COUNT,
    IS_BATCH,
    REAL_QUEUE,
    REAL_TOPIC,
    TTL_MS,
    WAIT,
)
from ...write.putting import with_pairs, without_pairs
from ..config.subscription_groups import SubscriptionGroup, SubscriptionGroups, check_group

if TYPE_CHECKING:
    from storageio import Disk

    from ...write.admission import Admission
    from .internal_puts import InternalPuts

FIRST_LEVEL = 3
DEAD_QUEUE = 0


def holds_many(message: StoredMessage) -> bool:
    """Return whether a record holds many messages, so that it cannot be sent back."""
    return bool(message.sys_flag & IS_BATCH) or INNER_COUNT in message.all_properties


def _refuse_batch(message: StoredMessage) -> None:
    """Raise `InvalidMessage` for a record of many messages: it would be refused when it is due, and so be lost."""
    if holds_many(message):
        raise InvalidMessage(
            f"a record of many messages of {message.topic} cannot be sent back: put it once more and acknowledge it"
        )


class Retries:
    """Handles the messages sent back to one open store."""

    def __init__(self, disk: Disk, config_folder: str, admission: Admission, puts: InternalPuts) -> None:
        """Create it; subscription groups are read at first use."""
        self._disk = disk
        self._config_folder = config_folder
        self._admission = admission
        self._puts = puts
        self._groups: SubscriptionGroups | None = None

    @property
    def groups(self) -> SubscriptionGroups:
        """The table of groups; it is read once, on first use."""
        if self._groups is None:
            self._groups = SubscriptionGroups(self._disk, self._config_folder)
        return self._groups

    def group(self, name: str) -> SubscriptionGroup:
        """Return a group of subscriptionGroup.json. An unknown group is added to the file, as in a broker."""
        known = self.groups.get(name)
        if known is None:
            check_group(SubscriptionGroup(name=name))
            known = self.groups.create(name)
            self.groups.persist()
        return known

    def send_back(
        self, message: StoredMessage, group: str, level: int | None = 0, max_deliveries: int | None = None,
        topic: str | None = None,
    ) -> PutResult:  # fmt: skip
        """Schedule a message for another delivery, or move it to the dead letter queue.

        `level`: the delay level, 0 for the default one, below 0 for the dead letter queue, None for no delay.
        `max_deliveries` replaces the group's `retryMaxTimes`, which does not count the first delivery; `topic` replaces
        the group's retry topic. The put has the
        durability of the flush mode, so the message is delivered again even if the old one is acknowledged. Raises
        `InvalidMessage` for a record of many messages, before anything is written.
        """
        _refuse_batch(message)
        known = self.group(group)
        raw = self._marked(message)
        back = message.to_message()
        back.store_host, back.reconsume_times = None, message.reconsume_times + 1
        retries_max = known.retry_max_times if max_deliveries is None else max_deliveries - 1
        if (level is not None and level < 0) or message.reconsume_times >= retries_max:
            return self._bury(back, raw, group)
        back.topic = topic or RETRY_PREFIX + group
        queues = max(1, known.retry_queues)
        self._admission.admit(back.topic, queues)
        if level is None:
            back.properties_raw = without_pairs(raw, (DELAY, REAL_TOPIC, REAL_QUEUE))  # it is no delivery of a level
            return self._puts.put(back, random.randrange(queues))
        return self._puts.put_delayed(back, raw, random.randrange(queues), level or FIRST_LEVEL + message.reconsume_times)

    def expire(self, message: StoredMessage, group: str) -> PutResult:
        """Move a message whose time to live is over to the dead letters, with the time in BROKERSTORE_EXPIRED_MS."""
        self.group(group)
        raw = with_pairs(self._marked(message), {EXPIRED_MS: str(expires_ms(message))})
        back = message.to_message()
        back.store_host = None
        return self._bury(back, raw, group)

    def _bury(self, back: Message, raw: bytes, group: str) -> PutResult:
        """Put a message to the dead letters of a group."""
        back.topic = DEAD_PREFIX + group
        self._admission.admit(back.topic, 1)
        back.properties_raw = with_pairs(without_pairs(raw, (TTL_MS, DEDUP_ID)), {DELAY: "0"})
        return self._puts.put(back, DEAD_QUEUE)

    def _marked(self, message: StoredMessage) -> bytes:
        """Return the message's properties with its first topic and message id."""
        pairs = message.all_properties
        if not message.topic:
            raise InvalidMessage("a record without a topic cannot be sent back")
        marks = {WAIT: "false"}
        if FIRST_TOPIC not in pairs:
            marks[FIRST_TOPIC] = message.topic
        if FIRST_ID not in pairs:
            marks[FIRST_ID] = message.message_id
        return with_pairs(message.properties_raw, marks)


def expires_ms(message: StoredMessage) -> int | None:
    """Return when a message's time to live is over, None if it has none. The time counts from the born time on.

    A record of many messages, which no group could send back, has none.
    """
    text = message.properties.get(TTL_MS, "")
    if not is_java_number(text, 64) or message.sys_flag & IS_BATCH or INNER_COUNT in message.properties:
        return None
    return message.born_timestamp_ms + int(text)
