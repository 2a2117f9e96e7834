"""Select records of a batch by fixed fields, topic, queue offset and key, before any column is built."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog.arrow_columns import record_batch
from commitlog.columns import FIXED, Batch, fixed_columns

from ..options import OFFSET_MAX, QueueKey, ReadOptions

if TYPE_CHECKING:
    import numpy as np

    from .start_position import StartPosition

    Array = np.ndarray[Any, Any]

NUMBERS = frozenset(name for name, _ in FIXED) - {"magic"}
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
IN = "in"


class Condition(NamedTuple):
    """One comparison; `operator` is a key of `COMPARED`, or IN with a tuple of values."""

    column: str
    operator: str
    value: Any

    @property
    def is_known(self) -> bool:
        """Return whether a row filter decides it exactly: a comparison of numbers or a topic name."""
        values = self.value if self.operator == IN else (self.value,)
        if self.column == "topic":
            return self.operator in ("eq", IN) and all(isinstance(value, str) for value in values)
        is_number = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
        return self.column in NUMBERS and is_number and all(abs(value) <= OFFSET_MAX for value in values)


@dataclass(frozen=True)
class RowFilter:
    """Keep records that meet all conditions, lie in their queue's offset range, and have the key."""

    conditions: tuple[Condition, ...] = ()
    queue_starts: Mapping[QueueKey, int] = field(default_factory=dict)
    queue_stops: Mapping[QueueKey, int] = field(default_factory=dict)
    key: str | None = None

    @classmethod
    def of(cls, options: ReadOptions) -> RowFilter:
        """Return the filter that the options describe."""
        made = []
        if options.topics is not None:
            made.append(Condition("topic", IN, tuple(sorted(options.topics))))
        if options.queue_ids is not None:
            made.append(Condition("queue_id", IN, tuple(sorted(options.queue_ids))))
        if options.begin_ms is not None:
            made.append(Condition("store_timestamp_ms", "ge", options.begin_ms))
        if options.end_ms is not None:
            made.append(Condition("store_timestamp_ms", "lt", options.end_ms))
        return cls(tuple(made), options.start.queues, options.stop.queues, options.key)

    def plus(self, conditions: list[Condition]) -> RowFilter:
        """Return the filter with more conditions."""
        return replace(self, conditions=(*self.conditions, *conditions))

    def beginning(self, starting: StartPosition) -> RowFilter:
        """Return the filter limited to the start position of a streaming query."""
        time = [] if starting.timestamp_ms is None else [Condition("store_timestamp_ms", "ge", starting.timestamp_ms)]
        return replace(self.plus(time), queue_starts=starting.queues)

    def apply(self, batch: Batch) -> Batch:
        """Return only the selected records."""
        batch = self._by_conditions(batch)
        if len(batch.positions) and (self.queue_starts or self.queue_stops):
            batch = _some(batch, self._in_ranges(batch))
        if len(batch.positions) and self.key is not None:
            batch = _some(batch, _has_key(batch, self.key))
        return batch

    def _by_conditions(self, batch: Batch) -> Batch:
        """Compare numbers first: they are cheaper than topics."""
        import numpy as np

        wanted = np.ones(len(batch.positions), bool)
        numbers = [condition for condition in self.conditions if condition.column != "topic"]
        fixed = fixed_columns(batch) if numbers else {}
        for column, name, value in numbers:
            wanted &= np.isin(fixed[column], value) if name == IN else COMPARED[name](fixed[column], value)
        batch = batch if wanted.all() else _some(batch, wanted)
        topics = [condition for condition in self.conditions if condition.column == "topic"]
        if topics and len(batch.positions):
            batch = _some(batch, _of_topics(batch, topics))
        return batch

    def _in_ranges(self, batch: Batch) -> Array:
        """Select by queue offset; a queue that is not named keeps all of its messages."""
        import numpy as np
        import pyarrow.compute as pc

        topics, fixed = record_batch(batch, ["topic"]).column(0), fixed_columns(batch)
        wanted = np.ones(len(batch.positions), bool)
        for queue_key in {*self.queue_starts, *self.queue_stops}:
            topic, queue_id = queue_key
            here = np.asarray(pc.equal(topics, topic)) & (fixed["queue_id"] == queue_id)
            low, high = self.queue_starts.get(queue_key, 0), self.queue_stops.get(queue_key, OFFSET_MAX)
            wanted &= ~here | ((fixed["queue_offset"] >= low) & (fixed["queue_offset"] < high))
        return wanted


def _some(batch: Batch, wanted: Array) -> Batch:
    return batch._replace(positions=batch.positions[wanted], sizes=batch.sizes[wanted])


def _of_topics(batch: Batch, conditions: list[Condition]) -> Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    names = record_batch(batch, ["topic"]).column(0)
    wanted = np.ones(len(names), bool)
    for _, name, value in conditions:
        values = pa.array(value if name == IN else [value], pa.string())
        wanted &= np.asarray(pc.is_in(names, values))
    return wanted


def _has_key(batch: Batch, key: str) -> Array:
    """Select records with the key among the words of KEYS or as UNIQ_KEY, as a broker's index does."""
    import numpy as np

    found = record_batch(batch, ["keys", "properties"])
    rows = zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True)
    return np.array([key in keys or ("UNIQ_KEY", key) in properties for keys, properties in rows], bool)
