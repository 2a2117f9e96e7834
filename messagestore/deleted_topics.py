"""Topics that `delete_topic` deleted while their records are in the log: `<store>/brokerstore/deleted.json`.

A topic that is created again continues the numbers of its queues.  So one number for each queue separates its messages from
deleted ones, whose units no walk over the log derives, and one physical offset separates their keys.  An entry is dropped when
the log begins behind its records.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from commitlog import StoredMessage
from consumequeue import ConsumeQueues
from consumequeue.layout import UNIT_SIZE
from storageio import Disk

from .paths import OWN_FOLDER
from .sidecar import read_sidecar, write_sidecar

NAME = "deleted.json"


class DeletedTopic(NamedTuple):
    """Which messages of a topic are deleted."""

    before: int  # those of records before this physical offset
    next_offsets: dict[int, int]  # by queue id: those of queue offsets before this one


class DeletedTopics:
    """The deleted topics of one store."""

    def __init__(self, disk: Disk, root: str) -> None:
        """Read the file of the store in `root`; without a readable one no topic is deleted."""
        self._disk = disk
        self._path = os.path.join(root, OWN_FOLDER, NAME)
        self._version: tuple[int, int, int] | None = None
        self.entries: dict[str, DeletedTopic] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if another process replaced it."""
        entry = self._disk.stat(self._path)
        version = (entry.inode, entry.size_bytes, entry.modified_ms) if entry is not None else None
        if version != self._version:
            self._version = version
            self.entries.clear()
            self.entries.update(read_sidecar(self._disk, self._path, _parsed) or {})

    def delete(self, topic: str, before: int, next_offsets: dict[int, int], log_min_offset: int) -> None:
        """Delete a topic's messages so far, durably; drop the entries whose records all left the log."""
        for name in [name for name, entry in self.entries.items() if entry.before <= log_min_offset]:
            del self.entries[name]
        self.entries[topic] = DeletedTopic(before, next_offsets)
        self._save()

    def _save(self) -> None:
        listed = {topic: {"before": entry.before, "next": entry.next_offsets} for topic, entry in self.entries.items()}
        write_sidecar(self._disk, self._path, listed)

    def end_at(self, log_end: int) -> None:
        """Keep every offset before the end of a log that was cut: other records will be behind it."""
        cut = {topic: entry._replace(before=log_end) for topic, entry in self.entries.items() if entry.before > log_end}
        if cut:
            self.entries.update(cut)
            self._save()

    def next_offsets(self, topic: str) -> dict[int, int]:
        """Return the queue offsets, by queue id, before which a topic's messages are deleted."""
        entry = self.entries.get(topic)
        return entry.next_offsets if entry is not None else {}

    def kept(self, topic: str, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages of a topic that are not deleted."""
        entry = self.entries.get(topic)
        return messages if entry is None else [message for message in messages if message.physical_offset >= entry.before]

    def kept_units(self, topic: str, queue_id: int, first: int, units: memoryview) -> tuple[int, memoryview]:
        """Return a run of consecutive units without those of deleted messages: the queue offset of the first, and the units."""
        low = self.next_offsets(topic).get(queue_id, 0)
        skipped = min(max(0, low - first), len(units) // UNIT_SIZE)
        return first + skipped, units[skipped * UNIT_SIZE :]

    def leftovers(self, queues: ConsumeQueues) -> list[tuple[str, int]]:
        """Return the queues with deleted messages alone: the process that deleted them was killed."""
        found = []
        for topic, entry in self.entries.items():
            for queue_id, low in entry.next_offsets.items():
                queue = queues.get(topic, queue_id)
                if queue is not None and queue.max_offset <= low:
                    found.append((topic, queue_id))
        return found


def _parsed(document: Any) -> dict[str, DeletedTopic]:
    return {
        str(topic): DeletedTopic(int(entry["before"]), {int(one): int(offset) for one, offset in entry["next"].items()})
        for topic, entry in document.items()
    }
