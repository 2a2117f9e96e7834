"""Topics whose records get no ordinary queue when queues are made or checked against the log."""

from __future__ import annotations

import os
from collections.abc import Callable

from consumequeue.consume_queues import check_topic
from storageio import Disk, InvalidMessage, Kind

from ..broker.config.topics import Topics, is_deleted
from ..paths import OWN_FOLDER

BATCH_FOLDER = "batchconsumequeue"  # queues of another form (format page, section 2.6)
QUEUE_FOLDER = "consumequeue"
REPLACED_QUEUES = os.path.join(OWN_FOLDER, "replaced-consumequeue")  # where a rebuild that was killed left the old ones


def excluded_topics(disk: Disk, root: str, topics: Topics | None = None) -> Callable[[str], bool]:
    """Whether a topic was deleted, has batch queues, or a name that no folder can have.

    Deleted is one that topics.json, where there is one, does not name and that has no queue folder either: a broker takes both
    away, while a store without a broker writes queues and no table.
    `topics` are those of an open store, which get more as it works; else the file is read.
    """
    known = topics or Topics(disk, os.path.join(root, "config"))
    folder = os.path.join(root, BATCH_FOLDER)
    has_any = disk.stat(folder) is not None
    batch = {entry.name for entry in disk.list(folder) if entry.kind is Kind.FOLDER} if has_any else set()

    def has_folder(topic: str) -> bool:
        return any(disk.stat(os.path.join(root, place, topic)) is not None for place in (QUEUE_FOLDER, REPLACED_QUEUES))

    def is_left_alone(topic: str) -> bool:
        config = known.get(topic)
        has_others = topic in batch or (config is not None and config.is_batch)
        return has_others or has_no_folder_name(topic) or (is_deleted(known, topic) and not has_folder(topic))

    return is_left_alone


def has_no_folder_name(topic: str) -> bool:
    """Whether no queue of a topic can be: one wrong bit makes "my/topic" of "my-topic", and records of RocketMQ's have no
    checksum over their topic.  Such a record is in the log alone, and keeps nobody out.
    """
    try:
        check_topic(topic)
    except InvalidMessage:
        return True
    return False
