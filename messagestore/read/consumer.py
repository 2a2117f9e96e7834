"""Consume a topic: every message of its queues, in the order of each queue, again until it is acknowledged.

A group's offsets are in `config/consumerOffset.json`: for each queue the first message that is not acknowledged.  `ack` moves
them, and records that in a mapped file (`broker/config/ack_file.py`), so that after a kill only messages come again that were
delivered and not acknowledged.  Under synchronous flush it returns when the file is on the disk.  Several consumers of one
group in a process share the queues (`rebalance.py`); when a queue is reassigned, the new consumer gets its unacknowledged
messages again.

`nack` sends a message back: it is delivered again after a delay, from the group's retry topic, which a consumer reads beside
its own (`retry_progress.py`), unless it was given its queues.  After the last retry it goes to the group's dead letters, and so
does a message whose `ttl` is over when it would be delivered.

With a visibility time each delivery has a deadline.  At the deadline the store sends the message back without a delay, and
counts the delivery as `nack` does; the consumer then takes no queues until it polls again, so others get them.  The file of
acknowledgements has which messages are in hand: one whose consumer was killed is sent back as well when it is found there.

In a topic with priorities each fetch takes from the highest queue that has messages, and from the retry topic last, as POP of
RocketMQ 5.4 does.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog import PutResult, StoredMessage
from commitlog.layout import FOREVER_MS
from commitlog.status import FINAL
from commitlog.topic_names import DEAD_PREFIX, RETRY_PREFIX
from consumequeue import Boundary
from storageio import InvalidMessage, InvalidSetting, PutRejected, StoreClosed, StoreError, StoreReadOnly
from storageio.settings import check_type

from ..broker.config.consumer_offsets import check_key
from ..broker.services.retries import expires_ms, holds_many
from .assigned_queues import FETCH_BYTES_MAX, AssignedQueues, QueueState
from .delivery_rules import MS_MAX, NO_RULES, DeliveryRules, duration_ms
from .follower import CLOSE_POLL_S, IDLE_AFTER_S, IDLE_POLL_S, POLL_S
from .polled import FETCH_COUNT
from .queue_reader import QueueReader
from .retry_progress import RetryProgress, is_of_topic

if TYPE_CHECKING:
    from ..broker.services.retries import Retries
    from ..parts import StoreParts

STARTS = ("first", "last")
IDLE_CHECK_S = 1.0  # how long the housekeeper leaves a consumer whose deliveries end later
BUSY_CHECK_S = 0.05  # ... one that another thread uses
MISSING = ("wait", "error", None)  # None for a retry topic, which usually does not exist
LOG = logging.getLogger(f"brokerstore.{__name__}")


class NextOnes(NamedTuple):
    """The next messages of a queue."""

    queue_id: int
    rows: list[tuple[int, int]]  # of each its physical offset, and the queue offset of the one behind it


class Taken(NamedTuple):
    """What a consumer of another process gets."""

    physical_offsets: list[int]
    in_hand: list[tuple[Any, ...]]  # topic, queue id, turn and position of each queue, and id and place of its lease
    next_ones: NextOnes | None


class Consumer(AssignedQueues):
    """An iterator over a topic's messages that waits for more.  Any thread may use it; only one at a time may iterate."""

    def __init__(
        self, parts: StoreParts, retries: Retries | None, reader: QueueReader, topic: str, group: str, queues: list[int] | None,
        tags: set[str] | None, timeout_s: float | None, start: str, missing_topic: str | None, rules: DeliveryRules = NO_RULES,
    ) -> None:  # fmt: skip
        """Create it for `MessageStore.consumer`."""
        check_key(topic, group)
        rules.check()
        if rules.has_visibility and (queues is not None or not parts.writable):
            raise InvalidSetting(f"visibility_s is {rules.visibility_s}: for a store that is open for writing, without queues")
        if start not in STARTS:
            raise ValueError(f"start {start!r}: one of {', '.join(STARTS)}")
        if missing_topic not in MISSING:
            raise ValueError(f"missing_topic {missing_topic!r}: wait or error")
        super().__init__(parts, reader, topic, group, queues, tags, timeout_s, start)
        self._retries = retries
        self._rules = rules
        self._has_visibility = rules.has_visibility
        self._is_suspended = False  # since a visibility time ended and until the next poll
        self._due_ms = MS_MAX  # no delivery ends earlier
        self._expired: list[StoredMessage] = []  # pending, to be moved to the dead letters
        if missing_topic is not None and not self._list_queues() and parts.topics.get(topic) is None:
            if missing_topic == "error":
                raise InvalidMessage(f"{parts.paths.root}: no topic {topic!r} for the consumer of group {group!r}")
            LOG.warning("%s: no topic %r: the consumer of group %r waits for one", parts.paths.root, topic, group)
        if self._fixed is None:
            parts.sharing.join(self._shared_name, group, self)
        self._assign()
        parts.open_consumers.add(self)
        self._retry = self._make_retry_reader()
        self._start = "first"  # a queue that is created later is read from its start

    def _make_retry_reader(self) -> _RetryReader | None:
        """Return a reader of the retry topic, or None.

        Only a writer's consumer that shares its topic with the group has one.
        """
        is_plain = self._fixed is None and not self.topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
        return (
            _RetryReader(self._parts, self._retries, self._reader, self.topic, self.group, self._rules)
            if is_plain and self._parts.writable
            else None
        )

    def poll(self, max_count: int = FETCH_COUNT, timeout_s: float | None = 0) -> list[StoredMessage]:
        """Return up to `max_count` messages; wait for the first until the timeout, or without limit if it is None.

        Finds every message that was put before the call.
        """
        began = time.monotonic()
        while not (self.is_closed or self.is_stopped):
            seen = self._parts.progress.count
            try:
                if self._has_priorities:  # what was put before the call has its rank
                    self._parts.settle()
                found = self._take(max_count)
                if len(found) < max_count:
                    self._parts.settle()
                    found += self._take(max_count - len(found))
                self._drop_expired()
            except StoreClosed:
                if self.is_closed:  # by another thread, since the loop looked
                    return []
                raise
            waited_s = time.monotonic() - began
            if found or (timeout_s is not None and waited_s >= timeout_s):
                return found
            left_s = CLOSE_POLL_S if timeout_s is None else timeout_s - waited_s
            progress = self._parts.progress
            progress.wait_until(lambda: progress.count != seen or self._is_ended(), min(left_s, self._poll_s(waited_s)))  # noqa: B023
        return []

    def _is_ended(self) -> bool:
        return self.is_closed or self.is_stopped

    def stop(self) -> None:
        """End the iteration: a wait for messages returns, and no further message is delivered.

        Any thread and a signal handler may call it.  What is in hand can still be acknowledged; the other queues go to other
        consumers of the group, and those of messages in hand follow with the last acknowledgement, or at `close`.
        """
        self.is_stopped = True  # takes no lock: a signal handler may have interrupted the thread that holds it
        if self._retry is not None:
            self._retry.is_stopped = True
        self._parts.sharing.changes += 1
        self._parts.progress.recheck()

    @property
    def is_away(self) -> bool:
        """Whether it takes no queues: it was stopped, or a visibility time ended and it did not poll since."""
        return self.is_stopped or self._is_suspended

    @property
    def keeps_held(self) -> bool:
        """Whether a queue stays with it while it holds messages of it, however long."""
        return self.is_stopped or self._has_visibility

    def take(self, max_count: int, *, waits: bool = True) -> Taken:
        """Return what is dispatched now, without waiting for more, and the queues in hand as `in_hand` does.

        With `waits=False` return nothing while another thread uses the consumer: it may be waiting for the dispatcher.
        """
        if not self._lock.acquire(blocking=waits):
            return Taken([], [], None)
        try:
            if waits and self._has_priorities:
                self._parts.settle()
            found = self._take(max_count)
            if waits:  # the dispatcher's thread waits for no put: the next call drops them
                self._drop_expired()
            in_hand = self._in_hand()
            return Taken([message.physical_offset for message in found], in_hand, self._next_ones(found))
        finally:
            self._lock.release()

    def _next_ones(self, found: list[StoredMessage]) -> NextOnes | None:
        """Return the messages after those that are handed out; None unless another process may take them itself."""
        state = self._states.get(found[-1].queue_id) if found and found[-1].topic == self.topic else None
        if state is None or state.lease is None or not state.fetched or state.has_ttl or self._has_priorities:
            return None
        ends = [message.queue_offset for message in state.fetched][1:]
        offsets = [message.physical_offset for message in state.fetched]
        return NextOnes(found[-1].queue_id, list(zip(offsets, [*ends, state.fetch_at], strict=True)))

    def take_put(self, result: PutResult) -> int:
        """Hand out a message of this consumer's topic that was put a moment ago, before it is dispatched.

        Return the turn of its queue; -1, and hand out nothing, unless the message is the next one of a queue in hand and
        readable. Wait for nothing: neither for the dispatcher nor for another thread that uses the consumer.
        """
        check_type("result", result, PutResult)
        end = result.physical_offset + result.size_bytes
        if self._tags is not None or end > self._parts.dispatch_limit() or not self._lock.acquire(blocking=False):
            return -1
        try:
            state = self._states.get(result.queue_id)
            if state is None or state.fetched or state.fetch_at != result.queue_offset or not self._is_divided():
                return -1
            deadline_ms = self._deadline_ms()
            state.pending[result.queue_offset] = deadline_ms
            if self._is_ended() or not self._is_divided():  # others see from here on that the queue is held
                del state.pending[result.queue_offset]
                return -1
            state.position = state.fetch_at = result.queue_offset + 1
            state.ready_at = end
            if self._has_visibility:
                self._offsets.add_handed(self.topic, self.group, result.queue_id, (result.queue_offset,))
            return state.turn
        finally:
            self._lock.release()

    def _is_divided(self) -> bool:
        """Return whether the queues in hand are those of the present division."""
        return self._fixed is not None or self._parts.sharing.changes == self._divided[0]

    def _poll_s(self, waited_s: float) -> float:
        """Return the pause before the next poll: long in the writing process, which is notified of new messages."""
        if self._parts.writable:
            return CLOSE_POLL_S
        return POLL_S if waited_s < IDLE_AFTER_S else IDLE_POLL_S

    def _take(self, max_count: int) -> list[StoredMessage]:
        """Return the messages that are available now, queue after queue."""
        found: list[StoredMessage] = []
        with self._lock:
            self._check()
            if self.is_stopped:
                return []
            if self._has_visibility:
                self._return_to_group()
                self._expire_if_free()
            self._assign()
            if self._retry is not None and not self._has_priorities:
                found += self._retry._take(max_count)
            queue_ids = list(self._mine) if len(found) < max_count else []
            for step in range(len(queue_ids)):
                queue_id = queue_ids[(self._turn + step) % len(queue_ids)]
                state = self._states[queue_id]
                self._fetch(queue_id, state)
                while state.fetched and len(found) < max_count:
                    found += self._hand_out(state, max_count - len(found))
                    if self._has_priorities:  # no lower queue's message goes before one that came since the last fetch
                        self._fetch(queue_id, state)
                if len(found) == max_count:
                    if not self._has_priorities:
                        self._turn += step if state.fetched else step + 1
                    break
            if self._retry is not None and self._has_priorities and len(found) < max_count:
                found += self._retry._take(max_count - len(found))
            if self._parts.sharing.changes != self._divided[0]:
                found = self._still_mine(found)
            if self._has_visibility:
                self._record_handed(found)
                self._expire_if_free()  # what a killed consumer had
        return found

    def _hand_out(self, state: QueueState, max_count: int) -> list[StoredMessage]:
        """Return fetched messages.

        One whose time to live is over waits for its move to the dead letters; one that a killed consumer had becomes pending
        with a deadline that is over.
        """
        if not self._has_visibility and not state.has_ttl:
            return [state.hand_out(MS_MAX) for _ in range(min(max_count, len(state.fetched)))]
        found: list[StoredMessage] = []
        deadline_ms = self._deadline_ms() if self._has_visibility else MS_MAX
        while state.fetched and len(found) < max_count:
            message = state.fetched[0]
            if state.has_ttl and self._is_expired(message):
                self._expired.append(state.hand_out(MS_MAX))
            elif not self._has_visibility or holds_many(message):
                found.append(state.hand_out(MS_MAX))
            elif self._offsets.is_handed(self.topic, self.group, message.queue_id, message.queue_offset):
                state.hand_out(0)
                self._due_ms = 0
            else:
                found.append(state.hand_out(deadline_ms))
        return found

    def _record_handed(self, found: list[StoredMessage]) -> None:
        """Record what this consumer has, once it is certain that no other one took the queue."""
        for message in found:
            if message.topic == self.topic and not holds_many(message):
                self._offsets.add_handed(self.topic, self.group, message.queue_id, (message.queue_offset,))

    def _still_mine(self, found: list[StoredMessage]) -> list[StoredMessage]:
        """Take messages back whose queue was given to another consumer since the take began."""
        lost = self._lost_queues()
        for queue_id in lost:  # what a consumer before had is for the next one to send back
            pending = self._states[queue_id].pending
            for offset in [offset for offset, deadline_ms in pending.items() if not deadline_ms]:
                del pending[offset]
        for message in found:
            if message.topic == self.topic and message.queue_id in lost:
                del self._states[message.queue_id].pending[message.queue_offset]
        return [message for message in found if message.topic != self.topic or message.queue_id not in lost]

    def _is_expired(self, message: StoredMessage) -> bool:
        end_ms = expires_ms(message)
        return end_ms is not None and self._parts.now_ms() >= end_ms and not self.topic.startswith(DEAD_PREFIX)

    def _drop_expired(self) -> None:
        """Move expired messages to the dead letters, then acknowledge them.  What fails is tried again at the next call."""
        if self._retry is not None:
            self._retry._drop_expired()
        if not self._expired or self._retries is None:  # a reader only leaves them out
            return
        with self._lock:
            waiting, self._expired = self._expired, []
            for message in waiting:
                try:
                    if self._holding(message.topic, message.queue_id, message.queue_offset) is not None:
                        self._retries.expire(message, self.group)
                        self.ack(message)
                except StoreError as error:  # those that were taken with it are delivered all the same
                    LOG.warning("%s: an expired message stays for now: %s", self._parts.paths.root, error)
                    self._expired.append(message)

    @property
    def queues(self) -> list[int]:
        """The queue ids that are assigned to this consumer."""
        with self._lock:
            self._check()
            self._parts.settle()
            self._assign()
            return list(self._mine)

    def in_hand(self) -> list[tuple[Any, ...]]:
        """Return topic, queue id, turn and next offset of each queue in this consumer's hand, of the retry topic too.

        A turn that changed shows that the queue was in another hand meanwhile.  Id and place of a lease follow.
        """
        with self._lock:
            self._check()
            self._assign()
            if self._retry is not None:
                self._retry._assign()
            return self._in_hand()

    def _in_hand(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = [
            (self.topic, queue_id, state.turn, state.position, *self._lent(queue_id, state))
            for queue_id, state in self._states.items()
        ]
        return found + (self._retry._in_hand() if self._retry is not None else [])

    def resume(self, topic: str, queue_id: int, position: int, held: list[int], deadlines_ms: list[int] | None = None) -> None:
        """Continue at a queue offset, with earlier messages that were handed out before and are not acknowledged.

        `deadlines_ms`: when each of their deliveries ends.
        """
        if self._retry is not None and topic == self._retry.topic:
            self._retry.resume(topic, queue_id, position, held, deadlines_ms)
            return
        with self._lock:
            self._assign()
            turn = self._mine.get(queue_id, -1)
            if held and self._fixed is None:
                turn = self._parts.sharing.claim(self._shared_name, self.group, queue_id, self)
            if turn < 0:
                return
            self._end_leases()
            state = self._states[queue_id] = QueueState(min(position, self._bounds(queue_id)[1]), turn)
            state.done = self._offsets.done(self.topic, self.group, queue_id)
            ends = zip(held, deadlines_ms or [self._deadline_ms()] * len(held), strict=True)
            state.pending.update(
                sorted((offset, end) for offset, end in ends if offset < state.position and offset not in state.done)
            )
            if self._has_visibility:
                self._due_ms = 0
                self._offsets.add_handed(self.topic, self.group, queue_id, list(state.pending))

    # Positions

    def position(self, queue_id: int) -> int:
        """Return the queue offset of the next message."""
        with self._lock:
            return self._state(queue_id).position

    def seek(self, queue_id: int, offset: int) -> None:
        """Continue at a queue offset, clamped to the bounds of the queue.  Commits nothing."""
        with self._lock:
            state = self._state(queue_id)
            self._end_lease(queue_id, state)
            self._give_back(queue_id, state, 0)
            low, high = self._bounds(queue_id)
            self._states[queue_id] = QueueState(min(max(offset, low), high))

    def seek_to_time(self, timestamp_ms: int, boundary: Boundary = Boundary.LOWER) -> None:
        """Continue in every assigned queue at the first message stored at or after a time.

        With another boundary, see docs/formats/read-rules.md#offset-by-time.
        """
        time_ms = min(max(timestamp_ms, -FOREVER_MS), FOREVER_MS)
        for queue_id in self.queues:
            queue = self._queue(queue_id)
            if queue is not None:
                log = self._parts.log
                self.seek(queue_id, queue.offset_by_time(time_ms, boundary, log.readers, max(log.min_offset, 0)))

    def lag(self, queue_id: int | None = None) -> int:
        """Return the number of unacknowledged messages, of one queue or of all assigned ones."""
        with self._lock:
            requested = self.queues if queue_id is None else [queue_id]
            return sum(self._lag(self._state(one), one) for one in requested)

    def _lag(self, state: QueueState, queue_id: int) -> int:
        low, high = self._bounds(queue_id)
        start = max(state.done_before, low)
        done = self._offsets.done(self.topic, self.group, queue_id)
        return max(0, high - start) - sum(start <= offset < high for offset in done)

    def _state(self, queue_id: int) -> QueueState:
        self._check()
        self._parts.settle()
        self._assign()
        if queue_id not in self._states:
            raise InvalidMessage(f"queue {queue_id} of {self.topic} is not in this consumer's hand: {sorted(self._states)} are")
        return self._states[queue_id]

    # Acknowledging

    def ack(self, message: StoredMessage) -> bool:
        """Acknowledge a message.  The group's offset moves when everything before it is acknowledged too.

        Returns False and changes nothing if the message is not pending: it is already acknowledged, was delivered before a
        `seek`, belongs to a queue that was reassigned, or its visibility time is over, so that it is delivered again.
        """
        check_type("message", message, StoredMessage)
        return self.ack_at(message.topic, message.queue_id, message.queue_offset)

    def ack_at(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Acknowledge the message of a queue offset, as `ack`."""
        self._must_write()
        if self._retry is not None and topic == self._retry.topic:
            return self._retry.ack_at(topic, queue_id, queue_offset)
        with self._lock:
            state = self._holding(topic, queue_id, queue_offset)
            if state is None:
                return False
            with state.committing():
                del state.pending[queue_offset]
                self._acked(queue_id, queue_offset, state)
        self._sync()
        return True

    def _sync(self) -> None:
        """Wait, if puts do, until what is acknowledged is on the disk."""
        if self._parts.config.is_sync_flush:
            self._offsets.sync()

    def _acked(self, queue_id: int, queue_offset: int, state: QueueState) -> None:
        self._commit(queue_id, state)
        if queue_offset > state.committed:
            self._offsets.add_done(self.topic, self.group, queue_id, queue_offset)

    def _holding(self, topic: str, queue_id: int, queue_offset: int) -> QueueState | None:
        """Return the state of the queue in which a message is pending, or None."""
        if self._has_visibility:
            self._expire_if_free()
        self._assign()
        state = self._states.get(queue_id)
        is_held = state is not None and topic == self.topic and queue_offset in state.pending
        return state if is_held and not self._is_over(state, queue_offset) else None

    def _is_over(self, state: QueueState | None, queue_offset: int) -> bool:
        return self._has_visibility and state is not None and state.pending[queue_offset] <= self._now_ms()

    def nack(self, message: StoredMessage, *, delay_level: int = 0) -> PutResult | None:
        """Schedule another delivery of a message from `%RETRY%group`, and return the result of its put.

        After the last delivery, `max_deliveries` or the group's `retryMaxTimes` (16) and the first one, it goes to
        `%DLQ%group` instead.  Returns None if the message is not pending.
        Raises `InvalidMessage` for a record of many messages.

        With `delay_level` 0 each retry waits longer, the first for level 3 (10 s); a level below 0 makes it a dead letter
        immediately.  The new record is as durable as the flush mode promises before the old one is acknowledged, so a crash in
        between may deliver the message twice.
        """
        check_type("message", message, StoredMessage)
        self._must_write()
        if self._retry is not None and message.topic == self._retry.topic:
            return self._retry.nack(message, delay_level=delay_level)
        with self._lock:
            if self._holding(message.topic, message.queue_id, message.queue_offset) is None:
                return None
            self._check_single(message)
            assert self._retries is not None, "a writer has them"
            result = self._retries.send_back(message, self.group, delay_level, self._rules.max_deliveries)
            self.ack(message)
            return result

    # Visibility

    def extend(self, message: StoredMessage, seconds: float) -> bool:
        """Let the visibility time of a message in hand end so many seconds from now on, later or earlier than it would.

        Returns False if the message is not pending, as `ack`.  Raises `InvalidSetting` for a consumer without a visibility
        time, and for a time that is not positive.
        """
        check_type("message", message, StoredMessage)
        return self.extend_at(message.topic, message.queue_id, message.queue_offset, seconds)

    def extend_at(self, topic: str, queue_id: int, queue_offset: int, seconds: float) -> bool:
        """Renew the visibility time of the message of a queue offset, as `extend`."""
        self._must_write()
        if not self._has_visibility:
            raise InvalidSetting(f"the consumer of group {self.group!r} has no visibility time to extend: give it visibility_s")
        added_ms = duration_ms("seconds", seconds)
        if self._retry is not None and topic == self._retry.topic:
            return self._retry.extend_at(topic, queue_id, queue_offset, seconds)
        with self._lock:
            state = self._holding(topic, queue_id, queue_offset)
            if state is None:
                return False
            if state.pending[queue_offset] < MS_MAX:
                state.pending[queue_offset] = self._now_ms() + added_ms
                self._due_ms = min(self._due_ms, state.pending[queue_offset])
            return True

    def _now_ms(self) -> int:
        return self._parts.now_ms() if self._has_visibility else 1

    def _deadline_ms(self) -> int:
        """Return when a delivery that begins now ends."""
        if not self._has_visibility:
            return MS_MAX
        found = self._rules.deadline_ms(self._now_ms())
        self._due_ms = min(self._due_ms, found)
        return found

    def _return_to_group(self) -> None:
        """Take queues again: the consumer polls."""
        if self._is_suspended:
            self._is_suspended = False
            self._parts.sharing.changes += 1

    def end_expired(self) -> float:
        """End the deliveries whose visibility time is over; return the seconds until the next one is.

        The consumer then takes no queues until it polls.  Does nothing while another thread uses it.
        """
        if not self._has_visibility or self.is_closed:
            return IDLE_CHECK_S
        if not self._lock.acquire(blocking=False):
            return BUSY_CHECK_S
        try:
            readers = [self] if self._retry is None else [self, self._retry]
            if any(reader._has_expired() for reader in readers):
                for reader in readers:  # before others look for what is sent back
                    reader._is_suspended = True
                self._parts.sharing.changes += 1
                for reader in readers:
                    with reader._lock:
                        reader._expire()
                self._parts.sharing.changes += 1
            due_ms = min(reader._due_ms for reader in readers)
            return min(IDLE_CHECK_S, max(BUSY_CHECK_S, (due_ms - self._now_ms()) / 1000))
        finally:
            self._lock.release()

    def _has_expired(self) -> bool:
        """Return whether the time of a delivery is over."""
        now_ms = self._now_ms()
        if now_ms < self._due_ms:
            return False
        with self._lock:
            return any(end_ms <= now_ms for state in self._states.values() for end_ms in state.pending.values())

    def _expire_if_free(self) -> None:
        """End the deliveries whose time is over; without space they end at a later call."""
        try:
            self._expire()
        except PutRejected as error:
            LOG.warning("%s: group %r: a message cannot be sent back yet: %s", self.topic, self.group, error)

    def _expire(self) -> None:
        if not self._has_visibility or self._now_ms() < self._due_ms:
            return
        now_ms, lost = self._now_ms(), self._lost_queues()
        for queue_id, state in self._states.items():
            for offset in [offset for offset, end_ms in state.pending.items() if end_ms <= now_ms]:
                is_dispatched = offset < self._bounds(queue_id)[1]
                if is_dispatched and queue_id not in lost and offset in state.pending:  # `_keep` may have given it back
                    self._end_delivery(queue_id, offset, state)
        self._due_ms = min((end for state in self._states.values() for end in state.pending.values()), default=MS_MAX)

    def _end_delivery(self, queue_id: int, queue_offset: int, state: QueueState) -> None:
        """Send a message back, or to the dead letters, and acknowledge it."""
        assert self._retries is not None, "a writer has them"
        page = self._reader.page(self.topic, queue_id, queue_offset, 1, FETCH_BYTES_MAX, None)
        reason = "the visibility time is over" if state.pending[queue_offset] else "the consumer that had it was killed"
        for message in page.messages:  # none, if retention deleted it
            if message.queue_offset == queue_offset:
                text = "%s-%d, offset %d: %s, so group %r gets it again or among its dead letters"
                LOG.warning(text, self.topic, queue_id, queue_offset, reason, self.group)
                try:
                    self._retries.send_back(message, self.group, None, self._rules.max_deliveries)
                except (InvalidMessage, PutRejected) as error:
                    if isinstance(error, PutRejected) and error.status not in FINAL:
                        raise
                    self._keep(queue_id, queue_offset, state, error)
                    return
        with state.committing():
            del state.pending[queue_offset]
            self._acked(queue_id, queue_offset, state)
        self._sync()

    def _keep(self, queue_id: int, queue_offset: int, state: QueueState, error: StoreError) -> None:
        """Leave a message that cannot be sent back, such as one of too many properties, to the consumer that has it.

        One that nobody has is delivered once more, with those behind it.
        """
        LOG.error("%s-%d, offset %d cannot be sent back, and stays where it is: %s", self.topic, queue_id, queue_offset, error)
        if state.pending[queue_offset]:
            state.pending[queue_offset] = MS_MAX
        else:
            self.give_back(self.topic, queue_id, queue_offset)

    def give_back(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Deliver again what was delivered of a queue from an offset on: the caller did not use it."""
        self._must_write()
        if self._retry is not None and topic == self._retry.topic:
            self._retry.give_back(topic, queue_id, queue_offset)
            return
        with self._lock:
            self._end_leases()
            state = self._states.get(queue_id)
            if state is not None and queue_offset in state.pending:
                self._give_back(queue_id, state, queue_offset)
                state.fetched.clear()
                state.position = state.fetch_at = queue_offset

    def _give_back(self, queue_id: int, state: QueueState, start: int) -> None:
        """Forget that messages are in hand, from an offset on: these deliveries do not count."""
        offsets = [offset for offset in state.pending if offset >= start]
        for offset in offsets:
            del state.pending[offset]
        if self._has_visibility:
            self._offsets.give_back(self.topic, self.group, queue_id, offsets)

    def _check_single(self, message: StoredMessage) -> None:
        """Refuse a record of many messages, because retry topics have no batch queues."""
        if holds_many(message):
            what = f"a record of many messages of {self.topic} cannot come again from {RETRY_PREFIX}{self.group}"
            raise InvalidMessage(f"{what}: put it to {self.topic} once more and acknowledge this one")

    def commit(self, *, sync: bool = False) -> None:
        """Acknowledge everything that was delivered; with `sync` return when that is on the disk."""
        self._must_write()
        self._drop_expired()
        with self._lock:
            self._expire_if_free()
            self._assign()
            for queue_id, state in self._states.items():
                with state.committing():
                    for offset in state.in_time(self._now_ms()):
                        del state.pending[offset]
                    self._commit(queue_id, state)
        if self._retry is not None:
            self._retry.commit()
        if sync:
            self._offsets.sync()
        self._sync()

    def _commit(self, queue_id: int, state: QueueState) -> None:
        done_before = state.done_before
        if done_before != state.committed:
            self._offsets.commit(self.topic, self.group, queue_id, done_before)
            state.committed = done_before

    def _must_write(self) -> None:
        self._check()
        if not self._parts.writable:
            raise StoreReadOnly("offsets are committed in the process that writes the store")

    def close(self) -> None:
        """Leave the queues to other consumers of the group.  Unacknowledged messages are delivered again."""
        if self._has_visibility and not self.is_closed and not self._parts.is_closed:
            for reader in (self, self._retry) if self._retry is not None else (self,):
                with reader._lock:
                    for queue_id, state in reader._states.items():
                        reader._give_back(queue_id, state, 0)
        self.abandon()

    def abandon(self) -> None:
        """Close it because its process ended: what it had in hand counts as delivered."""
        if self._is_lent:
            with self._lock:
                self._end_leases()
        self.is_closed = True
        self._parts.open_consumers.discard(self)
        self._parts.sharing.leave(self._shared_name, self.group, self)
        if self._retry is not None:
            self._retry.abandon()
        self._parts.progress.notify()


class _RetryReader(Consumer):
    """Reads a group's retry topic for the consumer of one topic."""

    def __init__(
        self, parts: StoreParts, retries: Retries | None, reader: QueueReader, origin: str, group: str, rules: DeliveryRules
    ) -> None:
        """Create it for messages that came from the topic `origin`."""
        self._origin = origin
        super().__init__(parts, retries, reader, RETRY_PREFIX + group, group, None, None, 0.0, "first", None, rules)

    def end_expired(self) -> float:
        """Leave it to the consumer of the topic, which is suspended with it."""
        return IDLE_CHECK_S

    @property
    def _shared_name(self) -> str:
        return f"{self.topic}\0{self._origin}"

    def _progress(self, queue_id: int) -> RetryProgress:
        return self._parts.retry_progresses.get(self._offsets, self.topic, self.group, queue_id)

    def _done(self, queue_id: int, offset: int) -> None:
        """Acknowledge a message.

        Expired messages before it are never acknowledged, so they count as done.
        """
        progress = self._progress(queue_id)
        progress.begin_at(self._bounds(queue_id)[0])
        progress.done(offset)

    def _first_position(self, queue_id: int) -> int:
        low, high = self._bounds(queue_id)
        progress = self._progress(queue_id)
        progress.begin_at(low)
        return min(progress.base, high)

    def _selected(self, messages: list[StoredMessage], state: QueueState) -> list[StoredMessage]:
        return [
            message
            for message in messages
            if is_of_topic(message, self._origin) and not self._progress(message.queue_id).is_done(message.queue_offset)
        ]

    def _acked(self, queue_id: int, queue_offset: int, state: QueueState) -> None:
        self._done(queue_id, queue_offset)

    def commit(self, *, sync: bool = False) -> None:
        """Acknowledge everything that was delivered."""
        with self._lock:
            self._expire_if_free()
            for queue_id, state in self._states.items():
                for offset in state.in_time(self._now_ms()):
                    self._done(queue_id, offset)
                    del state.pending[offset]
