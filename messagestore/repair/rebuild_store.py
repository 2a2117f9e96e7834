"""Rebuild queues, index or timer files of a folder that no process has open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from commitlog import CommitLog, LogPaths
from commitlog.layout import FOREVER_MS
from commitlog.walk import LogFiles
from storageio import REAL_DISK, Disk, StoreCorrupt, UnknownStore
from storageio.settings import settings_or_default

from ..config import StoreConfig
from ..derive.rebuild import INDEX, QUEUES, Rebuilt
from ..folder import FolderFacts
from ..recovery.log_end import LogEnd
from ..recovery.witnesses import refuse_lost_end
from ..timers.rebuild_timers import rebuild_timers
from .damage import survey
from .store_queues import queues_kind

ALL = frozenset({QUEUES, INDEX})
TIMERS = "timers"


def rebuild_store(
    root: str, what: frozenset[str] = ALL, config: StoreConfig | None = None, disk: Disk = REAL_DISK, *,
    progress: Callable[[int], None] | None = None,
) -> Rebuilt:  # fmt: skip
    """Rebuild `what` of {"consumequeue", "index", "timers"}; sizes not given by `config` are those of the existing files.

    Timers, which are not among those of the default, need sound queues: a timer without a delivered copy is pending again.
    Queues in RocksDB need the extra `rocksdb`. Consumer offsets beyond their ends are clamped, because no opening does it.

    `progress` is called with the number of log bytes dispatched since its last call. Raises `StoreLocked` while another process
    has the store open for writing. Raises `UnsupportedFormat` for a folder that is not fully understood, and `StoreCorrupt` for
    a log with damage before its end, which needs `recover` first; nothing is changed then.
    """
    if not what or not what <= ALL | {TIMERS}:
        raise ValueError(f"{sorted(what)}: some of {sorted(ALL | {TIMERS})} wanted")
    config = settings_or_default(config, StoreConfig, "config")
    facts = FolderFacts(root, disk, config.store_path_commit_log)
    facts.refuse_unsupported(reads_log=False, has_rocksdb=facts.is_rocksdb, has_dledger=True)
    positions = facts.paths
    folders = LogPaths.parse(disk, positions.commit_log).folders
    if not all(disk.stat(folder) for folder in folders):
        raise UnknownStore(f"{root}: no commitlog folder in it")
    lock = disk.lock(positions.lock)
    try:
        if INDEX in what:
            facts.refuse_unknown_shape(config)
        sizes = facts.with_sizes(config, is_locked=True)
        files = LogFiles(disk, folders, sizes.mapped_file_size_commit_log)
        end = _sound_end(files)
        end_offset = end.offset
        made = Rebuilt(0, 0, 0, end_offset - files.files[0].start_offset if files.files else 0)
        queues, was_clean = queues_kind(facts)(facts, sizes, progress, keeps=False), facts.abort_file.was_clean
        paths = LogPaths.parse(disk, positions.commit_log)
        with closing(CommitLog(paths, disk=disk, file_size_bytes=files.file_size_bytes)) as log, queues.named() as named:
            refuse_lost_end(facts, named, log, end, was_clean=was_clean)
        if what - {TIMERS}:
            made = queues.rebuild(set(what - {TIMERS}), files, end_offset, may_lose=not was_clean)
        if QUEUES in what and queues.is_rocksdb:  # an opening does it in files
            queues.clamp(saves=True)
        if TIMERS in what:
            with queues.timers() as queue:
                timers = rebuild_timers(disk, positions, files, queue, keeps=False)
            made = made._replace(timers=timers.pending)
        return made
    finally:
        lock.release()


def _sound_end(files: LogFiles) -> LogEnd:
    """Return the end of the records without a crash tail. Raises `StoreCorrupt` for damage."""
    found = survey(files, FOREVER_MS, None)
    problems = [*found.findings, *(hole.finding for hole in found.holes)]
    if problems:
        first = problems[0]
        raise StoreCorrupt(first.kind, file=first.file, offset=first.offset, expected=first.expected, found=first.found)
    return LogEnd(found.end, found.last_store_timestamp_ms, found.end, found.last_offset)
