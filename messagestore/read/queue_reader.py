"""Read messages of a queue: in pages with RocketMQ's statuses, in ranges, and as views of the log's bytes.

Queues of every kind are read by the same code: a queue numbers its units and gives them in the form of ordinary ones.  A record
of a batch queue holds many messages and is returned whole.  Filler records, which stand for lost messages, are left out, except
among views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING

from commitlog import MappedFile, Reader, StoredMessage, without_fillers
from commitlog.checks import CHECK_READ
from consumequeue import Queue, is_ext_address
from consumequeue.layout import UNIT, UNIT_SIZE
from storageio import DiskError, StoreCorrupt, memory_bytes
from storebytes.java_hash import java_hash_code

if TYPE_CHECKING:
    from ..parts import StoreParts

DECODED_UNITS = 256  # decoded in one call
DECODED_BYTES = 1 << 20
MEMORY_SHARE = 0.4
RAW_UNITS = 256  # views in one list: few enough that Python's garbage collector has no reason to run
PAST_ALL = 1 << 62
ReadRecord = Callable[[int, int], StoredMessage | None]  # of a physical offset, with `commitlog.checks`
NEAR_BYTES = 1 << 20  # a reading ahead of 8 MiB costs as much as some 30 records read alone, and serves the next page as well


class GetStatus(Enum):
    """How a read ended (`docs/formats/read-rules.md#page-status`)."""

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
    """What a read found, and where the next one begins."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[StoredMessage] = field(default_factory=list)
    size_bytes: int = 0


class QueueReader:
    """Reads of one store's queues."""

    def __init__(self, parts: StoreParts) -> None:
        """Create it for an open store."""
        config = parts.config
        self._parts = parts
        self._log = parts.log
        self._queues = parts.lookup
        self._max_units = config.max_filter_message_size // UNIT_SIZE
        self._memory_limits = config.max_transfer_bytes_on_message_in_memory, config.max_transfer_count_on_message_in_memory
        self._disk_limits = config.max_transfer_bytes_on_message_in_disk, config.max_transfer_count_on_message_in_disk
        self._memory_bytes = int(memory_bytes() * MEMORY_SHARE)  # a record at most so far before the log's end is in memory

    # Pages

    def page(self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tags: set[str] | None) -> Page:
        """Return one page.  Raises `StoreCorrupt` for a unit that points at no record of its queue."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return Page(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = max(queue.min_offset, 0), queue.max_offset
        status, next_offset = _out_of_range(offset, low, high)
        if status is not None:
            return Page(status, next_offset, low, high)
        number = queue.unit_range(offset, high)[0]
        packed = queue.packed_units(number, max(self._max_units, max_count))
        if packed is None:
            return Page(GetStatus.OFFSET_FOUND_NULL, queue.roll_next_file(offset), low, high)
        page = Page(GetStatus.NO_MATCHED_MESSAGE, offset, low, high)
        self._fill(page, queue, number, packed, max_count, max_bytes, tags)
        return page

    def _fill(
        self, page: Page, queue: Queue, number: int, packed: memoryview, max_count: int, max_bytes: int, tags: set[str] | None
    ) -> None:
        """Add messages unit by unit until the page is full."""
        codes = None if tags is None else {java_hash_code(tag) & 0xFFFFFFFF for tag in tags}
        log_min_offset = self._log.min_offset
        memory_start = self._log.written_offset - self._memory_bytes
        found = 0
        next_file = -1
        offsets = queue.offsets_of(number, len(packed) // UNIT_SIZE)
        read = self._reads_of(packed, max_count)
        units = zip(UNIT.iter_unpack(packed), offsets, strict=False)
        for position, ((physical, size, code), (first, count)) in enumerate(units, number):
            if found:
                limit_bytes, limit = self._memory_limits if physical >= memory_start else self._disk_limits
                if found + count > max_count or found >= limit or page.size_bytes + size > min(max_bytes, limit_bytes):
                    break
            page.next_offset = first + count
            if codes is not None:
                plain = self._plain_code(queue, code)
                if plain is not None and plain & 0xFFFFFFFF not in codes:
                    continue
            if physical < next_file:
                continue
            if physical < log_min_offset:
                if not page.messages:
                    page.status = GetStatus.MESSAGE_WAS_REMOVING
                next_file = self._log.queue.roll_next_file(physical)
                continue
            message = self.message_or_gone(queue, position, physical, size, read)
            if message is not None and not message.is_filler and (tags is None or message.tags in tags):
                found += count
                page.messages.append(message)
                page.size_bytes += size
                page.status = GetStatus.FOUND

    def _reads_of(self, packed: memoryview, count: int) -> ReadRecord:
        """Return how to read the records of the first units: with or without reading ahead.

        Reading ahead pays off where one reading brings the next record along; otherwise it costs more than the records.
        """
        last = min(len(packed) // UNIT_SIZE, count) - 1
        if last < 1:
            return self._log.readers.message_at
        at = last * UNIT_SIZE
        distance = int.from_bytes(packed[at : at + 8], "big") - int.from_bytes(packed[:8], "big")
        return (self._log.scan_readers if distance < last * NEAR_BYTES else self._log.readers).message_at

    def _plain_code(self, queue: Queue, code: int) -> int | None:
        """Return a unit's tags code, from the extended unit where it has one; None where that is gone."""
        if not is_ext_address(code):
            return code
        reader = self._parts.derived.ext_reader(queue.topic, queue.queue_id)
        return reader.tags_code(code) if reader is not None else None

    # Single records

    def message_or_gone(
        self, queue: Queue, number: int, physical: int, size: int, read: ReadRecord | None = None
    ) -> StoredMessage | None:
        """Return a unit's record; None when it left the log meanwhile: expired, or cut by another process's recovery."""
        read = read or self._log.readers.message_at
        try:
            return self._message(queue, number, physical, size, read)
        except (StoreCorrupt, DiskError):
            self._parts.refresh()
            if physical < self._log.min_offset or not queue.still_points_at(number, physical, size):
                return None
            return self._message(queue, number, physical, size, read)

    def _message(self, queue: Queue, number: int, physical: int, size: int, read: ReadRecord) -> StoredMessage:
        message = read(physical, CHECK_READ)
        if message is None or message.size != size:
            found = "no whole record" if message is None else f"a record of {message.size} bytes"
            offset = next(iter(queue.offsets_of(number, 1)), (number, 1))[0]
            raise StoreCorrupt(
                f"unit {offset} of {queue.topic}-{queue.queue_id}", file=queue.folder, offset=number * queue.unit_size,
                expected=f"a record of {size} bytes at {physical}", found=found,
            )  # fmt: skip
        return message

    def store_time(self, physical_offset: int, _size: int = 0) -> int:
        """Return the store time of a record in milliseconds; -1 where none begins."""
        message = self._log.message_at(physical_offset, 0)
        return message.store_timestamp_ms if message is not None else -1

    def store_time_of(self, queue: Queue, queue_offset: int) -> int:
        """Return the store time of a message in milliseconds; -1 without the message."""
        number, stop = queue.unit_range(queue_offset, queue_offset + 1)
        packed = queue.packed_units(number, 1) if queue_offset >= queue.min_offset and number < stop else None
        return self.store_time(UNIT.unpack(packed)[0]) if packed is not None else -1

    # Ranges

    def messages(self, queue: Queue, start: int, stop: int) -> Iterator[StoredMessage]:
        """Yield the messages of a range of queue offsets in order, without those whose records left the log.

        Up to `DECODED_UNITS` are decoded in one call: of those none is missed when their file is deleted meanwhile.
        """
        return chain.from_iterable(self._lists(queue, *queue.unit_range(start, stop)))

    def _lists(self, queue: Queue, at: int, stop: int) -> Iterator[list[StoredMessage]]:
        """Yield lists of messages; no Python runs between two messages of a list."""
        while at < stop:
            reader, units = self._units(queue, at, min(stop - at, DECODED_UNITS), self._log.reader)
            messages = reader.decode_units(units, UNIT_SIZE, DECODED_BYTES, CHECK_READ) if reader is not None else []
            if messages:
                at += len(messages)
            else:
                at, message = self._one(queue, at)
                messages = [message] if message is not None else []
            yield without_fillers(messages)

    def views(self, queue: Queue, start: int, stop: int, *, check: bool = True) -> Iterator[list[memoryview]]:
        """Yield lists of views of the records' bytes in the log; only offset and size are checked.

        Without `check` the record's own bytes are not read.
        """
        at, stop = queue.unit_range(start, stop)
        while at < stop:
            reader, units = self._units(queue, at, min(stop - at, RAW_UNITS), self._log.own_reader)
            views = reader.views(units, UNIT_SIZE, check) if reader is not None else []
            if views:
                at += len(views)
                yield views
                continue
            at, message = self._one(queue, at)
            view = self._log.select(message.physical_offset, message.size) if message is not None else None
            if view is not None:
                yield [view]

    def _units(
        self, queue: Queue, at: int, count: int, reader_of: Callable[[MappedFile], Reader]
    ) -> tuple[Reader | None, memoryview]:
        """Return units and the reader of the log file that the first points into; no reader where they are not as expected."""
        packed = queue.packed_units(at, count)
        if packed is None:
            return None, memoryview(b"")
        try:
            file = self._log.queue.find(int.from_bytes(packed[:8], "big"))
            return None if file is None else reader_of(file), packed
        except DiskError:  # deleted since it was found
            return None, packed

    def _one(self, queue: Queue, at: int) -> tuple[int, StoredMessage | None]:
        """Return where to continue, and the message of one unit; None when its record or its unit is gone."""
        try:
            packed = queue.packed_units(at, 1)
            if packed is not None:
                physical, size, _ = UNIT.unpack(packed)
                is_gone = physical < self._log.min_offset
                return at + 1, None if is_gone else self.message_or_gone(queue, at, physical, size)
        except DiskError:  # a queue file that was deleted meanwhile
            if at >= self.first_number(queue):
                raise
        low = self.first_number(queue)
        return (low if low > at else PAST_ALL), None

    def first_number(self, queue: Queue) -> int:
        """Return the number of the first unit that the queue has now."""
        self._parts.refresh()
        found = self._queues.get(queue.topic, queue.queue_id)
        return found.unit_range(0, found.max_offset)[0] if found is not None else 0


def _out_of_range(offset: int, low: int, high: int) -> tuple[GetStatus | None, int]:
    """Return the status and the corrected offset of a read outside of the queue."""
    if high == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < low:
        return GetStatus.OFFSET_TOO_SMALL, low
    if offset == high:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > high:
        return GetStatus.OFFSET_OVERFLOW_BADLY, high
    return None, offset
