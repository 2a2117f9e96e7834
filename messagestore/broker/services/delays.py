"""Messages that wait: put to SCHEDULE_TOPIC_XXXX, and brought to their own topic when they are due (section 9).

Level L waits in queue L - 1, whose units hold the time a message is due; all of a level wait equally long, so a queue is
delivered from its front.  `config/delayOffset.json` says how far each level came.

What is promised: nothing is delivered before it is due, and nothing is left out, but for what cannot be put at all.  Each
message is delivered once, also across a kill of this process or of the machine: `delayOffset.json` is written only when what
it counts as delivered is on the disk, and after an unclean stop `delay_resume.py` finds in the log what was delivered since.
A broker's own kill may repeat what it delivered since it last wrote the file; opened here after that, its deliveries are found
in the same way, and so are a master's in the log of its slave, or in a copy: neither brings `delayOffset.json` along.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from commitlog import Message
from consumequeue.ext import is_ext_address
from storageio import InvalidMessage, PutRejected, StoreCorrupt

from ...config import Role
from ..config.config_files import Source
from ..config.delay_offsets import DelayOffsets
from .delay_messages import delivered
from .delay_resume import delivered_since, forget_delay_note, is_forgotten, write_delay_note
from .names import SCHEDULE_TOPIC
from .putting import NEVER

if TYPE_CHECKING:
    from ...parts import StoreParts
    from .admission import Admission
    from .internal_puts import InternalPuts

LOG = logging.getLogger(__name__)
DELIVERED_AT_ONCE = 1000  # of one level before the others are looked at
LOOK_S = 1.0  # the shortest delay there is: a message that comes now is met before it is due


class Delays:
    """Delivery of one open store.  The housekeeper calls `deliver_due`, `persist` and nobody else does."""

    def __init__(self, parts: StoreParts, admission: Admission, puts: InternalPuts) -> None:
        """Reads how far each level came.  A file beyond use is said, and then nothing is delivered."""
        self._parts = parts
        self._admission = admission
        self._puts = puts
        self.times_ms = parts.levels.current_ms
        self._is_dirty = False
        self._said: set[tuple[int, int]] = set()
        self._offsets: DelayOffsets | None = None
        self.is_doubtful = False  # whether more may be delivered than the file says, though the store was closed
        self._is_slave = parts.config.broker_role is Role.SLAVE
        self._read()
        if self._is_slave:
            forget_delay_note(parts.disk, parts.places.own)  # its log gets deliveries that its own files do not count

    def _read(self) -> None:
        disk, places = self._parts.disk, self._parts.places
        try:
            self._offsets = DelayOffsets(disk, places.config)
            self.is_doubtful = self._offsets.source is not Source.FILE or is_forgotten(disk, places.own)
        except StoreCorrupt as error:
            LOG.error("no delayed message is delivered: %s", error)

    def resume(self) -> None:
        """Count what was delivered after the file was written.  A slave leaves that to the day it is a master."""
        if self._offsets is None or self._is_slave:
            return
        for level, offset in delivered_since(self._parts, self._offsets).items():
            LOG.warning("delay level %d goes on at %d: what lies before was delivered", level, offset)
            self._offsets.set(level, offset)
            self._is_dirty = True

    def deliver_due(self) -> float:
        """Deliver what is due; seconds until the next message is."""
        if self._offsets is None:
            return LOOK_S
        now = self._parts.now_ms()
        next_ms = [due for level in self._levels() if (due := self._deliver(level, now)) is not None]
        return max(0.0, min([LOOK_S, *((due - self._parts.now_ms()) / 1000 for due in next_ms)]))

    def _levels(self) -> Iterator[int]:
        for queue_id in self._parts.queues.queue_ids(SCHEDULE_TOPIC):
            yield queue_id + 1

    def _deliver(self, level: int, now: int) -> int | None:
        """One level's due messages; when its next one is due."""
        assert self._offsets is not None
        queue = self._parts.queues.get(SCHEDULE_TOPIC, level - 1)
        if queue is None or not self._parts.flags.accepts_puts:
            return None
        start = max(self._offsets.get(level), queue.min_offset)
        for place, unit in queue.units(start, start + DELIVERED_AT_ONCE):
            due = self._due(level, unit.tags_code, unit.physical_offset, now)
            if due > now:
                return due
            waiting = self._parts.log.message_at(unit.physical_offset)
            message = delivered(waiting) if waiting is not None else None
            reason = self._put(message) if message is not None else "no message with a topic and a queue of its own"
            if reason:
                LOG.error("level %d, offset %d is passed over: %s", level, place, reason)
            self._offsets.set(level, place + 1)
            self._is_dirty = True
        return now if self._offsets.get(level) < queue.max_offset else None

    def _put(self, message: Message) -> str:
        """Deliver one; why it can never be, or nothing.  Raises `PutRejected` for what may pass, such as a full disk."""
        try:
            if message.topic in self._parts.topics:  # one that is not was deleted, and is not made anew
                self._admission.admit(message.topic)
            self._puts.put(message, message.queue_id, waits=False)
        except (InvalidMessage, PutRejected) as error:
            if isinstance(error, PutRejected) and error.status not in NEVER:
                raise
            return str(error)
        return ""

    def _due(self, level: int, code: int, physical_offset: int, now: int) -> int:
        """When a unit's message is due: at once where its time cannot be meant, as in the broker.

        Whatever time it has may be meant where it was written by levels that are not known.
        """
        levels = self._parts.levels
        if is_ext_address(code):
            waiting = self._parts.log.message_at(physical_offset)
            due = levels.due_ms(waiting) if waiting is not None else now
            code = waiting.store_timestamp_ms + levels.longest_ms(level) if waiting is not None and due is None else due or now
        return code if levels.at(physical_offset) is None or code <= now + levels.longest_ms(level) else now

    def persist(self) -> None:
        """Write down how far each level came, when what was delivered is on the disk."""
        if self._offsets is None or not self._is_dirty:
            return
        position, offsets = self._parts.log.written_offset, self._offsets.levels()
        if self._parts.flusher.flush_now() < position:
            return
        write_delay_note(self._parts.disk, self._parts.places.own, position, offsets)
        self._offsets.persist()
        self._is_dirty = False
