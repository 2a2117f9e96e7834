"""Whether the messages of a queue from a wanted queue offset on are still there."""

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

LOG = logging.getLogger(__name__)


def check_queue_starts(store: FoundStore, options: ReadOptions, low: int) -> None:
    """Raise `DataLost` for a queue whose messages from the wanted start on went with the log's first files, or log it.

    The queues' files tell.  Where there are none, as beside a log alone or in an object store, nothing can be told.
    `low`: where the log begins.
    """
    if low <= 0 or not any(options.start.queues.values()) or is_remote(store.path):
        return
    for lost in _lost(store, options, low):
        if options.fail_on_data_loss:
            raise lost
        LOG.warning("%s; going on with what is there", lost)


def _lost(store: FoundStore, options: ReadOptions, low: int) -> Iterator[DataLost]:
    """Each queue that begins behind where it should."""
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
