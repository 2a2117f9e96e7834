"""What both versions of a queue's index share: its bounds, reads of a segment, and what follows from a failed sync."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]  # noqa: F401
from storageio import Disk, DiskError, Mode, StoreError, StoreReadOnly
from storebytes.finding import Finding

from ..format.entry_cy import IndexEntry
from ..format.layout import QUEUE_NAME_FILE
from ..settings import IndexSettings

_LOG = logging.getLogger("brokerstore")
_SYNC_FAILED_NAME = "sync_failed"  # an empty file: a sync failed, so the next opening rewrites what it finds


class QueueIndexBase:
    """The index of one queue.  Not thread-safe: the queue that owns it holds a lock.

    A segment has `unacked`, the `publishes` and `acks` that its file lacks, `has_file`, and `is_unread`: `unacked` comes from a
    clean stop, and the first read checks it.
    """

    __slots__ = (
        "_ending", "_failed", "_held_bytes", "_per_segment", "_rewrites", "_segments", "before_flush", "disk", "folder",
        "miscounted", "next_seq_id", "problems", "read_count", "settings",
    )  # fmt: skip

    def __init__(self, disk: Disk, folder: str, settings: IndexSettings, per_segment: int, ending: str) -> None:
        """`folder` is the queue's folder; the first entry creates it.  `ending` is that of the segments' files."""
        self.disk = disk
        self.folder = folder
        self.settings = settings
        self._per_segment = per_segment
        self._ending = ending
        self.before_flush: Callable[[], None] | None = None  # syncs the messages that entries refer to
        self.next_seq_id = 0
        self.read_count = 0  # segment files read
        self.miscounted = 0  # entries found less entries counted by the last clean stop; the caller of `read` resets it
        self.problems: list[Finding] = []  # of segments that differ from the counts of the last clean stop
        self._segments: dict[int, Any] = {}
        self._held_bytes = 0  # of embedded messages in memory
        self._failed: DiskError | None = None
        self._rewrites = False  # a sync failed earlier: what the system shows may not be on disk

    # --- failures

    def _fail(self, error: DiskError) -> None:
        """Refuse further changes.  After a failed sync leave a mark: the next opening rewrites what it finds."""
        self._failed = error
        if error.operation.startswith("sync"):
            with contextlib.suppress(StoreError):
                self.disk.open(f"{self.folder}/{_SYNC_FAILED_NAME}", Mode.CREATE).close()

    def _check_usable(self) -> None:
        """Raise `StoreReadOnly` after a failed write or sync, since the state on disk is unknown."""
        if self._failed is not None:
            raise StoreReadOnly(f"{self.folder}: only readable after: {self._failed}") from self._failed

    def _find_failed_sync(self) -> None:
        self._rewrites = self.disk.stat(f"{self.folder}/{_SYNC_FAILED_NAME}") is not None

    def _forget_failed_sync(self) -> None:
        """Delete the mark: everything was written again."""
        if self._rewrites:
            self._rewrites = False
            self.disk.delete(f"{self.folder}/{_SYNC_FAILED_NAME}")

    def _put(self, path: str, offset: int, data: bytes) -> None:
        with contextlib.closing(self.disk.open(path, Mode.CREATE)) as file:
            file.write(offset, data)
            file.sync()

    # --- reading

    def segment_end(self, seq_id: int) -> int:
        """Return the first sequence number of the next segment."""
        return seq_id - seq_id % self._per_segment + self._per_segment

    def read(self, start: int, stop: int) -> list[IndexEntry]:
        """Return the unacknowledged entries of start..stop, a range within one segment, by sequence number."""
        number = start // self._per_segment
        first = number * self._per_segment
        assert stop <= first + self._per_segment, "the range must lie within one segment"
        if number not in self._segments:
            return []
        found = self._read_file(number)
        for relative in self._segments[number].acks:
            found.pop(relative, None)
        found |= self._published(number)
        low, high = start - first, stop - first
        return [found[relative] for relative in sorted(found) if low <= relative < high]

    def _read_file(self, number: int) -> dict[int, IndexEntry]:
        """Return the unacknowledged entries of the files, by relative number."""
        segment = self._segments[number]
        if not segment.has_file:
            return {}
        self.read_count += 1
        problems: list[Finding] = []
        found = self._parse(number, problems)
        expected = segment.unacked
        if segment.is_unread:
            segment.is_unread = False
            if problems or len(found) != expected:
                found = self._reloaded(number, found)
                self._report_count(number, expected, len(found))
        return found

    def _report_count(self, number: int, expected: int, count: int) -> None:
        path = f"{self.folder}/{number}.{self._ending}"
        self.miscounted += count - expected
        self.problems.append(Finding(path, 0, "bad_recovery_terms", f"{expected} entries", str(count)))
        _LOG.warning("%s: found %d entries; the last stop counted %d", path, count, expected)

    def _parse(self, number: int, problems: list[Finding]) -> dict[int, IndexEntry]:
        raise NotImplementedError

    def _reloaded(self, number: int, found: dict[int, IndexEntry]) -> dict[int, IndexEntry]:
        """Count again a segment that has others than the last stop counted; return its entries."""
        raise NotImplementedError

    def _published(self, number: int) -> dict[int, IndexEntry]:
        """Return the entries that the file lacks."""
        raise NotImplementedError

    def bounds(self) -> tuple[int, int]:
        """Return the first sequence number of the oldest segment with entries, and the next sequence number."""
        numbers = [number for number, segment in self._segments.items() if segment.unacked]
        return min(numbers) * self._per_segment if numbers else self.next_seq_id, self.next_seq_id

    @property
    def unacked(self) -> int:
        """The number of unacknowledged entries."""
        return sum(segment.unacked for segment in self._segments.values())

    def unacked_by_segment(self) -> dict[int, int]:
        """Return the numbers of unacknowledged entries by segment, without zeros."""
        return {number: segment.unacked for number, segment in self._segments.items() if segment.unacked}

    # --- the end

    def abandon(self) -> None:
        """Close the files without writing anything, as a dying process does."""

    def delete(self) -> None:
        """Delete the queue's folder durably.

        The messages go first: `N.qs` without its index is damage.  The name file goes last: a crash must not leave messages of
        a queue without a name.
        """
        self.abandon()
        disk, folder = self.disk, self.folder
        if disk.stat(folder) is None:
            return
        names = [entry.name for entry in disk.list(folder)]
        stores = [name for name in names if name.endswith(".qs")]
        for name in stores:
            disk.delete(f"{folder}/{name}")
        if stores:
            disk.sync_folder(folder)
        for name in names:
            if name not in (*stores, QUEUE_NAME_FILE):
                disk.delete(f"{folder}/{name}")
        disk.sync_folder(folder)
        if QUEUE_NAME_FILE in names:
            disk.delete(f"{folder}/{QUEUE_NAME_FILE}")
        disk.delete_folder(folder)
        disk.sync_folder(folder.rpartition("/")[0] or ".")
