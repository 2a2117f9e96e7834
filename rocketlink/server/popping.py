"""POP: consumers take messages of any queue for a time, and acknowledge each of them.

A message that is not acknowledged in its time goes to the group's retry topic, as one that a consumer sends back. The group's
committed offset of a queue is that of the first message that is still taken. So only offsets and messages outlive the server:
after a restart, here or in a real broker, messages that were taken and not acknowledged come again.
"""

from __future__ import annotations

import heapq
import logging
import time
from typing import NamedTuple

from commitlog.topic_names import RETRY_PREFIX
from messagestore import GetStatus, MessageStore, Page
from storageio import StoreError

from ..remoting.codes import (
    NO_MESSAGE,
    NO_PERMISSION,
    NOT_SUPPORTED,
    POLLING_FULL,
    POLLING_TIMEOUT,
    SUBSCRIPTION_NOT_EXIST,
    SUCCESS,
    SYSTEM_ERROR,
    TOPIC_NOT_EXIST,
)
from ..remoting.frames import Command
from .clients import Clients
from .connections import Connection
from .fields import Refused, WrongField, number
from .pulling import ALL_TAGS, BYTES_MAX, TAG, WAIT_MS_MAX, WAITING_MAX, Filter, message_filter, records

LOG = logging.getLogger(f"brokerstore.{__name__}")
COUNT_MAX = 32  # messages of one answer, as in a broker
INVISIBLE_MS_MAX = 12 * 3_600_000
TAKEN_MAX = 1_000_000  # messages that are taken and not acknowledged, of all groups together
QUEUES_MAX = 100_000  # queues of all groups together
MOVES_MAX = 16  # reads of one queue for one answer: one may only find that the offset has to move
EXPIRED_MAX = 256  # messages that go to retry topics at a time, before other requests are answered
REPEAT_S = 10.0  # after a message could not be stored in the retry topic
RETRY_LEVEL = 1  # the shortest delay level: the message has waited already
ANY_QUEUE = -1
START_AT_END = 1  # `initMode` of a group that begins after the last message
NORMAL_TOPIC = "0"  # a handle's mark for a topic that is no retry topic
HANDLE_PARTS = 7  # start offset, time of taking, invisible time, revive queue, mark, broker, queue id; mostly an offset too

QueueKey = tuple[str, str, int]  # topic, group, queue id


class _Taken(NamedTuple):
    """A message that a consumer has."""

    physical_offset: int
    taken_ms: int  # the handle's; another one is out of date
    until_s: float


class _Queue:
    """How far a group has taken one queue."""

    __slots__ = ("committed", "position", "taken")

    def __init__(self, position: int) -> None:
        self.position = position
        self.committed = -1
        self.taken: dict[int, _Taken] = {}  # by queue offset, ascending


class _Pop(NamedTuple):
    """A request that may wait."""

    connection: Connection
    request: Command
    topic: str
    group: str
    until_s: float


class Popping:
    """Answers the requests of POP consumers.  Every call is made by the loop's thread."""

    def __init__(self, store: MessageStore, clients: Clients) -> None:
        """Create it without taken messages."""
        self._store = store
        self._engine = store.engine
        self._clients = clients
        self._queues: dict[QueueKey, _Queue] = {}
        self._ends: list[tuple[float, QueueKey, int]] = []  # a heap of times at which messages may expire
        self._waiting: list[_Pop] = []
        self._count = 0
        self._turn = 0

    def pop(self, connection: Connection, request: Command) -> Command | None:
        """Answer with messages, or keep the request until there are some."""
        fields = request.fields
        topic, group = fields.get("topic", ""), fields.get("consumerGroup", "")
        wait_s = min(number(fields, "pollTime"), WAIT_MS_MAX) / 1000
        pop = _Pop(connection, request, topic, group, time.monotonic() + wait_s)
        try:
            self._check(pop)
        except Refused as error:
            return request.answer(error.code, remark=str(error))
        answer = self._answer(pop)
        if answer.code == POLLING_TIMEOUT and wait_s > 0 and len(self._waiting) < WAITING_MAX:
            self._waiting.append(pop)
            return None
        return answer

    def _check(self, pop: _Pop) -> None:
        """Raise `Refused` for what cannot be taken."""
        fields, topic, group = pop.request.fields, pop.topic, pop.group
        known = self._engine.topics.get(topic)
        if known is None:
            raise Refused(TOPIC_NOT_EXIST, f"topic {topic} does not exist")
        if not known.is_readable:
            raise Refused(NO_PERMISSION, f"topic {topic} cannot be read")
        if group not in self._clients.groups:
            raise Refused(SUBSCRIPTION_NOT_EXIST, f"no client of group {group} has sent a heartbeat")
        if fields.get("order") == "true" or known.is_batch or topic.startswith(RETRY_PREFIX):
            raise Refused(NOT_SUPPORTED, "POP in order, of batch topics and of retry topics is not supported")
        self._filter(fields, topic, group)
        if not ANY_QUEUE <= number(fields, "queueId", ANY_QUEUE) < known.read_queues:
            raise Refused(SYSTEM_ERROR, f"topic {topic} has {known.read_queues} queues")

    def acknowledge(self, request: Command) -> Command:
        """Acknowledge a message, unless its time was over."""
        found = self._handle(request)
        if found is None:
            return request.answer(NO_MESSAGE, remark="the message is not taken with this handle")
        key, offset, _ = found
        self._done(key, offset)
        return request.answer(SUCCESS)

    def change_time(self, request: Command) -> Command:
        """Give a message another time from now on; consumers that failed use it for the time until the next try."""
        found = self._handle(request)
        if found is None:
            return request.answer(NO_MESSAGE, remark="the message is not taken with this handle")
        key, offset, taken = found
        invisible_ms = _invisible_ms(request.fields)
        now_ms = max(self._engine.now_ms(), taken.taken_ms + 1)  # the handle differs from the one before
        self._take(key, offset, taken.physical_offset, now_ms, invisible_ms)
        return request.answer(SUCCESS, _times(now_ms, invisible_ms))

    def wake(self) -> None:
        """Answer the requests that have messages now or have waited long enough; let messages expire."""
        now_s = time.monotonic()
        self._expire(now_s)
        left, empty = [], set()
        for pop in self._waiting:
            answer = None
            if (pop.topic, pop.group) not in empty:
                answer = self._answer(pop)
                if answer.code == POLLING_TIMEOUT:
                    empty.add((pop.topic, pop.group))
                    answer = None
            if answer is None and pop.until_s <= now_s:
                answer = self._nothing(pop.request)
            if answer is None:
                left.append(pop)
            else:
                pop.connection.send(answer)
        self._waiting = left

    def forget(self, topic: str, group: str) -> None:
        """Let a group begin again at its committed offsets; handles of messages that it has taken name none any longer."""
        for key in [key for key in self._queues if key[:2] == (topic, group)]:
            self._count -= len(self._queues.pop(key).taken)

    def closed(self, connection: Connection) -> None:
        """Forget the requests of a client that is gone, and queues of groups without clients.  Messages keep their time."""
        self._waiting = [pop for pop in self._waiting if pop.connection is not connection]
        groups = self._clients.groups
        for key in [key for key, queue in self._queues.items() if not queue.taken and key[1] not in groups]:
            del self._queues[key]

    def _answer(self, pop: _Pop) -> Command:
        """Take messages, from one queue or from the next ones that have some."""
        fields, request = pop.request.fields, pop.request
        if self._count >= TAKEN_MAX:
            return request.answer(POLLING_FULL, _times(0, 0) | {"restNum": "0"}, remark=f"{TAKEN_MAX} messages are taken")
        known = self._engine.topics.get(pop.topic)
        if known is None:
            return request.answer(TOPIC_NOT_EXIST, remark=f"topic {pop.topic} does not exist")
        try:
            chosen = self._filter(fields, pop.topic, pop.group)
        except Refused as error:  # a heartbeat has changed it meanwhile
            return request.answer(error.code, remark=str(error))
        requested = number(fields, "queueId", ANY_QUEUE)
        queue_ids = [requested] if requested != ANY_QUEUE else list(range(known.read_queues))
        if known.has_priorities:
            queue_ids.reverse()
        left = min(max(1, number(fields, "maxMsgNums", COUNT_MAX)), COUNT_MAX)
        bytes_left, invisible_ms, now_ms = BYTES_MAX, _invisible_ms(fields), self._engine.now_ms()
        pages: list[tuple[int, Page]] = []
        rest = 0
        self._turn += 1
        first = 0 if known.has_priorities else self._turn  # as RocketMQ 5.4: the highest queue that has messages
        for step in range(len(queue_ids)):
            queue_id = queue_ids[(first + step) % len(queue_ids)]
            key = (pop.topic, pop.group, queue_id)
            queue = self._queue(key, at_end=number(fields, "initMode") == START_AT_END)
            if queue is None:
                return request.answer(SYSTEM_ERROR, remark=f"more than {QUEUES_MAX} queues of groups")
            page = self._read(key, queue, left, bytes_left, chosen) if left > 0 and bytes_left > 0 else None
            if page is not None:
                rest += max(0, page.max_offset - page.next_offset)
                for message in page.messages:
                    self._take(key, message.queue_offset, message.physical_offset, now_ms, invisible_ms)
                if page.messages:
                    pages.append((queue_id, page))
                    left, bytes_left = left - len(page.messages), bytes_left - page.size_bytes
        if not pages:
            return self._nothing(request)
        offsets = [(queue_id, [message.queue_offset for message in page.messages]) for queue_id, page in pages]
        found = _times(now_ms, invisible_ms) | {
            "restNum": str(rest),
            "startOffsetInfo": ";".join(f"{NORMAL_TOPIC} {queue_id} {each[0]}" for queue_id, each in offsets),
            "msgOffsetInfo": ";".join(f"{NORMAL_TOPIC} {queue_id} {','.join(map(str, each))}" for queue_id, each in offsets),
        }
        return request.answer(SUCCESS, found, b"".join(records(self._engine.log, page) for _, page in pages))

    @staticmethod
    def _nothing(request: Command) -> Command:
        return request.answer(POLLING_TIMEOUT, _times(0, 0) | {"restNum": "0"})

    def _read(self, key: QueueKey, queue: _Queue, count: int, size: int, chosen: Filter) -> Page:
        """Return the next messages of a queue, and move behind them."""
        topic, _, queue_id = key
        for _ in range(MOVES_MAX):
            page = chosen.read(self._store, topic, queue_id, queue.position, count, size)
            has_moved = page.status is not GetStatus.NO_MESSAGE_IN_QUEUE and page.next_offset != queue.position
            if has_moved:
                queue.position = page.next_offset
            if page.messages or not has_moved:
                break
        if not page.messages and not queue.taken:
            self._commit(key, queue)
        return page

    def _queue(self, key: QueueKey, *, at_end: bool) -> _Queue | None:
        """Return how far a group is in a queue; None if there are too many."""
        queue = self._queues.get(key)
        if queue is None and len(self._queues) < QUEUES_MAX:
            topic, group, queue_id = key
            low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            committed = self._engine.consumer_offsets().get(topic, group, queue_id)
            if committed is None:
                committed = high if at_end else low
            queue = self._queues[key] = _Queue(min(max(committed, low, 0), max(high, 0)))
        return queue

    def _filter(self, fields: dict[str, str], topic: str, group: str) -> Filter:
        """Return the filter of the request or of the group's last heartbeat.  Raises `Refused`."""
        kind, text = fields.get("expType"), fields.get("exp")
        if not text:
            known = self._clients.groups.get(group)
            kind, text = known.expressions.get(topic, (TAG, ALL_TAGS)) if known is not None else (TAG, ALL_TAGS)
        return message_filter(kind or TAG, text)

    def _take(self, key: QueueKey, offset: int, physical_offset: int, now_ms: int, invisible_ms: int) -> None:
        """Give a message to a consumer for a time, or change the time of one that is taken."""
        queue, until_s = self._queues[key], time.monotonic() + invisible_ms / 1000
        self._count += offset not in queue.taken
        queue.taken[offset] = _Taken(physical_offset, now_ms, until_s)
        heapq.heappush(self._ends, (until_s, key, offset))
        if len(self._ends) > 2 * TAKEN_MAX:  # times that were changed or are acknowledged
            self._ends = [
                (taken.until_s, key, offset) for key, queue in self._queues.items() for offset, taken in queue.taken.items()
            ]
            heapq.heapify(self._ends)

    def _handle(self, request: Command) -> tuple[QueueKey, int, _Taken] | None:
        """Return the message that a handle names, or None if it is not taken with it any longer."""
        fields = request.fields
        parts = fields.get("extraInfo", "").split(" ")
        if len(parts) < HANDLE_PARTS or not parts[1].isdecimal():
            raise WrongField(f"extraInfo: {fields.get('extraInfo', '')[:80]!r} is no handle")
        key = fields.get("topic", ""), fields.get("consumerGroup", ""), number(fields, "queueId", None)
        offset = number(fields, "offset", None)
        queue = self._queues.get(key)
        taken = queue.taken.get(offset) if queue is not None else None
        return (key, offset, taken) if taken is not None and str(taken.taken_ms) == parts[1] else None

    def _done(self, key: QueueKey, offset: int) -> None:
        queue = self._queues[key]
        del queue.taken[offset]
        self._count -= 1
        self._commit(key, queue)

    def _commit(self, key: QueueKey, queue: _Queue) -> None:
        """Commit the offset of the first message that is taken, or of the next one."""
        done_before = next(iter(queue.taken), queue.position)
        if done_before != queue.committed:
            topic, group, queue_id = key
            self._engine.consumer_offsets().commit(topic, group, queue_id, done_before)
            queue.committed = done_before

    def _expire(self, now_s: float) -> None:
        """Send messages back whose time is over."""
        for _ in range(EXPIRED_MAX):
            if not self._ends or self._ends[0][0] > now_s:
                return
            until_s, key, offset = heapq.heappop(self._ends)
            queue = self._queues.get(key)
            taken = queue.taken.get(offset) if queue is not None else None
            if queue is None or taken is None or taken.until_s != until_s:  # acknowledged, or its time was changed
                continue
            try:
                message = self._store.message_at(taken.physical_offset)
                if message is not None:
                    self._engine.retries.send_back(message, key[1], RETRY_LEVEL)
            except StoreError as error:
                LOG.error("%s-%d, offset %d is not sent back to group %s yet: %s", key[0], key[2], offset, key[1], error)
                queue.taken[offset] = taken._replace(until_s=now_s + REPEAT_S)
                heapq.heappush(self._ends, (now_s + REPEAT_S, key, offset))
            else:
                self._done(key, offset)


def _invisible_ms(fields: dict[str, str]) -> int:
    return min(max(0, number(fields, "invisibleTime", None)), INVISIBLE_MS_MAX)


def _times(taken_ms: int, invisible_ms: int) -> dict[str, str]:
    """Return the fields of a handle that every answer has."""
    return {"popTime": str(taken_ms), "invisibleTime": str(invisible_ms), "reviveQid": "0"}
