"""The store that an application opens in several processes."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, overload

from commitlog import Message, PutResult, PutStatus, StoredMessage
from commitlog.checks import CHECK_READ
from consumequeue import Boundary
from storageio import Closing, InvalidSetting, PutRejected, StoreCorrupt, process_id, random_bytes
from storageio.local_sockets import PeerGone, PeerSilent
from storageio.settings import check_type, settings_or_default

from ..administration import OffsetTarget
from ..broker.services.half_messages import HalfMessage
from ..broker.services.transactions import PreparedMessage
from ..config import RetentionPolicy, StoreConfig
from ..paths import StorePaths
from ..read.delivery_rules import DeliveryRules
from ..read.follower import Follower
from ..read.queue_reader import Page
from ..read.topics_consumer import Topics, TopicsConsumer, consume_topics
from ..store import PRODUCER_GROUP, MessageStore
from ..write.put_future import PutFuture
from ..write.putting import marks_of, message_of, messages_of, put_many_when_free, put_when_free
from ._packing_cy import pack_message
from .answers import unpack_answer, unpack_packed_result
from .client import OwnerChannel
from .consumer import SharedConsumer
from .election import ADDRESS, Member
from .news import SharedTopics
from .protocol import BATCH_BYTES, NO_CHECK, Operation, batches, pack_call, pack_frame

if TYPE_CHECKING:
    import pyarrow as pa

    from storebytes.arrow_table import Offsets

    from ..metrics import Metrics
    from ..read.scan import Scan, Time

WAIT_S = 60.0
WORKERS_WAIT_S = 5.0


class SharedStore(Closing):
    """A RocketMQ store folder that several processes of one user have open, each for reading and writing.

    One of the processes owns the store: it has the lock and serves the others. When it ends or is killed, another process
    recovers the store and takes over; calls wait meanwhile. Methods have the signatures of `MessageStore`. All of them may be
    called from any thread. In a forked child the store is closed; connect again there.

    Each message gets a UNIQ_KEY property if it has none. A put whose answer was lost is repeated with this key, so the message
    is stored once. A UNIQ_KEY that the program sets must be unique.
    """

    def __init__(self, member: Member, config: StoreConfig) -> None:
        """Create it from a member; use `brokerstore.connect`."""
        self._member = member
        self._config = config
        self._reader: MessageStore | None = None
        self._guard = threading.Lock()
        self._key_prefix = random_bytes(12).hex().upper()
        self._count = itertools.count()
        self._finalizer = weakref.finalize(self, member.close)

    def close(self) -> None:
        """Wait for the puts of `put_async`, and leave the store to the other processes. A second call does nothing.

        An owner stops cleanly, as `MessageStore.close` does.
        """
        self._finalizer()
        with self._guard:
            if self._reader is not None:
                self._reader.close()

    def __repr__(self) -> str:
        """Show the folder and the role of this process."""
        return f"<SharedStore {self.path} {'owner' if self.is_owner else 'served'}>"

    @property
    def path(self) -> str:
        """Path of the store's folder."""
        return self._member.path

    @property
    def config(self) -> StoreConfig:
        """The configuration; in the owner with the sizes that were detected."""
        local = self._member.local
        return local.config if local is not None else self._config

    @property
    def is_owner(self) -> bool:
        """Whether this process has the lock and serves the others."""
        return self._member.local is not None

    # Writing

    def create_topic(self, topic: str, queues: int | None = None, *, attributes: dict[str, str] | None = None) -> None:
        """Create a topic with a number of queues, as `MessageStore.create_topic`."""
        self._member.request(pack_call("create_topic", topic, queues, attributes))

    def put(
        self, message: Message | str, body: bytes | None = None, *, tags: str | None = None,
        keys: str | list[str] | None = None, properties: dict[str, str] | None = None, queue_id: int = -1,
        delay: timedelta | None = None, delay_level: int = 0, deliver_at: datetime | None = None, priority: int | None = None,
        dedup_id: str | None = None, ttl: timedelta | None = None, check: bool = True, block_s: float = 0,
    ) -> PutResult:  # fmt: skip
        """Put one message, as `MessageStore.put`. If the owner ends meanwhile, the next one stores it, once."""
        marks = marks_of(priority, dedup_id, ttl)
        item = message_of(message, body, tags, keys, properties, queue_id, delay, delay_level, deliver_at, marks)
        return put_when_free(lambda: self._put(item, check), block_s) if block_s else self._put(item, check)

    def _put(self, item: Message, check: bool) -> PutResult:
        self._member.wait_pending()  # those of `put_async` come first
        local = self._member.local
        if local is not None:
            result = local.put(item, check=check)
            self._member.offer(item, result)
            return result
        packed = pack_message(item, self._unique_key())
        found: PutResult = self._member.request(pack_frame(Operation.PUT, packed, 0 if check else NO_CHECK))
        return found

    def put_many(
        self, messages: list[Message] | str, bodies: Sequence[bytes] | None = None, *, tags: Sequence[str | None] | None = None,
        keys: Sequence[str | None] | None = None, queue_id: int = -1, check: bool = True, block_s: float = 0,
    ) -> PutResult:  # fmt: skip
        """Put messages, or a topic's bodies, as `MessageStore.put_many`.

        More than 32 MiB go to the owner in several requests. A refusal then leaves those of earlier requests in the store;
        `message_count` has their number.
        """
        if block_s:
            given = messages_of(messages, bodies, tags, keys, queue_id)
            return put_many_when_free(lambda left: self.put_many(left, check=False), given, check, block_s)
        self._member.wait_pending()
        local = self._member.local
        if local is not None:
            result = local.put_many(messages, bodies, tags=tags, keys=keys, queue_id=queue_id, check=check)
            self._member.expect_dispatch()
            return result
        given = messages_of(messages, bodies, tags, keys, queue_id)
        packed = [pack_message(message, self._unique_key()) for message in given]
        first: PutResult | None = None
        for batch in batches(packed, len(packed), BATCH_BYTES) if packed else [[]]:
            result = self._put_batch(b"".join(batch), check, first.message_count if first is not None else 0)
            if first is None or result.status is not PutStatus.PUT_OK:
                first = result
            else:
                first.message_count += result.message_count
            if result.status is not PutStatus.PUT_OK:
                break
        assert first is not None
        return first

    def _put_batch(self, packed: bytes, check: bool, before: int) -> PutResult:
        """Put what fits one request; a refusal also counts the messages of the requests before."""
        try:
            data = pack_frame(Operation.PUT_MANY, packed, 0 if check else NO_CHECK)
            result: PutResult = self._member.request(data)
        except PutRejected as error:
            error.message_count += before
            raise
        if result.status is not PutStatus.PUT_OK:
            result.message_count += before
        return result

    def put_async(self, message: Message) -> PutFuture:
        """Put one message without waiting, as `MessageStore.put_async`. Puts of one process keep their order.

        A callback of the future runs on the thread that takes answers, so it must not wait for another put.
        """
        local = self._member.local
        if local is not None and not self._member.has_pending:  # a new owner first repeats what was not answered
            future = local.put_async(message)
            self._member.offer_later(message, future)
            return future
        return self._member.submit(pack_message(message, self._unique_key()))

    def flush(self) -> int:
        """Sync everything that is written; return the flushed physical offset."""
        found: int = self._member.request(pack_call("flush"))
        return found

    def delete_expired(self) -> int:
        """Delete expired log files, as `MessageStore.delete_expired`."""
        found: int = self._member.request(pack_call("delete_expired"))
        return found

    def delete_before(self, physical_offset: int) -> int:
        """Delete log files that end at or before an offset, as `MessageStore.delete_before`."""
        found: int = self._member.request(pack_call("delete_before", physical_offset))
        return found

    def _unique_key(self) -> str:
        return f"{self._key_prefix}{next(self._count) & 0xFFFFFFFF:08X}"

    # Transactions

    def begin_transaction(self, message: Message, *, producer_group: str = PRODUCER_GROUP) -> SharedTransaction:
        """Prepare a message that is invisible until `commit()`, as `MessageStore.begin_transaction`.

        Any owner can decide it: the transaction survives the end of the owner that prepared it.
        """
        check_type("message", message, Message)
        packed = pack_message(message, self._unique_key())
        half, transaction_id = self._member.request(pack_call("begin", producer_group, messages=packed))
        return SharedTransaction(self._member, unpack_packed_result(half), message.topic, transaction_id)

    def undecided_transactions(self, older_than_ms: int = 0) -> list[HalfMessage]:
        """Return prepared messages that nobody committed or rolled back, oldest first."""
        found = self._member.request(pack_call("undecided", older_than_ms))
        return [HalfMessage(offset, self._message_at(position)) for offset, position in found]

    def commit_transaction(self, half: HalfMessage) -> PutResult:
        """Commit a message that `undecided_transactions` returned."""
        check_type("half", half, HalfMessage)
        return _commit(self._member, half.queue_offset, half.topic, half.transaction_id)

    def roll_back_transaction(self, half: HalfMessage) -> None:
        """Roll back a message that `undecided_transactions` returned."""
        check_type("half", half, HalfMessage)
        self._member.request(pack_call("roll_back", half.queue_offset))

    # Topics and groups

    def delete_topic(self, topic: str) -> None:
        """Delete a topic that no consumer of any process uses, as `MessageStore.delete_topic`."""
        self._member.request(pack_call("delete_topic", topic))

    def delete_group(self, group: str) -> None:
        """Delete a group that has no consumer in any process, as `MessageStore.delete_group`."""
        self._member.request(pack_call("delete_group", group))

    def purge(self, topic: str, group: str | None = None) -> int:
        """Skip every message of a topic that a group, or each of its groups, did not acknowledge, as `MessageStore.purge`."""
        found: int = self._member.request(pack_call("purge", topic, group))
        return found

    def reset_offsets(
        self, topic: str, group: str, to: OffsetTarget, *, queues: list[int] | None = None
    ) -> dict[int, int]:  # fmt: skip
        """Set the offset of a group in every queue of a topic, or in some, as `MessageStore.reset_offsets`."""
        is_time = isinstance(to, datetime)
        given = to.isoformat() if isinstance(to, datetime) else to
        return dict(self._member.request(pack_call("reset_offsets", topic, group, given, is_time, queues)))

    # Reading

    def topics(self) -> list[str]:
        """Return the topics that have queues on the disk, and those that only topics.json has."""
        found: list[str] = self._member.request(pack_call("topics"))
        return found

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues: those that ever had a message, and those that topics.json promises."""
        found: list[int] = self._member.request(pack_call("queue_ids", topic))
        return found

    def get(
        self, topic: str, queue_id: int, offset: int, max_count: int = 32, *, max_bytes: int = 128 << 20,
        tags: set[str] | None = None,
    ) -> Page:  # fmt: skip
        """Return one page of messages from a queue offset on, as `MessageStore.get`."""
        return self._reading().get(topic, queue_id, offset, max_count, max_bytes=max_bytes, tags=tags)

    def read(self, topic: str, queue_id: int, start: int = 0, stop: int | None = None) -> Iterator[StoredMessage]:
        """Iterate over the messages of a queue from `start` to before `stop`, or to the end at the time of the call."""
        return self._reading().read(topic, queue_id, start, stop)

    def read_raw(
        self, topic: str, queue_id: int, start: int = 0, stop: int | None = None, *, check: bool = True
    ) -> Iterator[list[memoryview]]:
        """Iterate over lists of views of the records' bytes, as `MessageStore.read_raw`."""
        return self._reading().read_raw(topic, queue_id, start, stop, check=check)

    def read_columns(
        self, topic: str, queue_id: int, start: int = 0, stop: int | None = None, *, columns: Sequence[str] | None = None,
        decode_limit_bytes: int | None = None,
    ) -> pa.RecordBatchReader:  # fmt: skip
        """Read into Arrow batches, as `MessageStore.read_columns`."""
        reading = self._reading()
        return reading.read_columns(topic, queue_id, start, stop, columns=columns, decode_limit_bytes=decode_limit_bytes)

    def scan(
        self, topic: str, *, queues: Iterable[int] | None = None, columns: Sequence[str] | None = None,
        begin: Time | None = None, end: Time | None = None, start: Offsets | None = None, stop: Offsets | None = None,
        tags: str | Iterable[str] | None = None, keys: str | Iterable[str] | None = None,
        decode_limit_bytes: int | None = None,
    ) -> Scan:  # fmt: skip
        """Return a topic's messages as a table for polars, DuckDB and pandas, as `MessageStore.scan`."""
        from ..read.scan import Scan

        return Scan(self._reading, topic, queues, columns, begin, end, start, stop, tags, keys, decode_limit_bytes)

    def follow(self, start: int | None = None, end: str = "written", *, timeout_s: float | None = None) -> Follower:
        """Follow the log in log order as it grows, as `MessageStore.follow`."""
        return self._reading().follow(start, end, timeout_s=timeout_s)

    def query(
        self, topic: str, key: str, begin_ms: int | None = None, end_ms: int | None = None, max_count: int = 32
    ) -> list[StoredMessage]:
        """Return messages of a topic with a key, oldest first."""
        return self._reading().query(topic, key, begin_ms, end_ms, max_count)

    def query_tag(
        self, topic: str, tags: str, begin_ms: int | None = None, end_ms: int | None = None, max_count: int = 32
    ) -> list[StoredMessage]:
        """Return the newest messages of a topic with these tags, as `MessageStore.query_tag`."""
        return self._reading().query_tag(topic, tags, begin_ms, end_ms, max_count)

    def message_at(self, physical_offset: int) -> StoredMessage | None:
        """Return the message whose record begins there, None when none does."""
        return self._reading().message_at(physical_offset)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Return a queue offset from a store time; 0 for an unknown queue."""
        return self._reading().offset_by_time(topic, queue_id, timestamp_ms, boundary)

    @overload
    def consumer(
        self, topic: str, *, group: str, queues: list[int] | None = ..., tags: set[str] | None = ...,
        timeout_s: float | None = ..., start: str = ..., missing_topic: str = ..., visibility_s: float | None = ...,
        max_deliveries: int | None = ...,
    ) -> SharedConsumer: ...  # fmt: skip

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
    ) -> SharedConsumer | TopicsConsumer:  # fmt: skip
        """Iterate over a topic's messages, as `MessageStore.consumer`.

        Consumers of one group in all processes divide the queues among themselves.
        """
        if not isinstance(topic, str):
            return consume_topics(
                SharedTopics(self.topics, self._member), self.consumer, topic, group, queues, timeout_s, start, missing_topic,
                tags=tags, visibility_s=visibility_s, max_deliveries=max_deliveries,
            )  # fmt: skip
        rules = DeliveryRules(visibility_s, max_deliveries)
        read = self._handed_out()
        return SharedConsumer(self._member, read, topic, group, queues, tags, timeout_s, start, missing_topic, rules)

    def metrics(self) -> Metrics:
        """Return what the store counts, as `MessageStore.metrics`: of a writer in the owner, of a reader in other processes."""
        return self._reading(settled=False).metrics()

    def committed_offsets(self, topic: str, group: str) -> dict[int, int]:
        """Return the offset of the first message that a group has not acknowledged, by queue id."""
        return dict(self._member.request(pack_call("committed_offsets", topic, group)))

    def plain_body(self, message: StoredMessage) -> bytes:
        """Return a message's body, decompressed if a client compressed it."""
        return self._reading(settled=False).plain_body(message)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return when a message was stored, in milliseconds; -1 without the message."""
        return self._reading().store_time(topic, queue_id, queue_offset)

    def earliest_time(self) -> int:
        """Return the store time of the oldest record in milliseconds, -1 without one."""
        return self._reading().earliest_time()

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that still has its message."""
        return self._reading().min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """Return the offset behind the last readable message; with `committed=False` the next offset that a put will get."""
        if committed:
            return self._reading().max_offset(topic, queue_id)
        found: int = self._member.request(pack_call("next_offset", topic, queue_id))
        return found

    def _reading(self, *, settled: bool = True) -> MessageStore:
        """Return the store to read from, with everything that was put before the call."""
        if settled and self._member.local is None:
            self._member.request(pack_call("settle"))
        self._member.check_open()
        local = self._member.local
        if local is not None:
            return local
        with self._guard:
            if self._reader is None:
                self._reader = MessageStore.open(self.path, "r", self._config)
            return self._reader

    def _handed_out(self) -> Callable[[int], StoredMessage | None]:
        """Return what reads a record that the owner handed out: it looks for new log files only if it needs one."""
        reader = self._reading(settled=False)
        read = reader.engine.log.message_at

        def message_at(physical_offset: int) -> StoredMessage | None:
            return read(physical_offset, CHECK_READ) or reader.message_at(physical_offset)

        return message_at

    def _message_at(self, physical_offset: int) -> StoredMessage:
        """Return a record that the owner named."""
        message = self._reading(settled=False).message_at(physical_offset)
        if message is None:
            raise StoreCorrupt("no record", file=self.path, offset=physical_offset, expected="a record", found="none")
        return message


class SharedTransaction(PreparedMessage):
    """One prepared message of a shared store. Any owner can decide it."""

    def __init__(self, member: Member, half: PutResult, topic: str, transaction_id: str) -> None:
        """Create it; called by `SharedStore.begin_transaction`."""
        super().__init__(half, transaction_id)
        self._member = member
        self._topic = topic

    def _commit(self) -> PutResult:
        return _commit(self._member, self.half.queue_offset, self._topic, self.transaction_id)

    def _roll_back(self) -> None:
        self._member.request(pack_call("roll_back", self.half.queue_offset))


def connect(path: str | os.PathLike[str], config: StoreConfig | None = None, *, wait_s: float = WAIT_S) -> SharedStore:
    """Open a store that other processes of the same user may have open too; create it if it does not exist.

    The store keeps every message until each group has acknowledged it, unless `config.retention` or an existing store says
    otherwise; then a full disk refuses puts with `StoreFull`.

    The first process owns the store and serves the others. All of them pass the same `config`, since each may become the owner.
    `wait_s` limits how long this call, and a call without an owner, waits for one.

    Raises `StoreLocked` if another process has the store open and does not share it; `InvalidSetting` for a `config` without
    the key index, which finds repeated puts; and what `MessageStore.open` raises.
    """
    config = settings_or_default(config, StoreConfig, "config").but(retention_of_new_store=RetentionPolicy.CONSUMED)
    if not config.message_index_enable:
        raise InvalidSetting("message_index_enable=False: a shared store finds repeated puts through the key index")
    root = os.fspath(path)
    if not isinstance(root, str):
        raise ValueError("the path is text")
    return SharedStore(Member(root, config, wait_s), config)


class Worker(NamedTuple):
    """A consumer of a shared store, and the process that has it."""

    topic: str
    group: str
    queue_ids: list[int]
    unacknowledged: int
    process_id: int


def workers(path: str) -> list[Worker]:
    """Return the open consumers of a store that processes share, without becoming one of them; empty if none serves it."""
    try:
        channel = OwnerChannel(os.path.join(StorePaths(path).own, ADDRESS), f"{process_id()}-", WORKERS_WAIT_S)
    except (PeerGone, PeerSilent):
        return []
    try:
        return [Worker(*row) for row in unpack_answer(channel.exchange(pack_call("workers")))]
    except (PeerGone, PeerSilent):
        return []
    finally:
        channel.close()


def _commit(member: Member, half_offset: int, topic: str, transaction_id: str) -> PutResult:
    return unpack_packed_result(member.request(pack_call("commit", half_offset, topic, transaction_id)))
