"""The housekeeper: flushes queues and index, writes the checkpoint, prepares log files, runs retention.  Owns one thread.

The checkpoint covers only what is on the disk.  The log's time is that of the flusher's last complete sync, the queues' time
what was dispatched before a complete flush of the queues began, the index's time that of files that are full and synced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from storageio import DiskError, DiskFull, StoreError
from storageio.background import BackgroundThread

from ..checkpoint import is_time
from ..index_hint import hint_of, write_hint
from .running_flags import Flag

if TYPE_CHECKING:
    from ..parts import StoreParts

LOG = logging.getLogger(f"brokerstore.{__name__}")
SHARE = 20  # a complete flush takes at most 1/SHARE of the time
TIMED_RETRY_S = 0.2
PREPARE_AT = 0.75  # share of a file that is written


def every(interval_ms: int, job: Callable[[], object]) -> Callable[[], None]:
    """Return a job that runs at most once in `interval_ms`."""
    last = time.monotonic()

    def run() -> None:
        nonlocal last
        if time.monotonic() - last >= interval_ms / 1000:
            last = time.monotonic()
            job()

    return run


class Housekeeper:
    """Runs everything that may wait a second."""

    def __init__(
        self, parts: StoreParts, jobs: list[Callable[[], object]], timed_job: Callable[[], float] | None
    ) -> None:  # fmt: skip
        """Create it; nothing runs before its `thread` is started.

        `jobs` are called once per round.  `timed_job` does what is due and returns the seconds until the next.
        """
        self._parts = parts
        self._log = parts.log
        self.jobs = jobs
        self._timed_job = timed_job
        self._last_thorough = time.monotonic()
        self._pause_s = 0.0  # grows with the duration of a flush: thousands of dirty queues take long
        self._flushed_to = 0
        self.guard = threading.RLock()  # held while queue and index files behind the dispatcher are changed or synced
        self._hinted_to = -1
        self.failure: DiskError | None = None  # of a sync: what is on the disk is unknown from then on
        self._interval_s = parts.config.flush_interval_consume_queue_ms / 1000
        self._last_round = time.monotonic()
        first_pause_s = self._interval_s if timed_job is None else 0.0
        self.thread = BackgroundThread("brokerstore-housekeeper", self._step, first_pause_s)

    def _step(self) -> float:
        """Run the jobs of a round when the interval is over, and the timed job; return the seconds until the next step."""
        if time.monotonic() - self._last_round >= self._interval_s:
            self._last_round = time.monotonic()
            for job in (self.prepare_next, self.flush_derived, *self.jobs):
                self._try(job)
        pause_s = self._last_round + self._interval_s - time.monotonic()
        return pause_s if self._timed_job is None else min(pause_s, self._timed(self._timed_job))

    def _timed(self, job: Callable[[], float]) -> float:
        """Run the timed job and return when to run it next; a failed one runs again soon."""
        due_s = [TIMED_RETRY_S]
        self._try(lambda: due_s.append(job()))
        return due_s[-1]

    def _try(self, job: Callable[[], object]) -> None:
        """Run one job; its failure does not stop the others."""
        try:
            with self.guard:
                job()
        except DiskFull as error:
            LOG.warning("the disk is full: %s", error)
        except DiskError as error:
            LOG.error("%s", error)
            if error.operation.startswith("sync"):
                self._parts.flags.set(Flag.NOT_WRITEABLE, str(error))
        except StoreError as error:
            LOG.error("%s", error)

    def prepare_next(self) -> None:
        """Create the next log file while the current one still has room."""
        appender = self._log.appender
        if appender.position > PREPARE_AT * self._log.file_size_bytes and self._parts.flags.is_writeable:
            self._log.queue.prepare_next()

    def flush_derived(self, *, thorough: bool = False) -> None:
        """Flush queues by least pages (with `thorough` all of them) and full index files, then write the checkpoint.

        A failed sync is final: every later call raises the same error.  A second sync could succeed without the pages that
        the kernel dropped, and the checkpoint would cover them.
        """
        self._final(lambda: self._flush_derived(thorough))

    def flush_queues(self) -> None:
        """Flush all queues now; failures are as final as those of `flush_derived`."""
        self._final(self._flush_queues)

    def _flush_queues(self) -> None:
        self._parts.derived.flush()
        self._parts.queues.flush(0)

    def _final(self, step: Callable[[], object]) -> None:
        failed = self._parts.dispatcher.failure
        if self.failure is None and isinstance(failed, DiskError):
            self.failure = failed
        if self.failure is not None:
            raise self.failure
        try:
            step()
        except DiskError as error:
            if error.operation.startswith("sync"):
                self.failure = error
                self._parts.mark_sync_failure()
            raise

    def _flush_derived(self, thorough: bool) -> None:
        interval_s = self._parts.config.flush_consume_queue_thorough_interval_ms / 1000
        thorough = thorough or time.monotonic() - self._last_thorough >= max(interval_s, self._pause_s)
        dispatcher = self._parts.dispatcher
        reached = dispatcher.reached  # read before the queues are synced
        stamp, position = dispatcher.last_store_timestamp_ms, dispatcher.position
        if thorough:
            began = time.monotonic()
            self._flush_queues()
        elif position != self._flushed_to:
            self._parts.queues.flush(self._parts.config.flush_consume_queue_least_pages)
        self._flushed_to = position
        index = self._parts.index
        index_ms = index.sync_full() if index is not None else 0
        if thorough and index is not None and position != self._hinted_to:
            hint = hint_of(self._log, index, *reached)
            index_ms = max(index_ms, index.sync_full())  # a file may have become full meanwhile, and the hint covers it
            if hint is not None:
                write_hint(self._log.disk, self._parts.paths.own, hint)
            self._hinted_to = position
        self._write_checkpoint(stamp if thorough else 0, index_ms, reached.last_record_offset if thorough else 0)
        if thorough:
            self._last_thorough = time.monotonic()
            self._pause_s = SHARE * (self._last_thorough - began)

    def _write_checkpoint(self, logics_ms: int, index_ms: int, last_offset: int) -> None:
        """Advance the times and write the checkpoint; nothing is written if none changed.

        `last_offset` is that of the last record with units on the disk, which only some brokers keep.
        """
        checkpoint = self._parts.checkpoint
        before = (checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms, checkpoint.index_msg_timestamp_ms)
        requested = (self._parts.flusher.flushed_timestamp_ms, logics_ms, index_ms)
        after = tuple(max(old, new) if is_time(new) else old for old, new in zip(before, requested, strict=True))
        keeps_offset = self._parts.broker_version.has_logics_offset or checkpoint.logics_physical_offset > 0
        is_later = keeps_offset and last_offset > checkpoint.logics_physical_offset
        if after != before or is_later:
            physic_ms, logics_ms, index_ms = after
            checkpoint.physic_msg_timestamp_ms = physic_ms
            checkpoint.logics_msg_timestamp_ms = logics_ms
            checkpoint.index_msg_timestamp_ms = index_ms
            if is_later:
                checkpoint.logics_physical_offset = last_offset
            checkpoint.flush()
