"""The dispatcher: follows the log and builds consume queues and the index.  Owns one thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from commitlog import CommitLog
from storageio import DiskError, StoreError
from storageio.background import BackgroundThread

from ..checkpoint import is_time
from ..deleted_topics import DeletedTopics
from ..derive.queues import StoreSink
from ..derive.walk import Derivation, advance
from ..index_hint import UNKNOWN
from .durations import Durations
from .progress import Progress
from .running_flags import Flag, RunningFlags

LOG = logging.getLogger(f"brokerstore.{__name__}")
POLL_S = 0.004  # while records arrive
IDLE_S = 0.05  # when none arrived for a while
BUSY_ROUNDS = 50
RETRY_S = 0.2  # between attempts on a full disk
NEVER = 1 << 62


class DispatchSnapshot(NamedTuple):
    """How far the dispatcher was at one moment, to be read by other threads."""

    last_record_offset: int  # the newest dispatched record; -1 for none
    next_total: int  # sum of the queues' next offsets (`ConsumeQueues.next_total`), or `UNKNOWN`


class DispatchService:
    """Dispatches records from `position` up to `limit()`, in batches of megabytes with the GIL released.

    A full disk loses nothing: the records stay in the log, the running flags refuse puts, and the same batch is tried again
    until there is space.
    """

    def __init__(
        self,
        log: CommitLog,
        sink: StoreSink,
        flags: RunningFlags,
        limit: Callable[[], int],
        delays_ms: list[int],
        position: int,
        last_record_offset: int = -1,
        *,
        is_ignored: Callable[[str], bool] = lambda _topic: False,
        deleted: DeletedTopics | None = None,
        on_progress: Sequence[Callable[[], None]] = (),
        on_failed: Sequence[Callable[[], None]] = (),
        is_awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create it; nothing runs before its `thread` is started.

        `is_ignored` returns whether a topic enters no queue; of `deleted` topics old messages enter none.
        `on_progress` is called after each batch.  While `is_awaited` returns True, each put wakes the thread.
        """
        self._log = log
        self._sink = sink
        self._flags = flags
        self._limit = limit
        self._derivation = Derivation(sink, delays_ms, is_ignored)
        self._derivation.deleted = deleted
        self._gate = flags.gate
        self.position = position
        self.last_record_offset = last_record_offset
        self.last_store_timestamp_ms = 0
        self.reached = DispatchSnapshot(last_record_offset, UNKNOWN)
        self.on_progress = list(on_progress)
        self._is_awaited = is_awaited
        self._on_failed = on_failed
        self.durations = Durations()  # of batches
        self.failure: StoreError | None = None
        self._round = threading.Lock()
        self._progress = Progress()
        self._quiet_rounds = 0
        self.thread = BackgroundThread("brokerstore-dispatcher", self._step)  # its stop does not wait for a full dispatch
        self.wake = self.thread.wake

    def report_reached(self) -> None:
        """Set `reached`; call it only between two batches."""
        total = self._sink.queues.next_total
        self.reached = DispatchSnapshot(self.last_record_offset, UNKNOWN if total is None else total)

    def nudge(self) -> None:
        """Make the thread dispatch soon.  A busy dispatcher polls every few milliseconds anyway."""
        if self.is_idle:
            self.wake()

    def expect(self) -> None:
        """Let the next put wake the thread: call it before waiting for a message."""
        self._gate.set_idle(True)
        if self.position < self._limit():
            self.wake()

    @property
    def position(self) -> int:
        """The physical offset before which everything is dispatched."""
        return int(self._gate.dispatched)

    @position.setter
    def position(self, offset: int) -> None:
        """Set the position; only between two batches."""
        self._gate.dispatched = offset

    @property
    def is_idle(self) -> bool:
        """Whether the thread sleeps so long that a put has to wake it."""
        return bool(self._gate.is_idle)

    def reads_from(self) -> int:
        """Return the offset that the thread reads next, or `NEVER` if it is stuck or was not started."""
        return self.position if self.thread.is_started and not self._is_stuck() else NEVER

    @property
    def behind_bytes(self) -> int:
        """Number of bytes of the log that are not dispatched yet."""
        return max(0, self._log.written_offset - self.position)

    def wait_for(self, offset: int, timeout_s: float | None = None) -> bool:
        """Wait until everything before `offset` is dispatched; return False after the timeout or if it cannot be."""
        if self.position >= offset:
            return True
        if not self.thread.is_started:  # a store without threads: the caller does the work
            while self.position < offset and self._round_safely(1) == 0:
                continue
            return self.position >= offset
        self.wake()
        is_done = self._progress.wait_until(lambda: self.position >= offset or self._is_stuck(), timeout_s)
        return is_done and self.position >= offset

    def _is_stuck(self) -> bool:
        return self.thread.is_stopping or self.failure is not None or self._flags.has(Flag.LOGIC_DISK_FULL)

    def forget_ignored(self) -> None:
        """Ask `is_ignored` again for every topic, because an ignored one was created again."""
        with self._round:
            self._derivation.kernel.forget_ignored()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Dispatch nothing during a `with` block in which queues are deleted; then look at every topic again."""
        with self._round:
            try:
                yield
            finally:
                self._derivation.forget_queues()

    def begin_again(self, position: int) -> None:
        """Go back to an earlier position and accept gaps.  Existing units are skipped."""
        self.position = position
        self._sink.refuses_gaps = False
        self._derivation.keys_done = 0

    def catch_up(self, *, refuses_gaps: bool = False) -> None:
        """Dispatch up to the limit on the caller's thread, for recovery and for a clean stop.

        With `refuses_gaps` raise `QueueGap` if a queue lacks units of earlier records.
        """
        self._sink.refuses_gaps = refuses_gaps
        while self.run_once():
            pass
        self._sink.refuses_gaps = False

    def _step(self) -> float:
        self._gate.is_idle = False
        pause_s = self._round_safely(self._quiet_rounds + 1)
        self._quiet_rounds = self._quiet_rounds + 1 if pause_s else 0
        if not pause_s and self.position >= self._limit():
            pause_s = POLL_S
        self._gate.set_idle(pause_s == IDLE_S or self._is_awaited())
        if self._gate.is_idle and pause_s == POLL_S and self.position < self._limit():  # put before the flag was set
            return 0.0
        return pause_s

    def _round_safely(self, quiet_rounds: int) -> float:
        """Run one round and return the pause after it in seconds.

        `quiet_rounds` is the number of successive rounds without work, including this one.
        """
        try:
            if self.run_once():
                return 0.0
            return POLL_S if quiet_rounds < BUSY_ROUNDS else IDLE_S
        except DiskError as error:
            if error.operation.startswith("sync"):  # final: the data may be lost, and a second try proves nothing
                for call in self._on_failed:
                    call()
                self._fail(error)
                return IDLE_S
            self._pause_for(error)
            return RETRY_S
        except StoreError as error:
            self._fail(error)
            return IDLE_S

    def _pause_for(self, error: DiskError) -> None:
        """Refuse puts until the same batch succeeds."""
        if not self._flags.has(Flag.LOGIC_DISK_FULL):
            LOG.error("dispatch waits: %s", error)
        self._flags.set(Flag.LOGIC_DISK_FULL, str(error))
        self._progress.notify()

    def _fail(self, error: StoreError) -> None:
        """Stop permanently, because nothing behind damage in the log can be dispatched."""
        LOG.error("dispatch stopped at %d: %s", self.position, error)
        self.failure = error
        self._flags.set(Flag.WRITE_LOGICS_QUEUE_ERROR, str(error))
        self._progress.notify()

    def run_once(self) -> bool:
        """Dispatch one batch; return whether there was anything to dispatch."""
        with self._round:
            limit = self._limit()
            if self.position >= limit or self.failure is not None:
                return False
            with self.durations.timing():
                self._run_batch(limit)
            self.report_reached()
            if self._flags.has(Flag.LOGIC_DISK_FULL):
                self._flags.clear(Flag.LOGIC_DISK_FULL)
            self._progress.notify()
        for call in self.on_progress:
            call()
        return True

    def _run_batch(self, limit: int) -> None:
        """Dispatch a part of one file and advance the position."""
        self.position = advance(self._derivation, self._log, self.position, limit)
        kernel = self._derivation.kernel
        if is_time(kernel.last_store_timestamp_ms):
            self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, kernel.last_store_timestamp_ms)
        self.last_record_offset = max(self.last_record_offset, kernel.last_offset)
