"""The dispatcher: follows the log and builds consume queues and the index.  Owns one thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from commitlog import CHECK_PLACE, STOPS, CommitLog, MappedFile, Stop
from commitlog.checks import BAD_MAGIC
from commitlog.cursor import is_file_end
from consumequeue import ConsumeQueues
from indexfile import IndexFiles
from storageio import DiskError, StoreCorrupt, StoreError
from storageio.background import BackgroundThread

from ..checkpoint import is_time
from ..recovery.index_hint import UNKNOWN
from ._dispatch_cy import Dispatcher
from .derived_queues import DerivedQueues
from .durations import Durations
from .progress import Progress
from .running_flags import Flag, RunningFlags

LOG = logging.getLogger(f"brokerstore.{__name__}")
POLL_S = 0.001  # while records arrive
IDLE_S = 0.05  # when none arrived for a while
BUSY_ROUNDS = 200
RETRY_S = 0.2  # between attempts on a full disk
NEVER = 1 << 62
BATCH_SIZE_BYTES = 8 << 20  # largest batch, which bounds how long a reader waits


class QueueGap(StoreError):
    """A queue lacks units before the ones that are dispatched to it."""


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
        queues: ConsumeQueues,
        index: IndexFiles | None,
        flags: RunningFlags,
        limit: Callable[[], int],
        delays_ms: list[int],
        position: int,
        last_record_offset: int = -1,
        *,
        derived: DerivedQueues | None = None,
        is_ignored: Callable[[str], bool] = lambda _topic: False,
        on_progress: Sequence[Callable[[], None]] = (),
        on_failed: Sequence[Callable[[], None]] = (),
        is_awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create it; nothing runs before its `thread` is started.

        `derived` has the queues that the kernel does not build.  `is_ignored` returns whether a topic enters no queue.
        `on_progress` is called after each batch.  While `is_awaited` returns True, each put wakes the thread.
        """
        self._log = log
        self._queues = queues
        self._index = index
        self._flags = flags
        self._limit = limit
        self._kernel = Dispatcher(delays_ms)
        self._keys_done = 0
        self._gate = flags.gate
        self.position = position
        self.last_record_offset = last_record_offset
        self.last_store_timestamp_ms = 0
        self.may_have_lmqs = False  # whether a record so far may have offsets in LMQs
        self.reached = DispatchSnapshot(last_record_offset, UNKNOWN)
        self._is_ignored = is_ignored
        self._derived = derived
        self.on_progress = list(on_progress)
        self._is_awaited = is_awaited
        self._on_failed = on_failed
        self.durations = Durations()  # of batches
        self.failure: StoreError | None = None
        self._refuses_gaps = False
        self._round = threading.Lock()
        self._progress = Progress()
        self._quiet_rounds = 0
        self.thread = BackgroundThread("brokerstore-dispatcher", self._step)  # its stop does not wait for a full dispatch
        self.wake = self.thread.wake

    def tell_reached(self) -> None:
        """Set `reached`; call it only between two batches."""
        total = self._queues.next_total
        self.reached = DispatchSnapshot(self.last_record_offset, UNKNOWN if total is None else total)

    def nudge(self) -> None:
        """Make the thread dispatch soon.  A busy dispatcher polls every millisecond anyway."""
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
            self._kernel.forget_ignored()

    def begin_again(self, position: int) -> None:
        """Go back to an earlier position and accept gaps.  Existing units are skipped."""
        self.position = position
        self._refuses_gaps = False
        self._keys_done = 0

    def catch_up(self, *, refuses_gaps: bool = False) -> None:
        """Dispatch up to the limit on the caller's thread, for recovery and for a clean stop.

        With `refuses_gaps` raise `QueueGap` if a queue lacks units of earlier records.
        """
        self._refuses_gaps = refuses_gaps
        while self.run_once():
            pass
        self._refuses_gaps = False

    def _step(self) -> float:
        self._gate.is_idle = False
        pause_s = self._round_safely(self._quiet_rounds + 1)
        self._quiet_rounds = self._quiet_rounds + 1 if pause_s else 0
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
            self.tell_reached()
            if self._flags.has(Flag.LOGIC_DISK_FULL):
                self._flags.clear(Flag.LOGIC_DISK_FULL)
            self._progress.notify()
        for call in self.on_progress:
            call()
        return True

    def _run_batch(self, limit: int) -> None:
        """Dispatch a part of one file and advance the position."""
        file = self._log.queue.find(self.position)
        if file is None:
            self._skip_gap()
            return
        start = self.position - file.start_offset
        stop = min(file.size_bytes, limit - file.start_offset)
        at, why = self._dispatch(file, start, min(stop, start + BATCH_SIZE_BYTES))
        if why == "torn" and at == start:
            at, why = self._dispatch(file, start, stop)  # one record longer than a batch
        # The log was judged when it was opened. Behind a damaged blank record RocketMQ dispatches on, so its queues have units.
        is_closed = is_file_end(why, file.size_bytes - at, any_blank=True)
        if why == STOPS[BAD_MAGIC] and at == start:
            raise self._log.problem(Stop(self.position, why, 0, 0))
        if not is_closed and at == start and why not in ("index_full", "full"):
            raise StoreCorrupt(why, file=file.path, offset=at, expected="a record to dispatch", found="damage")
        self.position = file.end_offset if is_closed else file.start_offset + at

    def _skip_gap(self) -> None:
        """Continue with the first file that is left, because those at the position were deleted."""
        self.position = max(self.position, self._log.min_offset)
        if self._log.queue.find(self.position) is None:
            raise StoreCorrupt("no log file", file="commitlog", offset=self.position, expected="a file", found="none")

    def _dispatch(self, file: MappedFile, start: int, stop: int) -> tuple[int, str]:
        """Append units to the queues and keys to the index; return where the kernel stopped in the file, and why."""
        at, why = self._gather(file, start, stop)
        for topic, queue_id, first, units in self._kernel.runs():
            queue = self._queues.get_or_add(topic, queue_id)
            if self._refuses_gaps and first > queue.max_offset:
                raise QueueGap(f"{topic}-{queue_id} ends at {queue.max_offset}, the log goes on with {first}")
            self._queues.append_run(
                queue, first, units if self._derived is None else self._derived.extended(queue, units, file)
            )
        self.may_have_lmqs = self.may_have_lmqs or self._kernel.may_have_lmqs
        if self._derived is not None:
            self._derived.dispatch(file, start, at, has_lmqs=self._kernel.may_have_lmqs)
        if is_time(self._kernel.last_store_timestamp_ms):
            self.last_store_timestamp_ms = max(self.last_store_timestamp_ms, self._kernel.last_store_timestamp_ms)
        self.last_record_offset = max(self.last_record_offset, self._kernel.last_offset)
        return at, why

    def _gather(self, file: MappedFile, start: int, stop: int) -> tuple[int, str]:
        """Run the kernel over records, in the ring if it still has them, else in the file."""
        buffer = self._index.active() if self._index is not None else None
        base, ring = file.start_offset, self._log.buffers
        held = ring.pin(base + start, stop - start) if ring is not None else None
        view, shift, end = (
            (self._log.queue.view(file), 0, stop) if held is None else (held[0], start - held[1], start + held[2])
        )
        try:
            at, why, self._keys_done = self._kernel.dispatch(
                view, start - shift, end - shift, base + shift, CHECK_PLACE, buffer, self._keys_done, self._is_ignored
            )
        finally:
            if ring is not None:
                ring.unpin()
        return at + shift, why
