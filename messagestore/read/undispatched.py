"""Count the messages that no consume queue has yet, in a folder whose writer was killed.

A writer dispatches records to their queues a moment after they are put.  If it is killed, the last records are only in the
log: `get`, `read`, `max_offset` and consumers miss them until a writer opens the store.  This module counts them, so that a
reader can report them.

The count begins where recovery would begin to dispatch: at the newest file that the checkpoint covers, or at the start of the
log if a queue lacks older units.  It ends after `SEARCHED_MAX` bytes; if that is not enough, it begins once more at the last
record that the checkpoint covers.  After a clean stop, and beside a live writer, nothing is counted.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from commitlog import CHECK_POSITION, STOPS, StoredMessage, find_record
from commitlog.checks import CHECK_READ, EMPTY
from commitlog.topic_names import is_virtual_topic
from consumequeue import Boundary, offset_by_time
from consumequeue._units_cy import count_repeated
from consumequeue.layout import UNIT_SIZE
from storageio import StoreError

from ..checkpoint import start_file
from ..derive.walk import Derivation, Sink
from ..excluded_topics import excluded_topics
from .unindexed import SEARCHED_MAX

if TYPE_CHECKING:
    from ..parts import StoreParts

LOG = logging.getLogger(f"brokerstore.{__name__}")
NAMED_MAX = 5  # queues that a message names
QueueKey = tuple[str, int]


class _Gap(Exception):
    """A queue lacks units of records before those that are counted."""


class Undispatched:
    """The messages that the queues of a store opened for reading lack."""

    def __init__(self, parts: StoreParts) -> None:
        """Set the fields without reading anything."""
        self._parts = parts
        self._guard = threading.RLock()
        self._seen: tuple[int, int] | None = None  # the abort file at the time of the count
        self._unknown = ""
        self.is_reported = False  # the tool reports it in its own words
        self._counted = _Count(parts, lambda _topic: False, refuses_gaps=False)

    @property
    def by_queue(self) -> Counter[QueueKey]:
        """The number of units that each queue lacks."""
        return self._counted.by_queue

    @property
    def found(self) -> int:
        """The number of messages that were counted."""
        return self._counted.messages

    @property
    def messages(self) -> int | None:
        """The number of messages in the log that are not in all of their queues, or None if it is unknown."""
        if not self._read_state():
            return None if self._parts.abort_file.is_present else 0
        return None if self._unknown else self.found

    def behind(self, position: int) -> int | None:
        """Return the number of messages from a position of the log on, which a writer's dispatcher could not dispatch."""
        with self._guard:
            try:
                self._count_from(position, refuses_gaps=False)
            except StoreError as error:
                LOG.warning("%s", error)
                return None
            return None if self._unknown else self.found

    def problem(self) -> str:
        """Return a warning for readers of the queues, as one sentence, or "" if nothing is missing."""
        if not self._read_state() or not (self.found or self._unknown):
            return ""
        least = "at least " if self._unknown else ""
        names = [f"{topic}-{queue_id}" for topic, queue_id in sorted(self.by_queue)]
        more = [f"and {len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else []
        where = ", ".join(names[:NAMED_MAX] + more)
        verb = "message is" if self.found == 1 else "messages are"
        counted = f"{least}{self.found} {verb} in the log and not in the queues ({where})" if self.found else ""
        return "; ".join(part for part in (counted, self._unknown) if part)

    def warn(self) -> None:
        """Log the problem, with the next command."""
        problem = "" if self.is_reported else self.problem()
        if problem:
            LOG.warning(
                "%s: %s; reads of queues miss them until `brokerstore rebuild --apply` runs or a writer opens the store",
                self._parts.paths.root, problem,
            )  # fmt: skip

    def _read_state(self) -> bool:
        """Count, if not done yet; return False after a clean stop and beside a writer, where nothing is counted."""
        parts = self._parts
        entry = parts.disk.stat(parts.abort_file.path)
        if entry is None or parts.disk.is_locked(parts.paths.lock):
            return False
        with self._guard:
            if self._seen != (entry.inode, entry.modified_ms):
                try:
                    self._count()
                except StoreError as error:
                    self._unknown = f"the queues were not compared with the log: {error}"
                self._seen = (entry.inode, entry.modified_ms)
        return True

    # Counting

    def _count(self) -> None:
        parts = self._parts
        parts.queues.discover()
        for queue in parts.queues:
            queue.refresh()
        low = max(parts.log.min_offset, 0)
        start = self._start(low)
        try:
            self._count_from(start, refuses_gaps=start > low)
        except _Gap:
            self._count_from(low, refuses_gaps=False)

    def _start(self, low: int) -> int:
        """Return where a recovery would begin to dispatch."""
        parts = self._parts
        file = start_file(parts.log, parts.checkpoint.min_timestamp_ms)
        first = file.start_offset if file is not None else low
        is_whole = parts.queues.max_physical_offset() >= first and not parts.lacks_listed_queues()
        return max(low, first) if is_whole and not parts.derived.lacks_batch_queues() else low

    def _count_from(self, start: int, *, refuses_gaps: bool) -> None:
        """Count over the records from `start` on."""
        log = self._parts.log
        self._unknown = ""
        is_ignored = excluded_topics(self._parts.disk, self._parts.paths.root, self._parts.topics)
        count = self._counted = _Count(self._parts, is_ignored, refuses_gaps=refuses_gaps)
        derivation = Derivation(count, [], is_ignored, checks=CHECK_READ)
        derivation.deleted = self._parts.deleted
        at = begin = start
        while (file := log.queue.find(at)) is not None:
            if at - begin >= SEARCHED_MAX:
                covered = self._covered() if begin == start and not count.messages else 0
                if covered <= at:
                    self._unknown = f"the log from offset {at} on was not compared with the queues"
                    return
                at = begin = covered
                continue
            before = at
            at, why = derivation.step_in_log(log, before, file.end_offset)
            if at == before:
                if self._has_record_behind(at, why):
                    self._unknown = f"behind offset {at}, where no record begins, the log was not compared with the queues"
                return

    def _covered(self) -> int:
        """Return the offset of the last record in a queue that the checkpoint covers, or 0."""
        parts, log, found = self._parts, self._parts.log, 0
        safe_ms = parts.checkpoint.min_timestamp_ms
        for queue in parts.queues:
            unit = queue.unit(offset_by_time(queue, safe_ms, Boundary.UPPER, log.readers, max(log.min_offset, 0)))
            message = log.message_at(unit.physical_offset, CHECK_POSITION) if unit is not None else None
            if message is not None and 0 < message.store_timestamp_ms <= safe_ms:
                found = max(found, message.physical_offset)
        return found

    def _has_record_behind(self, position: int, why: str) -> bool:
        """Return whether a whole record follows a bad position, so that it may be damage instead of the log's end."""
        log = self._parts.log
        file = log.queue.find(position)
        assert file is not None, "the walk was there"
        if any(log.first_message(later) for later in log.queue.files if later.start_offset > file.start_offset):
            return True
        start, base = position - file.start_offset + 1, file.start_offset
        until = min(file.size_bytes, start + SEARCHED_MAX)
        return why != STOPS[EMPTY] and find_record(log.queue.view(file), start, file.size_bytes, base, until) >= 0


class _Count(Sink):
    """Counts the units that the queues lack of what a walk derives."""

    def __init__(self, parts: StoreParts, is_ignored: Callable[[str], bool], *, refuses_gaps: bool) -> None:
        self._parts = parts
        self._is_ignored = is_ignored
        self._refuses_gaps = refuses_gaps
        self.by_queue: Counter[QueueKey] = Counter()
        self.messages = 0

    @property
    def takes_messages(self) -> bool:
        return self._parts.derived.has_batch_topics

    def take_run(self, topic: str, queue_id: int, first: int, units: memoryview) -> None:
        queue = self._parts.queues.get(topic, queue_id)
        if self._refuses_gaps and first > (queue.max_offset if queue is not None else 0):
            raise _Gap
        end = queue.max_physical_offset if queue is not None else -1
        count = len(units) // UNIT_SIZE - count_repeated(units, end)
        if count:
            self.by_queue[topic, queue_id] += count
            self.messages += count

    def take_message(self, message: StoredMessage) -> None:
        """Count a record once, and not again if its own queue lacks it too."""
        derived, topic = self._parts.derived, message.topic
        lacking = dict.fromkeys(derived.lacking(message))
        self.by_queue.update(lacking.keys())
        has_own = is_virtual_topic(topic) or self._is_ignored(topic) or not derived.lacks(topic, message.queue_id, message)
        self.messages += bool(lacking) and has_own
