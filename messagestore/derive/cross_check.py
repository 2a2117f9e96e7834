"""Compare queues and index with the log in both directions: every unit and every item.

The log is dispatched again into memory. The resulting units are compared with the bytes of the queue files, and the index
items with those of the index files (`index_comparison`). Nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from commitlog import StoredMessage
from commitlog.topic_names import SCHEDULE_TOPIC, is_virtual_topic
from commitlog.walk import LogFiles, Piece
from consumequeue import ConsumeQueue, ConsumeQueues
from consumequeue.layout import UNIT, UNIT_SIZE
from indexfile import IndexFiles
from indexfile._index_cy import IndexBuffer
from indexfile.layout import TAGS_OPTIONAL
from storageio import StoreError
from storebytes.finding import Finding

from ..deleted_topics import DeletedTopics
from ..excluded_topics import has_no_folder_name
from ..unreadable import unreadable
from .index_comparison import IndexComparison
from .kinds import other_units
from .kinds.extended import is_extended
from .kinds.ordinary import IsRight, unit_differences, unit_text
from .kinds.scheduled import DelayLevels
from .walk import Derivation, ItemList, Sink

END_MAX = (1 << 63) - 1
KEYS_MAX = 1 << 17  # items collected per step
OF_THE_LOG = "queue_offset"  # a kind of problem that a rebuild does not fix
NO_FOLDER = "topic_name"  # another kind that a rebuild does not fix
QueueKey = tuple[str, int]


class LogBounds:
    """The part of a log to which the comparison is limited.

    By default this is the whole log. For a log in use, it is what lies before an end offset and was not deleted meanwhile.
    """

    def __init__(self, end_offset: int = END_MAX, min_offset: Callable[[], int] = lambda: 0) -> None:
        """Create the bounds; `min_offset()` returns where the log begins now."""
        self.end_offset = end_offset
        self.min_offset = min_offset

    @property
    def is_growing(self) -> bool:
        """Return whether a writer appends to the log."""
        return self.end_offset < END_MAX

    def may_have(self, physical_offset: int) -> bool:
        """Return whether a record at this offset is compared."""
        return not self.is_growing or self.min_offset() <= physical_offset < self.end_offset

    def is_gone(self, physical_offset: int) -> bool:
        """Return whether retention has deleted the record at this offset."""
        return self.is_growing and physical_offset < self.min_offset()


class CrossCheck(Sink):
    """One comparison of queues and index with the log.

    `problems` lists findings in the order of discovery; `units` and `items` count what was compared. `lost_by_queue` has the
    messages of each queue, by `topic/queue`, behind the last one that the log has, whose unit points before the log's end.
    """

    def __init__(
        self, queues: ConsumeQueues, index: IndexFiles | None, levels: DelayLevels, log_min_offset: int,
        bounds: LogBounds | None = None,
    ) -> None:  # fmt: skip
        """Create a comparison for queues and index opened for reading; `bounds` is for a log in use."""
        self._bounds = bounds or LogBounds()
        self._queues = queues
        self._levels = levels
        self.files: LogFiles | None = None  # where units of delayed messages are checked against their records
        self._log_min_offset = log_min_offset
        self._index = None if index is None else IndexComparison(
            index, log_min_offset, self._bounds.end_offset, self._made_items
        )  # fmt: skip
        self._derivation = Derivation(self, levels.current_ms, self._has_no_queue, checks=0)
        self._made = ItemList(KEYS_MAX, tag_items=TAGS_OPTIONAL)
        self._next: dict[QueueKey, int] = {}
        self._numbers: dict[QueueKey, tuple[int, int]] = {}  # (last, greatest) queue offset in the log, each plus one
        self._nameless: set[str] = set()
        self.is_ignored: Callable[[str], bool] = lambda _topic: False
        self.skips_other_units = False  # those in queues of other topics are in RocksDB
        self.ignored: set[str] = set()  # topics of the log without ordinary queues
        self.unreadable: dict[QueueKey, StoreError] = {}
        self.units = 0
        self.items = 0
        self.problems: list[Finding] = []
        self.lost_by_queue: dict[str, int] = {}
        self._end = 0  # of the records so far

    def leave_out(self, deleted: DeletedTopics) -> None:
        """Expect no units of deleted messages."""
        self._derivation.deleted = deleted

    def take(self, piece: Piece) -> None:
        """Compare consecutive whole records with the files. Pieces must come in log order."""
        self._end = piece.base + piece.stop
        if self._index is not None:
            self._index.walk(piece)
        self._derivation.take(piece.view, piece.base, piece.start, piece.stop)

    # The sink of the walk

    def item_buffer(self) -> IndexBuffer | None:
        """Return memory for items, unless the index is not compared."""
        return self._made.emptied() if self._index is not None else None

    def take_items(self, items: IndexBuffer, *, is_split: bool) -> None:
        """Compare items with the index."""
        if self._index is not None:
            self._index.take(items, is_split=is_split)

    def take_run(self, topic: str, queue_id: int, first: int, units: memoryview) -> None:
        """Compare units of an ordinary queue."""
        self._run(topic, queue_id, first, bytes(units))

    def take_message(self, message: StoredMessage) -> None:
        """Compare units in queues of other topics.

        A record's unit follows the previous one, whatever its number: a queue closes gaps, and numbers may repeat.
        """
        for topic, queue_id, _, unit in () if self.skips_other_units else other_units(message):
            position, queue = self._next.get((topic, queue_id)), self._queues.get(topic, queue_id)
            if position is None:
                is_readable = queue is not None and self.can_read(queue)
                position = queue.find_physical(message.physical_offset) if queue is not None and is_readable else 0
            self._run(topic, queue_id, position, unit)

    def finish(self) -> None:
        """Look for units and items that belong to no record, after the last piece."""
        for queue in self._queues:
            if self.can_read(queue):
                self.problems += self._ahead(queue)
        if self._index is not None:
            low = max(self._log_min_offset, self._bounds.min_offset())
            self.problems += self._index.problems(low, newest_is_growing=self._bounds.is_growing)
            self.items = self._index.items

    def can_read(self, queue: ConsumeQueue) -> bool:
        """Return whether a queue can be read; the first error of one that cannot is a problem."""
        if (queue.topic, queue.queue_id) not in self.unreadable:
            try:
                _ = queue.starts
            except StoreError as error:
                self._add_unreadable(queue, error)
        return (queue.topic, queue.queue_id) not in self.unreadable

    def _add_unreadable(self, queue: ConsumeQueue, error: StoreError) -> None:
        self.unreadable[queue.topic, queue.queue_id] = error.with_traceback(None)  # its frames keep views of the log mapped
        self.problems.append(unreadable(error, queue.folder))

    def errors(self) -> list[StoreError]:
        """Return the errors of queues and index files that could not be read."""
        return [*self.unreadable.values(), *(self._index.errors() if self._index is not None else ())]

    def _made_items(self, view: memoryview, at: int, stop: int, base: int) -> Iterator[IndexBuffer]:
        """Yield the items that a range of whole records requires."""
        done = 0
        while at < stop:
            items = self._made.emptied()
            at, why, done = self._derivation.kernel.dispatch(view, at, stop, base, 0, items, done, self._derivation.kind_of)
            yield items
            assert why in ("full", "index_full", "end"), f"checked records stopped with {why}"

    def _has_no_queue(self, topic: str) -> bool:
        """Return whether the kernel must skip a topic; report a topic that cannot name a folder once."""
        if topic not in self._nameless and has_no_folder_name(topic):
            self._nameless.add(topic)
            self._report(self._queues.folder, 0, NO_FOLDER, "a topic that a folder can be named by", repr(topic)[:80])
        is_ignored = self.is_ignored(topic)
        if is_ignored:
            self.ignored.add(topic)
        return is_ignored

    def virtual_ends(self) -> dict[QueueKey, int]:
        """Return, for each queue of records of other topics, the queue offset behind the last unit that was compared."""
        return {queue_key: end for queue_key, end in self._next.items() if is_virtual_topic(queue_key[0])}

    def queue_keys(self) -> list[QueueKey]:
        """Return topic and queue id of every queue that the records taken so far belong to."""
        return list(self._next)

    # Queues

    def _run(self, topic: str, queue_id: int, first: int, units: bytes) -> None:
        """Compare consecutive units of one queue with its file."""
        queue_key = (topic, queue_id)
        self.units += len(units) // UNIT_SIZE
        queue = self._queues.get(topic, queue_id)
        if queue is not None and not self.can_read(queue):
            self._next[queue_key] = first + len(units) // UNIT_SIZE
            return
        known = self._next.get(queue_key)
        position, units = self._located(queue, queue_key, first, units)
        self._next[queue_key] = position + len(units) // UNIT_SIZE
        if queue is None:
            if known is None and not self._bounds.is_gone(UNIT.unpack(units[-UNIT_SIZE:])[0]):
                self._report(
                    os.path.join(self._queues.folder, topic, str(queue_id)), 0, "missing_queue", "a queue of the log's", "none"
                )
            return
        for at, expected, found in self._differences(queue, position, units):
            if self._bounds.is_gone(UNIT.unpack(expected)[0]):
                continue
            self._report(
                queue.folder, at * UNIT_SIZE, "wrong_unit" if found else "missing_unit", unit_text(expected), unit_text(found)
            )
            break  # one finding per run: later differences follow from it

    def _differences(self, queue: ConsumeQueue, position: int, units: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the differences of one run; an error of a file, such as of a failing disk, ends them."""
        try:
            yield from unit_differences(queue, position, units, accepts(queue.topic, self._levels, self.files))
        except StoreError as error:
            self._add_unreadable(queue, error)

    def _located(self, queue: ConsumeQueue | None, queue_key: QueueKey, first: int, units: bytes) -> tuple[int, bytes]:
        """Return the queue offset of the first unit to compare, and the units, as dispatch would write them.

        Dispatch closes a gap in the log's queue offsets and skips an offset that is already used, except offset 0, which is
        accepted anywhere (`docs/formats/consumequeue.md#how-a-unit-gets-its-place`). Such a jump is an error in the log itself:
        it is reported once where it begins, and a rebuild of the queue does not change it.
        """
        known, (goes_on, fresh) = self._next.get(queue_key), self._numbers.get(queue_key, (first, first))
        after = first + len(units) // UNIT_SIZE
        self._numbers[queue_key] = after, max(after, fresh)
        if known is None:
            return first, units
        if queue is not None and first not in (goes_on, fresh):
            self._report(
                queue.folder,
                known * UNIT_SIZE,
                OF_THE_LOG,
                f"a record of queue offset {fresh}",
                f"{first}, at physical offset {UNIT.unpack(units[:UNIT_SIZE])[0]}",
            )
        if first == 0:
            return known, units[:UNIT_SIZE] + units[UNIT_SIZE * (1 + known) :]
        return known, units[UNIT_SIZE * max(0, known - first) :]

    def _ahead(self, queue: ConsumeQueue) -> Iterator[Finding]:
        """Yield a finding if a queue has units behind the last one that the log accounts for."""
        known = self._next.get((queue.topic, queue.queue_id))
        try:
            end = queue.find_physical(self._bounds.end_offset) if self._bounds.is_growing else queue.max_offset
            unit = queue.unit(end - 1)
        except StoreError as error:
            self._add_unreadable(queue, error)
            return
        if unit is None or self._bounds.is_gone(unit.physical_offset):
            return
        if known is None:
            if unit.physical_offset >= self._log_min_offset:
                self._lost(queue, queue.find_physical(self._log_min_offset))
                yield Finding(queue.folder, 0, "dangling_queue", "records of this queue in the log", f"{end} units")
        elif end > known:
            self._lost(queue, known)
            yield Finding(queue.folder, known * UNIT_SIZE, "dangling_unit", f"{known} units", f"{end} units")

    def _lost(self, queue: ConsumeQueue, first: int) -> None:
        """Count the units from `first` on in whose places the log has other records."""
        if (count := queue.find_physical(self._end) - first) > 0:
            self.lost_by_queue[f"{queue.topic}/{queue.queue_id}"] = count

    def _report(self, file: str, offset: int, kind: str, expected: int | str, found: int | str) -> None:
        self.problems.append(Finding(file, offset, kind, expected, found))


def accepts(topic: str, levels: DelayLevels, files: LogFiles | None) -> IsRight:
    """Return a predicate for units of a topic that may differ from what the kernel computes for their records."""
    if topic != SCHEDULE_TOPIC or files is None:
        return is_extended
    return lambda found, expected: is_extended(found, expected) or levels.accepts(found, expected, files.message_at)
