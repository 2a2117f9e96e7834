"""Where a new streaming query starts, by queue offsets and store time.

Every offset of a stream contains it, so a resumed query keeps its original start whatever its options are by then.  As in
Spark's Kafka source, the starting options apply only to a new query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..options import QueueKey, ReadOptions


class StartPosition(NamedTuple):
    """The first queue offset to read of each named queue, and the first store time, if any."""

    queues: Mapping[QueueKey, int]
    timestamp_ms: int | None

    @classmethod
    def of(cls, options: ReadOptions) -> StartPosition | None:
        """Return the start position, or None where every record from a physical offset on is read."""
        made = cls(options.start.queues, options.begin_ms)
        return made if made.queues or made.timestamp_ms is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; queues are nested as in the option startingOffsets."""
        queues: dict[str, dict[str, int]] = {}
        for (topic, queue_id), offset in self.queues.items():
            queues.setdefault(topic, {})[str(queue_id)] = offset
        return {"queues": queues, "timestamp_ms": self.timestamp_ms}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> StartPosition:
        """Parse the JSON form.  Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        time = found["timestamp_ms"]
        positions = {(topic, int(id)): int(at) for topic, queues in found["queues"].items() for id, at in queues.items()}
        return cls(positions, None if time is None else int(time))
