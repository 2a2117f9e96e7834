"""All ordinary queues of a store, by topic and queue id, found from the names of folders."""

from __future__ import annotations

import os
from collections import Counter
from itertools import islice

from commitlog.offset_files import OffsetFile, common_file_size, list_offset_files
from storageio import Disk, StoreCorrupt

from .layout import FILE_SIZE_DEFAULT, round_up
from .ordinary import NO_RECORD, ConsumeQueue
from .queue import EVERYTHING
from .queue_files import QueueFiles
from .queue_listing import QueueFolders, queue_folders, sync_names

SAMPLED_QUEUES_MAX = 100  # queues read to detect the file size


def _files_of(disk: Disk, folder: str, topic: str, queue_id: int) -> list[OffsetFile]:
    """Return a queue's files; an empty list if it has a stray file, which raises `StoreCorrupt` when the queue is used."""
    try:
        return list_offset_files(disk, os.path.join(folder, topic, str(queue_id)))
    except StoreCorrupt:
        return []


def find_file_size(disk: Disk, folder: str) -> int | None:
    """Return the most frequent file size of queues below `folder`; None if there is no file.

    Several queues are read so that one damaged file does not decide, but at most `SAMPLED_QUEUES_MAX`.
    """
    sizes: Counter[int] = Counter()
    for topic, queue_id in queue_folders(disk, folder):
        found = common_file_size(_files_of(disk, folder, topic, queue_id))
        if found is not None:
            sizes[found] += 1
        if sizes.total() == SAMPLED_QUEUES_MAX:
            break
    return max(sizes, key=lambda size: (sizes[size], size), default=None)


def refuse_other_file_size(disk: Disk, folder: str, requested_bytes: int) -> None:
    """Raise `StoreCorrupt` if no queue file has the given size: then the setting is wrong, not a single file."""
    requested_bytes = round_up(requested_bytes)
    found = None
    for topic, queue_id in islice(queue_folders(disk, folder), SAMPLED_QUEUES_MAX):
        for file in _files_of(disk, folder, topic, queue_id):
            if file.size_bytes == requested_bytes:
                return
            found = file if found is None and file.size_bytes else found
    if found is not None:
        found_bytes = f"{found.size_bytes} bytes"
        raise StoreCorrupt("wrong file size", file=found.path, offset=0, expected=f"{requested_bytes} bytes", found=found_bytes)


class ConsumeQueues(QueueFolders[ConsumeQueue]):
    """All queues in the folder `consumequeue/`."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        writable: bool,
        file_size_bytes: int = FILE_SIZE_DEFAULT,
        files: QueueFiles | None = None,
        log_min_offset: int = 0,
    ) -> None:
        """Find the queues and open nothing.  `file_size_bytes` is rounded up to whole units.

        Each queue's minimum is corrected by `log_min_offset` on first use (`docs/formats/recovery.md#minimum-offsets`).
        """
        super().__init__(disk, folder, round_up(file_size_bytes), files or QueueFiles(disk, writable=writable), log_min_offset)
        self._unsynced_topics: list[str] | None = None  # whose names a killed process may have left unsynced
        self.next_total: int | None = None  # sum of all queues' next offsets; None: unknown after a cut
        self.discover()

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        return ConsumeQueue(self.folder, topic, queue_id, self.file_size_bytes, self.files)

    def discover(self) -> None:
        """Add queues with a new folder, for a reader beside a live writer, and drop those whose folder was deleted."""
        found = set(queue_folders(self.disk, self.folder))
        for topic, queue_id in found:
            if self.get(topic, queue_id) is None:
                self._add(topic, queue_id)
        for queue in self if not self.files.writable else ():
            if (queue.topic, queue.queue_id) not in found:
                self.forget(queue)

    def forget(self, queue: ConsumeQueue) -> None:
        """Drop a queue whose folder another process deleted."""
        if self.get(queue.topic, queue.queue_id) is queue:
            self._drop(queue.topic, queue.queue_id)

    def append_run(self, queue: ConsumeQueue, queue_offset: int, units: bytes | memoryview) -> None:
        """Append units to one of these queues as its `append_run` does, and update `next_total`."""
        if self.next_total is None:
            queue.append_run(queue_offset, units)
            return
        before = queue.max_offset
        try:
            queue.append_run(queue_offset, units)
        finally:  # a full disk may have accepted a part
            self.next_total += queue.max_offset - before

    def count(self, physical_offset: int = EVERYTHING) -> int:
        """Return the sum of all queues' next offsets as of the dispatch of all records before `physical_offset`."""
        return sum(
            queue.max_offset if queue.max_physical_offset <= physical_offset else queue.find_physical(physical_offset)
            for queue in self
        )

    def load(self) -> None:
        """List and check the files of every queue; raise `StoreCorrupt` for a stray file or a wrong size."""
        for queue in self:
            _ = queue.starts

    def recover(self, safe_offset: int = EVERYTHING, log_end: int = EVERYTHING) -> int:
        """Find the end of every queue after an unclean stop, `log_end` at the latest, and cut the queue there.

        Units of records before the physical offset `safe_offset` were certainly on the disk.  Returns the physical offset from
        which records must be dispatched again because cut units may have been valid; `EVERYTHING` if there were none.
        """
        lost_from = EVERYTHING
        self.next_total = None
        for queue in self:
            queue.drop_files_after_gap()
            queue.recover(safe_offset, log_end)
            if queue.drop_tail():
                lost_from = min(lost_from, max(0, queue.max_physical_offset))
        return lost_from

    def mark_unsynced(self) -> None:
        """Count the last file of each queue and the names of the folders as not synced; the next `flush` syncs the names."""
        super().mark_unsynced()
        self._unsynced_topics = self.topics()

    def max_physical_offset(self) -> int:
        """Return the greatest record end over all queues, -1 without units (`docs/formats/recovery.md#order`)."""
        return max((queue.max_physical_offset for queue in self), default=NO_RECORD)

    def truncate(self, physical_offset: int) -> None:
        """Cut every queue as `QueueFolders.truncate` does; afterwards the sum of the next offsets is not known."""
        self.next_total = None
        super().truncate(physical_offset)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Correct the minimum of every queue: now where it is known, otherwise on first use."""
        self.files.log_min_offset = log_min_offset
        for queue in self:
            if queue.is_min_known:
                queue.correct_min_offset(log_min_offset)

    def delete_expired(self, log_min_offset: int) -> int:
        """Delete files whose records left the log, and correct the minima; return the number deleted."""
        deleted = super().delete_expired(log_min_offset)
        for queue in self:
            queue.correct_min_offset(log_min_offset)
        return deleted

    def flush(self, least_pages: int = 0) -> bool:
        """Flush every queue; sync the names of folders first that a killed process may have left unsynced."""
        if self._unsynced_topics is not None:
            sync_names(self.disk, self.folder, self._unsynced_topics)
            self._unsynced_topics = None
        return super().flush(least_pages)

    def remove(self, topic: str, queue_id: int) -> None:
        """Delete a queue and its folder; with the last queue, the topic's folder as well."""
        self.next_total = None
        queue = self._drop(topic, queue_id)
        if queue is None:
            return
        queue.destroy()
        topic_folder = os.path.join(self.folder, topic)
        if not self.queue_ids(topic) and self.disk.stat(topic_folder) is not None and not self.disk.list(topic_folder):
            self.disk.delete_folder(topic_folder)
            self.disk.sync_folder(self.folder)

    def remove_topic(self, topic: str) -> None:
        """Delete all queues of a topic."""
        for queue_id in self.queue_ids(topic):
            self.remove(topic, queue_id)
