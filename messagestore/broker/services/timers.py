"""Deliver messages at any time through the timer files of RocketMQ 5 (`docs/formats/rocketmq-timer.md#delivery-by-a-store`).

A message with a delivery time waits in `rmq_sys_wheel_timer`. Each gets a unit in the slot of its due second, and the slots are
delivered one after the other. A slot is delivered when its second is over, as a broker does.

Guarantees: no message is delivered before its time, and each once, even after a kill or a crash. The checkpoint is written
only after the deliveries it counts are synced. `brokerstore/timers.json` holds the end of the log at that time: records behind
it that are copies of timers were delivered already. If the checkpoint is not the one of that file, a broker went on with the
folder. After its clean stop the files are used as they are; otherwise they are made again from the log, which has every copy.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog import LogPaths, Message, StoredMessage
from commitlog.walk import LogFiles
from consumequeue import ConsumeQueue
from storageio import StoreCorrupt

from ...property_names import REAL_TOPIC, UNIQUE_KEY
from ...sidecar import read_sidecar, write_sidecar
from ...timers.layout import DELETES, DUE, LOG_FILE_SIZE, MAGIC_ROLL, PRECISION_MS, TIMER_TOPIC, TimerCheckpoint, TimerUnit
from ...timers.live import LiveTimers
from ...timers.rebuild_timers import WORK, has_timers, rebuild_timers
from ...timers.timer_log import TimerLog
from ...timers.undelivered import TimerKey, delete_keys, done_by, key_of, timer_of
from ...timers.wheel import read_timer_checkpoint
from .delay_messages import delivered_timer, rolled
from .delay_resume import is_forgotten

if TYPE_CHECKING:
    from ...parts import StoreParts
    from ...write.admission import Admission
    from .internal_puts import InternalPuts

LOG = logging.getLogger(f"brokerstore.{__name__}")
NAME = "timers.json"
AT_ONCE = 1000  # timers that get a unit, or are delivered, before other jobs get their turn
OVERDUE_MS_MAX = 3_600_000  # age of a slot for overdue timers; a broker skips those of a week
NOTHING_PENDING = (1 << 63) - 1  # a physical offset that no record has
POLL_S = 1.0  # how often new timers are looked for
SEARCHED_MAX = 256 << 20  # bytes of log behind the checkpoint, which an opening after a crash has to search


class _Sidecar(NamedTuple):
    """The end of the log when a checkpoint was written, and the checkpoint before and after that."""

    position: int
    before: TimerCheckpoint
    after: TimerCheckpoint


class Timers:
    """Delivers the timers of one open store. Only the housekeeper calls it while the store is open."""

    def __init__(self, parts: StoreParts, admission: Admission, puts: InternalPuts) -> None:
        """Create it; nothing is delivered before `resume`."""
        self._parts = parts
        self._admission = admission
        self._puts = puts
        self._files: LiveTimers | None = None
        self._position = 0  # end of the log at the last checkpoint
        self._copies: Counter[TimerKey] = Counter()  # deliveries of an earlier process that no checkpoint counts
        self._slot = -1  # due second of the slot that is being delivered
        self._units: deque[TimerUnit] = deque()  # of that slot, those that are left
        self._oldest_s = -1  # due second of a timer that a log file is kept for
        self._deleted: set[str] = set()  # timers of that slot that a message deletes

    # Opening

    def resume(self, *, was_clean: bool) -> None:
        """Read the timer files, or make them again from the log; find what was delivered after the last checkpoint."""
        parts = self._parts
        disk, root = parts.disk, parts.paths.root
        queue = self._queue()
        if queue is None and not has_timers(disk, root):
            self._files = LiveTimers(disk, root, parts.config.mapped_file_size_timer_log or LOG_FILE_SIZE, TimerCheckpoint())
            return
        sidecar = read_sidecar(disk, os.path.join(parts.paths.own, NAME), _parsed)
        check = self._checkpoint()
        is_ours = (
            sidecar is not None and check in (sidecar.before, sidecar.after) and sidecar.position <= parts.log.written_offset
        )
        is_trusted = is_ours or (was_clean and check is not None and not is_forgotten(disk, parts.paths.own))
        if is_ours:
            assert sidecar is not None
            check = sidecar.after  # synced with the files that it describes before the note was written
        if not is_trusted or not self._load(check, was_clean=was_clean, cuts=is_ours):
            LOG.warning("%s: the timer files are made from the log", root)
            self._rebuild(queue)
        elif is_ours:
            assert sidecar is not None
            self._position = sidecar.position
            self._search(sidecar.position)

    def _checkpoint(self) -> TimerCheckpoint | None:
        """Return the checkpoint; None without one, or if a rebuild of the timer files was interrupted."""
        paths = self._parts.paths
        if self._parts.disk.stat(os.path.join(paths.own, WORK)) is not None:
            return None
        try:
            return read_timer_checkpoint(self._parts.disk, paths.root)
        except StoreCorrupt as error:
            LOG.warning("%s", error)
            return None

    def _load(self, check: TimerCheckpoint | None, *, was_clean: bool, cuts: bool) -> bool:
        assert check is not None, "a checkpoint that is trusted"
        disk, root = self._parts.disk, self._parts.paths.root
        size = TimerLog(disk, root).file_size_bytes or self._parts.config.mapped_file_size_timer_log or LOG_FILE_SIZE
        self._files = LiveTimers(disk, root, size, check)
        self._position = self._parts.log.written_offset
        if not self._files.load(trusts_wheel=was_clean, cuts=cuts):
            return False
        last = self._files.last_unit() if not cuts else None  # a broker continues behind its message
        message = self._message(last) if last is not None else None
        if message is not None:
            self._files.queue_offset = max(self._files.queue_offset, message.queue_offset + 1)
        return True

    def _rebuild(self, queue: ConsumeQueue | None) -> None:
        paths, disk = self._parts.paths, self._parts.disk
        files = LogFiles(disk, LogPaths.parse(disk, paths.commit_log).folders)
        if self._files is not None:
            self._files.close()
        size = self._parts.config.mapped_file_size_timer_log
        rebuild_timers(disk, paths, files, queue, keeps=True, log_file_size=size, now_ms=self._parts.now_ms())
        if not self._load(self._checkpoint(), was_clean=True, cuts=False):
            raise StoreCorrupt("timer files", file=paths.root, offset=0, expected="the new ones", found="others")
        assert self._files is not None
        self._files.is_dirty = True

    def _search(self, position: int) -> None:
        """Find copies of timers behind a position, if any timer is left that one can belong to."""
        files, queue = self._files, self._queue()
        assert files is not None, "loaded"
        if files.next_due_s is None and (queue is None or files.queue_offset >= queue.max_offset):
            return
        for message in self._parts.log.messages(position, self._parts.log.written_offset):
            key = done_by(message)
            if key is not None:
                self._copies[key] += 1

    # Running

    def deliver_due(self) -> float:
        """Deliver what is due; return the seconds until the next timer is due, or until new ones are looked for."""
        files = self._files
        if files is None or not self._parts.flags.accepts_puts:
            return POLL_S
        if not self._enqueue(files):
            return 0.0
        if not self._units and not self._next_slot(files):
            self._copies.clear()  # every timer that was due when they were found has been delivered
            next_s = files.next_due_s
            return POLL_S if next_s is None else max(0.0, min(POLL_S, next_s + 1 - self._parts.now_ms() / 1000))
        for _ in range(min(AT_ONCE, len(self._units))):
            self._deliver(self._units[0])
            self._units.popleft()
        if not self._units:
            files.finish(self._slot)
        return 0.0

    def _enqueue(self, files: LiveTimers) -> bool:
        """Give units to new messages; return False if there are more."""
        queue = self._queue()
        if queue is None:
            return True
        now_ms = self._parts.now_ms() // PRECISION_MS * PRECISION_MS
        after_ms = PRECISION_MS * (self._slot + 1 if self._units else 0)
        floor_ms = max(files.last_read_ms, now_ms - OVERDUE_MS_MAX, after_ms)
        start = max(files.queue_offset, queue.min_offset)
        for location, unit in queue.units(start, start + AT_ONCE):
            message = self._parts.log.message_at(unit.physical_offset)
            if message is not None and message.topic == TIMER_TOPIC and message.properties.get(DUE, "").isdecimal():
                files.add(timer_of(message), now_ms, floor_ms)
            else:
                LOG.error("timer %d is passed over: no message with a due time", location)
            files.queue_offset = location + 1
        return files.queue_offset >= queue.max_offset

    def _next_slot(self, files: LiveTimers) -> bool:
        """Begin the next slot whose second is over; return False if there is none."""
        now_ms = self._parts.now_ms()
        due_s = files.next_due_s
        if due_s is None or (due_s + 1) * PRECISION_MS > now_ms:
            files.last_read_ms = max(files.last_read_ms, now_ms // PRECISION_MS * PRECISION_MS)
            return False
        units = files.units_of(due_s)
        deleting = [self._message(unit) for unit in units if unit.deletes]
        self._deleted = {message.properties.get(DELETES, "") for message in deleting if message is not None}
        self._slot = due_s
        self._units.extend(unit for unit in units if not unit.deletes)
        if not self._units:
            files.finish(due_s)
        return True

    def _deliver(self, unit: TimerUnit) -> None:
        """Put the copy of one timer, unless it was deleted or an earlier process put it."""
        message = self._message(unit)
        if message is None:
            LOG.error("timer at %d: no message of its size is there; it is passed over", unit.log_offset)
            return
        names = delete_keys(message.properties.get(REAL_TOPIC, ""), message.properties.get(UNIQUE_KEY, ""))
        if not self._deleted.isdisjoint(names):
            return
        key = key_of(message)
        if key in self._copies:
            self._copies[key] -= 1
            if not self._copies[key]:
                del self._copies[key]
            return
        reason = self._put(message, unit)
        if reason:
            LOG.error("timer at %d is passed over: %s", unit.log_offset, reason)

    def _put(self, message: StoredMessage, unit: TimerUnit) -> str:
        now_ms = self._parts.now_ms()
        copy: Message | None
        if unit.magic & MAGIC_ROLL:
            copy = rolled(message, unit.write_ms, now_ms)
        elif DELETES in message.properties:
            return ""
        else:
            copy = delivered_timer(message, unit.write_ms, now_ms)
        if copy is None:
            return "its properties name no topic and queue"
        return self._puts.deliver(copy, self._admission)

    def _message(self, unit: TimerUnit) -> StoredMessage | None:
        message = self._parts.log.message_at(unit.log_offset)
        return message if message is not None and message.topic == TIMER_TOPIC and message.size == unit.log_size else None

    def _queue(self) -> ConsumeQueue | None:
        return self._parts.queues.get(TIMER_TOPIC, 0)

    # What is pending

    @property
    def queue_offset(self) -> int:
        """The first message of the timers' queue that has no unit yet; 0 if this process delivers no timers."""
        return self._files.queue_offset if self._files is not None else 0

    def first_pending(self, least: int) -> int:
        """Return the physical offset of the oldest timer with a unit that is not delivered; `NOTHING_PENDING` without one.

        An offset below `least` may be another timer's: it is returned as soon as it is found.
        """
        files = self._files
        if files is None:
            return NOTHING_PENDING
        found = NOTHING_PENDING
        for due_s in sorted(files.due_seconds, key=lambda due_s: due_s != self._oldest_s):
            found = min([found, *(unit.log_offset for unit in files.units_of(due_s))])
            if found < least:
                self._oldest_s = due_s  # it answers the next call
                break
        return found

    def persist(self, *, is_last: bool = False) -> None:
        """Write the timer files after syncing the deliveries that they count, unless nothing changed."""
        files = self._files
        if files is None or self._units or self._copies:  # the next opening has to find those copies again
            return
        position = self._parts.log.written_offset
        moved = position - self._position
        has_moved = files.check.counter > 0 and (moved > SEARCHED_MAX or (is_last and moved > 0))
        if not (files.is_dirty or has_moved) or self._parts.flusher.flush_now() < position:
            return
        check = files.next_checkpoint(self._parts.now_ms())
        files.flush()
        sidecar = _Sidecar(position, files.check, check)
        write_sidecar(self._parts.disk, os.path.join(self._parts.paths.own, NAME), sidecar._asdict())
        files.write_checkpoint(check)
        self._position = position

    def progress(self) -> TimerCheckpoint:
        """Return the checkpoint of the moment, for a slave; any thread may call it."""
        return self._files.next_checkpoint(self._parts.now_ms()) if self._files is not None else TimerCheckpoint()

    def close(self) -> None:
        """Close the timer files; deliver nothing more."""
        if self._files is not None:
            self._files.close()


def _parsed(sidecar: Any) -> _Sidecar:
    before, after = (TimerCheckpoint(*(int(value) for value in sidecar[name])) for name in ("before", "after"))
    return _Sidecar(int(sidecar["position"]), before, after)
