"""The parts of one open store: files, configuration and shared state, which recovery and the services work on.

Services take a `StoreParts`, or only those of its parts that they need.  Nothing here starts a thread or changes a file; the
engine does, and it is the only caller of `load`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from commitlog import CommitLog, LogPaths, QueueOffsets
from consumequeue import AllQueues, BatchQueues, ConsumeQueues
from indexfile import IndexFiles, KeyFilters
from storageio import Disk, StoreClosed, process_id

from .broker.config.ack_file import AckedQueue, AckFile, end_leases, read_acks
from .broker.config.consumer_offsets import ConsumerOffsets, offsets_table
from .broker.config.topics import Topics, is_deleted
from .checkpoint import Checkpoint
from .config import StoreConfig, log_file_size
from .deleted_topics import DeletedTopics
from .derive.queues import DerivedQueues
from .folder import FolderFacts
from .paths import StorePaths
from .read.reader_view import ReaderView
from .read.rebalance import GroupMember, QueueSharing
from .read.retry_progress import RetryProgresses
from .recovery.queue_list import missing_queues
from .store_settings import read_levels, read_retention
from .write.dispatcher import DispatchService
from .write.flusher import FlushService
from .write.progress import Progress
from .write.running_flags import RunningFlags
from .write.sync_failure import mark_sync_failure


class StoreParts:
    """Log, queues, index and tables of one store, and what its threads share.

    A writer also has `flusher` and `dispatcher`; a reader has `view`.
    """

    flusher: FlushService
    dispatcher: DispatchService

    def __init__(self, root: str, config: StoreConfig, disk: Disk, clock: Callable[[], int] | None, *, writable: bool) -> None:
        """Set the fields without opening a file.  `clock` returns milliseconds; without one the disk's clock is used."""
        self.paths = StorePaths(root, config.store_path_commit_log)
        self.disk = disk
        self.now_ms = clock or disk.now_ms
        self.writable = writable
        self.flags = RunningFlags()
        self.progress = Progress()
        self.sharing = QueueSharing()
        self.retry_progresses = RetryProgresses()
        self.open_consumers: weakref.WeakSet[GroupMember] = weakref.WeakSet()
        self.administration = threading.Lock()  # serializes deletions and changes of offsets
        self.slave_guard = threading.Lock()  # serializes calls that append a master's bytes
        self.view: ReaderView | None = None
        self._given = config
        self._clock = clock
        self._consumer_offsets: ConsumerOffsets | None = None
        self.acked: list[AckedQueue] = []  # what the last writer left, before this one is named in the abort file
        self._offsets_guard = threading.Lock()

    def load(self) -> None:
        """Map the log, list queues and index files, and read the tables."""
        given, disk, paths = self._given, self.disk, self.paths
        self.facts = FolderFacts(paths.root, disk, given.store_path_commit_log)
        if self.writable:
            self.facts.refuse_unknown_shape(given)
        config = self.config = self.facts.with_sizes(given, is_locked=self.writable)
        self.facts.refuse_other_sizes(config, given)
        assert config.mapped_file_size_consume_queue and config.max_hash_slot_num and config.max_index_num
        self.levels = read_levels(disk, paths.own, given.message_delay_level)
        self.deleted = DeletedTopics(disk, paths.root)
        self.offsets = QueueOffsets(self._known_offsets)
        self.log = CommitLog(
            LogPaths.parse(disk, paths.commit_log), disk=disk, file_size_bytes=config.mapped_file_size_commit_log,
            new_file_size_bytes=log_file_size(config.max_size_bytes),
            writable=self.writable, offsets=self.offsets, host=config.store_host, with_crc=config.enabled_append_prop_crc,
            clock=self._clock, body_size_max=config.max_message_size, on_failed=self.mark_sync_failure,
        )  # fmt: skip
        low = max(self.log.min_offset, 0)
        self.broker_version = self.facts.broker_version(given.broker_version)
        self.queues = ConsumeQueues(
            disk, paths.queues, writable=self.writable, file_size_bytes=config.mapped_file_size_consume_queue,
            log_min_offset=low,
        )  # fmt: skip
        self.index = IndexFiles(
            disk, paths.index, writable=self.writable, slots=config.max_hash_slot_num, items=config.max_index_num,
            max_matches=config.max_msgs_num_batch, with_tags=self.broker_version.has_tag_items,
        ) if config.message_index_enable else None  # fmt: skip
        self.key_filters = KeyFilters(disk, paths.key_filters, self.index) if self.index is not None else None
        self.checkpoint = Checkpoint(disk, paths.root)  # recovery opens it for writing: a refused opening leaves every byte
        self.abort_file = self.facts.abort_file
        self.was_clean = not self.abort_file.is_present
        self.acked = self._read_acks()
        self.topics = Topics(disk, paths.config, default_queues=config.default_topic_queue_nums)
        batch = BatchQueues(
            disk, paths.batch, writable=self.writable, file_size_bytes=config.mapper_file_size_batch_consume_queue,
            log_min_offset=low,
        )  # fmt: skip
        self.derived = DerivedQueues(
            self.log, self.queues, self.topics, paths.root, has_ext=bool(config.enable_consume_queue_ext),
            ext_file_size=config.mapped_file_size_consume_queue_ext, batch=batch,
        )  # fmt: skip
        self.lookup = AllQueues(self.queues, batch, lambda: self.log.min_offset)
        is_new = not self.log.queue.files and self.topics.is_empty
        self.config = config.but(retention=read_retention(disk, paths.own, given, is_new=is_new))

    def _known_offsets(self, topic: str) -> list[tuple[int, int]]:
        """Return (queue id, next queue offset) of each queue of a topic."""
        found = dict(self.deleted.next_offsets(topic))
        for queue in self.lookup.of_topic(topic):
            found[queue.queue_id] = max(queue.max_offset, found.get(queue.queue_id, 0))
        return list(found.items())

    def mark_sync_failure(self) -> None:
        """Mark for the next opening that bytes after the flushed offset may not be on the disk."""
        mark_sync_failure(self.disk, self.paths.own, self.flusher.flushed_offset)

    def close_files(self) -> None:
        """Close maps and descriptors of all parts that were loaded."""
        for name in ("log", "queues", "derived", "index", "checkpoint"):
            part = getattr(self, name, None)
            if part is not None:
                part.close()

    @property
    def low_offset(self) -> int:
        """The physical offset at which the log begins; 0 without log files."""
        return max(self.log.min_offset, 0)

    @property
    def is_closed(self) -> bool:
        """Whether the store was closed."""
        return bool(self.flags.gate.is_closed)

    def check_open(self) -> None:
        """Raise `StoreClosed` if the store was closed."""
        if self.is_closed:
            raise StoreClosed(f"{self.paths.root}: the store is closed")

    def consumer_offsets(self) -> ConsumerOffsets:
        """Return the committed offsets.

        A writer loads them once; a reader loads them at every call, because a writer changes them.
        """
        with self._offsets_guard:
            if self._consumer_offsets is None or not self.writable:
                table = self._consumer_offsets = offsets_table(self.disk, self.paths.config)
                if not self.writable:
                    table.restore(self._read_acks())
                elif not table.is_in_rocksdb:
                    end_leases(self.disk, self.paths.own, self.acked)
                    kept = table.restore(self._read_acks(), self.lookup.end_of)
                    table.record_to(AckFile(self.disk, self.paths.own, process_id(), kept))
            return self._consumer_offsets

    def _read_acks(self) -> list[AckedQueue]:
        return read_acks(self.disk, self.paths.own, self.abort_file.read_process_id())

    def current_topics(self) -> Topics:
        """Return the table of topics; a reader loads it at every call, because a writer changes it."""
        if not self.writable:
            self.topics = Topics(self.disk, self.paths.config, default_queues=self.config.default_topic_queue_nums)
        return self.topics

    def dispatch_limit(self) -> int:
        """Return the physical offset up to which records may be dispatched and read.

        It is the end of the committed bytes, or under synchronous flush of the flushed bytes, so that nothing is read that a
        crash could take back.
        """
        return self.flusher.flushed_offset if self.config.is_sync_flush else self.log.committed_offset

    def refresh(self, *, again: bool = False) -> None:
        """Read a writer's changes since the last call; do nothing in a store opened for writing."""
        if self.view is not None:
            self.view.refresh(again=again)

    def settle(self) -> None:
        """Wait until everything written before the call is dispatched, so that reads find it.

        With a pool, wait for committed records only.  Raises the error that stopped the dispatcher: what is behind it is in no
        queue.  A full disk only delays the dispatcher, and reads find the rest later.
        """
        if not self.has_settled() and self.dispatcher.failure is not None:
            raise self.dispatcher.failure

    def has_settled(self) -> bool:
        """Wait as `settle` does; return False if the dispatcher cannot go on."""
        self.check_open()
        self.refresh()
        if self.writable and self.dispatcher.position < (end := self.dispatch_limit()):
            return self.dispatcher.wait_for(end)
        return True

    def lacks_listed_queues(self) -> bool:
        """Return whether a queue of the last clean stop is missing although its topic was not deleted."""
        missing = missing_queues(self.disk, self.paths.own, self.queues)
        return any(not is_deleted(self.topics, topic) for topic, _ in missing)
