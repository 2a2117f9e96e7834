"""POP: consumers take messages of any queue for a time, and acknowledge each of them.

A message that is not acknowledged in its time goes to the group's retry topic, as one that a consumer sends back (`leases`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from commitlog.topic_names import RETRY_PREFIX
from messagestore import MessageStore, Page

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
from .fields import DIGITS_MAX, KEPT_MAX, Refused, WrongField, kept_size, number
from .leases import INVISIBLE_MS_MAX, QUEUES_MAX, TAKEN_MAX, Lease, Leases, QueueKey, Terms
from .pulling import ALL_TAGS, BYTES_MAX, TAG, WAIT_MS_MAX, Filter, message_filter, records

COUNT_MAX = 32  # messages of one answer, as in a broker
ANY_QUEUE = -1
START_AT_END = 1  # `initMode` of a group that begins after the last message
NORMAL_TOPIC = "0"  # a handle's mark for a topic that is no retry topic
HANDLE_PARTS = 7  # start offset, time of taking, invisible time, revive queue, mark, broker, queue id; mostly an offset too


class _Pop(NamedTuple):
    """A request that may wait."""

    connection: Connection
    request: Command
    topic: str
    group: str
    until_s: float
    size: int


class Popping:
    """Answers the requests of POP consumers.  Every call is made by the loop's thread."""

    def __init__(self, store: MessageStore, clients: Clients, leases: Leases, on_wait: Callable[[], None]) -> None:
        """Create it without waiting requests; `on_wait` is called when one begins to wait."""
        self._store = store
        self._engine = store.engine
        self._clients = clients
        self._leases = leases
        self._on_wait = on_wait
        self._waiting: list[_Pop] = []
        self._kept_bytes = 0

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for a message."""
        return bool(self._waiting)

    def pop(self, connection: Connection, request: Command) -> Command | None:
        """Answer with messages, or keep the request until there are some."""
        fields = request.fields
        topic, group = fields.get("topic", ""), fields.get("consumerGroup", "")
        wait_s = min(number(fields, "pollTime"), WAIT_MS_MAX) / 1000
        pop = _Pop(connection, request, topic, group, time.monotonic() + wait_s, kept_size(fields))
        try:
            self._check(pop)
        except Refused as error:
            return request.answer(error.code, remark=str(error))
        answer = self._answer(pop)
        if answer.code == POLLING_TIMEOUT and wait_s > 0 and self._kept_bytes + pop.size <= KEPT_MAX:
            request.body = b""
            self._waiting.append(pop)
            self._kept_bytes += pop.size
            self._on_wait()
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
        self._leases.done(key, offset)
        return request.answer(SUCCESS)

    def change_time(self, request: Command) -> Command:
        """Give a message another time from now on; consumers that failed use it for the time until the next try."""
        found = self._handle(request)
        if found is None:
            return request.answer(NO_MESSAGE, remark="the message is not taken with this handle")
        invisible_ms = _invisible_ms(request.fields)
        now_ms = self._leases.change_time(*found, invisible_ms)
        return request.answer(SUCCESS, _times(now_ms, invisible_ms))

    def wake(self) -> None:
        """Answer the requests that have messages now or have waited long enough."""
        now_s = time.monotonic()
        left, empty = [], set()
        for pop in self._waiting:
            answer = None
            if (pop.topic, pop.group) not in empty and not pop.connection.is_paused:  # else it would not read them
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
        self._keep(left)

    def _keep(self, waiting: list[_Pop]) -> None:
        self._waiting, self._kept_bytes = waiting, sum(pop.size for pop in waiting)

    def closed(self, connection: Connection) -> None:
        """Forget the requests of a client that is gone."""
        self._keep([pop for pop in self._waiting if pop.connection is not connection])

    def _answer(self, pop: _Pop) -> Command:
        """Take messages, from one queue or from the next ones that have some."""
        fields, request = pop.request.fields, pop.request
        if self._leases.is_full:
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
        bytes_left, terms, now_ms = BYTES_MAX, Terms(_invisible_ms(fields)), self._engine.now_ms()
        pages: list[tuple[int, Page]] = []
        rest = 0
        turn = self._leases.turn()
        first = 0 if known.has_priorities else turn  # as RocketMQ 5.4: the highest queue that has messages
        for step in range(len(queue_ids)):
            queue_id = queue_ids[(first + step) % len(queue_ids)]
            key = (pop.topic, pop.group, queue_id)
            queue = self._leases.queue(key, at_end=number(fields, "initMode") == START_AT_END)
            if queue is None:
                return request.answer(SYSTEM_ERROR, remark=f"more than {QUEUES_MAX} queues of groups")
            if left > 0 and bytes_left > 0:
                page = self._leases.take(key, queue, left, bytes_left, chosen, now_ms, terms)
                rest += max(0, page.max_offset - page.next_offset)
                if page.messages:
                    pages.append((queue_id, page))
                    left, bytes_left = left - len(page.messages), bytes_left - page.size_bytes
        if not pages:
            return self._nothing(request)
        offsets = [(queue_id, [message.queue_offset for message in page.messages]) for queue_id, page in pages]
        found = _times(now_ms, terms.invisible_ms) | {
            "restNum": str(rest),
            "startOffsetInfo": ";".join(f"{NORMAL_TOPIC} {queue_id} {each[0]}" for queue_id, each in offsets),
            "msgOffsetInfo": ";".join(f"{NORMAL_TOPIC} {queue_id} {','.join(map(str, each))}" for queue_id, each in offsets),
        }
        return request.answer(SUCCESS, found, b"".join(records(self._engine.log, page) for _, page in pages))

    @staticmethod
    def _nothing(request: Command) -> Command:
        return request.answer(POLLING_TIMEOUT, _times(0, 0) | {"restNum": "0"})

    def _filter(self, fields: dict[str, str], topic: str, group: str) -> Filter:
        """Return the filter of the request or of the group's last heartbeat.  Raises `Refused`."""
        kind, text = fields.get("expType"), fields.get("exp")
        if not text:
            known = self._clients.groups.get(group)
            kind, text = known.expressions.get(topic, (TAG, ALL_TAGS)) if known is not None else (TAG, ALL_TAGS)
        return message_filter(kind or TAG, text)

    def _handle(self, request: Command) -> tuple[QueueKey, int, Lease] | None:
        """Return the message that a handle names, or None if it is not taken with it any longer."""
        fields = request.fields
        parts = fields.get("extraInfo", "").split(" ")
        if len(parts) < HANDLE_PARTS or not (parts[1].isascii() and parts[1].isdecimal() and len(parts[1]) < DIGITS_MAX):
            raise WrongField(f"extraInfo: {fields.get('extraInfo', '')[:80]!r} is no handle")
        key = fields.get("topic", ""), fields.get("consumerGroup", ""), number(fields, "queueId", None)
        offset = number(fields, "offset", None)
        lease = self._leases.find(key, offset, int(parts[1]))
        return (key, offset, lease) if lease is not None else None


def _invisible_ms(fields: dict[str, str]) -> int:
    return min(max(0, number(fields, "invisibleTime", None)), INVISIBLE_MS_MAX)


def _times(taken_ms: int, invisible_ms: int) -> dict[str, str]:
    """Return the fields of a handle that every answer has."""
    return {"popTime": str(taken_ms), "invisibleTime": str(invisible_ms), "reviveQid": "0"}
