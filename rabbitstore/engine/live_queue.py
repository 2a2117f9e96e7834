"""A queue of an open store: one variable queue, or one per priority, with deliveries by tag and waiting consumers."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from storageio import StoreError

from ..declarations import QueueOptions
from ..errors import UnknownDelivery, UnknownQueue
from ..format.content import HasContent, decode_content
from ..format.entry_cy import IndexEntry
from ..format.message import Content
from .variable_queue_cy import VariableQueue


@dataclass(frozen=True)
class Delivery(HasContent):
    """A delivered message.  `tag` identifies it for an acknowledgement and ascends within the queue."""

    tag: int
    queue: str
    seq_id: int
    redelivered: bool
    content: Content


@dataclass(slots=True)
class EncodedMessage:
    """A message to publish, encoded once for all its queues."""

    msg_id: bytes
    term: bytes
    size: int
    persistent: bool
    embedded: bool
    priority: int
    ttl_ms: int | None


class LiveQueue:
    """A queue that is thread-safe: every method holds `lock`."""

    def __init__(self, name: str, options: QueueOptions, parts: list[VariableQueue], now_ms: Callable[[], int]) -> None:
        """`parts` has one queue per priority, one for an ordinary queue."""
        self.name = name
        self.options = options
        self.parts = parts
        self.now_ms = now_ms
        self.lock = threading.RLock()
        self.arrived = threading.Condition(self.lock)
        self.unacked: dict[int, tuple[VariableQueue, int]] = {}
        self.direct: deque[tuple[VariableQueue, IndexEntry]] = deque()  # for consumers that wait at the empty queue
        self.waiting_consumers = 0
        self.is_deleted = False
        self._next_tag = 1
        self._postponed: StoreError | None = None  # of a message that `get_many` met after others

    def __len__(self) -> int:
        """Return the number of waiting messages."""
        return sum(len(part) for part in self.parts)

    @property
    def is_blocked(self) -> bool:
        """Whether a message store grants no credit, so that publishers must wait."""
        return any(part.persistent_store.credit.is_blocked or part.transient_store.credit.is_blocked for part in self.parts)

    def publish(self, message: EncodedMessage) -> None:
        """Append a message to its priority, or hand it to a consumer that waits at the empty queue."""
        with self.lock:
            if self.is_deleted:
                raise UnknownQueue(f"queue {self.name} is deleted")
            part = self.parts[min(message.priority, len(self.parts) - 1) if message.priority else 0]
            expiry_us = self._expiry_us(message.ttl_ms)
            if self.waiting_consumers > len(self.direct) and not len(self) and not expiry_us:
                self._hand_over(part, message)
                return
            part.publish(
                message.msg_id,
                message.term,
                message.size,
                expiry_us=expiry_us,
                persistent=message.persistent,
                embedded=message.embedded,
            )
            if self.waiting_consumers:
                self.arrived.notify()

    def _hand_over(self, part: VariableQueue, message: EncodedMessage) -> None:
        seq_id = part.publish_delivered(
            message.msg_id, message.term, message.size, persistent=message.persistent, embedded=message.embedded
        )
        self.direct.append((part, part.ram_pending[seq_id]))
        self.arrived.notify()

    def _expiry_us(self, ttl_ms: int | None) -> int:
        """Return the earlier expiry of message and queue, absolute; 0 for none."""
        of_queue = self.options.message_ttl_ms
        if ttl_ms is None:
            ttl_ms = of_queue
        elif of_queue is not None:
            ttl_ms = min(ttl_ms, of_queue)
        return 0 if ttl_ms is None else (self.now_ms() + ttl_ms) * 1000

    def get(self, *, auto_ack: bool = False) -> Delivery | None:
        """Deliver the next message of the highest priority; None when the queue is empty."""
        with self.lock:
            if self._postponed is not None:
                error, self._postponed = self._postponed, None
                raise error
            self.take_back_direct()
            now_us = self.now_ms() * 1000
            for part in reversed(self.parts):
                if not len(part):
                    continue
                part.drop_expired(now_us)
                found = part.fetch(ack_required=not auto_ack)
                if found is not None:
                    message, term, redelivered = found
                    return self._delivery(part, message.seq_id, term, redelivered, is_kept=not auto_ack)
        return None

    def get_many(self, count: int, *, auto_ack: bool = False) -> list[Delivery]:
        """Deliver up to `count` messages; a message that cannot be delivered after others raises at the next call."""
        found: list[Delivery] = []
        with self.lock:
            try:
                while len(found) < count and (delivery := self.get(auto_ack=auto_ack)) is not None:
                    found.append(delivery)
            except StoreError as error:
                if not found:
                    raise
                self._postponed = error
        return found

    def take_direct(self) -> Delivery | None:
        """Deliver a message that was handed over; the caller holds the lock.  One that cannot be read now stays for a retry."""
        if not self.direct:
            return None
        part, message = self.direct[0]
        term = message.term if message.term is not None else part.read_term(message)  # pressure may have dropped it
        self.direct.popleft()
        return self._delivery(part, message.seq_id, term, False, is_kept=True)

    def take_back_direct(self) -> None:
        """Requeue messages that were handed over to consumers that no longer wait; the caller holds the lock.

        A message that cannot be read or written stays unacknowledged, as after any requeue.
        """
        while len(self.direct) > self.waiting_consumers:
            part, message = self.direct.pop()
            self.requeue_tags([self._new_tag(part, message.seq_id)])

    def _delivery(self, part: VariableQueue, seq_id: int, term: bytes, redelivered: bool, *, is_kept: bool) -> Delivery:
        tag = self._new_tag(part, seq_id)
        if not is_kept:
            del self.unacked[tag]
        return Delivery(tag, self.name, seq_id, redelivered, decode_content(term, file=f"queue {self.name}"))

    def _new_tag(self, part: VariableQueue, seq_id: int) -> int:
        tag = self._next_tag
        self._next_tag += 1
        self.unacked[tag] = part, seq_id
        return tag

    def _tags(self, tag: int, multiple: bool) -> list[int]:
        if multiple:
            return [known for known in self.unacked if known <= tag]
        if tag not in self.unacked:
            raise UnknownDelivery(f"queue {self.name}: no unacknowledged delivery {tag}")
        return [tag]

    def acknowledge(self, tag: int, *, multiple: bool = False) -> int:
        """Acknowledge this delivery, or with `multiple` all up to it; return how many."""
        with self.lock:
            return self._settle(self._tags(tag, multiple), VariableQueue.acknowledge)

    def acknowledge_many(self, tags: list[int]) -> int:
        """Acknowledge these deliveries and return how many; for an unknown or repeated tag change nothing."""
        with self.lock:
            refused = [tag for tag, times in Counter(tags).items() if times > 1 or tag not in self.unacked]
            if refused:
                raise UnknownDelivery(f"queue {self.name}: no unacknowledged delivery {refused[0]}, or it is named twice")
            return self._settle(tags, VariableQueue.acknowledge)

    def requeue(self, tag: int, *, multiple: bool = False) -> int:
        """Requeue this delivery, or with `multiple` all up to it; return how many."""
        with self.lock:
            try:
                return self._settle(self._tags(tag, multiple), VariableQueue.requeue)
            finally:
                self.arrived.notify_all()

    def requeue_tags(self, tags: list[int]) -> None:
        """Requeue deliveries, as when a consumer is closed; skip tags that are no longer unacknowledged."""
        with self.lock:
            try:
                self._settle([tag for tag in tags if tag in self.unacked], VariableQueue.requeue)
            finally:
                self.arrived.notify_all()

    def _settle(self, tags: list[int], action: Callable[[VariableQueue, list[int]], Any]) -> int:
        """Call `action` for every part, even if one fails; keep the tags of messages that are still unacknowledged."""
        by_part: dict[int, tuple[VariableQueue, list[int]]] = {}
        for tag in tags:
            part, seq_id = self.unacked[tag]
            by_part.setdefault(id(part), (part, []))[1].append(seq_id)
        failed = [error for share in by_part.values() if (error := _failure(action, *share)) is not None]
        for tag in tags:
            part, seq_id = self.unacked[tag]
            if not part.is_pending(seq_id):
                del self.unacked[tag]
        if failed:
            raise failed[0]
        return len(tags)

    def purge(self) -> int:
        """Drop all waiting messages; return how many."""
        with self.lock:
            return sum(part.purge() for part in self.parts)

    def delete(self) -> int:
        """Delete messages and files; return how many messages waited.  After an error it may be called again."""
        with self.lock:
            count = self.purge()
            for part in self.parts:
                part.acknowledge([*part.ram_pending, *part.disk_pending])
            self.unacked.clear()
            self.direct.clear()
            self.is_deleted = True  # before the first deletion: after a failure the queue is gone, too
            self.arrived.notify_all()
            for part in self.parts:
                part.index.delete()
                part.persistent_store.terminate()
                part.transient_store.terminate()
            return count

    def memory_bytes(self) -> int:
        """Return the bytes of terms in memory, plus an estimate of 300 for each index entry."""
        with self.lock:
            entries = sum(len(part.q1) + len(part.q2) + len(part.q3) + len(part.q4) + part.pending_count for part in self.parts)
            return sum(part.ram_bytes for part in self.parts) + 300 * entries


def _failure(action: Callable[[VariableQueue, list[int]], Any], part: VariableQueue, seq_ids: list[int]) -> StoreError | None:
    try:
        action(part, seq_ids)
    except StoreError as error:
        return error
    return None
