"""Repair the files of `config/`: from a readable backup, else by a table that begins anew.

A file whose backup is not readable either is moved into the store's own folder with it, because a broker does not start on
both. What the table had is lost then, except for topics, which the queues name, and delay levels, whose deliveries the log has.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial

from consumequeue import BatchQueues
from storageio import Disk, read_head, replace_file
from storebytes.plan import Step

from ..broker.config.config_files import BACKUP
from ..broker.config.consumer_offsets import OFFSETS_IN_FILES
from ..broker.config.fast_json import SIZE_MAX
from ..broker.config.topics import BATCH_QUEUES, QUEUE_TYPE, Topics, read_topics
from ..paths import StorePaths
from ..swap import keep_file
from .config_check import DamagedConfig, QueueKey, damaged_config, is_broker_folder, missing_topics

LOST = {
    "topics.json": "its topics are made again from their queues, with default settings",
    **{table.file_name: "the offsets are lost: every group begins anew" for table in OFFSETS_IN_FILES},
    "delayOffset.json": "each level goes on behind the last message that the log shows as delivered",
    "subscriptionGroup.json": "the settings are lost: groups get the defaults",
    "position-checkpoint": "a broker compacts each topic once more",
    "consumerFilter.json": "consumers register their filters again when they start",
}
LOST_OTHERS = "a broker begins it anew"


def config_steps(disk: Disk, root: str, *, keep_backup: bool) -> Iterator[Step]:
    """Yield a step for each unreadable file; with `keep_backup`, it copies the file into the store's own folder first."""
    for damaged in damaged_config(disk, root):
        kind, reason = "restore_config", "it is unreadable, its backup is not"
        if damaged.is_lost:
            kind = "remove_config"
            reason = f"it is unreadable as is its backup: {LOST.get(damaged.kind.file_name, LOST_OTHERS)}"
        run = partial(_restore, disk, root, damaged, keep_backup=keep_backup)
        yield Step(kind, os.path.relpath(damaged.path, root), reason, run)


def _restore(disk: Disk, root: str, damaged: DamagedConfig, *, keep_backup: bool) -> None:
    backup = damaged.path + BACKUP
    for path in (damaged.path, backup) if damaged.is_lost else (damaged.path,):
        if keep_backup:
            keep_file(disk, root, path)
    if damaged.is_lost:
        _delete(disk, damaged.path, backup)
    else:
        replace_file(disk, damaged.path, read_head(disk, backup, SIZE_MAX) or b"", keep_backup=False)


def _delete(disk: Disk, *paths: str) -> None:
    for path in paths:
        if disk.stat(path) is not None:
            disk.delete(path)
            disk.sync_folder(os.path.dirname(path))


def unknown_topics(disk: Disk, paths: StorePaths, filled: Iterable[QueueKey]) -> dict[str, int]:
    """Return the topics to add to `config/topics.json` with their numbers of queues; `filled` are the queues with records.

    A store that a program writes without a broker needs no table, unless all queues are made again.
    """
    table = read_topics(disk, paths.config)
    is_needed = table is None or is_broker_folder(disk, table) or disk.stat(paths.queues) is None
    if not is_needed or (table is not None and table.is_in_rocksdb):
        return {}
    return missing_topics(table or (), [*filled, *batch_keys(disk, paths)])


def batch_keys(disk: Disk, paths: StorePaths) -> list[QueueKey]:
    """Return topic and queue id of the batch queues that have units."""
    with closing(BatchQueues(disk, paths.batch, writable=False, unreadable={})) as batch:
        return [(queue.topic, queue.queue_id) for queue in batch if queue.max_offset]


def add_topics(disk: Disk, paths: StorePaths, missing: Mapping[str, int]) -> None:
    """Add topics with their numbers of queues to `config/topics.json`."""
    table = Topics(disk, paths.config)
    batch_topics = {topic for topic, _ in batch_keys(disk, paths)}
    for topic, queues in missing.items():
        table.create(topic, queues, attributes={QUEUE_TYPE: BATCH_QUEUES} if topic in batch_topics else None)
    table.persist()
