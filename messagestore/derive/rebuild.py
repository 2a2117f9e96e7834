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
from indexfile import IndexFiles, index_paths
from storageio import Disk, StoreError

from ..config import StoreConfig
from ..deleted_topics import DeletedTopics
from ..index_hint import delete_hint
from ..paths import OWN_FOLDER, StorePaths, replaced_folder
from ..store_settings import read_levels
from ..swap import delete_tree, replace_tree
from .kinds.extended import KeptUnits
from .kinds.ordinary import keep_ends, refuse_earlier_ends
from .queues import WriteSink
from .walk import Derivation, advance

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
    log: CommitLog, end_offset: int, paths: StorePaths, config: StoreConfig, disk: Disk, what: set[str],
    is_ignored: Callable[[str], bool], progress: Progress | None = None, *, keeps: bool = False, may_lose: bool = True,
    with_tags: bool = False,
) -> Rebuilt:  # fmt: skip
    """Rebuild `what` ({"consumequeue"}, {"index"} or both) from the log up to `end_offset`. The caller holds the lock.

    `keeps` keeps the old folders in `brokerstore/`. `with_tags` adds the items of tags to the index.

    Without `may_lose`, a queue that would end earlier than it does now raises `StoreCorrupt`, and nothing changes.
    """
    work = os.path.join(paths.root, OWN_FOLDER, "rebuild")
    delete_tree(disk, work)
    try:
        made = _build(log, end_offset, work, paths, config, what, is_ignored, progress, may_lose=may_lose, with_tags=with_tags)
    except BaseException:  # frees the space on a full disk
        with contextlib.suppress(StoreError):
            delete_tree(disk, work)
        raise
    if INDEX in what:
        delete_hint(disk, paths.own)
    for name, target in ((QUEUES, paths.queues), (INDEX, paths.index)):
        if name in what:
            replace_tree(disk, os.path.join(work, name), target, paths.root, keeps=keeps)
    delete_tree(disk, work)
    disk.sync_folder(paths.own)
    return made


def _build(
    log: CommitLog, end_offset: int, work: str, paths: StorePaths, config: StoreConfig, what: set[str],
    is_ignored: Callable[[str], bool], progress: Progress | None, *, may_lose: bool, with_tags: bool,
) -> Rebuilt:  # fmt: skip
    """Build and sync the new folders below `work`."""
    assert config.mapped_file_size_consume_queue and config.max_hash_slot_num and config.max_index_num
    disk = log.disk
    with contextlib.ExitStack() as opened:
        old = old_queues(disk, paths, config.mapped_file_size_consume_queue)
        opened.callback(old.close)
        levels = read_levels(disk, paths.own, config.message_delay_level)
        queues = ConsumeQueues(
            disk, os.path.join(work, QUEUES), writable=True, file_size_bytes=config.mapped_file_size_consume_queue
        )
        opened.callback(queues.close)
        index = None
        if INDEX in what:
            index = NamedIndexFiles(
                disk, os.path.join(work, INDEX), config, old_names(disk, paths.index), with_tags=with_tags
            )  # fmt: skip
            opened.callback(index.close)
        kept = KeptUnits(disk, paths, old, levels, log.message_at)
        sink = _RebuildSink(queues if QUEUES in what else None, index, kept)
        low = max(log.min_offset, 0)
        derivation = Derivation(sink, levels.current_ms, is_ignored)
        derivation.deleted = DeletedTopics(disk, paths.root)
        done = _derive_all(derivation, log, low, end_offset, progress)
        units = sum(queue.max_offset - queue.min_offset for queue in queues)
        made = Rebuilt(len(queues), units, len(index.files) if index else 0, done)
        if QUEUES in what:
            keep_ends(old, queues, low)
            if not may_lose:
                refuse_earlier_ends(old, queues)
            kept.report()
        queues.flush(0)
        if index is not None:
            index.sync()
        return made


def _derive_all(derivation: Derivation, log: CommitLog, low: int, end: int, progress: Progress | None) -> int:
    """Derive everything from `low` to the end of the log; return the number of bytes."""
    at = low
    while at < end:
        before, at = at, advance(derivation, log, at, end)
        if progress is not None:
            progress(at - before)
    return at - low


class _RebuildSink(WriteSink):
    """Writes new queues, whose units keep the old units' additional values, and a new index."""

    def __init__(self, queues: ConsumeQueues | None, index: IndexFiles | None, kept: KeptUnits) -> None:
        super().__init__(queues, index)
        self._kept = kept

    def applied(self, queue: ConsumeQueue, first: int, units: memoryview) -> bytes | memoryview:
        return self._kept.applied(queue.topic, queue.queue_id, units)


def old_queues(disk: Disk, paths: StorePaths, file_size_bytes: int) -> ConsumeQueues:
    """Return the queues that are being replaced, or were when a rebuild was killed."""
    is_there = disk.stat(paths.queues) is not None
    folder = paths.queues if is_there else replaced_folder(paths.root, QUEUES)
    return ConsumeQueues(disk, folder, writable=False, file_size_bytes=file_size_bytes)


class NamedIndexFiles(IndexFiles):
    """Index files with the names of those they replace, oldest first."""

    def __init__(
        self, disk: Disk, folder: str, config: StoreConfig, names: Iterator[str], *, with_tags: bool = False
    ) -> None:  # fmt: skip
        """Take the names of the replaced files first; later files are named by the clock."""
        assert config.max_hash_slot_num and config.max_index_num
        self._names = names
        slots, items = config.max_hash_slot_num, config.max_index_num
        super().__init__(disk, folder, writable=True, slots=slots, items=items, with_tags=with_tags)

    def _new_name(self) -> str:
        return next(self._names, None) or super()._new_name()


def old_names(disk: Disk, folder: str) -> Iterator[str]:
    """Return the names of the index files in a folder, oldest first; empty if there is no folder."""
    paths = index_paths(disk, folder)[0] if disk.stat(folder) is not None else []
    return iter([os.path.basename(path) for path in paths])
