"""Receiving: messages for a time, their handles, and reads at an offset."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from commitlog import StoredMessage
from commitlog.topic_names import RETRY_PREFIX
from messagestore import MessageStore, Page

from ..server.fields import Refused
from ..server.leases import DEAD, INVISIBLE_MS_MAX, Again, Lease, Leases, QueueKey, Terms, pop_retry_topic
from ..server.pulling import ALL_TAGS, BYTES_MAX, TAG, Filter, message_filter
from ..server.sql_filter import SQL92
from .limits import Unsent
from .messages import OK, Declined, common_status, delivered, duration_ms, group_of, set_time, status, topic_of
from .protocol import definition as d
from .protocol import service as s
from .routes import Routes
from .sessions import BATCH, POLL_S, GrpcClient

POLL_S_MAX = 60.0
MARGIN_S = 0.3  # an empty answer leaves so long before the client gives up
POLLS_MAX = 8192  # requests that wait for a message at a time
ENTRIES_MAX = 1024  # acknowledgements of one request
HANDLE_SIZE_MAX = 1024
EXPRESSION_SIZE_MAX = 8192


class Handle(NamedTuple):
    """A receipt handle: which message, and which time of taking."""

    key: QueueKey
    offset: int
    taken_ms: int

    def text(self) -> str:
        """Return it as the client keeps it: queue, offset and time; 1 first for a retry topic."""
        mark = int(self.key[0].startswith(RETRY_PREFIX))
        return f"{mark} {self.key[2]} {self.offset} {self.taken_ms}"


class Receiving:
    """Answers what consumers ask.  Every call is made by the loop's thread."""

    def __init__(self, store: MessageStore, leases: Leases, routes: Routes, on_wait: Callable[[], None]) -> None:
        """Create it without waiting requests; `on_wait` is called when one begins to wait."""
        self._store = store
        self._engine = store.engine
        self._leases = leases
        self._routes = routes
        self._on_wait = on_wait
        self._unsent = Unsent()
        self._polls = 0
        self._waiting: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}  # by topic and group

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for a message."""
        return bool(self._waiting)

    # Messages for a time

    async def receive(self, session: GrpcClient, request: Any, context: Any) -> None:
        """Write messages, or that there are none after the time of the poll."""
        topic, group = topic_of(request.message_queue.topic), group_of(request.group)
        if not self._routes.topic(topic).is_readable:
            raise Declined(d.FORBIDDEN, f"topic {topic} cannot be read")
        chosen = _filter(request.filter_expression)
        again = Again.IN_ORDER if self._routes.is_in_order(topic, group) else Again.POP_RETRY
        is_renewed = request.auto_renew
        invisible_ms = duration_ms(request.invisible_duration)
        if not is_renewed and not 0 < invisible_ms <= INVISIBLE_MS_MAX:
            raise Declined(d.ILLEGAL_INVISIBLE_TIME, f"an invisible time of {invisible_ms} ms; 1 to {INVISIBLE_MS_MAX}")
        terms = Terms(invisible_ms, again, session.client if is_renewed else "")
        count = min(max(1, request.batch_size), BATCH)
        until_s = time.monotonic() + self._poll_s(request, context.time_remaining())
        self._engine.retries.group(group)  # adds it to the table of groups
        found = self._take(topic, group, count, chosen, terms)
        while not found and (left_s := until_s - time.monotonic()) > 0:
            if await self._arrival((topic, group), left_s):
                session.heard_s = time.monotonic()
                found = self._take(topic, group, count, chosen, terms)
        if found:
            self._wake_next((topic, group))
        try:
            await self._write(context, topic, found)
        except BaseException:
            for handle, _ in found:
                self._leases.end_renewal(*handle)
            raise

    async def _write(self, context: Any, topic: str, found: list[tuple[Handle, StoredMessage]]) -> None:
        first = status() if found else status(d.MESSAGE_NOT_FOUND, "no new message")
        limit = self._store.config.max_message_size
        async with self._unsent.of(sum(message.size for _, message in found)):
            await context.write(s.ReceiveMessageResponse(status=first))
            for handle, message in found:
                attempt = message.reconsume_times + 1 + self._leases.deliveries(handle.key, handle.offset)
                shown = delivered(message, limit, topic, attempt, handle.text())
                await context.write(s.ReceiveMessageResponse(message=shown))
            last = s.ReceiveMessageResponse()
            set_time(last.delivery_timestamp, self._engine.now_ms())
            await context.write(last)

    def _take(
        self, topic: str, group: str, count: int, chosen: Filter, terms: Terms
    ) -> list[tuple[Handle, StoredMessage]]:  # fmt: skip
        """Take messages: those that come again first, then of each queue in turn."""
        if self._leases.is_full:
            raise Declined(d.TOO_MANY_REQUESTS, "too many messages are not acknowledged")
        now_ms, size = self._engine.now_ms(), BYTES_MAX
        found: list[tuple[Handle, StoredMessage]] = []
        for key in self._keys(topic, group, self._leases.turn()):
            if len(found) >= count or size <= 0:
                break
            queue = self._leases.queue(key)
            if queue is None:
                raise Declined(d.TOO_MANY_REQUESTS, "too many queues of groups are in use")
            page = self._leases.take(key, queue, count - len(found), size, chosen, now_ms, terms)
            size -= page.size_bytes
            found += [(Handle(key, message.queue_offset, now_ms), message) for message in page.messages]
            if page.messages and terms.again is Again.IN_ORDER:
                break  # one queue at a time
        return found

    def _keys(self, topic: str, group: str, turn: int) -> list[QueueKey]:
        known = self._routes.topic(topic)
        count = max(1, known.read_queues)
        queues = range(count - 1, -1, -1) if known.has_priorities else [(turn + step) % count for step in range(count)]
        return [(pop_retry_topic(topic, group), group, 0), *((topic, group, queue_id) for queue_id in queues)]

    def _poll_s(self, request: Any, remaining_s: float | None) -> float:
        """Return how long a request may wait: its own time, or that until the client gives up; 0 if too many wait."""
        wait_s = float(POLL_S)
        if self._polls >= POLLS_MAX:
            return 0.0
        if request.HasField("long_polling_timeout"):
            wait_s = min(max(0.0, duration_ms(request.long_polling_timeout) / 1000), POLL_S_MAX)
        return wait_s if remaining_s is None else max(0.0, min(wait_s, remaining_s - MARGIN_S))

    async def _pause(self, timeout_s: float, future: asyncio.Future[None] | None = None) -> None:
        """Wait for a time, or for a future, whose `TimeoutError` ends the wait."""
        self._polls += 1
        try:
            if future is None:
                await asyncio.sleep(timeout_s)
            else:
                async with asyncio.timeout(timeout_s):
                    await future
        finally:
            self._polls -= 1

    async def _arrival(self, key: tuple[str, str], timeout_s: float) -> bool:
        """Wait until there may be a message for this request; return False after the time."""
        future = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(key, deque())
        waiting.append(future)
        self._on_wait()
        try:
            await self._pause(timeout_s, future)
        except TimeoutError:
            return False
        finally:
            if not future.done() or future.cancelled():
                with contextlib.suppress(ValueError):
                    waiting.remove(future)
            if not waiting and self._waiting.get(key) is waiting:
                del self._waiting[key]
        return True

    def wake(self) -> None:
        """Let one request of each topic and group look again whose queues have something."""
        for key in list(self._waiting):
            self._wake_next(key)

    def _wake_next(self, key: tuple[str, str]) -> None:
        waiting = self._waiting.get(key)
        if waiting and any(self._leases.has_more(one) for one in self._keys(*key, 0)):
            while waiting:
                future = waiting.popleft()
                if not future.done():
                    future.set_result(None)
                    return

    # Handles

    async def acknowledge(self, _session: GrpcClient, request: Any) -> Any:
        """Acknowledge messages, and answer for each."""
        topic, group = topic_of(request.topic), group_of(request.group)
        if not 0 < len(request.entries) <= ENTRIES_MAX:
            raise Declined(d.BAD_REQUEST, f"{len(request.entries)} acknowledgements: 1 to {ENTRIES_MAX} in a request")
        entries = [
            s.AckMessageResultEntry(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=self._end_lease(topic, group, entry.receipt_handle),
            )
            for entry in request.entries
        ]
        self.wake()  # the next messages in order may be free
        return s.AckMessageResponse(status=common_status(entries), entries=entries)

    def _end_lease(self, topic: str, group: str, text: str) -> Any:
        try:
            handle, _ = self._find(topic, group, text)
        except Declined as error:
            return status(error.code, str(error))
        self._leases.done(handle.key, handle.offset)
        return OK

    async def change_time(self, _session: GrpcClient, request: Any) -> Any:
        """Give a message another time from now on, and answer with its new handle."""
        handle, lease = self._find(topic_of(request.topic), group_of(request.group), request.receipt_handle)
        invisible_ms = duration_ms(request.invisible_duration)
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise Declined(d.ILLEGAL_INVISIBLE_TIME, f"an invisible time of {invisible_ms} ms; 0 to {INVISIBLE_MS_MAX}")
        taken_ms = self._leases.change_time(handle.key, handle.offset, lease, invisible_ms)
        return s.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle._replace(taken_ms=taken_ms).text())

    async def bury(self, _session: GrpcClient, request: Any) -> Any:
        """Move a message to the dead letters of its group."""
        group = group_of(request.group)
        handle, lease = self._find(topic_of(request.topic), group, request.receipt_handle)
        message = self._store.message_at(lease.physical_offset)
        if message is not None:
            self._engine.retries.send_back(message, group, DEAD)
        self._leases.done(handle.key, handle.offset)
        self.wake()
        return s.ForwardMessageToDeadLetterQueueResponse(status=OK)

    def _find(self, topic: str, group: str, text: str) -> tuple[Handle, Lease]:
        """Return what a handle names; raise `Declined` if the message is not in hand with it any longer."""
        parts = text.split(" ") if len(text) <= HANDLE_SIZE_MAX else []
        if len(parts) != 4 or not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
            raise Declined(d.INVALID_RECEIPT_HANDLE, f"{text[:80]!r} is no receipt handle")
        mark, queue_id, offset, taken_ms = map(int, parts)
        handle = Handle((pop_retry_topic(topic, group) if mark else topic, group, queue_id), offset, taken_ms)
        lease = self._leases.find(handle.key, offset, taken_ms)
        if lease is None:
            raise Declined(d.INVALID_RECEIPT_HANDLE, "the message is not in hand with this handle: its time is over")
        return handle, lease

    # Reads at an offset

    async def pull(self, session: GrpcClient, request: Any, context: Any) -> None:
        """Write the messages of a queue from an offset on."""
        topic, _, queue_id = self._queue(request)
        count, chosen = min(max(1, request.batch_size), BATCH), _filter(request.filter_expression)
        until_s = time.monotonic() + self._poll_s(request, context.time_remaining())
        page = chosen.read(self._store, topic, queue_id, request.offset, count, BYTES_MAX)
        while not page.messages and page.next_offset == request.offset and (left_s := until_s - time.monotonic()) > 0:
            await self._pause(min(left_s, 0.1))
            page = chosen.read(self._store, topic, queue_id, request.offset, count, BYTES_MAX)
        session.heard_s = time.monotonic()
        limit = self._store.config.max_message_size
        async with self._unsent.of(page.size_bytes):
            await context.write(s.PullMessageResponse(status=_pull_status(page)))
            for message in page.messages:
                shown = delivered(message, limit, topic, message.reconsume_times + 1)
                await context.write(s.PullMessageResponse(message=shown))
            await context.write(s.PullMessageResponse(next_offset=page.next_offset))

    async def set_offset(self, _session: GrpcClient, request: Any) -> Any:
        """Commit a group's offset."""
        topic, group, queue_id = self._queue(request)
        if request.offset < 0:
            raise Declined(d.ILLEGAL_OFFSET, f"offset {request.offset}")
        self._engine.consumer_offsets().commit(topic, group, queue_id, request.offset)
        return s.UpdateOffsetResponse(status=OK)

    async def get_offset(self, _session: GrpcClient, request: Any) -> Any:
        """Answer with a group's offset."""
        topic, group, queue_id = self._queue(request)
        found = self._engine.consumer_offsets().get(topic, group, queue_id)
        if found is None:
            raise Declined(d.OFFSET_NOT_FOUND, f"group {group} has no offset for queue {queue_id} of {topic}")
        return s.GetOffsetResponse(status=OK, offset=found)

    async def query_offset(self, _session: GrpcClient, request: Any) -> Any:
        """Answer with the first or the next offset of a queue, or that of a time."""
        topic, queue_id = topic_of(request.message_queue.topic), request.message_queue.id
        if request.query_offset_policy == d.BEGINNING:
            found = self._store.min_offset(topic, queue_id)
        elif request.query_offset_policy == d.END:
            found = self._store.max_offset(topic, queue_id)
        else:
            found = self._store.offset_by_time(topic, queue_id, duration_ms(request.timestamp))
        return s.QueryOffsetResponse(status=OK, offset=max(0, found))

    def _queue(self, request: Any) -> tuple[str, str, int]:
        topic, group, queue_id = topic_of(request.message_queue.topic), group_of(request.group), request.message_queue.id
        if self._engine.topics.get(topic) is None:
            raise Declined(d.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        if not 0 <= queue_id < self._routes.topic(topic).read_queues:
            raise Declined(d.BAD_REQUEST, f"topic {topic} has no queue {queue_id}")
        return topic, group, queue_id


def _pull_status(page: Page) -> Any:
    if page.messages:
        return status()
    return status(d.MESSAGE_NOT_FOUND, "no new message")


def _filter(expression: Any) -> Filter:
    """Return the filter of a subscription."""
    text = expression.expression
    if len(text) > EXPRESSION_SIZE_MAX:
        raise Declined(d.ILLEGAL_FILTER_EXPRESSION, f"a filter of {len(text)} characters; at most {EXPRESSION_SIZE_MAX}")
    kind = SQL92 if expression.type == d.SQL else TAG
    if kind == TAG and text not in ("", ALL_TAGS) and not all(tag.strip() for tag in text.split("||")):
        raise Declined(d.ILLEGAL_FILTER_EXPRESSION, f"a tag of {text[:80]!r} is empty")
    try:
        return message_filter(kind, text or ALL_TAGS)
    except Refused as error:
        raise Declined(d.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
