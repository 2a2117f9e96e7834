"""Rebuild consume queues in RocksDB from the log beside the old database, and swap them in when they are synced.

The new database is built in `brokerstore/rebuild/`. The old one is kept in `brokerstore/`, because it may have more than
what can be rebuilt: the ends of queues whose records all left the log are copied from it only if it can be read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from commitlog import StoredMessage
from commitlog.layout import TRANSACTION_MASK
from commitlog.walk import LogFiles, Piece
from storageio import Disk, StoreCorrupt

from ..broker.config.topics import deleted_topics
from ..delay_levels import DelayLevels, Entry, waiting_level
from ..folder_contents import has_rocksdb
from ..paths import StorePaths, replaced_folder
from ..rocksdb.database import Database, NewDatabase, new_database, open_database
from ..rocksdb.queues import (
    CHECKPOINT_TOPIC,
    ENDS,
    UNITS,
    RocksdbUnit,
    code_of_tags,
    end_row,
    last_ends,
    unit_key,
    unit_of,
    unit_value,
)
from ..store_settings import read_levels
from ..write.lmq_units import NORMAL, lmq_offsets
from .rebuild import QUEUES, Progress, Rebuilt, delete_tree, take_place

LOG = logging.getLogger(f"brokerstore.{__name__}")


def rebuild_rocksdb(
    disk: Disk, places: StorePaths, files: LogFiles, end_offset: int, delay_levels: str | None, progress: Progress | None = None
) -> Rebuilt:  # fmt: skip
    """Rebuild the queues from a log without damage that ends at `end_offset`. The caller holds the store's lock."""
    with ExitStack() as opened:
        fresh = opened.enter_context(replacement(disk, places, QUEUES))
        old = opened.enter_context(open_database(path)) if (path := _old_path(disk, places)) and _is_readable(path) else None
        made = _Rebuild(disk, places, old, read_levels(disk, places.own, delay_levels))
        with new_database(disk, fresh, [UNITS, ENDS]) as database:
            return made.build(database, files, end_offset, progress)


@contextmanager
def replacement(disk: Disk, places: StorePaths, name: str) -> Iterator[str]:
    """Give the path for a new database, which then replaces the one of this name in the store; the old one is kept."""
    work = os.path.join(places.own, "rebuild")
    delete_tree(disk, work)
    fresh = os.path.join(work, os.path.basename(name))
    yield fresh
    disk.sync_folder(work)
    take_place(disk, fresh, os.path.join(places.root, name), places.root, keeps=True)
    delete_tree(disk, work)
    disk.sync_folder(places.own)


def _old_path(disk: Disk, places: StorePaths) -> str | None:
    paths = (places.queues, replaced_folder(places.root, QUEUES))
    return next((path for path in paths if has_rocksdb(disk, path)), None)


def _is_readable(path: str) -> bool:
    """Return whether the ends of all queues can be read from a database."""
    try:
        with open_database(path) as database:
            last_ends(database)
            return True
    except StoreCorrupt as error:
        LOG.warning("%s: queues whose records all left the log begin again at 0: %s", path, error)
        return False


class _Rebuild:
    """Writes the units of one store's log to a new database."""

    def __init__(self, disk: Disk, places: StorePaths, old: Database | None, levels: DelayLevels) -> None:
        self._old = old
        self._levels = levels
        self._assumed = DelayLevels([Entry(0, levels.current)])
        self._root = places.root
        self._is_deleted = deleted_topics(disk, places)
        self._ends: dict[tuple[str, int], list[tuple[int, int]]] = {}  # first and last unit: log and queue offset
        self._units = self._guesses = 0

    def build(self, database: NewDatabase, files: LogFiles, end_offset: int, progress: Progress | None) -> Rebuilt:
        low = files.files[0].start_offset if files.files else 0
        for step in files.walk():
            if isinstance(step, Piece):
                for message in step.messages():
                    if message.sys_flag & TRANSACTION_MASK in NORMAL:
                        self._add(database, message)
                if progress is not None:
                    progress(step.stop - step.start)
        self._keep_ends(low)
        for (topic, queue_id), (first, last) in self._ends.items():
            database.put(ENDS, *end_row(topic.encode(), queue_id, False, first))
            database.put(ENDS, *end_row(topic.encode(), queue_id, True, last))
        database.put(ENDS, *end_row(CHECKPOINT_TOPIC.encode(), 0, True, end_offset))
        if self._guesses:
            LOG.warning(
                "%s: no unit says when %d delayed messages are due: the delay levels %r were assumed; if their broker has "
                "others, rebuild with --config broker.conf", self._root, self._guesses, self._levels.current,
            )  # fmt: skip
        return Rebuilt(len(self._ends), self._units, 0, end_offset - low)

    def _add(self, database: NewDatabase, message: StoredMessage) -> None:
        for topic, queue_id, queue_offset in _queues_of(message):
            if self._is_deleted(topic):
                continue
            code = code_of_tags(message)
            value = unit_value(
                message.physical_offset,
                message.size,
                self._due_ms(message) if code is None else code,
                message.store_timestamp_ms,
            )
            database.put(UNITS, unit_key(topic.encode(), queue_id, queue_offset), value)
            place = (message.physical_offset, queue_offset)
            ends = self._ends.setdefault((topic, queue_id), [place, place])
            ends[1] = place
            self._units += 1

    def _due_ms(self, message: StoredMessage) -> int:
        """Return the due time of a delayed message: the old unit's, if it can be, else by its level."""
        if waiting_level(message) <= 0:
            return 0
        old = self._old_unit(message)
        is_same = old is not None and old[3:5] == (message.physical_offset, message.size)
        if old is not None and is_same and self._levels.may_be_due(message, old.tags_code):
            return old.tags_code
        due_ms = self._levels.due_ms(message)
        if due_ms is None:
            self._guesses += 1
            due_ms = self._assumed.due_ms(message)
        assert due_ms is not None
        return due_ms

    def _old_unit(self, message: StoredMessage) -> RocksdbUnit | None:
        """Return the old unit of a record; None if there is none, or if its table is damaged."""
        if self._old is None:
            return None
        with suppress(StoreCorrupt):
            return unit_of(self._old, message.topic.encode(), message.queue_id, message.queue_offset)
        return None

    def _keep_ends(self, low: int) -> None:
        """Keep the last unit of queues whose records all left the log: nothing else tells the offset of their next message."""
        for queue, end in last_ends(self._old).items() if self._old is not None else ():
            if end.physical_offset < low and queue not in self._ends and not self._is_deleted(end.topic):
                self._ends[queue] = [(end.physical_offset, end.queue_offset)] * 2


def _queues_of(message: StoredMessage) -> Iterator[tuple[str, int, int]]:
    """Yield topic, queue id and offset in the record's own queue, then in each LMQ that it names."""
    yield message.topic, message.queue_id, message.queue_offset
    if b"INNER_MULTI_DISPATCH" in message.properties_raw:
        for name, number in lmq_offsets(message):
            yield name, 0, number
