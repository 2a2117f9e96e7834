"""A read-only store's view of a folder that another process writes: the current log files, queues and index files.

Nothing is locked or written.  A refresh is cheap if nothing changed: it reads the times of two folders, and for a queue the
stat and 40 bytes of its last file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from commitlog import CommitLog
from consumequeue import ConsumeQueue, ConsumeQueues, check_queue_id, check_topic, find_file_size, listed_ids
from consumequeue.layout import UNIT_SIZE
from indexfile import AT_REST, IndexFiles, KeyFilters, find_shape, index_paths
from storageio import Disk, DiskError, InvalidMessage, Kind, StoreCorrupt

LOG = logging.getLogger(f"brokerstore.{__name__}")
CHECK_S = 0.01  # between checks for files that a writer deleted, for calls that see by other means what it added
FILTERS_S = 10.0  # between looks for new key filters
SETTLE_MS = 100  # a folder that changed this recently may change again with the same time


class _ViewAnchor(NamedTuple):
    """What a queue looked like at the last refresh; if this part changed, the queue was truncated."""

    inode: int
    unit_at: int
    unit: bytes | None
    log_min_offset: int


class _Folders:
    """Detects whether files were created or deleted in some folders since the last call."""

    def __init__(self, disk: Disk, folders: list[str]) -> None:
        self._disk = disk
        self._folders = folders
        self._seen: list[int] = []

    def changed(self) -> bool:
        """Return whether a folder changed.

        Returns True again while the change is so recent that another may have the same time.
        """
        found = [entry.modified_ms if (entry := self._disk.stat(folder)) else -1 for folder in self._folders]
        if found == self._seen:
            return False
        is_settled = self._disk.now_ms() - max(found) > SETTLE_MS
        self._seen = found if is_settled else []
        return True

    def forget(self) -> None:
        """Make the next call of `changed` return True."""
        self._seen = []


class ReaderView:
    """Log, queues and index of an engine opened for reading; the calling thread refreshes them.

    It replaces `ConsumeQueues` for looking up a queue.
    """

    def __init__(
        self, disk: Disk, log: CommitLog, queues: ConsumeQueues, index: IndexFiles | None,
        before_first_read: Callable[[], None], key_filters: KeyFilters | None,
    ) -> None:  # fmt: skip
        """Start from the files found at opening; `before_first_read` is called once, before the first queue is read."""
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._log_folders = _Folders(disk, log.queue.paths.folders)
        self._index_folder = _Folders(disk, [index.folder] if index is not None else [])
        self._anchors: dict[tuple[str, int], _ViewAnchor] = {}
        self._guard = threading.RLock()
        self._before_first_read: Callable[[], None] | None = before_first_read
        self._refreshed_s = -CHECK_S
        self._key_filters = key_filters
        self._filters_loaded_s = -FILTERS_S

    def refresh(self, *, again: bool = False) -> None:
        """List the files of log and index again if a folder changed; with `again` list the log's in any case."""
        with self._guard:
            self._refreshed_s = time.monotonic()
            if again:
                self._log_folders.forget()
            if self._log_folders.changed() and not self._log.queue.refresh():
                self._log_folders.forget()
            if self._index is not None and self._index_folder.changed():
                self._refresh_index(self._index)

    def refresh_if_due(self) -> None:
        """Refresh, and at times load key filters, unless that was done a moment ago."""
        now_s = time.monotonic()
        if now_s - self._refreshed_s >= CHECK_S:
            self.refresh()
            if self._key_filters is not None and now_s - self._filters_loaded_s >= FILTERS_S:
                with self._guard:
                    self._filters_loaded_s = now_s
                    self._load_filters(self._key_filters)

    def _load_filters(self, key_filters: KeyFilters) -> None:
        """Load the filters; without them a query takes longer."""
        try:
            key_filters.load()
        except DiskError as error:
            self._key_filters = None
            LOG.warning("key filters are not used: %s", error)

    def _refresh_index(self, index: IndexFiles) -> None:
        if not index.fits:
            paths = index_paths(self._disk, index.folder)[0]
            shape = find_shape(self._disk, paths, AT_REST)
            if shape is not None:
                index.adopt(*shape)
            elif paths:  # the writer may be adding an item
                self._index_folder.forget()
        index.refresh(whole_only=True)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue with all of its current units, or None."""
        with self._guard:
            if self._before_first_read is not None:
                self._begin()
            queue = self._queues.get(topic, queue_id) or self._discover(topic, queue_id)
            if queue is not None:
                try:
                    self._refresh(queue)
                except DiskError:  # a file was deleted between two calls
                    self._reload(queue)
                except StoreCorrupt:
                    if not self._find_other_size():
                        raise
                    queue = self._queues.get_or_add(topic, queue_id)
                    self._refresh(queue)
                if not queue.starts and self._disk.stat(queue.folder) is None:  # its topic was deleted
                    self._anchors.pop((topic, queue_id), None)
                    self._queues.forget(queue)
                    return None
            return queue

    def _begin(self) -> None:
        """Call `before_first_read`, but only once."""
        call, self._before_first_read = self._before_first_read, None
        if call is not None:
            call()

    def _discover(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue that was created since, or None."""
        with contextlib.suppress(InvalidMessage):  # a name that no queue can have may come from a config file
            entry = self._disk.stat(os.path.join(self._queues.folder, check_topic(topic), str(check_queue_id(queue_id))))
            if entry is not None and entry.kind is Kind.FOLDER:
                return self._queues.get_or_add(topic, queue_id)
        return None

    def _find_other_size(self) -> bool:
        """Return whether queue files have another size than the known one: the first were made after the opening looked for it.

        The queues are then found again.
        """
        found = find_file_size(self._disk, self._queues.folder)
        if found is None or found == self._queues.file_size_bytes:
            return False
        self._queues.file_size_bytes = found
        for queue in self._queues:
            self._queues.forget(queue)
        self._queues.discover()
        return True

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queue ids of a topic, sorted, as its folder lists them."""
        with contextlib.suppress(InvalidMessage):
            folder = os.path.join(self._queues.folder, check_topic(topic))
            return sorted(listed_ids(self._disk, folder)) if self._disk.stat(folder) is not None else []
        return []

    def discover(self) -> None:
        """Find every queue that was created since."""
        with self._guard:
            self._begin()
            self._queues.discover()

    def _refresh(self, queue: ConsumeQueue) -> None:
        """Read new units; find the end again if units or files were removed."""
        known = self._anchors.get((queue.topic, queue.queue_id))
        if known is not None and known != self._anchor(queue, known.unit_at):
            queue.reload()
        queue.refresh()
        self._remember(queue)

    def _reload(self, queue: ConsumeQueue) -> None:
        queue.reload()
        self._remember(queue)

    def _remember(self, queue: ConsumeQueue) -> None:
        self._log_minimum(queue)
        self._anchors[queue.topic, queue.queue_id] = self._anchor(queue, queue.written - UNIT_SIZE)

    def _log_minimum(self, queue: ConsumeQueue) -> None:
        """Correct the queue's minimum if the start of the log moved."""
        known = self._anchors.get((queue.topic, queue.queue_id))
        low = max(self._log.min_offset, 0)
        if known is None or known.log_min_offset != low:
            queue.correct_min_offset(low)

    def _anchor(self, queue: ConsumeQueue, unit_at: int) -> _ViewAnchor:
        """Return the state of the file with the last unit, and that unit."""
        starts = [start for start in queue.starts[-2:] if start <= unit_at]
        entry = self._disk.stat(queue.path(starts[-1])) if starts else None
        unit = queue.read_unit(unit_at) if entry is not None else None
        return _ViewAnchor(entry.inode if entry else 0, unit_at, unit, max(self._log.min_offset, 0))
