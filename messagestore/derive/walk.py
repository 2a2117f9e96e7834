"""The one walk over records that yields units of queues and index items; a sink decides what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from commitlog import CHECK_POSITION, STOPS, CommitLog, MappedFile, Reader, Stop, StoredMessage
from commitlog.checks import BAD_MAGIC
from commitlog.cursor import is_file_end
from commitlog.topic_names import is_virtual_topic
from indexfile._index_cy import IndexBuffer
from indexfile.layout import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, TAGS_LEFT_OUT
from storageio import StoreCorrupt

from ..deleted_topics import DeletedTopics
from ._dispatch_cy import Dispatcher
from .kinds import is_dispatched
from .kinds.ordinary import ELSEWHERE, IGNORED, ORDINARY

BATCH_SIZE_BYTES = 8 << 20  # largest range of one step, which bounds how long a reader waits
MESSAGES_AT_ONCE = 256
FULL = ("full", "index_full")  # reasons to stop that need another step


class Sink:
    """What takes the units and items of a walk. This one takes nothing."""

    @property
    def takes_messages(self) -> bool:
        """Whether `take_message` is called for every range; else only for those with units in queues of other topics."""
        return False

    def item_buffer(self) -> IndexBuffer | None:
        """Return where the next items go; None without an index."""
        return None

    def take_items(self, items: IndexBuffer, *, is_split: bool) -> None:
        """Take the items of a step. `is_split` says that the last record's further items come with the next step."""

    def take_run(self, topic: str, queue_id: int, first: int, units: memoryview) -> None:
        """Take consecutive units, the first of queue offset `first`, which are valid until this returns."""

    def take_message(self, message: StoredMessage) -> None:
        """Take a record that enters queues and may have units in queues that the kernel does not build."""


class Range(NamedTuple):
    """The bytes start..stop of a view that begins at physical offset `base`, and a reader of their records."""

    view: memoryview
    base: int
    start: int
    stop: int
    reader: Reader  # of the same records, perhaps at other positions
    shift: int = 0  # from a position in `view` to one of the reader


class Derivation:
    """Derives units and items from records in log order, and gives them to a sink. Each thread needs its own."""

    def __init__(
        self, sink: Sink, delays_ms: list[int], is_excluded: Callable[[str], bool] = lambda _topic: False, *,
        checks: int = CHECK_POSITION,
    ) -> None:  # fmt: skip
        """`is_excluded` returns whether a topic has no ordinary queues; `checks` are those of each record."""
        self.kernel = Dispatcher(delays_ms)
        self.deleted: DeletedTopics | None = None  # whose units are left out
        self._delays_ms = delays_ms
        self._sink = sink
        self._is_excluded = is_excluded
        self._checks = checks
        self.keys_done = 0  # of the next record, whose other items the index has

    def forget_queues(self) -> None:
        """Ask `kind_of` again for every topic."""
        self.kernel = Dispatcher(self._delays_ms)

    def kind_of(self, topic: str) -> int:
        """Return what the kernel does with the records of a topic."""
        return IGNORED if self._is_excluded(topic) else ELSEWHERE if is_virtual_topic(topic) else ORDINARY

    def take(self, view: memoryview, base: int, start: int, stop: int) -> None:
        """Give everything of some whole records to the sink: bytes start..stop of a view, which are checked."""
        at, reader = start, Reader(view, base)
        while at < stop:
            at, why = self.step(Range(view, base, at, stop, reader))
            assert why in (*FULL, "end"), f"checked records stopped with {why}"

    def step(self, records: Range, release: Callable[[], None] | None = None) -> tuple[int, str]:
        """Run the kernel once, and give the result to the sink; return where the kernel stopped in the view, and why.

        `release` is called when the view is not needed any more.
        """
        items = self._sink.item_buffer()
        try:
            at, why, self.keys_done = self.kernel.dispatch(
                records.view, records.start, records.stop, records.base, self._checks, items, self.keys_done, self.kind_of
            )
        finally:
            if release is not None:
                release()
        for topic, queue_id, first, units in self.kernel.runs():
            if self.deleted is not None and topic in self.deleted.entries:
                first, units = self.deleted.kept_units(topic, queue_id, first, units)
            if len(units):
                self._sink.take_run(topic, queue_id, first, units)
        if self.kernel.has_elsewhere or self._sink.takes_messages:
            self._give_messages(records.reader, records.start + records.shift, at + records.shift)
        if items is not None:
            self._sink.take_items(items, is_split=self.keys_done > 0)
        return at, why

    def _give_messages(self, reader: Reader, at: int, stop: int) -> None:
        why = "full"
        while why == "full" and at < stop:
            messages, at, why = reader.decode_range(at, stop, MESSAGES_AT_ONCE, self._checks)
            for message in messages:
                if is_dispatched(message):
                    self._sink.take_message(message)

    def step_in_log(self, log: CommitLog, position: int, limit: int) -> tuple[int, str]:
        """Take records of one file up to `limit`; return where the next step begins and why this one stopped.

        The position is the same if there is no record at it, and if only the index was full.
        """
        file = log.queue.find(position)
        assert file is not None, "the caller skips a gap"
        start = position - file.start_offset
        stop = min(file.size_bytes, limit - file.start_offset)
        at, why = self._step_in_file(log, file, start, min(stop, start + BATCH_SIZE_BYTES))
        if why == "torn" and at == start:
            at, why = self._step_in_file(log, file, start, stop)  # one record longer than a batch
        # The log was judged when it was opened. Behind a damaged blank record RocketMQ dispatches on, so its queues have units.
        is_closed = is_file_end(why, file.size_bytes - at, any_blank=True)
        return (file.end_offset if is_closed else file.start_offset + at), why

    def _step_in_file(self, log: CommitLog, file: MappedFile, start: int, stop: int) -> tuple[int, str]:
        """Take records from the ring if it still has them, else from the file."""
        base, ring, reader = file.start_offset, log.buffers, log.reader(file)
        held = ring.pin(base + start, stop - start) if ring is not None else None
        if ring is None or held is None:
            return self.step(Range(log.queue.view(file), base, start, stop, reader), None if ring is None else ring.unpin)
        shift = start - held[1]
        at, why = self.step(Range(held[0], base + shift, held[1], start + held[2] - shift, reader, shift), ring.unpin)
        return at + shift, why


def advance(derivation: Derivation, log: CommitLog, position: int, limit: int) -> int:
    """Take records of one file; return where to go on. Raises `StoreCorrupt` for damage."""
    file = log.queue.find(position)
    if file is None:  # those at the position were deleted
        position = max(position, log.min_offset)
        if log.queue.find(position) is None:
            raise StoreCorrupt("no log file", file="commitlog", offset=position, expected="a file", found="none")
        return position
    after, why = derivation.step_in_log(log, position, limit)
    if after == position and why not in FULL:
        if why == STOPS[BAD_MAGIC]:
            raise log.problem(Stop(position, why, 0, 0))
        at = position - file.start_offset
        raise StoreCorrupt(why, file=file.path, offset=at, expected="a record to dispatch", found="damage")
    return after


class ItemList:
    """Memory for the items of one step, of which nothing is looked up."""

    def __init__(self, items_max: int, *, tag_items: int = TAGS_LEFT_OUT) -> None:
        """`tag_items` says what becomes of the items of tags that RocketMQ 5.4 writes."""
        self.data = bytearray(HEADER_SIZE + SLOT_SIZE + ITEM_SIZE * items_max)
        self._items_max = items_max
        self._tag_items = tag_items

    def emptied(self) -> IndexBuffer:
        """Return the memory as an empty index with a single slot, because it is never searched."""
        self.data[: HEADER_SIZE + SLOT_SIZE] = bytes(HEADER_SIZE + SLOT_SIZE)
        fresh = IndexBuffer(self.data, 1, self._items_max)
        fresh.tag_items = self._tag_items
        return fresh
