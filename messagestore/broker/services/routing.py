"""Route puts that need more than one record in one queue: delayed messages, LMQ, batch queues.

`MessageStore.put` asks `is_special` first, so plain messages do not come here.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from commitlog import Message, PutResult, PutStatus, decode_properties, encode_properties, is_java_number
from commitlog.layout import QUEUES_MAX
from commitlog.topic_names import DEAD_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from storageio import InvalidMessage

from ...derive.kinds.lmq import is_eligible
from ...property_names import DEDUP_ID, INNER_COUNT, IS_BATCH, MULTI_DISPATCH, PRIORITY, TTL_MS
from ...timers.layout import TIMER_TOPIC
from ...write._put_cy import has_special
from ...write.putting import has_property, is_special_raw, refused
from .batch_puts import BatchPuts, batch_refusal
from .dedup import DedupWindow
from .delay_messages import Delay, delay_of, scheduled, timed
from .multi_puts import LmqPuts, lmq_refusal

if TYPE_CHECKING:
    from ...parts import StoreParts
    from ...write.admission import Admission


class Routing:
    """Routes the puts of one open store."""

    def __init__(self, parts: StoreParts, admission: Admission) -> None:
        """Create the router without reading anything."""
        self._parts = parts
        self._admission = admission
        self._levels_ms = parts.levels.current_ms
        self.lmq = LmqPuts(parts)
        self.batch = BatchPuts(parts)
        self.dedup = DedupWindow(parts)

    def is_special(self, message: Message) -> bool:
        """Return whether `append` has to do more than append the record."""
        admission, topic = self._admission, message.topic
        return has_special(message) or topic in admission.batch_queues_of or topic in admission.ranked_queues_of

    def append(self, message: Message, queue_id: int) -> PutResult:
        """Append a message as its properties demand, unless it is a duplicate. Raises `InvalidMessage`."""
        raw = encode_properties(message)
        pairs = decode_properties(raw)
        if refusal := self._priority_refusal(message.topic, pairs):
            return refusal
        queue_id = self._queue_of(message, pairs, queue_id)
        if DEDUP_ID in pairs and not message.topic.startswith((RETRY_PREFIX, DEAD_PREFIX)):  # a retry is no second message
            put = partial(self._append_by_delay, message, raw, pairs, queue_id)
            return self.dedup.append(message.topic, pairs[DEDUP_ID], put)
        return self._append_by_delay(message, raw, pairs, queue_id)

    def queue_of(self, message: Message, queue_id: int) -> int:
        """Return the queue that a message's priority chooses; `queue_id` in a topic without priorities."""
        return self._queue_of(message, decode_properties(encode_properties(message)), queue_id)

    def _queue_of(self, message: Message, pairs: dict[str, str], queue_id: int) -> int:
        """Return the queue with the number of the priority, the last one for a higher priority, as a broker does.

        A message without one, and without a queue of its own, has the lowest: a turn would give it any.
        """
        known = self._parts.topics.get(message.topic)
        if known is None or not known.has_priorities:
            return queue_id
        if _has_priority(pairs):
            return min(int(pairs[PRIORITY]), max(1, known.write_queues) - 1)
        return queue_id if message.queue_id >= 0 else 0

    def _priority_refusal(self, topic: str, pairs: dict[str, str]) -> PutResult | None:
        reason = self._admission.priority_problem(topic) if _has_priority(pairs) else None
        return refused(PutStatus.MESSAGE_ILLEGAL, reason) if reason else None

    def transaction_refusal(self, message: Message) -> PutResult | None:
        """Return why no transaction can put a message, or None."""
        if has_property(message, DEDUP_ID):
            return refused(PutStatus.MESSAGE_ILLEGAL, "a transaction takes no dedup_id: its message is stored twice")
        return self._priority_refusal(message.topic, decode_properties(encode_properties(message)))

    def _append_by_delay(self, message: Message, raw: bytes, pairs: dict[str, str], queue_id: int) -> PutResult:
        delay = self._delay(message, pairs)
        if delay.level:
            return self.append_scheduled(message, raw, queue_id, delay.level)
        if delay.due_ms:
            return self._append_timer(message, raw, queue_id, delay.due_ms)
        return self._append(message, raw, queue_id)

    def _delay(self, message: Message, pairs: dict[str, str]) -> Delay:
        return delay_of(message, pairs, self._levels_ms, self._parts.now_ms())

    def append_each(self, messages: list[Message], queue_ids: list[int]) -> PutResult:
        """Append messages one after the other, if all are valid.

        Returns the first message's result, with the number of messages that were written and their total size.  If a later
        append fails, the result has its status and reason, and the number of messages before it, duplicates as well.
        """
        refusal = self._refusal_of_any(messages, queue_ids)
        if refusal is not None:
            return refusal
        first: PutResult | None = None
        total = 0
        written = 0
        for done, (message, queue_id) in enumerate(zip(messages, queue_ids, strict=True)):
            result = self.append(message, queue_id)
            if result.status is not PutStatus.PUT_OK:
                if first is None:
                    return result
                first.status, first.reason, first.cause, written = result.status, result.reason, result.cause, done
                break
            total += result.size_bytes if result.message_count else 0
            written += result.message_count
            first = first or result
        assert first is not None
        first.message_count = written
        first.size_bytes = min(total, 0x7FFFFFFF)
        return first

    def _refusal_of_any(self, messages: list[Message], queue_ids: list[int]) -> PutResult | None:
        """Return why one of the messages can never be put, or None. Raises `InvalidMessage`.

        A put can still fail later because the disk is full.
        """
        self._parts.log.appender._prepare(messages, queue_ids)  # the checks of `append_many` before it writes
        for message in messages:
            pairs = decode_properties(encode_properties(message))
            refusal = self._delay_refusal() if self._delay(message, pairs).level else None
            refusal = refusal or self._refusal(message, pairs)
            if refusal is not None:
                return refusal
        return None

    def _refusal(self, message: Message, pairs: dict[str, str]) -> PutResult | None:
        """Return why a message can never be put to its topic, now or when its delay is over; None if it can."""
        if refusal := self._priority_refusal(message.topic, pairs):
            return refusal
        count, names = pairs.get(INNER_COUNT), pairs.get(MULTI_DISPATCH, "")
        if message.topic in self._admission.batch_queues_of:
            return batch_refusal(message, count)
        if count is not None or message.sys_flag & IS_BATCH:
            return refused(PutStatus.MESSAGE_ILLEGAL, f"{message.topic} has no batch queues")
        if self._parts.config.enable_lmq and names and is_eligible(message.topic, names):
            return lmq_refusal(names)
        return None

    def _delay_refusal(self) -> PutResult | None:
        return None if self._levels_ms else refused(PutStatus.MESSAGE_ILLEGAL, "there are no delay levels")

    def append_batch(self, messages: list[Message], queue_id: int, *, is_plain: bool = False) -> PutResult:
        """Append all messages to one file or none. A batch takes no delay (`docs/formats/put-rules.md#wire-batch`).

        The caller of a plain batch has found no special property in any of them.
        """
        for message in () if is_plain else messages:
            raw = message.properties_raw
            if raw and not message.sys_flag & IS_BATCH and not is_special_raw(raw):
                continue  # most members: a client encodes properties, and none of these are asked for below
            properties = (decode_properties(raw) if raw else message.properties) or {}
            if INNER_COUNT in properties or message.sys_flag & IS_BATCH:
                return refused(PutStatus.MESSAGE_ILLEGAL, "a batch takes no records that hold many messages")
            if DEDUP_ID in properties:
                return refused(PutStatus.MESSAGE_ILLEGAL, "a batch takes no dedup_id: it is stored as a whole")
            if any(self._delay(message, properties)):
                return refused(PutStatus.MESSAGE_ILLEGAL, "a batch takes no delayed messages")
        is_numbered = bool(messages) and messages[0].topic in self._admission.batch_queues_of
        with self.batch.guard if is_numbered else contextlib.nullcontext():
            return self._parts.log.appender.append_batch(messages, queue_id)

    def append_scheduled(self, message: Message, raw: bytes, queue_id: int, level: int) -> PutResult:
        """Schedule a delayed message.

        A message that could not be delivered later is refused now, while the caller can still be told.
        """
        refusal = self._delay_refusal() or self._late_refusal(message, raw, queue_id)
        if refusal is not None:
            return refusal
        self._admission.admit(SCHEDULE_TOPIC)
        waiting = scheduled(message, raw, queue_id, level, len(self._levels_ms))
        return self._parts.log.appender.append(waiting, waiting.queue_id)

    def _append_timer(self, message: Message, raw: bytes, queue_id: int, due_ms: int) -> PutResult:
        """Append a message that waits for a time, with the refusals of `append_scheduled`."""
        refusal = self._late_refusal(message, raw, queue_id)
        if refusal is not None:
            return refusal
        self._admission.admit(TIMER_TOPIC, 1)
        return self._parts.log.appender.append(timed(message, raw, queue_id, due_ms), 0)

    def _late_refusal(self, message: Message, raw: bytes, queue_id: int) -> PutResult | None:
        if not 0 <= queue_id < QUEUES_MAX:
            raise InvalidMessage(f"queue id {queue_id}: 0 to {QUEUES_MAX - 1}")
        return self._refusal(message, decode_properties(raw))

    def append_undelayed(self, message: Message, queue_id: int) -> PutResult:
        """Append a message immediately and keep its DELAY property, which then only records how the message got here."""
        return self._append(message, encode_properties(message), queue_id)

    def _append(self, message: Message, raw: bytes, queue_id: int) -> PutResult:
        if message.topic in self._admission.batch_queues_of:
            if TTL_MS.encode() in raw and TTL_MS in decode_properties(raw):
                return refused(PutStatus.MESSAGE_ILLEGAL, f"{message.topic} has batch queues, whose messages have no ttl")
            return self.batch.append(message, raw, decode_properties(raw).get(INNER_COUNT), queue_id)
        if message.sys_flag & IS_BATCH or INNER_COUNT.encode() in raw:
            count = decode_properties(raw).get(INNER_COUNT)
            if count is not None or message.sys_flag & IS_BATCH:
                return refused(PutStatus.MESSAGE_ILLEGAL, f"{message.topic} has no batch queues")
        if self._parts.config.enable_lmq and MULTI_DISPATCH.encode() in raw:
            names = decode_properties(raw).get(MULTI_DISPATCH, "")
            if is_eligible(message.topic, names):
                return self.lmq.append(message, raw, names, queue_id)
        return self._parts.log.appender.append(message, queue_id)


def _has_priority(pairs: dict[str, str]) -> bool:
    """Return whether the properties have a priority; others than a number from 0 on count as none, as in a broker."""
    return is_java_number(pairs.get(PRIORITY, ""), 32) and int(pairs[PRIORITY]) >= 0
