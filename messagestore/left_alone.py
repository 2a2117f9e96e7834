"""Topics whose records get no ordinary queue when queues are made or checked against the log."""

from __future__ import annotations

import os
from collections.abc import Callable

from storageio import Disk, Kind

from .topics import Topics, is_deleted

BATCH_FOLDER = "batchconsumequeue"  # queues of another form (format page, section 2.6)


def left_alone(disk: Disk, root: str, topics: Topics | None = None) -> Callable[[str], bool]:
    """Whether a topic was deleted (topics.json, where there is one, does not name it), or has batch queues.

    `topics` are those of an open store, which get more as it works; else the file is read.
    """
    known = topics or Topics(disk, os.path.join(root, "config"))
    folder = os.path.join(root, BATCH_FOLDER)
    has_any = disk.stat(folder) is not None
    batch = {entry.name for entry in disk.list(folder) if entry.kind is Kind.FOLDER} if has_any else set()

    def is_left_alone(topic: str) -> bool:
        config = known.get(topic)
        return topic in batch or (config is not None and config.is_batch) or is_deleted(known, topic)

    return is_left_alone
