"""Rebuild the timer files from the log beside the old ones, and swap them in when they are synced.

The new files are built in `brokerstore/timers/`, which is deleted last: while it exists, a rebuild was interrupted, and the
timer files are rebuilt again.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

from commitlog.walk import LogFiles
from consumequeue import ConsumeQueue, Unit
from storageio import Disk, Kind, StoreCorrupt, UnsupportedFormat

from ..paths import StorePaths
from ..swap import delete_tree, kept_path, replace_tree
from .check import timer_findings
from .layout import CHECK_NAME, LOG_FILE_SIZE, LOG_NAME, PRECISION_MS, WHEEL_NAME
from .new_files import new_checkpoint, new_units, write_timer_files
from .pending import timers_behind
from .timer_log import TimerLog
from .undelivered import undelivered_timers
from .wheel import wheel_snapshots

WORK = "timers"


class LastTimer(NamedTuple):
    """The end of the timers' queue in RocksDB, and its last unit."""

    max_offset: int
    last: Unit | None

    def unit(self, queue_offset: int) -> Unit | None:
        """Return the last unit, if it is the one of this offset."""
        return self.last if queue_offset == self.max_offset - 1 else None


class RebuiltTimers(NamedTuple):
    """The number of timers that were not delivered; `overdue` of them should have been by now."""

    pending: int
    overdue: int


def has_timers(disk: Disk, root: str) -> bool:
    """Return whether the store has timer files with content."""
    paths = [os.path.join(root, name) for name in (CHECK_NAME, WHEEL_NAME)]
    found = [disk.stat(path) for path in paths]
    return bool(TimerLog(disk, root).files) or any(entry and entry.kind is Kind.FILE and entry.size_bytes for entry in found)


def plan_timers(disk: Disk, paths: StorePaths, files: LogFiles, end_offset: int, queue_end: int | None) -> str | None:
    """Return why the timer files need a rebuild if the log ends at `end_offset`; None if they agree with it.

    `queue_end` is the next offset of the timers' queue, None if it is not known. Raises `UnsupportedFormat` for timer files of
    an unknown layout.
    """
    if not has_timers(disk, paths.root):
        return None
    if disk.stat(os.path.join(paths.own, WORK)) is not None:
        return "a rebuild was interrupted"
    try:
        behind = timers_behind(disk, paths.root, end_offset)
    except StoreCorrupt as error:  # of the checkpoint: the log shows which timers were delivered
        return str(error)
    if behind.units:
        return f"{behind.units} timers point behind the end of the log, {behind.pending} of them not delivered yet"
    if not behind.is_whole:
        return "the timer log lacks units that its wheel or checkpoint knows of"
    wrong = [finding for finding in timer_findings(disk, paths.root, files, queue_end) if finding.is_problem]
    if any(finding.kind == "timer_layout" for finding in wrong):
        raise UnsupportedFormat("timer files:", file=wrong[0].file, found=wrong[0].found, supported=str(wrong[0].expected))
    return f"{len(wrong)} disagreements" if wrong else None


def rebuild_timers(
    disk: Disk, paths: StorePaths, files: LogFiles, queue: ConsumeQueue | LastTimer | None, *, keeps: bool,
    log_file_size: int | None = None, now_ms: int | None = None, waiting: Collection[int] | None = None,
) -> RebuiltTimers:  # fmt: skip
    """Rebuild the timer files. The caller holds the store's lock, and log and queues are whole.

    `queue` is the timers' queue if the store has it. `log_file_size` is that of a new timer log. `keeps` keeps the old files in
    the `brokerstore` folder. `waiting` has the queue offsets of the only timers that may wait: the log of a copy lacks the
    deliveries to topics that were not copied.
    """
    now_ms = (disk.now_ms() if now_ms is None else now_ms) // PRECISION_MS * PRECISION_MS
    size = TimerLog(disk, paths.root).file_size_bytes or log_file_size or LOG_FILE_SIZE
    found = [timer for timer in undelivered_timers(files) if waiting is None or timer.queue_offset in waiting]
    queue_end = queue.max_offset if queue is not None else 0
    units, read_ms = new_units(found, queue.unit(queue_end - 1) if queue is not None else None, now_ms, size)
    check = new_checkpoint(disk, paths.root, units, queue_end, read_ms, now_ms)
    work = os.path.join(paths.own, WORK)
    delete_tree(disk, work)
    disk.make_folder(paths.own)
    write_timer_files(disk, work, units, check, size)
    disk.sync_folder(paths.own)
    replace_tree(disk, os.path.join(work, LOG_NAME), os.path.join(paths.root, LOG_NAME), paths.root, keeps=keeps)
    for _, path in wheel_snapshots(disk, paths.root):  # a broker would load the last one instead of the new wheel
        if keeps:
            disk.rename(path, kept_path(disk, paths.root, path))
        else:
            disk.delete(path)
    disk.sync_folder(paths.root)
    for name in (WHEEL_NAME, CHECK_NAME):
        _replace(disk, os.path.join(work, name), os.path.join(paths.root, name), paths.root, keeps=keeps)
    delete_tree(disk, work)
    disk.sync_folder(paths.own)
    timers = [timer for timer in found if not timer.deletes]
    return RebuiltTimers(len(timers), sum(timer.due_ms < now_ms for timer in timers))


def _replace(disk: Disk, fresh: str, target: str, root: str, *, keeps: bool) -> None:
    if keeps and disk.stat(target) is not None:
        disk.rename(target, kept_path(disk, root, target))
    disk.make_folder(os.path.dirname(target))
    disk.rename(fresh, target)
    disk.sync_folder(os.path.dirname(target))
