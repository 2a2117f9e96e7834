"""The map side of `audit`: a task checks a split of the log, an index file, a store's other files or a virtual host's folder.

It returns rows with one schema; `kind` selects the columns in use:

    problem    file, offset, what, expected, found
    note       the same, for what is not damage
    range      begin: first record, end: end of the walk; count: records, bytes; units, items: checked ones;
               found: offsets and checksum states of its first and last records (`protection.py`)
    log_run    topic, queue_id: a run of a queue without a gap; first, last: queue offsets; begin: its first record
    listed     topic, queue_id: a queue whose units point at records of other topics; last: the last unit checked
    queue      topic, queue_id: a queue's files; first, last: its minimum and the number of its next unit; begin: the record of
               its last unit, end: where the log begins
    index      file: an index file whose chains were checked; count: its items
    folder     file: a RabbitMQ folder; count: messages, units: queues, items: records, bytes: files
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from commitlog import CHECK_ALL, StoredMessage
from commitlog._scan_cy import scan
from commitlog.columns import Batch
from commitlog.findings import Location, step_start
from commitlog.walk import LogFiles, Piece
from consumequeue import ConsumeQueues
from consumequeue.layout import UNIT, UNIT_SIZE
from indexfile import IndexFile, IndexFiles
from indexfile._index_cy import IndexBuffer
from indexfile.layout import FIRST_ITEM, HEADER_SIZE, ITEM_SIZE, SECONDS_OPTIONAL, SLOT_SIZE, TAGS_OPTIONAL, file_size
from messagestore import StoreConfig
from messagestore.deleted_topics import DeletedTopics
from messagestore.derive.cross_check import CrossCheck, accepts
from messagestore.derive.kinds.ordinary import unit_differences, unit_text
from messagestore.derive.kinds.scheduled import DelayLevels
from messagestore.derive.walk import Derivation, ItemList, Sink
from messagestore.excluded_topics import excluded_topics
from messagestore.folder import FolderFacts
from messagestore.paths import StorePaths
from messagestore.repair.verification import verify_beside_log
from messagestore.store_settings import read_levels
from storageio import REAL_DISK, File, Mode, StoreCorrupt, StoreError, random_bytes
from storebytes.finding import UNSUPPORTED, Finding

from ..errors import BadOption, DataLost
from ..object_disk import disk_for, is_remote
from ..options import OFFSET_MAX, parse_read_options, refuse_foreign_options
from ..source.split_reader import SplitReader, walk
from ..source.splits import LogSplit, plan_log
from ..source.stores import FoundStore, find_stores
from ..source.worker import one_line_errors, settled
from .dispatching import KEYS_MAX, DispatchRun, item_columns, stored_item
from .protection import SplitProtection

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

FORMAT = "brokerstore-audit"
FIELDS: dict[str, str] = {
    "kind": "string", "store": "string", "file": "string", "offset": "bigint", "what": "string", "expected": "string",
    "found": "string", "topic": "string", "queue_id": "int", "first": "bigint", "last": "bigint", "begin": "bigint",
    "end": "bigint", "count": "bigint", "bytes": "bigint", "units": "bigint", "items": "bigint",
}  # fmt: skip
PROBLEM, NOTE, RANGE, RUN, LISTED, QUEUE, INDEX = "problem", "note", "range", "log_run", "listed", "queue", "index"
FOLDER = "folder"
BATCH_ROWS = 65536
ROWS_AT_ONCE = 4096
ITEMS_AT_ONCE = 1 << 16  # of an index file; the unit of which a worker remembers the physical offsets
CHECKED_AT_ONCE = 1 << 21  # items of 20 bytes whose pages are in memory together
HASH_BITS = 31
HASH_MAX = (1 << HASH_BITS) - 1
Row = dict[str, Any]


@dataclass(frozen=True)
class LogAudit:
    """A split of the log; `audit` is unique to the run, so that nothing that a worker remembers outlives the run."""

    split: LogSplit
    audit: str


@dataclass(frozen=True)
class IndexSplit:
    """One index file, and the end of the log."""

    store: str
    file: str
    slots: int
    items: int
    log_end: int


@dataclass(frozen=True)
class StoreSplit:
    """The files beside the log: the ends of all queues, batch queues, checkpoint and config files."""

    store: str
    log_begin: int


@dataclass(frozen=True)
class VhostSplit:
    """A RabbitMQ virtual host's folder."""

    store: str
    folder: str


@dataclass(frozen=True)
class NodeSplit:
    """All quorum queues of a RabbitMQ node, or one stream."""

    store: str
    folder: str
    is_stream: bool


@one_line_errors
class AuditSource(DataSource):
    """The data source whose rows are the results of an audit."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name, which only the job uses."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema of the rows."""
        return ", ".join(f"`{name}` {kind}" for name, kind in FIELDS.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader, which runs the map side."""
        return _AuditReader(self.options)


@one_line_errors
class _AuditReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self._options = parse_read_options(options)
        refused = self._options.given - {"path", "paths", "splitbytes", "filebytes"}
        if refused:
            raise BadOption(f"option {min(refused)}: an audit checks everything, so remove this option")
        self._stores = find_stores(self._options.paths)
        refuse_foreign_options(self._options, is_rabbit=self._stores[0].is_rabbit)

    def partitions(self) -> list[InputPartition]:
        splits: list[Any] = []
        for store in self._stores:
            splits += self._vhosts(store) if store.is_rabbit else self._of_log(store)
        return [InputPartition(split) for split in splits]

    def _vhosts(self, store: FoundStore) -> list[VhostSplit | NodeSplit]:
        from rabbitstore import find_vhosts
        from rabbitstore.folder import RabbitmqFacts
        from rabbitstore.quorum import quorum_nodes
        from rabbitstore.stream import stream_folders

        disk = disk_for(store.path)
        made: list[VhostSplit | NodeSplit] = [VhostSplit(store.path, folder) for folder in find_vhosts(store.path, disk)]
        if RabbitmqFacts(store.path, disk).node is None:
            return made
        quorum = [NodeSplit(store.path, node.path, is_stream=False) for node in quorum_nodes(store.path, disk)]
        return [*made, *quorum, *(NodeSplit(store.path, one.path, is_stream=True) for one in stream_folders(store.path, disk))]

    def _of_log(self, store: FoundStore) -> list[Any]:
        splits, audit = plan_log(store, self._options), random_bytes(8).hex()
        log_parts = [LogAudit(split, audit) for split in splits]
        log_begin = min((split.file_start for split in splits), default=0)
        log_end = max((split.end for split in splits), default=0)
        if is_remote(store.path) or not _is_store(store.path):
            return log_parts
        config = FolderFacts(store.path).with_sizes(StoreConfig())
        assert config.max_hash_slot_num and config.max_index_num
        folder = os.path.join(store.path, "index")
        files = IndexFiles(
            REAL_DISK, folder, writable=False, slots=config.max_hash_slot_num, items=config.max_index_num
        ).files if REAL_DISK.stat(folder) is not None else []  # fmt: skip
        index = [IndexSplit(store.path, file.path, file.slots, file.items, log_end) for file in files]
        return [StoreSplit(store.path, log_begin), *index, *log_parts]  # the longest first, so that nothing waits for it alone

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = settled(_rows_of(partition.value))
        while batch := [row for row, _ in zip(rows, range(ROWS_AT_ONCE), strict=False)]:
            yield _batch(batch)


def _rows_of(split: Any) -> Iterator[Row]:
    if isinstance(split, LogAudit):
        return _SplitAudit(split.split, split.audit).rows()
    if isinstance(split, IndexSplit):
        return _index_rows(split)
    if isinstance(split, StoreSplit):
        return _store_rows(split)
    if isinstance(split, VhostSplit):
        return _vhost_rows(split)
    if isinstance(split, NodeSplit):
        return _node_rows(split)
    return iter(())


def _batch(rows: list[Row]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}
    columns = [pa.array([row.get(name) for row in rows], kinds[kind]) for name, kind in FIELDS.items()]
    return pa.RecordBatch.from_arrays(columns, names=list(FIELDS))


def _finding_row(store: str, finding: Finding) -> Row:
    file, offset, what, expected, found, is_problem = finding
    return {
        "kind": PROBLEM if is_problem else NOTE, "store": store, "file": file, "offset": offset, "what": what,
        "expected": str(expected), "found": str(found),
    }  # fmt: skip


_STORE_NAMES = ("consumequeue", "index", "checkpoint", "abort")


def _is_store(store: str) -> bool:
    """Return whether a store surrounds the log; a store without queues is still a store, with a problem."""
    return any(REAL_DISK.stat(os.path.join(store, name)) is not None for name in _STORE_NAMES)


class _SplitAudit(Sink):
    """Checks one split of a log against checksums, queues and index; the sink of the walk over its records."""

    def __init__(self, split: LogSplit, audit: str) -> None:
        self._split = split
        self._audit = audit
        self._is_store = not is_remote(split.store) and _is_store(split.store)
        self._open_runs: dict[tuple[str, int], Row] = {}
        self._expected: list[Array] = []  # (offset, hash) of the items that there should be
        self._optional: list[Array] = []  # of those that there may be
        self._sums = {"count": 0, "bytes": 0, "units": 0, "items": 0}
        self._begin, self._end = -1, -1
        self._protection = SplitProtection(split.file, split.file_start)
        self._rows: list[Row] = []  # of the records since the last batch
        self._memory = ItemList(KEYS_MAX, tag_items=TAGS_OPTIONAL)
        self._listed: CrossCheck | None = None  # of queues whose units point at records of other topics

    def rows(self) -> Iterator[Row]:
        split = self._split
        for finding in split.findings:
            yield _finding_row(split.store, finding)
        if split.begin >= split.end:
            return
        try:
            reader = SplitReader(split)
        except DataLost as error:
            yield _finding_row(
                split.store, Finding(error.file, error.offset, "data_lost", str(error.expected), str(error.found))
            )
            return
        config, derivation = self._prepared()
        for found in walk(reader, CHECK_ALL, BATCH_ROWS):
            if isinstance(found, Finding):
                yield _finding_row(split.store, found)
                continue
            self._count(found)
            piece = self._piece(found)
            for finding in self._protection.take(piece):
                yield _finding_row(split.store, finding)
            derivation.take(piece.view, piece.base, piece.start, piece.stop)
            yield from self._rows
            self._rows.clear()
        yield from self._open_runs.values()
        if self._is_store:
            yield from self._index_differences(config)
            yield from self._listed_rows()
        if self._known_queues is not None:
            self._known_queues.close()  # files and maps, not what it knows
        yield {
            "kind": RANGE, "store": split.store, "begin": self._begin, "end": self._end, **self._sums, "file": split.file,
            "found": self._protection.edges_text(),
        }  # fmt: skip

    def _prepared(self) -> tuple[StoreConfig, Derivation]:
        store = self._split.store
        config = FolderFacts(store).with_sizes(StoreConfig()) if self._is_store else StoreConfig()
        ignored = excluded_topics(REAL_DISK, store) if self._is_store else lambda _topic: False
        self._levels = read_levels(REAL_DISK, StorePaths(store).own, None) if self._is_store else DelayLevels([])
        self._log = LogFiles(REAL_DISK, [os.path.dirname(self._split.file)]) if self._is_store else None
        queues = os.path.join(store, "consumequeue")
        size = config.mapped_file_size_consume_queue
        self._queues = (
            ConsumeQueues(REAL_DISK, queues, writable=False, file_size_bytes=size) if self._is_store and size else None
        )
        self._known_queues = _known_queues(self._audit, queues, size) if self._is_store and size else None
        if self._queues is not None:
            self._listed = CrossCheck(self._queues, None, self._levels, 0)
        derivation = Derivation(self, self._levels.current_ms, ignored, checks=0)
        derivation.deleted = DeletedTopics(REAL_DISK, store) if self._is_store else None
        return config, derivation

    def _count(self, batch: Batch) -> None:
        first, last = int(batch.positions[0]), int(batch.positions[-1])
        if self._begin < 0:
            self._begin = batch.base + step_start(Location(batch.view, first, batch.base))
        self._end = batch.base + last + int(batch.sizes[-1])
        self._sums["count"] += len(batch.positions)
        self._sums["bytes"] += int(batch.sizes.sum(dtype="int64"))

    def _piece(self, batch: Batch) -> Piece:
        """Convert a batch to the form that `verify` takes."""
        start, stop = int(batch.positions[0]), int(batch.positions[-1]) + int(batch.sizes[-1])
        protected = scan(batch.view, start, stop, batch.base, 0, count_protected=True)[3]
        return Piece(self._split.file, batch.view, batch.base, start, stop, array("q", batch.positions.tobytes()), protected)

    # Queues

    def take_message(self, message: StoredMessage) -> None:
        """Compare units in queues of other topics, whose numbers may have gaps, which the queues close."""
        if self._listed is not None:
            self._listed.take_message(message)

    def _listed_rows(self) -> Iterator[Row]:
        """Yield the problems of units that point at records of other topics, and the last unit checked of each queue."""
        if self._listed is None:
            return
        self._sums["units"] += self._listed.units
        for finding in self._listed.problems:
            yield _finding_row(self._split.store, finding)
        for (topic, queue_id), end in self._listed.virtual_ends().items():
            yield {
                "kind": LISTED, "store": self._split.store, "topic": topic, "queue_id": queue_id, "last": end - 1, "count": 0,
                "begin": self._begin, "file": self._split.file,
            }  # fmt: skip

    def take_run(self, topic: str, queue_id: int, first: int, units: memoryview) -> None:
        """Compare units of an ordinary queue, and join the run to the one before or begin a row."""
        run = DispatchRun(topic, queue_id, UNIT.unpack_from(units)[0], first, bytes(units))
        count, queue_key = len(units) // UNIT_SIZE, (topic, queue_id)
        self._sums["units"] += count
        known = self._open_runs.get(queue_key)
        if known is not None and known["last"] + 1 == first:
            known["last"] += count
            known["count"] += count
        else:
            self._rows += [known] if known is not None else []
            self._open_runs[queue_key] = {
                "kind": RUN, "store": self._split.store, "topic": topic, "queue_id": queue_id, "first": first,
                "last": first + count - 1, "begin": run.order, "count": count, "file": self._split.file,
            }  # fmt: skip
        # The queue may have grown since an earlier split opened it. Later differences follow from the first one of a run.
        if self._is_store and self._queue_difference(run, self._known_queues) is not None:
            finding = self._queue_difference(run, self._queues)
            self._rows += [_finding_row(self._split.store, finding)] if finding is not None else []

    def _queue_difference(self, run: DispatchRun, queues: ConsumeQueues | None) -> Finding | None:
        queue = queues.get(run.topic, run.queue_id) if queues is not None else None
        folder = os.path.join(self._split.store, "consumequeue", run.topic, str(run.queue_id))
        if queue is None:
            return Finding(folder, run.first * UNIT_SIZE, "missing_queue", "the queue of these records", "none")
        for position, expected, found in unit_differences(
            queue, run.first, run.units, accepts(run.topic, self._levels, self._log)
        ):
            what = "wrong_unit" if found else "missing_unit"
            return Finding(folder, position * UNIT_SIZE, what, unit_text(expected), unit_text(found))
        return None

    # Index

    def item_buffer(self) -> IndexBuffer | None:
        """Return memory for items, in a store."""
        return self._memory.emptied() if self._is_store else None

    def take_items(self, items: IndexBuffer, *, is_split: bool) -> None:
        """Keep the items for `_index_differences`."""
        found = item_columns(items)
        packed = _packed(found["offset"].astype("int64"), found["hash"], self._split.begin)
        is_optional = found["seconds"] == SECONDS_OPTIONAL
        self._expected.append(packed[~is_optional])
        self._optional.append(packed[is_optional])

    def _index_differences(self, config: StoreConfig) -> Iterator[Row]:
        """Compare the items of the split's records in both directions."""
        import numpy as np

        assert config.max_hash_slot_num and config.max_index_num
        split, folder = self._split, os.path.join(self._split.store, "index")
        expected = _distinct(self._expected)
        self._sums["items"] = len(expected)
        files = IndexFiles(REAL_DISK, folder, writable=False, slots=config.max_hash_slot_num, items=config.max_index_num).files
        parts: list[Array] = []
        for file in files:
            try:
                parts += _pairs_between(file, split.begin, split.end, _known_ranges(self._audit, file.path))
            except StoreError:
                continue  # the task of that file reports the error
        found = _distinct(parts)
        if np.array_equal(expected, found):
            return
        allowed = _distinct([expected, *self._optional])
        missing, dangling = (np.setdiff1d(*pair, assume_unique=True) for pair in ((expected, found), (found, allowed)))
        for what, rows in (("missing_item", missing), ("dangling_item", dangling)):
            if len(rows):
                offset, code = split.begin + (int(rows[0]) >> HASH_BITS), int(rows[0]) & HASH_MAX
                first = f"key hash {code} of the record at {offset}"
                text = f"{len(rows)} {what.split('_')[0]}, the first {first}"
                yield _finding_row(
                    split.store, Finding(folder, 0, what, f"{len(expected)} items of {split.begin}..{split.end}", text)
                )


def _distinct(parts: list[Array]) -> Array:
    """Sort and remove duplicates; a stable sort is fast because the parts are nearly sorted."""
    import numpy as np

    every = np.sort(np.concatenate([np.empty(0, np.int64), *parts]), kind="stable")
    return every[np.concatenate([[True], every[1:] != every[:-1]])] if len(every) else every


def _packed(offsets: Array, hashes: Array, begin: int) -> Array:
    """Pack each (physical offset, hash) into an integer, which sorts a hundred times faster than a pair.

    A hash has 31 bits and a log file is smaller than 2**31 bytes, so the offset from `begin` fits beside it.
    """
    packed: Array = (offsets - begin) << HASH_BITS | hashes
    return packed


@lru_cache(maxsize=1)
def _known_queues(audit: str, folder: str, file_size_bytes: int) -> ConsumeQueues:
    """Return the queues whose ends this worker has found in this audit; finding them takes longer than comparing a split."""
    return ConsumeQueues(REAL_DISK, folder, writable=False, file_size_bytes=file_size_bytes)


@lru_cache(maxsize=1024)
def _known_ranges(audit: str, file: str) -> dict[int, tuple[int, int]]:
    """Return the first and last physical offset of each full piece of an index file that this worker has read in this audit.

    Nothing guarantees that items are in the log's order.  Without this each split of the log would read the whole file, which
    has the items of some ten gigabytes.
    """
    return {}


def _pairs_between(file: IndexFile, begin: int, end: int, known: dict[int, tuple[int, int]]) -> Iterator[Array]:
    """Yield the file's packed items of a range of the log in bounded pieces; a map would keep all of its pages."""
    head = file.header
    if head.next_item <= FIRST_ITEM or head.begin_physical_offset >= end or head.end_physical_offset < begin:
        return
    with REAL_DISK.open(file.path, Mode.READ) as opened:
        requested, found = file_size(file.slots, file.items), opened.size()
        if found != requested:
            raise StoreCorrupt(
                "index file size", file=file.path, offset=0, expected=f"{requested} bytes", found=f"{found} bytes"
            )
        count = min(head.next_item, file.items)
        for at in range(FIRST_ITEM, count, ITEMS_AT_ONCE):
            if at in known and (known[at][1] < begin or known[at][0] >= end):
                continue
            part = _items(opened, file.slots, at, min(count, at + ITEMS_AT_ONCE))
            offsets = part["offset"].astype("int64")
            if len(part) == ITEMS_AT_ONCE:
                known[at] = int(offsets.min()), int(offsets.max())
            inside = (offsets >= begin) & (offsets < end)
            if inside.any():
                yield _packed(offsets[inside], part["hash"][inside], begin)


def _items(file: File, slots: int, first: int, stop: int) -> Array:
    """Some items of an index file."""
    import numpy as np

    start = HEADER_SIZE + SLOT_SIZE * slots + ITEM_SIZE * first
    return np.frombuffer(file.read(start, ITEM_SIZE * (stop - first)), stored_item())


def _index_rows(split: IndexSplit) -> Iterator[Row]:
    """The chains of one file, and items of records behind the log's end."""
    try:
        with IndexFile(REAL_DISK, split.file, split.slots, split.items, writable=False) as file:
            file.check(at_once=CHECKED_AT_ONCE)
            past = sum(len(part) for part in _pairs_between(file, split.log_end, OFFSET_MAX, {}))
            used = max(0, file.header.next_item - FIRST_ITEM)
        if past:
            text = f"{past} dangling, of records from {split.log_end} on"
            yield _finding_row(split.store, Finding(split.file, 0, "dangling_item", "no items behind the log's end", text))
        yield {"kind": INDEX, "store": split.store, "file": split.file, "count": used}
    except StoreCorrupt as error:
        what = Finding(split.file, error.offset, "damaged_index", str(error.expected), f"{error.reason}: {error.found}")
        yield _finding_row(split.store, what)


def _store_rows(split: StoreSplit) -> Iterator[Row]:
    yield from _queue_rows(split)
    for finding in verify_beside_log(split.store):
        yield _finding_row(split.store, finding)


def _queue_rows(split: StoreSplit) -> Iterator[Row]:
    facts = FolderFacts(split.store)
    paths, config = facts.paths, facts.with_sizes(StoreConfig())
    if REAL_DISK.stat(paths.queues) is None or not config.mapped_file_size_consume_queue:
        return
    queues = ConsumeQueues(REAL_DISK, paths.queues, writable=False, file_size_bytes=config.mapped_file_size_consume_queue)
    for queue in queues:
        try:
            last = queue.unit(queue.max_offset - 1)
            yield {
                "kind": QUEUE, "store": split.store, "topic": queue.topic, "queue_id": queue.queue_id, "file": queue.folder,
                "first": queue.min_offset, "last": queue.max_offset, "begin": last.physical_offset if last else -1,
                "end": split.log_begin,
            }  # fmt: skip
        except StoreCorrupt as error:
            found = f"{error.reason}: {error.found}"
            yield _finding_row(split.store, Finding(error.file, error.offset, "unreadable", str(error.expected), found))


def _vhost_rows(split: VhostSplit) -> Iterator[Row]:
    from rabbitstore import verify

    found = verify(split.folder, disk_for(split.folder))
    yield from _rabbit_findings(split.store, split.folder, found.problems, found.notes)
    yield {
        "kind": FOLDER, "store": split.store, "file": split.folder, "count": found.messages, "units": found.queues,
        "items": found.records, "bytes": found.files,
    }  # fmt: skip


def _node_rows(split: NodeSplit) -> Iterator[Row]:
    from rabbitstore.quorum import quorum_nodes
    from rabbitstore.quorum.check import check_node
    from rabbitstore.stream import StreamFolder
    from rabbitstore.stream.check import check_stream

    disk = disk_for(split.folder)
    row: Row = {"kind": FOLDER, "store": split.store, "file": split.folder}
    if split.is_stream:
        stream = StreamFolder(split.folder, disk)
        checked = check_stream(stream)
        yield from _rabbit_findings(split.store, split.store, checked.problems, checked.notes)
        files = len(stream.numbers("segment")) + len(stream.numbers("index"))
        yield row | {"count": checked.messages, "units": 1, "items": checked.chunks, "bytes": files}
        return
    for node in quorum_nodes(split.store, disk):
        with node:
            if node.path == split.folder:
                found = check_node(node)
                files = sum(queue.segment_count() + 1 for queue in node.queues())
                yield from _rabbit_findings(split.store, split.store, found.problems, found.notes)
                yield row | {"count": found.messages, "units": found.queues, "items": found.entries, "bytes": files}


def _rabbit_findings(store: str, folder: str, problems: list[Finding], notes: list[Finding]) -> Iterator[Row]:
    """Yield findings; a file of an unsupported format is no damage."""
    for found in (*problems, *notes):
        is_problem = found in problems and found.kind != UNSUPPORTED
        file = f"{folder}/{found.file}"
        yield _finding_row(store, Finding(file, found.offset, found.kind, found.expected, found.found, is_problem))
