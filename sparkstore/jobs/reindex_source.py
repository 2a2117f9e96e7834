"""The data source of `reindex`: a reader packs a split into runs and items, a writer makes files of them.

One row is a run of units, a piece of items, or the end mark of a split.  `target` is the writer task that gets the row: the
hash of a queue's name selects its task, and one task makes the index.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from commitlog import CHECK_ALL
from commitlog.findings import UNKNOWN_VERSION, unsupported_record
from commitlog.walk import LogFiles
from consumequeue import ConsumeQueues
from consumequeue.layout import UNIT_SIZE
from indexfile import IndexFiles
from messagestore import StoreConfig
from messagestore.config import delay_times_ms
from messagestore.deleted_topics import DeletedTopics
from messagestore.derive.kinds.extended import KeptUnits
from messagestore.derive.kinds.scheduled import DelayLevels
from messagestore.derive.rebuild import INDEX, QUEUES, NamedIndexFiles, old_names, old_queues
from messagestore.excluded_topics import excluded_topics
from messagestore.folder import FolderFacts
from messagestore.store_settings import read_levels
from messagestore.swap import delete_tree
from storageio import REAL_DISK, StoreCorrupt, StoreError, UnknownStore, random_bytes
from storebytes.finding import Finding

from ..errors import BadOption
from ..options import check_tasks, parse_read_options
from ..source.split_reader import SplitReader, walk
from ..source.splits import LogSplit, plan_log
from ..source.stores import FoundStore, find_stores
from ..source.worker import one_line_errors, settled
from .dispatching import Dispatching, DispatchRun, item_kind, timed_items
from .reindex_commit import WORK, ReindexPart, check_parts, clear_work, swap_in

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

FORMAT = "brokerstore-reindex"
COLUMNS = "target int, kind int, topic string, queue_id int, `order` bigint, first bigint, data binary"
RUN, ITEMS, DONE = 0, 1, 2
BATCH_ROWS = 65536
ROWS_AT_ONCE = 256
NAMES = ("what", "tasks", "delaylevels")
TAKEN = frozenset({"path", "paths", "splitbytes", "filebytes", *NAMES})  # all others would skip records


@one_line_errors
class ReindexSource(DataSource):
    """The data source that reads a log as runs and writes queues and index of the same store."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name, which only the job uses."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema of the rows between map and merge."""
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader, which runs the map side."""
        return _ReindexReader(_Job(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer, which runs the merge."""
        return _Writer(_Job(self.options), random_bytes(8).hex())


class _Job:
    """The store and the parts to rebuild."""

    def __init__(self, options: Any) -> None:
        self.options = parse_read_options(options, also=NAMES)
        refused = self.options.given - TAKEN
        if refused:
            raise BadOption(f"option {min(refused)}: a reindex reads every record, so remove this option")
        stores = find_stores(self.options.paths)
        if len(stores) != 1 or stores[0].is_rabbit or len(stores[0].log_folders) != 1:
            raise BadOption("reindex needs exactly one folder of a RocketMQ store")
        self.store: FoundStore = stores[0]
        if os.path.dirname(self.store.log_folders[0]) != self.store.path:
            raise UnknownStore(f"{self.store.path}: a commit log without its store: give the store's folder")
        self.what = frozenset((options.get("what") or f"{QUEUES},{INDEX}").split(","))
        if not self.what <= {QUEUES, INDEX}:
            raise BadOption(f"option what: expected some of {QUEUES}, {INDEX}, found {options.get('what')!r}")
        self.tasks = check_tasks(options.get("tasks") or "2")
        self.delay_levels: str | None = options.get("delaylevels")
        if self.delay_levels is not None:
            delay_times_ms(self.delay_levels)
        facts = FolderFacts(self.store.path)
        self.paths = facts.paths
        if INDEX in self.what:
            facts.refuse_unknown_shape(StoreConfig())
        self.config = facts.with_sizes(StoreConfig(), guesses=True)
        self.with_tags = facts.broker_version().has_tag_items

    def plan(self) -> list[LogSplit]:
        return plan_log(self.store, self.options)


@one_line_errors
class _ReindexReader(DataSourceReader):
    def __init__(self, job: _Job) -> None:
        self._job = job

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(split) for split in self._job.plan()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = settled(self._rows(partition.value)) if partition.value is not None else iter(())
        while batch := [row for row, _ in zip(rows, range(ROWS_AT_ONCE), strict=False)]:
            yield _batch(batch)

    def _rows(self, split: LogSplit) -> Iterator[tuple[Any, ...]]:
        job = self._job
        for finding in split.findings:
            raise _corrupt(finding)
        levels = read_levels(REAL_DISK, job.paths.own, job.delay_levels)
        gathered: list[Array] = []
        on_items = (lambda items: gathered.append(items.copy())) if INDEX in job.what else None
        deleted = DeletedTopics(REAL_DISK, job.store.path)
        work = Dispatching(
            levels.current_ms, excluded_topics(REAL_DISK, job.store.path), on_items, deleted, with_tags=job.with_tags
        )
        kept = self._kept(levels)
        last = -1
        for found in walk(SplitReader(split), CHECK_ALL, BATCH_ROWS) if split.begin < split.end else ():
            if isinstance(found, Finding):
                raise _corrupt(found)
            last = found.base + int(found.positions[-1])
            yield from (self._run_row(run, kept) for run in work.take(found) if QUEUES in job.what)
            for items in gathered:
                yield job.tasks, ITEMS, None, None, int(items["offset"][0]), None, timed_items(found, items).tobytes()
            gathered.clear()
        yield from (self._run_row(run, kept) for run in work.rest() if QUEUES in job.what)
        kept.report()
        yield job.tasks, DONE, None, None, last, split.end, None

    def _kept(self, levels: DelayLevels) -> KeptUnits:
        """Open the old queues, which have facts that the log lacks."""
        job = self._job
        assert job.config.mapped_file_size_consume_queue
        old = old_queues(REAL_DISK, job.paths, job.config.mapped_file_size_consume_queue)
        return KeptUnits(
            REAL_DISK, job.paths, old, levels, LogFiles(REAL_DISK, list(job.store.log_folders)).message_at, is_strict=True
        )

    def _run_row(self, run: DispatchRun, kept: KeptUnits) -> tuple[Any, ...]:
        target = zlib.crc32(f"{run.topic}/{run.queue_id}".encode()) % self._job.tasks
        return (
            target,
            RUN,
            run.topic,
            run.queue_id,
            run.order,
            run.first,
            bytes(kept.applied(run.topic, run.queue_id, run.units)),
        )


def _corrupt(finding: Finding) -> StoreError:
    if finding.kind == UNKNOWN_VERSION:
        return unsupported_record(finding)
    return StoreCorrupt(
        finding.kind.replace("_", " "), file=finding.file, offset=finding.offset, expected=finding.expected, found=finding.found
    )


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {"target": pa.int32(), "kind": pa.int32(), "topic": pa.string(), "queue_id": pa.int32(), "order": pa.int64(),
             "first": pa.int64(), "data": pa.binary()}  # fmt: skip
    columns = [pa.array(cells, kind) for cells, kind in zip(zip(*rows, strict=True), kinds.values(), strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(kinds))


@one_line_errors
class _Writer(DataSourceArrowWriter):
    """Tasks make files in a work folder; `commit` swaps them in."""

    def __init__(self, job: _Job, job_id: str) -> None:
        self._job = job
        self._work = os.path.join(job.paths.own, f"{WORK}{job_id}")
        FolderFacts(job.store.path).refuse_unsupported()
        REAL_DISK.lock(job.paths.lock).release()  # detect a writer now and not after the work

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write files from rows sorted by queue and log order."""
        part = ReindexPart(os.path.join(self._work, f"part-{_attempt()}"))
        config = self._job.config
        assert config.mapped_file_size_consume_queue and config.max_hash_slot_num and config.max_index_num
        queues = ConsumeQueues(
            REAL_DISK, os.path.join(part.folder, QUEUES), writable=True, file_size_bytes=config.mapped_file_size_consume_queue
        )
        index = NamedIndexFiles(
            REAL_DISK, os.path.join(part.folder, INDEX), config, old_names(REAL_DISK, self._job.paths.index)
        )
        for batch in iterator:
            _take(batch, queues, index, part)
        if INDEX in self._job.what and part.log_end >= 0:
            _finish_index(index, part.last_record)
        queues.flush(0)
        part.queues, part.index_files = len(queues), len(index.files)
        queues.close()
        index.close()
        return part

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Swap the files in under the store's lock, if the log's end is unchanged."""
        job, disk = self._job, REAL_DISK
        parts = [message for message in messages if isinstance(message, ReindexPart)]
        lock = disk.lock(job.paths.lock)
        try:
            ends = max((split.end for split in job.plan()), default=-1)
            seen = max((part.log_end for part in parts), default=-1)
            if ends != seen:
                raise StoreError(f"{job.store.path}: the log was written during the reindex: it ended at {seen}, now at {ends}")
            check_parts(disk, parts)
            swap_in(disk, job.paths, self._work, parts, job.what)
            clear_work(disk, job.paths.own, self._work)
        finally:
            lock.release()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the work folder."""
        delete_tree(REAL_DISK, self._work)


def _attempt() -> str:
    """Return an identifier that no other task attempt of this job has."""
    context = TaskContext.get()
    assert context is not None
    return f"{context.partitionId()}-{context.taskAttemptId()}"


def _take(batch: pa.RecordBatch, queues: ConsumeQueues, index: IndexFiles, part: ReindexPart) -> None:
    import numpy as np

    for row in batch.to_pylist():
        if row["kind"] == RUN:
            queues.get_or_add(row["topic"], row["queue_id"]).append_run(row["first"], row["data"])
            part.units += len(row["data"]) // UNIT_SIZE
        elif row["kind"] == ITEMS:
            _add_items(index, np.frombuffer(row["data"], item_kind()))
        else:
            part.last_record, part.log_end = max(part.last_record, row["order"]), max(part.log_end, row["first"])


def _add_items(index: IndexFiles, items: Array) -> None:
    """Append items in log order; a full file is followed by the next one when another item comes."""
    hashes, offsets, times_ms = (items[name].copy() for name in ("hash", "offset", "time_ms"))
    done = 0
    while done < len(items):
        done = index.active().put_items(hashes, offsets, times_ms, done)
        index.sync_full()


def _finish_index(index: IndexFiles, last_record: int) -> None:
    """Sync the files; a record without keys creates one if there is none or the last one is full, as in a real store."""
    newest = index.last_header()
    if last_record >= 0 and (newest is None or newest.end_physical_offset < last_record):
        index.active()
    index.sync()
