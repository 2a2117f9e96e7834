"""What repairs need of consume queues in RocksDB: the ends, the timers' queue, and consumer offsets that are not beyond an end.

A real broker opens such a store next, so a repair clamps the offsets itself; those of a store with queues in files are clamped
when it is opened.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from commitlog.topic_names import SCHEDULE_TOPIC
from consumequeue.ordinary import Unit
from storageio import Disk

from ..broker.config.consumer_offsets import ConsumerOffsets
from ..broker.config.delay_offsets import DelayOffsets
from ..folder_contents import has_rocksdb
from ..paths import StorePaths
from ..rocksdb.config import copy_with_offsets
from ..rocksdb.database import open_database
from ..rocksdb.queues import RocksdbEnd, read_ends, unit_of
from ..timers.layout import TIMER_TOPIC
from .backups import keep_file
from .rebuild import delete_tree, take_place

LOG = logging.getLogger(f"brokerstore.{__name__}")


class TimerQueue(NamedTuple):
    """The end of the timers' queue, and its last unit."""

    max_offset: int
    last: Unit | None

    def unit(self, queue_offset: int) -> Unit | None:
        """Return the last unit, if it is the one of this offset."""
        return self.last if queue_offset == self.max_offset - 1 else None


def queue_ends(disk: Disk, places: StorePaths) -> dict[tuple[str, int], RocksdbEnd]:
    """Return the last unit of each queue, by topic and queue id."""
    if not has_rocksdb(disk, places.queues):
        return {}
    with open_database(places.queues) as database:
        return {(end.topic, end.queue_id): end for end in read_ends(database) if end.is_max}


def timer_queue(disk: Disk, places: StorePaths) -> TimerQueue | None:
    """Return the timers' queue; None without one."""
    end = queue_ends(disk, places).get((TIMER_TOPIC, 0))
    if end is None:
        return None
    with open_database(places.queues) as database:
        unit = unit_of(database, TIMER_TOPIC.encode(), 0, end.queue_offset)
    return TimerQueue(end.queue_offset + 1, unit and Unit(*unit[3:6]))


def clamp_rocksdb_offsets(disk: Disk, places: StorePaths, *, dry_run: bool = False) -> list[str]:
    """Clamp offsets of consumers and delay levels to the ends of their queues; return a line for each.

    A new database with the offsets replaces the old one, which is kept in `brokerstore/`. `dry_run` changes nothing.
    """
    ends = queue_ends(disk, places)

    def end_of(topic: str, queue_id: int) -> int:
        end = ends.get((topic, queue_id))
        return end.queue_offset + 1 if end is not None else 0

    consumers, delays = ConsumerOffsets(disk, places.config), DelayOffsets(disk, places.config)
    changed = consumers.clamp(end_of)
    changed_delays = delays.clamp(lambda level: end_of(SCHEDULE_TOPIC, level - 1))
    lines = [f"{one.key} queue {one.queue_id} from {one.before} back to {one.after}" for one in (*changed, *changed_delays)]
    if dry_run:
        return lines
    for line in lines:
        LOG.warning("set back %s", line)
    if changed and consumers.is_in_rocksdb:
        _write(disk, places, {(one.key, one.queue_id): one.after for one in changed})
    else:
        consumers.persist()
    if changed_delays:
        keep_file(disk, places.root, os.path.join(places.config, DelayOffsets.file_name))
        delays.persist()
    return lines


def _write(disk: Disk, places: StorePaths, changes: dict[tuple[str, int], int]) -> None:
    work = os.path.join(places.own, "rebuild")
    delete_tree(disk, work)
    fresh = os.path.join(work, "offsets")
    name = copy_with_offsets(disk, places.root, fresh, changes)
    target = os.path.join(places.root, name)
    disk.sync_folder(work)
    take_place(disk, fresh, target, places.root, keeps=True)
    disk.sync_folder(os.path.dirname(target))
    delete_tree(disk, work)
    disk.sync_folder(places.own)
