"""Append one message, many, a batch or columns to the log.  Every append holds one lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import DiskError, InvalidMessage, PutRejected, RefusedMessage, StoreClosed

from storebytes._lock_cy import Lock, new_lock

from ._message_cy import Message, PutResult, delete_property, encode_properties
from ._packed_cy import PackedColumns, Packed
from ._offsets_cy import QueueOffsets, TopicQueues
from ._record_cy import Envelope
from .hosts import encode_host
from .java_numbers import check_number_properties
from .layout import (
    BATCH_MEMBER_SIZE, BLANK_SIZE, BODY_SIZE_MAX_DEFAULT, BORN_HOST_V6, CRC_NAME, CRC_SIZE, HOST_GROWTH, HOST_SIZE,
    PAIR_END, PROPERTIES_SIZE_MAX, QUEUES_MAX, RECORD_ALLOWANCE, RECORD_SIZE_MIN, STORE_HOST_V6, TOPIC_SIZE_MAX,
    TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE,
)  # fmt: skip
from .status import PutStatus
from .topic_names import SCHEDULE_TOPIC

if not cython.compiled:
    from storebytes._bytes_cy import (
        I32, I64, Bool, I64s, Size, Source, Target, has_bytes, i64s_of, now_ms, order_loads, order_stores, publish_i32,
        put_bytes, source_of, source_of_bytes, target_of, window,
    )  # fmt: skip

    from storebytes._lock_cy import give, take_now

    from ._message_cy import put_keys_and_tags
    from ._packed_cy import queue_of_row
    from ._record_cy import record_size, write_blank, write_record

ROW_SIZE = PROPERTIES_SIZE_MAX + 1
OK = PutStatus.PUT_OK
ILLEGAL = PutStatus.MESSAGE_ILLEGAL
PROPERTIES_EXCEEDED = PutStatus.PROPERTIES_SIZE_EXCEEDED
NO_FILE = PutStatus.CREATE_MAPPED_FILE_FAILED
_KEYS: Source = source_of_bytes(b"KEYS\x01")
_TAGS: Source = source_of_bytes(b"TAGS\x01")
_INNER: Source = source_of_bytes(b"INNER_")
_CRC_NAME: Source = source_of_bytes(CRC_NAME)
NextFile = Callable[[], tuple[memoryview, int]]


class Appender:
    """The write end of a log.

    `next_file` prepares the next file and returns its writable view and the physical offset of its first byte.  It is called
    under the lock when a record does not fit, before any byte of that record is written, so that a full disk loses nothing.
    `clock` returns milliseconds; None is the machine's clock.  Store times never decrease.
    """

    __slots__ = (
        "_allocate",
        "_capacity",
        "_clock",
        "_envelope",
        "_host",
        "_lock",
        "_moves",
        "_next_file",
        "_origin",
        "_reserve_more",
        "_reserved_end",
        "_row",
        "_row_view",
        "_size_sure",
        "_target",
        "_view",
        "base",
        "body_size_max",
        "file_size_bytes",
        "is_closed",
        "last_store_timestamp_ms",
        "offsets",
        "position",
    )  # fmt: skip

    def __init__(
        self,
        next_file: NextFile,
        file_size_bytes: int,
        offsets: QueueOffsets,
        host: bytes,
        with_crc: bool = True,
        clock: Callable[[], int] | None = None,
        body_size_max: int = BODY_SIZE_MAX_DEFAULT,
    ) -> None:
        """Create it without a file: call `attach` to continue in one, or let the first append request one."""
        self._lock: Lock = new_lock()
        self._next_file = next_file
        self._clock = clock
        self._host = host
        self._envelope = Envelope(host, host, with_crc)
        self._row_view = memoryview(bytearray(ROW_SIZE))
        self._row: Target = target_of(self._row_view)
        self.offsets = offsets
        self.file_size_bytes = file_size_bytes
        self.body_size_max = body_size_max
        # A message up to this size passes every limit whatever its topic, so most need one comparison.
        self._size_sure = min(
            PROPERTIES_SIZE_MAX - CRC_SIZE, body_size_max, self._record_size_max() - RECORD_SIZE_MIN - TOPIC_SIZE_MAX
        )
        self.last_store_timestamp_ms = 0
        self.is_closed = False
        self._view = memoryview(bytearray(BLANK_SIZE))
        self._target: Target = target_of(self._view)
        self._capacity = 0
        self._origin = 0
        self._reserved_end = 0
        self._moves = 0  # odd while `attach` changes base and position
        self._reserve_more: Any = None
        self._allocate: Any = None
        self.base = 0
        self.position = 0

    @property
    def lock(self) -> Any:
        """The lock held around every append; hold it to read the position together with other state."""
        return self._lock

    @property
    def end_offset(self) -> int:
        """The physical offset after the last byte written."""
        while True:
            moves: Size = self._moves
            order_loads()
            end: I64 = self.base + self.position
            order_loads()
            if moves == self._moves and moves % 2 == 0:  # no new file meanwhile, so both are of one file
                return end

    def attach(self, view: memoryview, base: int, position: int, store_timestamp_ms: int = 0) -> None:
        """Continue at `position` of a writable file; later records get a store time of at least `store_timestamp_ms`."""
        capacity: Size = len(view) if self._reserve_more is None else self.file_size_bytes  # a ring maps less than the file
        if view.readonly or not 0 <= position <= capacity:
            raise ValueError("a writable view and a position inside the file are wanted")
        target: Target = target_of(view)
        newest_ms: I64 = max(self.last_store_timestamp_ms, store_timestamp_ms)
        self._view = view  # no calls from here on, so that no interrupt can split the assignments in the plain build
        self._target = target
        self._capacity = capacity
        self._origin = 0
        # A file must end in a blank record: a record may only use what leaves room for one.
        whole_end: Size = capacity - BLANK_SIZE if self._allocate is None else -1  # no blocks are known to be there
        self._reserved_end = whole_end if self._reserve_more is None else position
        self._moves += 1
        if cython.compiled:
            order_stores()
        self.base = base
        self.position = position
        if cython.compiled:
            order_stores()
        self._moves += 1
        self.last_store_timestamp_ms = newest_ms

    def write_through(self, reserve_more: Callable[[int, int], None]) -> None:
        """Declare, before `attach`, that the views are a ring buffer that holds only a range of a file.

        `more_room(position, size)` is called under the lock when a record of that size would leave the range; it moves the
        range with `set_reserved`, or raises `DiskError`.
        """
        self._reserve_more = reserve_more

    def allocate_with(self, allocate: Callable[[int], int]) -> None:
        """Declare, before `attach`, that files do not have all their blocks.

        `allocate(end)` is called under the lock before anything is written up to that position of the file; it returns the
        position up to which there are blocks, or raises `DiskError`.
        """
        self._allocate = allocate

    def set_reserved(self, origin: int, reserved_end: int) -> None:
        """Set `origin`, the view's position in the file, and `reserved_end`, where records and the blank after them end."""
        self._origin = origin
        self._reserved_end = reserved_end

    @property
    def reserved_end(self) -> int:
        """The limit of records that need no new room."""
        return self._reserved_end

    def close(self) -> None:
        """Release the file; every later append raises `StoreClosed`."""
        with self._lock:
            self.abandon()

    def abandon(self) -> None:
        """Close without the lock, in a forked child, where another thread may have held it.  The position stays valid."""
        self._view = memoryview(bytearray(BLANK_SIZE))
        self._target = target_of(self._view)
        self._capacity = 0
        self._reserved_end = 0
        self.is_closed = True

    def append(self, message: Message, queue_id: I32 = -1) -> PutResult:
        """Append one message to `queue_id`, or to the message's own queue if it is negative.

        If nothing was written, the status is not PUT_OK and gives the reason.
        """
        if queue_id < 0:
            queue_id = message.queue_id
        result: PutResult = self._result()
        before_ms: I64
        if take_now(self._lock):  # `_row` may be used under the lock only
            before_ms = self.last_store_timestamp_ms
            try:
                if self._append_fast(message, queue_id, result):
                    return result
            finally:
                if result.message_count == 0:  # nothing was written at the new time, so no checkpoint may contain it
                    self.last_store_timestamp_ms = before_ms
                give(self._lock)
        # The lock is contended, or the properties are unusual: they are encoded before it is taken.
        properties: bytes = self._properties_of(message)
        with self._lock:
            before_ms = self.last_store_timestamp_ms
            try:
                return self._append(message, queue_id, source_of_bytes(properties), len(properties), self._now(), result)
            finally:
                if result.message_count == 0:
                    self.last_store_timestamp_ms = before_ms

    def _append_fast(self, message: Message, queue_id: I32, result: PutResult) -> Bool:
        """Append a message in one pass, under the lock; return False if it needs checks first."""
        size: Size = put_keys_and_tags(message, self._row, 0, ROW_SIZE)
        if size < 0:
            return False
        self._append(message, queue_id, self._row, size, self._now(), result)
        return True

    def append_encoded(self, topic: str, queue_id: I32, body: bytes, properties: bytes) -> tuple[int, int]:
        """Append a body with encoded properties; return (physical offset, queue offset).

        This is the cheapest append: hosts, flags and times are the store's own.  Raises `PutRejected` where `append` returns a
        status.
        """
        name: TopicQueues
        envelope: Envelope = self._envelope
        with self._lock:
            name = self.offsets.appended(topic)
            if queue_id < 0 or queue_id >= name._capacity:
                self._check_queue(name, queue_id)
            size: Size = self._plain_envelope(name, queue_id, len(body), len(properties))
            if size > self._size_sure or self.position + size > self._reserved_end:
                self._fit_buffers(len(body), len(properties), size)
            now: I64 = self._now()
            envelope.born_timestamp_ms = now
            offset: I64 = self.base + self.position
            queue_offset: I64 = name._next[queue_id]
            self.position += write_record(
                self._target, self.position - self._origin, self.base + self._origin, envelope, queue_offset, now,
                source_of_bytes(body), 0, len(body), source_of_bytes(properties), len(properties),
            )  # fmt: skip
            if self._reserve_more is not None:  # old bytes follow in a ring, which a reader must not take for a record header
                publish_i32(self._target, self.position - self._origin, 0)
            name._next[queue_id] = queue_offset + 1
            return offset, queue_offset

    def _fit_buffers(self, body_size: Size, properties_size: Size, size: Size) -> None:
        """Make room for a record, or raise `PutRejected`."""
        result: PutResult = self._result()
        if self._refusal(body_size, properties_size, result).status is OK:
            self._reserve(size, result)
        if result.status is not OK:
            raise PutRejected(result.status, str(result.reason)) from result.cause

    def append_many(self, messages: list[Message], queue_ids: list[int] | None = None) -> PutResult:
        """Append messages under one lock, to `queue_ids` if given.

        `message_count` is the number appended, all if the status is PUT_OK.  Errors in any message are found before the first
        is written.
        """
        messages = list(messages)  # another thread may change the caller's list
        packed: Packed = self._prepare(messages, queue_ids)
        first: PutResult = self._result()
        result: PutResult = first
        index: Size
        queue_id: I32
        message: Message
        properties: Source
        total: Size = 0
        start: Size = 0
        size: Size
        with self._lock:
            before_ms: I64 = self.last_store_timestamp_ms
            try:
                now: I64 = self._now()  # the messages of one call have one store time
                for index in range(len(messages)):
                    message = messages[index]
                    queue_id = message.queue_id if queue_ids is None else queue_ids[index]
                    size = packed._ends[index] - start
                    properties = window(packed._bytes, start, size)
                    if self._append(message, queue_id, properties, size, now, result).status is not OK:
                        break
                    start += size
                    total += result.size_bytes
                    first.message_count = index + 1
                    if index == 0:
                        result = self._result()
            finally:
                if first.message_count == 0:
                    self.last_store_timestamp_ms = before_ms
            first.status = result.status
            first.reason = result.reason
            first.cause = result.cause
            first.size_bytes = min(total, 0x7FFFFFFF)
            return first

    def append_batch(self, messages: list[Message], queue_id: int = -1) -> PutResult:
        """Append messages of one topic to one queue at one store time, all or none, in one file.

        `queue_id` defaults to the queue of the first message.  Format: docs/formats/put-rules.md#wire-batch.
        """
        if queue_id < 0 and messages:
            queue_id = messages[0].queue_id
        messages = list(messages)
        packed: Packed = self._prepare(messages, [queue_id] * len(messages))
        result: PutResult = self._result()
        start: Size = 0
        size: Size
        sizes: Size = 0
        wire_size: Size = 0
        index: Size
        message: Message = messages[0]
        topic: TopicQueues = self.offsets.topic(message.topic)
        with self._lock:
            for index in range(len(messages)):
                message = messages[index]
                if message.topic != topic.name or (message.queue_id != queue_id and message.queue_id >= 0):
                    raise InvalidMessage("a batch has one topic and one queue")
                if message.sys_flag & TRANSACTION_MASK:
                    return _refused(result, ILLEGAL, "a batch takes no transactional messages")
                self._address(message, topic, queue_id)
                size = packed._ends[index] - start
                sizes += record_size(self._envelope, len(message.body), size)
                wire_size += BATCH_MEMBER_SIZE + len(message.body) + size
                start += size
            if wire_size > self.body_size_max:
                raise RefusedMessage(ILLEGAL, f"a batch body of {wire_size} bytes; at most {self.body_size_max}")
            if self._reserve(sizes, result).status is not OK:  # room for all before the first is written
                return result
            now: I64 = self._now()
            start = 0
            for index in range(len(messages)):
                message = messages[index]
                self._address(message, topic, queue_id)
                self._envelope.prepared_transaction_offset = 0
                size = packed._ends[index] - start
                properties: Source = window(packed._bytes, start, size)
                self._write(message, topic, properties, size, now, result if index == 0 else self._result())
                start += size
            result.message_count = len(messages)
            result.size_bytes = min(sizes, 0x7FFFFFFF)
            return result

    def append_columns(
        self,
        topic: str,
        queue_id: int,
        body_offsets: Any,
        bodies: Any,
        keys: tuple[Any, Any] | None = None,
        tags: tuple[Any, Any] | None = None,
        properties: bytes = b"",
        queues: int = 0,
    ) -> PutResult:
        """Append rows bodies[body_offsets[i]:body_offsets[i + 1]]; offsets are native 64-bit integers.

        `keys` and `tags` are (offsets, UTF-8 data) with the same number of rows; an empty key or tag is omitted.  `properties`
        are added to every row.  With a number of `queues` each row gets one of them: by its key, or in turn from `queue_id` on.
        `message_count` is the number of rows appended, all if the status is PUT_OK.
        """
        columns = PackedColumns(body_offsets, bodies, keys, tags, self._normalize(topic, properties, True))
        result: PutResult = self._result()
        name: TopicQueues = self.offsets.topic(topic)
        if columns.body_size_max > self.body_size_max or columns.properties_size_max + CRC_SIZE > PROPERTIES_SIZE_MAX:
            if self._refusal(columns.body_size_max, columns.properties_size_max, result).status is not OK:
                return result
        with self._lock:
            before_ms: I64 = self.last_store_timestamp_ms
            try:
                self._check_queue(name, max(queue_id, queues - 1))
                self._start_columns(name, columns.first_queue(queue_id, queues), result)
                largest: Size = record_size(self._envelope, columns.body_size_max, columns.properties_size_max)
                if largest > self._record_size_max():
                    return _refused(result, ILLEGAL, f"a record of {largest} bytes; at most {self._record_size_max()}")
                return self._write_columns(name, queue_id, queues, columns, result)
            finally:
                if result.message_count == 0:
                    self.last_store_timestamp_ms = before_ms

    def _start_columns(self, name: TopicQueues, queue_id: int, result: PutResult) -> None:
        """Set the shared envelope, and the result's offsets of the first row."""
        self._plain_envelope(name, queue_id, 0, 0)
        now: I64 = self._now()
        self._envelope.born_timestamp_ms = now
        result.store_timestamp_ms = now
        result.queue_id = queue_id
        result.queue_offset = name.next_offset(queue_id)
        result.physical_offset = self.base + self.position

    def _write_columns(
        self, name: TopicQueues, queue_id: int, queues: int, columns: PackedColumns, result: PutResult
    ) -> PutResult:
        """Write the rows without the GIL; take it for each new file."""
        rows: Size = columns.rows
        row: Size = 0
        queue: I32 = queue_id
        of_queues: I32 = queues
        now: I64 = result.store_timestamp_ms
        while row < rows:
            begin: Size = self.position
            done: Size
            nexts: I64s = name._next
            body_offsets: I64s = i64s_of(columns.body_offsets)
            bodies: Source = source_of(columns.bodies)
            key_offsets: I64s = i64s_of(columns.key_offsets)
            key_data: Source = source_of(columns.key_data)
            tag_offsets: I64s = i64s_of(columns.tag_offsets)
            tag_data: Source = source_of(columns.tag_data)
            has_keys: Bool = columns.has_keys
            has_tags: Bool = columns.has_tags
            tail: Source = source_of_bytes(columns.properties)
            tail_size: Size = len(columns.properties)
            is_ring: Bool = self._reserve_more is not None
            with cython.nogil:
                done = _append_rows(
                    self, nexts, queue, of_queues, now, row, rows, body_offsets, bodies, has_keys, key_offsets, key_data,
                    has_tags, tag_offsets, tag_data, tail, tail_size, is_ring,
                )  # fmt: skip
            row += done
            result.message_count = row
            result.size_bytes = min(result.size_bytes + self.position - begin, 0x7FFFFFFF)
            if row < rows and self._reserve(columns.row_size(row, self._envelope), result).status is not OK:
                break
            if row == 0:
                result.physical_offset = self.base + self.position
        return result

    def _prepare(self, messages: list[Message], queue_ids: list[int] | None) -> Packed:
        """Encode the properties of all messages and check what can be checked before the lock is taken."""
        if not messages:
            raise InvalidMessage("no messages")
        if queue_ids is not None and len(queue_ids) != len(messages):
            raise InvalidMessage(f"{len(queue_ids)} queue ids for {len(messages)} messages")
        packed: Packed = Packed(len(messages))
        topic: str | None = None
        index: Size
        for index in range(len(messages)):
            message: Message = messages[index]
            if message.topic is not topic:
                topic = message.topic
                self.offsets.topic(topic)
            if message.born_host is not None:
                encode_host(message.born_host)
            if message.store_host is not None:
                encode_host(message.store_host)
            properties_size: Size = packed.add(message)
            if properties_size < 0:
                properties_size = packed.add_bytes(self._properties_of(message))
            size: Size = len(message.body) + properties_size
            queue_id: I32 = message.queue_id if queue_ids is None else queue_ids[index]
            if queue_id < 0 or queue_id >= QUEUES_MAX or size > self._size_sure:
                self._check_one(index, message, queue_id, properties_size)
        return packed

    def _check_one(self, index: int, message: Message, queue_id: int, properties_size: int) -> None:
        """Raise `InvalidMessage`, or its subclass `RefusedMessage` with the status that the message alone would get."""
        if not 0 <= queue_id < QUEUES_MAX:
            raise InvalidMessage(f"message {index}: queue id {queue_id}: 0 to {QUEUES_MAX - 1}")
        result: PutResult = self._result()
        self._refusal(len(message.body), properties_size, result)
        size = RECORD_SIZE_MIN + len(message.body) + len(self.offsets.topic(message.topic).encoded) + properties_size
        size += CRC_SIZE + 2 * HOST_GROWTH
        if result.status is OK and size > self._record_size_max():
            _refused(result, ILLEGAL, f"a record of up to {size} bytes; at most {self._record_size_max()}")
        if result.status is not OK:
            raise RefusedMessage(result.status, f"message {index}: {result.reason}")

    def _properties_of(self, message: Message) -> bytes:
        """Return the encoded and normalized properties of a message."""
        properties: bytes = encode_properties(message)
        is_raw: Bool = message.properties_raw is not None
        if is_raw or message.properties is not None:
            return self._normalize(message.topic, properties, is_raw)
        return properties

    def _normalize(self, topic: str, properties: bytes, is_raw: bool) -> bytes:
        """Normalize properties so that the checksum can follow; reject text that RocketMQ cannot parse."""
        source: Source = source_of_bytes(properties)
        size: Size = len(properties)
        if has_bytes(source, size, _CRC_NAME, len(CRC_NAME)):
            properties = delete_property(properties, CRC_NAME)
            source = source_of_bytes(properties)
            size = len(properties)
        if is_raw and size and (source[size - 1] != PAIR_END if self._envelope.with_crc else source[size - 1] == 0):
            properties = properties + b"\x02"  # a trailing zero would look like a torn write
        if _may_be_numbers(topic, properties):
            check_number_properties(topic, properties)
        return properties

    def _append(
        self, message: Message, queue_id: I32, properties: Source, properties_size: Size, now: I64, result: PutResult
    ) -> PutResult:
        """Append one message, under the lock."""
        body_size: Size = len(message.body)
        # Properties of exactly the limit pass only without the checksum, so `_refusal` decides, with the trailer counted.
        if body_size > self.body_size_max or properties_size > PROPERTIES_SIZE_MAX - CRC_SIZE:
            self._refusal(body_size, properties_size, result)
            if result.status is not OK:
                return result
        topic: TopicQueues = self.offsets.appended(message.topic)
        self._address(message, topic, queue_id)
        size: Size = record_size(self._envelope, body_size, properties_size)
        # Between the largest body and the largest record only `_reserve` knows the limit; it also opens the next file.
        if self.position + size > self._reserved_end or size > self.body_size_max:
            if self._reserve(size, result).status is not OK:
                return result
        self._write(message, topic, properties, properties_size, now, result)
        return result

    def _write(
        self, message: Message, topic: TopicQueues, properties: Source, properties_size: Size, now: I64, result: PutResult
    ) -> None:
        """Write one message whose envelope is set and that has room."""
        envelope: Envelope = self._envelope
        if message.born_timestamp_ms == 0:
            envelope.born_timestamp_ms = now
        transaction: I32 = message.sys_flag & TRANSACTION_MASK
        queue_id: Size = envelope.queue_id
        is_queued: Bool = transaction == TRANSACTION_NONE or transaction == TRANSACTION_COMMIT
        # Prepared and rolled-back messages are in no queue, and take no number of one.
        queue_offset: I64 = topic._next[queue_id] if is_queued else 0
        start: Size = self.position
        result.physical_offset = self.base + start
        result.queue_id = queue_id
        result.queue_offset = queue_offset
        result.store_timestamp_ms = now
        result.store_host = envelope.store_host
        result.message_count = 1
        try:
            if is_queued:  # first: an interrupt takes it back below, and a record cannot be taken back
                topic._next[queue_id] = queue_offset + 1
            result.size_bytes = write_record(
                self._target, start - self._origin, self.base + self._origin, envelope, queue_offset, now,
                source_of_bytes(message.body), 0, len(message.body), properties, properties_size,
            )  # fmt: skip
            self.position = start + result.size_bytes
            if self._reserve_more is not None:  # old bytes follow, which a reader must not take for a record header
                publish_i32(self._target, self.position - self._origin, 0)
        except BaseException:  # KeyboardInterrupt, in the plain build: keep both record and queue offset, or neither
            if self.position == start and is_queued:
                topic._next[queue_id] = queue_offset
            raise

    def _address(self, message: Message, topic: TopicQueues, queue_id: I32) -> None:
        """Set the envelope for one message."""
        envelope: Envelope = self._envelope
        if queue_id < 0 or queue_id >= topic._capacity:
            self._check_queue(topic, queue_id)
        if message.born_host is None and message.store_host is None:
            if envelope.born_host is not self._host or envelope.store_host is not self._host:
                envelope.set_hosts(self._host, self._host)
        else:
            envelope.set_hosts(
                self._host if message.born_host is None else encode_host(message.born_host),
                self._host if message.store_host is None else encode_host(message.store_host),
            )
        if envelope.topic is not topic.encoded:  # by identity: a topic has one object
            envelope.set_topic(topic.encoded, topic.magic)
        envelope.queue_id = queue_id
        envelope.flag = message.flag
        envelope.sys_flag = message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6) | _v6_flags(envelope)
        envelope.born_timestamp_ms = message.born_timestamp_ms
        envelope.reconsume_times = message.reconsume_times
        envelope.prepared_transaction_offset = message.prepared_transaction_offset

    def _plain_envelope(self, name: TopicQueues, queue_id: I32, body_size: Size, properties_size: Size) -> Size:
        """Set the envelope for a message with only a topic and a queue; return the record's size."""
        envelope: Envelope = self._envelope
        if envelope.born_host is not self._host or envelope.store_host is not self._host:
            envelope.set_hosts(self._host, self._host)
        if envelope.topic is not name.encoded:
            envelope.set_topic(name.encoded, name.magic)
        envelope.queue_id = queue_id
        envelope.flag = 0
        envelope.sys_flag = _v6_flags(envelope)
        envelope.reconsume_times = 0
        envelope.prepared_transaction_offset = 0
        return record_size(envelope, body_size, properties_size)

    def _check_queue(self, topic: TopicQueues, queue_id: Size) -> None:
        """Make room for the counter of a queue, or raise `InvalidMessage`."""
        if not 0 <= queue_id < QUEUES_MAX:
            raise InvalidMessage(f"queue id {queue_id}: 0 to {QUEUES_MAX - 1}")
        if queue_id >= topic._capacity:
            topic._grow(queue_id)

    def _record_size_max(self) -> Size:
        """Return the maximum size of a record: the limit in docs/formats/put-rules.md#size-limits, or an empty file."""
        allowed: Size = self.body_size_max + RECORD_ALLOWANCE
        whole: Size = self.file_size_bytes - BLANK_SIZE
        return allowed if allowed < whole else whole

    def _refusal(self, body_size: Size, properties_size: Size, result: PutResult) -> PutResult:
        """Set the status of a message that is too long, properties first as in RocketMQ.

        See docs/formats/put-rules.md#checks-before-a-write.
        """
        trailer: Size = CRC_SIZE if self._envelope.with_crc else 0
        if properties_size + trailer > PROPERTIES_SIZE_MAX:
            return _refused(
                result, PROPERTIES_EXCEEDED, f"properties of {properties_size} bytes; at most {PROPERTIES_SIZE_MAX - trailer}"
            )
        if body_size > self.body_size_max:
            return _refused(result, ILLEGAL, f"body of {body_size} bytes; at most {self.body_size_max}")
        return result

    def _reserve(self, size: Size, result: PutResult) -> PutResult:
        """Reserve `size` bytes in one file, closing this one if necessary; set the status if that fails."""
        if self.is_closed:
            raise StoreClosed("the store is closed")
        # Of columns the largest row was checked before the first was written, so a later one must only fit a file.
        if size > self.file_size_bytes - BLANK_SIZE or (result.message_count == 0 and size > self._record_size_max()):
            return _refused(result, ILLEGAL, f"a record of {size} bytes; at most {self._record_size_max()}")
        if size + BLANK_SIZE <= self._capacity - self.position:
            return self._extend_reserved(size, result)
        left: Size = self._capacity - self.position
        try:
            if left >= BLANK_SIZE and self.position > self._reserved_end and self._allocate is not None:
                self._allocate(self.position + BLANK_SIZE)
            view, base = self._next_file()  # before the blank: if there is none, smaller records still fit this one
        except DiskError as error:
            result.cause = error
            return _refused(result, NO_FILE, str(error))
        if left >= BLANK_SIZE:  # readers take fewer bytes than that for the end of a file
            write_blank(self._target, self.position - self._origin, left)
        self.attach(view, base, 0)
        return self._extend_reserved(size, result)

    def _extend_reserved(self, size: Size, result: PutResult) -> PutResult:
        """Move the ring buffer, or allocate blocks, for a record that the file has room for."""
        if self.position + size > self._reserved_end and size < self.file_size_bytes:
            try:
                if self._reserve_more is not None:
                    self._reserve_more(self.position, size)
                elif self._allocate is not None:
                    self._reserved_end = self._allocate(self.position + size + BLANK_SIZE) - BLANK_SIZE
            except DiskError as error:
                result.cause = error
                return _refused(result, NO_FILE, str(error))
        return result

    def _now(self) -> Size:
        """Return the time of the clock, but never an earlier one than before."""
        now: I64 = now_ms() if self._clock is None else self._clock()
        if now < self.last_store_timestamp_ms:  # searches by time halve the log, which needs times in its order
            return self.last_store_timestamp_ms
        self.last_store_timestamp_ms = now
        return now

    def _result(self) -> PutResult:
        """Return a new result with status OK and no offsets."""
        result: PutResult = PutResult.__new__(PutResult)
        result.status = OK
        result.reason = None
        if not cython.compiled:  # a C field is None already
            result.cause = None
        result.physical_offset = -1
        result.queue_id = -1
        result.queue_offset = -1
        result.store_timestamp_ms = 0
        result.store_host = self._host
        result.size_bytes = 0
        result.message_count = 0
        return result


@cython.cfunc
def _may_be_numbers(topic: str, properties: bytes) -> Bool:
    """Return whether `check_number_properties` has anything to check."""
    return has_bytes(source_of_bytes(properties), len(properties), _INNER, 6) or topic == SCHEDULE_TOPIC


@cython.cfunc
def _refused(result: PutResult, status: PutStatus, reason: str) -> PutResult:
    """Set status and reason of a result and return it."""
    result.status = status
    result.reason = reason
    return result


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _v6_flags(envelope: Envelope) -> I32:
    """Return the host bits of a system flag."""
    born: I32 = 0 if envelope._born_size == HOST_SIZE else BORN_HOST_V6
    store: I32 = 0 if envelope._store_size == HOST_SIZE else STORE_HOST_V6
    return born | store


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_pair(out: Target, at: Size, name: Source, text: Source, start: Size, size: Size) -> Size:
    """Write a five-byte name, a value and its end, nothing for an empty value; return the position after it."""
    if size == 0:
        return at
    put_bytes(out, at, name, 0, 5)
    put_bytes(out, at + 5, text, start, size)
    out[at + 5 + size] = PAIR_END
    return at + 6 + size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _append_rows(
    log: Appender, nexts: I64s, queue_id: I32, queues: I32, now: I64, row: Size, rows: Size, body_offsets: I64s,
    bodies: Source, has_keys: Bool, key_offsets: I64s, keys: Source, has_tags: Bool, tag_offsets: I64s, tags: Source,
    tail: Source, tail_size: Size, is_ring: Bool,
) -> Size:  # fmt: skip
    """Append rows from `row` on until one does not fit; return how many did."""
    first: Size = row
    properties: Source = tail
    properties_size: Size = tail_size
    while row < rows:
        if has_keys or has_tags:
            properties_size = 0
            if has_keys:
                properties_size = _add_pair(
                    log._row, properties_size, _KEYS, keys, key_offsets[row], key_offsets[row + 1] - key_offsets[row]
                )
            if has_tags:
                properties_size = _add_pair(
                    log._row, properties_size, _TAGS, tags, tag_offsets[row], tag_offsets[row + 1] - tag_offsets[row]
                )
            put_bytes(log._row, properties_size, tail, 0, tail_size)
            properties_size += tail_size
            properties = log._row
        body_size: Size = body_offsets[row + 1] - body_offsets[row]
        if log.position + record_size(log._envelope, body_size, properties_size) > log._reserved_end:
            break
        queue: I32 = queue_of_row(row, queue_id, queues, has_keys, key_offsets, keys)
        log._envelope.queue_id = queue
        log.position += write_record(
            log._target, log.position - log._origin, log.base + log._origin, log._envelope, nexts[queue], now,
            bodies, body_offsets[row], body_size, properties, properties_size,
        )  # fmt: skip
        nexts[queue] += 1
        if is_ring:
            publish_i32(log._target, log.position - log._origin, 0)
        row += 1
    return row - first
