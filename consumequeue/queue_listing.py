"""The queues of a folder, found by the names of folders, the sync of these names, and the table of one kind of queues."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from storageio import Closing, Disk, InvalidMessage, Kind

from .queue import Queue
from .queue_files import QueueFiles

AnyQueue = TypeVar("AnyQueue", bound=Queue)
NAME_SIZE_MAX = 255  # bytes of a file name
QUEUE_ID_MAX = (1 << 31) - 1


def queue_folders(disk: Disk, folder: str) -> Iterator[tuple[str, int]]:
    """Yield (topic, queue id) of every folder `<folder>/<topic>/<integer>`; other names are skipped.

    See `docs/formats/store-folder.md#directory-listings`.
    """
    if disk.stat(folder) is None:
        return
    for topic in disk.list(folder):
        if topic.kind is Kind.FOLDER:
            for queue_id in listed_ids(disk, os.path.join(folder, topic.name)):
                yield topic.name, queue_id


def listed_ids(disk: Disk, topic_folder: str) -> list[int]:
    """Return the queue ids of a topic in the order in which its folder lists them."""
    found = [entry.name for entry in disk.list(topic_folder) if entry.kind is Kind.FOLDER]
    numbers = [name for name in found if name.isascii() and name.isdigit() and str(int(name)) == name]
    return [int(number) for number in numbers if int(number) <= QUEUE_ID_MAX]


def sync_names(disk: Disk, folder: str, topics: Iterable[str]) -> None:
    """Sync the names of the queues of these topics, and of the topics; one may have been deleted meanwhile."""
    for path in (os.path.join(folder, topic) for topic in topics):
        if disk.stat(path) is not None:
            disk.sync_folder(path)
    if disk.stat(folder) is not None:
        disk.sync_folder(folder)


def check_topic(topic: str) -> str:
    """Return the topic; raise `InvalidMessage` if it cannot be the name of a folder."""
    if not topic or topic in {".", ".."} or "/" in topic or "\\" in topic or "\0" in topic:
        raise InvalidMessage(f"a topic named {topic!r} would lie outside its folder")
    try:
        size_bytes = len(os.fsencode(topic))
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"a topic named {topic!r} has no folder: half a character has no bytes") from error
    if size_bytes > NAME_SIZE_MAX:
        raise InvalidMessage(f"a topic of {size_bytes} bytes has no folder: {NAME_SIZE_MAX} at most")
    return topic


def check_queue_id(queue_id: int) -> int:
    """Return the queue id; raise `InvalidMessage` if it is out of range."""
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise InvalidMessage(f"queue id {queue_id} is not in 0..{QUEUE_ID_MAX}")
    return queue_id


class QueueFolders(Closing, Generic[AnyQueue]):
    """All queues of one kind of a store, by topic and queue id.  One thread appends; any number read."""

    def __init__(self, disk: Disk, folder: str, file_size_bytes: int, files: QueueFiles, log_min_offset: int) -> None:
        """Create it without queues.  Records before `log_min_offset` left the log."""
        self.disk = disk
        self.folder = folder
        self.file_size_bytes = file_size_bytes
        self.files = files
        self.files.log_min_offset = log_min_offset
        self._topics: dict[str, dict[int, AnyQueue]] = {}

    def __iter__(self) -> Iterator[AnyQueue]:
        """Iterate over the queues that exist at the call."""
        return iter([queue for queues in list(self._topics.values()) for queue in list(queues.values())])

    def __len__(self) -> int:
        """Return the number of queues."""
        return sum(len(queues) for queues in self._topics.values())

    @abstractmethod
    def _new(self, topic: str, queue_id: int) -> AnyQueue:
        """Return a queue, which has no folder before its first unit."""

    def topics(self) -> list[str]:
        """Return the sorted topics that have queues."""
        return sorted(self._topics)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the sorted queue ids of a topic; an empty list for an unknown topic."""
        return sorted(self._topics.get(topic, ()))

    def get(self, topic: str, queue_id: int) -> AnyQueue | None:
        """Return a queue; None if there is none."""
        queues = self._topics.get(topic)
        return None if queues is None else queues.get(queue_id)

    def get_or_add(self, topic: str, queue_id: int) -> AnyQueue:
        """Return a queue; a new one has no folder before its first unit."""
        found = self.get(topic, queue_id)
        return found if found is not None else self._add(check_topic(topic), check_queue_id(queue_id))

    def _add(self, topic: str, queue_id: int) -> AnyQueue:
        return self._topics.setdefault(topic, {}).setdefault(queue_id, self._new(topic, queue_id))

    def _drop(self, topic: str, queue_id: int) -> AnyQueue | None:
        """Take a queue out of the table, and return it."""
        queues = self._topics.get(topic, {})
        found = queues.pop(queue_id, None)
        if not queues:
            self._topics.pop(topic, None)
        return found

    def truncate(self, physical_offset: int) -> None:
        """Cut the units of records at or after `physical_offset` from every queue (`docs/formats/recovery.md#truncation`)."""
        for queue in self:
            queue.truncate(physical_offset)

    def delete_expired(self, log_min_offset: int) -> int:
        """Delete leading files whose records left the log; return the number deleted."""
        self.files.log_min_offset = log_min_offset
        return sum(queue.delete_expired(log_min_offset) for queue in self)

    def mark_unsynced(self) -> None:
        """Count the last file of each queue as not synced."""
        for queue in self:
            queue.mark_unsynced()

    def flush(self, least_pages: int = 0) -> bool:
        """Flush every queue as `Queue.flush` does; return whether anything was synced."""
        return sum(queue.flush(least_pages) for queue in self) > 0

    def close(self) -> None:
        """Close descriptors and maps without a flush."""
        self.files.close()
