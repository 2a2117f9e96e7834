"""The list of queues at the last clean stop.  Without it a queue whose folder was lost since would begin again at 0."""

from __future__ import annotations

import os
from typing import Any

from consumequeue import ConsumeQueues
from storageio import Disk

from ..sidecar import read_sidecar, write_sidecar

NAME = "queues.json"


def write_queue_list(disk: Disk, folder: str, queues: ConsumeQueues) -> None:
    """Write topics with their queue ids, unless the list is unchanged."""
    expected = {topic: queues.queue_ids(topic) for topic in queues.topics()}
    if expected != read_queue_list(disk, folder):
        write_sidecar(disk, os.path.join(folder, NAME), expected)


def read_queue_list(disk: Disk, folder: str) -> dict[str, list[int]]:
    """Return queue ids by topic; empty if there is no readable list."""
    return read_sidecar(disk, os.path.join(folder, NAME), _parsed) or {}


def _parsed(document: Any) -> dict[str, list[int]]:
    return {str(topic): [int(queue_id) for queue_id in ids] for topic, ids in document.items()}


def missing_queues(disk: Disk, folder: str, queues: ConsumeQueues) -> list[tuple[str, int]]:
    """Return the queues of the list whose folders are missing."""
    known = read_queue_list(disk, folder)
    return [(topic, queue_id) for topic, ids in known.items() for queue_id in ids if queues.get(topic, queue_id) is None]
