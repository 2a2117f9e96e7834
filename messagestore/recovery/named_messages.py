"""Read which messages queues, index and timers name, by physical offset: what a hole has lost, and how far the log reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

from commitlog.layout import RECORD_SIZE_MIN
from consumequeue import BatchQueue, BatchQueues, ConsumeQueue, ConsumeQueues
from indexfile import IndexFiles
from indexfile.layout import FIRST_ITEM, HEADER_SIZE, ITEM_SIZE, SLOT_SIZE
from storageio import DiskError, StoreCorrupt, StoreError, UnsupportedFormat

from ..rocksdb.database import Database
from ..rocksdb.queues import read_ends, read_units
from ..timers.timer_log import TimerLog

QueueKey = tuple[str, int]
UNNAMED_FILES_MAX = 2  # log files between two records that anything names
_ITEM = [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]


class NamedUnit(NamedTuple):
    """A unit of a queue, and the number of messages in its record."""

    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    messages: int = 1


class EndClaim(NamedTuple):
    """One part of a folder that names a message, or tells how far the log reached."""

    file: str
    start: int  # physical offset of a byte that the log had, by this part: where the last record that it names begins
    end: int  # the least physical offset at which the log ended


class FileMessages:
    """What queues in files, batch queues, the index and the timer log name."""

    def __init__(self, queues: ConsumeQueues, batch: BatchQueues, index: IndexFiles | None, timers: TimerLog) -> None:
        """Take files that were opened for reading.  A queue that cannot be read names nothing."""
        self._all_queues = queues
        self._all_batch = batch
        self._index = index
        self._timers = timers

    @cached_property
    def _queues(self) -> list[ConsumeQueue]:
        return [queue for queue in self._all_queues if _is_readable(queue)]

    @cached_property
    def _batch(self) -> list[BatchQueue]:
        return [queue for queue in self._all_batch if _is_readable(queue)]

    def between(self, start: int, stop: int) -> Iterator[NamedUnit]:
        """Yield the units of records that begin at physical offsets from `start` to before `stop`."""
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
        """Return the physical offsets in this range that the index or a timer names."""
        import numpy as np  # takes 80 ms

        found = {at for at, _ in self._timed if start <= at < stop}
        for file in self._index.files if self._index is not None else ():
            header = file.header
            if header.begin_physical_offset < stop and header.end_physical_offset >= start:
                items_at = HEADER_SIZE + SLOT_SIZE * file.slots + ITEM_SIZE * FIRST_ITEM
                count = min(header.items_used, file.items - FIRST_ITEM)
                offsets = np.frombuffer(file.buffer.data, np.dtype(_ITEM), count, items_at)["offset"]
                found |= set(offsets[(offsets >= start) & (offsets < stop)].tolist())
        return found

    def claims(self, last_offset: int) -> Iterator[EndClaim]:
        """Yield for each part the end of the last record that it names.

        `last_offset` is where the last record of the log begins. RocketMQ cuts queues, but neither index nor timers, when it
        finds a torn tail. So these say nothing if a queue ends with the log's last record.
        """
        knows_last = False
        for queue in self._queues:
            end, last = queue.max_physical_offset, queue.unit(queue.max_offset - 1)
            if end >= 0 and last is not None:
                yield EndClaim(queue.folder, last.physical_offset, end)
                knows_last |= 0 <= last_offset <= last.physical_offset
        for batch in self._batch:
            if (unit := batch.last_unit) is not None:
                yield EndClaim(batch.folder, unit.physical_offset, unit.physical_offset + unit.size_bytes)
                knows_last |= 0 <= last_offset <= unit.physical_offset
        if knows_last:
            return
        if self._index is not None and (indexed := _last_indexed(self._index)) >= 0:
            yield EndClaim(self._index.files[-1].path, indexed, indexed + RECORD_SIZE_MIN)
        if self._timed:
            yield EndClaim(self._timers.folder, *max(self._timed))

    @cached_property
    def _timed(self) -> set[tuple[int, int]]:
        """The bounds of all records that timers point to; of a timer log that cannot be read, those before the damage."""
        found: set[tuple[int, int]] = set()
        with suppress(StoreCorrupt, UnsupportedFormat):
            found.update((unit.log_offset, unit.log_end) for unit in self._timers.units())
        return found

    def ends_at(self, offset: int) -> dict[QueueKey, tuple[int, int]]:
        """Return for each queue its end if the log ended at a physical offset, and its end now."""
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

    def claims(self, last_offset: int) -> Iterator[EndClaim]:
        """Yield the least end of the last record of each queue."""
        path = self._database.path
        starts = (end.physical_offset for end in read_ends(self._database) if end.is_max)
        return (EndClaim(path, start, start + RECORD_SIZE_MIN) for start in starts)

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


NamedMessages = FileMessages | RocksdbMessages


def by_queue(units: Iterator[NamedUnit]) -> dict[str, int]:
    """Return the number of messages of each queue, by `topic/queue`."""
    counts: Counter[str] = Counter()
    for unit in units:
        counts[f"{unit.topic}/{unit.queue_id}"] += unit.messages
    return dict(sorted(counts.items()))


def reach_of(claims: Iterable[EndClaim], named: NamedMessages | None, end: int, named_end: int, file_size: int) -> int:
    """Return how far a log that ends at `end` reached by all claims together; -1 if that cannot be read.

    `named_end` is what the last clean stop says, -1 if nothing does. A lone unit that names a place whole files away from
    everything else that is named is damaged, and no reason to write these files.
    """
    try:
        behind = [claim for claim in claims if claim.start >= end]
        if not behind:
            return -1
        stop = max(claim.start for claim in behind) + 1
        starts = {unit.physical_offset for unit in named.between(end, stop)} | named.indexed(end, stop) if named else set()
        last = max(end or min(starts, default=0), named_end)
        for start in sorted(starts):
            last = max(last, start) if start - last <= UNNAMED_FILES_MAX * file_size else last
        believed = (claim for claim in behind if claim.start <= last)
        return max((min(claim.end, (claim.start // file_size + 1) * file_size) for claim in believed), default=-1)
    except DiskError:
        raise
    except StoreError:
        return -1


def _is_readable(queue: ConsumeQueue | BatchQueue) -> bool:
    try:
        return queue.max_physical_offset is not None
    except StoreCorrupt:
        return False


def _last_indexed(index: IndexFiles) -> int:
    """Return the physical offset of the last item, -1 without one that header and item agree on."""
    header = index.last_header()
    if header is None or not header.items_used or index.has_other_sizes:
        return -1
    last = index.last_item(header.end_physical_offset + 1)
    return last[1] if last is not None and last[1] == header.end_physical_offset else -1
