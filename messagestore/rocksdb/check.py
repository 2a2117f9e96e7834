"""Check a store's databases: compare consume queues with the log, in both directions, and read the configuration.

Queues are compared without holding them in memory.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from commitlog import StoredMessage
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from commitlog.walk import LogFiles, Piece
from storageio import Disk, StoreCorrupt, StoreError, UnsupportedFormat
from storebytes.finding import Finding, note

from ..broker.config.topics import deleted_topics
from ..folder_contents import NOT_READ, FolderContents, Use, has_rocksdb
from ..paths import StorePaths
from ..write.lmq_units import lmq_offsets
from .config import DATABASES, VERSION_2, has_config, read_config
from .database import Database, can_read, open_database
from .queues import RocksdbUnit, code_of_tags, last_ends, read_units, unit_of

FINDINGS_MAX = 100
QUEUES_FOLDER = "consumequeue"
UNREADABLE, UNIT, EXTRA_UNIT, END = "unreadable", "rocksdb_unit", "rocksdb_extra_unit", "rocksdb_end"


class _Expected(NamedTuple):
    physical_offset: int
    size_bytes: int
    tags_code: int | None  # None for delayed messages, whose code is their due time
    store_timestamp_ms: int


def part_findings(disk: Disk, root: str, files: LogFiles) -> Iterator[Finding]:
    """Yield what is wrong with the queues and the configuration in RocksDB, and a note for each part of the store not read.

    Without the package that reads RocksDB the databases are among the parts that are not read.
    """
    read = set()
    if can_read():
        path = os.path.join(root, QUEUES_FOLDER)
        if has_rocksdb(disk, path):
            yield from rocksdb_findings(path, files, deleted_topics(disk, StorePaths(root)))
            read.add(QUEUES_FOLDER)
        if has_config(disk, root):
            try:
                read_config(disk, root)
                read.update((VERSION_2, *DATABASES))
            except UnsupportedFormat:
                pass  # a note below names it
            except StoreError as error:
                read.update((VERSION_2, *DATABASES))
                yield Finding(os.path.join(root, "config"), 0, UNREADABLE, "configuration in RocksDB", str(error))
    for part in FolderContents(disk, root).parts:
        if part.use is not Use.READ and part.name not in read:
            yield note(os.path.join(root, part.name), 0, NOT_READ, "a part that is read", part.what)


def queue_ends(disk: Disk, root: str) -> dict[tuple[str, int], int] | None:
    """Return the end offset of each queue in RocksDB, None if they cannot be read; `part_findings` reports that."""
    path = os.path.join(root, QUEUES_FOLDER)
    if not can_read() or not has_rocksdb(disk, path):
        return None
    try:
        with open_database(path) as database:
            return {queue: end.queue_offset + 1 for queue, end in last_ends(database).items()}
    except StoreCorrupt:
        return None


def rocksdb_findings(
    path: str, files: LogFiles, is_deleted: Callable[[str], bool] = lambda _topic: False, lost: dict[str, int] | None = None
) -> Iterator[Finding]:  # fmt: skip
    """Yield what is wrong with the queues in the database at `path`, at most `FINDINGS_MAX` of a kind.

    `is_deleted` names topics whose units a broker deleted, or soon deletes. `lost` gets the number of units before the
    end of the log that belong to no record, by `topic/queue`.

    Raises `MissingExtra` without the package that reads RocksDB.
    """
    counts: Counter[str] = Counter()
    try:
        with open_database(path) as database:
            check = _Check(database, files, is_deleted)
            for finding in check.findings():
                counts[finding.kind] += 1
                if counts[finding.kind] <= FINDINGS_MAX:
                    yield finding
            if lost is not None:
                lost.update({queue: number for queue, number in check.unmatched.items() if number > 0})
    except StoreCorrupt as error:
        yield Finding(error.file, error.offset, UNREADABLE, str(error.expected), f"{error.reason}: {error.found}")


class _Check:
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
        """Look up the unit of each record."""
        for step in self._files.walk():
            for message in step.messages() if isinstance(step, Piece) else ():
                self._end = message.physical_offset + message.size
                if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT):
                    yield from self._record(message)

    def _record(self, message: StoredMessage) -> Iterator[Finding]:
        unit = unit_of(self._database, message.topic.encode(), message.queue_id, message.queue_offset)
        code = code_of_tags(message)
        expected = _Expected(message.physical_offset, message.size, code, message.store_timestamp_ms)
        where = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
        if unit is None and self._is_deleted(message.topic):
            return
        if unit is None:
            yield Finding(self._database.path, 0, UNIT, f"{where}: {_text(expected)}", "no unit")
            return
        self._found += 1
        self.unmatched[f"{message.topic}/{message.queue_id}"] -= 1
        own = expected._replace(tags_code=unit.tags_code if code is None else code)
        if own != unit[3:]:
            yield Finding(self._database.path, 0, UNIT, f"{where}: {_text(own)}", _text(_Expected(*unit[3:])))
        if b"INNER_MULTI_DISPATCH" in message.properties_raw:
            yield from self._lmq_units(message, own)

    def _lmq_units(self, message: StoredMessage, own: _Expected) -> Iterator[Finding]:
        """Look up the units of a record in LMQs; a broker without LMQs writes none."""
        for name, number in lmq_offsets(message):
            unit = unit_of(self._database, name.encode(), 0, number)
            self._found += unit is not None
            self.unmatched[f"{name}/0"] -= unit is not None
            if unit is not None and own != unit[3:]:
                where = f"{name} queue 0 offset {number}"
                yield Finding(self._database.path, 0, UNIT, f"{where}: {_text(own)}", _text(_Expected(*unit[3:])))

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


def _text(expected: _Expected) -> str:
    return ", ".join(str(value) for value in expected)
