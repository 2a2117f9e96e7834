"""Clamp offsets beyond the end of their queue: those of consumers, delay levels and the transaction service.

A consumer whose offset is beyond its queue's end would silently skip the next messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from commitlog.topic_names import SCHEDULE_TOPIC
from consumequeue import AllQueues
from storageio import Disk, StoreCorrupt

from ..broker.config.consumer_offsets import ClampedOffset, ConsumerOffsets, LmqConsumerOffsets
from ..broker.config.delay_offsets import DelayOffsets

LOG = logging.getLogger(f"brokerstore.{__name__}")


def clamp_offsets(disk: Disk, config_folder: str, queues: AllQueues, *, dry_run: bool = False) -> list[str]:
    """Clamp and persist offsets, or with `dry_run` only find them; return a line for each.

    Unreadable files are logged.
    """

    def end_of(topic: str, queue_id: int) -> int:
        queue = queues.get(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    lines = []
    for offsets in (ConsumerOffsets, LmqConsumerOffsets):
        lines += _try(disk, config_folder, offsets, end_of, dry_run)
    lines += _try(disk, config_folder, DelayOffsets, lambda level: end_of(SCHEDULE_TOPIC, level - 1), dry_run)
    return lines


def _try(disk: Disk, config_folder: str, kind: type[Any], end_of: Callable[..., int], dry_run: bool) -> list[str]:
    """Clamp the offsets of one file."""
    try:
        table = kind(disk, config_folder)
        changed: list[ClampedOffset] = table.clamp(end_of)
        if not dry_run:
            table.persist()
    except StoreCorrupt as error:  # a failing disk must raise: consumers would skip messages
        LOG.warning("%s: not looked at: %s", kind.file_name, error)
        return []
    lines = [f"{kind.file_name}: {one.key} queue {one.queue_id} from {one.before} back to {one.after}" for one in changed]
    for line in [] if dry_run else lines:
        LOG.warning("set back %s", line)
    return lines
