"""Clamp offsets beyond the end of their queue: those of consumers, delay levels and the transaction service.

A consumer whose offset is beyond its queue's end would silently skip the next messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from commitlog.topic_names import SCHEDULE_TOPIC
from storageio import Disk, StoreCorrupt

from ..broker.config.consumer_offsets import ClampedOffset, ConsumerOffsets, EndOf, LmqConsumerOffsets
from ..broker.config.delay_offsets import DelayOffsets

LOG = logging.getLogger(f"brokerstore.{__name__}")

Table = ConsumerOffsets | DelayOffsets
Save = Callable[[Table, list[ClampedOffset]], object]
OFFSET_TABLES: Sequence[type[Table]] = (ConsumerOffsets, LmqConsumerOffsets, DelayOffsets)


def clamp_offsets(
    disk: Disk, config_folder: str, end_of: EndOf, save: Save | None, tables: Sequence[type[Table]] = OFFSET_TABLES
) -> list[str]:  # fmt: skip
    """Clamp offsets and `save` each table, or without `save` only find them; return a line for each.

    Unreadable files are logged.
    """
    return [line for kind in tables for line in _clamp(kind, disk, config_folder, end_of, save)]


def _clamp(kind: type[Table], disk: Disk, config_folder: str, end_of: EndOf, save: Save | None) -> list[str]:
    """Clamp the offsets of one table."""
    try:
        table = kind(disk, config_folder)
        if isinstance(table, DelayOffsets):
            changed = table.clamp(lambda level: end_of(SCHEDULE_TOPIC, level - 1))
        else:
            changed = table.clamp(end_of)
        if save is not None:
            save(table, changed)
    except StoreCorrupt as error:  # a failing disk must raise: consumers would skip messages
        LOG.warning("%s: not looked at: %s", kind.file_name, error)
        return []
    name = "RocksDB" if table.is_in_rocksdb else kind.file_name
    lines = [f"{name}: {one.key} queue {one.queue_id} from {one.before} back to {one.after}" for one in changed]
    for line in [] if save is None else lines:
        LOG.warning("set back %s", line)
    return lines
