"""Consumers of other processes, as the owner has them: each is a `Consumer` of the owner's store.

The owner divides queues, hands out messages by their physical offsets, and counts what is acknowledged. Retries, dead letters
and tags therefore work as in one process. A consumer lives as long as its connection, so a killed process loses its queues.

After a takeover the consumers of living processes open again, and claim what they have. The new owner only collects claims
until all of them are back (`presence.py`), for GRACE_S at most. No queue is therefore given to another process before the one
that has its messages comes back. Consumers then join in the order in which they were first opened, which keeps the division as
it was.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NamedTuple

from commitlog import Message, PutResult, PutStatus
from commitlog.layout import TRANSACTION_MASK
from commitlog.topic_names import RETRY_PREFIX
from consumequeue import Boundary
from storageio import InvalidMessage, StoreError
from storageio.background import Wakeup

from ..read.consumer import Consumer
from ..read.delivery_rules import MS_MAX
from ..store import MessageStore
from .answers import pack_value
from .presence import is_present, present
from .protocol import HANDED_ROW, Frame, Operation, pack_frame, parse_frame

GRACE_S = 2.0
POLL_S = 0.02  # how often a new owner looks whether a process that it waits for still lives
HAND_OVER_S = 60.0
POLL_MAX = 1024  # messages of one answer
NOTHING: list[Any] = [[], None, None]  # the answer to a poll that ended without messages
AT_LOCATION: dict[str, Callable[..., Any]] = {
    "ack": Consumer.ack_at,
    "extend": Consumer.extend_at,
    "give_back": Consumer.give_back,
}


class QueueClaim(NamedTuple):
    """What a consumer had of one queue at the owner before."""

    topic: str
    queue_id: int
    position: int  # the queue offset that is handed out next
    held: list[int]  # queue offsets that were handed out and not acknowledged
    done_before: int  # every message before it is acknowledged; -1 after a seek
    is_exact: bool  # the position was chosen by a seek, so it may be before the committed offset
    deadlines_ms: list[int] | None = None  # when the delivery of each held message ends


class GroupOpening(NamedTuple):
    """The arguments of `MessageStore.consumer`, and since when the consumer exists."""

    topic: str
    group: str
    queues: list[int] | None
    tags: list[str] | None
    start: str
    missing_topic: str
    opened_ns: int  # of the clock that all processes of a machine share
    visibility_s: float | None = None
    max_deliveries: int | None = None


class Origin(NamedTuple):
    """Where a request came from: the process, and the connection."""

    client_id: str
    session: object


class Session(ABC):
    """A connection at which a parked poll is answered."""

    @abstractmethod
    def answer(self, data: bytes) -> None:
        """Send the frame; ignore that the other side ended."""


class Parked(Exception):
    """The request is answered later, or by the answer to another one."""


class _Parked(NamedTuple):
    """A poll that waits for messages. No thread waits with it."""

    consumer: Consumer
    max_count: int
    session: Session


class OwnPolls(Session):
    """The polls of a consumer in the owner's process, one at a time.

    A poll that was interrupted stays parked, so the next call gets what was handed to it.
    """

    def __init__(self) -> None:
        """Begin without a poll."""
        self.is_parked = False
        self._answer = b""
        self._answered = Wakeup()

    def answer(self, data: bytes) -> None:
        """Wake the thread that waits."""
        self._answer = data
        self._answered.set()

    def wait(self, groups: Groups, consumer_id: str, max_count: int, timeout_s: float) -> Frame:
        """Poll, and wait for the answer; cancel the poll after the time-out."""
        if not self.is_parked:
            try:
                return parse_frame(pack_value(groups.poll(consumer_id, max_count, True, Origin("", self))))
            except Parked:
                self.is_parked = True
        if not (self._answered.wait(timeout_s) and self._answer):
            with suppress(Parked):
                groups.cancel(consumer_id)
            while not self._answer:
                self._answered.wait(None)
            self._answered.wait(0)  # the flag may still be set, and would end the next wait
        self.is_parked = False
        answer, self._answer = self._answer, b""
        return parse_frame(answer)

    def interrupt(self) -> None:
        """End the wait of another thread, or the one that a signal handler interrupted. Takes no lock."""
        self._answered.set()


class Groups:
    """The consumers that an owner has for other processes and for itself."""

    def __init__(self, store: MessageStore, client_id: str = "", own_ids: Collection[str] = ()) -> None:
        """Begin the time in which claims are collected; `own_ids` are the consumers of this process."""
        self._store = store
        engine = self._engine = store.engine
        engine.sharing.hand_over_s = HAND_OVER_S
        self._consumers: dict[str, tuple[Consumer, Origin]] = {}
        self._waiting: list[int] = []  # opening times of consumers that will join when the grace ends
        self._claiming = 0  # consumers whose claims are not dealt with yet
        self._own_folder = engine.paths.own
        self._grace_ends = time.monotonic() + GRACE_S
        self._expected_clients = present(self._own_folder) - {client_id}
        self._expected = dict.fromkeys(own_ids, client_id)  # consumers that will open again, and their processes
        self._changed = threading.Condition()
        self._parked: dict[str, _Parked] = {}
        self._parked_guard = threading.Lock()
        self._dispatcher = engine.dispatcher
        self._dispatcher.on_progress.append(self.serve)

    def open(self, consumer_id: str, opening: GroupOpening, claims: list[QueueClaim], origin: Origin) -> Consumer:
        """Open a consumer, or open it again with what it had."""
        if claims:  # positions may be behind messages that were handed out before they were dispatched
            self._engine.settle()
        for claim in claims:
            self._commit(opening.group, claim)
        with self._changed:
            self._claiming += 1
        try:
            consumer = self._join(consumer_id, opening, origin)
            self.close(consumer_id)
            with self._changed:
                self._consumers[consumer_id] = consumer, origin
            for claim in claims:
                self._resume(consumer, opening.group, claim)
        finally:
            self._end_claims()
        self.serve()  # the others may have fewer queues now
        return consumer

    def _join(self, consumer_id: str, opening: GroupOpening, origin: Origin) -> Consumer:
        self._wait_for_turn(consumer_id, opening.opened_ns)
        tags = None if opening.tags is None else set(opening.tags)
        try:
            found = self._store.consumer(
                opening.topic, group=opening.group, queues=opening.queues, tags=tags, start=opening.start,
                missing_topic=opening.missing_topic, visibility_s=opening.visibility_s, max_deliveries=opening.max_deliveries,
            )  # fmt: skip
            if origin.session is not None and opening.visibility_s is None:
                found.lend()
            return found
        finally:
            self._end_turn(opening.opened_ns)

    def expect(self, client_id: str, consumer_ids: list[str]) -> None:
        """Wait for these consumers of a process, which will open again."""
        with self._changed:
            self._expected.update(dict.fromkeys(consumer_ids, client_id))
            self._expected_clients.discard(client_id)
            self._changed.notify_all()

    def _is_grace_over(self) -> bool:
        """Return whether every consumer that the owner before had is back, or its process ended."""
        if time.monotonic() >= self._grace_ends:
            return True
        for client_id in {*self._expected_clients, *self._expected.values()}:
            if not is_present(self._own_folder, client_id):
                self._expected_clients.discard(client_id)
                self._expected = {name: client for name, client in self._expected.items() if client != client_id}
        return not self._expected_clients and not self._expected

    def _wait_for_turn(self, consumer_id: str, opened_ns: int) -> None:
        """Wait for the end of the grace, and then for those that were opened earlier."""
        with self._changed:
            self._expected.pop(consumer_id, None)
            self._waiting.append(opened_ns)
            self._changed.notify_all()
            while not self._is_grace_over():
                self._changed.wait(POLL_S)
            while min(self._waiting) < opened_ns:
                self._changed.wait()

    def _end_turn(self, opened_ns: int) -> None:
        """Let the next one join; return when all have, since each changes the division."""
        with self._changed:
            self._waiting.remove(opened_ns)
            self._changed.notify_all()
            deadline = time.monotonic() + GRACE_S
            while self._waiting and (left_s := deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)

    def _end_claims(self) -> None:
        """Return when the claims of all consumers that join now are dealt with, so that none is given what another holds."""
        with self._changed:
            self._claiming -= 1
            self._changed.notify_all()
            deadline = time.monotonic() + GRACE_S
            while self._claiming and (left_s := deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)

    def _commit(self, group: str, claim: QueueClaim) -> None:
        """Move the group's offset forward: what was acknowledged stays so. Offsets of retry topics are counted elsewhere."""
        if claim.topic.startswith(RETRY_PREFIX) or claim.done_before < 0:
            return
        offsets = self._engine.consumer_offsets()
        known = offsets.get(claim.topic, group, claim.queue_id)
        if known is None or known < claim.done_before:
            offsets.commit(claim.topic, group, claim.queue_id, claim.done_before)

    def _resume(self, consumer: Consumer, group: str, claim: QueueClaim) -> None:
        position, held = claim.position, dict(zip(claim.held, claim.deadlines_ms or [MS_MAX] * len(claim.held), strict=True))
        if not claim.is_exact and not claim.topic.startswith(RETRY_PREFIX):
            low = self._engine.consumer_offsets().get(claim.topic, group, claim.queue_id) or 0
            position, held = max(position, low), {offset: end for offset, end in held.items() if offset >= low}
        consumer.resume(claim.topic, claim.queue_id, position, list(held), list(held.values()))

    def find(self, consumer_id: str) -> Consumer | None:
        """Return a consumer; None if it has to be opened again."""
        with self._changed:
            found = self._consumers.get(consumer_id)
        return found[0] if found is not None else None

    def workers(self) -> list[list[Any]]:
        """Return topic, group, queue ids, number of unacknowledged messages and process id of each consumer."""
        with self._changed:
            listed = list(self._consumers.values())
        return [
            [consumer.topic, consumer.group, *consumer.in_use(), int(origin.client_id.partition("-")[0] or 0)]
            for consumer, origin in listed
        ]

    # Polls

    def poll(self, consumer_id: str, max_count: int, waits: bool, origin: Origin) -> list[Any] | None:
        """Return the fields of `Taken`; None for an unknown consumer.

        A poll that waits and finds nothing raises `Parked`. It is answered when there are messages: by the thread that puts
        the next one (`offer`), or by the dispatcher (`serve`). `cancel` answers it with what there is, and the end of the
        consumer with nothing.
        """
        consumer = self.find(consumer_id)
        if consumer is None:
            return None
        found = consumer.take(min(max_count, POLL_MAX))
        if not found.physical_offsets and not waits:
            self._engine.settle()
            found = consumer.take(min(max_count, POLL_MAX))
        if found.physical_offsets or not waits:
            return list(found)
        assert isinstance(origin.session, Session)
        parked = _Parked(consumer, min(max_count, POLL_MAX), origin.session)
        with self._parked_guard:
            self._parked[consumer_id] = parked
        self._serve_one(consumer_id, parked)  # what was dispatched before it was parked
        if self._dispatcher.position < self._engine.dispatch_limit():
            self._dispatcher.wake()
        raise Parked

    def cancel(self, consumer_id: str) -> None:
        """End a parked poll, unless it is answered already: with what was put before, or without messages.

        Raises `Parked`: this has no answer of its own.
        """
        parked = self._parked.get(consumer_id)
        if parked is not None:
            self._engine.settle()
            self._serve_one(consumer_id, parked)
            self._end_poll(consumer_id)
        raise Parked

    def stop(self, consumer_id: str) -> None:
        """Stop a consumer, and answer its parked poll without messages. Raises `Parked`: this has no answer of its own."""
        consumer = self.find(consumer_id)
        if consumer is not None:
            consumer.stop()
            self._end_poll(consumer_id)
            self.serve()  # the others may have its queues now
            self._engine.progress.notify()
        raise Parked

    def _end_poll(self, consumer_id: str) -> None:
        """Answer a parked poll without messages."""
        with self._parked_guard:
            parked = self._parked.pop(consumer_id, None)
        if parked is not None:
            parked.session.answer(pack_value(NOTHING))

    def offer(self, puts: list[tuple[Message, PutResult]]) -> None:
        """Hand messages that were put a moment ago to polls that wait for them; leave others to the dispatcher.

        The thread that puts does this itself, because a switch to the dispatcher's thread takes longer than all of it.
        """
        if not self._parked:
            return
        plain = [(message.topic, result) for message, result in puts if self._is_plain(message, result)]
        handed = sum(self._offer_to(consumer_id, parked, plain) for consumer_id, parked in list(self._parked.items()))
        if handed < len(puts):
            self._dispatcher.wake()

    @property
    def is_awaited(self) -> bool:
        """Whether a poll waits for messages."""
        return bool(self._parked)

    def expect_dispatch(self) -> None:
        """Let the dispatcher answer polls that wait soon: messages were put that `offer` was not called for."""
        if self._parked:
            self._dispatcher.wake()

    def _is_plain(self, message: Message, result: PutResult) -> bool:
        """Return whether the message is the one of its result's queue offset: in its own topic, and alone."""
        is_prepared = message.sys_flag & TRANSACTION_MASK
        return result.status is PutStatus.PUT_OK and not is_prepared and not self._engine.routing.is_special(message)

    def _offer_to(self, consumer_id: str, parked: _Parked, puts: list[tuple[str, PutResult]]) -> int:
        """Hand messages to one poll; return how many."""
        topic = parked.consumer.topic
        rows: list[bytes] = []
        with self._parked_guard:
            if self._parked.get(consumer_id) is not parked:
                return 0
            for put_topic, result in puts:
                turn = parked.consumer.take_put(result) if put_topic == topic and len(rows) < parked.max_count else -1
                if turn >= 0:
                    rows.append(HANDED_ROW.pack(result.physical_offset, turn))
            if rows:
                del self._parked[consumer_id]
        if rows:
            parked.session.answer(pack_frame(Operation.HANDED, b"".join(rows)))
        return len(rows)

    def serve(self) -> None:
        """Answer the parked polls for which there are messages. The caller holds no lock that a consumer wants."""
        for consumer_id, parked in list(self._parked.items()):
            self._serve_one(consumer_id, parked)

    def _serve_one(self, consumer_id: str, parked: _Parked) -> None:
        with self._parked_guard:
            if self._parked.get(consumer_id) is not parked:
                return
            try:
                found = parked.consumer.take(parked.max_count, waits=False)
                if not found.physical_offsets:
                    return
                answer: list[Any] = list(found)
            except StoreError:  # the next poll raises it
                answer = NOTHING
            del self._parked[consumer_id]
        parked.session.answer(pack_value(answer))

    def call(self, consumer_id: str, name: str, *arguments: Any) -> list[Any] | None:
        """Return what a method of a consumer returns, in a list; None for an unknown consumer."""
        if name == "close":
            self.close(consumer_id)
            return [None]
        consumer = self.find(consumer_id)
        if consumer is None:
            return None
        try:
            return [_called(consumer, name, arguments)]
        finally:
            self.after_use(consumer_id)

    def after_use(self, consumer_id: str) -> None:
        """Answer a poll that `serve` passed over while the consumer was used, and hand queues over."""
        parked = self._parked.get(consumer_id)
        if parked is not None:
            self._serve_one(consumer_id, parked)
        self.hand_over()

    def hand_over(self) -> None:
        """Let consumers that wait for a queue of another one look whether it is free now."""
        if self._engine.sharing.is_waited_for:
            self.serve()
            self._engine.progress.notify()

    def nack(self, consumer_id: str, physical_offset: int, delay_level: int) -> list[PutResult | None] | None:
        """Send a message back; None for an unknown consumer."""
        consumer, message = self.find(consumer_id), self._store.message_at(physical_offset)
        if consumer is None:
            return None
        try:
            return [consumer.nack(message, delay_level=delay_level) if message is not None else None]
        finally:
            self.after_use(consumer_id)

    def close(self, consumer_id: str, *, is_lost: bool = False) -> None:
        """Close a consumer; ignore an unknown id. With `is_lost` its process ended, and had what it had in hand."""
        with self._changed:
            found = self._consumers.pop(consumer_id, None)
            self._expected.pop(consumer_id, None)
        self._end_poll(consumer_id)
        if found is not None:
            if is_lost:
                found[0].abandon()
            else:
                found[0].close()
            self.serve()  # the others may have its queues now

    def end_session(self, session: object) -> None:
        """Close the consumers that were opened on a connection that ended."""
        self._close_where(lambda origin: origin.session is session, is_lost=True)

    def end_client(self, client_id: str) -> None:
        """Close the consumers of a process that ended."""
        self._close_where(lambda origin: origin.client_id == client_id, is_lost=True)

    def end(self) -> None:
        """Close all consumers of all sessions."""
        self._close_where(lambda _: True)

    def _close_where(self, is_meant: Callable[[Origin], bool], *, is_lost: bool = False) -> None:
        with self._changed:
            ids = [name for name, (_, origin) in self._consumers.items() if is_meant(origin)]
        for consumer_id in ids:
            self.close(consumer_id, is_lost=is_lost)


def _called(consumer: Consumer, name: str, arguments: tuple[Any, ...]) -> Any:
    """Return what a method of a consumer returns."""
    if name in AT_LOCATION:
        return AT_LOCATION[name](consumer, *arguments)
    if name == "commit":
        return consumer.commit(sync=any(arguments))  # an older client sends none
    if name == "seek_to_time":
        return consumer.seek_to_time(arguments[0], Boundary[arguments[1]])
    if name == "queues":
        return consumer.queues
    if name not in ("lag", "position", "seek"):
        raise InvalidMessage(f"a consumer has no method {name!r}")
    return getattr(consumer, name)(*arguments)
