"""Retention: deletes log files that are not needed, and the queue and index files that only point into them.

Files are deleted oldest first, never the last one, and never before they are dispatched and flushed.  The policy of the store
decides when (`RetentionPolicy`).

"consumed" deletes a file soon after every group has acknowledged what is in it, and nothing that is pending, however old it is
and however full the disk (`broker/services/pending.py`).  Before that everything written is synced, because a retry or a
delivered copy takes the place of the deleted message, and so is the progress of groups and delays.  Since the last file stays,
it is ended by a blank record before it is full as soon as 64 MiB of it are acknowledged, and puts continue in the next one.

"limits" are RocketMQ's rules.  A file expires when it was not changed for `file_reserved_time_hours`.  Expired files are
deleted in the hours of `delete_when`, when the disk is fuller than `disk_max_used_space_ratio`, and on request.  Files are
deleted whatever their age when the disk is fuller than `disk_space_clean_forcibly_ratio` and `clean_file_forcibly_enable` is
set, and when the log would exceed `max_size_bytes`.  What a group had not acknowledged of a deleted file is a logged warning.

Above `disk_space_warning_ratio` puts are refused until there is space again.  Under "consumed" they are also refused when the
log has its maximum size: `MappedFileQueue` creates no further file then.  Since the last file stays, two are always allowed.

A reader of a deleted file keeps its view.  Space that a file system reserves for its administrator counts as used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from commitlog import MappedFile

from ..config import Role
from .housekeeper import Housekeeper
from .running_flags import Flag

if TYPE_CHECKING:
    from ..parts import StoreParts

LOG = logging.getLogger(f"brokerstore.{__name__}")
FIRST_AFTER_S = 60.0
PAUSE_S = 0.1  # between two files, because deleting a large one keeps the file system busy
HOUR_MS = 3_600_000
MANUAL_ROUNDS = 20
CHECKS = 10  # of acknowledgements and sizes, per interval of the other checks
FREED_MIN = 64 << 20  # acknowledged bytes for which the last file is ended before it is full
CHECK_SHARE = 20  # a check takes at most 1/CHECK_SHARE of the time


class Pending(Protocol):
    """What retention has to know of the messages that groups, delays and transactions need."""

    def first_offset(self, least: int) -> int:
        """Return the lowest physical offset of a pending record, or any below `least` of one."""

    def unacknowledged(self, begin: int, end: int) -> Iterable[tuple[str, str, int]]:
        """Return (topic, group, messages) of what groups have not acknowledged of a range of the log."""


class Retention:
    """Deletes files of one store.  The housekeeper calls `run_due`, the store the other methods."""

    def __init__(
        self, parts: StoreParts, housekeeper: Housekeeper, pending: Pending, save_progress: Callable[[], object],
        clock: Callable[[], int] | None,
    ) -> None:  # fmt: skip
        """Create it; `clock` is that of `MessageStore.open`.

        `save_progress` syncs everything written, and the progress of groups and delays.
        """
        self._parts = parts
        self._log = log = parts.log
        self._config = config = parts.config
        self._flags = parts.flags
        self._housekeeper = housekeeper
        self._pending = pending
        self._save_progress = save_progress
        self._clock = clock
        self._keeps_pending = config.keeps_pending
        self._interval_s = config.clean_resource_interval_ms / 1000
        self._next_run = time.monotonic() + (0 if self._keeps_pending else FIRST_AFTER_S)
        self._next_check = time.monotonic() + self._interval_s / CHECKS
        self._size_max = max(config.max_size_bytes, 2 * log.file_size_bytes) if config.max_size_bytes is not None else 0
        if self._keeps_pending:
            log.queue.size_max = self._size_max

    def start(self) -> None:
        """Refuse puts from the beginning on a disk that is nearly full: a process that starts again there would fill it."""
        if self._keeps_pending:
            self._warn(self.used_percent())

    def run_due(self) -> None:
        """Call `check` ten times in a clean interval and `run` once; under "limits" the first time after a minute."""
        began = time.monotonic()
        if began >= self._next_check:
            self.check()
            now = time.monotonic()
            self._next_check = now + max(self._interval_s / CHECKS, CHECK_SHARE * (now - began))
        if began >= self._next_run:
            self._next_run = began + self._interval_s
            self.run()

    def check(self) -> int:
        """Delete what is acknowledged, or exceeds the maximum size; accept puts again if there is space.

        Returns the number of files deleted.
        """
        selected = self._consumed(self._old_files()) if self._keeps_pending else self._excess_files()
        deleted = self._delete(selected[: self._config.delete_file_batch_max], self._housekeeper.thread.pause)
        if self._flags.has(Flag.DISK_FULL):
            self._warn(self.used_percent())
        if self._flags.has(Flag.LOG_FULL) and len(self._log.queue.files) * self._log.file_size_bytes <= self._size_max:
            self._flags.clear(Flag.LOG_FULL)
        if self._keeps_pending:
            self._end_consumed_file()  # at the end: without space for one more file it raises
        return deleted

    def run(self) -> int:
        """Delete what the policy, the disk's state and the hour allow; return the number of files deleted."""
        if self._keeps_pending:
            deleted = self.check()
            self._warn(self.used_percent())
            return deleted
        config, used = self._config, self.used_percent()
        self._warn(used)
        is_forced = used > config.disk_space_clean_forcibly_ratio and config.clean_file_forcibly_enable
        if not (is_forced or used > config.disk_max_used_space_ratio or self.is_hour()):
            return 0
        selected = self._old_files() if is_forced else self._expired_files()
        return self._delete(selected[: config.delete_file_batch_max], self._housekeeper.thread.pause)

    # Disk and clock

    def used_percent(self) -> int:
        """Return how full the disks are, in percent rounded up.

        Of several log folders the emptiest file system counts; the file system of the queues counts as well.
        """
        logs = [self._percent(folder) for folder in self._log.queue.paths.folders]
        return max(min(logs), self._percent(self._parts.queues.folder))

    def _percent(self, folder: str) -> int:
        if self._parts.disk.stat(folder) is None:
            return 0
        space = self._parts.disk.space(folder)
        return -(-100 * (space.total_bytes - space.free_bytes) // space.total_bytes) if space.total_bytes else 0

    def _warn(self, used: int) -> None:
        """Refuse puts on a disk that is nearly full."""
        limit = self._config.disk_space_warning_ratio
        if used > limit:
            if not self._flags.has(Flag.DISK_FULL):
                LOG.error("the disk is %d %% full: puts are refused above %d %%", used, limit)
            self._flags.set(Flag.DISK_FULL, f"the disk is {used} % full")
        elif self._flags.has(Flag.DISK_FULL):
            LOG.warning("the disk is %d %% full: puts are accepted again", used)
            self._flags.clear(Flag.DISK_FULL)

    def is_hour(self) -> bool:
        """Return whether the local hour is one of `delete_when`, a list separated by semicolons."""
        hour = datetime.fromtimestamp(self._parts.now_ms() / 1000).hour
        hours = [part.strip() for part in self._config.delete_when.split(";")]
        return any(part.isdecimal() and int(part) == hour for part in hours)

    # Which files may be deleted

    def _settled(self) -> int:
        """Return the physical offset before which everything is dispatched and on the disk."""
        return min(self._parts.dispatcher.position, self._parts.flusher.flushed_offset)

    def _old_files(self) -> list[MappedFile]:
        """Return the files before the last one that are dispatched and flushed."""
        settled = self._settled()
        return list(takewhile(lambda file: file.end_offset <= settled, self._log.queue.files[:-1]))

    def _expired_files(self) -> list[MappedFile]:
        """Return the oldest files that were not changed for the reserved time."""
        return list(takewhile(self._is_expired, self._old_files()))

    def _excess_files(self) -> list[MappedFile]:
        """Return the oldest files without which one more file fits the maximum size."""
        if not self._size_max:
            return []
        count = len(self._log.queue.files) + 1 - self._size_max // self._log.file_size_bytes
        return self._old_files()[: max(0, count)]

    def _consumed(self, files: list[MappedFile]) -> list[MappedFile]:
        """Return the oldest of some files in which nothing is pending."""
        if not files:
            return []
        with self._housekeeper.guard:
            needed = self._pending.first_offset(files[0].end_offset)
        return list(takewhile(lambda file: file.end_offset <= needed, files))

    def _end_consumed_file(self) -> None:
        """End the last file before it is full if its first `FREED_MIN` bytes, and all before them, are acknowledged."""
        files = self._log.queue.files
        goal = files[-1].start_offset + FREED_MIN if files else 0
        if not files or self._settled() < goal or self._config.broker_role is Role.SLAVE:
            return  # a slave has its master's files
        with self._housekeeper.guard:
            if self._pending.first_offset(goal) >= goal:
                self._log.end_file()

    def _is_expired(self, file: MappedFile) -> bool:
        changed_ms = self._changed_ms(file)
        reserved_ms = self._config.file_reserved_time_hours * HOUR_MS
        return changed_ms is not None and self._parts.now_ms() - changed_ms >= reserved_ms

    def _changed_ms(self, file: MappedFile) -> int | None:
        """Return when a file before the last one was changed last; None if that is unknown."""
        if self._clock is None:
            entry = self._parts.disk.stat(file.path)
            return entry.modified_ms if entry is not None else None
        following = self._log.message_at(file.end_offset)  # file times follow another clock; records follow this one
        return following.store_timestamp_ms if following is not None else None

    # Deleting

    def delete_expired(self) -> int:
        """Delete expired files at any hour, as many as twenty rounds would; return the number deleted.

        Under "consumed" nothing that is pending is deleted.
        """
        expired = self._expired_files()
        selected = self._consumed(expired) if self._keeps_pending else expired
        return self._delete(selected[: MANUAL_ROUNDS * self._config.delete_file_batch_max])

    def delete_before(self, physical_offset: int) -> int:
        """Delete files of any age that end at or before an offset, pending or not; return the number deleted."""
        return self._delete([file for file in self._old_files() if file.end_offset <= physical_offset])

    def _delete(self, files: list[MappedFile], pause: Callable[[float], object] = lambda _seconds: None) -> int:
        """Delete files one by one, oldest first, then the queue and index files that only point at them."""
        deleted = 0
        with self._housekeeper.guard:
            if files:  # without records, only the units tell a queue its next offset
                self._housekeeper.flush_queues()
                if self._keeps_pending:
                    self._save_progress()
            for file in files:
                if self._log.min_offset != file.start_offset:
                    break  # deleted in the meantime
                if deleted:
                    pause(PAUSE_S)
                self._warn_of_loss(file)
                deleted += self._log.queue.delete_first(1)
            if deleted:
                LOG.info("%d log files deleted; the log begins at %d", deleted, self._log.min_offset)
                self.follow_log()
        return deleted

    def _warn_of_loss(self, file: MappedFile) -> None:
        """Log what groups have not acknowledged of a file that is deleted now."""
        for topic, group, messages in self._pending.unacknowledged(file.start_offset, file.end_offset):
            LOG.warning(
                "%s: %d messages of topic %r deleted that group %r had not acknowledged", file.path, messages, topic, group
            )

    def follow_log(self) -> None:
        """Delete queue and index files whose records left the log, and correct the queues' minimum offsets."""
        low = self._parts.low_offset
        self._parts.queues.delete_expired(low)
        self._parts.derived.delete_expired(low)
        if self._parts.index is not None:
            self._parts.index.delete_expired(low)
