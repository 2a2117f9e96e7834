"""Retention: deletes old log files, and the queue and index files that only point into them.

Files are deleted oldest first, never the last one, and never before they are dispatched and flushed.  A file expires when it
was not changed for `file_reserved_time_hours`.  Expired files are deleted in the hours of `delete_when`, when the disk is
fuller than `disk_max_used_space_ratio`, and on request.  Files are deleted whatever their age when the disk is fuller than
`disk_space_clean_forcibly_ratio` and `clean_file_forcibly_enable` is set.  Above `disk_space_warning_ratio` puts are refused
until there is space again.

A reader of a deleted file keeps its view.  Space that a file system reserves for its administrator counts as used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from itertools import takewhile

from commitlog import CommitLog, MappedFile
from consumequeue import ConsumeQueues
from indexfile import IndexFiles
from storageio import Disk

from ..config import StoreConfig
from .housekeeper import Housekeeper
from .running_flags import Flag, RunningFlags

LOG = logging.getLogger(f"brokerstore.{__name__}")
FIRST_AFTER_S = 60.0
PAUSE_S = 0.1  # between two files, because deleting a large one keeps the file system busy
HOUR_MS = 3_600_000
WARNING_RATIOS = (35, 90)
FORCE_RATIOS = (30, 85)
MAX_USED_RATIOS = (10, 95)
MANUAL_ROUNDS = 20


class Retention:
    """Deletes files of one store.  The housekeeper calls `run_due`, the store the other methods."""

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles | None,
        config: StoreConfig,
        flags: RunningFlags,
        settled: Callable[[], int],
        housekeeper: Housekeeper,
        follow: Callable[[int], object],
    ) -> None:
        """Create it.

        `settled` returns the offset before which everything is dispatched and on the disk.  `follow` is called with the new
        start of the log.
        """
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._config = config
        self._flags = flags
        self._settled = settled
        self._housekeeper = housekeeper
        self._next_run = time.monotonic() + FIRST_AFTER_S
        self._follow = follow

    def run_due(self) -> None:
        """Call `run` a minute after the store was opened, and then at the clean interval."""
        now = time.monotonic()
        if now >= self._next_run:
            self._next_run = now + self._config.clean_resource_interval_ms / 1000
            self.run()

    def run(self) -> int:
        """Delete what the disk's state and the hour allow; return the number of files deleted."""
        used = self.used_percent()
        self._warn(used)
        is_forced = (
            used > self._limit("disk_space_clean_forcibly_ratio", FORCE_RATIOS) and self._config.clean_file_forcibly_enable
        )
        is_short = used > self._limit("disk_max_used_space_ratio", MAX_USED_RATIOS)
        if not (is_forced or is_short or self.is_hour()):
            return 0
        selected = self._old_files() if is_forced else self._expired_files()
        return self._delete(selected[: self._config.delete_file_batch_max], self._housekeeper.thread.pause)

    # Disk and clock

    def used_percent(self) -> int:
        """Return how full the disks are, in percent rounded up.

        Of several log folders the emptiest file system counts; the file system of the queues counts as well.
        """
        logs = [self._percent(folder) for folder in self._log.queue.paths.folders]
        return max(min(logs), self._percent(self._queues.folder))

    def _percent(self, folder: str) -> int:
        if self._disk.stat(folder) is None:
            return 0
        space = self._disk.space(folder)
        return -(-100 * (space.total_bytes - space.free_bytes) // space.total_bytes) if space.total_bytes else 0

    def _limit(self, name: str, bounds: tuple[int, int]) -> int:
        """Return a ratio of the configuration, clamped to what RocketMQ allows."""
        low, high = bounds
        value: int = getattr(self._config, name)
        return min(max(value, low), high)

    def _warn(self, used: int) -> None:
        """Refuse puts on a disk that is nearly full."""
        limit = self._limit("disk_space_warning_ratio", WARNING_RATIOS)
        if used > limit:
            if not self._flags.has(Flag.DISK_FULL):
                LOG.error("the disk is %d %% full: puts are refused above %d %%", used, limit)
            self._flags.set(Flag.DISK_FULL, f"the disk is {used} % full")
        elif self._flags.has(Flag.DISK_FULL):
            LOG.warning("the disk is %d %% full: puts are accepted again", used)
            self._flags.clear(Flag.DISK_FULL)

    def is_hour(self) -> bool:
        """Return whether the local hour is one of `delete_when`, a list separated by semicolons."""
        hour = datetime.fromtimestamp(self._disk.now_ms() / 1000).hour
        hours = [part.strip() for part in self._config.delete_when.split(";")]
        return any(part.isdecimal() and int(part) == hour for part in hours)

    # Which files may be deleted

    def _old_files(self) -> list[MappedFile]:
        """Return the files before the last one that are dispatched and flushed."""
        settled = self._settled()
        return list(takewhile(lambda file: file.end_offset <= settled, self._log.queue.files[:-1]))

    def _expired_files(self) -> list[MappedFile]:
        """Return the oldest files that were not changed for the reserved time."""
        return list(takewhile(self._is_expired, self._old_files()))

    def _is_expired(self, file: MappedFile) -> bool:
        entry = self._disk.stat(file.path)
        reserved_ms = self._config.file_reserved_time_hours * HOUR_MS
        return entry is not None and self._disk.now_ms() - entry.modified_ms >= reserved_ms

    # Deleting

    def delete_expired(self) -> int:
        """Delete expired files at any hour, as many as twenty rounds would; return the number deleted."""
        return self._delete(self._expired_files()[: MANUAL_ROUNDS * self._config.delete_file_batch_max])

    def delete_before(self, physical_offset: int) -> int:
        """Delete files of any age that end at or before an offset; return the number deleted."""
        return self._delete([file for file in self._old_files() if file.end_offset <= physical_offset])

    def _delete(self, files: list[MappedFile], pause: Callable[[float], object] = lambda _seconds: None) -> int:
        """Delete files one by one, oldest first, then the queue and index files that only point at them."""
        deleted = 0
        with self._housekeeper.guard:
            if files:  # without records, only the units tell a queue its next offset
                self._housekeeper.flush_queues()
            for file in files:
                if self._log.min_offset != file.start_offset:
                    break  # deleted in the meantime
                if deleted:
                    pause(PAUSE_S)
                deleted += self._log.queue.delete_first(1)
            if deleted:
                LOG.info("%d log files deleted; the log begins at %d", deleted, self._log.min_offset)
                self.follow_log()
        return deleted

    def follow_log(self) -> None:
        """Delete queue and index files whose records left the log, and correct the queues' minimum offsets."""
        low = max(self._log.min_offset, 0)
        self._queues.delete_expired(low)
        self._follow(low)
        if self._index is not None:
            self._index.delete_expired(low)
