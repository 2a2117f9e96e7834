"""The folder `batchconsumequeue/` with all batch queues of a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from commitlog.offset_files import common_file_size, list_offset_files
from storageio import Closing, Disk, Kind, StoreCorrupt

from .batch import BatchQueue
from .consume_queues import check_queue_id, check_topic
from .layout import BATCH_FILE_SIZE_DEFAULT, BATCH_UNIT_SIZE
from .queue_files import QueueFiles
from .queue_listing import queue_folders, sync_names


class BatchQueues(Closing):
    """All batch queues of a store.  One thread appends; any number read."""

    def __init__(
        self, disk: Disk, folder: str, *, writable: bool, file_size_bytes: int | None = None,
        unreadable: dict[tuple[str, int], StoreCorrupt] | None = None, log_min_offset: int = 0,
    ) -> None:  # fmt: skip
        """Find the queues.  The default file size is that of the existing files, or RocketMQ's if there are none.

        The error of an unreadable queue is put into `unreadable` if that is given, and raised otherwise.
        Records before `log_min_offset` left the log.
        """
        self._unreadable = unreadable
        self.disk = disk
        self.folder = folder
        self._is_size_known = bool(file_size_bytes)
        self.file_size_bytes = _whole_units(file_size_bytes or BATCH_FILE_SIZE_DEFAULT)
        self.files = QueueFiles(disk, writable=writable)
        self.files.log_min_offset = log_min_offset
        self._queues: dict[tuple[str, int], BatchQueue] = {}
        has_any = disk.stat(folder) is not None
        self._topic_folders = {entry.name for entry in disk.list(folder) if entry.kind is Kind.FOLDER} if has_any else set()
        self.discover()

    def _find_size(self) -> None:
        """Detect the file size, if there is a file; a reader may open the folder before the writer creates the first."""
        found = self._found_size()
        if found is not None:
            self.file_size_bytes = _whole_units(found)
            self._is_size_known = True

    def _found_size(self) -> int | None:
        for topic, queue_id in queue_folders(self.disk, self.folder):
            with self._collect_damage(topic, queue_id):
                found = common_file_size(list_offset_files(self.disk, os.path.join(self.folder, topic, str(queue_id))))
                if found is not None:
                    return found
        return None

    @contextmanager
    def _collect_damage(self, topic: str, queue_id: int) -> Iterator[None]:
        """Put a `StoreCorrupt` of one queue into `unreadable`, if that was given."""
        try:
            yield
        except StoreCorrupt as error:
            if self._unreadable is None:
                raise
            self._unreadable[topic, queue_id] = error
            self._queues.pop((topic, queue_id), None)

    def __iter__(self) -> Iterator[BatchQueue]:
        """Iterate over the queues that exist at the call."""
        return iter(list(self._queues.values()))

    def __len__(self) -> int:
        """Return the number of queues."""
        return len(self._queues)

    def discover(self) -> None:
        """Add queues with a new folder; a reader adds none before the file size is known."""
        if not self._is_size_known:
            self._find_size()
        if not self._is_size_known and not self.files.writable:
            return
        for topic, queue_id in queue_folders(self.disk, self.folder):
            with self._collect_damage(topic, queue_id):
                found = self.get_or_add(topic, queue_id)
                if self._unreadable is not None:
                    found.refresh()  # checks its files now instead of on first use

    def topics(self) -> list[str]:
        """Return the sorted topics that have queues."""
        return sorted({topic for topic, _ in list(self._queues)})

    def knows(self, topic: str) -> bool:
        """Return whether a topic has batch queues, or had some, so that its folder exists."""
        return topic in self._topic_folders or bool(self.queue_ids(topic))

    @property
    def is_used(self) -> bool:
        """Whether `knows` returns True for any topic."""
        return bool(self._topic_folders or self._queues)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the sorted queue ids of a topic; an empty list for an unknown topic."""
        return sorted(queue_id for name, queue_id in list(self._queues) if name == topic)

    def get(self, topic: str, queue_id: int) -> BatchQueue | None:
        """Return a queue; None if there is none."""
        return self._queues.get((topic, queue_id))

    def get_or_add(self, topic: str, queue_id: int) -> BatchQueue:
        """Return a queue; a new one has no folder before its first unit."""
        found = self._queues.get((topic, queue_id))
        if found is None:
            check_topic(topic)
            check_queue_id(queue_id)
            made = BatchQueue(self.folder, topic, queue_id, self.file_size_bytes, self.files)
            found = self._queues.setdefault((topic, queue_id), made)
        return found

    def recover(self) -> None:
        """Find the end of each queue by scanning after an unclean stop, and zero the rest."""
        for queue in self:
            queue.recover()
            queue.drop_tail()

    def mark_unsynced(self) -> None:
        """Count the last file of each queue as not synced, and sync the names of the folders."""
        for queue in self:
            queue.mark_unsynced()
        sync_names(self.disk, self.folder, self.topics())

    def truncate(self, physical_offset: int) -> None:
        """Cut the units of records at or after `physical_offset` from every queue."""
        for queue in self:
            queue.truncate(physical_offset)

    def delete_expired(self, log_min_offset: int) -> int:
        """Delete leading files whose records left the log; return the number deleted."""
        self.files.log_min_offset = log_min_offset
        return sum(queue.delete_expired(log_min_offset) for queue in self)

    def flush(self, least_pages: int = 0) -> bool:
        """Flush every queue as `Queue.flush` does; return whether anything was synced."""
        return sum(queue.flush(least_pages) for queue in self) > 0

    def refresh(self) -> None:
        """Find new units and files of every queue, for a reader beside a writer."""
        for queue in self:
            queue.refresh()

    def close(self) -> None:
        """Close descriptors and maps without a flush."""
        self.files.close()


def _whole_units(size_bytes: int) -> int:
    """Round a size up to whole units, as RocketMQ does."""
    return -(-size_bytes // BATCH_UNIT_SIZE) * BATCH_UNIT_SIZE
