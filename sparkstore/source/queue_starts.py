"""What queue files say: that requested queues exist, that their messages still do, and how many messages a query has left."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from brokerstore.identify import FolderKind
from consumequeue import ConsumeQueues
from consumequeue.layout import UNIT_SIZE
from messagestore import MessageStore, StoreConfig
from messagestore.broker.config.topics import Topics
from messagestore.folder import FolderFacts
from messagestore.paths import StorePaths
from storageio import REAL_DISK, StoreError

from ..errors import BadOption, DataLost
from ..object_disk import is_remote
from ..options import OffsetBounds, QueueKey, ReadOptions
from .stores import FoundStore

LOG = logging.getLogger(f"brokerstore.{__name__}")


def check_queue_starts(store: FoundStore, options: ReadOptions, low: int) -> None:
    """Raise `DataLost`, or log it, for a queue whose first requested messages were deleted with old log files.

    The queue files are the evidence.  A bare log and an object store have none, so nothing is checked there.
    `low` is the log's first physical offset.
    """
    if low <= 0 or is_remote(store.path):
        return
    for lost in _lost(store, options, low):
        if options.fail_on_data_loss:
            raise lost
        LOG.warning("%s; continuing with the messages that exist", lost)


def check_queues_exist(stores: Sequence[FoundStore], options: ReadOptions) -> None:
    """Raise `BadOption` for a topic or queue of an option that no store has: the read would give nothing, or begin elsewhere.

    Queue files and `topics.json` are the evidence. If a store has neither, as a bare log, nothing is checked.
    """
    queues: dict[str, Collection[QueueKey]] = {
        "startingOffsets": options.start.queues, "endingOffsets": options.stop.queues, "assign": options.assigned or (),
        "startingOffsetsByTimestamp": options.queue_times,
    }  # fmt: skip
    topics = sorted(options.topics or ())
    if not topics and not any(queues.values()):
        return
    known = [_Known(_positions(store)) for store in stores if not is_remote(store.path)]
    if len(known) < len(stores) or not all(one.has_evidence for one in known):
        return
    for name, topic in [("topic", topic) for topic in topics] + [
        (name, key[0]) for name, keys in queues.items() for key in keys
    ]:
        if not any(one.has_topic(topic) for one in known):
            raise BadOption(f"option {name}: the store has no topic {topic!r}")
    for name, (topic, queue_id) in [(name, key) for name, keys in queues.items() for key in keys]:
        if not any(one.has_queue(topic, queue_id) for one in known):
            raise BadOption(f"option {name}: topic {topic!r} has no queue {queue_id}")


def with_group_offsets(stores: Sequence[FoundStore], options: ReadOptions) -> ReadOptions:
    """Return the options with the offsets that the group of `startingGroup` has committed.  Raises `BadOption` without any."""
    if options.group is None:
        return options
    if len(stores) != 1 or stores[0].kind is FolderKind.LOG or is_remote(stores[0].path):
        raise BadOption("option startingGroup: one store in a mounted folder has the offsets of a group")
    with MessageStore.open(stores[0].path, "r") as store:
        found = {
            (topic, queue_id): offset
            for topic in store.topics()
            for queue_id, offset in store.committed_offsets(topic, options.group).items()
        }
    if not found:
        raise BadOption(f"option startingGroup: group {options.group!r} has committed no offset in the store")
    return replace(options, start=OffsetBounds(0, found))


def messages_behind(store: FoundStore, options: ReadOptions, physical_offset: int) -> dict[str, dict[str, int]] | None:
    """Return by topic and queue id how many messages begin at or after an offset of the log; None without queue files.

    Each queue costs a binary search; a queue that is read to its end is left out.
    """
    if is_remote(store.path) or REAL_DISK.stat(_positions(store).queues) is None:
        return None
    found: dict[str, dict[str, int]] = {}
    with _queues(_positions(store), 0) as queues:
        for queue in queues:
            is_read = options.accepts_queue(queue.topic, queue.queue_id)
            count = queue.max_offset - queue.find_physical(physical_offset) if is_read else 0
            if count:
                found.setdefault(queue.topic, {})[str(queue.queue_id)] = count
    return found


def _queues(paths: StorePaths, low: int) -> ConsumeQueues:
    size = FolderFacts(paths.root).with_sizes(StoreConfig()).mapped_file_size_consume_queue
    assert size is not None
    return ConsumeQueues(REAL_DISK, paths.queues, writable=False, file_size_bytes=size, log_min_offset=low)


class _Known:
    """The topics and queues that a folder names."""

    def __init__(self, paths: StorePaths) -> None:
        self._folders = [folder for folder in (paths.queues, paths.batch) if REAL_DISK.stat(folder) is not None]
        self._counts: dict[str, int] = {}
        self.has_evidence = bool(self._folders) or REAL_DISK.stat(os.path.join(paths.config, Topics.file_name)) is not None
        try:
            topics = Topics(REAL_DISK, paths.config)
        except StoreError:  # a reader needs the table for nothing else
            self.has_evidence = False
            return
        for found in filter(None, map(topics.get, topics.names())):
            self._counts[found.name] = max(found.read_queues, found.write_queues)

    def has_topic(self, topic: str) -> bool:
        return topic in self._counts or self._has(topic)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        return queue_id < self._counts.get(topic, 0) or self._has(topic, str(queue_id))

    def _has(self, *names: str) -> bool:
        return any(REAL_DISK.stat(os.path.join(folder, *names)) is not None for folder in self._folders)


def _positions(store: FoundStore) -> StorePaths:
    return StorePaths(store.path if store.kind is not FolderKind.LOG else os.path.dirname(os.path.abspath(store.path)))


def _lost(store: FoundStore, options: ReadOptions, low: int) -> Iterator[DataLost]:
    """Yield an error for each queue that begins after its requested start."""
    paths = _positions(store)
    if REAL_DISK.stat(paths.queues) is None:
        return
    with _queues(paths, low) as queues:
        for (topic, queue_id), start in options.start.queues.items():
            queue = queues.get(topic, queue_id)
            if start >= 0 and queue is not None and start < queue.min_offset:
                expected = f"messages of {topic} queue {queue_id} from queue offset {start} on"
                yield DataLost(queue.folder, start * UNIT_SIZE, expected, f"the first is {queue.min_offset}")
