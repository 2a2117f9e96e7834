"""Batch queues: a unit of 46 bytes for each record that holds many messages (docs/formats/consumequeue.md#batch-unit).

A record of a batch topic must match the next unit of its queue. A rebuild makes queues that disagree with the log beside the
old ones; other queues stay as they are, because only the units tell of a queue whose records all left the log. After a kill at
any point a queue has its old files, its new ones, or none, and is then reported as missing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import closing

from commitlog import StoredMessage, is_java_number
from commitlog.walk import LogFiles
from consumequeue import BatchQueues, BatchUnit
from storageio import Disk, StoreCorrupt
from storebytes.finding import Finding

from ...broker.config.topics import Topics, read_topics
from ...excluded_topics import has_topics, topics_of_batches
from ...paths import StorePaths
from ...property_names import INNER_BASE, INNER_COUNT
from ...swap import delete_tree, keep_file, kept_path, replace_tree
from .ordinary import is_dispatched, tags_code

PROBLEMS_MAX = 100  # problems reported for one queue
NO_NUMBERS = "batch_numbers"  # a kind of problem that a rebuild does not fix
INVALID = -1, 0
QueueKey = tuple[str, int]


def batch_unit(message: StoredMessage) -> BatchUnit:
    """Return the batch unit of a record; it is invalid if the properties lack the numbers."""
    pairs = message.all_properties
    base, count = message.queue_offset, 1
    if INNER_BASE in pairs and INNER_COUNT in pairs:
        are_numbers = is_java_number(pairs[INNER_BASE], 64) and is_java_number(pairs[INNER_COUNT], 16)
        base, count = (int(pairs[INNER_BASE]), int(pairs[INNER_COUNT])) if are_numbers else INVALID
    return BatchUnit(message.physical_offset, message.size, tags_code(message), message.store_timestamp_ms, base, count)


class BatchUnits:
    """The batch queues of one open store, as a walk fills them."""

    def __init__(self, batch: BatchQueues, topics: Topics) -> None:
        """`topics` is the growing table of the store."""
        self._batch = batch
        self._topics = topics

    @property
    def has_topics(self) -> bool:
        """Whether any topic has batch queues."""
        return self._batch.is_used or any(self.is_batch_topic(name) for name in self._topics.names())

    def is_batch_topic(self, topic: str) -> bool:
        """Return whether a topic has batch queues, by its attribute or by the queues that exist."""
        config = self._topics.get(topic)
        return (config is not None and config.is_batch) or self._batch.knows(topic)

    def add(self, message: StoredMessage) -> None:
        """Append the unit of a record of a batch topic; the queue skips one that it has."""
        if self.is_batch_topic(message.topic) and (unit := batch_unit(message)).is_valid:
            self._batch.get_or_add(message.topic, message.queue_id).append(unit)

    def lacks(self, message: StoredMessage) -> bool:
        """Return whether `add` would append a unit."""
        if not self.is_batch_topic(message.topic):
            return False
        queue = self._batch.get(message.topic, message.queue_id)
        is_behind = queue is None or queue.max_physical_offset < message.physical_offset
        return is_behind and batch_unit(message).is_valid


def batch_problems(
    files: LogFiles, batch: BatchQueues, is_batch_topic: Callable[[str], bool], topics: Topics | None = None
) -> Iterator[Finding]:  # fmt: skip
    """Yield missing, wrong and dangling units, and records with invalid numbers.

    At most `PROBLEMS_MAX` wrong units are reported per queue. A queue without records whose topic the table `topics` lacks is
    dangling too: RocketMQ does not load the store.
    """
    units: dict[QueueKey, Iterator[BatchUnit]] = {}
    low = files.files[0].start_offset if files.files else 0
    found: Counter[QueueKey] = Counter()
    for message in batch_messages(files, is_batch_topic):
        queue_key, expected = (message.topic, message.queue_id), batch_unit(message)
        where = f"{batch.folder}/{message.topic}/{message.queue_id}"
        if not expected.is_valid:
            yield Finding(where, message.physical_offset, NO_NUMBERS, "the numbers of its messages", "none that can be")
            # skip a unit written before the record was damaged
            units[queue_key] = _units(batch, queue_key, message.physical_offset + 1)
            continue
        if queue_key not in units:
            units[queue_key] = _units(batch, queue_key, low)
        unit = next(units[queue_key], None) if found[queue_key] < PROBLEMS_MAX else expected
        if unit != expected:
            found[queue_key] += 1
            yield Finding(where, message.physical_offset, "batch_unit", str(expected), "none" if unit is None else str(unit))
            units[queue_key] = _units(batch, queue_key, message.physical_offset + 1)  # resynchronize behind this record
    others = _without_records(files, batch, units.keys(), low)
    for queue_key, rest in (units | others).items():
        where = f"{batch.folder}/{queue_key[0]}/{queue_key[1]}"
        if found[queue_key] < PROBLEMS_MAX and (ahead := next(rest, None)) is not None:
            yield Finding(where, ahead.physical_offset, "dangling_batch_unit", "a record", str(ahead))
        elif queue_key in others and topics is not None and has_topics(topics) and topics.get(queue_key[0]) is None:
            yield Finding(where, 0, "dangling_batch_queue", "a topic in the table of topics", "none")


def _without_records(
    files: LogFiles, batch: BatchQueues, known: Container[QueueKey], low: int
) -> dict[QueueKey, Iterator[BatchUnit]]:  # fmt: skip
    """Return the units of other queues than the known ones that point into the log.

    Such a queue was copied here: RocketMQ does not load a store with batch queues of a topic that has no attribute for them.
    """
    others = [(queue.topic, queue.queue_id) for queue in batch if (queue.topic, queue.queue_id) not in known]
    end = files.end().offset if others else 0
    return {queue_key: (unit for unit in _units(batch, queue_key, low) if unit.physical_offset < end) for queue_key in others}


def batch_messages(files: LogFiles, is_batch_topic: Callable[[str], bool]) -> Iterator[StoredMessage]:
    """Yield the records that belong in batch queues, in log order."""
    for message in files.messages():
        if not isinstance(message, Finding) and is_batch_topic(message.topic) and is_dispatched(message):
            yield message


def batch_topics(topics: Topics | None, batch: BatchQueues, *, searches_log: bool) -> Callable[[str], bool] | None:
    """Return a predicate for topics with batch queues, as `with_batch_queues` does.

    None if there are no such topics; the log need not be scanned then. `searches_log` is whether it may have batches of topics
    that neither the table nor a folder names.
    """
    configs = [topics.get(name) for name in topics.names()] if topics is not None else []
    named = {config.name for config in configs if config is not None and config.is_batch}
    if searches_log and not has_topics(topics):
        named |= topics_of_batches(batch.disk, os.path.dirname(batch.folder))
    return (lambda topic: topic in named or batch.knows(topic)) if named or batch.is_used else None


def _units(batch: BatchQueues, queue_key: QueueKey, low: int) -> Iterator[BatchUnit]:
    """Return the units of records that the log still has."""
    queue = batch.get(*queue_key)
    return (unit for unit in queue.units() if unit.physical_offset >= low) if queue is not None else iter(())


def batch_disagreements(files: LogFiles, disk: Disk, paths: StorePaths) -> list[Finding]:
    """Return the problems of batch queues, queue by queue; a rebuild fixes all but those of kind `NO_NUMBERS`."""
    unreadable: dict[QueueKey, StoreCorrupt] = {}
    with _opened(disk, paths, unreadable) as batch:
        topics = read_topics(disk, paths.config)
        is_batch_topic = batch_topics(topics, batch, searches_log=True)
        problems = list(batch_problems(files, batch, is_batch_topic, topics)) if is_batch_topic is not None else []
    return problems + [
        Finding(_folder(paths, queue_key), 0, "unreadable", str(error.expected), f"{error.reason}: {error.found}")
        for queue_key, error in unreadable.items()
    ]


def rebuild_batch(files: LogFiles, disk: Disk, paths: StorePaths, *, keeps: bool = False) -> None:
    """Rebuild each queue that disagrees; `keeps` keeps the old queues. The caller holds the lock, and the log is whole."""
    problems = batch_disagreements(files, disk, paths)
    queue_keys = {_queue_key(problem.file) for problem in problems if problem.kind != NO_NUMBERS}
    work = os.path.join(paths.own, "rebuild-batch")
    delete_tree(disk, work)
    with _opened(disk, paths, {}) as batch:
        _build(files, queue_keys, BatchQueues(disk, work, writable=True, file_size_bytes=batch.file_size_bytes))
    for topic, queue_id in sorted(queue_keys):
        target, fresh = _folder(paths, (topic, queue_id)), os.path.join(work, topic, str(queue_id))
        if disk.stat(fresh) is None:
            _remove(disk, target, paths, keeps=keeps)
            continue
        disk.make_folder(os.path.dirname(target))
        replace_tree(disk, fresh, target, paths.root, keeps=keeps)
    delete_tree(disk, work)


def _remove(disk: Disk, target: str, paths: StorePaths, *, keeps: bool) -> None:
    """Remove a queue without records, and the folder of its topic with the last one: it may be a topic without batch queues."""
    topic_folder = os.path.dirname(target)
    if keeps:
        disk.make_folder(paths.own)
        disk.rename(target, kept_path(disk, paths.root, target))
        disk.sync_folder(paths.own)
    else:
        delete_tree(disk, target)
    disk.sync_folder(topic_folder)
    if not disk.list(topic_folder):
        disk.delete_folder(topic_folder)
        disk.sync_folder(paths.batch)


def cut_batch(disk: Disk, paths: StorePaths, end_offset: int, *, keeps: bool) -> None:
    """Cut batch queues at the end of the log. The caller holds the lock; `keeps` copies the files of each queue first."""
    with _opened(disk, paths, {}) as batch:
        behind = [queue.folder for queue in batch if queue.max_physical_offset >= end_offset]
    if not behind:
        return
    for folder in behind if keeps else ():
        for entry in disk.list(folder):
            keep_file(disk, paths.root, os.path.join(folder, entry.name))
    with _opened(disk, paths, {}, writable=True) as batch:
        batch.truncate(end_offset)
        batch.flush()


def _build(files: LogFiles, queue_keys: set[QueueKey], fresh: BatchQueues) -> None:
    """Write and sync the units of these queues."""
    topics = {topic for topic, _ in queue_keys}
    with closing(fresh):
        for message in batch_messages(files, lambda topic: topic in topics):
            unit = batch_unit(message)
            if unit.is_valid and (message.topic, message.queue_id) in queue_keys:
                fresh.get_or_add(message.topic, message.queue_id).append(unit)
        fresh.flush()


def _opened(
    disk: Disk, paths: StorePaths, unreadable: dict[QueueKey, StoreCorrupt], *, writable: bool = False
) -> closing[BatchQueues]:  # fmt: skip
    """Open the readable queues; add errors of unreadable ones to `unreadable`."""
    return closing(BatchQueues(disk, paths.batch, writable=writable, unreadable=unreadable))


def _folder(paths: StorePaths, queue_key: QueueKey) -> str:
    return os.path.join(paths.batch, queue_key[0], str(queue_key[1]))


def _queue_key(folder: str) -> QueueKey:
    above, queue_id = os.path.split(folder)
    return os.path.basename(above), int(queue_id)
