"""Consume queues and configuration in RocksDB, for `ls` and `verify`.

They are read with the extra `rocksdb`, and named as not read without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from commitlog.findings import Finding
from messagestore.folder_contents import has_rocksdb, unread_parts
from messagestore.rocksdb.config import DATABASES, VERSION_2, read_config
from messagestore.rocksdb.database import EXTRA, can_read, open_database
from messagestore.rocksdb.queues import read_units
from storageio import REAL_DISK, StoreError

from ..output import say
from .rocketmq_folder import RocketmqFolder

QUEUES = "consumequeue"
Row = tuple[str, int, int, int, int]


def queue_rows(folder: RocketmqFolder) -> list[Row] | None:
    """Return topic, queue id, first offset, next offset and number of messages; None if the queues cannot be read."""
    path = os.path.join(folder.target.path, QUEUES)
    if not has_rocksdb(REAL_DISK, path):
        return None
    if not can_read():
        say(f"brokerstore: queues from the log: RocksDB is read with pip install 'brokerstore[{EXTRA}]'")
        return None
    files = folder.files().files
    low = files[0].start_offset if files else 0
    found: dict[tuple[str, int], list[int]] = {}
    try:
        with open_database(path) as database:
            for unit in read_units(database):
                if unit.physical_offset >= low:
                    row = found.setdefault((unit.topic, unit.queue_id), [unit.queue_offset, 0, 0])
                    row[1] = unit.queue_offset + 1
                    row[2] += 1
    except StoreError as error:
        _unreadable(folder, path, error)
        return None
    return [(*queue, *row) for queue, row in sorted(found.items())]  # type: ignore[misc]


def topic_rows(folder: RocketmqFolder) -> list[dict[str, Any]]:
    """Return the topics of the configuration; empty if it cannot be read."""
    if not can_read():
        return []
    try:
        topics = read_config(REAL_DISK, folder.target.path).topics
    except StoreError as error:
        _unreadable(folder, os.path.join(folder.target.path, "config"), error)
        return []
    names = {"read_queues": "readQueueNums", "write_queues": "writeQueueNums", "perm": "perm"}
    return [{"topic": name} | {own: topic.get(key, 0) for own, key in names.items()} for name, topic in sorted(topics.items())]


def findings(folder: RocketmqFolder) -> Iterator[Finding]:
    """Yield what is wrong with queues and configuration, and a note for each part of the store that is not read."""
    from messagestore.rocksdb.check import rocksdb_findings

    root = folder.target.path
    read = set()
    if can_read():
        path = os.path.join(root, QUEUES)
        if has_rocksdb(REAL_DISK, path):
            yield from rocksdb_findings(path, folder.files())
            read.add(QUEUES)
        if not has_rocksdb(REAL_DISK, os.path.join(root, VERSION_2)):
            read.update(DATABASES)
            try:
                read_config(REAL_DISK, root)
            except StoreError as error:
                yield Finding(os.path.join(root, "config"), 0, "unreadable", "configuration in RocksDB", str(error))
    yield from (part for part in unread_parts(REAL_DISK, root) if os.path.relpath(part.file, root) not in read)


def _unreadable(folder: RocketmqFolder, path: str, error: StoreError) -> None:
    folder.problems.append(Finding(path, 0, "unreadable", "RocksDB", str(error)))
    say(f"brokerstore: {error}")
