"""Assign queue offsets in LMQs at the put (`docs/formats/broker-topics.md#lmq`).

An LMQ (light message queue) holds messages of other topics. A message that names queues `%LMQ%...` in INNER_MULTI_DISPATCH
belongs to each of them, and gets its queue offset in each as INNER_MULTI_QUEUE_OFFSET. Offsets are assigned and used under one
lock, so that the log holds them in order. RocketMQ has a limit on the number of LMQs and a status for it, but enforces neither;
here a message that would exceed the limit is refused.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from commitlog import Message, PutResult, PutStatus
from commitlog.layout import CRC_SIZE, RECORD_SIZE_MIN
from commitlog.topic_names import LMQ_PREFIX

from ...property_names import MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from ...write.putting import refused, with_pairs, with_properties

if TYPE_CHECKING:
    from ...parts import StoreParts

NAME_SIZE_MAX = 255


def lmq_refusal(names: str) -> PutResult | None:
    """Return why no message can belong to these LMQs, whatever their number; None if one can."""
    for name in names.split(","):
        if not name.startswith(LMQ_PREFIX) or "\0" in name or len(name.encode()) > NAME_SIZE_MAX:
            return refused(PutStatus.MESSAGE_ILLEGAL, f"{MULTI_DISPATCH} names {name!r}: only {LMQ_PREFIX}name can be")
    return None


class LmqPuts:
    """Appends messages to the LMQs of one open store.

    The counters are those of ordinary queues: topic `%LMQ%name`, queue id 0.
    """

    def __init__(self, parts: StoreParts) -> None:
        """Create it; nothing is read before the first message that needs it."""
        self._parts = parts
        self._guard = threading.Lock()
        self._known: set[str] | None = None
        self.queues_max = parts.config.max_lmq_consume_queue_num

    def append(self, message: Message, raw: bytes, names: str, queue_id: int) -> PutResult:
        """Append a message with its LMQ offsets. `raw`: its properties as the log keeps them."""
        refusal = lmq_refusal(names)
        if refusal is not None:
            return refusal
        listed = names.split(",")
        with self._guard:
            known = self._known_names()
            fresh = {name for name in listed if name not in known}
            if fresh and len(known) + len(fresh) > self.queues_max:
                reason = f"{len(known)} LMQs, and {len(fresh)} more named; at most {self.queues_max}"
                return refused(PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED, reason)
            result = self._append(message, raw, listed, queue_id)
            if result.status is PutStatus.PUT_OK:
                known |= fresh
            return result

    def _append(self, message: Message, raw: bytes, listed: list[str], queue_id: int) -> PutResult:
        """Append under the lock. A repeated name gets two offsets and moves its counter by two, as in a broker."""
        offsets = self._parts.offsets
        numbers = ",".join(str(offsets.next_offset(name, 0)) for name in listed)
        numbered = with_properties(message, with_pairs(raw, {MULTI_QUEUE_OFFSET: numbers}))
        assert numbered.properties_raw is not None
        size = RECORD_SIZE_MIN + CRC_SIZE + len(message.body) + len(message.topic.encode()) + len(numbered.properties_raw)
        limit = self._parts.config.max_message_size
        if size > limit:
            return refused(PutStatus.MESSAGE_ILLEGAL, f"a record of {size} bytes with LMQ properties; at most {limit}")
        result = self._parts.log.appender.append(numbered, queue_id)
        if result.status is PutStatus.PUT_OK:
            for name in listed:
                offsets.set_next_offset(name, 0, offsets.next_offset(name, 0) + 1)
        return result

    def _known_names(self) -> set[str]:
        if self._known is None:
            self._known = {name for name in self._parts.queues.topics() if name.startswith(LMQ_PREFIX)}
        return self._known
