"""Queues in RocksDB: a row for each unit, at the record's own queue offset (docs/formats/rocketmq-rocksdb.md).

A rebuild makes a new database beside the old one, in `brokerstore/rebuild/`, and swaps it in when it is synced. The old one is
kept in `brokerstore/`, because it may have more than what can be rebuilt: the ends of queues whose records all left the log are
copied from it only if it can be read.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from commitlog import StoredMessage
from commitlog.topic_names import SCHEDULE_TOPIC
from commitlog.walk import LogFiles, Piece
from storageio import Disk, StoreCorrupt
from storebytes.finding import FINDINGS_MAX, Finding, limited
from storebytes.plan import count_text

from ...broker.config.topics import deleted_topics
from ...folder_contents import has_rocksdb
from ...paths import StorePaths, replaced_folder
from ...rocksdb.database import Database, NewDatabase, new_database, open_database
from ...rocksdb.queues import (
    CHECKPOINT_TOPIC,
    ENDS,
    UNITS,
    RocksdbUnit,
    end_row,
    last_ends,
    read_units,
    unit_key,
    unit_of,
    unit_value,
)
from ...store_settings import read_levels
from ...swap import delete_tree, replace_tree
from ..rebuild import QUEUES, Progress, Rebuilt
from . import is_dispatched, queue_keys_of, tags_code
from .scheduled import DelayLevels, ScheduledEntry, waiting_level

LOG = logging.getLogger(f"brokerstore.{__name__}")
UNREADABLE, UNIT, EXTRA_UNIT, END = "unreadable", "rocksdb_unit", "rocksdb_extra_unit", "rocksdb_end"


def _known_code(message: StoredMessage) -> int | None:
    """Return the tags code of a record's units; None for a delayed message, whose code is its due time."""
    return None if message.topic == SCHEDULE_TOPIC else tags_code(message)


def rocksdb_findings(
    path: str, files: LogFiles, is_deleted: Callable[[str], bool] = lambda _topic: False, lost: dict[str, int] | None = None
) -> Iterator[Finding]:  # fmt: skip
    """Yield what is wrong with the queues in the database at `path`, at most `FINDINGS_MAX` of a kind.

    Queues are compared without holding them in memory. `is_deleted` names topics whose units a broker deleted, or soon deletes.
    `lost` gets the number of units before the end of the log that belong to no record, by `topic/queue`.

    Raises `MissingExtra` without the package that reads RocksDB.
    """
    try:
        with open_database(path) as database:
            check = _RocksdbCheck(database, files, is_deleted)
            yield from limited(check.findings())
            if lost is not None:
                lost.update({queue: number for queue, number in check.unmatched.items() if number > 0})
    except StoreCorrupt as error:
        yield Finding(error.file, error.offset, UNREADABLE, str(error.expected), f"{error.reason}: {error.found}")


class _RocksdbCheck:
    """Compares one database with one log."""

    def __init__(self, database: Database, files: LogFiles, is_deleted: Callable[[str], bool]) -> None:
        self._database = database
        self._is_deleted = is_deleted
        self._files = files
        self._low = files.files[0].start_offset if files.files else 0
        self._end = self._low  # of the last record
        self._found = 0  # units that belong to a record
        self.unmatched: Counter[str] = Counter()  # units of each queue, less those that belong to a record

    def findings(self) -> Iterator[Finding]:
        yield from self._records()
        yield from self._units()

    def _records(self) -> Iterator[Finding]:
        """Look up the units of each record.

        A killed broker loses the units behind some record, because its write-ahead log is empty: that is one finding.
        """
        lost: list[Finding] = []  # of records behind the last one with a unit
        lost_from = lost_count = 0
        for step in self._files.walk():
            for message in step.messages() if isinstance(step, Piece) else ():
                self._end = message.physical_offset + message.size
                if not is_dispatched(message):
                    continue
                before = self._found
                found = list(self._record(message))
                if self._found > before:
                    yield from lost
                    lost, lost_count = [], 0
                    yield from found
                elif found:
                    lost_from = lost_from if lost_count else message.physical_offset
                    lost_count += 1
                    lost += found[: FINDINGS_MAX + 1 - len(lost)]
        if lost_count:
            expected = f"units of the {count_text(lost_count, 'message')} from {lost_from} on"
            found_text = "none: the write-ahead log of the queues is empty, as after a kill; the log is intact"
            yield Finding(self._database.path, 0, UNIT, expected, found_text)

    def _record(self, message: StoredMessage) -> Iterator[Finding]:
        """Look up a record's own unit, and those in queues of other topics; a broker that does not build these writes none."""
        code, is_own = _known_code(message), True
        for topic, queue_id, number in queue_keys_of(message):
            unit = unit_of(self._database, topic.encode(), queue_id, number)
            where = f"{topic} queue {queue_id} offset {number}"
            if unit is None and is_own:
                if not self._is_deleted(topic):
                    expected = message.physical_offset, message.size, code, message.store_timestamp_ms
                    yield Finding(self._database.path, 0, UNIT, f"{where}: {_text(expected)}", "no unit")
                return
            if unit is not None:
                code = unit.tags_code if code is None else code
                self._found += 1
                self.unmatched[f"{topic}/{queue_id}"] -= 1
                expected = message.physical_offset, message.size, code, message.store_timestamp_ms
                if expected != unit[3:]:
                    yield Finding(self._database.path, 0, UNIT, f"{where}: {_text(expected)}", _text(unit[3:]))
            is_own = False

    def _units(self) -> Iterator[Finding]:
        """Count the units of records that the log has, and compare the last of each queue with the ends."""
        inside = 0
        last: dict[tuple[str, int], RocksdbUnit] = {}
        for unit in read_units(self._database):
            last[unit.topic, unit.queue_id] = unit
            inside += unit.physical_offset >= self._low
            self.unmatched[f"{unit.topic}/{unit.queue_id}"] += self._low <= unit.physical_offset < self._end
            if unit.physical_offset + unit.size_bytes > self._end:
                where = f"{unit.topic} queue {unit.queue_id} offset {unit.queue_offset}"
                yield Finding(
                    self._database.path, 0, EXTRA_UNIT, f"at most {self._end}, the end of the log", f"{where}: {unit[3:5]}"
                )
        if inside > self._found:
            found = f"{inside}, of which {inside - self._found} belong to no record"
            yield Finding(self._database.path, 0, EXTRA_UNIT, f"{self._found} units", found)
        yield from self._ends(last)

    def _ends(self, last: dict[tuple[str, int], RocksdbUnit]) -> Iterator[Finding]:
        ends = last_ends(self._database)
        for queue in sorted({*ends, *last}):
            unit, end = last.get(queue), ends.get(queue)
            expected = unit and (unit.physical_offset, unit.queue_offset)
            found = end and (end.physical_offset, end.queue_offset)
            if expected != found and (end is None or end.physical_offset >= self._low):
                where = f"{queue[0]} queue {queue[1]}"
                yield Finding(self._database.path, 0, END, f"{where}: last unit {expected}", str(found))


def _text(unit: Iterable[int | None]) -> str:
    """Return physical offset, size, tags code and store time as text."""
    return ", ".join(str(value) for value in unit)


def rebuild_rocksdb(
    disk: Disk, paths: StorePaths, files: LogFiles, end_offset: int, delay_levels: str | None, progress: Progress | None = None
) -> Rebuilt:  # fmt: skip
    """Rebuild the queues from a log without damage that ends at `end_offset`. The caller holds the store's lock."""
    with ExitStack() as opened:
        fresh = opened.enter_context(replacement(disk, paths, QUEUES))
        old = opened.enter_context(open_database(path)) if (path := _old_path(disk, paths)) and _is_readable(path) else None
        made = _Rebuild(disk, paths, old, read_levels(disk, paths.own, delay_levels))
        with new_database(disk, fresh, [UNITS, ENDS]) as database:
            return made.build(database, files, end_offset, progress)


@contextmanager
def replacement(disk: Disk, paths: StorePaths, name: str) -> Iterator[str]:
    """Give the path for a new database, which then replaces the one of this name in the store; the old one is kept."""
    work = os.path.join(paths.own, "rebuild")
    delete_tree(disk, work)
    fresh = os.path.join(work, os.path.basename(name))
    yield fresh
    disk.sync_folder(work)
    replace_tree(disk, fresh, os.path.join(paths.root, name), paths.root, keeps=True)
    delete_tree(disk, work)
    disk.sync_folder(paths.own)


def _old_path(disk: Disk, store_paths: StorePaths) -> str | None:
    paths = (store_paths.queues, replaced_folder(store_paths.root, QUEUES))
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

    def __init__(self, disk: Disk, paths: StorePaths, old: Database | None, levels: DelayLevels) -> None:
        self._old = old
        self._levels = levels
        self._assumed = DelayLevels([ScheduledEntry(0, levels.current)])
        self._root = paths.root
        self._is_deleted = deleted_topics(disk, paths)
        self._ends: dict[tuple[str, int], list[tuple[int, int]]] = {}  # first and last unit: log and queue offset
        self._units = self._guesses = 0

    def build(self, database: NewDatabase, files: LogFiles, end_offset: int, progress: Progress | None) -> Rebuilt:
        low = files.files[0].start_offset if files.files else 0
        for step in files.walk():
            if isinstance(step, Piece):
                for message in step.messages():
                    if is_dispatched(message):
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
        code = _known_code(message)
        for topic, queue_id, queue_offset in queue_keys_of(message):
            if self._is_deleted(topic):
                continue
            value = unit_value(
                message.physical_offset, message.size, self._due_ms(message) if code is None else code,
                message.store_timestamp_ms,
            )  # fmt: skip
            database.put(UNITS, unit_key(topic.encode(), queue_id, queue_offset), value)
            position = (message.physical_offset, queue_offset)
            ends = self._ends.setdefault((topic, queue_id), [position, position])
            ends[1] = position
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
