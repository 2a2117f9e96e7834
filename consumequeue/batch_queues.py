"""The folder `batchconsumequeue/` with all batch queues of a store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from commitlog.offset_files import common_file_size, list_offset_files
from storageio import Disk, Kind, StoreCorrupt

from .batch import BatchQueue
from .layout import BATCH_FILE_SIZE_DEFAULT, BATCH_UNIT_SIZE, round_up
from .queue_files import QueueFiles
from .queue_listing import QueueFolders, queue_folders, sync_names


class BatchQueues(QueueFolders[BatchQueue]):
    """All batch queues of a store."""

    def __init__(
        self, disk: Disk, folder: str, *, writable: bool, file_size_bytes: int | None = None,
        unreadable: dict[tuple[str, int], StoreCorrupt] | None = None, log_min_offset: int = 0,
    ) -> None:  # fmt: skip
        """Find the queues.  The default file size is that of the existing files, or RocketMQ's if there are none.

        The error of an unreadable queue is put into `unreadable` if that is given, and raised otherwise.
        Records before `log_min_offset` left the log.
        """
        self._unreadable = unreadable
        size = round_up(file_size_bytes or BATCH_FILE_SIZE_DEFAULT, BATCH_UNIT_SIZE)
        super().__init__(disk, folder, size, QueueFiles(disk, writable=writable), log_min_offset)
        self._is_size_known = bool(file_size_bytes)
        has_any = disk.stat(folder) is not None
        self._topic_folders = {entry.name for entry in disk.list(folder) if entry.kind is Kind.FOLDER} if has_any else set()
        self.discover()

    def _find_size(self) -> None:
        """Detect the file size, if there is a file; a reader may open the folder before the writer creates the first."""
        found = self._found_size()
        if found is not None:
            self.file_size_bytes = round_up(found, BATCH_UNIT_SIZE)
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
            self._drop(topic, queue_id)

    def _new(self, topic: str, queue_id: int) -> BatchQueue:
        return BatchQueue(self.folder, topic, queue_id, self.file_size_bytes, self.files)

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

    def knows(self, topic: str) -> bool:
        """Return whether a topic has batch queues, or had some, so that its folder exists."""
        return topic in self._topic_folders or bool(self.queue_ids(topic))

    @property
    def is_used(self) -> bool:
        """Whether `knows` returns True for any topic."""
        return bool(self._topic_folders or self._topics)

    def recover(self) -> None:
        """Find the end of each queue by scanning after an unclean stop, and zero the rest."""
        for queue in self:
            queue.recover()
            queue.drop_tail()

    def mark_unsynced(self) -> None:
        """Count the last file of each queue as not synced, and sync the names of the folders."""
        super().mark_unsynced()
        sync_names(self.disk, self.folder, self.topics())
