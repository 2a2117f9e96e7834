"""Compacted topics of a RocketMQ store, for `ls` and `stats`."""

from __future__ import annotations

import os
from typing import Any

from storageio import REAL_DISK, DiskError, StoreError
from storebytes.finding import Finding

from ..output import Table, print_line
from .rocketmq_folder import RocketmqFolder

HEADERS = ("compacted topic", "queue", "files", "messages", "bytes", "min offset", "max offset")


def compacted_keys_and_tables(folder: RocketmqFolder, only: str | None = None) -> tuple[dict[str, Any], list[Table]]:
    """Return the JSON keys and the table of compacted queues, of one topic if it is given; nothing without such topics."""
    from messagestore.compaction import compacted_queues, count_compacted

    path = folder.target.path
    rows = []
    for queue in compacted_queues(REAL_DISK, path):
        if only in (None, queue.topic):
            try:
                rows.append(count_compacted(REAL_DISK, queue, folder.add))
            except DiskError:
                raise
            except StoreError as error:
                folder.problems.append(Finding(queue.log_folder, 0, "unreadable", "compacted messages", str(error)))
                print_line(f"brokerstore: {error}")
    if not rows:
        return {}, []
    location = os.path.join(path, "compaction", "compactionLog", "TOPIC", "QUEUE")
    print_line(f"brokerstore: the messages of compacted topics are read with: brokerstore dump {location}")
    return {"compacted": [row._asdict() for row in rows]}, [Table(HEADERS, [list(row) for row in rows])]
