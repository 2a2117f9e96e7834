"""The store that an application opens."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

from commitlog import Message, PutResult, PutStatus, StoredMessage, offsets_and_data
from commitlog.compression import decompress
from commitlog.layout import FOREVER_MS
from commitlog.status import FINAL
from commitlog.topic_names import DEAD_PREFIX, RETRY_PREFIX
from consumequeue import Queue
from storageio import (
    REAL_DISK,
    Closing,
    Disk,
    InvalidMessage,
    OutOfRange,
    RefusedMessage,
    StoreReadOnly,
    UnknownStore,
    in_forked_child,
)
from storageio.settings import check_mode, check_names, check_type, settings_or_default

from . import administration
from .administration import OffsetTarget
from .broker.config.topics import needs_entry
from .broker.services.copying import Copied, CopyClock, check_topics, copy_topics
from .broker.services.half_messages import HalfMessage, undecided
from .broker.services.replication import append_data, read_log_bytes
from .broker.services.transactions import Decide, Transaction
from .broker.services.wire_batch import decode_wire_batch
from .config import Role, StoreConfig
from .engine import Engine
from .folder import FolderFacts
from .property_names import IS_BATCH
from .read._lookup_cy import LookupMethods
from .read.consumer import Consumer
from .read.delivery_rules import DeliveryRules
from .read.follower import Follower, LogFollower, OwnFollower
from .read.queue_reader import Page, QueueReader
from .read.tag_query import query_tag
from .read.topics_consumer import OwnTopics, Topics, TopicsConsumer, consume_topics
from .write.put_future import PutFuture
from .write.put_rules import PutRules
from .write.putting import check_rows, is_special_raw, messages_of, put_many_when_free, refused, rejection
from .write.retention import Retention

if TYPE_CHECKING:
    import pyarrow as pa

    from storebytes.arrow_table import Offsets

    from .metrics import Metrics
    from .read.queue_columns import Selection
    from .read.scan import Scan, Time

MODES = ("a", "r", "r+", "x")
PRODUCER_GROUP = "DEFAULT_PRODUCER"
THREAD_PREFIX = "brokerstore-"
_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _abandon_all() -> None:  # pragma: no cover - runs only in a forked child, where coverage is not measured
    """Abandon every store in a forked child: it belongs to the parent."""
    for engine in list(_open_engines):
        engine.abandon()


in_forked_child(_abandon_all)


class MessageStore(LookupMethods, Closing):
    """A RocketMQ store folder.

    One process writes; any number read.  All methods may be called from any thread.  A put returns when the message is as
    durable as the flush mode promises: written, or on the disk.  A store that is not closed is closed at exit.
    """

    def __init__(self, engine: Engine) -> None:
        """Create it from an open engine; use `open`."""
        self._engine = engine
        super().__init__(engine, PutRules(engine, engine.admission if engine.writable else None))
        self._reader = QueueReader(engine)
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
    ) -> Self:
        """Open a store.  Modes: "a" writes and creates, "r+" needs a store, "x" needs that there is none, "r" only reads.

        `clock` returns the time in milliseconds; store times, delays and the age of files follow it.

        Raises `InvalidSetting` for a `config` of another type, or in place of the mode; `StoreLocked` while another process
        writes; `UnknownStore` if there is no store; `UnsupportedFormat` for queues or a log of an unsupported kind and, for
        writing, for any part of an unknown version; `StoreCorrupt` for damage to safely stored data.
        """
        check_mode(mode, MODES, "open(path, config=config)")
        config = settings_or_default(config, StoreConfig, "config")
        root = os.fspath(path)
        if not isinstance(root, str):
            raise ValueError("the path is text")
        facts = FolderFacts(root, disk, config.store_path_commit_log)
        if mode == "r":
            facts.refuse_foreign()
            if facts.commit_log:
                config = config.but(store_path_commit_log=facts.commit_log)
        else:
            facts.refuse_unsupported()
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
        """Flush, dispatch, write the checkpoint and remove the abort file.  A second call does nothing."""
        self._finalizer()

    def close_cleanly(self) -> None:
        """Close, and raise the error that prevented a clean stop: messages may be missing on the disk or in their queues."""
        self.close()
        self._engine.check_clean_stop()

    def __repr__(self) -> str:
        """Show the folder and how it was opened."""
        state = "closed" if self._engine.is_closed else "writing" if self._engine.writable else "reading"
        return f"<MessageStore {self.path} {state}>"

    @property
    def path(self) -> str:
        """Path of the store's folder."""
        return self._engine.paths.root

    @property
    def config(self) -> StoreConfig:
        """The configuration, with the sizes that were detected."""
        return self._engine.config

    @property
    def engine(self) -> Engine:
        """The engine, for tools and tests."""
        return self._engine

    # Writing

    def put_many(
        self, messages: list[Message] | str, bodies: Sequence[bytes] | None = None, *, tags: Sequence[str | None] | None = None,
        keys: Sequence[str | None] | None = None, queue_id: int = -1, check: bool = True, block_s: float = 0,
    ) -> PutResult:  # fmt: skip
        """Put messages under one lock, or a topic's bodies with their tags and keys, for which no message objects are made.

            store.put_many("orders", [b"...", b"..."], keys=["order-17", "order-18"])

        `message_count` of the result is the number that was written, of a refusal's the number of messages that need no other
        put.  `block_s`: seconds to wait for space, in which more and more of them may be written.

        An invalid message is found before the first one is written.  Raises as `put` does, `InvalidMessage` with `check=False`
        too; a message that is refused for its size raises `RefusedMessage`, both `PutRejected` and `InvalidMessage`.
        """
        if block_s:
            given = messages_of(messages, bodies, tags, keys, queue_id)
            return put_many_when_free(lambda left: self._put_messages(left, False), given, check, block_s)
        if type(messages) is str:
            check_rows(bodies, tags, keys)
            return self.append_columns(messages, queue_id, bodies, keys=keys, tags=tags, check=check)
        return self._put_messages(messages_of(messages, bodies, tags, keys, queue_id), check)

    def create_topic(self, topic: str, queues: int | None = None, *, attributes: dict[str, str] | None = None) -> None:
        """Create a topic with a number of queues in RocketMQ's topics.json; do nothing if it exists with this number.

        `attributes` are RocketMQ's, such as {"queue.type": "BatchCQ"}.  Raises `InvalidMessage` for a topic that exists with
        another number, which it keeps.
        """
        if attributes is not None:
            check_type("attributes", attributes, dict)
        self._engine.check_open()
        number = self._rules.must_write().create(topic, queues)
        if queues is not None and number != queues:
            raise InvalidMessage(f"topic {topic!r} has {number} queues, not {queues}; the number of an existing topic stays")
        if attributes:
            self._engine.admission.set_attributes(topic, attributes)

    def put_batch(self, topic: str, queue_id: int, messages: list[Message], *, check: bool = True) -> PutResult:
        """Put messages of one queue, all or none, in one log file (RocketMQ's batch).

        Raises as `put` does; with `check=False` the status of the result has the refusal.  A message or batch that is too large
        raises `RefusedMessage`, which is both `PutRejected` and `InvalidMessage`.
        """
        return self._put_batch(topic, queue_id, messages, check, is_plain=False)

    def _put_batch(self, topic: str, queue_id: int, messages: list[Message], check: bool, *, is_plain: bool) -> PutResult:
        refusal = self._rules.refusal(topic, queue_id)
        if refusal is not None:
            return self._rules.answer(refusal, check)
        with _named_errors():
            for message in () if is_plain else messages:
                if message.topic != topic or message.queue_id not in (-1, queue_id):
                    raise InvalidMessage("a batch has one topic and one queue")
            try:
                result = self._engine.routing.append_batch(messages, queue_id, is_plain=is_plain)
            except RefusedMessage as error:
                if check:
                    raise
                result = refused(PutStatus(error.status), error.reason)
        return self._rules.finish(result, check)

    def put_wire_batch(
        self, topic: str, queue_id: int, data: bytes, *, properties: bytes = b"", check: bool = True, **fields: Any
    ) -> PutResult:
        """Put a batch in the form in which RocketMQ's clients send it, all or none in one log file.

        `properties` of the batch, encoded as in the log, are appended to those of every member.  `fields` of `Message` are set
        for every member.  Raises `InvalidMessage` for bytes that are not a batch.
        """
        messages = decode_wire_batch(topic, queue_id, data, properties, **fields)
        is_plain = not fields.get("sys_flag", 0) & IS_BATCH
        is_plain = is_plain and not is_special_raw(b"".join([message.properties_raw or b"" for message in messages]))
        return self._put_batch(topic, queue_id, messages, check, is_plain=is_plain)

    def append_columns(
        self, topic: str, queue_id: int, bodies: Any, *, keys: Any = None, tags: Any = None, properties: bytes = b"",
        check: bool = True,
    ) -> PutResult:  # fmt: skip
        """Put one message per row without message objects.  Columns are Arrow or NumPy arrays, or lists of bytes or str.

        With `queue_id` -1 the store chooses the queue of each row, as for other messages: by its key, or in turn; in a topic
        with priorities the lowest.
        """
        refusal = self._rules.refusal(topic, queue_id)
        if refusal is not None:
            return self._rules.answer(refusal, check)
        if is_special_raw(properties):
            raise InvalidMessage("properties of columns: no delay, no other queues, no number of inner messages")
        key_column = None if keys is None else offsets_and_data(keys, name="keys", null_is_empty=True)
        tag_column = None if tags is None else offsets_and_data(tags, name="tags", null_is_empty=True)
        offsets, data = offsets_and_data(bodies)
        if topic in self._engine.admission.ranked_queues_of:
            queue_id = max(queue_id, 0)
        queues = self._rules.queues_of(topic) if queue_id == -1 else 0
        guard = self._engine.routing.batch.guard if topic not in self._rules.admitted else contextlib.nullcontext()
        with _named_errors(), guard:
            result = self._engine.log.appender.append_columns(
                topic, self._rules.next_turn() % queues if queues else queue_id, offsets, data, key_column, tag_column,
                properties, queues,
            )  # fmt: skip
            if check and result.status in FINAL:
                raise RefusedMessage(result.status, result.reason or "")
        return self._rules.finish(result, check)

    def put_async(self, message: Message) -> PutFuture:
        """Put one message; the future, which can be awaited, resolves when it is as durable as the flush mode promises."""
        future = PutFuture()
        with _named_errors():
            refusal = self._rules.refusal(message.topic, message.queue_id, message)
            if refusal is not None:
                future.set_exception(rejection(refusal))
                return future
            queue_id = self._rules.queue_of(message)
            routing = self._engine.routing
            append = routing.append if routing.is_special(message) else self._engine.log.appender.append
            result = append(message, queue_id)
        if result.status is not PutStatus.PUT_OK:
            future.set_exception(rejection(result))
        elif self._engine.config.is_sync_flush:
            self._engine.flusher.resolve_later(result, future)
        else:
            future.set_result(result)
        return future

    def begin_transaction(self, message: Message, *, producer_group: str = PRODUCER_GROUP) -> Transaction:
        """Prepare a message that is invisible until `commit()`.  A `with` block commits at its end and rolls back on an error.

            with store.begin_transaction(Message("orders", b"...")) as transaction:
                ...                                     # the work that belongs to it

        After a crash `undecided_transactions` lists it.
        """
        check_type("message", message, Message)
        refusal = self._rules.refusal(message.topic, message.queue_id, message)
        refusal = refusal or self._engine.routing.transaction_refusal(message)
        if refusal is not None:
            raise rejection(refusal)
        with _named_errors():
            queue_id = self._engine.routing.queue_of(message, self._rules.queue_of(message))
            return self._engine.transactions.begin(message, queue_id, producer_group)

    def undecided_transactions(self, older_than_ms: int = 0) -> list[HalfMessage]:
        """Return prepared messages that nobody committed or rolled back, oldest first, also those from before a restart.

        Without those born less than `older_than_ms` milliseconds ago.  A store opened with "r" is read again at each call, with
        the rows of a broker that keeps open transactions in RocksDB; raises `MissingExtra` if the package for that is missing.
        """
        self._engine.check_open()
        if self._engine.writable:
            return self._engine.transactions.undecided(older_than_ms)
        self._engine.refresh()
        self._discover()
        newest_ms = self._engine.now_ms() - older_than_ms
        return [half for half in undecided(self._engine) if older_than_ms <= 0 or half.message.born_timestamp_ms <= newest_ms]

    def commit_transaction(self, half: HalfMessage) -> PutResult:
        """Commit a message that `undecided_transactions` returned."""
        check_type("half", half, HalfMessage)
        self._rules.must_write()
        return self._engine.transactions.commit(half.queue_offset)

    def roll_back_transaction(self, half: HalfMessage) -> None:
        """Roll back a message that `undecided_transactions` returned."""
        check_type("half", half, HalfMessage)
        self._rules.must_write()
        self._engine.transactions.rollback(half.queue_offset)

    def check_transactions(self, decide: Decide, *, older_than_ms: int | None = None) -> int:
        """Ask `decide` about each undecided message, as a broker asks its producers, and return how many were asked about.

        True commits, False rolls back, None leaves the message undecided.  Messages younger than `older_than_ms`
        are not asked about; by default `transaction_timeout_ms`, or the seconds of the message's own property
        CHECK_IMMUNITY_TIME_IN_SECONDS.
        """
        self._rules.must_write()
        return self._engine.transactions.check(decide, older_than_ms, self._engine.config.transaction_check_max)

    # Copies

    @property
    def log_end(self) -> int:
        """Physical offset of the end of the log."""
        self._engine.check_open()
        self._engine.refresh()
        return self._engine.log.written_offset if self._engine.writable else self._engine.log.find_end().offset

    def read_log_bytes(self, offset: int, max_bytes: int = 1 << 20) -> bytes:
        """Return whole records of the log from `offset` on, for a slave's `append_data`; empty at the end of the log."""
        self._engine.check_open()
        self._engine.refresh()
        return read_log_bytes(self._engine, offset, max_bytes)

    def append_data(self, physical_offset: int, data: bytes) -> int:
        """Append bytes of a master's log to the log of a slave (`Role.SLAVE`); return the new end of the log.

        Every record, its offset and its checksums are checked before anything is written.  Raises `StoreCorrupt` for bytes that
        fail the check, `InvalidMessage` for an offset that is not the end of the log, `PutRejected` on a master.
        """
        self._rules.must_write()
        return append_data(self._engine, physical_offset, data)

    def copy_topics(
        self, path: str | os.PathLike[str], topics: Sequence[str] | None = None, config: StoreConfig | None = None, *,
        progress: Callable[[int], None] | None = None,
    ) -> Copied:  # fmt: skip
        """Copy topics into a new store at `path`: messages with their offsets and times, topic settings, and group offsets.

        Without `topics` all are copied, with the progress of delays, timers and transactions, and every group.  `config` may
        have other file sizes.  Raises `InvalidMessage` for a topic that does not exist, `UnknownStore` if there is a store
        already, `DiskError` if the copy could not be synced.
        """
        given = self._engine.config if config is None else settings_or_default(config, StoreConfig, "config")
        self._engine.settle()
        check_topics(self._engine, topics or ())
        clock = CopyClock()
        requested = given.but(
            deliver_delayed=False, broker_role=Role.ASYNC_MASTER, store_path_commit_log=None,
            mapped_file_size_commit_log=given.mapped_file_size_commit_log or self._engine.log.file_size_bytes,
            max_size_bytes=None,
            message_delay_level=self._engine.levels.current if given.message_delay_level is None else given.message_delay_level,
        )  # fmt: skip
        with MessageStore.open(path, "x", requested, disk=self._engine.disk, clock=clock) as target:
            copied = copy_topics(self._engine, target.engine, target.engine.admission, clock, topics, progress)
            target.close_cleanly()
        return copied

    def flush(self) -> int:
        """Sync everything that is written and acknowledged; return the flushed physical offset."""
        self._engine.check_open()
        self._rules.must_write()
        self._engine.consumer_offsets().sync()
        return self._engine.flusher.flush_now()

    def delete_expired(self) -> int:
        """Delete log files older than `file_reserved_time_hours` now, whatever the hour; return the number deleted.

        The last file stays.  Queue and index files that only point at deleted records are deleted too.
        """
        return self._retention().delete_expired()

    def delete_before(self, physical_offset: int) -> int:
        """Delete log files that end at or before an offset, whatever their age, except the last; return the number deleted."""
        return self._retention().delete_before(physical_offset)

    def _retention(self) -> Retention:
        self._engine.check_open()
        self._rules.must_write()
        return self._engine.retention

    # Topics and groups

    def delete_topic(self, topic: str) -> None:
        """Delete a topic: its queues, its entry in topics.json, and the offsets of all groups in it.

        Its keys are no longer found.  Its records stay in the log until retention deletes their files.  A topic that is
        created again under the name is empty, and continues the numbers of its queues.  Raises `InvalidMessage` for a topic
        that does not exist, that an open consumer uses, or that cannot be deleted: a topic of the store itself, one with batch
        queues, an LMQ, and a compacted one.  The error tells what to do instead.
        """
        administration.delete_topic(self._writing(), topic)

    def delete_group(self, group: str) -> None:
        """Delete a group: its offsets, its settings, and the messages that wait for a retry.  Its dead letters stay.

        Raises `InvalidMessage` for a group that does not exist or has an open consumer.
        """
        administration.delete_group(self._writing(), group)

    def purge(self, topic: str, group: str | None = None) -> int:
        """Skip every message of a topic that a group, or each of its groups, did not acknowledge; return their number.

        Messages in hand are skipped too: their acknowledgement returns False.  Retries in wait stay.  Raises `InvalidMessage`
        for a topic that does not exist, or has no group and none is named.
        """
        return administration.purge(self._writing(), topic, group)

    def reset_offsets(
        self, topic: str, group: str, to: OffsetTarget, *, queues: list[int] | None = None
    ) -> dict[int, int]:  # fmt: skip
        """Set the offset of a group in every queue of a topic, or in some, and return the offsets by queue id.

        `to`: "first", "last", a queue offset, or a datetime for the first message stored then or later.  Consumers of the group
        begin there; what they have in hand is no longer pending.  Raises `InvalidMessage` for an unknown topic or queue, and
        for an offset outside the queue.
        """
        return administration.reset_offsets(self._writing(), topic, group, to, queues)

    def _writing(self) -> Engine:
        """Return the engine of a store whose topics and groups may change."""
        self._engine.check_open()
        self._rules.must_write()
        if self._engine.config.broker_role is Role.SLAVE:
            raise StoreReadOnly(f"{self.path}: a slave has the topics and groups of its master")
        return self._engine

    # Reading

    def topics(self) -> list[str]:
        """Return the topics that have queues on the disk, and those that only topics.json has."""
        self._discover()
        return sorted({*self._engine.lookup.topics(), *self._engine.current_topics().names()})

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues: those that ever had a message, and those that topics.json promises."""
        self._discover()
        known = self._engine.current_topics().get(topic)
        return sorted({*self._engine.lookup.queue_ids(topic), *range(known.write_queues if known is not None else 0)})

    def get(
        self, topic: str, queue_id: int, offset: int, max_count: int = 32, *, max_bytes: int = 128 << 20,
        tags: set[str] | None = None,
    ) -> Page:  # fmt: skip
        """Return one page of messages from a queue offset on, with a status and the next offset (`docs/formats/read-rules.md`).

        A record of a batch queue counts as the messages that it holds, as in RocketMQ; the first record always fits.
        """
        self._engine.settle()
        check_names("tags", tags)
        return self._reader.page(topic, queue_id, offset, max_count, max_bytes, tags)

    def read(self, topic: str, queue_id: int, start: int = 0, stop: int | None = None) -> Iterator[StoredMessage]:
        """Iterate over the messages of a queue from `start` to before `stop`, or to the end at the time of the call.

        Raises `InvalidMessage` for a topic that does not exist; a queue without messages yields none.
        """
        queue = self._queue_to_read(topic, queue_id)
        if queue is None:
            return iter(())
        return self._reader.messages(queue, start, queue.max_offset if stop is None else stop)

    def read_raw(
        self, topic: str, queue_id: int, start: int = 0, stop: int | None = None, *, check: bool = True
    ) -> Iterator[list[memoryview]]:
        """Iterate as `read` does, but over lists of views of the records' bytes (`docs/formats/commitlog.md`).

        The offset and size of each record are checked, its content is not.  A view keeps its file mapped.  `check=False` trusts
        the queue and touches no record, which takes half the time; then a damaged queue may yield other bytes of the log, so
        the caller has to check each record.
        """
        queue = self._queue_to_read(topic, queue_id)
        if queue is None:
            return iter(())
        return self._reader.views(queue, start, queue.max_offset if stop is None else stop, check=check)

    def read_columns(
        self, topic: str, queue_id: int, start: int = 0, stop: int | None = None, *, columns: Sequence[str] | None = None,
        decode_limit_bytes: int | None = None,
    ) -> pa.RecordBatchReader:  # fmt: skip
        """Read as `read` does, into Arrow batches without message objects.

        `columns`: names of `commitlog.fields.COLUMNS`; all by default. Bodies are as stored; with `decode_limit_bytes` they are
        decompressed, and `StoreCorrupt` is raised for one that is damaged or longer than that.
        """
        from commitlog.fields import COLUMNS

        from .read.queue_columns import Selection

        selection = Selection(columns or COLUMNS, decode_limit_bytes=decode_limit_bytes)
        return self.read_selection(topic, queue_id, start, stop, selection)

    def read_selection(
        self, topic: str, queue_id: int, start: int, stop: int | None, selection: Selection
    ) -> pa.RecordBatchReader:
        """Read the messages of a queue that `selection` describes, for `Scan`."""
        from .read.queue_columns import Selection, read_queue_columns

        check_type("selection", selection, Selection)
        queue = self._queue_to_read(topic, queue_id)
        end = stop if stop is not None else queue.max_offset if queue is not None else 0
        reader = self._reader
        return read_queue_columns(self._engine.log, queue, start, end, selection, reader.message_or_gone, reader.first_number)

    def scan(
        self, topic: str, *, queues: Iterable[int] | None = None, columns: Sequence[str] | None = None,
        begin: Time | None = None, end: Time | None = None, start: Offsets | None = None, stop: Offsets | None = None,
        tags: str | Iterable[str] | None = None, keys: str | Iterable[str] | None = None,
        decode_limit_bytes: int | None = None,
    ) -> Scan:  # fmt: skip
        """Return a topic's messages as a table for polars, DuckDB and pandas: see `Scan`.

        A message must pass every filter that is given: stored at `begin` or later and before `end` (datetimes, or
        milliseconds); a queue offset from `start` to before `stop` (one number, or one for each queue id); one of the `tags`;
        one of the `keys` (words of KEYS, or UNIQ_KEY). `columns`: names of `commitlog.fields.COLUMNS`; all by default.
        `decode_limit_bytes` decompresses bodies, as in `read_columns`.
        """
        from .read.scan import Scan

        return Scan(lambda: self, topic, queues, columns, begin, end, start, stop, tags, keys, decode_limit_bytes)

    def follow(self, start: int | None = None, end: str = "written", *, timeout_s: float | None = None) -> Follower:
        """Follow the log in log order as it grows, from the record at physical offset `start` (the oldest by default).

        `end`: "written", or "durable" for records that are certainly on the disk.  The iteration waits for more until it is
        closed, or nothing came for `timeout_s`.  Raises `StoreRewound` if the writer's recovery cut records that were read.
        """
        self._engine.check_open()
        kind = OwnFollower if self._engine.writable else LogFollower
        return kind(self._engine, start, end, timeout_s)

    @overload
    def consumer(
        self, topic: str, *, group: str, queues: list[int] | None = ..., tags: set[str] | None = ...,
        timeout_s: float | None = ..., start: str = ..., missing_topic: str = ..., visibility_s: float | None = ...,
        max_deliveries: int | None = ...,
    ) -> Consumer: ...  # fmt: skip

    @overload
    def consumer(
        self, topic: Topics, *, group: str, queues: None = ..., tags: set[str] | None = ...,
        timeout_s: float | None = ..., start: str = ..., missing_topic: str = ..., visibility_s: float | None = ...,
        max_deliveries: int | None = ...,
    ) -> TopicsConsumer: ...  # fmt: skip

    def consumer(
        self, topic: str | Topics, *, group: str, queues: list[int] | None = None, tags: set[str] | None = None,
        timeout_s: float | None = None, start: str = "first", missing_topic: str = "wait", visibility_s: float | None = None,
        max_deliveries: int | None = None,
    ) -> Consumer | TopicsConsumer:  # fmt: skip
        """Iterate over a topic's messages, of all queues or the given ones, from the group's committed offsets on.

        `start`: where a new group begins, at the "first" message or after the "last".  The iteration waits for more until it
        is closed, or nothing came for `timeout_s`.  Consumers of one group in this process divide the queues among themselves,
        except those that were given queues.

        `missing_topic`: "wait" logs a warning and waits for the topic's first message, "error" raises `InvalidMessage`.

        `visibility_s`: the time in which a message must be acknowledged; then it goes back, and to the other consumers of the
        group.  `Consumer.extend` renews it.  `max_deliveries`: how often a message is delivered at most, before it goes to the
        dead letters; by default the group's `retryMaxTimes` (16) and the first time.

        A list of topics, or a compiled regular expression that their whole names match, is consumed in turns: see
        `TopicsConsumer`. New topics that match are found while it runs.
        """
        if not isinstance(topic, str):
            return consume_topics(
                OwnTopics(self.topics, self._engine.progress), self.consumer, topic, group, queues, timeout_s, start,
                missing_topic, tags=tags, visibility_s=visibility_s, max_deliveries=max_deliveries,
            )  # fmt: skip
        self._engine.settle()
        retries = self._engine.retries if self._engine.writable else None
        rules = DeliveryRules(visibility_s, max_deliveries)
        return Consumer(self._engine, retries, self._reader, topic, group, queues, tags, timeout_s, start, missing_topic, rules)

    def metrics(self) -> Metrics:
        """Return what the store counts: offsets, lags, groups, file sizes, and how long syncs and dispatching took.

        `brokerstore.metrics` has it as Prometheus text and for OpenTelemetry. A reader's has no fields of the writer's process.
        """
        from .metrics import collect

        return collect(self._engine)

    def committed_offsets(self, topic: str, group: str) -> dict[int, int]:
        """Return the offset of the first message that a group has not acknowledged, by queue id."""
        self._engine.check_open()
        return self._engine.consumer_offsets().offsets_of(topic, group)

    def plain_body(self, message: StoredMessage) -> bytes:
        """Return a message's body, decompressed if a client compressed it (system flag bit 0).

        Raises `StoreCorrupt` for bytes that do not match the flag or exceed 64 MiB decompressed, and `MissingExtra` if LZ4
        or Zstandard is not installed.
        """
        check_type("message", message, StoredMessage)
        return decompress(message.body, message.sys_flag, file=self.path, offset=message.physical_offset)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of a message in milliseconds; -1 if there is no such message."""
        queue = self._queue(topic, queue_id)
        return self._reader.store_time_of(queue, queue_offset) if queue is not None else -1

    def query_tag(
        self, topic: str, tags: str, begin_ms: int | None = None, end_ms: int | None = None, max_count: int = 32
    ) -> list[StoredMessage]:
        """Return the newest messages of a topic with these tags, oldest first, from the index.

        Messages that were written before the store was one of RocketMQ 5.4 or later are not found. Raises `InvalidMessage`
        for a store of an older version, whose index has no tags.
        """
        return query_tag(self._engine, topic, tags, (begin_ms or 0, FOREVER_MS if end_ms is None else end_ms), max_count)

    @property
    def unsearched_bytes(self) -> int:
        """Number of bytes of the log that the last `query` did not search; 0 if it searched everything.

        A query searches up to 64 MiB of the log that the key index does not cover: what a writer, running or killed, has not
        indexed, and what a lost or damaged index file had.
        """
        return self._engine.unindexed.unsearched_bytes

    @property
    def undispatched_messages(self) -> int | None:
        """Number of messages in the log that are not in all of their queues; None: unknown.

        Queue reads (`get`, `read`, `read_columns`, `offset_by_time`, `max_offset`, consumers) do not see these messages, and
        the first of them logs a warning.  A killed writer leaves such messages; the next opening for writing, or
        `rebuild_store`, puts them into their queues.  `message_at`, `query` and `follow` find them.

        Counting costs a walk over at most 128 MiB of log, once, and nothing after a clean stop.  The number is unknown if
        that was not enough, if the log is damaged, and beside a live writer, which dispatches meanwhile.  A store opened for
        writing has such messages only if its dispatcher could not go on, after an error or on a full disk.  After an error,
        queue reads and consumers raise it; the next opening dispatches the messages.
        """
        self._engine.check_open()
        if self._engine.writable:
            return 0 if self._engine.has_settled() else self._engine.undispatched.behind(self._engine.dispatcher.position)
        self._engine.refresh()
        return self._engine.undispatched.messages

    def earliest_time(self) -> int:
        """Return the store time of the oldest record in milliseconds, -1 without one."""
        self._engine.check_open()
        self._engine.refresh()
        return self._reader.store_time(max(self._engine.log.min_offset, 0))

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that still has its message."""
        queue = self._queue(topic, queue_id)
        return max(queue.min_offset, 0) if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """Return the offset after the last readable message; with `committed=False` the next offset that a put will get."""
        if not committed and self._engine.writable:
            self._engine.check_open()
            return self._engine.offsets.next_offset(topic, queue_id)
        queue = self._queue(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def _queue(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue with everything that was put before the call."""
        self._engine.settle()
        return self._engine.lookup.get(topic, queue_id)

    def _queue_to_read(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue; None before its first message.  Raises `InvalidMessage` for an unknown topic."""
        check_type("topic", topic, str)
        queue = self._queue(topic, queue_id)
        is_made_later = not needs_entry(topic) or topic.startswith((RETRY_PREFIX, DEAD_PREFIX))
        if queue is None and not is_made_later and topic not in self.topics():
            raise InvalidMessage(f"{self.path}: no topic {topic!r}")
        return queue

    def _discover(self) -> None:
        """Discover every queue that has a message."""
        self._engine.settle()
        if not self._engine.writable:
            self._engine.lookup.discover()


def _close(engine: Engine) -> None:
    """Close an engine whose store was closed or garbage-collected, perhaps on one of the engine's own threads.

    Such a thread cannot join itself, so another one closes the engine.
    """
    if threading.current_thread().name.startswith(THREAD_PREFIX):
        threading.Thread(target=engine.close, name="store-closer").start()
    else:
        engine.close()


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """Turn errors for a wrong type or unencodable text into named ones."""
    try:
        yield
    except UnicodeEncodeError as error:  # pragma: no cover - encoders raise a named error first
        raise InvalidMessage(str(error)) from error
    except OverflowError as error:
        raise OutOfRange(str(error)) from error
    except AttributeError as error:
        raise TypeError(f"message: expected Message: {error}") from error
