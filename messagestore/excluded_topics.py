"""Decide which topics get no ordinary queue when queues are built or checked against the log."""

from __future__ import annotations

import os
from collections.abc import Callable

from commitlog import Reader, StoredMessage
from commitlog._scan_cy import find_flagged
from commitlog.walk import LogFiles, Piece
from consumequeue import check_topic
from storageio import Disk, InvalidMessage, Kind

from .broker.config.topics import Topics, is_deleted, read_topics
from .paths import OWN_FOLDER
from .property_names import INNER_BASE, INNER_COUNT, IS_BATCH

BATCH_FOLDER = "batchconsumequeue"  # see docs/formats/consumequeue.md#batch-unit
QUEUE_FOLDER = "consumequeue"
LOG_FOLDER = "commitlog"
REPLACED_QUEUES = os.path.join(OWN_FOLDER, "replaced-consumequeue")  # old queues after a killed rebuild


def with_batch_queues(disk: Disk, root: str, topics: Topics | None = None) -> Callable[[str], bool]:
    """Return a predicate for topics with batch queues, by their attribute or by a folder. `topics` as in `excluded_topics`.

    If no topic is in the table, the records of a topic without any folder decide.
    """
    known = topics or read_topics(disk, os.path.join(root, "config"))
    folder = os.path.join(root, BATCH_FOLDER)
    has_any = disk.stat(folder) is not None
    batch = {entry.name for entry in disk.list(folder) if entry.kind is Kind.FOLDER} if has_any else set()

    in_log: list[set[str]] = []

    def is_batch(topic: str) -> bool:
        config = known.get(topic) if known is not None else None
        if topic in batch or (config is not None and config.is_batch):
            return True
        if has_topics(known) or has_no_folder_name(topic) or _has_queue_folder(disk, root, topic):
            return False
        if not in_log:
            in_log.append(topics_of_batches(disk, root))
        return topic in in_log[0]

    return is_batch


def has_topics(table: Topics | None) -> bool:
    """Return whether a table is readable and names any topic."""
    return table is not None and not table.is_empty


def topics_of_batches(disk: Disk, root: str) -> set[str]:
    """Return topics without ordinary queues that have batches in the log: only a topic with batch queues accepts them."""
    folder = os.path.join(root, LOG_FOLDER)
    files = LogFiles(disk, [folder]) if disk.stat(folder) is not None else None
    found: set[str] = set()
    for step in files.walk() if files is not None else ():
        if isinstance(step, Piece):
            reader = Reader(step.view, step.base)
            batches = (reader.decode(step.positions[row], 0) for row in find_flagged(step.view, step.positions, IS_BATCH))
            found |= {message.topic for message in batches if message is not None and _is_batch(message)}
    return {topic for topic in found if not has_no_folder_name(topic) and not _has_queue_folder(disk, root, topic)}


def _is_batch(message: StoredMessage) -> bool:
    return {INNER_BASE, INNER_COUNT} <= message.all_properties.keys()


def _has_queue_folder(disk: Disk, root: str, topic: str) -> bool:
    """Return whether a topic has ordinary queues."""
    return any(disk.stat(os.path.join(root, location, topic)) is not None for location in (QUEUE_FOLDER, REPLACED_QUEUES))


def excluded_topics(disk: Disk, root: str, topics: Topics | None = None, *, is_slave: bool = False) -> Callable[[str], bool]:
    """Return a predicate for topics that are deleted, have batch queues, or have a name that no folder can have.

    A deleted topic is missing from an existing topics.json and has no queue folder: a broker removes both, while a store
    without a broker writes queues but no table. `topics` is the growing table of an open store; without it the file is read.
    An unreadable table excludes nothing. A slave's table is older than its log, so a topic that it lacks may be new, and is not
    treated as deleted.
    """
    known = topics or read_topics(disk, os.path.join(root, "config"))
    is_batch = with_batch_queues(disk, root, known)

    def is_left_alone(topic: str) -> bool:
        return (
            is_batch(topic)
            or has_no_folder_name(topic)  # before a look at the disk, which raises for such a name
            or (not is_slave and known is not None and is_deleted(known, topic) and not _has_queue_folder(disk, root, topic))
        )

    return is_left_alone


def has_no_folder_name(topic: str) -> bool:
    """Return whether a topic can have no queue because its name cannot be a folder name.

    A flipped bit turns "my-topic" into "my/topic", and RocketMQ's records have no checksum over the topic. Such a record stays
    in the log only, and does not prevent opening the store.
    """
    try:
        check_topic(topic)
    except InvalidMessage:
        return True
    return False
