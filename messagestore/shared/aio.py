"""A shared store for asyncio: no call blocks the event loop, and consumers need no thread each.

Two threads serve a store, however many coroutines use it. One carries out puts in their order, and does not wait for their
answers. The other waits for news at the owner and polls the consumers that a coroutine waits for. Everything else runs in the
event loop's own pool of threads.

A cancelled coroutine loses nothing: a put that was begun is stored, and a message that a cancelled wait would have returned is
returned by the next one.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from commitlog import Message, PutResult, PutStatus, StoredMessage
from storageio import PutRejected, StoreError, StoreFull
from storageio.background import BackgroundThread, Wakeup

from ..config import StoreConfig
from ..read.polled import FETCH_COUNT
from ..read.queue_reader import Page
from ..read.topics_consumer import Topics, TopicsConsumer
from ..write.putting import SPACE_POLL_S, BulkPut, marks_of, message_of, messages_of
from .consumer import SharedConsumer
from .election import Member
from .news import NEWS_S, News
from .store import WAIT_S, SharedStore, connect

PUTS_MAX = 1000  # puts of a store that wait for their answer; further ones wait for their turn
Opened = SharedConsumer | TopicsConsumer
Work = tuple[Callable[[], "Future[PutResult] | PutResult"], "asyncio.Future[PutResult]", asyncio.AbstractEventLoop]


@asynccontextmanager
async def open(
    path: str | os.PathLike[str], config: StoreConfig | None = None, *, wait_s: float = WAIT_S
) -> AsyncIterator[AsyncStore]:
    """Open a store as `brokerstore.connect` does, for the time of an `async with` block."""
    store = AsyncStore(await asyncio.to_thread(connect, path, config, wait_s=wait_s))
    try:
        yield store
    finally:
        await store.close()


class AsyncStore:
    """A shared store whose methods are awaited. One event loop uses it."""

    def __init__(self, store: SharedStore) -> None:
        """Create it from a connected store; use `open`."""
        self.store = store
        self._puts: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._limit = asyncio.Semaphore(PUTS_MAX)
        self._putter = BackgroundThread("brokerstore-aio-put", self._put_next)
        self._putter.start()
        self._news = _News(store._member)
        self._consumers: list[AsyncConsumer] = []

    # Writing

    async def put(
        self, message: Message | str, body: bytes | None = None, *, tags: str | None = None,
        keys: str | list[str] | None = None, properties: dict[str, str] | None = None, queue_id: int = -1,
        delay: timedelta | None = None, delay_level: int = 0, deliver_at: datetime | None = None, priority: int | None = None,
        dedup_id: str | None = None, ttl: timedelta | None = None, check: bool = True, block_s: float = 0,
    ) -> PutResult:  # fmt: skip
        """Put one message, as `MessageStore.put`. Puts are stored in the order in which they were begun.

        Those that wait for space with `block_s` are stored when there is some, perhaps after later ones.
        """
        marks = marks_of(priority, dedup_id, ttl)
        item = message_of(message, body, tags, keys, properties, queue_id, delay, delay_level, deliver_at, marks)
        deadline = time.monotonic() + block_s
        while True:
            left_s = deadline - time.monotonic()
            try:
                return await self._in_order(lambda: self.store.put_async(item))
            except StoreFull as error:
                if left_s <= 0:
                    if check:
                        raise
                    return _refused(error)
            except PutRejected as error:
                if check:
                    raise
                return _refused(error)
            await asyncio.sleep(min(SPACE_POLL_S, left_s))

    async def put_many(
        self, messages: list[Message] | str, bodies: Sequence[bytes] | None = None, *, tags: Sequence[str | None] | None = None,
        keys: Sequence[str | None] | None = None, queue_id: int = -1, check: bool = True, block_s: float = 0,
    ) -> PutResult:  # fmt: skip
        """Put messages, or a topic's bodies, as `MessageStore.put_many`.

        Those that wait for space with `block_s` are stored when there is some, perhaps after later puts.
        """
        if block_s:
            bulk = BulkPut(messages_of(messages, bodies, tags, keys, queue_id), block_s)
            while pause_s := bulk.add(await self._in_order(lambda: self.store.put_many(bulk.left, check=False))):
                await asyncio.sleep(pause_s)
            return bulk.finish(check)
        fields: dict[str, Any] = {"tags": tags, "keys": keys, "queue_id": queue_id}
        return await self._in_order(lambda: self.store.put_many(messages, bodies, **fields, check=check))

    async def _in_order(self, call: Callable[[], Future[PutResult] | PutResult]) -> PutResult:
        loop = asyncio.get_running_loop()
        await self._limit.acquire()
        answer: asyncio.Future[PutResult] = loop.create_future()
        answer.add_done_callback(lambda _: self._limit.release())
        self._puts.put((call, answer, loop))
        return await answer

    def _put_next(self) -> float | None:
        work = self._puts.get()
        if work is None:
            self._putter.is_stopping = True
            return 0.0
        call, answer, loop = work
        try:
            found = call()
        except Exception as error:
            found = Future()
            found.set_exception(error)
        if not isinstance(found, Future):
            done: Future[PutResult] = Future()
            done.set_result(found)
            found = done
        found.add_done_callback(lambda future: _hand_over(loop, future, answer))
        return 0.0

    async def create_topic(self, topic: str, queues: int | None = None, *, attributes: dict[str, str] | None = None) -> None:
        """Create a topic, as `MessageStore.create_topic`."""
        await asyncio.to_thread(self.store.create_topic, topic, queues, attributes=attributes)

    async def flush(self) -> int:
        """Sync everything that is written; return the flushed physical offset."""
        return await asyncio.to_thread(self.store.flush)

    # Reading

    async def get(self, topic: str, queue_id: int, offset: int, max_count: int = 32, *, tags: set[str] | None = None) -> Page:
        """Return one page of messages from a queue offset on, as `MessageStore.get`."""
        return await asyncio.to_thread(self.store.get, topic, queue_id, offset, max_count, tags=tags)

    async def query(
        self, topic: str, key: str, begin_ms: int | None = None, end_ms: int | None = None, max_count: int = 32
    ) -> list[StoredMessage]:
        """Return messages of a topic with a key, oldest first."""
        return await asyncio.to_thread(self.store.query, topic, key, begin_ms, end_ms, max_count)

    async def call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a method of `store`, or any other function, in a thread of the event loop's pool."""
        return await asyncio.to_thread(method, *arguments, **options)

    def consumer(
        self, topic: str | Topics, *, group: str, queues: list[int] | None = None, tags: set[str] | None = None,
        timeout_s: float | None = None, start: str = "first", missing_topic: str = "wait", visibility_s: float | None = None,
        max_deliveries: int | None = None,
    ) -> AsyncConsumer:  # fmt: skip
        """Iterate over a topic's messages with `async for`, as `MessageStore.consumer`. It is opened at first use.

        With `visibility_s` it takes one message at a time, so that none waits while its time runs.
        """
        options: dict[str, Any] = {
            "group": group,
            "queues": queues,
            "tags": tags,
            "start": start,
            "missing_topic": missing_topic,
        }
        rules: dict[str, Any] = {"visibility_s": visibility_s, "max_deliveries": max_deliveries}
        fetch_count = FETCH_COUNT if visibility_s is None else 1
        consumer = AsyncConsumer(lambda: self.store.consumer(topic, **options, **rules), self._news, timeout_s, fetch_count)
        self._consumers.append(consumer)
        return consumer

    async def close(self) -> None:
        """Finish the puts that were begun, and close consumers and store."""
        for consumer in self._consumers:
            await consumer.close()
        self._puts.put(None)
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        self._putter.stop()
        self._news.stop()
        self.store.close()


def _hand_over(loop: asyncio.AbstractEventLoop, found: Future[PutResult], answer: asyncio.Future[PutResult]) -> None:
    """Resolve a coroutine's future in its loop; a loop that was closed wants no answer."""

    def resolve() -> None:
        if answer.done():
            return
        error = found.exception()
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(found.result())

    with suppress(RuntimeError):
        loop.call_soon_threadsafe(resolve)


def _refused(error: PutRejected) -> PutResult:
    from ..write.putting import refused

    return refused(PutStatus(error.status), error.reason)


class _News:
    """The thread that waits for news at the owner, and polls the consumers that a coroutine waits for."""

    def __init__(self, member: Member) -> None:
        self.count = -1  # of steps of the owner, as far as this thread knows
        self._news = News(member)
        self._guard = threading.Lock()
        self._waiting: dict[AsyncConsumer, None] = {}
        self._wakeup = Wakeup()
        self._thread = BackgroundThread("brokerstore-aio-news", self._step, None, self._wakeup)
        self._thread.start()

    def add(self, consumer: AsyncConsumer, seen: int) -> bool:
        """Wait for a consumer that found nothing when the count was `seen`; return False if there is news already."""
        with self._guard:
            if self.count != seen:
                return False
            self._waiting[consumer] = None
        self._wakeup.set()
        return True

    def remove(self, consumer: AsyncConsumer) -> None:
        """Remove a consumer from those that wait."""
        with self._guard:
            self._waiting.pop(consumer, None)

    def stop(self) -> None:
        """End the waits and the thread."""
        self._thread.is_stopping = True
        self._news.end()
        self._thread.stop()
        self._news.close()

    def _step(self) -> float | None:
        with self._guard:
            if not self._waiting:
                return None
        try:
            count = self._news.wait(self.count, NEWS_S)
        except StoreError as error:
            self._deliver_to_all(error)
            return None
        if count == self.count:
            return 0.0
        with self._guard:
            self.count = count
            waiting = list(self._waiting)
        for consumer in waiting:
            if consumer.take_news():
                self.remove(consumer)
        return 0.0

    def _deliver_to_all(self, error: StoreError) -> None:
        with self._guard:
            waiting, self._waiting = list(self._waiting), {}
        for consumer in waiting:
            consumer.deliver([], error)


class AsyncMessage:
    """A message that a consumer handed out."""

    def __init__(self, consumer: AsyncConsumer, stored: StoredMessage) -> None:
        """Create it; called by `AsyncConsumer`."""
        self.stored = stored
        self._consumer = consumer

    @property
    def topic(self) -> str:
        """The topic; of a message that comes again, that of the group's retries."""
        return self.stored.topic

    @property
    def body(self) -> bytes:
        """The body as stored."""
        return self.stored.body

    @property
    def tags(self) -> str | None:
        """The tags; None without any."""
        return self.stored.tags

    @property
    def keys(self) -> list[str]:
        """The keys of the message."""
        return self.stored.keys

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the message."""
        return self.stored.properties

    @property
    def queue_id(self) -> int:
        """The id of its queue."""
        return self.stored.queue_id

    @property
    def queue_offset(self) -> int:
        """The offset in its queue."""
        return self.stored.queue_offset

    @property
    def reconsume_times(self) -> int:
        """How often it was sent back."""
        return self.stored.reconsume_times

    async def ack(self) -> bool:
        """Acknowledge it, as `Consumer.ack`. A cancelled wait does not take it back."""
        return await asyncio.to_thread(self._consumer.opened.ack, self.stored)

    async def extend(self, seconds: float) -> bool:
        """Renew its visibility time, as `Consumer.extend`."""
        return await asyncio.to_thread(self._consumer.opened.extend, self.stored, seconds)

    async def nack(self, *, delay_level: int = 0) -> PutResult | None:
        """Send it back, as `Consumer.nack`."""
        return await asyncio.to_thread(self._consumer.opened.nack, self.stored, delay_level=delay_level)

    def __repr__(self) -> str:
        """Show the stored message."""
        return f"<AsyncMessage {self.stored!r}>"


class AsyncConsumer:
    """An asynchronous iterator over a topic's messages. One coroutine at a time iterates."""

    def __init__(self, open_: Callable[[], Opened], news: _News, timeout_s: float | None, fetch_count: int) -> None:
        """Create it; called by `AsyncStore.consumer`."""
        self._fetch_count = fetch_count
        self._returning: set[asyncio.Future[None]] = set()
        self._open = open_
        self._news = news
        self._timeout_s = timeout_s
        self._opened: Opened | None = None
        self._ready: deque[StoredMessage] = deque()
        self._error: StoreError | None = None
        self._order = threading.Lock()  # between a poll and its delivery: messages keep their order
        self._polling: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_closed = self.is_stopped = False

    @property
    def opened(self) -> Opened:
        """The consumer whose methods block; it exists from the first iteration on."""
        if self._opened is None:
            raise StoreError("the consumer is not open: nothing was read from it yet")
        return self._opened

    async def __aenter__(self) -> Self:
        """Return the consumer itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the consumer on leaving the block."""
        await self.close()

    def __aiter__(self) -> Self:
        """Return the consumer itself."""
        return self

    async def __anext__(self) -> AsyncMessage:
        """Return the next message; the iteration ends at `stop` or `close`, or when nothing came for the time-out."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._wait()
        except TimeoutError:
            raise StopAsyncIteration from None
        if not self._ready or self.is_stopped:
            raise StopAsyncIteration
        return AsyncMessage(self, self._ready.popleft())

    async def _wait(self) -> None:
        """Return when a message is ready or the consumer is closed."""
        self._loop = asyncio.get_running_loop()
        while not self._ready and not self._is_ended():
            seen = self._news.count
            await self._poll()
            if self._ready or self._is_ended():
                return
            waiter = self._waiter = self._loop.create_future()
            if not self._news.add(self, seen):
                continue
            try:
                await waiter
            finally:
                self._news.remove(self)
            if self._error is not None and not self._is_ended():
                error, self._error = self._error, None
                raise error

    async def _poll(self) -> None:
        """Poll in another thread. What it finds is kept if the coroutine is cancelled meanwhile."""
        if self._polling is None or self._polling.done():
            self._polling = asyncio.ensure_future(asyncio.to_thread(self._blocking_poll))
        await asyncio.shield(self._polling)

    def _blocking_poll(self) -> None:
        with self._order:
            if self._opened is None:
                self._opened = self._open()
            self.deliver(self._opened.poll(self._fetch_count, 0), None)

    def take_news(self) -> bool:
        """Poll on the news thread and hand over what is found; return whether the coroutine need not wait any longer."""
        with self._order:
            error: StoreError | None = None
            found: list[StoredMessage] = []
            try:
                found = self.opened.poll(self._fetch_count, 0)
            except StoreError as raised:
                error = raised
            if found or error is not None:
                self.deliver(found, error)
                return True
            return False

    def deliver(self, found: list[StoredMessage], error: StoreError | None) -> None:
        """Hand messages or an error to the event loop, from another thread."""
        loop = self._loop
        assert loop is not None

        def resolve() -> None:
            self._ready.extend(found)
            self._error = error or self._error
            self._end_wait()
            if self.is_stopped:
                self._return_ready()

        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(resolve)

    def _is_ended(self) -> bool:
        return self.is_closed or self.is_stopped

    def _end_wait(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def stop(self) -> None:
        """End the iteration, as `Consumer.stop`. Call it in the event loop: `loop.add_signal_handler(SIGTERM, consumer.stop)`.

        What is in hand can still be acknowledged; messages that were fetched ahead go back.
        """
        self.is_stopped = True
        self._end_wait()
        self._return_ready()

    def _return_ready(self) -> None:
        """Give back what was fetched and not iterated over, in another thread, and let others have the queues."""
        opened, ready = self._opened, list(self._ready)
        self._ready.clear()
        if opened is None or self.is_closed:
            return
        first: dict[tuple[str, int], int] = {}
        for message in ready:
            first.setdefault((message.topic, message.queue_id), message.queue_offset)

        def give_back() -> None:
            opened.stop()
            for (topic, queue_id), queue_offset in first.items():
                opened.give_back(topic, queue_id, queue_offset)
            opened.poll(1, 0)  # hands the queues over

        returning = asyncio.ensure_future(asyncio.to_thread(give_back))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)

    async def close(self) -> None:
        """Leave the queues to others of the group. What was handed out and not acknowledged is delivered again."""
        self.is_closed = True
        self._end_wait()
        await asyncio.gather(*self._returning, return_exceptions=True)
        opened = self._opened
        if opened is not None:
            await asyncio.to_thread(opened.close)
