"""Check that the messages from a requested queue offset on still exist."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from brokerstore.identify import FolderKind
from consumequeue import ConsumeQueues
from consumequeue.layout import UNIT_SIZE
from messagestore import StoreConfig
from messagestore.file_sizes import found_sizes
from messagestore.paths import StorePaths
from storageio import REAL_DISK

from ..errors import DataLost
from ..object_disk import is_remote
from ..options import ReadOptions
from .stores import FoundStore

LOG = logging.getLogger(f"brokerstore.{__name__}")


def check_queue_starts(store: FoundStore, options: ReadOptions, low: int) -> None:
    """Raise `DataLost`, or log it, for a queue whose first requested messages were deleted with old log files.

    The queue files are the evidence.  A bare log and an object store have none, so nothing is checked there.
    `low` is the log's first physical offset.
    """
    if low <= 0 or not any(options.start.queues.values()) or is_remote(store.path):
        return
    for lost in _lost(store, options, low):
        if options.fail_on_data_loss:
            raise lost
        LOG.warning("%s; continuing with the messages that exist", lost)


def _lost(store: FoundStore, options: ReadOptions, low: int) -> Iterator[DataLost]:
    """Yield an error for each queue that begins after its requested start."""
    places = StorePaths(store.path if store.kind is not FolderKind.LOG else os.path.dirname(os.path.abspath(store.path)))
    if REAL_DISK.stat(places.queues) is None:
        return
    size = found_sizes(StoreConfig(), places, REAL_DISK).mapped_file_size_consume_queue
    assert size is not None
    queues = ConsumeQueues(REAL_DISK, places.queues, writable=False, file_size_bytes=size, log_min_offset=low)
    try:
        for (topic, queue_id), start in options.start.queues.items():
            queue = queues.get(topic, queue_id)
            if start > 0 and queue is not None and start < queue.min_offset:
                expected = f"messages of {topic} queue {queue_id} from queue offset {start} on"
                yield DataLost(queue.folder, start * UNIT_SIZE, expected, f"the first is {queue.min_offset}")
    finally:
        queues.close()
