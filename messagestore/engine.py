"""All parts of one open store, put together, started and stopped in the right order.

Opening for writing: the record lock; log, queues, checkpoint and index loaded; the end of the log found; queues and index
brought up to it; the abort file durable; only then the write end and the three threads.  Closing is the reverse, and the
abort file goes last, only when everything is dispatched and on the disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from commitlog import CommitLog, LogPaths, Message, PutResult, QueueOffsets
from commitlog.java_numbers import SCHEDULE_TOPIC
from consumequeue import BatchQueues, ConsumeQueues, find_file_size, refuse_other_file_size
from consumequeue.layout import FILE_SIZE_DEFAULT as QUEUE_FILE_SIZE_DEFAULT
from indexfile import AT_REST, PAUSES_S, IndexFiles, Shape, index_paths, itemless_shape, refuse_other_shape
from indexfile.layout import ITEMS_DEFAULT, SLOTS_DEFAULT
from storageio import Disk, DiskError, FolderLock, StoreClosed, StoreError, StoreLocked, process_id

from .broker.config.consumer_offsets import ConsumerOffsets, offsets_table
from .broker.config.topics import Topics, is_deleted
from .broker.services.admission import Admission
from .broker.services.delays import Delays
from .broker.services.putting import finished
from .broker.services.retries import Retries
from .broker.services.routing import Routing
from .broker.services.transactions import Transactions
from .checkpoint import Checkpoint
from .config import Role, StoreConfig
from .paths import StorePaths, replaced_folder
from .read.beside_writer import beside_writer
from .read.reader_view import ReaderView
from .read.rebalance import QueueSharing
from .read.retry_progress import RetryProgresses
from .read.undispatched import Undispatched
from .read.unindexed import Unindexed
from .recovery import index_hint as index_note
from .recovery.abort_file import AbortFile
from .recovery.clamp_offsets import set_back_numbers
from .recovery.index_hint import IndexNote, drop_note, note_of, read_note, write_note
from .recovery.log_end import (
    CleanStop,
    LogEnd,
    clean_path,
    end_after_clean_stop,
    end_after_crash,
    read_clean,
    refuse_hole,
    write_clean,
)
from .recovery.queue_list import missing_queues, write_queue_list
from .repair.excluded_topics import left_alone
from .store_settings import (
    StoreSettings,
    index_shape,
    kept_shape,
    read_levels,
    read_settings,
    refuse_unknown_shape,
    write_settings,
)
from .write.derived_queues import SideQueues
from .write.dispatcher import DispatchService, QueueGap
from .write.flusher import FlushService
from .write.housekeeper import Housekeeper, every
from .write.pool import PooledFiles
from .write.progress import Progress
from .write.retention import Retention
from .write.ring import restore
from .write.running_flags import Flag, RunningFlags
from .write.sync_failure import end_doubt, leave_doubt

LOG = logging.getLogger(__name__)
STOP_WAIT_S = 60.0


def found_sizes(
    config: StoreConfig, places: StorePaths, disk: Disk, *, is_locked: bool = False, guesses: bool = False
) -> StoreConfig:
    """Sizes not given are those of the files that are there, else RocketMQ's defaults.

    `is_locked` by the caller: nobody writes in between.  `guesses`: of an index without an item the size of its files is
    enough; a reader must not, since a writer may know better.  The shape that the last writer kept is no guess.
    """
    shape = queue_size = None
    pauses_s = PAUSES_S if not is_locked and AbortFile(disk, places.root).is_present else AT_REST
    for folder in (places.index, replaced_folder(places.root, "index")):
        if shape is None and disk.stat(folder) is not None:
            shape = index_shape(disk, folder, places.own, pauses_s)
            if shape is None and (guesses or is_locked):
                shape = itemless_shape(disk, index_paths(disk, folder)[0])
    shape = shape or kept_shape(disk, places.own)
    for folder in (places.queues, replaced_folder(places.root, "consumequeue")):
        if queue_size is None and disk.stat(folder) is not None:
            queue_size = find_file_size(disk, folder)
    has_ext = disk.stat(places.ext) is not None
    ext_size = find_file_size(disk, places.ext) if has_ext else None
    return config.but(
        enable_consume_queue_ext=has_ext if config.enable_consume_queue_ext is None else config.enable_consume_queue_ext,
        mapped_file_size_consume_queue_ext=config.mapped_file_size_consume_queue_ext or ext_size,
        mapped_file_size_consume_queue=config.mapped_file_size_consume_queue or queue_size or QUEUE_FILE_SIZE_DEFAULT,
        max_hash_slot_num=config.max_hash_slot_num or (shape.slots if shape else SLOTS_DEFAULT),
        max_index_num=config.max_index_num or (shape.items if shape else ITEMS_DEFAULT),
    )


class Engine:
    """The parts, without the public surface.  Threads hold this one, so that a forgotten store can be closed at exit."""

    def __init__(self, root: str, config: StoreConfig, disk: Disk, clock: Callable[[], int] | None, *, writable: bool) -> None:
        """Everything is loaded, and with `writable` recovered and running, when this returns."""
        self.places = StorePaths(root, config.store_path_commit_log)
        self.disk = disk
        self.now_ms = clock or disk.now_ms
        self.writable = writable
        self.flags = RunningFlags()
        self.progress = Progress()
        self.sharing = QueueSharing()
        self.retry_progresses = RetryProgresses()
        self.slave_guard = threading.Lock()  # one call at a time brings a slave its master's bytes
        self.view: ReaderView | None = None
        self._consumer_offsets: ConsumerOffsets | None = None
        self._offsets_guard = threading.Lock()
        self.numbers_set_back: list[str] = []  # of consumers and delay levels, when the opening came after a crash
        self.is_clean_stop = False
        self._unclean: StoreError | None = None
        self._close_guard = threading.Lock()
        self._lock: FolderLock | None = None
        if writable:
            disk.make_folder(root)
            self._lock = disk.lock(self.places.lock)
        try:
            if writable:
                refuse_unknown_shape(disk, self.places.index, self.places.own, config)
                self._find_and_load(config, clock)
                self._recover()
                self._start()
            else:
                beside_writer(disk, root, lambda: self._find_and_load(config, clock))
                self.view = ReaderView(disk, self.log, self.queues, self.index)
                self.unindexed = Unindexed(self)
                self.undispatched = Undispatched(self)
                self.view.before_first_look = self.undispatched.warn
        except BaseException:
            self._release()
            raise

    # Opening

    def _find_and_load(self, given: StoreConfig, clock: Callable[[], int] | None) -> None:
        """With the sizes that are not given as the files have them."""
        self.config = found_sizes(given, self.places, self.disk, is_locked=self.writable)
        self.levels = read_levels(self.disk, self.places.own, given.message_delay_level)
        self._check_given_sizes(given)
        self._load(clock)

    def _check_given_sizes(self, given: StoreConfig) -> None:
        """Sizes that are not the files' are said now: a put would be in the log already, a query would find nothing."""
        disk, places = self.disk, self.places
        if given.mapped_file_size_consume_queue and disk.stat(places.queues) is not None:
            refuse_other_file_size(disk, places.queues, given.mapped_file_size_consume_queue)
        slots, items = self.config.max_hash_slot_num, self.config.max_index_num
        is_shape_given = given.max_hash_slot_num or given.max_index_num
        if is_shape_given and slots and items and disk.stat(places.index) is not None:
            refuse_other_shape(disk, index_paths(disk, places.index)[0], Shape(slots, items))

    def _load(self, clock: Callable[[], int] | None) -> None:
        config, disk, places = self.config, self.disk, self.places
        assert config.mapped_file_size_consume_queue and config.max_hash_slot_num and config.max_index_num
        self.offsets = QueueOffsets(self._known_offsets)
        self.log = CommitLog(
            LogPaths.parse(disk, places.commit_log), disk=disk, file_size_bytes=config.mapped_file_size_commit_log,
            writable=self.writable, offsets=self.offsets, host=config.store_host, with_crc=config.enabled_append_prop_crc,
            clock=clock, body_size_max=config.max_message_size,
        )  # fmt: skip
        self.queues = ConsumeQueues(
            disk, places.queues, writable=self.writable, file_size_bytes=config.mapped_file_size_consume_queue,
            log_min_offset=max(self.log.min_offset, 0),
        )  # fmt: skip
        self.index = IndexFiles(
            disk, places.index, writable=self.writable, slots=config.max_hash_slot_num, items=config.max_index_num,
            max_matches=config.max_msgs_num_batch,
        ) if config.message_index_enable else None  # fmt: skip
        self.checkpoint = Checkpoint(disk, places.root, writable=self.writable)
        self.abort_file = AbortFile(disk, places.root)
        self.was_clean = not self.abort_file.is_present
        self.topics = Topics(disk, places.config, default_queues=config.default_topic_queue_nums)
        self._load_side_queues()

    def _load_side_queues(self) -> None:
        """Batch queues and extended units are kept where the configuration or the folder says so."""
        config, disk, places = self.config, self.disk, self.places
        batch_size = config.mapper_file_size_batch_consume_queue
        batch = BatchQueues(
            disk, places.batch, writable=self.writable, file_size_bytes=batch_size, log_min_offset=max(self.log.min_offset, 0)
        )
        self.side = SideQueues(
            self.log, self.queues, self.topics, places.root, has_ext=bool(config.enable_consume_queue_ext),
            ext_file_size=config.mapped_file_size_consume_queue_ext, batch=batch,
        )  # fmt: skip

    def _known_offsets(self, topic: str) -> list[tuple[int, int]]:
        """Next queue offsets of a topic, from its queues."""
        batch = self.side.batch
        known = [(queue_id, batch.get_or_add(topic, queue_id).max_offset) for queue_id in batch.queue_ids(topic)]
        return known + [
            (queue_id, queue.max_offset)
            for queue_id in self.queues.queue_ids(topic)
            if (queue := self.queues.get(topic, queue_id)) is not None
        ]

    def _recover(self) -> None:
        """Find the log's end, then have queues and index agree with it."""
        derived = [self.places.queues, self.places.ext, self.places.batch, self.places.index]
        end_doubt(self.disk, self.places.own, self.log.queue.files, derived)
        restore(self.disk, self.places.own, self.log, is_torn=not self.was_clean)
        note = read_clean(self.disk, self.places.root)
        if self.was_clean:
            end = end_after_clean_stop(self.log, note)
            goes_on_behind = self._points_behind(end, note)
        else:
            goes_on_behind = False
            end = end_after_crash(self.log, self.checkpoint, self.disk, self.places.root, note)
        if self.config.uses_ring:
            self.log.buffers = PooledFiles(
                self.log, self.disk, self.places.own, self.config.transient_store_ring_size,
                zeroes_ahead=self.config.is_sync_flush,
            )  # fmt: skip
        self.log.attach(end.offset, end.store_timestamp_ms)
        for file in self.log.queue.files[:-1]:
            file.set_positions(file.size_bytes)
        if not self.was_clean:
            self.log.sync_from(end.dispatch_from)
        if self.was_clean:
            self._drop_other_index()
        is_doubtful = not self.was_clean or goes_on_behind or self._lacks_queues(end)
        start = self._agree(end) if is_doubtful or self._lacks_index(end) else end.offset
        if not self.was_clean:
            self.queues.doubt()
            self.side.batch.doubt()
            if self.index is not None:
                self.index.doubt()
        self._keep_settings(end)
        self._make_services(start, end)
        if start < end.offset:
            self._dispatch_from(start)
        self._count_queues(end, is_doubtful=is_doubtful)
        if is_doubtful:
            self.numbers_set_back = set_back_numbers(self.disk, self.places.config, self.queues, batch=self.side.batch)
        self._make_broker_services()
        if not self.was_clean or self.delays.is_doubtful:
            self.delays.resume()
        if note is not None:
            self.disk.delete(clean_path(self.places.root))

    def _keep_settings(self, end: LogEnd) -> None:
        """Write down what later openings cannot see from the files."""
        before = self.levels
        self.levels = self.side.levels = before.opened_at(end.offset, is_empty=end.last_offset < 0)
        *older, newest = self.levels.entries
        if older and newest not in before.entries and self.queues.queue_ids(SCHEDULE_TOPIC):
            LOG.warning(
                "%s: delay levels are %s; before: %s.  Messages that wait keep their delivery times",
                self.places.root, self.levels.current, older[-1].levels or "not known",
            )  # fmt: skip
        kept = read_settings(self.disk, self.places.own)
        if self.index is not None:
            kept = StoreSettings(self.index.slots, self.index.items)
        write_settings(self.disk, self.places.own, kept._replace(delay_levels=tuple(self.levels.entries)))

    def _dispatch_from(self, start: int) -> None:
        """Up to the log's end; from its begin where a queue turns out to lack units of before `start`."""
        low = max(self.log.min_offset, 0)
        self.dispatcher.refuses_gaps = start > low
        try:
            self.dispatcher.catch_up()
        except QueueGap as gap:
            LOG.warning("queues are filled from the whole log: %s", gap)
            self.dispatcher.begin_again(low)
            self.dispatcher.catch_up()
        self.dispatcher.refuses_gaps = False

    def _count_queues(self, end: LogEnd, *, is_doubtful: bool) -> None:
        """What later notes say of the queues.  After a clean stop the last note knows: a million queues are not looked at."""
        if is_doubtful or len(self.queues) == 0:
            self.queues.next_total = self.queues.count()
        else:
            note = read_note(self.disk, self.places.own)
            if note and note.next_total >= 0 and (note.last_offset, note.end_offset) == (end.last_offset, end.offset):
                self.queues.next_total = note.next_total
        self.dispatcher.tell_reached()

    def _drop_other_index(self) -> None:
        """One whose files have not the length that was given or found could take nothing: the first put would be its last."""
        if self.index is not None and self.index.has_other_sizes:
            LOG.warning("%s: files of another length: the index is made anew from the log", self.index.folder)
            drop_note(self.disk, self.places.own)
            self.index.destroy()

    def _lacks_index(self, end: LogEnd) -> bool:
        """Whether the index is gone although the log has records."""
        return end.last_offset >= 0 and self.index is not None and not self.index.files

    def _lacks_queues(self, end: LogEnd) -> bool:
        """Whether queues are gone although the log has records.  One whose records had left it begins again at 0."""
        has_none = (len(self.queues) == 0 and len(self.side.batch) == 0) or self.side.lacks_batch_queues()
        return end.last_offset >= 0 and (has_none or self.lacks_listed())

    def _points_behind(self, end: LogEnd, note: CleanStop | None) -> bool:
        """Whether the log lost its last files since a clean stop: what is put now would pass for what the queues have.

        Raises `StoreCorrupt` where it lost something in the middle, and has the records behind it.
        """
        if note is not None and (note.end_offset, note.last_offset) == (end.offset, end.last_offset):
            return False
        is_behind = self.queues.max_physical_offset() > end.offset or self.side.points_behind(end.offset)
        if is_behind:
            refuse_hole(self.log, end)
            LOG.warning("%s: queues go on behind the log's end at %d: they are cut there", self.places.root, end.offset)
        return is_behind

    def lacks_listed(self) -> bool:
        """Whether a queue of the last clean stop is gone, and not because its topic was deleted."""
        missing = missing_queues(self.disk, self.places.own, self.queues)
        return any(not is_deleted(self.topics, topic) for topic, _ in missing)

    def _agree(self, end: LogEnd) -> int:
        """Cut what points behind the log's end; where dispatch has to begin so that nothing is missing."""
        note = read_note(self.disk, self.places.own)
        if note is not None and not index_note.still_holds(self.log, note):
            note = None
        safe_offset, lost_from = self._recover_queues(end, note)
        self.side.recover(end.offset)
        low = max(self.log.min_offset, 0)
        self.queues.correct_min_offsets(low)
        lacks_any = self.lacks_listed() or self.side.lacks_batch_queues()
        is_counted = safe_offset > end.dispatch_from
        is_whole = (is_counted or self.queues.max_physical_offset() >= end.dispatch_from) and not lacks_any
        lost_in = self.log.queue.find(lost_from)
        start = min(safe_offset, lost_in.start_offset if lost_in else lost_from) if is_whole else low
        return min(start, self._rebuild_index(end, low, note))

    def _recover_queues(self, end: LogEnd, note: IndexNote | None) -> tuple[int, int]:
        """Cut each where it goes wrong: (before which record no queue lacks a unit, from where on some lost theirs)."""
        if note is None or not self._may_be_whole(note, end):
            return end.dispatch_from, self.queues.recover(end.dispatch_from, end.offset)
        lost_from = self.queues.recover(note.end_offset, end.offset)
        if self.queues.count(note.end_offset) == note.next_total:
            return note.end_offset, lost_from
        return end.dispatch_from, min(lost_from, self.queues.recover(end.dispatch_from, end.offset))

    def _may_be_whole(self, note: IndexNote, end: LogEnd) -> bool:
        """Whether the note tells more of the queues than the checkpoint does."""
        return note.next_total >= 0 and end.dispatch_from < note.end_offset <= end.offset and not self.side.are_kept

    def _rebuild_index(self, end: LogEnd, low: int, note: IndexNote | None) -> int:
        """Keep of the index what the note vouches for, or what is sound, and say where the log's other keys begin."""
        if self.index is None:
            return end.offset
        if self.index.changes_vouched(self.checkpoint.min_index_timestamp_ms, end.offset):
            self.checkpoint.index_msg_timestamp_ms = 0
            self.checkpoint.flush()
        if note is not None:
            start = min(note.end_offset, end.offset)
            if self.index.keep_until(note.name, note.next_item, start):
                if end.offset < note.end_offset:  # what is put now will lie where the note vouches for other items
                    drop_note(self.disk, self.places.own)
                return max(low, start)
        if not index_note.is_of_log(self.log, self.index, end.offset):
            self.index.destroy()
        self.index.keep_sound(self.checkpoint.min_index_timestamp_ms, end.offset)
        drop_note(self.disk, self.places.own)
        last = self.index.last_header()
        return max(low, last.end_physical_offset) if last is not None else low

    def _make_services(self, start: int, end: LogEnd) -> None:
        config = self.config
        self.flusher = FlushService(self.log, config, self.flags, end.offset)
        self.dispatcher = DispatchService(
            self.log,
            self.queues,
            self.index,
            self.flags,
            self.dispatch_limit,
            self.levels.current_ms,
            start,
            end.last_offset,
        )
        self.dispatcher.is_ignored = left_alone(self.disk, self.places.root, self.topics)
        self.dispatcher.side = self.side
        self.housekeeper = Housekeeper(
            self.log,
            self.queues,
            self.index,
            self.checkpoint,
            config,
            self.flags,
            self.dispatcher,
            self.flusher,
            self.places.own,
        )
        self.retention = Retention(
            self.disk, self.log, self.queues, self.index, config, self.flags, self._settled, self.housekeeper
        )
        self.retention.followers.append(self.side.delete_expired)
        self.housekeeper.jobs.append(self._keep_lock)
        self.housekeeper.jobs.append(self.retention.run_due)
        self.housekeeper.jobs.append(every(config.flush_consumer_offset_interval_ms, self.persist_offsets))
        self.housekeeper.flush_before.append(self.side.flush)

    def _make_broker_services(self) -> None:
        """What a broker does on top of its store (`broker_services`)."""
        config = self.config
        self.admission = Admission(
            self.topics, self.queues, self.side.batch, self.offsets, len(self.levels.current_ms), self.dispatcher.forget_ignored
        )
        self.delays = Delays(self)
        self.routing = Routing(self)
        self.transactions = Transactions(self)
        self.retries = Retries(self)
        if config.deliver_delayed and config.broker_role is not Role.SLAVE:
            self.housekeeper.timed_job = self.delays.deliver_due
        self.housekeeper.jobs.append(every(config.flush_delay_offset_interval_ms, self.delays.persist))

    def _settled(self) -> int:
        """Before it everything is dispatched and on the disk."""
        return min(self.dispatcher.position, self.flusher.flushed_offset)

    def _keep_lock(self) -> None:
        """Take the lock again where code of this process freed it by closing another descriptor of the file.

        Where somebody else opened the store meanwhile, as the abort file tells, no put is taken any more.
        """
        if self._lock is None:
            return
        try:
            was_lost = self._lock.renew()
            if was_lost and self.abort_file.read_process_id() != process_id():
                raise StoreLocked("the lock was lost, and another process opened the store meanwhile")
        except StoreLocked as error:
            if self.flags.is_writeable:
                LOG.error("%s: %s: no put is taken any more", self.places.lock, error)
            self.flags.set(Flag.NOT_WRITEABLE, f"{self.places.lock}: {error}")
            return
        if was_lost:
            LOG.warning("%s: the lock was lost and taken again: something in this process closed the file", self.places.lock)

    def put_scheduled(self, message: Message, raw: bytes, queue_id: int, level: int) -> PutResult:
        """Have a message of a service wait before it goes to its topic.  `raw`: its properties as the log keeps them."""
        self.check_open()
        return finished(self, self.routing.append_scheduled(message, raw, queue_id, level))

    def dispatch_limit(self) -> int:
        """Nothing is readable before it is in the files (section 6.1), with synchronous flush on the disk (section 2.2)."""
        return self.flusher.flushed_offset if self.config.is_sync_flush else self.log.committed_offset

    def _start(self) -> None:
        """The abort file first: whoever finds it knows that the store was in use."""
        self.abort_file.create(process_id())
        if self.config.is_sync_flush:
            self.flusher.on_flushed.append(self.dispatcher.nudge)
        if not self.config.is_sync_flush:  # else nothing more is readable before the sync
            self.flusher.on_committed.append(self.dispatcher.wake)
        for service in (self.flusher, self.housekeeper, self.dispatcher):
            service.on_failed.append(self._leave_doubt)
        self.log.queue.on_failed.append(self._leave_doubt)
        self.flusher.on_flushed.append(self.progress.notify)
        self.dispatcher.on_progress.append(self.progress.notify)
        self._start_threads()
        self.flags.open(self.config.broker_role is not Role.SLAVE)

    def _leave_doubt(self) -> None:
        leave_doubt(self.disk, self.places.own, self.flusher.flushed_offset)

    def _start_threads(self) -> None:
        for service in (self.flusher, self.dispatcher, self.housekeeper):
            service.start()
        if isinstance(self.log.buffers, PooledFiles) and not self.config.is_sync_flush:
            self.log.buffers.reader_offset = self.dispatcher.reads_from

    @property
    def lookup(self) -> ReaderView | ConsumeQueues:
        """Where a queue is looked up."""
        return self.view or self.queues

    def consumer_offsets(self) -> ConsumerOffsets:
        """Loaded when first wanted; beside a writer every time, since he changes them."""
        with self._offsets_guard:
            if self._consumer_offsets is None or not self.writable:
                self._consumer_offsets = offsets_table(self.disk, self.places.config)
            return self._consumer_offsets

    def persist_offsets(self) -> None:
        """Write down what consumers committed, and how far transactions are decided."""
        self.transactions.save_progress()
        if self._consumer_offsets is not None:
            self._consumer_offsets.persist()

    def refresh(self, *, again: bool = False) -> None:
        """Opened for reading: see what a writer did since.  Opened for writing there is nothing to see."""
        if self.view is not None:
            self.view.refresh(again=again)

    def settle(self) -> None:
        """Wait for the dispatcher to reach what was written (with a pool, committed), so that what was put is found."""
        self.check_open()
        self.refresh()
        if self.writable and self.dispatcher.position < (end := self.dispatch_limit()):
            self.dispatcher.wait_for(end)

    # Closing

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return bool(self.flags.gate.is_closed)

    def close(self) -> None:
        """Bring everything to the disk and let go.  The abort file stays where that is not possible."""
        with self._close_guard:
            if self.is_closed:
                return
            self.flags.gate.is_closed = True
            self.flags.open(False)
        self.progress.notify()
        if not self.writable:
            self._release()
            return
        self.log.appender.close()
        self.housekeeper.stop()
        try:
            self._finish()
        finally:
            self.dispatcher.stop()
            self.flusher.stop()
            self.flusher.abandon()
            self._release()

    def _finish(self) -> None:
        """Flush, dispatch, flush what was derived, say so, and only then take the abort file away."""
        try:
            self.flusher.flush_now()
            self.dispatcher.wait_for(self.log.written_offset, STOP_WAIT_S)
            self.housekeeper.flush_derived(thorough=True)  # before the index as a whole: it notes which files became full
            if self.index is not None and self.flags.is_writeable:
                self.index.sync()
            self.delays.persist()
            self.persist_offsets()
            self.log.queue.drop_prepared()
        except StoreError as error:
            LOG.error("not a clean stop: %s", error)
            self._unclean = error
            if isinstance(error, DiskError) and error.operation.startswith("sync"):
                self._leave_doubt()
            self.flags.set(Flag.NOT_WRITEABLE, str(error))
        if self.flags.is_writeable and self.dispatcher.behind_bytes == 0:
            self._write_note()
            self._close_ring(is_clean=True)
            self.abort_file.remove()
            self.is_clean_stop = True

    def check_clean_stop(self) -> None:
        """Of a closed store: raise what kept it from a clean stop."""
        if self.writable and not self.is_clean_stop:
            raise self._unclean or self.dispatcher.failure or StoreError(f"{self.places.root}: {self.flags.reason}")

    def _close_ring(self, *, is_clean: bool) -> None:
        """Of a pool, once; a ring that is not empty stays for the next opening."""
        ring, self.log.buffers = self.log.buffers, None
        if isinstance(ring, PooledFiles):
            ring.close(is_clean=is_clean)

    def _write_note(self) -> None:
        """The short cut of the next opening."""
        note_for_index = note_of(self.log, self.index, *self.dispatcher.reached) if self.index is not None else None
        if note_for_index is not None:
            write_note(self.disk, self.places.own, note_for_index)
        write_queue_list(self.disk, self.places.own, self.queues)
        note = CleanStop(self.log.written_offset, self.dispatcher.last_record_offset)
        write_clean(self.disk, self.places.root, note)

    def _release(self) -> None:
        """Maps, descriptors, the lock."""
        if getattr(self, "log", None) is not None:
            self._close_ring(is_clean=False)
        for part in ("log", "queues", "side", "index", "checkpoint"):
            held = getattr(self, part, None)
            if held is not None:
                held.close()
        if self._lock is not None:
            self._lock.release()

    def abandon(self) -> None:
        """In a forked child: the store is the parent's.  Touches no file, no lock, no thread."""
        self.flags.gate.is_closed = True
        self.flags.open(False)
        self._close_guard = threading.Lock()  # a thread that is not here may have held it
        self.log.appender.abandon()

    def check_open(self) -> None:
        """Raise `StoreClosed` if it is not."""
        if self.is_closed:
            raise StoreClosed(f"{self.places.root}: the store is closed")
