"""The plan of a read: which task reads which part of which file.  It is made once, so a read of a live store is a snapshot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from commitlog import CHECK_ALL, MappedFile, Reader, find_record
from commitlog.cursor import FileCursor
from commitlog.findings import Location, describe
from commitlog.offset_files import OffsetFile
from commitlog.walk import LogFiles
from messagestore.folder import FolderFacts
from storageio import REAL_DISK, DiskError, UnknownStore
from storebytes.finding import Finding

from ..errors import BadOption, DataLost
from ..object_disk import disk_for, is_remote
from ..options import OFFSET_MAX, TASKS_MAX, ReadOptions
from .queue_starts import check_queue_starts
from .stores import FoundStore

CLASSIC = "classic"  # the type of a RabbitMQ queue
POLL_AGAIN_S = 0.05  # a record that is being written is complete by then
CLOCK_SLACK_MS = 10 * 60 * 1000  # how far a broker's clock may have been set back between two records


@dataclass(frozen=True)
class LogSplit:
    """The records of one file that start at physical offsets begin..end.

    `is_open_end`: this is the log's last file, and planning did not search for the end of its records.  `findings`: damage
    found by planning, which the task reports before its records.
    """

    store: str
    file: str
    file_start: int
    file_size: int
    begin: int
    end: int
    is_open_end: bool = False
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class RabbitSplit:
    """One classic queue of a virtual host's folder, one stream, or all quorum queues, which share a write-ahead log.

    The first split of a folder also reports the folder's own problems.
    """

    store: str
    folder: str
    queue: str | None
    is_first: bool
    vhost: str = "/"
    type: str = CLASSIC


def plan_log(store: FoundStore, options: ReadOptions) -> list[LogSplit]:
    """Plan the splits of one RocketMQ store.  Raises `DataLost` if a requested start was deleted."""
    files = LogFiles(disk_for(store.path), list(store.log_folders), options.file_bytes)
    damage = [finding for finding in files.check() if finding.is_problem]
    whole = _whole_files(store, files, damage)
    low = min((split.file_start for split in whole), default=0)
    start, stop = options.start.physical_offset, options.stop.physical_offset
    if options.fail_on_data_loss and options.start.is_physical and start < low:
        raise DataLost(whole[0].file, 0, f"records from physical offset {start} on", f"the first is at {low}")
    check_queue_starts(store, options, low)
    made = _cut_all(whole, start, stop, options.split_bytes)
    if options.begin_ms is not None or options.end_ms is not None:
        made = _of_time(made, options)
    if damage:
        made.insert(0, LogSplit(store.path, damage[0].file, 0, 0, 0, 0, findings=tuple(damage)))
    return made


def plan_rabbit(store: FoundStore, options: ReadOptions) -> list[RabbitSplit]:
    """Plan one split per queue of all virtual hosts or the requested one.  Raises `UnknownStore` if it is absent."""
    from rabbitstore import VhostFolder, find_vhosts
    from rabbitstore.folder import RabbitmqFacts

    made: list[RabbitSplit] = []
    has_others = RabbitmqFacts(store.path, disk_for(store.path)).node is not None
    vhosts = []
    for path in find_vhosts(store.path, disk_for(store.path)):
        folder = VhostFolder(path, disk_for(path))
        vhosts.append(folder.vhost)
        if options.vhost is None or folder.vhost == options.vhost:
            names = list(dict.fromkeys(queue.queue for queue in folder.queue_folders()))
            requested: list[str | None] = [name for name in names if options.queue in (None, name)]
            made += [RabbitSplit(store.path, path, name, number == 0) for number, name in enumerate(requested or [None])]
            made += _other_queues(store.path, folder.vhost, options.queue) if has_others else []
        folder.close()
    if options.vhost is not None and options.vhost not in vhosts:
        raise UnknownStore(
            f"{store.path}: no virtual host {options.vhost!r}; the virtual hosts are {', '.join(map(repr, vhosts))}"
        )
    return made


def _other_queues(path: str, vhost: str, requested: str | None) -> list[RabbitSplit]:
    """Plan the quorum queues and streams of a node's folder; `requested` is the only queue to read, if any."""
    from rabbitstore.node_folder import QUORUM, STREAM, NodeFolder

    folder = NodeFolder(path, vhost, disk_for(path))
    quorum = [queue.queue for queue in folder.quorum_queues if requested in (None, queue.queue)]
    streams = [stream.queue for stream in folder.streams if requested in (None, stream.queue)]
    folder.close()
    made = [RabbitSplit(path, path, requested, True, vhost, QUORUM)] if quorum else []
    return [*made, *(RabbitSplit(path, path, name, True, vhost, STREAM) for name in streams)]


def log_range(store: FoundStore, begin: int, end: int, split_bytes: int, file_bytes: int | None = None) -> list[LogSplit]:
    """Plan splits for the physical offsets begin..end, which the caller knows to be records."""
    files = LogFiles(disk_for(store.path), list(store.log_folders), file_bytes)
    made = [
        LogSplit(store.path, f.path, f.start_offset, f.size_bytes, f.start_offset, f.start_offset + f.size_bytes)
        for f in files.files
    ]
    return _cut_all(made, begin, end, split_bytes)


def _cut_all(splits: list[LogSplit], begin: int, end: int, split_bytes: int) -> list[LogSplit]:
    """Return the parts of all files.  Raises `BadOption` for more than Spark can plan in a reasonable time."""
    size_bytes = max(0, min(end, splits[-1].end) - max(begin, splits[0].begin)) if splits else 0
    if split_bytes and size_bytes // split_bytes > TASKS_MAX:
        least = -(-size_bytes // TASKS_MAX)
        raise BadOption(f"option splitBytes: {split_bytes} would make {size_bytes // split_bytes} tasks; use at least {least}")
    return [part for split in splits for part in _cut(split, begin, end, split_bytes)]


def _whole_files(store: FoundStore, files: LogFiles, damage: list[Finding]) -> list[LogSplit]:
    """Return one split per file, the last one cut at the log's end; damage there goes to `damage`."""
    found = [file for file in files.files if file.size_bytes]
    made = [_split_of(store, file) for file in found]
    if is_remote(store.path):
        return [*made[:-1], *(replace(split, is_open_end=True) for split in made[-1:])]
    while made:
        end, problem = _settled_end(found[-1], _clean_stop(store, found[-1]))
        if problem is not None:
            damage.append(problem)
        made[-1] = replace(made[-1], end=end)
        if end > made[-1].begin:
            break
        found.pop()  # a file without a record yet
        made.pop()
    return made


def _split_of(store: FoundStore, file: OffsetFile) -> LogSplit:
    end = file.start_offset + file.size_bytes
    return LogSplit(store.path, file.path, file.start_offset, file.size_bytes, file.start_offset, end)


def _clean_stop(store: FoundStore, file: OffsetFile) -> int:
    """Return where to start the search for a file's end: the last record of a clean stop if valid, else 0.

    The engine does the same when it opens a store (`messagestore.recovery.log_end`), so a cleanly stopped store needs no walk
    over a gigabyte of headers.  If the store was written since, the checkpoint has a different time.
    """
    facts = FolderFacts(store.path)
    clean_stop = facts.clean_stop
    position = -1 if clean_stop is None else clean_stop.last_offset - file.start_offset
    if clean_stop is None or not 0 <= position < file.size_bytes:
        return 0
    try:
        view = MappedFile.of(REAL_DISK, file, writable=False).view
    except DiskError:
        return 0  # deleted: the task that reads it reports that
    found = Reader(view, file.start_offset).decode(position, CHECK_ALL)
    stored_ms = facts.checkpoint.values.physic_msg_timestamp_ms
    return position if found is not None and found.store_timestamp_ms == stored_ms else 0


def _settled_end(file: OffsetFile, start: int) -> tuple[int, Finding | None]:
    """Call `_end_of`; check damage a second time, since a writer may be in the middle of a record."""
    end, problem = _end_of(file, start)
    if problem is None:
        return end, None
    time.sleep(POLL_AGAIN_S)
    again, problem_again = _end_of(file, start)
    return end, problem if (again, problem_again) == (end, problem) else None


def _end_of(file: OffsetFile, start: int) -> tuple[int, Finding | None]:
    """Return the physical offset after a file's last record, and the damage there if any; `start` is a record.

    Only headers are checked.  The walk continues past damage while records follow that are not older than the last good one.
    """
    mapped = MappedFile.of(REAL_DISK, file, writable=False)
    cursor = FileCursor(mapped, start, past_damage=True, past_zeros=True)
    try:
        cursor.run()
    except DiskError as error:
        raise DataLost(file.path, 0, "the log's last file", f"none: {error}") from error
    location = Location(mapped.view, cursor.at, file.start_offset)
    return file.start_offset + cursor.at, describe(file.path, location, cursor.why) if cursor.is_damaged else None


def _cut(split: LogSplit, start: int, stop: int, split_bytes: int) -> Iterator[LogSplit]:
    """Yield about equal parts of a file within start..stop, none larger than `split_bytes`."""
    begin, end = max(split.begin, start), min(split.end, stop)
    if begin >= end:
        return
    parts = -(-(end - begin) // split_bytes) if split_bytes else 1
    positions = [begin + (end - begin) * part // parts for part in range(parts + 1)]
    for first, last in pairwise(positions):
        yield replace(split, begin=first, end=last, is_open_end=split.is_open_end and stop >= split.end)


def _of_time(splits: list[LogSplit], options: ReadOptions) -> list[LogSplit]:
    """Drop splits that are certainly outside the requested time, judged by the first record of each."""
    times = [None if is_remote(split.file) else _first_time(split) for split in splits]
    begin_ms, end_ms = options.begin_ms or 0, OFFSET_MAX if options.end_ms is None else options.end_ms
    kept = []
    for number, split in enumerate(splits):
        first = times[number]
        behind = next((found for found in times[number + 1 :] if found is not None), None)
        is_before = behind is not None and behind + CLOCK_SLACK_MS < begin_ms
        is_behind = first is not None and first - CLOCK_SLACK_MS >= end_ms
        if not is_before and not is_behind:
            kept.append(split)
    return kept


def _first_time(split: LogSplit) -> int | None:
    """Return the store time of a split's first record, or None if no record starts in it."""
    file = MappedFile(REAL_DISK, split.file, split.file_start, split.file_size, writable=False)
    try:
        view = file.view
    except DiskError:
        return None  # deleted: the task that reads it reports that
    found = find_record(view, split.begin - split.file_start, len(view), split.file_start, split.end - split.file_start)
    return Reader(view, split.file_start).store_time(found) if found >= 0 else None
