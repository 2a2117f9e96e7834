"""Read the compacted topics of a broker (`docs/formats/rocketmq-compaction.md`).

A topic with `cleanup.policy=COMPACTION` has, beside its ordinary records and queues, a log and a queue of its own for each
queue id. The broker removes older messages of a key from them, and its consumers read nothing else. Nothing here changes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from itertools import takewhile
from typing import NamedTuple

from commitlog import StoredMessage
from commitlog.walk import COMPACTED_LOGS, LogFiles, Piece
from consumequeue import BatchUnit
from consumequeue.layout import BATCH_UNIT, BATCH_UNIT_SIZE
from storageio import Disk, Kind, keep_copy, read_head
from storebytes.finding import Finding, note
from storebytes.java_hash import java_hash_code

from .broker.config.config_files import ConfigFile
from .folder_contents import COMPACTION, NOT_READ, is_folder

QUEUES = "compactionCq"
POSITIONS, OFFSETS = "position-checkpoint", "queueOffsetMap"
UNFINISHED = ("compacting", "replicating")  # folders of a compaction, or of a copy from the master, that was interrupted
UNITS_SIZE_MAX = 64 << 20  # of one file; the default of a broker is 10 MiB
UNIT, RECORD, ORDER, MISSING = "compaction_unit", "compaction_record", "compaction_order", "missing_file"
_IN_USE = "files that a broker replaces at any time"


class CompactedQueue(NamedTuple):
    """One queue of a compacted topic, and the folders of its log and its units."""

    topic: str
    queue_id: int
    log_folder: str
    unit_folder: str


class CompactedCount(NamedTuple):
    """What is in one queue: files of its log, messages, bytes of records, the first queue offset, and that after the last."""

    topic: str
    queue_id: int
    files: int
    messages: int
    size_bytes: int
    min_offset: int
    max_offset: int


def compacted_queues(disk: Disk, root: str) -> list[CompactedQueue]:
    """Return the queues of all compacted topics, by topic and queue id."""
    logs, queues = (os.path.join(root, COMPACTION, name) for name in (COMPACTED_LOGS, QUEUES))
    found = []
    for topic in _folders(disk, logs):
        for queue_id in _folders(disk, os.path.join(logs, topic)):
            if queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= 10:
                locations = (os.path.join(folder, topic, queue_id) for folder in (logs, queues))
                found.append(CompactedQueue(topic, int(queue_id), *locations))
    return sorted(found)


def copy_compacted(disk: Disk, root: str, new: str, topics: Collection[str]) -> None:
    """Copy what consumers get of some topics into the store `new`, where messages have the same queue offsets.

    It may have messages whose records have left the log.  The broker goes on behind the queue offsets in the checkpoint.
    """
    for queue in compacted_queues(disk, root):
        for folder in (queue.log_folder, queue.unit_folder) if queue.topic in topics else ():
            for entry in disk.list(folder) if is_folder(disk, folder) else ():
                if entry.kind is Kind.FILE:
                    path = os.path.join(folder, entry.name)
                    keep_copy(disk, path, os.path.join(new, os.path.relpath(path, root)))
    offsets = ConfigFile(disk, os.path.join(root, COMPACTION, POSITIONS)).load().document.get(OFFSETS)
    named = offsets.items() if isinstance(offsets, dict) else ()
    kept = {name: offset for name, offset in named if name.rpartition("_")[0] in topics}
    if kept:
        ConfigFile(disk, os.path.join(new, COMPACTION, POSITIONS)).save({OFFSETS: kept})


def _folders(disk: Disk, path: str) -> list[str]:
    if not is_folder(disk, path):
        return []
    return [entry.name for entry in disk.list(path) if is_folder(disk, os.path.join(path, entry.name))]


def count_compacted(disk: Disk, queue: CompactedQueue, report: Callable[[Finding], None]) -> CompactedCount:
    """Count one queue; damage goes to `report`."""
    files = LogFiles(disk, [queue.log_folder])
    messages = size_bytes = 0
    low = high = 0
    for step in files.walk():
        if isinstance(step, Finding) and step.is_problem:
            report(step)
        if isinstance(step, Piece):
            messages += len(step.positions)
            size_bytes += step.stop - step.start
            for message in step.messages():
                low = low if high else message.queue_offset
                high = message.queue_offset + 1
    return CompactedCount(queue.topic, queue.queue_id, len(files.files), messages, size_bytes, low, high)


def compaction_findings(disk: Disk, root: str, *, is_in_use: bool) -> Iterator[Finding]:
    """Yield what is wrong with the compacted topics; of a store in use only a note that they were not checked."""
    folder = os.path.join(root, COMPACTION)
    queues = compacted_queues(disk, root)
    if queues and is_in_use:
        yield note(folder, 0, NOT_READ, "a store at rest", _IN_USE)
        return
    for queue in queues:
        yield from _CompactionCheck(disk, queue).findings()


class _CompactionCheck:
    """Compares the log of one queue with its units."""

    def __init__(self, disk: Disk, queue: CompactedQueue) -> None:
        self._disk = disk
        self._queue = queue
        self._units: dict[str, list[BatchUnit]] = {}  # by name of the file; those of records that were seen are removed
        self._last = -1  # queue offset of the message before

    def findings(self) -> Iterator[Finding]:
        files = LogFiles(self._disk, [self._queue.log_folder])
        yield from files.check()
        for name in UNFINISHED:
            path = os.path.join(self._queue.log_folder, name)
            if is_folder(self._disk, path) and self._disk.list(path):
                yield note(path, 0, "unfinished_compaction", "an empty folder", "files that the broker ignores")
        yield from self._pairs(files)
        for step in files.walk():
            if isinstance(step, Finding):
                yield step
            elif isinstance(step, Piece):
                for message in step.messages():
                    yield from self._record(step, message)
        for name, units in self._units.items():
            if units:
                found = f"{len(units)} more, the first for {units[0].physical_offset}"
                yield Finding(os.path.join(self._queue.unit_folder, name), 0, UNIT, "a unit for each record", found)

    def _pairs(self, files: LogFiles) -> Iterator[Finding]:
        """Read the units; the broker does not load a queue of which a file has no partner."""
        folder = self._queue.unit_folder
        found = self._disk.list(folder) if is_folder(self._disk, folder) else []
        sizes = {entry.name: entry.size_bytes for entry in found if entry.kind is Kind.FILE}
        for name, size in sizes.items():
            path = os.path.join(folder, name)
            if size > UNITS_SIZE_MAX:  # not compared: the units after the limit would be missing
                yield Finding(path, UNITS_SIZE_MAX, UNIT, f"at most {UNITS_SIZE_MAX} bytes", size)
            else:
                self._units[name] = _read_units(self._disk, path)[::-1]
        names = {os.path.basename(file.path) for file in files.files}
        for name in sorted(names ^ sizes.keys()):
            location = folder if name in names else self._queue.log_folder
            yield Finding(os.path.join(location, name), 0, MISSING, "a file of units for each log file", "no file")

    def _record(self, piece: Piece, message: StoredMessage) -> Iterator[Finding]:
        at = message.physical_offset - piece.base
        queue = (self._queue.topic, self._queue.queue_id)
        if (message.topic, message.queue_id) != queue:
            found = f"{message.topic} queue {message.queue_id}"
            yield Finding(piece.file, at, RECORD, f"a record of {queue[0]} queue {queue[1]}", found)
        if message.queue_offset <= self._last:
            yield Finding(piece.file, at, ORDER, f"a queue offset after {self._last}", message.queue_offset)
        self._last = message.queue_offset
        name = os.path.basename(piece.file)
        if name in self._units:
            yield from self._unit(name, message)

    def _unit(self, name: str, message: StoredMessage) -> Iterator[Finding]:
        """Compare the next unit of a file with a record; skip units of records before it, which are damaged or gone."""
        units, path = self._units[name], os.path.join(self._queue.unit_folder, name)
        while units and units[-1].physical_offset < message.physical_offset:
            unit = units.pop()
            yield Finding(path, 0, UNIT, "a record for each unit", f"none at {unit.physical_offset}")
        tags = message.properties.get("TAGS")
        code = java_hash_code(tags) if tags else 0
        expected = (message.physical_offset, message.size, code, message.store_timestamp_ms, message.queue_offset, 1)
        found = units.pop() if units and units[-1].physical_offset == message.physical_offset else None
        if found is None or found[: len(expected)] != expected:
            yield Finding(path, 0, UNIT, str(expected), "no unit" if found is None else str(tuple(found)))


def _read_units(disk: Disk, path: str) -> list[BatchUnit]:
    """Return the units of a file up to the first one that is not valid."""
    data = read_head(disk, path, UNITS_SIZE_MAX) or b""
    units = map(BatchUnit._make, BATCH_UNIT.iter_unpack(data[: len(data) // BATCH_UNIT_SIZE * BATCH_UNIT_SIZE]))
    return list(takewhile(lambda unit: unit.is_valid, units))
