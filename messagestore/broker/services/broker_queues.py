"""Queues of the broker's own topics, from files or from RocksDB, of a store that may be open for reading only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...folder_contents import queues_databases
from ...rocksdb.database import open_database
from ...rocksdb.queues import AnyQueue, RocksdbQueue, queue_ends

if TYPE_CHECKING:
    from ...parts import StoreParts


@contextmanager
def broker_queues(parts: StoreParts, *topics: str) -> Iterator[dict[tuple[str, int], AnyQueue]]:
    """Yield the queues of some topics by topic and id, from RocksDB if none of them is in files."""
    found: dict[tuple[str, int], AnyQueue] = {}
    for topic in topics:
        for queue_id in parts.lookup.queue_ids(topic):
            parts.lookup.get(topic, queue_id)  # of a reader, updates the queue
            queue = parts.queues.get(topic, queue_id)
            if queue is not None:
                found[topic, queue_id] = queue
    databases = queues_databases(parts.disk, parts.paths.root) if not found else []
    if not databases:
        yield found
        return
    with open_database(os.path.join(parts.paths.root, databases[0])) as database:
        ends = queue_ends(database)
        yield {key: RocksdbQueue(database, *key, *found_ends) for key, found_ends in ends.items() if key[0] in topics}
