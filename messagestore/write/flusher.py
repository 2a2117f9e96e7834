"""The flusher: syncs the log to the disk.  Owns one thread.

Synchronous: group commit (`_group_cy`).  A put returns after the sync that covers its record.
Asynchronous: timed syncs of a minimum number of pages, and of everything from time to time.

A failed sync is final.  The kernel may have dropped the pages, so a second sync proves nothing: the waiting puts fail, the
store becomes read-only, and only the next open, which checks what is on the disk, makes it writable again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from commitlog import CommitLog, PutResult
from storageio import DiskError, FlushTimeout
from storageio.background import Wakeup

from ..config import StoreConfig
from ._group_cy import GroupCommit
from .running_flags import Flag, RunningFlags

LOG = logging.getLogger(__name__)


class FlushService(GroupCommit):
    """Tracks how much of the log is on the disk, and when its newest record was stored."""

    def __init__(
        self, log: CommitLog, config: StoreConfig, flags: RunningFlags, flushed: int, *,
        on_committed: Sequence[Callable[[], None]] = (), on_flushed: Sequence[Callable[[], None]] = (),
        on_failed: Sequence[Callable[[], None]] = (),
    ) -> None:  # fmt: skip
        """Create it; nothing runs before `start`.  `on_failed` is called when a sync fails."""
        super().__init__(flushed, config.sync_flush_timeout_ms)
        self._log = log
        self._config = config
        self._flags = flags
        self.flushed_timestamp_ms = 0
        self._on_committed = on_committed
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._has_pool = log.buffers is not None
        self._waiting: list[tuple[int, Future[PutResult], PutResult]] = []
        self._waiting_guard = threading.Lock()
        self._is_abandoned = False
        self._wake = Wakeup()
        self._stop_commits = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._committer: threading.Thread | None = None

    def start(self) -> None:
        """Start the timed flushes; with a pool also the timed commits, because a commit must not wait for a sync."""
        self._thread = threading.Thread(target=self._run, name="brokerstore-flusher", daemon=True)
        self._thread.start()
        if self._has_pool and not self._config.is_sync_flush:  # else a put that waits for a sync commits
            self._committer = threading.Thread(target=self._run_commits, name="brokerstore-committer", daemon=True)
            self._committer.start()

    def stop(self) -> None:
        """Stop the threads; `flush_now` flushes the rest."""
        self._is_stopping = True
        self._wake.set()
        self._stop_commits.set()
        for thread in (self._thread, self._committer):
            if thread is not None:
                thread.join()

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
        self._wake.set()
        if self._is_abandoned:  # the store was closed in the meantime
            self.abandon()

    def _flush(self, least_pages: int) -> int:
        """Commit and sync; the caller holds the leader's lock."""
        if self.failure is not None:
            raise self.failure
        appender = self._log.appender
        with appender.lock:  # an append in progress may fail and take its store time back
            stamp, goal = appender.last_store_timestamp_ms, appender.end_offset
        if self._has_pool and least_pages == 0:
            self._guarded(lambda: self._commit(0))
        flushed = self._guarded(lambda: self._log.flush(least_pages))
        if flushed > self.flushed_offset:
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

    def _commit_due(self, last_thorough: float) -> float:
        """Commit a minimum number of pages, or everything after the thorough interval.

        Returns the time of the last thorough commit.
        """
        now = time.monotonic()
        thorough = now - last_thorough >= self._config.commit_commit_log_thorough_interval_ms / 1000
        self.commit(0 if thorough else self._config.commit_commit_log_least_pages)
        return now if thorough else last_thorough

    def _run_commits(self) -> None:
        last_thorough = time.monotonic()
        while not self._stop_commits.wait(self._config.commit_interval_commit_log_ms / 1000):
            try:
                last_thorough = self._commit_due(last_thorough)
            except DiskError:
                LOG.debug("the failure is kept and given to every put")
                return

    def _run(self) -> None:
        interval_s = self._config.flush_interval_commit_log_ms / 1000
        last_thorough = time.monotonic()
        while not self._is_stopping:
            self._wake.wait(interval_s)
            has_waiting = bool(self._waiting)
            is_due = time.monotonic() - last_thorough >= self._config.flush_commit_log_thorough_interval_ms / 1000
            try:
                if self.failure is None and self._log.written_offset > self.flushed_offset:
                    thorough = is_due or has_waiting or self._config.is_sync_flush
                    self.flush_now(0 if thorough else self._config.flush_commit_log_least_pages)
                    last_thorough = time.monotonic() if thorough else last_thorough
            except DiskError:
                LOG.debug("the failure is kept and given to every waiting put")
            self._resolve()

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
