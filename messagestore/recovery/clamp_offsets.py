"""Clamp offsets beyond the end of their queue: those of consumers, delay levels and the transaction service.

A consumer whose offset is beyond its queue's end would silently skip the next messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from storageio import Disk, StoreCorrupt

from ..broker.config.consumer_offsets import OFFSETS_IN_FILES, ClampedOffset, ConsumerOffsets, EndOf
from ..broker.config.delay_offsets import DelayOffsets

LOG = logging.getLogger(f"brokerstore.{__name__}")

Table = ConsumerOffsets | DelayOffsets
Save = Callable[[Table, list[ClampedOffset]], object]
OFFSET_TABLES: Sequence[type[Table]] = (*OFFSETS_IN_FILES, DelayOffsets)


def clamp_offsets(
    disk: Disk, config_folder: str, end_of: EndOf, save: Save | None, tables: Sequence[type[Table]] = OFFSET_TABLES
) -> list[str]:  # fmt: skip
    """Clamp the offsets of `tables` and `save` each, or without `save` only find them; return a line for each offset.

    Unreadable files of all tables are logged.
    """
    lines: list[str] = []
    for table, changed in clamped(disk, config_folder, end_of, tables):
        name = "RocksDB" if table.is_in_rocksdb else table.file_name
        found = [f"{name}: {one.key} queue {one.queue_id} from {one.before} back to {one.after}" for one in changed]
        if save is not None:
            save(table, changed)
            for line in found:
                LOG.warning("set back %s", line)
        lines += found
    return lines


def clamped(
    disk: Disk, config_folder: str, end_of: EndOf, tables: Sequence[type[Table]] = OFFSET_TABLES
) -> Iterator[tuple[Table, list[ClampedOffset]]]:  # fmt: skip
    """Yield each table with its offsets clamped in memory, and what changed; log unreadable files of all tables."""
    for kind in OFFSET_TABLES:
        table = _readable(kind, disk, config_folder)
        if table is not None and kind in tables:
            yield table, table.clamp(end_of)


def _readable(kind: type[Table], disk: Disk, config_folder: str) -> Table | None:
    """Return a table, None if its file has to stay as it is; a failing disk raises, because consumers would skip messages."""
    try:
        table = kind(disk, config_folder)
    except StoreCorrupt as error:
        LOG.warning("%s: not looked at: %s", kind.file_name, error)
        return None
    if table.is_lost:
        begin = "each level is searched in the log" if kind is DelayOffsets else "every group starts anew"
        LOG.warning("%s: neither the file nor its backup is readable: %s: %s", kind.file_name, begin, table.damage)
    return table
