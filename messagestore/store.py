"""The store that an application opens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from commitlog import Message, PutResult, PutStatus, StoredMessage
from consumequeue import ConsumeQueue
from storageio import (
    REAL_DISK,
    Disk,
    DiskError,
    FlushTimeout,
    InvalidMessage,
    PutRejected,
    RefusedMessage,
    StoreReadOnly,
    UnknownStore,
    in_forked_child,
    memory_bytes,
)
from storageio.settings import settings_or_default
from storebytes.java_hash import java_hash_code

from .broker.services.admission import topic_problem
from .broker.services.copying import Copied, CopyClock, check_topics, copy_topics
from .broker.services.half_messages import HalfMessage
from .broker.services.putting import refused
from .broker.services.replication import append_data, read_log_bytes
from .broker.services.transactions import Decide, Transaction
from .broker.services.wire_batch import decode_wire_batch
from .config import Role, StoreConfig
from .engine import Engine
from .foreign import refuse_foreign, refuse_unsupported
from .read._lookup_cy import ReadPath
from .read.compression import decompress
from .read.consumer import Consumer
from .read.follower import Follower, LogFollower, OwnFollower
from .read.queue_reader import Page, QueueReader
from .write.retention import Retention

if TYPE_CHECKING:
    import pyarrow as pa

MODES = ("a", "r", "r+", "x")
PRODUCER_GROUP = "DEFAULT_PRODUCER"
BUSY_MS_MAX = 10_000_000
MEMORY_SHARE = 0.4
THREAD_PREFIX = "brokerstore-"
_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _abandon_all() -> None:  # pragma: no cover - runs in a forked child alone, whose lines nobody counts
    """In a forked child: every store belongs to the parent."""
    for engine in list(_open_engines):
        engine.abandon()


in_forked_child(_abandon_all)


class MessageStore(ReadPath):
    """A folder of messages, as RocketMQ keeps it.  `put` and `put_many` are in `_put_cy`, `message_at`, `query` and
    `offset_by_time` in `_lookup_cy`.

    One process writes; any number read.  All methods may be called from any thread.  `put` and the like return when the
    flush mode's promise is kept: written, or on the disk.  A store that is not closed is closed at exit.
    """

    _engine: Engine
    _reader: QueueReader

    def __init__(self, engine: Engine) -> None:
        """Made by `open`."""
        super().__init__(engine)
        self._topics = engine.topics
        self._append = engine.log.appender.append
        if engine.writable:
            self._dispatcher = engine.dispatcher
            self._routing = engine.routing
            self._admitted = engine.admission.queues_of
        self._reader = QueueReader(engine.log, engine.lookup, engine.config, _memory_share, engine.refresh, engine.derived)
        self._turn = itertools.count()
        self._finalizer = weakref.finalize(self, _close, engine)

    # Opening and closing

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: str = "a",
        config: StoreConfig | None = None,
        *,
        disk: Disk = REAL_DISK,
        clock: Callable[[], int] | None = None,
    ) -> MessageStore:
        """Modes: "a" opens for writing and creates, "r+" must exist, "x" must not, "r" only reads and changes nothing.

        Raises `InvalidSetting` for a `config` of another type, `StoreLocked` when somebody writes, `UnknownStore` when there is
        none, `UnsupportedFormat` when its queues or its log are of a kind that is not read here or, for writing, when any part
        is of an unknown version, `StoreCorrupt` for damage to safely stored data.
        """
        config = settings_or_default(config, StoreConfig, "config")
        root = os.fspath(path)
        if mode not in MODES or not isinstance(root, str):
            raise ValueError(f"mode {mode!r}: one of {', '.join(MODES)}; the path is text")
        if mode == "r":
            refuse_foreign(disk, root)
        else:
            refuse_unsupported(disk, root, config.store_path_commit_log)
        exists = disk.stat(os.path.join(root, "commitlog")) is not None or bool(config.store_path_commit_log)
        if mode in ("r", "r+") and not exists:
            raise UnknownStore(f"{root}: no commitlog folder in it")
        if mode == "x" and exists:
            raise UnknownStore(f"{root}: there is a store already")
        engine = Engine(root, config, disk, clock, writable=mode != "r")
        store = cls(engine)
        if engine.writable:
            _open_engines.add(engine)
        return store

    def close(self) -> None:
        """Flush, dispatch, write the checkpoint, take the abort file away.  Twice is harmless."""
        self._finalizer()

    def close_cleanly(self) -> None:
        """`close`, and raise what kept it from a clean stop: what was put may not be on the disk then, or in no queue yet."""
        self.close()
        self._engine.check_clean_stop()

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Where it is and how it was opened."""
        state = "closed" if self._engine.is_closed else "writing" if self._engine.writable else "reading"
        return f"<MessageStore {self.path} {state}>"

    @property
    def path(self) -> str:
        """The folder."""
        return self._engine.places.root

    @property
    def config(self) -> StoreConfig:
        """With the sizes that were found."""
        return self._engine.config

    @property
    def engine(self) -> Engine:
        """The parts, for tools and tests."""
        return self._engine

    # Writing

    def create_topic(self, topic: str, queues: int | None = None, *, attributes: dict[str, str] | None = None) -> None:
        """A topic of that many queues (RocketMQ's topics.json); a known one keeps what it has.

        `attributes` are RocketMQ's, such as {"queue.type": "BatchCQ"}.
        """
        self._engine.check_open()
        self._must_write()
        self._engine.admission.admit(topic, queues)
        if attributes:
            self._engine.admission.set_attributes(topic, attributes)

    def put_batch(self, topic: str, queue_id: int, messages: list[Message], *, check: bool = True) -> PutResult:
        """Put messages of one queue, all or none, in one file (RocketMQ's batch).

        Raises as `put` does, and with `check=False` says in the result's status what `put` says there.  A message or batch that
        is too large is a `RefusedMessage`, both `PutRejected` and `InvalidMessage`.
        """
        refusal = self._refusal(topic)
        if refusal is not None:
            return self._answer(refusal, check)
        with _named_errors():
            for message in messages:
                if message.topic != topic or message.queue_id not in (-1, queue_id):
                    raise InvalidMessage("a batch has one topic and one queue")
            try:
                result = self._routing.append_batch(messages, queue_id)
            except RefusedMessage as error:
                if check:
                    raise
                result = refused(PutStatus(error.status), error.reason)
        return self._finish(result, check)

    def put_wire_batch(
        self, topic: str, queue_id: int, data: bytes, *, properties: bytes = b"", check: bool = True, **fields: Any
    ) -> PutResult:
        """Put a batch as RocketMQ's clients send it: members end to end (format page, section 7.4), all or none in one file.

        `properties`: of the batch, as the log keeps them; they go behind every member's own.  `fields`: of `Message`, for every
        member.  Raises `InvalidMessage` for bytes that are no members.
        """
        messages = decode_wire_batch(topic, queue_id, data, properties, **fields)
        return self.put_batch(topic, queue_id, messages, check=check)

    def append_columns(
        self, topic: str, queue_id: int, bodies: Any, *, keys: Any = None, tags: Any = None, properties: bytes = b"",
        check: bool = True,
    ) -> PutResult:  # fmt: skip
        """Put one message a row, without a Python object for any: Arrow arrays, NumPy arrays, or lists of bytes and text."""
        from commitlog.column_input import offsets_and_data  # NumPy takes 80 ms

        refusal = self._refusal(topic)
        if refusal is not None:
            return self._answer(refusal, check)
        key_column = None if keys is None else offsets_and_data(keys, name="keys", null_is_empty=True)
        tag_column = None if tags is None else offsets_and_data(tags, name="tags", null_is_empty=True)
        offsets, data = offsets_and_data(bodies)
        with self._routing.batch.guard if topic not in self._admitted else contextlib.nullcontext():
            result = self._appender.append_columns(topic, queue_id, offsets, data, key_column, tag_column, properties)
        return self._finish(result, check)

    def put_async(self, message: Message) -> PutFuture:
        """Put one message; the future resolves, or can be awaited, when the flush mode's promise is kept."""
        future = PutFuture()
        future.set_running_or_notify_cancel()  # what is in the log cannot be taken back: no waiter may cancel it
        with _named_errors():
            refusal = self._refusal(message.topic)
            if refusal is not None:
                future.set_exception(PutRejected(refusal.status, refusal.reason or ""))
                return future
            queue_id = message.queue_id if message.queue_id >= 0 else self._choose(message)
            append = self._routing.append if self._routing.is_special(message) else self._append
            result = append(message, queue_id)
        if result.status is not PutStatus.PUT_OK:
            future.set_exception(PutRejected(result.status, result.reason or ""))
        elif self._is_sync:
            self._engine.flusher.resolve_later(result, future)
        else:
            future.set_result(result)
        return future

    def begin_transaction(self, message: Message, *, producer_group: str = PRODUCER_GROUP) -> Transaction:
        """Prepare a message that nobody sees before `commit()`.  In a `with` block it is committed at the end, and rolled back
        by an error.

            with store.begin_transaction(Message("orders", b"...")) as transaction:
                ...                                     # the work that belongs to it

        After a crash `undecided_transactions` knows it.
        """
        refusal = self._refusal(message.topic)
        if refusal is not None:
            raise PutRejected(refusal.status, refusal.reason or "")
        with _named_errors():
            queue_id = message.queue_id if message.queue_id >= 0 else self._choose(message)
            return self._engine.transactions.begin(message, queue_id, producer_group)

    def undecided_transactions(self, older_than_ms: int = 0) -> list[HalfMessage]:
        """Prepared messages that were neither committed nor rolled back, oldest first; known after a restart too."""
        self._must_write()
        return self._engine.transactions.undecided(older_than_ms)

    def commit_transaction(self, half: HalfMessage) -> PutResult:
        """Commit what `undecided_transactions` listed."""
        self._must_write()
        return self._engine.transactions.commit(half.queue_offset)

    def roll_back_transaction(self, half: HalfMessage) -> None:
        """Roll back what `undecided_transactions` listed."""
        self._must_write()
        self._engine.transactions.rollback(half.queue_offset)

    def check_transactions(self, decide: Decide, *, older_than_ms: int | None = None) -> int:
        """Ask `decide` about each undecided one, as a broker asks its producers: True commits, False rolls back, None waits.

        How many were asked about.  Younger ones than `transaction_timeout_ms` are left out unless said otherwise.
        """
        self._must_write()
        config = self._engine.config
        age_ms = config.transaction_timeout_ms if older_than_ms is None else older_than_ms
        return self._engine.transactions.check(decide, age_ms, config.transaction_check_max)

    # Copies of it

    @property
    def log_end(self) -> int:
        """The physical offset behind the last record."""
        self._engine.check_open()
        self._engine.refresh()
        return self._engine.log.written_offset if self._engine.writable else self._engine.log.find_end().offset

    def read_log_bytes(self, offset: int, max_bytes: int = 1 << 20) -> bytes:
        """Raw bytes of the log, whole records from `offset` on: what a slave's `append_data` takes.  Empty at the end."""
        self._engine.check_open()
        self._engine.refresh()
        return read_log_bytes(self._engine, offset, max_bytes)

    def append_data(self, physical_offset: int, data: bytes) -> int:
        """As a slave (`Role.SLAVE`): take raw bytes of a master's log at the end of this one; where it ends now.

        Everything is checked before anything is written: whole records that lie where they say, with their checksums.  Raises
        `StoreCorrupt` for others, `InvalidMessage` for an offset that is not the end, `PutRejected` on a master.
        """
        self._must_write()
        return append_data(self._engine, physical_offset, data)

    def copy_topics(
        self, path: str | os.PathLike[str], topics: Sequence[str], config: StoreConfig | None = None, *,
        progress: Callable[[int], None] | None = None,
    ) -> Copied:  # fmt: skip
        """Copy topics into a new store at `path`: messages with their offsets and times, what is known of the topics, and the
        offsets of the groups that read them.

        `config` may ask for other file sizes.  Raises `InvalidMessage` for a topic that is not here, `UnknownStore` where a
        store is already, `DiskError` where the copy could not be brought to the disk.
        """
        given = self._engine.config if config is None else settings_or_default(config, StoreConfig, "config")
        self._engine.settle()
        check_topics(self._engine, topics)
        clock = CopyClock()
        wanted = given.but(
            deliver_delayed=False, broker_role=Role.ASYNC_MASTER, store_path_commit_log=None,
            mapped_file_size_commit_log=given.mapped_file_size_commit_log or self._engine.log.file_size_bytes,
            message_delay_level=self._engine.levels.current if given.message_delay_level is None else given.message_delay_level,
        )  # fmt: skip
        with MessageStore.open(path, "x", wanted, disk=self._engine.disk, clock=clock) as target:
            copied = copy_topics(self._engine, target.engine, target.engine.admission, clock, topics, progress)
            target.close_cleanly()
        return copied

    def flush(self) -> int:
        """Bring everything that is written to the disk; the flushed offset."""
        self._engine.check_open()
        self._must_write()
        return self._engine.flusher.flush_now()

    def delete_expired(self) -> int:
        """Delete log files older than `file_reserved_time_hours` now, whatever the hour; how many (section 6.7).

        The last file stays; queue and index files that only point at deleted records go too.
        """
        return self._retention().delete_expired()

    def delete_before(self, physical_offset: int) -> int:
        """Delete the log files that end at or before an offset, whatever their age; how many.  The last file stays."""
        return self._retention().delete_before(physical_offset)

    def _retention(self) -> Retention:
        self._engine.check_open()
        self._must_write()
        return self._engine.retention

    def _finish(self, result: PutResult, check: bool) -> PutResult:
        if result.status is PutStatus.PUT_OK and self._is_sync:
            self._wait_flushed(result, None, check)
        return result if result.status is PutStatus.PUT_OK else self._answer(result, check)

    def _wait_flushed(self, result: PutResult, message: Message | None, check: bool) -> None:
        """Group commit; a message with the property WAIT=false does not wait (section 6.3)."""
        if message is not None and message.properties and message.properties.get("WAIT") == "false":
            return
        try:
            self._engine.flusher.wait(
                self._appender.end_offset if message is None else result.physical_offset + result.size_bytes
            )
        except FlushTimeout as error:
            result.status, result.reason = PutStatus.FLUSH_DISK_TIMEOUT, str(error)
            if check:
                raise
        except DiskError as error:
            result.status, result.reason = PutStatus.FLUSH_DISK_TIMEOUT, str(error)
            if check:
                raise PutRejected(PutStatus.FLUSH_DISK_TIMEOUT, str(error)) from error

    def _answer(self, result: PutResult, check: bool) -> PutResult:
        """A refusal, as an error or as it is."""
        if check:
            raise PutRejected(result.status, result.reason or "", result.message_count)
        return result

    def _refusal(self, topic: str) -> PutResult | None:
        """The checks of row R2, in RocketMQ's order (section 7.2)."""
        engine = self._engine
        if engine.is_closed:
            engine.check_open()
        if not engine.writable:
            self._must_write()
        if engine.config.broker_role is Role.SLAVE:
            return refused(PutStatus.SERVICE_NOT_AVAILABLE, "the store is a slave")
        if not engine.flags.is_writeable:
            return refused(PutStatus.SERVICE_NOT_AVAILABLE, engine.flags.reason)
        if topic not in self._admitted:
            reason = topic_problem(topic)
            if reason:
                return refused(PutStatus.MESSAGE_ILLEGAL, reason)
            self._engine.admission.admit(topic)
        if self._lock.locked() and self._is_page_cache_busy():
            return refused(PutStatus.OS_PAGE_CACHE_BUSY, "the append lock has been held for too long")
        if engine.dispatcher.is_idle:
            engine.dispatcher.wake()
        return None

    def _is_page_cache_busy(self) -> bool:
        """Whether one append holds the lock for longer than it may: nothing was appended since, seen twice."""
        limit_ms = self._engine.config.os_page_cache_busy_timeout_ms
        before = self._appender.last_store_timestamp_ms
        if not limit_ms < self._engine.disk.now_ms() - before < BUSY_MS_MAX:
            return False
        time.sleep(0.001)
        return self._appender.lock.locked() and self._appender.last_store_timestamp_ms == before

    def _choose(self, message: Message) -> int:
        """By the first key, so that what belongs together keeps its order; else in turn."""
        number = self._admitted.get(message.topic) or self._engine.admission.batch_queues_of[message.topic]
        keys = message.keys
        if keys:
            return (java_hash_code(keys[0]) & 0x7FFFFFFF) % number
        return next(self._turn) % number

    def _must_write(self) -> None:
        if not self._engine.writable:
            raise StoreReadOnly(f"{self.path}: opened for reading")

    # Reading

    def topics(self) -> list[str]:
        """Those that have queues on the disk, and those only written down."""
        self._discover()
        return sorted({*self._engine.queues.topics(), *self._engine.derived.batch.topics(), *self._topics.names()})

    def queue_ids(self, topic: str) -> list[int]:
        """Those that have had a message."""
        self._discover()
        return self._engine.queues.queue_ids(topic) or self._engine.derived.batch.queue_ids(topic)

    def get(
        self, topic: str, queue_id: int, offset: int, max_count: int = 32, *, max_bytes: int = 128 << 20,
        tags: set[str] | None = None,
    ) -> Page:  # fmt: skip
        """One page from a queue offset, with a status and the offset to go on at (format page, section 8.1).

        Of a batch queue each record counts as the messages that it holds, as in RocketMQ; the first record always fits.
        """
        self._engine.settle()
        return self._reader.page(topic, queue_id, offset, max_count, max_bytes, tags)

    def read(self, topic: str, queue_id: int, start: int = 0, stop: int | None = None) -> Iterator[StoredMessage]:
        """Every message of a queue from `start` to before `stop`, or to the end as it is at the call."""
        queue = self._queue(topic, queue_id)
        batch = self._reader.batch_queue(topic, queue_id) if queue is None else None
        if batch is not None:
            return self._reader.batch_messages(batch, max(start, 0), batch.max_offset if stop is None else stop)
        if queue is None:
            return iter(())
        end = queue.max_offset if stop is None else min(stop, queue.max_offset)
        return self._reader.messages(queue, max(start, queue.min_offset), end)

    def read_raw(
        self, topic: str, queue_id: int, start: int = 0, stop: int | None = None, *, check: bool = True
    ) -> Iterator[list[memoryview]]:
        """As `read`, but each record's bytes as they lie in the log (format page, section 1), as views, many at a time.

        Where a record lies and how long it is is checked, nothing inside it.  A view keeps its file's map alive.  With
        `check=False` the queue is believed, and no record is touched, which takes half the time: for who checks each
        record himself, since a damaged queue then gives other bytes of the log in a record's place.
        """
        queue = self._queue(topic, queue_id)
        if queue is None:
            return iter(())
        end = queue.max_offset if stop is None else min(stop, queue.max_offset)
        return self._reader.views(queue, max(start, queue.min_offset), end, check=check)

    def read_columns(
        self, topic: str, queue_id: int, start: int = 0, stop: int | None = None, *, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """As `read`, in Arrow batches and without a Python object for any message; bodies as they are stored.

        `columns`: of `commitlog.arrow_columns.COLUMNS`, all when not said.
        """
        from commitlog.arrow_columns import COLUMNS  # Arrow takes 150 ms

        from .read.queue_columns import read_queue_columns

        queue = self._queue(topic, queue_id)
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        end = high if stop is None else min(stop, high)
        reader = self._reader
        return read_queue_columns(
            self._engine.log, queue, max(start, low), end, columns or COLUMNS, reader.message_or_gone, reader._low
        )

    def follow(self, start: int | None = None, end: str = "written", *, timeout_s: float | None = None) -> Follower:
        """The log as it grows, from the record at a physical offset (the oldest) on, in log order.

        `end`: "written", or "durable" for what is on the disk for sure.  The iteration waits for more until it is closed,
        or until nothing came for `timeout_s`.  Beside a writer that was recovered to less it raises `StoreRewound`.
        """
        self._engine.check_open()
        kind = OwnFollower if self._engine.writable else LogFollower
        return kind(self._engine, start, end, timeout_s)

    def consumer(
        self, topic: str, *, group: str, queues: list[int] | None = None, tags: set[str] | None = None,
        timeout_s: float | None = None, start: str = "first", missing_topic: str = "wait",
    ) -> Consumer:  # fmt: skip
        """Iterate over a topic's messages, of all queues or the given ones, from where the group left off.

        `start`: where a group begins that never read the topic, at the "first" message or behind the "last".  The iteration
        waits for more until it is closed, or until nothing came for `timeout_s`.  Consumers of one group in this process
        share the queues, but for those that were given queues.

        `missing_topic`: what to do where there is no such topic: "wait" logs a warning and waits for its first message, "error"
        raises `InvalidMessage`.
        """
        self._engine.settle()
        retries = self._engine.retries if self._engine.writable else None
        return Consumer(self._engine, retries, self._reader, topic, group, queues, tags, timeout_s, start, missing_topic)

    def committed_offsets(self, topic: str, group: str) -> dict[int, int]:
        """Queue id to the offset of the first message that a group is not done with."""
        self._engine.check_open()
        return self._engine.consumer_offsets().offsets_of(topic, group)

    def plain_body(self, message: StoredMessage) -> bytes:
        """A message's body as its producer gave it: decompressed where a client compressed it (system flag bit 0).

        Raises `StoreCorrupt` for bytes that are not what the flag says, or that grow beyond 64 MiB, and `MissingExtra` where
        LZ4 or Zstandard is not installed.
        """
        return decompress(message.body, message.sys_flag, file=self.path, offset=message.physical_offset)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When a message was stored, -1 when it is not there."""
        queue = self._queue(topic, queue_id)
        batch = self._reader.batch_queue(topic, queue_id) if queue is None else None
        if batch is not None:
            found = batch.unit(batch.index_of(queue_offset)) if queue_offset >= max(batch.min_offset, 0) else None
            return found.store_timestamp_ms if found is not None else -1
        unit = queue.unit(queue_offset) if queue is not None else None
        return self._reader.store_time(unit.physical_offset, unit.size_bytes) if unit is not None else -1

    @property
    def unsearched_bytes(self) -> int:
        """How many bytes of the log behind the key index the last `query` of a reader did not search; 0: it searched all.

        A reader searches up to 64 MiB of the log that a writer, or a killed one, has not put into the index yet.
        """
        return 0 if self._engine.writable else self._engine.unindexed.unsearched_bytes

    @property
    def undispatched_messages(self) -> int | None:
        """How many messages of a folder opened for reading are in the log and not in all of their queues; None: not known.

        Queue reads (`get`, `read`, `read_columns`, `offset_by_time`, `max_offset`, consumers) do not see these messages, and
        the first of them logs a warning.  A killed writer leaves such messages; the next opening for writing, or
        `rebuild_store`, puts them into their queues.  `message_at`, `query` and `follow` find them.

        Counting costs a walk over at most 128 MiB of log, once, and nothing after a clean stop.  The number is not known where
        that was not enough, where the log is damaged, and beside a live writer, who dispatches meanwhile.
        """
        self._engine.check_open()
        if self._engine.writable:
            return 0
        self._engine.refresh()
        return self._engine.undispatched.messages

    def earliest_time(self) -> int:
        """The store time of the oldest record, -1 without one."""
        self._engine.check_open()
        self._engine.refresh()
        return self._reader.store_time(max(self._engine.log.min_offset, 0), 0)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset that still has its message."""
        queue = self._queue(topic, queue_id)
        batch = self._reader.batch_queue(topic, queue_id) if queue is None else None
        return queue.min_offset if queue is not None else max(batch.min_offset, 0) if batch is not None else 0

    def max_offset(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """Behind the last readable message; with `committed=False` the next offset that a put will get."""
        if not committed and self._engine.writable:
            self._engine.check_open()
            return self._engine.offsets.next_offset(topic, queue_id)
        queue = self._queue(topic, queue_id) or self._reader.batch_queue(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """A queue with all that was put before the call."""
        self._engine.settle()
        return self._engine.lookup.get(topic, queue_id)

    def _discover(self) -> None:
        """See every queue that has a message."""
        self._engine.settle()
        if self._engine.view is not None:
            self._engine.view.discover()


class PutFuture(Future[PutResult]):
    """A put's outcome; `result()` waits for it, and a coroutine may await it."""

    def __await__(self) -> Iterator[Any]:
        """Wait without blocking the event loop."""
        return asyncio.wrap_future(self).__await__()


def _close(engine: Engine) -> None:
    """Of a store that was closed, or forgotten: the collector may find that on one of its own threads, which cannot end
    itself.
    """
    if threading.current_thread().name.startswith(THREAD_PREFIX):
        threading.Thread(target=engine.close, name="store-closer").start()
    else:
        engine.close()


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """What is no message, and text that no file could hold."""
    try:
        yield
    except UnicodeEncodeError as error:  # pragma: no cover - whoever encodes text names it before
        raise InvalidMessage(str(error)) from error
    except AttributeError as error:
        raise TypeError(f"a Message is wanted: {error}") from error


def _memory_share() -> int:
    return int(memory_bytes() * MEMORY_SHARE)
