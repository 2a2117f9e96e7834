"""Select records of a batch by fixed fields, topic, tags, queue offset and keys, before any column is built."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .arrow_columns import record_batch
from .columns import Batch, fixed_columns
from .fields import HEX
from .fields import NUMBERS as NUMBER_FIELDS

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

QueueKey = tuple[str, int]
OFFSET_MAX = (1 << 63) - 1
TIME_MIN = -(1 << 63)
RANGE_COLUMNS = ("queue_id", "queue_offset", "store_timestamp_ms")
NUMBERS = frozenset(field.name for field in NUMBER_FIELDS if field.kind != HEX)
TEXTS = ("topic", "tags")
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
IN = "in"
MATCHES = "matches"  # a whole text, against a regular expression


class Condition(NamedTuple):
    """One comparison; `operator` is a key of `COMPARED`, MATCHES, or IN with a tuple of values."""

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
    """Keep records that meet all conditions, lie in their queue's offset range, and have one of the keys."""

    conditions: tuple[Condition, ...] = ()
    queue_starts: Mapping[QueueKey, int] = field(default_factory=dict)
    queue_stops: Mapping[QueueKey, int] = field(default_factory=dict)
    queue_times: Mapping[QueueKey, int] = field(default_factory=dict)  # the first store time, in milliseconds
    queues: frozenset[QueueKey] | None = None  # all others are left out
    keys: frozenset[str] | None = None

    def plus(self, conditions: list[Condition]) -> RowFilter:
        """Return the filter with more conditions."""
        return replace(self, conditions=(*self.conditions, *conditions))

    def apply(self, batch: Batch) -> Batch:
        """Return only the selected records.  Raises `ValueError` if a row's position has no record."""
        batch = self._by_conditions(batch)
        if len(batch.positions) and (self.queue_starts or self.queue_stops or self.queue_times or self.queues is not None):
            batch = _some(batch, self._in_ranges(batch))
        if len(batch.positions) and self.keys is not None:
            batch = _some(batch, _has_key(batch, self.keys))
        return batch

    def _by_conditions(self, batch: Batch) -> Batch:
        """Compare numbers first: they are cheaper than text."""
        import numpy as np

        selected = np.ones(len(batch.positions), bool)
        numbers = [condition for condition in self.conditions if condition.column not in TEXTS]
        fixed = fixed_columns(batch, {condition.column for condition in numbers}) if numbers else {}
        for column, name, value in numbers:
            selected &= np.isin(fixed[column], value) if name == IN else COMPARED[name](fixed[column], value)
        batch = batch if selected.all() else _some(batch, selected)
        for column in TEXTS:
            conditions = [condition for condition in self.conditions if condition.column == column]
            if conditions and len(batch.positions):
                batch = _some(batch, _with_text(batch, column, conditions))
        return batch

    def _in_ranges(self, batch: Batch) -> Array:
        """Select by queue, queue offset and time; a queue without a range keeps all of its messages."""
        import numpy as np
        import pyarrow.compute as pc

        topics, fixed = record_batch(batch, ["topic"]).column(0), fixed_columns(batch, RANGE_COLUMNS)
        selected = np.full(len(batch.positions), self.queues is None)
        for queue_key in {*self.queue_starts, *self.queue_stops, *self.queue_times, *(self.queues or ())}:
            topic, queue_id = queue_key
            here = np.asarray(pc.equal(topics, topic)) & (fixed["queue_id"] == queue_id)
            low, high = self.queue_starts.get(queue_key, 0), self.queue_stops.get(queue_key, OFFSET_MAX)
            is_in = (fixed["queue_offset"] >= low) & (fixed["queue_offset"] < high)
            is_in &= fixed["store_timestamp_ms"] >= self.queue_times.get(queue_key, TIME_MIN)
            if self.queues is not None and queue_key in self.queues:
                selected |= here
            selected &= ~here | is_in
        return selected


def _some(batch: Batch, selected: Array) -> Batch:
    return batch._replace(positions=batch.positions[selected], sizes=batch.sizes[selected])


def _with_text(batch: Batch, column: str, conditions: list[Condition]) -> Array:
    """Select records whose text is among the values of each condition; a record without tags is not selected."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    found = record_batch(batch, [column]).column(0)
    selected = np.ones(len(found), bool)
    for _, name, value in conditions:
        values = pa.array(_matching(found, value) if name == MATCHES else value if name == IN else [value], pa.string())
        selected &= np.asarray(pc.is_in(found, values))
    return selected


def _matching(texts: pa.Array, pattern: str) -> list[str]:
    """Return the different texts that a regular expression matches as a whole."""
    matches = re.compile(pattern).fullmatch
    return [text for text in texts.unique().to_pylist() if text is not None and matches(text)]


def _has_key(batch: Batch, keys: frozenset[str]) -> Array:
    """Select records with a key among the words of KEYS or as UNIQ_KEY, as a broker's index does."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pa.array(sorted(keys), pa.string())
    words, properties = record_batch(batch, ["keys", "properties"]).columns
    is_unique_key = pc.equal(properties.keys, "UNIQ_KEY")
    selected = np.zeros(len(words), bool)
    for offsets, matches in (
        (words.offsets, pc.is_in(words.values, values)),
        (properties.offsets, pc.and_(is_unique_key, pc.is_in(properties.items, values))),
    ):
        found = np.flatnonzero(np.asarray(matches))  # positions among all words, or all properties
        selected[np.searchsorted(np.asarray(offsets), found, "right") - 1] = True
    return selected
