"""All queues of a store: topic -> queue id -> queue, found from the folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from commitlog.offset_files import OffsetFile, common_file_size, list_offset_files
from storageio import Disk, InvalidMessage, StoreCorrupt

from .layout import FILE_SIZE_DEFAULT, round_up
from .ordinary import NO_RECORD, ConsumeQueue
from .queue import EVERYTHING
from .queue_files import QueueFiles
from .queue_listing import QUEUE_ID_MAX, queue_folders, sync_names

NAME_SIZE_MAX = 255  # bytes of one name in a folder
QUEUES_ASKED_MAX = 100  # about the size of their files


def check_topic(topic: str) -> str:
    """Refuse a topic whose name is no plain name of a folder."""
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
    """Refuse what is no queue id."""
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise InvalidMessage(f"queue id {queue_id} is not in 0..{QUEUE_ID_MAX}")
    return queue_id


def _files_of(disk: Disk, folder: str, topic: str, queue_id: int) -> list[OffsetFile]:
    """None of a queue with a stray file, which is named when the queue is used: it does not keep the others from being read."""
    try:
        return list_offset_files(disk, os.path.join(folder, topic, str(queue_id)))
    except StoreCorrupt:
        return []


def find_file_size(disk: Disk, folder: str) -> int | None:
    """The file size that most queues below `folder` have; None when there is no file.

    One damaged file must not speak for all, and a million queues need not be asked.
    """
    sizes: Counter[int] = Counter()
    for topic, queue_id in queue_folders(disk, folder):
        found = common_file_size(_files_of(disk, folder, topic, queue_id))
        if found is not None:
            sizes[found] += 1
        if sizes.total() == QUEUES_ASKED_MAX:
            break
    return max(sizes, key=lambda size: (sizes[size], size), default=None)


def refuse_other_file_size(disk: Disk, folder: str, wanted_bytes: int) -> None:
    """Raise `StoreCorrupt` where no queue file has the size that was given: it is not the files', not one file damaged."""
    wanted_bytes = round_up(wanted_bytes)
    found = None
    for topic, queue_id in islice(queue_folders(disk, folder), QUEUES_ASKED_MAX):
        for file in _files_of(disk, folder, topic, queue_id):
            if file.size_bytes == wanted_bytes:
                return
            found = file if found is None and file.size_bytes else found
    if found is not None:
        told = f"{found.size_bytes} bytes"
        raise StoreCorrupt("wrong file size", file=found.path, offset=0, expected=f"{wanted_bytes} bytes", found=told)


class ConsumeQueues:
    """The folder `consumequeue/`.  One thread appends; any number read."""

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
        """Finds the queues and opens nothing.  `file_size_bytes` is rounded up to whole units.

        Each queue's minimum is corrected by `log_min_offset` when it is first asked for (section 5.5).
        """
        self.disk = disk
        self.folder = folder
        self.file_size_bytes = round_up(file_size_bytes)
        self.files = files or QueueFiles(disk, writable=writable)
        self.files.log_min_offset = log_min_offset
        self._topics: dict[str, dict[int, ConsumeQueue]] = {}
        self.next_total: int | None = None  # the next offsets of all queues together; None: not counted since some were cut
        self.discover()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Every queue, as they are at the call."""
        return iter([queue for queues in list(self._topics.values()) for queue in list(queues.values())])

    def __len__(self) -> int:
        """How many queues."""
        return sum(len(queues) for queues in self._topics.values())

    def discover(self) -> None:
        """Add queues whose folder came since (a reader beside a live writer)."""
        for topic, queue_id in queue_folders(self.disk, self.folder):
            if self.get(topic, queue_id) is None:
                self._add(topic, queue_id)

    def topics(self) -> list[str]:
        """Sorted."""
        return sorted(self._topics)

    def queue_ids(self, topic: str) -> list[int]:
        """Sorted; none for an unknown topic."""
        return sorted(self._topics.get(topic, ()))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """None when there is none."""
        return self._topics.get(topic, {}).get(queue_id)

    def get_or_add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """A queue that is not there yet has no folder before its first unit."""
        found = self.get(topic, queue_id)
        return found if found is not None else self._add(check_topic(topic), check_queue_id(queue_id))

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(self.folder, topic, queue_id, self.file_size_bytes, self.files)
        return self._topics.setdefault(topic, {}).setdefault(queue_id, queue)

    def append_run(self, queue: ConsumeQueue, queue_offset: int, units: bytes | memoryview) -> None:
        """`append_run` of one of these queues, which `next_total` follows."""
        if self.next_total is None:
            queue.append_run(queue_offset, units)
            return
        before = queue.max_offset
        try:
            queue.append_run(queue_offset, units)
        finally:  # a full disk may have taken a part
            self.next_total += queue.max_offset - before

    def count(self, physical_offset: int = EVERYTHING) -> int:
        """The next offsets of all queues together, as they were when records before `physical_offset` were dispatched."""
        return sum(
            queue.max_offset if queue.max_physical_offset <= physical_offset else queue.find_physical(physical_offset)
            for queue in self
        )

    def load(self) -> None:
        """List and check the files of every queue now: a stray file or a wrong size is an error (section 0)."""
        for queue in self:
            _ = queue.starts

    def recover(self, safe_offset: int = EVERYTHING, log_end: int = EVERYTHING) -> int:
        """What a writer does with every queue after an unclean stop: find its end, and cut there, `log_end` at the latest.

        Units of records before the physical offset `safe_offset` were on the disk for sure.  Returns from where the log's
        records have to be dispatched again because a queue lost units that may have been good; `EVERYTHING` when none did.
        """
        lost_from = EVERYTHING
        self.next_total = None
        for queue in self:
            queue.drop_behind_hole()
            queue.recover(safe_offset, log_end)
            if queue.drop_tail():
                lost_from = min(lost_from, max(0, queue.max_physical_offset))
        return lost_from

    def doubt(self) -> None:
        """Of every queue; the folders' own names are synced now."""
        for queue in self:
            queue.doubt()
        sync_names(self.disk, self.folder, self.topics())

    def max_physical_offset(self) -> int:
        """The greatest end of a record that a queue knows, -1 without any (section 5.2 b)."""
        return max((queue.max_physical_offset for queue in self), default=NO_RECORD)

    def truncate(self, physical_offset: int) -> None:
        """Cut every queue (section 5.3)."""
        self.next_total = None
        for queue in self:
            queue.truncate(physical_offset)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Of every queue (section 5.5): of those whose minimum is known now, of the others when they are asked."""
        self.files.log_min_offset = log_min_offset
        for queue in self:
            if queue.is_min_known:
                queue.correct_min_offset(log_min_offset)

    def delete_expired(self, log_min_offset: int) -> int:
        """Delete files whose records left the log and correct the minima; how many files (section 6.7)."""
        deleted = 0
        self.files.log_min_offset = log_min_offset
        for queue in self:
            deleted += queue.delete_expired(log_min_offset)
            queue.correct_min_offset(log_min_offset)
        return deleted

    def flush(self, least_pages: int = 0) -> bool:
        """Of every queue; whether anything was synced (section 2.7)."""
        return sum(queue.flush(least_pages) for queue in self) > 0

    def remove(self, topic: str, queue_id: int) -> None:
        """Delete a queue with its folder, and the topic's folder after its last queue."""
        self.next_total = None
        queue = self._topics.get(topic, {}).pop(queue_id, None)
        if queue is not None:
            queue.destroy()
        if topic in self._topics and not self._topics[topic]:
            del self._topics[topic]
            place = os.path.join(self.folder, topic)
            if self.disk.stat(place) is not None and not self.disk.list(place):
                self.disk.delete_folder(place)
                self.disk.sync_folder(self.folder)

    def remove_topic(self, topic: str) -> None:
        """Delete all its queues."""
        for queue_id in self.queue_ids(topic):
            self.remove(topic, queue_id)

    def destroy(self) -> None:
        """Delete all queues: what RocketMQ does when no log file is left (section 5.2)."""
        for topic in self.topics():
            self.remove_topic(topic)

    def close(self) -> None:
        """Give descriptors and maps back.  Does not flush."""
        self.files.close()
