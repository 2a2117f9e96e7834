"""Check the databases of a store: compare queues with the log, and read configuration and state of POP consumers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from commitlog.walk import LogFiles
from storageio import Disk, StoreCorrupt, StoreError, UnsupportedFormat
from storebytes.finding import Finding, note
from storebytes.plan import count_text

from ..broker.config.topics import deleted_topics
from ..derive.kinds.rocksdb import UNREADABLE, rocksdb_findings
from ..folder_contents import (
    NOT_READ,
    POP_STORE,
    ROCKSDB_STORE,
    FolderContents,
    Use,
    has_rocksdb,
    is_empty_rocksdb,
    queues_databases,
)
from ..paths import StorePaths
from ..rocksdb.config import DATABASES, METADATA, VERSION_2, has_config, read_config
from ..rocksdb.database import can_read, open_database
from ..rocksdb.pop_rows import stored_pop_rows
from ..rocksdb.queues import last_ends
from ..unreadable import unreadable
from .rocksdb_rows_check import store_rows_findings

QUEUES_FOLDER = "consumequeue"
QueueEnds = Mapping[tuple[str, int], int]


def part_findings(disk: Disk, root: str, files: LogFiles, ends: QueueEnds | None) -> Iterator[Finding]:
    """Yield what is wrong with what is in RocksDB, and a note for each part of the store not read.

    `ends` are the end offsets of all queues, None if they are not known. Without the package that reads RocksDB the databases
    are among the parts that are not read.
    """
    read = set()
    if can_read():
        for name in queues_databases(disk, root):
            yield from rocksdb_findings(os.path.join(root, name), files, deleted_topics(disk, StorePaths(root)))
            read.add(name)
        if FolderContents(disk, root).has_rocksdb_rows:
            yield from store_rows_findings(disk, os.path.join(root, ROCKSDB_STORE), files)
            read.add(ROCKSDB_STORE)
        if has_rocksdb(disk, os.path.join(root, POP_STORE)):
            yield from pop_findings(disk, root, ends)
            read.add(POP_STORE)
        if has_config(disk, root):
            try:
                read_config(disk, root)
                read.update((VERSION_2, METADATA, *DATABASES))
            except UnsupportedFormat:
                pass  # a note below names it
            except StoreError as error:
                read.update((VERSION_2, METADATA, *DATABASES))
                yield Finding(os.path.join(root, "config"), 0, UNREADABLE, "configuration in RocksDB", str(error))
    for part in FolderContents(disk, root).parts:
        if part.use is not Use.READ and part.name not in read:
            yield note(os.path.join(root, part.name), 0, NOT_READ, "a part that is read", part.what)


def pop_findings(disk: Disk, root: str, ends: QueueEnds | None = None) -> Iterator[Finding]:
    """Yield a problem if the state of POP consumers cannot be read, and a note for rows after the end of their queue.

    A broker drops these rows when their time is over, unless it has stored messages of these offsets until then.
    """
    if not can_read():
        return
    path = os.path.join(root, POP_STORE)
    try:
        rows = stored_pop_rows(disk, root)
    except StoreCorrupt as error:
        yield unreadable(error, path)
        return
    ahead = sum(row.queue_offset >= ends.get((row.topic, row.queue_id), 0) for row in rows) if ends is not None else 0
    if ahead:
        yield note(path, 0, "pop_ahead", "messages of their queues", f"{count_text(ahead, 'row')} after the end of the queue")


def queue_ends(disk: Disk, root: str) -> dict[tuple[str, int], int] | None:
    """Return the end offset of each queue in RocksDB, None if they cannot be read; `part_findings` reports that."""
    path = os.path.join(root, QUEUES_FOLDER)
    if not can_read() or not has_rocksdb(disk, path) or is_empty_rocksdb(disk, path):  # an empty one lost its rows
        return None
    try:
        with open_database(path) as database:
            return {queue: end.queue_offset + 1 for queue, end in last_ends(database).items()}
    except StoreCorrupt:
        return None
