"""The engine: one store opened for reading or writing, its services, and the order in which they start and stop.

Opening for writing takes the lock, loads the parts, recovers, syncs the abort file, and only then starts the threads and
accepts puts.  Closing is the reverse.  The abort file is removed last, and only if everything is dispatched and on the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from consumequeue import AllQueues
from storageio import Disk, DiskError, FolderLock, StoreError, StoreLocked, process_id

from .broker.services.delays import Delays
from .broker.services.internal_puts import InternalPuts
from .broker.services.pending import PendingMessages
from .broker.services.retries import Retries
from .broker.services.routing import Routing
from .broker.services.timers import Timers
from .broker.services.transactions import Transactions
from .clean_stop import CleanStop, write_clean
from .config import Role, StoreConfig
from .derive.queues import StoreSink
from .excluded_topics import excluded_topics
from .index_hint import hint_of, write_hint
from .parts import StoreParts
from .read.beside_writer import beside_writer
from .read.reader_view import ReaderView
from .read.undispatched import Undispatched
from .read.unindexed import Unindexed
from .recovery.log_end import LogEnd
from .recovery.opening import Opening, prepare
from .recovery.queue_list import write_queue_list
from .write.admission import Admission
from .write.dispatcher import DispatchService
from .write.flusher import FlushService
from .write.housekeeper import Housekeeper, every
from .write.pool import PooledFiles
from .write.retention import Retention
from .write.running_flags import Flag

LOG = logging.getLogger(f"brokerstore.{__name__}")
STOP_WAIT_S = 60.0
EXPIRY_POLL_S = 1.0  # the longest time that a delivery outlives its visibility time while nobody polls


class Engine(StoreParts):
    """An open store without the public methods.

    Threads refer to it instead of the store, so that a store without references can be closed at exit.
    """

    def __init__(self, root: str, config: StoreConfig, disk: Disk, clock: Callable[[], int] | None, *, writable: bool) -> None:
        """Load the store; with `writable` recover it and start the threads."""
        super().__init__(root, config, disk, clock, writable=writable)
        self.clamped_offsets: list[str] = []  # a line for each offset that recovery clamped
        self.is_clean_stop = False
        self.opening_s = 0.0  # of recovery, mostly
        self._unclean: StoreError | None = None
        self._close_guard = threading.Lock()
        self._lock: FolderLock | None = None
        if writable:
            disk.make_folder(root)
            self._lock = disk.lock(self.paths.lock)
        self.unindexed = Unindexed(self)
        self.undispatched = Undispatched(self)
        try:
            if writable:
                began = time.perf_counter()
                self.load()
                self._recover()
                self._start()
                self.opening_s = time.perf_counter() - began
            else:
                beside_writer(disk, root, self.load)
                self.view = ReaderView(disk, self.log, self.queues, self.index, self.undispatched.warn, self.key_filters)
                self.lookup = AllQueues(self.queues, self.derived.batch, lambda: self.log.min_offset, self.view)
        except BaseException:
            self._release()
            raise

    # Opening

    def _recover(self) -> None:
        """Bring queues and index up to the end of the log, and create the services."""
        prepare(self)
        opening = Opening(self, self.unindexed, self._make_write_services)
        plan = opening.plan()
        plan.apply()
        for step, outcome in zip(plan.steps, plan.outcomes, strict=True):
            LOG.debug("%s: %s %s", self.paths.root, step.text, outcome)
        self.clamped_offsets = opening.clamped
        self._make_broker_services()
        self._make_housekeeper()
        was_clean = opening.found.was_clean
        if not was_clean or self.delays.may_deliver_twice:
            self.delays.resume()
        if self._delivers:
            self.timers.resume(was_clean=was_clean)

    def _make_write_services(self, start: int, end: LogEnd) -> None:
        is_slave = self.config.broker_role is Role.SLAVE
        is_ignored = excluded_topics(self.disk, self.paths.root, self.topics, is_slave=is_slave)
        on_failed = (self.mark_sync_failure,)
        self.dispatcher = DispatchService(
            self.log, StoreSink(self.queues, self.index, self.derived), self.flags, self.dispatch_limit, self.levels.current_ms,
            start, end.last_offset, is_ignored=is_ignored, deleted=self.deleted, on_progress=(self.progress.notify,),
            on_failed=on_failed, is_awaited=lambda: self.progress.is_awaited,
        )  # fmt: skip
        self.progress.before_wait = self.dispatcher.expect
        is_sync = self.config.is_sync_flush  # if so, nothing is readable before the sync
        self.flusher = FlushService(
            self.log, self.config, self.flags, self.log.flushed_offset,
            on_committed=() if is_sync else (self.dispatcher.wake,),
            on_flushed=(self.dispatcher.nudge, self.progress.notify) if is_sync else (self.progress.notify,),
            on_failed=on_failed,
        )  # fmt: skip

    def _make_broker_services(self) -> None:
        self.admission = Admission(self)
        self.routing = Routing(self, self.admission)
        puts = self.internal_puts = InternalPuts(self, self.routing)
        self.delays = Delays(self, self.admission, puts)
        self.timers = Timers(self, self.admission, puts)
        self.transactions = Transactions(self, self.admission, puts)
        self.retries = Retries(self.disk, self.paths.config, self.admission, puts)

    def _make_housekeeper(self) -> None:
        config = self.config
        jobs: list[Callable[[], object]] = [
            self._keep_lock,
            *([self.key_filters.step] if self.key_filters is not None else []),
            lambda: self.retention.run_due(),
            every(config.flush_consumer_offset_interval_ms, self.persist_offsets),
            every(config.flush_delay_offset_interval_ms, self.delays.persist),
            every(config.flush_delay_offset_interval_ms, self.timers.persist),
        ]
        self.housekeeper = Housekeeper(self, jobs, self.deliver_due if self._delivers else self.end_expired)
        pending = PendingMessages(self, self.delays, self.timers, self.transactions)
        self.retention = Retention(self, self.housekeeper, pending, self._save_progress, self._clock)

    def _start(self) -> None:
        """Create the abort file, then start the threads; the file shows later openers that the store was in use."""
        self.abort_file.create(process_id())
        self.retention.start()
        self._start_threads()
        self.flags.open(self.config.broker_role is not Role.SLAVE)

    def _start_threads(self) -> None:
        """Start all threads; the crash lab's engine starts none."""
        for thread in (*self.flusher.threads, self.dispatcher.thread, self.housekeeper.thread):
            thread.start()

    # Running

    def _keep_lock(self) -> None:
        """Take the lock again if other code of this process released it by closing another descriptor of the file.

        If the abort file shows that another process has opened the store in the meantime, puts are refused from then on.
        """
        if self._lock is None:
            return
        try:
            was_lost = self._lock.renew()
            if was_lost and self.abort_file.read_process_id() != process_id():
                raise StoreLocked("the lock was lost, and another process opened the store meanwhile")
        except StoreLocked as error:
            if self.flags.is_writeable:
                LOG.error("%s: %s: puts are refused", self.paths.lock, error)
            self.flags.set(Flag.NOT_WRITEABLE, f"{self.paths.lock}: {error}")
            return
        if was_lost:
            LOG.warning("%s: the lock was lost and taken again: code in this process closed the file", self.paths.lock)

    def deliver_due(self) -> float:
        """Deliver the delayed messages that are due; return the seconds until the next ones are. The housekeeper calls it."""
        return min(self.delays.deliver_due(), self.timers.deliver_due(), self.end_expired())

    def end_expired(self) -> float:
        """End the deliveries whose visibility time is over; return the seconds until the next call."""
        seen = self.sharing.changes
        pause_s = min((consumer.end_expired() for consumer in list(self.open_consumers)), default=EXPIRY_POLL_S)
        if self.sharing.changes != seen:  # others may take the queues of a consumer that hangs
            for call in self.dispatcher.on_progress:
                call()
        return pause_s

    @property
    def _delivers(self) -> bool:
        return self.config.deliver_delayed and self.config.broker_role is not Role.SLAVE

    def persist_offsets(self) -> None:
        """Write the committed offsets of consumers, and the progress of transactions."""
        self.transactions.save_progress()
        if self._consumer_offsets is not None:
            self._consumer_offsets.persist()

    def _save_progress(self) -> None:
        """Sync everything written, then write the progress of delays, timers and groups."""
        self.flusher.flush_now()
        self.delays.persist()
        self.timers.persist()
        self.persist_offsets()

    # Closing

    def close(self) -> None:
        """Flush everything and close.  If that fails, the abort file stays."""
        with self._close_guard:
            if self.is_closed:
                return
            self.flags.gate.is_closed = True
            self.flags.open(False)
        self.progress.notify()
        if not self.writable:
            self._release()
            return
        self.log.appender.close()
        self.housekeeper.thread.stop()
        try:
            self._finish()
        finally:
            for thread in (self.dispatcher.thread, *self.flusher.threads):
                thread.stop()
            self.flusher.abandon()
            self._close_offsets(is_clean=False)
            self._release()

    def _close_offsets(self, *, is_clean: bool) -> None:
        if self._consumer_offsets is not None:
            self._consumer_offsets.close(is_clean=is_clean)

    def _finish(self) -> None:
        """Flush, dispatch, flush queues and index, write the hints, and only then remove the abort file."""
        try:
            self.flusher.flush_now()
            self.dispatcher.wait_for(self.log.written_offset, STOP_WAIT_S)
            self.housekeeper.flush_derived(thorough=True)  # before the index sync, because it determines which files are full
            if self.index is not None and self.flags.is_writeable:
                self.index.sync()
            self.delays.persist()
            self.timers.persist(is_last=True)
            self.persist_offsets()
            self.log.queue.drop_prepared()
        except StoreError as error:
            LOG.error("not a clean stop: %s", error)
            self._unclean = error
            if isinstance(error, DiskError) and error.operation.startswith("sync"):
                self.mark_sync_failure()
            self.flags.set(Flag.NOT_WRITEABLE, str(error))
        if self.flags.is_writeable and self.dispatcher.behind_bytes == 0:
            self._write_hints()
            self._close_ring(is_clean=True)
            self._close_offsets(is_clean=True)
            self.abort_file.remove()
            self.is_clean_stop = True

    def check_clean_stop(self) -> None:
        """Raise the error that prevented a clean stop of a closed store."""
        if self.writable and not self.is_clean_stop:
            raise self._unclean or self.dispatcher.failure or StoreError(f"{self.paths.root}: {self.flags.reason}")

    def _close_ring(self, *, is_clean: bool) -> None:
        """Close the pool's ring once; a ring that is not empty stays for the next open."""
        ring, self.log.buffers = self.log.buffers, None
        if isinstance(ring, PooledFiles):
            ring.close(is_clean=is_clean)

    def _write_hints(self) -> None:
        """Write the hints that make the next open quick."""
        index_hint = hint_of(self.log, self.index, *self.dispatcher.reached) if self.index is not None else None
        if index_hint is not None:
            write_hint(self.disk, self.paths.own, index_hint)
        write_queue_list(self.disk, self.paths.own, self.queues)
        clean_stop = CleanStop(self.log.written_offset, self.dispatcher.last_record_offset)
        write_clean(self.disk, self.paths.root, clean_stop)

    def _release(self) -> None:
        """Close maps and descriptors, and release the lock."""
        if getattr(self, "log", None) is not None:
            self._close_ring(is_clean=False)
        if getattr(self, "timers", None) is not None:
            self.timers.close()
        key_filters = getattr(self, "key_filters", None)
        if key_filters is not None:
            key_filters.close()
        self.close_files()
        if self._lock is not None:
            self._lock.release()

    def abandon(self) -> None:
        """Give up the store in a forked child, because it belongs to the parent.  Touch no file, lock or thread."""
        self.flags.gate.is_closed = True
        self.flags.open(False)
        self._close_guard = threading.Lock()  # another thread of the parent may have held it
        self.log.appender.abandon()
