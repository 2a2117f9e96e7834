"""Messages that a consumer sends back (section 9, row B10), as a real broker writes them.

Sent back for the n-th time a message waits in a delay level, 3 + n unless the consumer says which, and comes again in
`%RETRY%group`.  Past the group's `retryMaxTimes` it goes to `%DLQ%group` at once, and nobody tries again.

A record that holds many messages is refused, as a broker does: neither topic has batch queues, and without flag and count a
client would not take it apart any more.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from commitlog import PutResult, StoredMessage
from storageio import InvalidMessage

from ..config.subscription_groups import SubscriptionGroup, SubscriptionGroups, check_group
from .names import DEAD_PREFIX, DELAY, FIRST_ID, FIRST_TOPIC, INNER_COUNT, IS_BATCH, RETRY_PREFIX, WAIT
from .putting import with_pairs

if TYPE_CHECKING:
    from storageio import Disk

    from .admission import Admission
    from .internal_puts import InternalPuts

FIRST_LEVEL = 3
DEAD_QUEUE = 0


def _refuse_batch(message: StoredMessage) -> None:
    """It would wait, be refused when it is due, and be lost: nobody has it any more by then."""
    if message.sys_flag & IS_BATCH or INNER_COUNT in message.all_properties:
        raise InvalidMessage(
            f"a record of many messages of {message.topic} cannot be sent back: put it once more and acknowledge it"
        )


class Retries:
    """Of one open store."""

    def __init__(self, disk: Disk, config_folder: str, admission: Admission, puts: InternalPuts) -> None:
        """Nothing is read before it is needed."""
        self._disk = disk
        self._config_folder = config_folder
        self._admission = admission
        self._puts = puts
        self._groups: SubscriptionGroups | None = None

    def group(self, name: str) -> SubscriptionGroup:
        """As subscriptionGroup.json has it; a group that it does not name is written there, as a broker does."""
        if self._groups is None:
            self._groups = SubscriptionGroups(self._disk, self._config_folder)
        known = self._groups.get(name)
        if known is None:
            check_group(SubscriptionGroup(name=name))
            known = self._groups.create(name)
            self._groups.persist()
        return known

    def set_group(self, name: str, *, retry_max_times: int | None = None, retry_queues: int | None = None) -> None:
        """How often a group tries again, and in how many queues."""
        self.group(name)
        wanted = {"retry_max_times": retry_max_times, "retry_queues": retry_queues}
        assert self._groups is not None
        self._groups.create(name, **{key: value for key, value in wanted.items() if value is not None})
        self._groups.persist()

    def send_back(self, message: StoredMessage, group: str, level: int = 0) -> PutResult:
        """Have a message come again, or not any more.  `level`: of the delay, 0 for the usual one, below 0 for dead at once.

        Under the flush mode's promise: when this returns the message will come again although the old one is acknowledged.
        Raises `InvalidMessage` for a record of many messages, before anything is written.
        """
        _refuse_batch(message)
        known = self.group(group)
        raw = self._marked(message)
        back = message.to_message()
        back.store_host, back.reconsume_times = None, message.reconsume_times + 1
        if level < 0 or message.reconsume_times >= known.retry_max_times:
            back.topic = DEAD_PREFIX + group
            self._admission.admit(back.topic, 1)
            back.properties_raw = with_pairs(raw, {DELAY: "0"})
            return self._puts.put(back, DEAD_QUEUE)
        back.topic = RETRY_PREFIX + group
        queues = max(1, known.retry_queues)
        self._admission.admit(back.topic, queues)
        return self._puts.put_delayed(back, raw, random.randrange(queues), level or FIRST_LEVEL + message.reconsume_times)

    def _marked(self, message: StoredMessage) -> bytes:
        """Its properties, with where it came from first."""
        pairs = message.all_properties
        if not message.topic:
            raise InvalidMessage("a record without a topic cannot be sent back")
        marks = {WAIT: "false"}
        if FIRST_TOPIC not in pairs:
            marks[FIRST_TOPIC] = message.topic
        if FIRST_ID not in pairs:
            marks[FIRST_ID] = message.message_id
        return with_pairs(message.properties_raw, marks)
