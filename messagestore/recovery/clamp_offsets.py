"""Numbers that point beyond what recovery left: consumers', delay levels' and the transaction service's own.

A consumer whose offset lies behind its queue's end would silently skip the next messages, so such numbers go back to the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from consumequeue import BatchQueues, ConsumeQueues
from storageio import Disk, StoreCorrupt

from ..broker.config.consumer_offsets import ConsumerOffsets, LmqConsumerOffsets, SetBack
from ..broker.config.delay_offsets import DelayOffsets

LOG = logging.getLogger(__name__)
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


def clamp_offsets(
    disk: Disk, config_folder: str, queues: ConsumeQueues, *, only_look: bool = False, batch: BatchQueues | None = None
) -> list[str]:
    """Set back and persist, or only look; what it is, in words.  A config file beyond use is said and left alone."""

    def end_of(topic: str, queue_id: int) -> int:
        queue = queues.get(topic, queue_id) or (batch.get(topic, queue_id) if batch is not None else None)
        return queue.max_offset if queue is not None else 0

    said = []
    for offsets in (ConsumerOffsets, LmqConsumerOffsets):
        said += _try(disk, config_folder, offsets, end_of, only_look)
    said += _try(disk, config_folder, DelayOffsets, lambda level: end_of(SCHEDULE_TOPIC, level - 1), only_look)
    return said


def _try(disk: Disk, config_folder: str, kind: type[Any], end_of: Callable[..., int], only_look: bool) -> list[str]:
    """One file's numbers."""
    try:
        table = kind(disk, config_folder)
        changed: list[SetBack] = table.set_back(end_of)
        if not only_look:
            table.persist()
    except StoreCorrupt as error:  # a disk that fails is no reason to let consumers pass over what comes
        LOG.warning("%s: not looked at: %s", kind.file_name, error)
        return []
    lines = [f"{kind.file_name}: {one.key} queue {one.queue_id} from {one.before} back to {one.after}" for one in changed]
    for line in [] if only_look else lines:
        LOG.warning("set back %s", line)
    return lines
