"""Rebuild batch queues that disagree with the log beside the old ones; other queues stay as they are.

Only the units tell of a queue whose records all left the log, so nothing else is touched. After a kill at any point a queue has
its old files, its new ones, or none, and is then reported as missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from commitlog.walk import LogFiles
from consumequeue import BatchQueues
from storageio import Disk, StoreCorrupt
from storebytes.finding import Finding

from ..broker.config.topics import read_topics
from ..paths import StorePaths
from ..write.derived_queues import batch_unit
from .backups import keep_file, kept_path
from .batch_cross_check import NO_NUMBERS, QueueKey, batch_messages, batch_problems, batch_topics
from .rebuild import delete_tree, take_place


def batch_disagreements(files: LogFiles, disk: Disk, places: StorePaths) -> list[Finding]:
    """Return the problems of batch queues, queue by queue; a rebuild fixes all but those of kind `NO_NUMBERS`."""
    unreadable: dict[QueueKey, StoreCorrupt] = {}
    with _opened(disk, places, unreadable) as batch:
        topics = read_topics(disk, places.config)
        is_batch_topic = batch_topics(topics, batch, searches_log=True)
        problems = list(batch_problems(files, batch, is_batch_topic, topics)) if is_batch_topic is not None else []
    return problems + [
        Finding(_folder(places, queue_key), 0, "unreadable", str(error.expected), f"{error.reason}: {error.found}")
        for queue_key, error in unreadable.items()
    ]


def rebuild_batch(files: LogFiles, disk: Disk, places: StorePaths, *, keeps: bool = False) -> None:
    """Rebuild each queue that disagrees; `keeps` keeps the old queues. The caller holds the lock, and the log is whole."""
    problems = batch_disagreements(files, disk, places)
    queue_keys = {_queue_key(problem.file) for problem in problems if problem.kind != NO_NUMBERS}
    work = os.path.join(places.own, "rebuild-batch")
    delete_tree(disk, work)
    with _opened(disk, places, {}) as batch:
        _build(files, queue_keys, BatchQueues(disk, work, writable=True, file_size_bytes=batch.file_size_bytes))
    for topic, queue_id in sorted(queue_keys):
        target, fresh = _folder(places, (topic, queue_id)), os.path.join(work, topic, str(queue_id))
        if disk.stat(fresh) is None:
            _remove(disk, target, places, keeps=keeps)
            continue
        disk.make_folder(os.path.dirname(target))
        take_place(disk, fresh, target, places.root, keeps=keeps)
    delete_tree(disk, work)


def _remove(disk: Disk, target: str, places: StorePaths, *, keeps: bool) -> None:
    """Remove a queue without records, and the folder of its topic with the last one: it may be a topic without batch queues."""
    topic_folder = os.path.dirname(target)
    if keeps:
        disk.make_folder(places.own)
        disk.rename(target, kept_path(disk, places.root, target))
        disk.sync_folder(places.own)
    else:
        delete_tree(disk, target)
    disk.sync_folder(topic_folder)
    if not disk.list(topic_folder):
        disk.delete_folder(topic_folder)
        disk.sync_folder(places.batch)


def cut_batch(disk: Disk, places: StorePaths, end_offset: int, *, keeps: bool) -> None:
    """Cut batch queues at the end of the log. The caller holds the lock; `keeps` copies the files of each queue first."""
    with _opened(disk, places, {}) as batch:
        behind = [queue.folder for queue in batch if queue.max_physical_offset >= end_offset]
    if not behind:
        return
    for folder in behind if keeps else ():
        for entry in disk.list(folder):
            keep_file(disk, places.root, os.path.join(folder, entry.name))
    with BatchQueues(disk, places.batch, writable=True, unreadable={}) as batch:
        batch.truncate(end_offset)
        batch.flush()


def _build(files: LogFiles, queue_keys: set[QueueKey], fresh: BatchQueues) -> None:
    """Write and sync the units of these queues."""
    topics = {topic for topic, _ in queue_keys}
    with fresh:
        for message in batch_messages(files, lambda topic: topic in topics):
            unit = batch_unit(message)
            if unit.is_valid and (message.topic, message.queue_id) in queue_keys:
                fresh.get_or_add(message.topic, message.queue_id).append(unit)
        fresh.flush()


@contextmanager
def _opened(disk: Disk, places: StorePaths, unreadable: dict[QueueKey, StoreCorrupt]) -> Iterator[BatchQueues]:
    """Open the readable queues; add errors of unreadable ones to `unreadable`."""
    with BatchQueues(disk, places.batch, writable=False, unreadable=unreadable) as batch:
        yield batch


def _folder(places: StorePaths, queue_key: QueueKey) -> str:
    return os.path.join(places.batch, queue_key[0], str(queue_key[1]))


def _queue_key(folder: str) -> QueueKey:
    above, queue_id = os.path.split(folder)
    return os.path.basename(above), int(queue_id)
