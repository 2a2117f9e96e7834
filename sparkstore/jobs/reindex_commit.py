"""The last step of `reindex`: swap in the new queues and index under the store's lock.

Nothing is moved before every part is known to be complete.  If the process is killed at any call, the old folder, the new
one or neither exists for queues and index; the engine rebuilds a missing one when it opens the store
(`messagestore.derive.rebuild`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from commitlog import LogPaths
from consumequeue import ConsumeQueues, find_file_size, queue_folders
from messagestore.derive.kinds.ordinary import keep_ends
from messagestore.derive.rebuild import INDEX, QUEUES, old_queues
from messagestore.index_hint import NAME as MARKER_NAME
from messagestore.paths import StorePaths
from messagestore.swap import delete_tree, replace_tree
from storageio import Disk, Kind, StoreCorrupt

WORK = "rebuild-spark-"
STALE_MS = 7 * 24 * 3600 * 1000  # no job resumes after this time
DEPTH = 5  # levels of a job's folder: part, what, topic, queue, file


@dataclass
class ReindexPart(WriterCommitMessage):
    """The files that one task made; `log_end` is the end of the last split in its rows."""

    folder: str
    queues: int = 0
    units: int = 0
    index_files: int = 0
    last_record: int = -1
    log_end: int = -1


def check_parts(disk: Disk, parts: Iterable[ReindexPart]) -> None:
    """Raise `StoreCorrupt` for a part with missing queues or index files."""
    for part in parts:
        queues, index = os.path.join(part.folder, QUEUES), os.path.join(part.folder, INDEX)
        _check_count(queues, "queues", part.queues, sum(1 for _ in queue_folders(disk, queues)))
        _check_count(index, "index files", part.index_files, len(disk.list(index)) if disk.stat(index) else 0)


def _check_count(folder: str, what: str, expected: int, found: int) -> None:
    if expected != found:
        raise StoreCorrupt("a part of a reindex", file=folder, offset=0, expected=f"{expected} {what}", found=str(found))


def swap_in(disk: Disk, paths: StorePaths, work: str, parts: Collection[ReindexPart], whats: Collection[str]) -> None:
    """Join the parts and swap the folders.  The caller holds the lock and has checked the parts."""
    fresh = os.path.join(work, "whole")
    for what in sorted(whats):
        disk.make_folder(os.path.join(fresh, what))
        for part in parts:
            _move_all(disk, os.path.join(part.folder, what), os.path.join(fresh, what))
    marker = os.path.join(paths.own, MARKER_NAME)
    if INDEX in whats and disk.stat(marker) is not None:
        disk.delete(marker)  # it describes the old files
    if QUEUES in whats:
        _keep_ends(disk, paths, os.path.join(fresh, QUEUES))
    for what, target in ((QUEUES, paths.queues), (INDEX, paths.index)):
        if what in whats:
            replace_tree(disk, os.path.join(fresh, what), target, paths.root)


def _keep_ends(disk: Disk, paths: StorePaths, folder: str) -> None:
    """Keep the end of queues without records in the log, since no task has rows of them."""
    size = find_file_size(disk, folder) or find_file_size(disk, paths.queues)
    files = LogPaths.parse(disk, paths.commit_log).all_files()
    if size is None or not files:
        return
    with contextlib.closing(ConsumeQueues(disk, folder, writable=True, file_size_bytes=size)) as made:
        with contextlib.closing(old_queues(disk, paths, made.file_size_bytes)) as old:
            keep_ends(old, made, min(file.start_offset for file in files))
        made.flush()


def _move_all(disk: Disk, source: str, target: str) -> None:
    """Move every file below a folder to the same path below another, and sync the folders."""
    if disk.stat(source) is None:
        return  # a part without queues or without index; `check_parts` counted them
    for entry in disk.list(source):
        old, new = os.path.join(source, entry.name), os.path.join(target, entry.name)
        if entry.kind is Kind.FOLDER and disk.stat(new) is not None:
            _move_all(disk, old, new)
        else:
            disk.rename(old, new)
    disk.sync_folder(target)


def clear_work(disk: Disk, own: str, work: str) -> None:
    """Delete the work folders of this job and of jobs that were killed over a week ago."""
    delete_tree(disk, work)
    for entry in disk.list(own):
        folder = os.path.join(own, entry.name)
        if entry.name.startswith(WORK) and disk.now_ms() - max(entry.modified_ms, *_times(disk, folder, DEPTH), 0) > STALE_MS:
            delete_tree(disk, folder)


def _times(disk: Disk, folder: str, depth: int) -> Iterator[int]:
    """Yield the modification times of everything in a folder."""
    for entry in disk.list(folder):
        yield entry.modified_ms
        if entry.kind is Kind.FOLDER and depth:
            yield from _times(disk, os.path.join(folder, entry.name), depth - 1)
