"""Read which messages queues and index name, by physical offset: what a hole has lost, and how far the log once reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from commitlog.layout import RECORD_SIZE_MIN
from consumequeue import BatchQueues, ConsumeQueues
from indexfile import IndexFiles
from indexfile.layout import FIRST_ITEM, HEADER_SIZE, ITEM_SIZE, SLOT_SIZE
from storageio import DiskError, StoreError

from ..recovery.witnesses import know_last_record, last_indexed
from ..rocksdb.database import Database
from ..rocksdb.queues import read_ends, read_units

QueueKey = tuple[str, int]
_ITEM = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])


class NamedUnit(NamedTuple):
    """A unit of a queue, and the number of messages in its record."""

    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    messages: int = 1


class NamedMessages(Protocol):
    """What the queues of a store name."""

    def between(self, start: int, stop: int) -> Iterator[NamedUnit]:
        """Yield the units of records that begin at physical offsets from `start` to before `stop`."""

    def indexed(self, start: int, stop: int) -> set[int]:
        """Return the physical offsets in this range that the index names."""

    def reach(self, last_offset: int) -> int:
        """Return the greatest physical offset that a named record reaches, -1 without one.

        `last_offset` is where the last record of the log begins.
        """

    def ends_at(self, offset: int) -> dict[QueueKey, tuple[int, int]]:
        """Return for each queue its end if the log ended at a physical offset, and its end now."""


class FileMessages:
    """What queues in files, batch queues and the index name."""

    def __init__(self, queues: ConsumeQueues, batch: BatchQueues, index: IndexFiles | None) -> None:
        """Take files that were opened for reading."""
        self._queues = queues
        self._batch = batch
        self._index = index

    def between(self, start: int, stop: int) -> Iterator[NamedUnit]:
        """Yield the units of all queues in the range, even without a later record."""
        for queue in self._queues:
            at = queue.find_physical(start)
            while (unit := queue.unit(at)) is not None and start <= unit.physical_offset < stop:
                yield NamedUnit(unit.physical_offset, queue.topic, queue.queue_id, at)
                at += 1
        for batch in self._batch:
            for one in batch.units():
                if start <= one.physical_offset < stop:
                    yield NamedUnit(one.physical_offset, batch.topic, batch.queue_id, one.base_offset, one.batch_size)

    def indexed(self, start: int, stop: int) -> set[int]:
        """Read the items of the files whose header overlaps the range."""
        found: set[int] = set()
        for file in self._index.files if self._index is not None else ():
            header = file.header
            if header.begin_physical_offset < stop and header.end_physical_offset >= start:
                items_at = HEADER_SIZE + SLOT_SIZE * file.slots + ITEM_SIZE * FIRST_ITEM
                count = min(header.items_used, file.items - FIRST_ITEM)
                offsets = np.frombuffer(file.buffer.data, _ITEM, count, items_at)["offset"]
                found |= set(offsets[(offsets >= start) & (offsets < stop)].tolist())
        return found

    def reach(self, last_offset: int) -> int:
        """Read the last unit of each queue, and the last item of the index if no queue has the log's last record."""
        ends = [self._queues.max_physical_offset()]
        ends += [unit.physical_offset + unit.size_bytes for queue in self._batch if (unit := queue.last_unit)]
        if not know_last_record(self._queues, self._batch, last_offset):
            indexed = last_indexed(self._index)
            ends.append(indexed + RECORD_SIZE_MIN if indexed >= 0 else -1)
        return max(ends)

    def ends_at(self, offset: int) -> dict[QueueKey, tuple[int, int]]:
        """Search each queue for the first unit behind the offset."""
        ends = {(queue.topic, queue.queue_id): (queue.find_physical(offset), queue.max_offset) for queue in self._queues}
        for queue in self._batch:
            kept = [unit for unit in queue.units() if unit.physical_offset < offset]
            end = kept[-1].base_offset + kept[-1].batch_size if kept else 0
            ends[queue.topic, queue.queue_id] = end, queue.max_offset
        return ends


class RocksdbMessages:
    """What queues in RocksDB name."""

    def __init__(self, database: Database) -> None:
        """Take an open database."""
        self._database = database

    @cached_property
    def _units(self) -> list[NamedUnit]:
        """The units, which have no order by physical offset."""
        units = read_units(self._database)
        return [NamedUnit(unit.physical_offset, unit.topic, unit.queue_id, unit.queue_offset) for unit in units]

    def between(self, start: int, stop: int) -> Iterator[NamedUnit]:
        """Yield the units in the range."""
        return (unit for unit in self._units if start <= unit.physical_offset < stop)

    def indexed(self, start: int, stop: int) -> set[int]:
        """Return nothing: every record with keys has a unit."""
        return set()

    def reach(self, last_offset: int) -> int:
        """Return the least end of the last record that a queue ends with."""
        return max((end.physical_offset + RECORD_SIZE_MIN for end in read_ends(self._database) if end.is_max), default=-1)

    def ends_at(self, offset: int) -> dict[QueueKey, tuple[int, int]]:
        """Return the ends of all queues."""
        now: dict[QueueKey, int] = {}
        then: dict[QueueKey, int] = {}
        for unit in self._units:
            key, end = (unit.topic, unit.queue_id), unit.queue_offset + 1
            now[key] = max(now.get(key, 0), end)
            if unit.physical_offset < offset:
                then[key] = max(then.get(key, 0), end)
        return {key: (then.get(key, 0), end) for key, end in now.items()}


def by_queue(units: Iterator[NamedUnit]) -> dict[str, int]:
    """Return the number of messages of each queue, by `topic/queue`."""
    counts: Counter[str] = Counter()
    for unit in units:
        counts[f"{unit.topic}/{unit.queue_id}"] += unit.messages
    return dict(sorted(counts.items()))


def reach_of(named: NamedMessages | None, last_offset: int) -> int:
    """Return how far the named records reach; -1 if that cannot be read."""
    try:
        return named.reach(last_offset) if named is not None else -1
    except DiskError:
        raise
    except StoreError:
        return -1
