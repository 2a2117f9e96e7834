"""Carry over from the old queues what the log alone does not tell: extended unit addresses and due times.

A rebuild takes these values over where they agree with the record.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from commitlog import StoredMessage
from commitlog.topic_names import SCHEDULE_TOPIC
from consumequeue import ConsumeQueue, ConsumeQueueExt, ConsumeQueues, Unit, is_ext_address
from consumequeue.ext import ext_folder
from consumequeue.layout import UNIT, UNIT_SIZE
from storageio import Disk, InvalidMessage, StoreCorrupt

from ..delay_levels import DelayLevels, MessageAt, waiting_level
from ..paths import StorePaths
from ..write.lmq_units import is_lmq

LOG = logging.getLogger(f"brokerstore.{__name__}")


class KeptUnits:
    """The units of one store's old queues."""

    def __init__(
        self, disk: Disk, places: StorePaths, old: ConsumeQueues, levels: DelayLevels, message_at: MessageAt, *,
        is_strict: bool = False,
    ) -> None:  # fmt: skip
        """Create it for queues opened for reading. `message_at` returns the record at a physical offset.

        `is_strict` raises `InvalidMessage` for an unknown delivery time, instead of assuming the current delay levels.
        """
        self._disk = disk
        self._places = places
        self._old = old
        self._levels = levels
        self._message_at = message_at
        self._has_ext = disk.stat(places.ext) is not None
        self._readers: dict[tuple[str, int], ConsumeQueueExt | None] = {}
        self._is_strict = is_strict
        self.assumed = 0  # delivery times computed with the current delay levels
        self.lost_extended = 0  # units that get a tags code because their extended unit was not found

    def applied(self, topic: str, queue_id: int, units: bytes | memoryview) -> bytes | memoryview:
        """Return a run of units with the values of the old ones."""
        if is_lmq(topic) or not (self._has_ext or topic == SCHEDULE_TOPIC):
            return units
        made = bytearray(units)
        queue = self._old.get(topic, queue_id)
        for place, old in enumerate(_same_units(queue, units)):
            physical_offset, size, code = UNIT.unpack_from(units, place * UNIT_SIZE)
            message = self._message_at(physical_offset)
            if isinstance(message, StoredMessage):
                code = self._code(message, queue_id, code, old)
            UNIT.pack_into(made, place * UNIT_SIZE, physical_offset, size, code)
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
                f"{self._places.root}: no unit says when the delayed message at {message.physical_offset} is due; give its "
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
            folder = ext_folder(self._places.ext, topic, queue_id)
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
                "others, rebuild with --config broker.conf", self._places.root, self.assumed, self._levels.current,
            )  # fmt: skip
        if self.lost_extended:
            LOG.warning(
                "%s: %d units have no extended unit any more and hold their tags code: filters of the broker look at the "
                "message instead", self._places.root, self.lost_extended,
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
