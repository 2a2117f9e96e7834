"""The flusher: syncs the log to the disk, and with a pool commits to it.

Synchronous: group commit (`_group_cy`).  A put returns after the sync that covers its record.
Asynchronous: timed syncs of a minimum number of pages, and of everything from time to time.

A failed sync is final.  The kernel may have dropped the pages, so a second sync proves nothing: the waiting puts fail, the
store becomes read-only, and only the next open, which checks what is on the disk, makes it writable again.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from commitlog import CommitLog, PutResult
from storageio import DiskError, FlushTimeout
from storageio.background import BackgroundThread, gather

from ..config import StoreConfig
from ._group_cy import GroupCommit
from .durations import Durations
from .running_flags import Flag, RunningFlags

LOG = logging.getLogger(f"brokerstore.{__name__}")
COMMIT_AGAIN_BYTES = 4 << 20  # appended during a commit: the committer does not pause, or puts would fill the ring


class FlushService(GroupCommit):
    """Tracks how much of the log is on the disk, and when its newest record was stored."""

    def __init__(
        self, log: CommitLog, config: StoreConfig, flags: RunningFlags, flushed: int, *,
        on_committed: Sequence[Callable[[], None]] = (), on_flushed: Sequence[Callable[[], None]] = (),
        on_failed: Sequence[Callable[[], None]] = (),
    ) -> None:  # fmt: skip
        """Create it; nothing runs before its `threads` are started.  `on_failed` is called when a sync fails."""
        super().__init__(flushed, config.sync_flush_timeout_ms)
        self._log = log
        self._config = config
        self._flags = flags
        self.flushed_timestamp_ms = 0
        self.durations = Durations()  # of syncs
        self._sync_s = 0.0  # of the last one
        self._on_committed = on_committed
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._has_pool = log.buffers is not None
        self._waiting: list[tuple[int, Future[PutResult], PutResult]] = []
        self._waiting_guard = threading.Lock()
        self._is_abandoned = False
        self._flushed_all_at = self._committed_all_at = time.monotonic()
        first_pause_s = self._flush_interval_s = config.flush_interval_commit_log_ms / 1000
        if flushed < log.written_offset:  # what a killed process left is synced immediately
            self._flushed_all_at, first_pause_s = -math.inf, 0.0
        self._commit_interval_s = config.commit_interval_commit_log_ms / 1000
        self.threads = [BackgroundThread("brokerstore-flusher", self._flush_step, first_pause_s)]
        if self._has_pool and not config.is_sync_flush:  # else a put that waits for a sync commits; a commit waits for no sync
            self.threads.append(BackgroundThread("brokerstore-committer", self._commit_step, self._commit_interval_s))

    def flush_now(self, least_pages: int = 0) -> int:
        """Sync on this thread what was written before the call; return the flushed offset.

        With `least_pages` sync only what is committed, and only if it is at least that many pages.  Raises `DiskError` if the
        sync fails, and in every later call.
        """
        with self._leader:
            return self._flush(least_pages)

    def commit(self, least_pages: int) -> None:
        """Write the pool's ring to the files; without a pool do nothing."""
        if self.failure is None:
            self._guarded(lambda: self._commit(least_pages))

    def _commit(self, least_pages: int) -> int:
        before = self._log.committed_offset
        committed = self._log.commit(least_pages)
        if committed > before:
            for call in self._on_committed:
                call()
        return committed

    def resolve_later(self, result: PutResult, future: Future[PutResult]) -> None:
        """Resolve `future` when its record is on the disk."""
        with self._waiting_guard:
            self._waiting.append((result.physical_offset + result.size_bytes, future, result))
        self.threads[0].wake()
        if self._is_abandoned:  # the store was closed in the meantime
            self.abandon()

    def _flush(self, least_pages: int) -> int:
        """Commit and sync; the caller holds the leader's lock."""
        if self.failure is not None:
            raise self.failure
        gather(self.is_gathered, self._sync_s)
        appender = self._log.appender
        with appender.lock:  # an append in progress may fail and take its store time back
            stamp, goal = appender.last_store_timestamp_ms, appender.end_offset
        if self._has_pool and least_pages == 0:
            self._guarded(lambda: self._commit(0))
        began = time.perf_counter()
        flushed = self._guarded(lambda: self._log.flush(least_pages))
        if flushed > self.flushed_offset:
            self._sync_s = time.perf_counter() - began
            self.durations.add(self._sync_s)
            self.flushed_offset = flushed
            for call in self._on_flushed:
                call()
        if flushed >= goal:
            self.flushed_timestamp_ms = max(self.flushed_timestamp_ms, stamp)
        return flushed

    def _guarded(self, step: Callable[[], int]) -> int:
        """Run a step; a `DiskError` is final, because acknowledged bytes may be lost."""
        try:
            return step()
        except DiskError as error:
            self.failure = error
            for call in self._on_failed if error.operation.startswith("sync") else ():
                call()
            self._flags.set(Flag.NOT_WRITEABLE, f"a {error.operation} failed: {error}")
            LOG.error("the store is read-only now: %s", error)
            raise

    def _commit_step(self) -> float | None:
        """Commit a minimum number of pages, or everything after the thorough interval."""
        now = time.monotonic()
        thorough = now - self._committed_all_at >= self._config.commit_commit_log_thorough_interval_ms / 1000
        try:
            self.commit(0 if thorough else self._config.commit_commit_log_least_pages)
        except DiskError:
            LOG.debug("the failure is kept and given to every put")
            return None
        self._committed_all_at = now if thorough else self._committed_all_at
        is_behind = self._log.written_offset - self._log.committed_offset > COMMIT_AGAIN_BYTES
        return 0.0 if is_behind else self._commit_interval_s

    def _flush_step(self) -> float:
        """Sync a minimum number of pages, or everything after the thorough interval or for waiting futures."""
        has_waiting = bool(self._waiting)
        is_due = time.monotonic() - self._flushed_all_at >= self._config.flush_commit_log_thorough_interval_ms / 1000
        try:
            if self.failure is None and self._log.written_offset > self.flushed_offset:
                thorough = is_due or has_waiting or self._config.is_sync_flush
                self.flush_now(0 if thorough else self._config.flush_commit_log_least_pages)
                self._flushed_all_at = time.monotonic() if thorough else self._flushed_all_at
        except DiskError:
            LOG.debug("the failure is kept and given to every waiting put")
        self._resolve()
        return self._flush_interval_s

    def _resolve(self) -> None:
        """Resolve the waiting futures whose records are on the disk."""
        with self._waiting_guard:
            flushed, failure = self.flushed_offset, self.failure
            done = [entry for entry in self._waiting if entry[0] <= flushed or failure is not None]
            self._waiting = [entry for entry in self._waiting if entry[0] > flushed and failure is None]
        for end_offset, future, result in done:
            if end_offset <= flushed:
                future.set_result(result)
            else:
                future.set_exception(failure)

    def abandon(self) -> None:
        """Fail the futures that still wait, because the store is closing."""
        self._is_abandoned = True
        with self._waiting_guard:
            left, self._waiting = self._waiting, []
        for end_offset, future, result in left:
            if end_offset <= self.flushed_offset:
                future.set_result(result)
            else:
                future.set_exception(FlushTimeout("the store was closed before a sync covered this put"))
