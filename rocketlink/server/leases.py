"""Messages that consumers have for a time: in hand, acknowledged, or to be delivered again.

The group's committed offset of a queue is that of the first message that is still in hand; later ones that are acknowledged,
and what is in hand until when, are recorded beside it, as a consumer of the store does. So after a restart or a kill a message
in hand comes again after its time, and its handle stays valid. A real broker that continues the folder knows only the offset.
"""

from __future__ import annotations

import bisect
import heapq
import logging
import time
from collections.abc import Callable, Container
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from commitlog import StoredMessage
from commitlog.topic_names import RETRY_PREFIX
from messagestore import GetStatus, MessageStore, Page
from storageio import StoreError

from .pulling import Filter

LOG = logging.getLogger(f"brokerstore.{__name__}")
TAKEN_MAX = 1_000_000  # messages that are taken and not acknowledged, of all groups together
QUEUES_MAX = 100_000  # queues of all groups together
MOVES_MAX = 16  # reads of one queue for one answer: one may only find that the offset has to move
EXPIRED_MAX = 256  # messages that are to be delivered again at a time, before other requests are answered
REPEAT_S = 10.0  # after a message could not be stored in the retry topic
RETRY_LEVEL = 1  # the shortest delay level: the message has waited already
DEAD = -1  # the level of a dead letter
NO_OFFSET = -1
RENEW_S = 60.0  # how long a message is in hand of a client whose times are renewed
RENEWALS_S = 3 * 3600.0  # after this time none is renewed
INVISIBLE_MS_MAX = 12 * 3_600_000

QueueKey = tuple[str, str, int]  # topic, group, queue id


class Again(Enum):
    """How a message comes again after its time."""

    RETRY = "in the retry topic of the group, from which consumers pull"
    POP_RETRY = "in the retry topic of group and topic, from which the server takes"
    IN_ORDER = "from its own queue, before any later message"


class Terms(NamedTuple):
    """For how long messages are taken, and what happens afterwards.  A `client` has its times renewed while it is there."""

    invisible_ms: int
    again: Again = Again.RETRY
    client: str = ""


class Lease(NamedTuple):
    """A message that a consumer has."""

    physical_offset: int
    taken_ms: int  # the handle's; another one is out of date
    until_s: float
    terms: Terms
    renewed_until_s: float  # 0 for a time that is not renewed


class _KeptLease(NamedTuple):
    """What of a lease outlives the server."""

    taken_ms: int
    until_ms: int
    deliveries: int
    terms: Terms

    def text(self) -> bytes:
        """Return it as the file of acknowledgements has it."""
        numbers = self.taken_ms, self.until_ms, self.deliveries, self.terms.invisible_ms
        return " ".join((*map(str, numbers), self.terms.again.name, self.terms.client)).encode("utf-8", "replace")

    @classmethod
    def read(cls, text: bytes) -> _KeptLease | None:
        """Return the lease of a text; None if it is none."""
        try:
            *numbers, again, client = text.decode().split(" ", 5)
            taken_ms, until_ms, deliveries, invisible_ms = map(int, numbers)
            terms = Terms(invisible_ms, Again[again], client)
        except (ValueError, KeyError):
            return None
        return cls(taken_ms, until_ms, deliveries, terms)


class LeasedQueue:
    """How far a group has taken one queue."""

    __slots__ = ("again", "committed", "deliveries", "is_sorted", "position", "skipped", "taken")

    def __init__(self, position: int, committed: int, skipped: set[int]) -> None:
        """Create it at the first offset to take; `committed` is -1 without an offset of the group."""
        self.position = position
        self.committed = committed
        self.skipped = skipped  # offsets from there on that were acknowledged or in hand before this server began
        self.taken: dict[int, Lease] = {}  # by queue offset
        self.is_sorted = True  # it is ascending: no message came again or was in hand before
        self.again: list[int] = []  # queue offsets, ascending, of messages that come again in order
        self.deliveries: dict[int, int] = {}  # earlier deliveries of those

    @property
    def done_before(self) -> int:
        """Offset of the first message that is not acknowledged; that of the next one if all are."""
        firsts = [*self.again[:1], *(list(self.taken)[:1] if self.is_sorted else [min(self.taken)] if self.taken else [])]
        return min(firsts, default=self.position)


class Leases:
    """What all groups have in hand.  Every call is made by the loop's thread."""

    def __init__(self, store: MessageStore) -> None:
        """Create it without messages in hand."""
        self._store = store
        self._engine = store.engine
        self._queues: dict[QueueKey, LeasedQueue] = {}
        self._ends: list[tuple[float, QueueKey, int]] = []  # a heap of times at which messages may expire
        self._count = 0
        self._turn = 0
        self.is_present: Callable[[str], bool] = lambda _client: False

    @property
    def is_full(self) -> bool:
        """Whether no message can be taken until one is acknowledged."""
        return self._count >= TAKEN_MAX

    def turn(self) -> int:
        """Return the number of this request, which decides the queue that comes first."""
        self._turn += 1
        return self._turn

    def queue(self, key: QueueKey, *, at_end: bool = False) -> LeasedQueue | None:
        """Return how far a group is in a queue; None if there are too many."""
        queue, (topic, group, queue_id) = self._queues.get(key), key
        offsets = self._engine.consumer_offsets()
        known = offsets.get(topic, group, queue_id)
        committed = NO_OFFSET if known is None else known
        if queue is not None and queue.committed != committed:  # it was reset, or the group was deleted
            self._count -= len(queue.taken)
            del self._queues[key]
            queue = None
        if queue is None and len(self._queues) < QUEUES_MAX:
            low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            if known is None:
                known = high if at_end else low
            position = min(max(known, low, 0), max(high, 0))
            skipped = {offset for offset in offsets.done(topic, group, queue_id) if offset >= position}
            queue = self._queues[key] = LeasedQueue(position, committed, skipped)
            self._restore(key, queue, offsets.taken(topic, group, queue_id))
        return queue

    def _restore(self, key: QueueKey, queue: LeasedQueue, leases: dict[int, bytes]) -> None:
        """Take what was in hand when the last server ended; what was renewed has a minute, to be acknowledged.

        It is not renewed any longer: the answer with the message may never have reached the client, which is there again.
        """
        topic, _, queue_id = key
        now_ms, now_s = self._engine.now_ms(), time.monotonic()
        for offset, text in leases.items():
            page = self._store.get(topic, queue_id, offset, 1)
            kept = _KeptLease.read(text)
            if kept is None or not page.messages or page.messages[0].queue_offset != offset:
                continue
            left_ms = RENEW_S * 1000 if kept.terms.client else min(kept.until_ms - now_ms, kept.terms.invisible_ms)
            until_s = now_s + left_ms / 1000
            lease = Lease(page.messages[0].physical_offset, kept.taken_ms, until_s, kept.terms, 0.0)
            queue.taken[offset] = lease
            queue.skipped.add(offset)
            queue.is_sorted = False
            if kept.deliveries:
                queue.deliveries[offset] = kept.deliveries
            self._count += 1
            heapq.heappush(self._ends, (until_s, key, offset))

    def forget(self, topic: str, group: str) -> None:
        """Let a group begin again at its committed offsets; handles of messages that it has taken name none any longer."""
        for key in [key for key in self._queues if key[:2] == (topic, group)]:
            taken = self._queues.pop(key).taken
            self._count -= len(taken)
            self._engine.consumer_offsets().give_back(*key, taken)

    def has_more(self, key: QueueKey) -> bool:
        """Return whether a take could find something."""
        queue = self._queues.get(key)
        if queue is None:
            return True
        if queue.again:
            return not queue.taken
        return queue.position < self._store.max_offset(key[0], key[2])

    def take(
        self, key: QueueKey, queue: LeasedQueue, count: int, size: int, chosen: Filter, now_ms: int, terms: Terms
    ) -> Page:  # fmt: skip
        """Take the next messages of a queue; in order, none before those that were taken are done."""
        if terms.again is Again.IN_ORDER and (queue.taken or queue.again):
            page = self._take_again(key, queue, count)
        else:
            page = self._read(key, queue, count, size, chosen)
        for message in page.messages:
            self._lease(key, message.queue_offset, message.physical_offset, now_ms, terms)
        if page.messages:
            if queue.committed == NO_OFFSET:  # else a group that begins at the end would skip these after a restart
                self._commit(key, queue)
            self._record(key, queue, [message.queue_offset for message in page.messages])
        return page

    def _take_again(self, key: QueueKey, queue: LeasedQueue, count: int) -> Page:
        """Return the messages that come again in order; none while others of them are in hand."""
        topic, _, queue_id = key
        messages: list[StoredMessage] = []
        while queue.again and not queue.taken and len(messages) < count:
            page = self._store.get(topic, queue_id, queue.again[0], 1)
            offset = queue.again.pop(0)
            if page.messages and page.messages[0].queue_offset == offset:
                messages.append(page.messages[0])
            else:  # retention deleted it
                queue.deliveries.pop(offset, None)
        end = self._store.max_offset(topic, queue_id)
        status = GetStatus.FOUND if messages else GetStatus.NO_MATCHED_MESSAGE
        return Page(status, queue.position, 0, end, messages, sum(message.size for message in messages))

    def _read(self, key: QueueKey, queue: LeasedQueue, count: int, size: int, chosen: Filter) -> Page:
        """Return the next messages of a queue, and move behind them."""
        topic, _, queue_id = key
        for _ in range(MOVES_MAX):
            page = chosen.read(self._store, topic, queue_id, queue.position, count, size)
            has_moved = page.status is not GetStatus.NO_MESSAGE_IN_QUEUE and page.next_offset != queue.position
            if has_moved:
                queue.position = page.next_offset
            if queue.skipped:
                left = [message for message in page.messages if message.queue_offset not in queue.skipped]
                page = replace(page, messages=left, size_bytes=sum(message.size for message in left))
                queue.skipped = {offset for offset in queue.skipped if offset >= queue.position}
            if page.messages or not has_moved:
                break
        if not page.messages and not queue.taken:
            self._commit(key, queue)
        return page

    def find(self, key: QueueKey, offset: int, taken_ms: int) -> Lease | None:
        """Return the lease that a handle names, or None if the message is not taken with it any longer."""
        queue = self._queues.get(key)
        if queue is None and self._engine.consumer_offsets().taken(*key):  # from before a restart
            queue = self.queue(key)
        lease = queue.taken.get(offset) if queue is not None else None
        return lease if lease is not None and lease.taken_ms == taken_ms else None

    def deliveries(self, key: QueueKey, offset: int) -> int:
        """Return how often a message came from its own queue before."""
        return self._queues[key].deliveries.get(offset, 0)

    def change_time(self, key: QueueKey, offset: int, lease: Lease, invisible_ms: int) -> int:
        """Give a message another time from now on, which is not renewed; return the time of taking of its new handle."""
        now_ms = max(self._engine.now_ms(), lease.taken_ms + 1)  # the handle differs from the one before
        self._lease(key, offset, lease.physical_offset, now_ms, lease.terms._replace(invisible_ms=invisible_ms, client=""))
        self._record(key, self._queues[key], [offset])
        return now_ms

    def end_renewal(self, key: QueueKey, offset: int, taken_ms: int) -> None:
        """Let a message come again after its time, whoever is there: the answer with it did not reach the client."""
        lease = self.find(key, offset, taken_ms)
        if lease is not None:
            self._queues[key].taken[offset] = lease._replace(renewed_until_s=0.0)

    def done(self, key: QueueKey, offset: int) -> None:
        """Acknowledge a message that is in hand."""
        queue = self._queues[key]
        del queue.taken[offset]
        queue.deliveries.pop(offset, None)
        queue.is_sorted = queue.is_sorted or not (queue.taken or queue.again or queue.skipped)
        self._count -= 1
        self._commit(key, queue)
        if offset > queue.done_before:
            topic, group, queue_id = key
            self._engine.consumer_offsets().add_done(topic, group, queue_id, offset)

    def drop_idle(self, groups: Container[str]) -> None:
        """Forget queues of groups without clients.  Messages keep their time."""
        for key, queue in list(self._queues.items()):
            if not queue.taken and not queue.again and key[1] not in groups:
                del self._queues[key]

    def expire(self, now_s: float) -> None:
        """Let messages come again whose time is over."""
        for _ in range(EXPIRED_MAX):
            if not self._ends or self._ends[0][0] > now_s:
                return
            until_s, key, offset = heapq.heappop(self._ends)
            queue = self._queues.get(key)
            lease = queue.taken.get(offset) if queue is not None else None
            if queue is None or lease is None or lease.until_s != until_s:  # acknowledged, or its time was changed
                continue
            if now_s < lease.renewed_until_s and self.is_present(lease.terms.client):
                self._extend(key, queue, offset, now_s + RENEW_S)
                continue
            try:
                self._deliver_again(key, queue, offset, lease)
            except StoreError as error:
                LOG.error("%s-%d, offset %d is not sent back to group %s yet: %s", key[0], key[2], offset, key[1], error)
                self._extend(key, queue, offset, now_s + REPEAT_S)

    def _deliver_again(self, key: QueueKey, queue: LeasedQueue, offset: int, lease: Lease) -> None:
        topic, group, _ = key
        message, retries = self._store.message_at(lease.physical_offset), self._engine.retries
        if message is None:
            self.done(key, offset)
            return
        if lease.terms.again is Again.IN_ORDER:
            earlier = queue.deliveries.get(offset, 0) + 1
            if message.reconsume_times + earlier <= retries.group(group).retry_max_times:
                del queue.taken[offset]
                self._count -= 1
                queue.deliveries[offset] = earlier
                queue.is_sorted = False
                bisect.insort(queue.again, offset)
                self._engine.consumer_offsets().give_back(topic, group, key[2], [offset])
                return
            retries.send_back(message, group, DEAD)
        elif lease.terms.again is Again.POP_RETRY:
            retries.send_back(message, group, None, topic=pop_retry_topic(topic, group))
        else:
            retries.send_back(message, group, RETRY_LEVEL)
        self.done(key, offset)

    def _extend(self, key: QueueKey, queue: LeasedQueue, offset: int, until_s: float) -> None:
        queue.taken[offset] = queue.taken[offset]._replace(until_s=until_s)
        heapq.heappush(self._ends, (until_s, key, offset))

    def _lease(self, key: QueueKey, offset: int, physical_offset: int, now_ms: int, terms: Terms) -> None:
        """Give a message to a consumer for a time, or change the time of one that is taken."""
        queue, now_s = self._queues[key], time.monotonic()
        until_s = now_s + (RENEW_S if terms.client else terms.invisible_ms / 1000)
        self._count += offset not in queue.taken
        queue.taken[offset] = Lease(physical_offset, now_ms, until_s, terms, now_s + RENEWALS_S if terms.client else 0.0)
        heapq.heappush(self._ends, (until_s, key, offset))
        if len(self._ends) > 2 * TAKEN_MAX:  # times that were changed or are acknowledged
            self._ends = [
                (lease.until_s, key, offset) for key, queue in self._queues.items() for offset, lease in queue.taken.items()
            ]
            heapq.heapify(self._ends)

    def _record(self, key: QueueKey, queue: LeasedQueue, offsets: list[int]) -> None:
        """Let leases outlive this server."""
        now_ms, now_s = self._engine.now_ms(), time.monotonic()
        leases = {}
        for offset in offsets:
            lease = queue.taken[offset]
            until_ms = now_ms + int(1000 * (lease.until_s - now_s))
            deliveries = queue.deliveries.get(offset, 0)
            leases[offset] = _KeptLease(lease.taken_ms, until_ms, deliveries, lease.terms).text()
        self._engine.consumer_offsets().add_taken(*key, leases)

    def _commit(self, key: QueueKey, queue: LeasedQueue) -> None:
        """Commit the offset of the first message that is taken, or of the next one."""
        done_before = queue.done_before
        if done_before != queue.committed:
            topic, group, queue_id = key
            self._engine.consumer_offsets().commit(topic, group, queue_id, done_before)
            queue.committed = done_before


def pop_retry_topic(topic: str, group: str) -> str:
    """Return the topic in which a broker keeps what POP consumers of a group did not acknowledge in time.

    >>> pop_retry_topic("orders", "billing"), pop_retry_topic("%RETRY%billing_orders", "billing")
    ('%RETRY%billing_orders', '%RETRY%billing_orders')
    """
    return topic if topic.startswith(RETRY_PREFIX) else f"{RETRY_PREFIX}{group}_{topic}"
