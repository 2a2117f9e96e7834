"""The queues of a topic that one consumer of a group reads: which they are, where each begins, and what was fetched."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from commitlog import StoredMessage, any_has
from consumequeue import Queue
from storageio import StoreClosed, StoreRewound

from ..property_names import TTL_MS
from .delivery_rules import MS_MAX
from .polled import FETCH_COUNT, Polled
from .queue_reader import GetStatus, QueueReader

if TYPE_CHECKING:
    from ..broker.config.ack_file import QueueLease
    from ..parts import StoreParts

FETCH_BYTES_MAX = 1 << 20
HAS_TTL = TTL_MS.encode() + b"\x01"
DISCOVER_S = 1.0  # interval at which a reader lists new queues


class QueueState:
    """The state of one queue that is assigned to a consumer."""

    def __init__(self, position: int, turn: int = 0) -> None:
        """Set the queue offset of the next message, and the queue's turn."""
        self.turn = turn
        self.position = position
        self.fetch_at = position
        self.ready_at = 0  # physical offset: messages before `fetch_at` were handed out before they were dispatched up to there
        self.fetched: deque[StoredMessage] = deque()
        self.has_ttl = False  # whether one of them may expire
        self.pending: OrderedDict[int, int] = OrderedDict()  # delivered, not acknowledged; when the delivery ends, in ms
        self.done: set[int] = set()  # acknowledged before an earlier one, by a consumer before this
        self.committed = -1
        self.is_committing = False
        self.lease: QueueLease | None = None  # of the process that has the consumer, if that is another one

    @property
    def done_before(self) -> int:
        """The queue offset before which every message is acknowledged."""
        return next(iter(self.pending), self.position)

    def in_time(self, now_ms: int) -> list[int]:
        """Return the queue offsets of the messages in hand whose deliveries are not over."""
        return [offset for offset, end_ms in self.pending.items() if end_ms > now_ms]

    @contextlib.contextmanager
    def committing(self) -> Iterator[None]:
        """Keep the queue with its consumer until an acknowledgement is committed, so that the next one starts behind it."""
        self.is_committing = True
        try:
            yield
        finally:
            self.is_committing = False

    def hand_out(self, deadline_ms: int) -> StoredMessage:
        """Return the next fetched message and mark it as pending."""
        message = self.fetched.popleft()
        self.pending[message.queue_offset] = deadline_ms
        self.position = self.fetched[0].queue_offset if self.fetched else self.fetch_at  # a record may hold many messages
        return message


class AssignedQueues(Polled):
    """The queues that are assigned to one consumer, which divides them with the others of its group."""

    def __init__(
        self, parts: StoreParts, reader: QueueReader, topic: str, group: str, queues: list[int] | None, tags: set[str] | None,
        timeout_s: float | None, start: str,
    ) -> None:  # fmt: skip
        """Create it without queues; `queues` are the only ones, if any are given."""
        super().__init__(timeout_s)
        self.topic = topic
        self.group = group
        self._parts = parts
        self._reader = reader
        self._offsets = parts.consumer_offsets()
        self._fixed = None if queues is None else sorted(set(queues))
        self._tags = tags
        self._start = start
        self._lock = threading.RLock()
        self._states: dict[int, QueueState] = {}
        self._turn = 0
        self._mine: dict[int, int] = {}  # assigned queue ids, each with its turn
        self._divided: tuple[int, list[int] | None] = (-1, None)  # what `_mine` follows from
        self._restarts = 0
        self._has_priorities = False  # of the topic, since the queues were assigned last
        self._is_lent = False  # whether another process has the consumer, and takes and acknowledges messages itself
        self._discovered_at = -DISCOVER_S

    @property
    def _shared_name(self) -> str:
        """The name under which the consumers of a group share queues."""
        return self.topic

    # Iterating

    @property
    def keeps_held(self) -> bool:
        """Whether a queue stays with this consumer until its messages are acknowledged."""
        return False

    def _lost_queues(self) -> set[int]:
        """Return queues that another consumer took."""
        if self._fixed is not None:
            return set()
        turn_of = self._parts.sharing.turn_of
        return {
            queue_id
            for queue_id, state in self._states.items()
            if turn_of(self._shared_name, self.group, queue_id, self) != state.turn
        }

    def _check(self) -> None:
        if self.is_closed:
            raise StoreClosed("the consumer is closed")
        self._parts.check_open()
        if self._parts.writable and self._parts.dispatcher.failure is not None:
            raise self._parts.dispatcher.failure

    def _fetch(self, queue_id: int, state: QueueState) -> None:
        """Fetch messages, unless the queue is at its end."""
        if state.ready_at and state.ready_at > self._parts.dispatcher.position:
            return
        while not state.fetched and not self.is_closed:
            before = state.fetch_at
            page = self._reader.page(self.topic, queue_id, before, FETCH_COUNT, FETCH_BYTES_MAX, self._tags)
            if before > page.max_offset and not self._parts.writable:
                raise StoreRewound(f"{self.topic}-{queue_id} ends at {page.max_offset}, and was read up to {before}")
            state.fetched.extend(self._selected(page.messages, state))
            state.has_ttl = any_has(page.messages, HAS_TTL)
            state.fetch_at = page.next_offset
            if not state.fetched:
                state.position = page.next_offset
            if page.next_offset == before or page.status is GetStatus.NO_MESSAGE_IN_QUEUE:
                return

    def _selected(self, messages: list[StoredMessage], state: QueueState) -> list[StoredMessage]:
        """Return the messages to deliver: all but fillers, which the page leaves out, and what is acknowledged already."""
        return [message for message in messages if message.queue_offset not in state.done] if state.done else messages

    # Queues

    def lend(self) -> None:
        """Let the process that has the consumer take and acknowledge messages without a request, where it can."""
        self._is_lent = True

    def _lent(self, queue_id: int, state: QueueState) -> tuple[int, int] | tuple[()]:
        """Return id and place of the lease of a queue; nothing without one."""
        if not self._is_lent or queue_id not in self._mine:
            return ()
        if state.lease is None:
            state.lease = self._offsets.lease(self.topic, self.group, queue_id, state.done_before, state.position)
        return () if state.lease is None else (state.lease.id, state.lease.at)

    def _take_lent(self) -> None:
        """Take what the other process did since the last call."""
        if self._is_lent:
            self._offsets.take_leased()
            for queue_id, state in self._states.items():
                if state.lease is not None:
                    self._apply(queue_id, state, state.lease)

    def _end_leases(self) -> None:
        """Take what the other process did, and let it ask from now on."""
        for queue_id, state in self._states.items() if self._is_lent else ():
            self._end_lease(queue_id, state)

    def _end_lease(self, queue_id: int, state: QueueState) -> None:
        if state.lease is not None:
            self._offsets.end_lease(state.lease)
            self._apply(queue_id, state, state.lease)
            state.lease = None

    def _apply(self, queue_id: int, state: QueueState, lease: QueueLease) -> None:
        while state.fetched and state.fetched[0].queue_offset < lease.position:
            state.hand_out(MS_MAX)
        is_done = False
        while state.pending and (first := next(iter(state.pending))) < lease.next_offset:
            del state.pending[first]
            is_done = True
        if is_done:
            self._commit(queue_id, state)
        if not lease.is_open:  # the file was written again
            state.lease = None

    @abstractmethod
    def _commit(self, queue_id: int, state: QueueState) -> None:
        """Move the group's offset to the first message that is not acknowledged."""

    def _assign(self) -> None:
        """Drop queues that others have now, and start those that were assigned; one that went and came back starts anew."""
        self._take_lent()
        if self._fixed is not None:
            mine = dict.fromkeys(self._fixed, self._restarts)
        else:
            sharing, queue_ids = self._parts.sharing, self._discover()
            divided = sharing.changes, queue_ids  # before the division, which another thread may change meanwhile
            if divided == self._divided:
                return
            mine = sharing.share(self._shared_name, self.group, self, queue_ids)
            self._divided = divided
        known = self._parts.current_topics().get(self.topic)
        self._has_priorities = known is not None and known.has_priorities
        if self._has_priorities:
            mine, self._turn = dict(sorted(mine.items(), reverse=True)), 0
        if mine == self._mine and len(mine) == len(self._states):
            return
        states = self._states
        kept = {queue_id for queue_id, turn in mine.items() if queue_id in states and states[queue_id].turn == turn}
        if self._parts.sharing.hand_over_s or self.keeps_held:
            # Queues that are no longer assigned stay until their messages are acknowledged.
            kept |= {queue_id for queue_id in states.keys() - mine.keys() - self._lost_queues() if states[queue_id].pending}
        for queue_id in states.keys() - kept:
            if (lease := states.pop(queue_id).lease) is not None:
                self._offsets.end_lease(lease)
        for queue_id in mine.keys() - states.keys():
            states[queue_id] = self._first_state(queue_id, mine[queue_id])
        self._mine = mine

    @contextlib.contextmanager
    def restarting(self) -> Iterator[None]:
        """Keep other threads from the consumer during a `with` block that sets offsets; then begin at those offsets.

        Messages in hand are no longer pending: their acknowledgements change nothing.
        """
        with self._lock:
            self._end_leases()
            yield
            self._restarts += 1
            self._states, self._mine = {}, {}
            self._parts.sharing.renew(self._shared_name, self.group)

    def in_use(self) -> tuple[list[int], int]:
        """Return the queues in this consumer's hand, and how many messages it did not acknowledge.  Waits for no lock."""
        if self._lock.acquire(blocking=False):
            self._take_lent()
            self._lock.release()
        states = dict(self._states)
        return sorted(states), sum(len(state.pending) for state in states.values())

    def holds(self, queue_id: int) -> bool:
        """Return whether messages of a queue are delivered and not acknowledged.  Waits for no lock.

        Another process that has the consumer takes no further ones without a request.
        """
        state = self._states.get(queue_id)
        if state is not None and state.lease is not None:
            self._offsets.end_lease(state.lease)
            if not self._lock.acquire(blocking=False):
                return True
            self._end_lease(queue_id, state)
            self._lock.release()
        return state is not None and (bool(state.pending) or state.is_committing)

    def _discover(self) -> list[int] | None:
        """Return the topic's queues; a reader lists them once a second, and in between this returns None."""
        now = time.monotonic()
        if self._parts.view is not None:
            if now - self._discovered_at < DISCOVER_S:
                return None
            self._discovered_at = now
        return self._list_queues()

    def _list_queues(self) -> list[int]:
        """Return the topic's queues: known in the writing process, listed from the folders in a reader."""
        return self._parts.lookup.queue_ids(self.topic)

    def _queue(self, queue_id: int) -> Queue | None:
        """Return an ordinary or a batch queue, or None before its first message."""
        return self._parts.lookup.get(self.topic, queue_id)

    def _bounds(self, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset and the next one; 0 and 0 before the first message."""
        return self._parts.lookup.bounds(self.topic, queue_id)

    def _first_state(self, queue_id: int, turn: int) -> QueueState:
        state = QueueState(self._first_position(queue_id), turn)
        state.done = self._offsets.done(self.topic, self.group, queue_id)
        if state.position > self._bounds(queue_id)[1]:  # acknowledged before it was dispatched
            state.ready_at = self._parts.dispatch_limit()
        return state

    def _first_position(self, queue_id: int) -> int:
        """Return the group's committed offset.

        A group without one starts at the first message, or after the last.
        """
        low, high = self._bounds(queue_id)
        committed = self._offsets.get(self.topic, self.group, queue_id)
        if committed is not None:
            put_next = self._parts.offsets.next_offset(self.topic, queue_id) if self._parts.writable else high
            return min(committed, max(high, put_next))
        if self._start == "first" or self._queue(queue_id) is None:
            return low
        if self._parts.writable:  # so that another consumer of the group starts there too
            self._offsets.commit(self.topic, self.group, queue_id, high)
        return high
