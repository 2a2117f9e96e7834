"""Where a new query begins, by queue offsets and store time.

The offsets of a stream carry it from the first on.  So a query that is resumed goes on with what it began with, whatever its
options say then: as Spark's Kafka source has it, they are for a new query alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..options import Lane, ReadOptions


class Starting(NamedTuple):
    """`queues`: the first queue offset wanted of each queue that is named; `timestamp_ms`: the first store time, if any."""

    queues: Mapping[Lane, int]
    timestamp_ms: int | None

    @classmethod
    def of(cls, options: ReadOptions) -> Starting | None:
        """None where every record from a physical offset on is wanted."""
        made = cls(options.start.queues, options.begin_ms)
        return made if made.queues or made.timestamp_ms is not None else None

    def to_json(self) -> dict[str, Any]:
        """Queues as the option says them."""
        queues: dict[str, dict[str, int]] = {}
        for (topic, queue_id), offset in self.queues.items():
            queues.setdefault(topic, {})[str(queue_id)] = offset
        return {"queues": queues, "timestamp_ms": self.timestamp_ms}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Starting:
        """Raises `KeyError`, `TypeError` or `ValueError` for what none of ours wrote."""
        time = found["timestamp_ms"]
        lanes = {(topic, int(id)): int(at) for topic, queues in found["queues"].items() for id, at in queues.items()}
        return cls(lanes, None if time is None else int(time))
