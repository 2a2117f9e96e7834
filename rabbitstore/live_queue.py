"""A queue of an open store: one variable queue, or one a priority; deliveries by tag; waiting consumers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from storageio import StoreError

from .content import Content, OfContent, decode_content
from .entry_cy import IndexEntry
from .errors import UnknownDelivery, UnknownQueue
from .own_files import QueueOptions
from .variable_queue_cy import VariableQueue


@dataclass(frozen=True)
class Delivery(OfContent):
    """A message given out.  `tag` acknowledges it and grows within its queue."""

    tag: int
    queue: str
    seq_id: int
    redelivered: bool
    content: Content


@dataclass
class Outgoing:
    """A message on its way into queues; encoded once for all of them."""

    msg_id: bytes
    term: bytes
    size: int
    persistent: bool
    embedded: bool
    priority: int
    ttl_ms: int | None


class LiveQueue:
    """Safe for threads: every call holds `lock`."""

    def __init__(self, name: str, options: QueueOptions, parts: list[VariableQueue], now_ms: Callable[[], int]) -> None:
        """`parts` by priority, one for an ordinary queue."""
        self.name = name
        self.options = options
        self.parts = parts
        self.now_ms = now_ms
        self.lock = threading.RLock()
        self.arrived = threading.Condition(self.lock)
        self.unacked: dict[int, tuple[VariableQueue, int]] = {}
        self.direct: deque[tuple[VariableQueue, IndexEntry]] = deque()  # handed to waiting consumers
        self.waiting_consumers = 0
        self.is_deleted = False
        self._next_tag = 1

    def __len__(self) -> int:
        """Messages waiting."""
        return sum(len(part) for part in self.parts)

    @property
    def is_blocked(self) -> bool:
        """Whether a message store has no credit left for it: its publishers are to wait."""
        return any(part.persistent_store.credit.is_blocked or part.transient_store.credit.is_blocked for part in self.parts)

    def publish(self, message: Outgoing) -> None:
        """At the end of its priority, or straight to a consumer that waits at the empty queue."""
        with self.lock:
            if self.is_deleted:
                raise UnknownQueue(f"queue {self.name} is deleted")
            part = self.parts[min(message.priority, len(self.parts) - 1)]
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

    def _hand_over(self, part: VariableQueue, message: Outgoing) -> None:
        seq_id = part.publish_delivered(
            message.msg_id, message.term, message.size, persistent=message.persistent, embedded=message.embedded
        )
        self.direct.append((part, part.ram_pending[seq_id]))
        self.arrived.notify()

    def _expiry_us(self, ttl_ms: int | None) -> int:
        """The smaller of the message's and the queue's time to live, absolute; 0 for none."""
        known = [ttl for ttl in (ttl_ms, self.options.message_ttl_ms) if ttl is not None]
        return (self.now_ms() + min(known)) * 1000 if known else 0

    def get(self, *, auto_ack: bool = False) -> Delivery | None:
        """The next message of the highest priority that has one."""
        with self.lock:
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

    def take_direct(self) -> Delivery | None:
        """A message that was handed over; the caller holds the lock.  One that cannot be read now waits for the next call."""
        if not self.direct:
            return None
        part, message = self.direct[0]
        term = message.term if message.term is not None else part.read_term(message)  # pressure may have dropped it
        self.direct.popleft()
        return self._delivery(part, message.seq_id, term, False, is_kept=True)

    def take_back_direct(self) -> None:
        """What was handed over and nobody waits for any more is in the queue again; the caller holds the lock.

        One that cannot be read or written stays unacknowledged, as after any requeue.
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
        """Done with this delivery, or with it and all before it; how many."""
        with self.lock:
            return self._settle(self._tags(tag, multiple), VariableQueue.acknowledge)

    def requeue(self, tag: int, *, multiple: bool = False) -> int:
        """Back to their old places; how many."""
        with self.lock:
            try:
                return self._settle(self._tags(tag, multiple), VariableQueue.requeue)
            finally:
                self.arrived.notify_all()

    def requeue_tags(self, tags: list[int]) -> None:
        """Back to their old places, as when a consumer goes away."""
        with self.lock:
            try:
                self._settle([tag for tag in tags if tag in self.unacked], VariableQueue.requeue)
            finally:
                self.arrived.notify_all()

    def _settle(self, tags: list[int], action: Callable[[VariableQueue, list[int]], Any]) -> int:
        """Each part's share, though another's failed; a tag whose message is still unacknowledged stays."""
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
        """Drop all that waits; how many."""
        with self.lock:
            return sum(part.purge() for part in self.parts)

    def delete(self) -> int:
        """Drop everything and the files; how many messages waited.  After an error it may be called again."""
        with self.lock:
            count = self.purge()
            for part in self.parts:
                part.acknowledge([*part.ram_pending, *part.disk_pending])
            self.unacked.clear()
            self.direct.clear()
            self.is_deleted = True  # before the first file goes: what fails from here on leaves no queue
            self.arrived.notify_all()
            for part in self.parts:
                part.index.delete()
                part.persistent_store.die()
                part.transient_store.die()
            return count

    def memory_bytes(self) -> int:
        """Terms held, and an allowance for each place held."""
        with self.lock:
            places = sum(len(part.q1) + len(part.q2) + len(part.q3) + len(part.q4) + part.pending_count for part in self.parts)
            return sum(part.ram_bytes for part in self.parts) + 300 * places


def _failure(action: Callable[[VariableQueue, list[int]], Any], part: VariableQueue, seq_ids: list[int]) -> StoreError | None:
    try:
        action(part, seq_ids)
    except StoreError as error:
        return error
    return None
