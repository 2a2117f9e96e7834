"""The commit of a sink: one process appends the staged parts to the log in partition order, each message exactly once.

Every message gets UNIQ_KEY `<sink id>:<batch id>:<ordinal>`, which is indexed.  So the log itself shows how far a batch was
written: ordinals 0..n-1 exist and n does not.  A repeated commit continues at n.  The last message of a batch has SINK_ROWS,
the number of rows, so a complete batch is recognised whatever rows come the second time.

Order: sync parts (`staging.py`), sync `commit.json`, append messages, sync the log, delete `commit.json`, delete parts.
- Crash before `commit.json`: the log has nothing of the batch; Spark stages and commits it again.
- Crash after it: the next commit of this sink continues with the same parts, because rows may come in a different order the
  second time, for example after a shuffle.
- Crash after its deletion: the log has the whole batch, and its SINK_ROWS proves that.
`commit.json` and the parts are in `<store>/brokerstore/`.  If that folder is lost, a batch whose rows come in the same order
is still written exactly once.

If old log files were deleted since, the first ordinals may be missing.  If the previous batch still exists, they are not;
otherwise every ordinal is looked up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog import Message
from commitlog.layout import BLANK_SIZE
from messagestore import MessageStore
from storageio import REAL_DISK, Disk, DiskFull, InvalidMessage, StoreCorrupt, read_head, replace_file

from .columns import NO_QUEUE, ROWS, UNIQUE_KEY
from .new_store import is_absent, there_already, unmake
from .options import SinkOptions
from .staging import MANIFEST, SinkPart, check_part, clear, clear_new, clear_stale, read_part, sink_folder

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST_BYTES_MAX = 256 << 20
NO_SPACE = 28  # ENOSPC


class Manifest(NamedTuple):
    """The parts of a batch in partition order."""

    batch_id: int
    parts: tuple[SinkPart, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows of all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics of all parts."""
        return tuple(dict.fromkeys(topic for part in self.parts for topic in part.topics))


class Committed(NamedTuple):
    """The result of a commit: messages that it appended, and messages that were in the log before."""

    appended: int
    found: int


class Present(NamedTuple):
    """What the log has of a batch: the ordinals below `next_ordinal`, and whether that is the whole batch."""

    next_ordinal: int
    is_whole: bool


NOTHING = Present(0, False)


def commit_batch(
    options: SinkOptions, sink_id: str, batch_id: int, parts: Sequence[SinkPart], *, is_new_id: bool = False,
    disk: Disk = REAL_DISK,
) -> Committed:  # fmt: skip
    """Append what the log lacks of a batch.  `is_new_id`: the sink id is new, so the log cannot have anything of it.

    Raises `StoreLocked` if another process has the store open, and `DiskFull` before the first message if not all of them
    fit.  A commit that fails before its first message leaves no new store behind.  After any error the same call, with
    these parts or those of another run of the same batch, continues.
    """
    root = options.path
    expected = Manifest(batch_id, tuple(sorted(part for part in parts if part.rows)))
    if not expected.parts and read_manifest(disk, root, sink_id) is None:
        clear(disk, root, sink_id)
        return Committed(0, 0)
    is_new = is_absent(disk, root)
    if options.is_new_store and not is_new:
        raise there_already(root)
    try:
        with MessageStore.open(root, "a", options.config, disk=disk) as store:
            done = _Commit(store, disk, options, sink_id).run(expected, is_new_id)
            clear(disk, root, sink_id)
            clear_stale(disk, root, disk.now_ms())
    except BaseException:
        if is_new:
            unmake(disk, root)
        raise
    return done


def abort_batch(options: SinkOptions, sink_id: str, *, disk: Disk = REAL_DISK) -> None:
    """Delete what tasks staged, unless the commit has started: then the next one continues it."""
    if read_manifest(disk, options.path, sink_id) is not None:
        return
    clear(disk, options.path, sink_id)
    clear_new(disk, options.path)


def begun_commits(root: str, disk: Disk = REAL_DISK) -> dict[str, Manifest]:
    """Return the commits that were started and not finished, by sink id."""
    folder = sink_folder(root, "")
    if disk.stat(folder) is None:
        return {}
    found = {entry.name: read_manifest(disk, root, entry.name) for entry in disk.list(folder)}
    return {sink_id: manifest for sink_id, manifest in found.items() if manifest is not None}


def finish_commits(options: SinkOptions, *, disk: Disk = REAL_DISK) -> dict[str, Committed]:
    """Finish every started commit of a store; return the results by sink id.

    Call this after a driver died in the commit of a batch job without a sinkId, since no later run continues that commit.
    """
    found = begun_commits(options.path, disk)
    return {sink_id: commit_batch(options, sink_id, batch.batch_id, batch.parts, disk=disk) for sink_id, batch in found.items()}


class _Commit:
    """The commit of one sink id to an open store."""

    def __init__(self, store: MessageStore, disk: Disk, options: SinkOptions, sink_id: str) -> None:
        self._store = store
        self._disk = disk
        self._options = options
        self._sink_id = sink_id
        self._root = options.path
        self._queues: dict[str, int] = {}

    def run(self, expected: Manifest, is_new_id: bool) -> Committed:
        """Finish a started commit, then commit the given batch."""
        begun = read_manifest(self._disk, self._root, self._sink_id)  # read under the store's lock
        done = Committed(0, 0)
        if begun is not None:
            done = self.go_on(begun, find_present(self._store, self._sink_id, begun))
        if begun is None or begun.batch_id != expected.batch_id:
            present = NOTHING if is_new_id else find_present(self._store, self._sink_id, expected)
            done = self.begin(expected, present)
        return done

    def begin(self, batch: Manifest, present: Present) -> Committed:
        """Start the commit of a batch."""
        if present.is_whole or not batch.parts:
            return Committed(0, present.next_ordinal)
        self._check_parts(batch, present)
        self._check_limit(batch)
        for topic in batch.topics:
            self._store.engine.admission.create(topic, self._options.queues)  # an existing topic keeps its number
        self._check_queues(batch)
        _write_manifest(self._disk, self._root, self._sink_id, batch)
        return self._finish(batch, present)

    def go_on(self, batch: Manifest, present: Present) -> Committed:
        """Continue a started commit."""
        self._check_parts(batch, present)
        return self._finish(batch, present)

    def _check_parts(self, batch: Manifest, present: Present) -> None:
        """Check every part that is still needed before the first message is appended."""
        end = 0
        for part in batch.parts:
            end += part.rows
            if end > present.next_ordinal and not present.is_whole:
                check_part(self._disk, self._root, self._sink_id, part)

    def _finish(self, batch: Manifest, present: Present) -> Committed:
        """Append the rest, sync the log, and delete `commit.json`."""
        appended = 0 if present.is_whole else self._append(batch, present.next_ordinal)
        self._store.flush()
        folder = sink_folder(self._root, self._sink_id)
        self._disk.delete(os.path.join(folder, MANIFEST))
        self._disk.sync_folder(folder)
        return Committed(appended, present.next_ordinal)

    def _check_queues(self, batch: Manifest) -> None:
        """Raise an error for a queue that a topic does not have, before anything is appended."""
        for part in batch.parts:
            for topic, queue_id in zip(part.topics, part.queue_ids, strict=False):  # an older version staged no queue ids
                if reason := self._store.engine.admission.queue_problem(topic, queue_id):
                    raise InvalidMessage(f"{reason}; the option queues sets the number of a new topic")

    def _check_limit(self, batch: Manifest) -> None:
        """Raise an error for a batch that the log could not take completely."""
        log_file_bytes = self._store.engine.log.file_size_bytes
        largest = max(part.largest_bytes for part in batch.parts)
        if largest + BLANK_SIZE > log_file_bytes:
            raise InvalidMessage(f"a record may take {largest} bytes, and the log's files have only {log_file_bytes}")
        needed, free = sum(part.size_bytes for part in batch.parts), self._disk.space(self._root).free_bytes
        if needed > free + log_file_bytes:
            raise DiskFull("commit", self._root, NO_SPACE, f"{needed} bytes to append, {free} bytes free")

    def _append(self, batch: Manifest, start: int) -> int:
        ordinal = 0
        for part in batch.parts:
            if ordinal + part.rows > start:
                at = max(start, ordinal)
                for piece in read_part(self._disk, self._root, self._sink_id, part, at - ordinal):
                    self._store.put_many(self._messages(batch, piece, at))
                    at += piece.num_rows
                if at != ordinal + part.rows:
                    path = os.path.join(sink_folder(self._root, self._sink_id), part.name)
                    raise StoreCorrupt("staged part", file=path, offset=0, expected=f"{part.rows} rows", found=at - ordinal)
            ordinal += part.rows
        return max(0, ordinal - start)

    def _messages(self, batch: Manifest, piece: pa.RecordBatch, first: int) -> list[Message]:
        prefix, last, rows = f"{UNIQUE_KEY}\x01{self._sink_id}:{batch.batch_id}:", batch.rows - 1, batch.rows
        made = []
        columns = [column.to_pylist() for column in piece.columns]
        for ordinal, row in enumerate(zip(*columns, strict=True), first):
            topic, queue_id, key_hash, body, pairs, flag, sys_flag, reconsume_times, born_ms, born_host = row
            own = f"{prefix}{ordinal}\x02" if ordinal < last else f"{prefix}{ordinal}\x02{ROWS}\x01{rows}\x02"
            made.append(Message(
                topic, body, queue_id=self._queue(topic, queue_id, key_hash, ordinal), flag=flag, sys_flag=sys_flag,
                born_timestamp_ms=born_ms, born_host=born_host, reconsume_times=reconsume_times,
                properties_raw=pairs + own.encode(),
            ))  # fmt: skip
        return made

    def _queue(self, topic: str, queue_id: int, key_hash: int | None, ordinal: int) -> int:
        """Return the given queue, else one by the first key, else round robin; repeated commits give the same result."""
        if queue_id != NO_QUEUE:
            return queue_id
        count = self._queues.get(topic)
        if count is None:
            known = self._store.engine.topics.get(topic)
            count = self._queues[topic] = max(1, known.write_queues if known is not None else 1)
        return (ordinal if key_hash is None else key_hash) % count


# What the log has


def find_present(store: MessageStore, sink_id: str, batch: Manifest) -> Present:
    """Find what the log has of a batch by its keys."""
    lookup = _Lookup(store, sink_id, batch.topics)
    first = _first_present(store, lookup, batch)
    if first < 0:
        return NOTHING
    low, step = first, 1
    while lookup.has(batch.batch_id, low + step):
        low, step = low + step, 2 * step
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if lookup.has(batch.batch_id, middle) else (low, middle)
    pairs = lookup.properties(batch.batch_id, low) or {}
    return Present(low + 1, pairs.get(ROWS) == str(low + 1))


def _first_present(store: MessageStore, lookup: _Lookup, batch: Manifest) -> int:
    """Return the lowest ordinal that is certainly in the log, or -1."""
    if lookup.has(batch.batch_id, 0):
        return 0
    if store.engine.log.min_offset <= 0 or (batch.batch_id and lookup.has(batch.batch_id - 1, 0)):
        return -1
    return next((ordinal for ordinal in range(batch.rows - 1, 0, -1) if lookup.has(batch.batch_id, ordinal)), -1)


class _Lookup:
    """Finds messages by the sink's UNIQ_KEY."""

    def __init__(self, store: MessageStore, sink_id: str, topics: tuple[str, ...]) -> None:
        self._store = store
        self._sink_id = sink_id
        self._topics = list(topics)

    def key(self, batch_id: int, ordinal: int | str) -> str:
        return f"{self._sink_id}:{batch_id}:{ordinal}"

    def has(self, batch_id: int, ordinal: int) -> bool:
        return self.properties(batch_id, ordinal) is not None

    def properties(self, batch_id: int, ordinal: int) -> dict[str, str] | None:
        """Return a message's properties; the topic that matched is queried first the next time."""
        expected = self.key(batch_id, ordinal)
        for index, topic in enumerate(self._topics):
            for message in self._store.query(topic, expected, max_count=1):
                self._topics.insert(0, self._topics.pop(index))
                return message.all_properties
        return None


# Started commits


def _write_manifest(disk: Disk, root: str, sink_id: str, batch: Manifest) -> None:
    """Write `commit.json`; it and the names of its parts are durable on return."""
    folder = sink_folder(root, sink_id)
    disk.make_folder(folder)
    disk.sync_folder(folder)
    text = json.dumps({"batch_id": batch.batch_id, "parts": [part._asdict() for part in batch.parts]})
    replace_file(disk, os.path.join(folder, MANIFEST), text.encode())


def read_manifest(disk: Disk, root: str, sink_id: str) -> Manifest | None:
    """Read `commit.json`; None if no commit was started.  Raises `StoreCorrupt` for invalid content."""
    path = os.path.join(sink_folder(root, sink_id), MANIFEST)
    data = read_head(disk, path, MANIFEST_BYTES_MAX)
    if data is None:
        return None
    try:
        fields: dict[str, Any] = json.loads(data)
        return Manifest(int(fields["batch_id"]), tuple(_parts(fields["parts"])))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt("commit.json of a sink", file=path, offset=0, expected="parts as JSON", found=error) from error


def _parts(listed: list[dict[str, Any]]) -> Iterator[SinkPart]:
    for fields in listed:
        name = str(fields["name"])
        if os.path.basename(name) != name:
            raise ValueError(f"name {name!r}")
        numbers = {field: int(fields[field]) for field in ("partition", "rows", "size_bytes", "crc", "largest_bytes")}
        queue_ids = tuple(map(int, fields.get("queue_ids", ())))
        yield SinkPart(name=name, topics=tuple(map(str, fields["topics"])), queue_ids=queue_ids, **numbers)
