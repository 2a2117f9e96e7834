"""Deliver delayed messages to their own topics when they are due (`docs/formats/broker-topics.md#delays`).

Delayed messages wait in SCHEDULE_TOPIC_XXXX. Level L uses queue L - 1, whose units hold the due time. All messages of a level
wait equally long, so a queue is delivered from its front. `config/delayOffset.json` holds the progress of each level.

Guarantees: no message is delivered before it is due, and none is skipped unless it can never be put. Each message is delivered
once, even if this process is killed or the machine crashes: `delayOffset.json` is written only after the deliveries it counts
are synced, and after an unclean stop `delay_resume.py` searches the log for later deliveries. A killed broker may repeat the
deliveries since it last wrote the file. If the store is opened here instead, they are found in the log. The same search finds a
master's deliveries in the log of its slave or in a copy, neither of which has the master's `delayOffset.json`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from commitlog.topic_names import SCHEDULE_TOPIC
from consumequeue import is_ext_address
from storageio import StoreCorrupt

from ...config import Role
from ..config.config_files import Source
from ..config.delay_offsets import DelayOffsets
from .delay_messages import delivered
from .delay_resume import delete_delay_sidecar, delivered_since, is_forgotten, write_delay_sidecar

if TYPE_CHECKING:
    from ...parts import StoreParts
    from ...write.admission import Admission
    from .internal_puts import InternalPuts

LOG = logging.getLogger(f"brokerstore.{__name__}")
DELIVERED_AT_ONCE = 1000  # messages of one level before the other levels get their turn
POLL_S = 1.0  # the shortest delay: a message put now is seen before it is due


class Delays:
    """Delivers the delayed messages of one open store. Only the housekeeper calls `deliver_due` and `persist`."""

    def __init__(self, parts: StoreParts, admission: Admission, puts: InternalPuts) -> None:
        """Read the progress of each level. If the file is unreadable, an error is logged and nothing is delivered."""
        self._parts = parts
        self._admission = admission
        self._puts = puts
        self.times_ms = parts.levels.current_ms
        self._is_dirty = False
        self._reported: set[tuple[int, int]] = set()
        self._offsets: DelayOffsets | None = None
        self.may_deliver_twice = False  # more may be delivered than the file counts, even after a clean stop
        self._is_slave = parts.config.broker_role is Role.SLAVE
        self._read()
        if self._is_slave:
            delete_delay_sidecar(parts.disk, parts.paths.own)  # its log gets deliveries that its own file does not count

    def _read(self) -> None:
        disk, paths = self._parts.disk, self._parts.paths
        try:
            self._offsets = DelayOffsets(disk, paths.config)
            self.may_deliver_twice = self._offsets.source is not Source.FILE or is_forgotten(disk, paths.own)
        except StoreCorrupt as error:
            LOG.error("no delayed message is delivered: %s", error)

    def resume(self) -> None:
        """Skip messages delivered after the progress file was written. A slave does this only when it becomes a master."""
        if self._offsets is None or self._is_slave:
            return
        for level, offset in delivered_since(self._parts, self._offsets).items():
            LOG.warning("delay level %d goes on at %d: what lies before was delivered", level, offset)
            self._offsets.set(level, offset)
            self._is_dirty = True

    def deliver_due(self) -> float:
        """Deliver all due messages and return the seconds until the next one is due."""
        if self._offsets is None:
            return POLL_S
        now = self._parts.now_ms()
        next_ms = [due for level in self._levels() if (due := self._deliver(level, now)) is not None]
        return max(0.0, min([POLL_S, *((due - self._parts.now_ms()) / 1000 for due in next_ms)]))

    def next_offset(self, level: int) -> int:
        """Return the queue offset of a level's first message that is not delivered; 0 if the progress is not known."""
        return self._offsets.get(level) if self._offsets is not None else 0

    def _levels(self) -> Iterator[int]:
        for queue_id in self._parts.queues.queue_ids(SCHEDULE_TOPIC):
            yield queue_id + 1

    def _deliver(self, level: int, now: int) -> int | None:
        """Deliver one level's due messages and return the due time of its next one in milliseconds; None if there is none."""
        assert self._offsets is not None
        queue = self._parts.queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is None or not self._parts.flags.accepts_puts:
            return None
        start = max(self._offsets.get(level), queue.min_offset)
        for position, unit in queue.units(start, start + DELIVERED_AT_ONCE):
            due = self._due(level, unit.tags_code, unit.physical_offset, now)
            if due > now:
                return due
            waiting = self._parts.log.message_at(unit.physical_offset)
            message = delivered(waiting) if waiting is not None else None
            no_message = "no message with a topic and a queue of its own"
            reason = self._puts.deliver(message, self._admission) if message is not None else no_message
            if reason:
                LOG.error("level %d, offset %d is passed over: %s", level, position, reason)
            self._offsets.set(level, position + 1)
            self._is_dirty = True
        return now if self._offsets.get(level) < queue.max_offset else None

    def _due(self, level: int, code: int, physical_offset: int, now: int) -> int:
        """Return when a unit's message is due in milliseconds; `now` if its time is implausible, as in the broker.

        A unit written under unknown delay levels keeps its time, because any time may be correct there.
        """
        levels = self._parts.levels
        if is_ext_address(code):
            waiting = self._parts.log.message_at(physical_offset)
            due = levels.due_ms(waiting) if waiting is not None else now
            code = waiting.store_timestamp_ms + levels.longest_ms(level) if waiting is not None and due is None else due or now
        return code if levels.at(physical_offset) is None or code <= now + levels.longest_ms(level) else now

    def persist(self) -> None:
        """Write the progress of each level after syncing the deliveries it counts."""
        if self._offsets is None or not self._is_dirty:
            return
        position, offsets = self._parts.log.written_offset, self._offsets.levels()
        if self._parts.flusher.flush_now() < position:
            return
        write_delay_sidecar(self._parts.disk, self._parts.paths.own, position, offsets)
        self._offsets.persist()
        self._is_dirty = False
