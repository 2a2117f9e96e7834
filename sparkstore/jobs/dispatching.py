"""Convert a split's records to runs of queue units and index items with the engine's dispatch kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog._scan_cy import Reader, find_values, locate
from commitlog.columns import Batch, fixed_columns
from commitlog.topic_names import LMQ_PREFIX
from consumequeue.layout import UNIT, UNIT_SIZE
from indexfile._index_cy import IndexBuffer
from indexfile.layout import FIRST_ITEM, HEADER_SIZE, ITEM_SIZE, NEXT_ITEM_AT, SLOT_SIZE
from messagestore.property_names import MULTI_DISPATCH
from messagestore.write._dispatch_cy import Dispatcher
from messagestore.write.lmq_units import lmq_offsets
from storebytes.java_hash import java_hash_code

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

KEYS_MAX = 1 << 18  # items in one piece
RUN_BYTES = 1 << 20  # of units in one run
_SLOTS = 1  # of the buffer for items, which is never searched


class Run(NamedTuple):
    """Consecutive units of one queue; `order` is the physical offset of its first record."""

    topic: str
    queue_id: int
    order: int
    first: int
    units: bytes


class Dispatching:
    """Dispatches one split: takes batches in log order, yields runs and items."""

    def __init__(
        self, delays_ms: list[int], is_ignored: Callable[[str], bool], *, with_index: bool, with_tags: bool = False
    ) -> None:
        """Prepare the kernel; `is_ignored` selects topics without an ordinary queue.

        `with_tags` adds items of tags, marked optional, for a comparison with an index.
        """
        self._with_tags = with_tags
        self.kernel = Dispatcher(delays_ms)
        # `_lmq_runs` makes LMQ units from the property that names the queues
        self._is_ignored = lambda topic: topic.startswith(LMQ_PREFIX) or is_ignored(topic)
        self._items = bytearray(HEADER_SIZE + SLOT_SIZE * _SLOTS + ITEM_SIZE * KEYS_MAX) if with_index else None
        self._open: dict[tuple[str, int], tuple[int, int, bytearray]] = {}

    def take(self, batch: Batch) -> Iterator[tuple[list[Run], Array | None]]:
        """Yield full runs, and the index items (`stored_item`) of each part of the batch."""
        at, why, done, may_have_lmqs = int(batch.positions[0]), "full", 0, False
        stop = int(batch.positions[-1]) + int(batch.sizes[-1])
        while at < stop:
            buffer = self._fresh()
            at, why, done = self.kernel.dispatch(batch.view, at, stop, batch.base, 0, buffer, done, self._is_ignored)
            assert why in ("end", "full", "index_full"), f"a checked batch stopped with {why}"
            may_have_lmqs = may_have_lmqs or self.kernel.may_have_lmqs
            runs = [run for found in self.kernel.runs() for run in self._joined(*found[:3], bytes(found[3]))]
            yield runs, None if self._items is None else self._gathered()
        if may_have_lmqs:
            yield self._lmq_runs(batch), None

    def rest(self) -> list[Run]:
        """Return the runs that are not full."""
        made = [Run(*queue_key, order, first, bytes(units)) for queue_key, (order, first, units) in self._open.items()]
        self._open.clear()
        return made

    def _joined(self, topic: str, queue_id: int, first: int, units: bytes) -> Iterator[Run]:
        """Append units to the open run of their queue; yield a run that is full or interrupted."""
        queue_key = (topic, queue_id)
        order, begin, held = self._open.get(queue_key, (0, 0, bytearray()))
        if held and begin + len(held) // UNIT_SIZE != first:
            yield Run(*queue_key, order, begin, bytes(held))
            held = bytearray()
        if not held:
            order, begin = UNIT.unpack_from(units)[0], first
        held += units
        if len(held) >= RUN_BYTES:
            yield Run(*queue_key, order, begin, bytes(held))
            held = bytearray()
        self._open[queue_key] = (order, begin, held)
        if not held:
            del self._open[queue_key]

    def _fresh(self) -> IndexBuffer | None:
        if self._items is None:
            return None
        self._items[: HEADER_SIZE + SLOT_SIZE * _SLOTS] = bytes(HEADER_SIZE + SLOT_SIZE * _SLOTS)
        fresh = IndexBuffer(self._items, _SLOTS, KEYS_MAX)
        fresh.with_tags = self._with_tags
        return fresh

    def _gathered(self) -> Array:
        """Return the items of the buffer, which the next call of the kernel overwrites, in log order."""
        import numpy as np

        assert self._items is not None
        count = int.from_bytes(self._items[NEXT_ITEM_AT : NEXT_ITEM_AT + 4], "big")
        start = HEADER_SIZE + SLOT_SIZE * _SLOTS
        return np.frombuffer(self._items, stored_item(), max(count, FIRST_ITEM), start)[FIRST_ITEM:]

    def _lmq_runs(self, batch: Batch) -> list[Run]:
        """Return LMQ units, which point at records of other topics, one per run because their numbers may have gaps."""
        reader, made = Reader(batch.view, batch.base), []
        for at in _with_property(batch, MULTI_DISPATCH.encode()):
            message = reader.decode(int(at), 0)
            assert message is not None, "a record that was checked"
            tags_code = java_hash_code(message.tags) if message.tags else 0
            unit = UNIT.pack(message.physical_offset, message.size, tags_code)
            made += [Run(name, 0, message.physical_offset, offset, unit) for name, offset in lmq_offsets(message)]
        return made


def timed_items(batch: Batch, found: Array) -> Array:
    """Return a copy of a batch's items with the whole store time of their records (`item_kind`)."""
    import numpy as np

    made = np.empty(len(found), item_kind())
    made["hash"], made["offset"] = found["hash"], found["offset"]
    times = fixed_columns(batch)["store_timestamp_ms"]
    made["time_ms"] = times[np.searchsorted(batch.positions + batch.base, made["offset"])]
    return made


def item_kind() -> Any:
    """Return the type of items between map and merge: key hash, physical offset and store time."""
    import numpy as np

    return np.dtype([("hash", "<i4"), ("offset", "<i8"), ("time_ms", "<i8")])


def stored_item() -> Any:
    """Return the type of items in an index file."""
    import numpy as np

    return np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])


def _with_property(batch: Batch, name: bytes) -> Array:
    """Return the positions of the records that have a property."""
    import numpy as np

    rows = len(batch.positions)
    starts, sizes = [np.empty(rows, np.int64) for _ in range(5)], [np.empty(rows, np.int32) for _ in range(5)]
    locate(batch.view, batch.positions, rows, starts, sizes)
    found, lengths = np.empty(rows, np.int64), np.empty(rows, np.int32)
    find_values(batch.view, starts[2], sizes[2], rows, name, found, lengths)
    return batch.positions[found >= 0]
