"""Reading a queue: pages by queue offset with RocketMQ's statuses, tags filtered, bodies on request decompressed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Protocol

from commitlog import CommitLog, StoredMessage
from commitlog._scan_cy import Reader
from commitlog.checks import CHECK_READ
from consumequeue import BatchQueue, BatchUnit, ConsumeQueue, is_ext_address
from consumequeue.layout import UNIT, UNIT_SIZE
from storageio import DiskError, StoreCorrupt
from storebytes.java_hash import java_hash_code

from ..config import StoreConfig
from ..write.derived_queues import DerivedQueues
from .batch_reads import batches, bounds

SOME_UNITS = 256  # messages made at a time
SOME_BYTES = 1 << 20
RAW_UNITS = 256  # so many views at a time that Python's collector has no reason to run
PAST_ALL = 1 << 62


class GetStatus(Enum):
    """How a read ended (format page, section 8.1)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class Page:
    """What a read found and where the next one begins."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage] = field(default_factory=list)
    size_bytes: int = 0


class Queues(Protocol):
    """Where queues are looked up."""

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """None when there is none."""


class QueueReader:
    """Reads of one store's queues."""

    def __init__(
        self, log: CommitLog, queues: Queues, config: StoreConfig, memory_bytes: Callable[[], int],
        refresh: Callable[[], None] = lambda: None, side: DerivedQueues | None = None,
    ) -> None:  # fmt: skip
        """`memory_bytes()`: how far behind the log's end a record counts as in memory; `refresh()`: see a writer's files.

        `side`: where batch queues and extended units are.
        """
        self._side = side
        self._log = log
        self._queues = queues
        self._config = config
        self._memory_bytes = memory_bytes
        self._refresh = refresh

    def page(self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tags: set[str] | None) -> Page:
        """One read (section 8.1).  Raises `StoreCorrupt` for a unit that points at no record of its queue."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            batch = self.batch_queue(topic, queue_id)
            if batch is not None:
                return self._batch_page(batch, offset, max_count, max_bytes, tags)
            return Page(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        status, next_offset = _out_of_range(offset, low, high)
        if status is not None:
            return Page(status, next_offset, low, high)
        packed = queue.index_buffer(offset)
        if packed is None:
            return Page(GetStatus.OFFSET_FOUND_NULL, queue.roll_next_file(offset), low, high)
        page = Page(GetStatus.NO_MATCHED_MESSAGE, offset, low, high)
        self._fill(page, queue, packed, offset, max_count, max_bytes, _codes(tags), tags)
        return page

    def batch_queue(self, topic: str, queue_id: int) -> BatchQueue | None:
        """A queue of batches, None when there is none."""
        found = self._side.batch.get(topic, queue_id) if self._side is not None else None
        if found is not None and self._side is not None and not found.is_writable:
            self._side.batch.files.log_min_offset = max(self._log.min_offset, 0)
            found.refresh()
        return found

    def _batch_page(self, queue: BatchQueue, offset: int, max_count: int, max_bytes: int, tags: set[str] | None) -> Page:
        """One read of a queue of batches: whole ones, with at most `max_count` messages in them together.

        The first batch always fits.
        """
        low, high = bounds(queue)
        status, next_offset = _out_of_range(offset, low, high)
        if status is not None:
            return Page(status, next_offset, low, high)
        page = Page(GetStatus.NO_MATCHED_MESSAGE, offset, low, high)
        codes = _codes(tags)
        count = 0
        for unit in batches(queue, offset):
            if count and (
                count + unit.batch_size > max_count
                or self._is_full(page, unit.physical_offset, unit.size_bytes, max_count, max_bytes, count)
            ):
                break
            page.next_offset = unit.base_offset + unit.batch_size
            if codes is not None and unit.tags_code & 0xFFFFFFFF not in codes:
                continue
            message = self._batch_message(queue, unit)
            if message is not None and (tags is None or message.tags in tags):
                count += unit.batch_size
                page.messages.append(message)
                page.size_bytes += unit.size_bytes
                page.status = GetStatus.FOUND
        return page

    def _batch_message(self, queue: BatchQueue, unit: BatchUnit) -> StoredMessage | None:
        """The record that a unit points at; None when it left the log while we looked, as of `message_or_gone`."""
        try:
            message = self._log.message_at(unit.physical_offset, CHECK_READ)
        except DiskError:  # deleted since its file was found
            message = None
        if message is not None and message.size == unit.size_bytes:
            return message
        self._refresh()
        if not queue.is_writable:
            queue.reload()
        known = queue.unit(queue.index_of(unit.base_offset))
        if unit.physical_offset < self._log.min_offset or known is None or known[:2] != unit[:2]:
            return None
        raise StoreCorrupt(
            f"messages from {unit.base_offset} on of {queue.topic}-{queue.queue_id}", file=queue.folder, offset=0,
            expected=f"a record of {unit.size_bytes} bytes at {unit.physical_offset}", found="no whole record",
        )  # fmt: skip

    def batch_messages(self, queue: BatchQueue, start: int, stop: int) -> Iterator[StoredMessage]:
        """Every record of a range of queue offsets, in order."""
        for unit in batches(queue, start):
            if unit.base_offset >= stop:
                return
            message = self._batch_message(queue, unit)
            if message is not None:
                yield message

    def _plain_code(self, queue: ConsumeQueue, code: int) -> int | None:
        """A unit's tags code; of an extended one what that holds, None where it is gone."""
        if not is_ext_address(code) or self._side is None:
            return code
        reader = self._side.ext_reader(queue.topic, queue.queue_id)
        return reader.tags_code(code) if reader is not None else None

    def _fill(
        self, page: Page, queue: ConsumeQueue, packed: memoryview, offset: int, max_count: int, max_bytes: int,
        codes: set[int] | None, tags: set[str] | None,
    ) -> None:  # fmt: skip
        """Unit by unit until the page is full or as much was looked at as one read may."""
        scan_max = max(self._config.max_filter_message_size // UNIT_SIZE, max_count)
        next_file = -1
        for place, (physical, size, code) in enumerate(UNIT.iter_unpack(packed[: scan_max * UNIT_SIZE]), offset):
            if page.messages and self._is_full(page, physical, size, max_count, max_bytes, len(page.messages)):
                break
            page.next_offset = place + 1
            if codes is not None:
                plain = self._plain_code(queue, code)
                if plain is not None and plain & 0xFFFFFFFF not in codes:
                    continue
            if physical < next_file:
                continue
            if physical < self._log.min_offset:
                if not page.messages:
                    page.status = GetStatus.MESSAGE_WAS_REMOVING
                next_file = self._log.queue.roll_next_file(physical)
                continue
            message = self.message_or_gone(queue, place, physical, size)
            if message is not None and (tags is None or message.tags in tags):
                page.messages.append(message)
                page.size_bytes += size
                page.status = GetStatus.FOUND

    def message_or_gone(self, queue: ConsumeQueue, place: int, physical: int, size: int) -> StoredMessage | None:
        """None when the record left the log while we looked: expired, or cut by another process's recovery."""
        try:
            return self.message(queue, place, physical, size)
        except (StoreCorrupt, DiskError):
            self._refresh()
            unit = queue.unit(place) if place >= queue.min_offset else None
            if physical < self._log.min_offset or unit is None or unit[:2] != (physical, size):
                return None
            return self.message(queue, place, physical, size)

    def message(self, queue: ConsumeQueue, place: int, physical: int, size: int) -> StoredMessage:
        """The record that a unit points at."""
        message = self._log.message_at(physical, CHECK_READ)
        if message is None or message.size != size:
            found = "no whole record" if message is None else f"a record of {message.size} bytes"
            raise StoreCorrupt(
                f"unit {place} of {queue.topic}-{queue.queue_id}",
                file=queue.folder, offset=place * UNIT_SIZE, expected=f"a record of {size} bytes at {physical}", found=found,
            )  # fmt: skip
        return message

    def store_time(self, physical_offset: int, _size: int) -> int:
        """Of a record, -1 where none begins."""
        message = self._log.message_at(physical_offset, 0)
        return message.store_timestamp_ms if message is not None else -1

    def _is_full(self, page: Page, physical: int, size: int, max_count: int, max_bytes: int, count: int) -> bool:
        """The limits of one answer with `count` messages in it; the first one always fits."""
        total = page.size_bytes + size
        if count >= max_count or total > max_bytes:
            return True
        if self._log.written_offset - physical <= self._memory_bytes():
            limit = self._config.max_transfer_bytes_on_message_in_memory
            return total > limit or count >= self._config.max_transfer_count_on_message_in_memory
        limit = self._config.max_transfer_bytes_on_message_in_disk
        return total > limit or count >= self._config.max_transfer_count_on_message_in_disk

    def messages(self, queue: ConsumeQueue, start: int, stop: int) -> Iterator[StoredMessage]:
        """Every message of a range, in order; those whose records left the log are passed over.

        Up to `SOME_UNITS` are decoded at once: of those none is missed when their file is deleted meanwhile.
        """
        return chain.from_iterable(self._lists(queue, start, stop))

    def _lists(self, queue: ConsumeQueue, start: int, stop: int) -> Iterator[list[StoredMessage]]:
        """As `messages`, some at a time: no Python runs between two messages of a list."""
        at = start
        while at < stop:
            messages = self._some(queue, at, stop)
            if not messages:
                at, message = self._one(queue, at)
                messages = [message] if message is not None else []
            else:
                at += len(messages)
            yield messages

    def _some(self, queue: ConsumeQueue, at: int, stop: int) -> list[StoredMessage]:
        """A stretch of messages whose units and records are as they should be, none where the first is not."""
        reader, units = self._stretch(queue, at, min(stop - at, SOME_UNITS))
        return reader.decode_units(units, UNIT_SIZE, SOME_BYTES, CHECK_READ) if reader is not None else []

    def views(self, queue: ConsumeQueue, start: int, stop: int, *, check: bool = True) -> Iterator[list[memoryview]]:
        """As `messages`, but the records' bytes as they lie in the log, many at a time: only place and size are checked.

        Without `check` a record's own head is not asked whether it is one.
        """
        at = start
        while at < stop:
            reader, units = self._stretch(queue, at, min(stop - at, RAW_UNITS))
            views = reader.views(units, UNIT_SIZE, check) if reader is not None else []
            if views:
                at += len(views)
                yield views
                continue
            place = at
            at, message = self._one(queue, place)
            view = self._log.select(message.physical_offset, message.size) if message is not None else None
            if view is not None:
                yield [view]

    def _stretch(self, queue: ConsumeQueue, at: int, count: int) -> tuple[Reader | None, memoryview]:
        """Units from `at` on and the reader of the log file that the first points into; None where something is odd."""
        packed = queue.index_buffer(at)
        if packed is None:
            return None, memoryview(b"")
        physical = int.from_bytes(packed[:8], "big")
        try:
            file = self._log.queue.find(physical)
            return None if file is None else self._log.reader(file), packed[: count * UNIT_SIZE]
        except DiskError:  # deleted since it was found
            return None, packed

    def _one(self, queue: ConsumeQueue, at: int) -> tuple[int, StoredMessage | None]:
        """(where to go on, the message of a unit, or None when its record or its unit left meanwhile)."""
        try:
            for place, unit in queue.units(at, at + 1):
                if unit.physical_offset < self._log.min_offset:
                    return place + 1, None
                return place + 1, self.message_or_gone(queue, place, unit.physical_offset, unit.size_bytes)
        except DiskError:  # a queue file that was deleted meanwhile
            if at >= self._low(queue):
                raise
        low = self._low(queue)
        return (low if low > at else PAST_ALL), None

    def _low(self, queue: ConsumeQueue) -> int:
        """Where a queue begins now."""
        self._refresh()
        found = self._queues.get(queue.topic, queue.queue_id)
        return found.min_offset if found is not None else 0


def _out_of_range(offset: int, low: int, high: int) -> tuple[GetStatus | None, int]:
    """The status and the corrected offset of a read outside the queue."""
    if high == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < low:
        return GetStatus.OFFSET_TOO_SMALL, low
    if offset == high:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > high:
        return GetStatus.OFFSET_OVERFLOW_BADLY, high
    return None, offset


def _codes(tags: set[str] | None) -> set[int] | None:
    """The low 32 bits of the tags' hashes, None for no filter."""
    return None if tags is None else {java_hash_code(tag) & 0xFFFFFFFF for tag in tags}
