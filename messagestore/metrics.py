"""What a store counts, as plain objects.

Nothing is counted in a put: messages and bytes are differences of offsets that the store has anyway. Durations are measured
where a thread of the engine already waits: a sync of the log, a batch of the dispatcher, the opening.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consumequeue import Queue
from consumequeue.layout import UNIT
from storageio import Disk, DiskError, Kind

from .write.durations import Histogram

if TYPE_CHECKING:
    from .engine import Engine

DEPTH_MAX = 8  # folders below a store


@dataclass(frozen=True)
class QueueMetrics:
    """The queue offsets of the first message and after the last one; `max_offset` never decreases, so it counts puts."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int

    @property
    def messages(self) -> int:
        """The number of messages in the queue."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True)
class GroupMetrics:
    """What a group committed of one queue, 0 if nothing, and how many messages it did not acknowledge."""

    group: str
    topic: str
    queue_id: int
    committed_offset: int
    lag: int


@dataclass(frozen=True)
class Metrics:
    """What a store counted at `time_ms`. Offsets are physical, in bytes of the log; they only grow, so they are counters.

    A reader does not know what only the writer's process knows: those fields are None. `dispatched_offset` of a reader is the
    end of the last record in any queue.
    """

    time_ms: int
    is_writing: bool  # whether this process writes
    accepts_puts: bool | None
    dispatch_failure: str | None  # the error that stopped the dispatcher; queues and index lack what was put behind it
    min_offset: int
    written_offset: int | None
    flushed_offset: int | None
    dispatched_offset: int
    log_bytes: int  # sizes of files
    queue_bytes: int
    index_bytes: int
    free_bytes: int
    opening_s: float | None  # includes the recovery
    was_clean_stop: bool | None  # whether the opening found a clean stop
    flush: Histogram | None
    dispatch: Histogram | None
    queues: tuple[QueueMetrics, ...]
    groups: tuple[GroupMetrics, ...]

    @property
    def flush_lag_bytes(self) -> int | None:
        """Bytes that were written and not synced yet."""
        return _difference(self.written_offset, self.flushed_offset)

    @property
    def dispatch_lag_bytes(self) -> int | None:
        """Bytes that were written and are in no queue yet."""
        return _difference(self.written_offset, self.dispatched_offset)

    @property
    def messages_put(self) -> int:
        """The number of messages that were ever put into the queues; a difference of two is the number between them."""
        return sum(queue.max_offset for queue in self.queues)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON types, with the lags."""
        found = dataclasses.asdict(self)
        for name in ("flush_lag_bytes", "dispatch_lag_bytes"):
            found[name] = getattr(self, name)
        return found


def collect(engine: Engine) -> Metrics:
    """Return the metrics of an open store; a queue that is created meanwhile may be missing."""
    engine.check_open()
    engine.refresh()
    if engine.view is not None:
        engine.view.discover()
    lookup = engine.lookup
    queue_keys = [(topic, queue_id) for topic in lookup.topics() for queue_id in lookup.queue_ids(topic)]
    found = [queue for queue_key in queue_keys if (queue := lookup.get(*queue_key)) is not None]
    writes = engine.writable
    queues = {(queue.topic, queue.queue_id): _queue(queue) for queue in found}
    return Metrics(
        time_ms=engine.now_ms(),
        is_writing=writes,
        accepts_puts=bool(engine.flags.gate.accepts_puts) if writes else None,
        dispatch_failure=str(engine.dispatcher.failure) if writes and engine.dispatcher.failure is not None else None,
        min_offset=engine.low_offset,
        written_offset=engine.log.written_offset if writes else None,
        flushed_offset=engine.flusher.flushed_offset if writes else None,
        dispatched_offset=engine.dispatcher.position if writes else max(map(_end_of_last, found), default=engine.low_offset),
        log_bytes=sum(file.size_bytes for file in engine.log.queue.files),
        queue_bytes=sum(_bytes_below(engine.disk, path) for path in (engine.paths.queues, engine.paths.batch)),
        index_bytes=_bytes_below(engine.disk, engine.paths.index),
        free_bytes=engine.disk.space(engine.paths.root).free_bytes,
        opening_s=engine.opening_s if writes else None,
        was_clean_stop=engine.was_clean if writes else None,
        flush=engine.flusher.durations.histogram if writes else None,
        dispatch=engine.dispatcher.durations.histogram if writes else None,
        queues=tuple(queues[queue_key] for queue_key in sorted(queues)),
        groups=tuple(_groups(engine, queues)),
    )


def _difference(high: int | None, low: int | None) -> int | None:
    return None if high is None or low is None else max(0, high - low)


def _queue(queue: Queue) -> QueueMetrics:
    high = queue.max_offset
    return QueueMetrics(queue.topic, queue.queue_id, min(max(queue.min_offset, 0), high), high)


def _end_of_last(queue: Queue) -> int:
    """Return the end of the last record of a queue."""
    number = queue.unit_range(queue.max_offset - 1, queue.max_offset)[0]
    packed = queue.packed_units(number, 1) if queue.max_offset > 0 else None
    if packed is None:
        return 0
    physical, size, _ = UNIT.unpack(packed[: UNIT.size])
    return int(physical) + int(size)


def _groups(engine: Engine, queues: dict[tuple[str, int], QueueMetrics]) -> list[GroupMetrics]:
    """Return the groups that committed an offset, each with every queue of the topic: it has to read those without, too."""
    offsets = engine.consumer_offsets()
    filled: dict[str, set[int]] = {}
    for (topic, queue_id), queue in queues.items():
        if queue.max_offset:
            filled.setdefault(topic, set()).add(queue_id)
    found = []
    for group, topic in offsets.pairs():
        committed = offsets.offsets_of(topic, group)
        for queue_id in sorted({*committed, *filled.get(topic, ())}):
            one = queues.get((topic, queue_id))
            lag = offsets.waiting(topic, group, queue_id, one.min_offset, one.max_offset) if one is not None else 0
            found.append(GroupMetrics(group, topic, queue_id, committed.get(queue_id, 0), lag))
    return found


def _bytes_below(disk: Disk, folder: str, depth: int = DEPTH_MAX) -> int:
    """Return the sizes of all files below a folder; 0 where there is none."""
    try:
        entries = disk.list(folder) if disk.stat(folder) is not None else []
    except DiskError:  # deleted in the meantime
        return 0
    below = [os.path.join(folder, entry.name) for entry in entries if entry.kind is Kind.FOLDER] if depth else []
    return sum(entry.size_bytes for entry in entries if entry.kind is Kind.FILE) + sum(
        _bytes_below(disk, path, depth - 1) for path in below
    )
