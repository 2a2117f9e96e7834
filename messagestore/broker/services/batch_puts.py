"""Put records that hold many messages to topics with batch queues (`docs/formats/put-rules.md#batch-topics`).

A topic with the attribute queue.type=BatchCQ takes records whose producer put INNER_NUM messages into one body (system flag
0x80). The record gets INNER_BASE, the queue offset of its first message, and the queue's next offset grows by INNER_NUM.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from commitlog import Message, PutResult, PutStatus, is_java_number

from ...property_names import INNER_BASE, INNER_COUNT, IS_BATCH
from ...write.putting import refused, with_pairs, with_properties

if TYPE_CHECKING:
    from ...parts import StoreParts


def batch_refusal(message: Message, count: str | None) -> PutResult | None:
    """Return why a topic with batch queues never takes a message, or None. `count`: the property INNER_NUM."""
    is_batch = bool(message.sys_flag & IS_BATCH)
    if is_batch != (count is not None):
        return refused(PutStatus.MESSAGE_ILLEGAL, f"system flag 0x80 and {INNER_COUNT} go together")
    if count is not None and (not is_java_number(count, 16) or int(count) < 1):
        return refused(PutStatus.MESSAGE_ILLEGAL, f"{INNER_COUNT} is {count!r}: 1 to 32767 wanted")
    return None


class BatchPuts:
    """Appends records to the batch queues of one open store."""

    def __init__(self, parts: StoreParts) -> None:
        """Create it; `guard` serializes appends to batch topics, so that no other append uses the same queue offsets."""
        self._parts = parts
        self.guard = threading.RLock()

    def append(self, message: Message, raw: bytes, count: str | None, queue_id: int) -> PutResult:
        """Append a message to a topic with batch queues. `count`: the property INNER_NUM."""
        refusal = batch_refusal(message, count)
        if refusal is not None:
            return refusal
        if count is None:
            with self.guard:
                return self._parts.log.appender.append(message, queue_id)
        offsets = self._parts.offsets
        with self.guard:
            base = offsets.next_offset(message.topic, queue_id)
            numbered = with_properties(message, with_pairs(raw, {INNER_BASE: str(base)}))
            result = self._parts.log.appender.append(numbered, queue_id)
            if result.status is PutStatus.PUT_OK:
                offsets.set_next_offset(message.topic, queue_id, base + int(count))
            return result
