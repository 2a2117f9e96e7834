"""Rebuild queues and index from the log beside the old ones, and swap them in when they are synced.

The new folder is built in `brokerstore/rebuild/`. The old one is moved to `brokerstore/replaced-...` and deleted last, or kept
as `brokerstore/kept-...`. After a kill at any point the store has the old folder, the new one, or none; a missing one is
rebuilt at the next open.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from commitlog import CommitLog
from consumequeue import ConsumeQueue, ConsumeQueues
from consumequeue.layout import UNIT_SIZE
from indexfile import IndexFiles, index_paths
from storageio import Disk, InvalidMessage, Kind, StoreCorrupt, StoreError

from ..config import StoreConfig
from ..paths import OWN_FOLDER, StorePaths, replaced_folder
from ..recovery.index_hint import delete_hint
from ..store_settings import read_levels
from ..write.dispatcher import DispatchService
from ..write.lmq_units import add_lmq_units, is_lmq
from ..write.running_flags import RunningFlags
from .backups import kept_path
from .previous_units import KeptUnits

QUEUES, INDEX = "consumequeue", "index"
Progress = Callable[[int], None]


class Rebuilt(NamedTuple):
    """The result of a rebuild."""

    queues: int
    units: int
    index_files: int
    log_bytes: int
    timers: int = 0


def rebuild(
    log: CommitLog, end_offset: int, places: StorePaths, config: StoreConfig, disk: Disk, what: set[str],
    is_ignored: Callable[[str], bool], progress: Progress | None = None, *, keeps: bool = False, may_lose: bool = True,
) -> Rebuilt:  # fmt: skip
    """Rebuild `what` ({"consumequeue"}, {"index"} or both) from the log up to `end_offset`. The caller holds the lock.

    `keeps` keeps the old folders in `brokerstore/`. Without `may_lose`, a queue that would end earlier than it does now raises
    `StoreCorrupt`, and nothing changes.
    """
    work = os.path.join(places.root, OWN_FOLDER, "rebuild")
    delete_tree(disk, work)
    try:
        made = _build(log, end_offset, work, places, config, what, is_ignored, progress, may_lose=may_lose)
    except BaseException:  # frees the space on a full disk
        with contextlib.suppress(StoreError):
            delete_tree(disk, work)
        raise
    if INDEX in what:
        delete_hint(disk, places.own)
    for name, target in ((QUEUES, places.queues), (INDEX, places.index)):
        if name in what:
            take_place(disk, os.path.join(work, name), target, places.root, keeps=keeps)
    delete_tree(disk, work)
    disk.sync_folder(places.own)
    return made


def _build(
    log: CommitLog, end_offset: int, work: str, places: StorePaths, config: StoreConfig, what: set[str],
    is_ignored: Callable[[str], bool], progress: Progress | None, *, may_lose: bool,
) -> Rebuilt:  # fmt: skip
    """Build and sync the new folders below `work`."""
    assert config.mapped_file_size_consume_queue and config.max_hash_slot_num and config.max_index_num
    disk = log.disk
    with contextlib.ExitStack() as opened:
        old = old_queues(disk, places, config.mapped_file_size_consume_queue)
        opened.callback(old.close)
        levels = read_levels(disk, places.own, config.message_delay_level)
        queues = _KeptQueues(
            disk, os.path.join(work, QUEUES), config.mapped_file_size_consume_queue,
            KeptUnits(disk, places, old, levels, log.message_at),
        )  # fmt: skip
        opened.callback(queues.close)
        index = None
        if INDEX in what:
            index = _NamedIndexFiles(disk, os.path.join(work, INDEX), config, old_names(disk, places.index))
            opened.callback(index.close)
        sink = queues if QUEUES in what else _NoQueues(queues)
        low = max(log.min_offset, 0)
        lmq_topics: set[str] = set()

        def is_left_out(topic: str) -> bool:
            if is_lmq(topic):  # their units follow, in the log's order
                lmq_topics.add(topic)
            return topic in lmq_topics or is_ignored(topic)

        service = DispatchService(
            log, sink, index, RunningFlags(), lambda: end_offset, levels.current_ms, low, is_ignored=is_left_out
        )  # fmt: skip
        done = _dispatch_all(service, progress)
        if QUEUES in what and (lmq_topics or service.may_have_lmqs):
            add_lmq_units(log, end_offset, queues)
        units = sum(queue.max_offset - queue.min_offset for queue in queues)
        made = Rebuilt(len(queues), units, len(index.files) if index else 0, done)
        if QUEUES in what:
            keep_ends(old, queues, low)
            if not may_lose:
                refuse_earlier_ends(old, queues)
            queues.kept.report()
        queues.flush(0)
        if index is not None:
            index.sync()
        return made


def keep_ends(old: ConsumeQueues, made: ConsumeQueues, log_min_offset: int) -> None:
    """Copy the last unit of queues whose records all left the log: nothing else tells the offset of their next message.

    If such a queue began again at 0, consumers with higher offsets would skip its next messages.
    """
    for queue in old:
        with contextlib.suppress(StoreCorrupt, InvalidMessage):  # an unreadable queue has no end to keep
            last = queue.read_unit((queue.max_offset - 1) * UNIT_SIZE)
            if last and queue.is_expired(log_min_offset) and made.get(queue.topic, queue.queue_id) is None:
                made.get_or_add(queue.topic, queue.queue_id).append_run(queue.max_offset - 1, last)


def refuse_earlier_ends(old: ConsumeQueues, made: ConsumeQueues) -> None:
    """Raise `StoreCorrupt` if a queue names messages behind the last one that the log has."""
    for queue in old:
        with contextlib.suppress(InvalidMessage):
            new = made.get(queue.topic, queue.queue_id)
            end = new.max_offset if new is not None else 0
            if queue.max_offset > end:
                raise StoreCorrupt(
                    "the log lacks messages of a queue; see `brokerstore recover`", file=queue.folder, offset=end * UNIT_SIZE,
                    expected=f"records of {queue.max_offset} units", found=f"those of {end}",
                )  # fmt: skip


def old_queues(disk: Disk, places: StorePaths, file_size_bytes: int) -> ConsumeQueues:
    """Return the queues that are being replaced, or were when a rebuild was killed."""
    is_there = disk.stat(places.queues) is not None
    folder = places.queues if is_there else replaced_folder(places.root, QUEUES)
    return ConsumeQueues(disk, folder, writable=False, file_size_bytes=file_size_bytes)


def _dispatch_all(service: DispatchService, progress: Progress | None) -> int:
    """Dispatch to the end of the log and return the number of bytes."""
    low = before = service.position
    while service.run_once():
        if progress is not None:
            progress(service.position - before)
        before = service.position
    return before - low


class _NamedIndexFiles(IndexFiles):
    """Index files with the names of those they replace, oldest first."""

    def __init__(self, disk: Disk, folder: str, config: StoreConfig, names: Iterator[str]) -> None:
        assert config.max_hash_slot_num and config.max_index_num
        self._names = names
        super().__init__(disk, folder, writable=True, slots=config.max_hash_slot_num, items=config.max_index_num)

    def _new_name(self) -> str:
        return next(self._names, None) or super()._new_name()


def old_names(disk: Disk, folder: str) -> Iterator[str]:
    """Return the names of the index files in a folder, oldest first; empty if there is no folder."""
    paths = index_paths(disk, folder)[0] if disk.stat(folder) is not None else []
    return iter([os.path.basename(path) for path in paths])


class _KeptQueues(ConsumeQueues):
    """Queues whose units keep the old units' additional values."""

    def __init__(self, disk: Disk, folder: str, file_size_bytes: int, kept: KeptUnits) -> None:
        super().__init__(disk, folder, writable=True, file_size_bytes=file_size_bytes)
        self.kept = kept

    def append_run(self, queue: ConsumeQueue, queue_offset: int, units: bytes | memoryview) -> None:
        super().append_run(queue, queue_offset, self.kept.applied(queue.topic, queue.queue_id, units))


class _NoQueues(ConsumeQueues):
    """Queues that discard all units, for a rebuild of the index alone."""

    def __init__(self, like: ConsumeQueues) -> None:
        super().__init__(like.disk, like.folder, writable=False, file_size_bytes=like.file_size_bytes)

    def get_or_add(self, topic: str, queue_id: int) -> _NoQueue:  # type: ignore[override]
        return _NO_QUEUE


class _NoQueue:
    """A queue that discards its units."""

    def append_run(self, queue_offset: int, units: memoryview) -> int:
        return 0


_NO_QUEUE = _NoQueue()


def take_place(disk: Disk, fresh: str, target: str, root: str, *, keeps: bool = False) -> None:
    """Replace a folder by another; both names are synced before the old content is deleted.

    The old folder is kept in `brokerstore/` if `keeps` is set or if it has files that belong to no queue or index.
    """
    if disk.stat(fresh) is None:
        disk.make_folder(fresh)
    replaced = replaced_folder(root, os.path.basename(target))
    _put_aside(disk, replaced, target, root, keeps=keeps)
    if disk.stat(target) is not None:
        disk.rename(target, replaced)
    disk.rename(fresh, target)
    disk.sync_folder(os.path.dirname(target))
    disk.sync_folder(os.path.dirname(replaced))
    _put_aside(disk, replaced, target, root, keeps=keeps)


def _put_aside(disk: Disk, replaced: str, target: str, root: str, *, keeps: bool) -> None:
    """Delete a replaced folder, or keep it under a name that tells its original path."""
    if disk.stat(replaced) is None:
        return
    if keeps or _has_others(disk, replaced):
        disk.rename(replaced, kept_path(disk, root, target))
        disk.sync_folder(os.path.dirname(replaced))
    else:
        delete_tree(disk, replaced)


def _has_others(disk: Disk, folder: str) -> bool:
    """Return whether a folder contains anything other than folders and files named by a number."""
    entry = disk.stat(folder)
    if entry is None or entry.kind is not Kind.FOLDER:
        return False
    for inner in disk.list(folder):
        if inner.kind is Kind.FOLDER:
            if _has_others(disk, os.path.join(folder, inner.name)):
                return True
        elif inner.kind is not Kind.FILE or not inner.name.isdigit():
            return True
    return False


def delete_tree(disk: Disk, folder: str) -> None:
    """Delete a folder with its content; symlinks are not followed."""
    found = disk.stat(folder)
    if found is None:
        return
    if found.kind is not Kind.FOLDER:
        disk.delete(folder)
        return
    for entry in disk.list(folder):
        path = os.path.join(folder, entry.name)
        if entry.kind is Kind.FOLDER:
            delete_tree(disk, path)
        else:
            disk.delete(path)
    disk.delete_folder(folder)
