"""Count the delayed messages that wait for their delivery, of a store that may be open for reading only."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from commitlog.topic_names import SCHEDULE_TOPIC

from ...property_names import REAL_TOPIC
from ..config.delay_offsets import DelayOffsets
from .broker_queues import broker_queues
from .delay_resume import delivered_since

if TYPE_CHECKING:
    from ...parts import StoreParts


def waiting_delays(parts: StoreParts) -> Counter[str]:
    """Return the number of waiting messages by the topic that they are for; empty if the record names none.

    What a killed writer delivered without counting it is found in the log, unless the queues are in RocksDB.
    """
    found: Counter[str] = Counter()
    with broker_queues(parts, SCHEDULE_TOPIC) as queues:
        if not queues:
            return found
        offsets = DelayOffsets(parts.disk, parts.paths.config)
        next_offsets = offsets.levels() | delivered_since(parts, offsets)
        for (_, queue_id), queue in queues.items():
            for _, unit in queue.units(max(queue.min_offset, next_offsets.get(queue_id + 1, 0))):
                message = parts.log.message_at(unit.physical_offset)
                if message is not None:
                    found[message.all_properties.get(REAL_TOPIC, "")] += 1
    return found
