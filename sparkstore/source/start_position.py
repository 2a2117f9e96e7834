"""Where a new streaming query starts, by queue offsets and store time.

Every offset of a stream contains it, so a resumed query keeps its original start whatever its options are by then.  As in
Spark's Kafka source, the starting options apply only to a new query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..options import QueueKey, ReadOptions


class StartPosition(NamedTuple):
    """The first queue offset to read of each named queue, the first store time, if any, and those of single queues."""

    queues: Mapping[QueueKey, int]
    timestamp_ms: int | None
    queue_times: Mapping[QueueKey, int] = {}

    @classmethod
    def of(cls, options: ReadOptions) -> StartPosition | None:
        """Return the start position, or None where every record from a physical offset on is read."""
        made = cls(options.start.queues, options.begin_ms, options.queue_times)
        return made if made.queues or made.queue_times or made.timestamp_ms is not None else None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; queues are nested as in the option startingOffsets."""
        times = {"queue_times": _nested(self.queue_times)} if self.queue_times else {}
        return {"queues": _nested(self.queues), "timestamp_ms": self.timestamp_ms, **times}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> StartPosition:
        """Parse the JSON form.  Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        time = found["timestamp_ms"]
        queue_times = _flat(found.get("queue_times", {}))
        return cls(_flat(found["queues"]), None if time is None else int(time), queue_times)


def _nested(queues: Mapping[QueueKey, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, queue_id), number in queues.items():
        found.setdefault(topic, {})[str(queue_id)] = number
    return found


def _flat(found: Mapping[str, Mapping[str, Any]]) -> dict[QueueKey, int]:
    return {(topic, int(queue_id)): int(number) for topic, queues in found.items() for queue_id, number in queues.items()}
