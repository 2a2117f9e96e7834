"""Extended units: an ordinary unit may have the address of one in place of its tags code (docs/formats/consumequeue.md).

They have what a filter of the broker looks at. A rebuild keeps the old ones, whose bitmaps the log does not tell.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from commitlog import StoredMessage
from commitlog.topic_names import SCHEDULE_TOPIC, is_virtual_topic
from consumequeue import (
    ConsumeQueue,
    ConsumeQueueExt,
    ConsumeQueues,
    ExtUnit,
    ExtWriter,
    QueueFiles,
    Unit,
    ext_folder,
    is_ext_address,
)
from consumequeue.layout import EXT_FILE_SIZE_DEFAULT, TAGS_CODE_AT, UNIT, UNIT_SIZE
from storageio import Disk, InvalidMessage, StoreCorrupt

from ...paths import StorePaths
from .scheduled import DelayLevels, MessageAt, waiting_level

LOG = logging.getLogger(f"brokerstore.{__name__}")


class ExtendedUnits:
    """The extended units of one open store."""

    def __init__(self, queues: ConsumeQueues, root: str, file_size_bytes: int | None) -> None:
        """Create it for the store in `root`, without a look at the disk."""
        self._queues = queues
        self._root = StorePaths(root).ext
        self._file_size = file_size_bytes or EXT_FILE_SIZE_DEFAULT
        self._files = QueueFiles(queues.disk, writable=queues.files.writable)
        self._writers: dict[tuple[str, int], ExtWriter] = {}

    def written(
        self, queue: ConsumeQueue, units: bytes | memoryview, message_at: Callable[[int], StoredMessage | None]
    ) -> bytes:  # fmt: skip
        """Write the extended units of a queue's next units; return the units with their addresses."""
        writer = self._writer(queue)
        made = bytearray()
        for physical, size, code in UNIT.iter_unpack(units):
            is_new = physical + size > queue.max_physical_offset
            message = message_at(physical) if is_new else None
            if message is not None:
                code = writer.append(ExtUnit(code, message.store_timestamp_ms, b"", 0))
            made += UNIT.pack(physical, size, code)
        return bytes(made)

    def _writer(self, queue: ConsumeQueue) -> ExtWriter:
        found = self._writers.get((queue.topic, queue.queue_id))
        if found is None:
            found = ExtWriter(self._root, queue.topic, queue.queue_id, self._file_size, self._files)
            self._writers[queue.topic, queue.queue_id] = found
        return found

    def reader(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        """Return a reader of a queue's extended units, or None if the queue has none."""
        folder = ext_folder(self._root, topic, queue_id)
        return ConsumeQueueExt(self._queues.disk, folder) if self._queues.disk.stat(folder) is not None else None

    def recover(self) -> None:
        """Cut units that no queue leads to.

        Deletes an ordinary queue whose last address leads to no extended unit, so that it is built again.
        """
        for queue in list(self._queues):
            if not self._writer(queue).truncate(_last_address(queue)):
                self._writer(queue).truncate(None)
                self._queues.remove(queue.topic, queue.queue_id)

    def delete_expired(self) -> None:
        """Delete files before the first unit that a queue leads to."""
        for queue in list(self._queues):
            first = queue.unit(queue.min_offset)
            if first is not None and is_ext_address(first.tags_code):
                self._writer(queue).delete_before(first.tags_code)

    def flush(self) -> None:
        """Sync what was written."""
        for writer in list(self._writers.values()):
            writer.flush()

    def close(self) -> None:
        """Close the files of all extended units."""
        self._files.close()


def _last_address(queue: ConsumeQueue) -> int | None:
    """Return the address of the newest extended unit of a queue, or None.

    Later units may have none, because the broker had them disabled.
    """
    for start in reversed(queue.starts):
        units = queue.rest(start) or b""
        for at in range(len(units) - UNIT_SIZE, -1, -UNIT_SIZE):
            code: int = UNIT.unpack_from(units, at)[2]
            if is_ext_address(code):
                return code
    return None


def is_extended(found: bytes, expected: bytes) -> bool:
    """Return whether a unit has an address in place of the wanted tags code."""
    return is_ext_address(UNIT.unpack(found)[2]) and found[:TAGS_CODE_AT] == expected[:TAGS_CODE_AT]


class KeptUnits:
    """What the old queues of a store have and the log does not tell: addresses of extended units, and due times.

    A rebuild takes them over where they agree with the record.
    """

    def __init__(
        self, disk: Disk, paths: StorePaths, old: ConsumeQueues, levels: DelayLevels, message_at: MessageAt, *,
        is_strict: bool = False,
    ) -> None:  # fmt: skip
        """Create it for queues opened for reading. `message_at` returns the record at a physical offset.

        `is_strict` raises `InvalidMessage` for an unknown delivery time, instead of assuming the current delay levels.
        """
        self._disk = disk
        self._paths = paths
        self._old = old
        self._levels = levels
        self._message_at = message_at
        self._has_ext = disk.stat(paths.ext) is not None
        self._readers: dict[tuple[str, int], ConsumeQueueExt | None] = {}
        self._is_strict = is_strict
        self.assumed = 0  # delivery times computed with the current delay levels
        self.lost_extended = 0  # units that get a tags code because their extended unit was not found

    def applied(self, topic: str, queue_id: int, units: bytes | memoryview) -> bytes | memoryview:
        """Return a run of units with the values of the old ones."""
        if is_virtual_topic(topic) or not (self._has_ext or topic == SCHEDULE_TOPIC):
            return units
        made = bytearray(units)
        queue = self._old.get(topic, queue_id)
        for position, old in enumerate(_same_units(queue, units)):
            physical_offset, size, code = UNIT.unpack_from(units, position * UNIT_SIZE)
            message = self._message_at(physical_offset)
            if isinstance(message, StoredMessage):
                code = self._code(message, queue_id, code, old)
            UNIT.pack_into(made, position * UNIT_SIZE, physical_offset, size, code)
        return bytes(made)

    def _code(self, message: StoredMessage, queue_id: int, code: int, old: Unit | None) -> int:
        """Return the tags code, address or delivery time of a record; `code`: the kernel's value."""
        if old is not None and self._is_right(message, queue_id, code, old.tags_code):
            return old.tags_code
        self.lost_extended += self._has_ext
        if waiting_level(message) <= 0:
            return code
        due_ms = self._levels.due_ms(message)
        if due_ms is None and self._is_strict:
            raise InvalidMessage(
                f"{self._paths.root}: no unit says when the delayed message at {message.physical_offset} is due; give its "
                "broker's delay levels (option delayLevels)"
            )
        self.assumed += due_ms is None
        return code if due_ms is None else due_ms

    def _is_right(self, message: StoredMessage, queue_id: int, code: int, found: int) -> bool:
        """Return whether an old unit's code agrees with its record; for an address, whether the extended unit agrees."""
        if is_ext_address(found):
            reader = self._reader(message.topic, queue_id)
            unit = reader.unit(found) if reader is not None else None
            if unit is None or unit.store_timestamp_ms != message.store_timestamp_ms:
                return False
            found = unit.tags_code
        return found == code if waiting_level(message) <= 0 else self._levels.may_be_due(message, found)

    def _reader(self, topic: str, queue_id: int) -> ConsumeQueueExt | None:
        queue_key = (topic, queue_id)
        if queue_key not in self._readers:
            folder = ext_folder(self._paths.ext, topic, queue_id)
            self._readers[queue_key] = None
            if self._disk.stat(folder) is not None:
                with contextlib.suppress(StoreCorrupt):
                    self._readers[queue_key] = ConsumeQueueExt(self._disk, folder)
        return self._readers[queue_key]

    def report(self) -> None:
        """Log what could not be carried over."""
        if self.assumed:
            LOG.warning(
                "%s: no unit says when %d delayed messages are due: the delay levels %r were assumed; if their broker has "
                "others, rebuild with --config broker.conf", self._paths.root, self.assumed, self._levels.current,
            )  # fmt: skip
        if self.lost_extended:
            LOG.warning(
                "%s: %d units have no extended unit any more and hold their tags code: filters of the broker look at the "
                "message instead", self._paths.root, self.lost_extended,
            )  # fmt: skip


def _same_units(queue: ConsumeQueue | None, units: bytes | memoryview) -> Iterator[Unit | None]:
    """Yield, for each unit, the old queue's unit of the same record; None if it is missing or unreadable."""
    at = -1
    for physical_offset, size, _ in UNIT.iter_unpack(units):
        found = None
        with contextlib.suppress(StoreCorrupt, InvalidMessage):
            if queue is not None:
                found = queue.unit(at) if at >= 0 else None
                if found is None or found.physical_offset != physical_offset:
                    at = queue.find_physical(physical_offset)
                    found = queue.unit(at)
                at += 1
        yield found if found is not None and found[:2] == (physical_offset, size) else None
