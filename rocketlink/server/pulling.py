"""Pulls of consumers, with long polling: a pull at the end of a queue is answered when a message arrives."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from commitlog import CommitLog
from messagestore import GetStatus, MessageStore, Page

from ..remoting.codes import (
    NO_PERMISSION,
    PULL_NOT_FOUND,
    PULL_OFFSET_MOVED,
    PULL_RETRY_IMMEDIATELY,
    SUBSCRIPTION_NOT_EXIST,
    SUBSCRIPTION_PARSE_FAILED,
    SUCCESS,
    SYSTEM_ERROR,
    TOPIC_NOT_EXIST,
)
from ..remoting.frames import Command, json_object
from .clients import Clients
from .connections import Connection
from .fields import KEPT_MAX, Refused, kept_size, number
from .sql_conditions import Value, WrongExpression
from .sql_filter import SQL92, compiled, matches

COMMITS, MAY_WAIT, HAS_SUBSCRIPTION = 1, 2, 4  # bits of sysFlag
COUNT_MAX = 1024  # messages of one answer
BYTES_MAX = 4 << 20  # bytes of one answer; the first record always fits
WAIT_MS_MAX = 25_000  # a client gives up after 30 s
ALL_TAGS = "*"
TAG = "TAG"
STATES = {
    GetStatus.FOUND: SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: PULL_OFFSET_MOVED,
}


class _Waiting(NamedTuple):
    """A pull that waits for a message behind `offset`."""

    connection: Connection
    request: Command
    until_s: float
    offset: int
    size: int


class Filter(NamedTuple):
    """What a subscription takes: messages with one of some tags, or whose properties match a condition."""

    tags: set[str] | None = None
    condition: Callable[[Mapping[str, str]], Value] | None = None

    def read(self, store: MessageStore, topic: str, queue_id: int, offset: int, count: int, size: int) -> Page:
        """Return what matches of a queue's next messages."""
        page = store.get(topic, queue_id, offset, count, max_bytes=size, tags=self.tags)
        if self.condition is None or not page.messages:
            return page
        found = [message for message in page.messages if matches(self.condition, message.all_properties)]
        status = GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE
        return dataclasses.replace(page, status=status, messages=found, size_bytes=sum(message.size for message in found))


def message_filter(kind: str, text: str) -> Filter:
    """Return the filter of a subscription.  Raises `Refused`."""
    if kind == TAG:
        return Filter(None if text == ALL_TAGS else {tag.strip() for tag in text.split("||")})
    if kind != SQL92:
        raise Refused(SYSTEM_ERROR, f"filters of type {kind[:40]} are not supported, {TAG} and {SQL92} are")
    try:
        return Filter(condition=compiled(text))
    except WrongExpression as error:
        raise Refused(SUBSCRIPTION_PARSE_FAILED, str(error)) from error


def check_subscription(request: Command) -> Command:
    """Answer a consumer that wants to know whether its filter can be used."""
    data = json_object(request.body, "body").get("subscriptionData")
    if isinstance(data, dict):
        try:
            message_filter(str(data.get("expressionType") or TAG), str(data.get("subString") or ALL_TAGS))
        except Refused as error:
            return request.answer(error.code, remark=str(error))
    return request.answer(SUCCESS)


class Pulling:
    """Answers pulls from the store's queues."""

    def __init__(self, store: MessageStore, clients: Clients, on_wait: Callable[[], None]) -> None:
        """Create it without waiting pulls; `on_wait` is called when one begins to wait."""
        self._store = store
        self._engine = store.engine
        self._clients = clients
        self._on_wait = on_wait
        self._waiting: dict[tuple[str, int], list[_Waiting]] = {}
        self._kept_bytes = 0

    @property
    def is_awaited(self) -> bool:
        """Whether a pull waits for a message."""
        return bool(self._waiting)

    def pull(self, connection: Connection, request: Command) -> Command | None:
        """Answer a pull, or keep it until there is something to answer."""
        fields = request.fields
        topic, queue_id, offset = fields.get("topic", ""), number(fields, "queueId"), number(fields, "queueOffset")
        flags = number(fields, "sysFlag")
        known = self._engine.topics.get(topic)
        if known is None:
            return request.answer(TOPIC_NOT_EXIST, remark=f"topic {topic} does not exist")
        if not known.is_readable:
            return request.answer(NO_PERMISSION, remark=f"topic {topic} cannot be read")
        if flags & COMMITS and number(fields, "commitOffset") >= 0:
            group = fields.get("consumerGroup", "")
            self._engine.consumer_offsets().commit(topic, group, queue_id, number(fields, "commitOffset"))
        answer = self._answer_now(request, topic, queue_id, offset)
        size = kept_size(fields)
        if answer.code == PULL_NOT_FOUND and flags & MAY_WAIT and self._kept_bytes + size <= KEPT_MAX:
            wait_ms = min(number(fields, "suspendTimeoutMillis"), WAIT_MS_MAX)
            request.body = b""
            self._wait(_Waiting(connection, request, time.monotonic() + wait_ms / 1000, offset, size), topic, queue_id)
            return None
        return answer

    def wake(self) -> None:
        """Answer the waiting pulls that have a message now, or have waited long enough."""
        now_s = time.monotonic()
        for (topic, queue_id), pulls in list(self._waiting.items()):
            end = self._store.max_offset(topic, queue_id)
            ready = [one for one in pulls if one.offset < end or one.until_s <= now_s]
            if not ready:
                continue
            left = [one for one in pulls if one.offset >= end and one.until_s > now_s]
            if left:
                self._waiting[topic, queue_id] = left
            else:
                del self._waiting[topic, queue_id]
            self._kept_bytes -= sum(one.size for one in ready)
            for one in ready:
                if one.connection.is_paused:  # it may have any number of pulls, and does not read the answers
                    one.connection.send(one.request.answer(PULL_RETRY_IMMEDIATELY, _bounds(one.offset, 0, end)))
                else:
                    one.connection.send(self._answer_now(one.request, topic, queue_id, one.offset))

    def closed(self, connection: Connection) -> None:
        """Forget the pulls of a client that is gone."""
        for key, pulls in list(self._waiting.items()):
            left = [one for one in pulls if one.connection is not connection]
            self._kept_bytes -= sum(one.size for one in pulls if one.connection is connection)
            if left:
                self._waiting[key] = left
            else:
                del self._waiting[key]

    def _wait(self, pull: _Waiting, topic: str, queue_id: int) -> None:
        self._waiting.setdefault((topic, queue_id), []).append(pull)
        self._kept_bytes += pull.size
        self._on_wait()

    def _answer_now(self, request: Command, topic: str, queue_id: int, offset: int) -> Command:
        """Answer with what the queue has from an offset on."""
        fields = request.fields
        kind, expression = self._subscription(request, topic)
        if not expression:
            return request.answer(SUBSCRIPTION_NOT_EXIST, remark=f"the group has no subscription to {topic}")
        try:
            chosen = message_filter(kind, expression)
        except Refused as error:
            return request.answer(error.code, remark=str(error))
        count = min(max(1, number(fields, "maxMsgNums", 32)), COUNT_MAX)
        size = min(number(fields, "maxMsgBytes", BYTES_MAX) or BYTES_MAX, BYTES_MAX)
        page = chosen.read(self._store, topic, queue_id, offset, count, size)
        code = STATES.get(page.status)
        if code is None:  # the queue has no message
            code = PULL_OFFSET_MOVED if offset else PULL_NOT_FOUND
        bounds = _bounds(page.next_offset, page.min_offset, page.max_offset)
        return request.answer(code, bounds, records(self._engine.log, page))

    def _subscription(self, request: Command, topic: str) -> tuple[str, str]:
        """Return type and text of the filter, from the request or the group's last heartbeat."""
        fields = request.fields
        if number(fields, "sysFlag") & HAS_SUBSCRIPTION:
            return fields.get("expressionType") or TAG, fields.get("subscription") or ALL_TAGS
        group = self._clients.groups.get(fields.get("consumerGroup", ""))
        return group.expressions.get(topic, (TAG, "")) if group is not None else (TAG, "")


def _bounds(following: int, first: int, end: int) -> dict[str, str]:
    """Return the fields of an answer to a pull: where the next one begins, and what the queue has."""
    bounds = {"nextBeginOffset": following, "minOffset": first, "maxOffset": end}
    return {"suggestWhichBrokerId": "0"} | {name: str(offset) for name, offset in bounds.items()}


def records(log: CommitLog, page: Page) -> bytes:
    """Return a page's records as they are in the log."""
    views = (log.select(message.physical_offset, message.size) for message in page.messages)
    return b"".join(view for view in views if view is not None)
