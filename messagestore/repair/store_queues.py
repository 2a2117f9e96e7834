"""What a repair needs of a store's consume queues, in files or in RocksDB; `queues_kind` tells which.

A repair of a store with queues in files ends with an opening, which clamps offsets, writes the checkpoint and removes the abort
file. Only a broker can open a store with queues in RocksDB, so there the repair itself clamps offsets and removes the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

from commitlog import CommitLog, LogPaths
from commitlog.offset_files import list_offset_files
from commitlog.walk import LogFiles
from consumequeue import AllQueues, BatchQueues, ConsumeQueue, ConsumeQueues, Unit
from indexfile import IndexFiles
from storageio import FolderLock, StoreCorrupt
from storebytes.finding import Finding

from ..broker.config.consumer_offsets import ClampedOffset, ConsumerOffsets
from ..broker.config.delay_offsets import DelayOffsets
from ..broker.config.topics import deleted_topics
from ..config import StoreConfig
from ..derive.cross_check import CrossCheck
from ..derive.kinds.rocksdb import rebuild_rocksdb, replacement, rocksdb_findings
from ..derive.rebuild import QUEUES, Progress, Rebuilt, rebuild
from ..engine import Engine
from ..excluded_topics import excluded_topics
from ..folder import FolderFacts
from ..folder_contents import has_rocksdb
from ..recovery.clamp_offsets import Table, clamp_offsets
from ..recovery.named_messages import FileMessages, NamedMessages, RocksdbMessages
from ..rocksdb.config import copy_with_offsets, offsets_name, read_config
from ..rocksdb.database import open_database
from ..rocksdb.queues import RocksdbEnd, last_ends, unit_of
from ..swap import keep_file
from ..timers.layout import TIMER_TOPIC
from ..timers.rebuild_timers import LastTimer
from ..timers.timer_log import TimerLog


class StoreQueues:
    """The queues of one store in files, for a repair. The caller holds the store's lock when it changes them."""

    is_rocksdb = False

    def __init__(
        self, facts: FolderFacts, config: StoreConfig, progress: Progress | None = None, *, keeps: bool
    ) -> None:  # fmt: skip
        """Open nothing yet. `config` has the sizes of the files, and `keeps` keeps what is replaced in `brokerstore/`."""
        self.facts = facts
        self.disk = facts.disk
        self.paths = facts.paths
        self.config = config
        self.progress = progress
        self.keeps = keeps

    def _open(self) -> closing[ConsumeQueues]:
        size = self.config.mapped_file_size_consume_queue
        assert size
        return closing(ConsumeQueues(self.disk, self.paths.queues, writable=False, file_size_bytes=size))

    @contextmanager
    def named(self) -> Iterator[NamedMessages | None]:
        """Open what tells which messages a hole in the log has lost."""
        slots, items = self.config.max_hash_slot_num, self.config.max_index_num
        assert slots and items
        index = IndexFiles(self.disk, self.paths.index, writable=False, slots=slots, items=items)
        batch = BatchQueues(self.disk, self.paths.batch, writable=False)
        with self._open() as queues, closing(batch), closing(index):
            with suppress(StoreCorrupt):  # files of an index that cannot be read name nothing
                index.load()
            yield FileMessages(queues, batch, index, TimerLog(self.disk, self.paths.root))

    @contextmanager
    def timers(self) -> Iterator[ConsumeQueue | LastTimer | None]:
        """Open the timers' queue; None if there is none. Raises `StoreCorrupt` if it cannot be read."""
        with self._open() as queues:
            yield queues.get(TIMER_TOPIC, 0)

    def disagreements(self, files: LogFiles, in_files: CrossCheck) -> tuple[list[Finding], dict[str, int]]:
        """Return how the queues differ from the log, and the numbers of messages that they name where it has others, by queue.

        `in_files` is what was found of queues and index in files.
        """
        of_queues = [finding for finding in in_files.problems if not finding.file.startswith(self.paths.index)]
        return of_queues, in_files.lost_by_queue

    def unused_files(self) -> list[str]:
        """List the files behind the end of their queue, which the opening after a crash deletes."""
        unused: list[str] = []
        with self._open() as queues:
            for queue in queues:
                with suppress(StoreCorrupt):  # it is rebuilt
                    found = list_offset_files(self.disk, queue.folder)[1:]
                    unused += [file.path for file in found if file.start_offset >= queue.written]
        return [os.path.relpath(path, self.paths.root) for path in unused]

    def delete_unused(self) -> None:
        """Delete these files; a queue that was rebuilt since has others."""
        for file in self.unused_files():
            path = os.path.join(self.paths.root, file)
            self.disk.delete(path)
            self.disk.sync_folder(os.path.dirname(path))

    def rebuild(self, what: set[str], files: LogFiles, end: int, *, may_lose: bool = True) -> Rebuilt:
        """Rebuild queues, index or both from a log without damage that ends at `end`.

        Without `may_lose`, `StoreCorrupt` is raised if a queue in files names messages that the log does not have.
        """
        paths = LogPaths.parse(self.disk, self.paths.commit_log)
        is_ignored = excluded_topics(self.disk, self.paths.root)
        with closing(CommitLog(paths, disk=self.disk, file_size_bytes=files.file_size_bytes)) as log:
            return rebuild(
                log, end, self.paths, self.config, self.disk, what, is_ignored, self.progress, keeps=self.keeps,
                may_lose=may_lose, with_tags=self.facts.broker_version(self.config.broker_version).has_tag_items,
            )  # fmt: skip

    def clamp(self, *, saves: bool) -> list[str]:
        """Return a line for each offset beyond the end of its queue, and with `saves` clamp them.

        The queues agree with the repaired log.
        """
        with self._open() as queues, closing(BatchQueues(self.disk, self.paths.batch, writable=False)) as batch:
            end_of = AllQueues(queues, batch, lambda: 0).end_of
            return clamp_offsets(self.disk, self.paths.config, end_of, self._save if saves else None)

    def _save(self, table: Table, changed: list[ClampedOffset]) -> None:
        """Write a table with changed offsets."""
        if changed:
            if self.keeps:
                keep_file(self.disk, self.paths.root, table.path)
            table.persist()

    def close_store(self, lock: FolderLock | None) -> None:
        """End a repair: release the lock, then open and close the store for writing.

        This writes the checkpoint and the clean stop, and removes the abort file.
        """
        if self.facts.contents.has_dledger_log:  # only a broker continues it
            self.facts.abort_file.remove()
            return
        if lock is not None:
            lock.release()
        config = self.config.but(deliver_delayed=False)  # a repair must not put any message
        Engine(self.paths.root, config, self.disk, None, writable=True).close()


class RocksdbQueues(StoreQueues):
    """Queues in RocksDB, whose store only a broker can open."""

    is_rocksdb = True

    def unused_files(self) -> list[str]:
        """Return nothing: there are none."""
        return []

    @contextmanager
    def named(self) -> Iterator[NamedMessages | None]:
        """Read the units of the database; without a readable one, what the other parts name."""
        with ExitStack() as opened:
            try:
                opens = has_rocksdb(self.disk, self.paths.queues)
                database = opened.enter_context(open_database(self.paths.queues)) if opens else None
            except StoreCorrupt:
                database = None
            yield RocksdbMessages(database) if database is not None else opened.enter_context(super().named())

    def _ends(self) -> dict[tuple[str, int], RocksdbEnd]:
        """Return the last unit of each queue, by topic and queue id."""
        if not has_rocksdb(self.disk, self.paths.queues):
            return {}
        with open_database(self.paths.queues) as database:
            return last_ends(database)

    @contextmanager
    def timers(self) -> Iterator[ConsumeQueue | LastTimer | None]:
        """Read the end of the queue and its last unit."""
        end, unit = self._ends().get((TIMER_TOPIC, 0)), None
        if end is not None:
            with open_database(self.paths.queues) as database:
                unit = unit_of(database, TIMER_TOPIC.encode(), 0, end.queue_offset)
        yield end and LastTimer(end.queue_offset + 1, unit and Unit(*unit[3:6]))

    def disagreements(self, files: LogFiles, in_files: CrossCheck) -> tuple[list[Finding], dict[str, int]]:
        """Compare the database with the log."""
        if not has_rocksdb(self.disk, self.paths.queues):
            return [Finding(self.paths.queues, 0, "missing_queue", "queues in RocksDB", "none")], in_files.lost_by_queue
        lost: dict[str, int] = {}
        deleted = deleted_topics(self.disk, self.paths)
        found = list(rocksdb_findings(self.paths.queues, files, deleted, lost))
        return found, in_files.lost_by_queue or lost

    def rebuild(self, what: set[str], files: LogFiles, end: int, *, may_lose: bool = True) -> Rebuilt:
        """Rebuild the database, and the index as for queues in files."""
        made = Rebuilt(0, 0, 0, end - files.files[0].start_offset if files.files else 0)
        if QUEUES in what:
            levels = self.config.message_delay_level
            made = rebuild_rocksdb(self.disk, self.paths, files, end, levels, self.progress)
        if what - {QUEUES}:
            made = made._replace(index_files=super().rebuild(what - {QUEUES}, files, end).index_files)
        return made

    def clamp(self, *, saves: bool) -> list[str]:
        """Compare the broker's configuration with the ends.

        Where it is clamped, a new database replaces the old one, which is kept in `brokerstore/`.
        """
        ends = self._ends()
        read_config(self.disk, self.paths.root)  # raises for a damaged one, which no later opening would report

        def end_of(topic: str, queue_id: int) -> int:
            end = ends.get((topic, queue_id))
            return end.queue_offset + 1 if end is not None else 0

        return clamp_offsets(
            self.disk, self.paths.config, end_of, self._save if saves else None, (ConsumerOffsets, DelayOffsets)
        )

    def _save(self, table: Table, changed: list[ClampedOffset]) -> None:
        """Write the table with changed offsets."""
        if not changed or not table.is_in_rocksdb:
            super()._save(table, changed)
            return
        with replacement(self.disk, self.paths, offsets_name(self.disk, self.paths.root)) as fresh:
            changes = {(one.key, one.queue_id): one.after for one in changed}
            copy_with_offsets(self.disk, self.paths.root, fresh, changes)

    def close_store(self, lock: FolderLock | None) -> None:
        """Remove the abort file; only a broker can open the store."""
        self.facts.abort_file.remove()


def queues_kind(facts: FolderFacts) -> type[StoreQueues]:
    """Return the class of the store's queues."""
    return RocksdbQueues if facts.is_rocksdb else StoreQueues
