"""Convert a split's records to runs of queue units and index items with the engine's walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog import StoredMessage
from commitlog.columns import Batch, fixed_columns
from consumequeue.layout import UNIT, UNIT_SIZE
from indexfile._index_cy import IndexBuffer
from indexfile.layout import FIRST_ITEM, HEADER_SIZE, NEXT_ITEM_AT, SLOT_SIZE, TAGS_LEFT_OUT, TAGS_WRITTEN
from messagestore.deleted_topics import DeletedTopics
from messagestore.derive.kinds import other_units
from messagestore.derive.walk import Derivation, ItemList, Sink

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

KEYS_MAX = 1 << 18  # items of one step
RUN_BYTES = 1 << 20  # of units in one run


class DispatchRun(NamedTuple):
    """Consecutive units of one queue; `order` is the physical offset of its first record."""

    topic: str
    queue_id: int
    order: int
    first: int
    units: bytes


class Dispatching(Sink):
    """Dispatches one split: takes batches in log order, and makes runs and items of them."""

    def __init__(
        self, delays_ms: list[int], is_excluded: Callable[[str], bool], on_items: Callable[[Array], None] | None,
        deleted: DeletedTopics | None = None, *, with_tags: bool = False,
    ) -> None:  # fmt: skip
        """`is_excluded` selects topics without an ordinary queue.

        `on_items` is called with index items (`stored_item`), which are valid until it returns; without it none are made.
        `with_tags` adds the items of tags. Messages of `deleted` topics get no units.
        """
        self._derivation = Derivation(self, delays_ms, is_excluded, checks=0)
        self._derivation.deleted = deleted
        self._on_items = on_items
        self._memory = ItemList(KEYS_MAX, tag_items=TAGS_WRITTEN if with_tags else TAGS_LEFT_OUT)
        self._open: dict[tuple[str, int], tuple[int, int, bytearray]] = {}
        self._done: list[DispatchRun] = []

    def take(self, batch: Batch) -> list[DispatchRun]:
        """Take the next records; return the runs that are full."""
        stop = int(batch.positions[-1]) + int(batch.sizes[-1])
        self._derivation.take(batch.view, batch.base, int(batch.positions[0]), stop)
        made, self._done = self._done, []
        return made

    def rest(self) -> list[DispatchRun]:
        """Return the runs that are not full."""
        made = [DispatchRun(*queue_key, order, first, bytes(units)) for queue_key, (order, first, units) in self._open.items()]
        self._open.clear()
        return made

    # The sink of the walk

    def item_buffer(self) -> IndexBuffer | None:
        """Return memory for items, if any are wanted."""
        return self._memory.emptied() if self._on_items is not None else None

    def take_items(self, items: IndexBuffer, *, is_split: bool) -> None:
        """Hand the items on as an array, in log order."""
        if self._on_items is not None and len(found := item_columns(items)):
            self._on_items(found)

    def take_run(self, topic: str, queue_id: int, first: int, units: memoryview) -> None:
        """Append units to the open run of their queue."""
        self._done += self._joined(topic, queue_id, first, bytes(units))

    def take_message(self, message: StoredMessage) -> None:
        """Make a run of each unit in queues of other topics, because their numbers may have gaps."""
        for topic, queue_id, number, unit in other_units(message):
            self._done.append(DispatchRun(topic, queue_id, message.physical_offset, number, unit))

    def _joined(self, topic: str, queue_id: int, first: int, units: bytes) -> Iterator[DispatchRun]:
        """Append units to the open run of their queue; yield a run that is full or interrupted."""
        queue_key = (topic, queue_id)
        order, begin, held = self._open.get(queue_key, (0, 0, bytearray()))
        if held and begin + len(held) // UNIT_SIZE != first:
            yield DispatchRun(*queue_key, order, begin, bytes(held))
            held = bytearray()
        if not held:
            order, begin = UNIT.unpack_from(units)[0], first
        held += units
        if len(held) >= RUN_BYTES:
            yield DispatchRun(*queue_key, order, begin, bytes(held))
            held = bytearray()
        self._open[queue_key] = (order, begin, held)
        if not held:
            del self._open[queue_key]


def item_columns(items: IndexBuffer) -> Array:
    """Return the items of a step as an array (`stored_item`), in log order."""
    import numpy as np

    count = int.from_bytes(items.header()[NEXT_ITEM_AT : NEXT_ITEM_AT + 4], "big")
    return np.frombuffer(items.data, stored_item(), max(count, FIRST_ITEM), HEADER_SIZE + SLOT_SIZE)[FIRST_ITEM:]


def timed_items(batch: Batch, found: Array) -> Array:
    """Return a copy of a batch's items with the whole store time of their records (`item_kind`)."""
    import numpy as np

    made = np.empty(len(found), item_kind())
    made["hash"], made["offset"] = found["hash"], found["offset"]
    times = fixed_columns(batch, ["store_timestamp_ms"])["store_timestamp_ms"]
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
