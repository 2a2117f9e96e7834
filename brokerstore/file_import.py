"""Import of messages from a file of JSON Lines or Parquet, as `brokerstore export` writes it or with fewer columns.

A row needs `topic` and `body_base64` (JSON Lines) or `body` (Parquet; text in JSON Lines); the default of `queue_id` is 0.
`tags`, `keys`, `properties`, `flag`, `born_timestamp_ms`, `born_host` and `reconsume_times` are kept; the row's position in the
old store is not.  Rows keep their order within a queue.  A property DELAY schedules a row, unless it was already delivered: a
row whose REAL_TOPIC is its topic goes to its queue directly.

A second run continues after the first: a queue that already holds the file's first rows gets the rest.  A queue that holds
other messages is refused before anything is put into it.
"""

from __future__ import annotations

import binascii
import json
import os
from base64 import b64decode
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from itertools import chain, islice
from typing import Any

from brokerstore.identify import FolderKind
from brokerstore.migrate import Moved
from brokerstore.write_target import check_write_target
from commitlog import Message
from commitlog.layout import QUEUES_MAX
from messagestore import MessageStore, StoreConfig
from messagestore.broker.config.topics import QUEUES_DEFAULT
from messagestore.property_names import DEDUP_ID, DELAY, PRIORITY, REAL_TOPIC, SPECIAL, TIMERS
from messagestore.write.admission import topic_problem
from storageio import InvalidMessage, PutRejected, StoreCorrupt, StoreError, UnknownStore, needs_extra

BATCH = 256
LINE_SIZE_MAX = 1 << 30  # a body of 512 MiB in base64, and its fields
PARQUET_ROWS = 1024
DERIVED = ("TAGS", "KEYS", "__CRC32#")  # an export has separate columns for these properties
GO_ON = "correct or remove that row, then run the same command again; the imported rows are skipped"
Row = dict[str, Any]
QueueKey = tuple[str, int]


class BadRow(StoreCorrupt):
    """A row that is not a message; `offset` is its number, counted from 1."""

    def __init__(self, file: str, row: int, expected: str, found: str) -> None:
        """Name the row and what was expected."""
        super().__init__("row", file=file, offset=row, expected=expected, found=found[:200])
        self.args = (f"row {row} of {file}: expected {expected}, found {self.found}",)
        self.add_note(GO_ON)


def import_file(
    path: str, target: str, *, config: StoreConfig | None = None, progress: Callable[[int], None] | None = None
) -> Moved:
    """Put every row.

    A row that is not a message, or that the store refuses, ends the import with an error that names the row: `BadRow`,
    `InvalidMessage` or `PutRejected`; the rows before it are imported.  If the first row is bad, no store is created.
    `progress` is called with the number of rows read.
    """
    check_write_target(target, FolderKind.ROCKETMQ)
    with closing(_numbered(path)) as numbered:
        first = list(islice(numbered, 1))
        with MessageStore.open(target, "a", config) as store:
            run = _Import(store, path)
            _create_topics(store, path)
            try:
                for number, message in chain(first, numbered):
                    run.take(number, message)
                    if progress is not None:
                        progress(1)
            except BadRow as error:
                moved = run.finish()
                error.args = (f"{error}; the {moved.messages + moved.skipped} rows before it are imported",)
                raise
            moved = run.finish()
            store.close_cleanly()
    return moved


def _create_topics(store: MessageStore, path: str) -> None:
    """Create the topics that the store lacks, with as many queues as the rows name, because a put adds no queue."""
    counts: dict[str, int] = {}
    with suppress(BadRow, StoreCorrupt), closing(_rows(path)) as rows:  # the import itself reports it
        for _, row in rows:
            topic, queue_id = row.get("topic"), row.get("queue_id")
            if isinstance(topic, str) and isinstance(queue_id, int) and queue_id >= QUEUES_DEFAULT:
                counts[topic] = max(counts.get(topic, 0), min(queue_id + 1, QUEUES_MAX))
    for topic, count in counts.items():
        if store.engine.topics.get(topic) is None and topic_problem(topic) is None:
            store.create_topic(topic, count)


class _Import:
    """One run: rows are gathered into batches and counted."""

    def __init__(self, store: MessageStore, path: str) -> None:
        self._store, self._path = store, path
        self._moved = Moved()
        self._queues: dict[QueueKey, _TargetQueue] = {}
        self._batch: list[tuple[int, Message]] = []
        self._admission = store.engine.admission

    def take(self, number: int, message: Message) -> None:
        """Add the next row."""
        queue = self._queues.setdefault((message.topic, message.queue_id), _TargetQueue(self._store, message))
        if queue.has(message, f"row {number} of {self._path}"):
            self._moved.skipped += 1
        else:
            self._batch.append((number, message))
        if len(self._batch) == BATCH:
            self._put()

    def finish(self) -> Moved:
        """Put the remaining rows and flush the store."""
        self._put()
        self._moved.queues = len(self._queues)
        self._store.flush()
        return self._moved

    def _put(self) -> None:
        """Put a batch; if a message is refused, put them one by one to find it."""
        batch, self._batch = self._batch, []
        done = 0 if any(self._is_routed(message) for _, message in batch) else self._put_many([row[1] for row in batch])
        self._moved.messages += done
        for number, message in batch[done:]:
            self._put_one(number, message)

    def _is_routed(self, message: Message) -> bool:
        """Return whether the store would put this message alone, which leaves earlier ones uncounted after an error."""
        is_special = not (message.properties or {}).keys().isdisjoint(SPECIAL)
        return (
            is_special or message.topic in self._admission.batch_queues_of or message.topic in self._admission.ranked_queues_of
        )

    def _put_many(self, messages: list[Message]) -> int:
        """Return how many messages were put; the store checks all of them before it writes the first."""
        try:
            return self._store.put_many(messages).message_count if messages else 0
        except PutRejected as error:
            return error.message_count
        except InvalidMessage:
            return 0

    def _put_one(self, number: int, message: Message) -> None:
        try:
            if _has_waited(message) or _was_put(message):
                self._move_to_target(message)
            else:
                self._store.put(message)
        except (PutRejected, InvalidMessage) as error:
            there = self._moved.messages + self._moved.skipped
            where = f"row {number} of {self._path}, topic {message.topic[:200]!r}; the {there} rows before it are imported"
            refused: StoreError = InvalidMessage(f"{error}: {where}")
            if isinstance(error, PutRejected):
                refused = PutRejected(error.status, f"{error.reason}: {where}")
            refused.add_note(GO_ON)
            raise refused from error
        self._moved.messages += 1

    def _move_to_target(self, message: Message) -> None:
        engine = self._store.engine
        if reason := engine.admission.problem(message.topic):
            raise InvalidMessage(reason)
        engine.admission.admit(message.topic)
        if reason := engine.admission.queue_problem(message.topic, message.queue_id):
            raise InvalidMessage(reason)
        engine.internal_puts.put(message, message.queue_id)


def _has_waited(message: Message) -> bool:
    """Return whether the delay is over; a second one would move the row behind later rows of its queue."""
    properties = message.properties or {}
    return DELAY in properties and properties.get(REAL_TOPIC) == message.topic


def _was_put(message: Message) -> bool:
    """Return whether a row keeps its queue whatever its priority, and is put whatever its `dedup_id`: it was put before."""
    names = (message.properties or {}).keys()
    return not names.isdisjoint((PRIORITY, DEDUP_ID)) and names.isdisjoint((DELAY, *TIMERS))


class _TargetQueue:
    """A queue of the target, with the messages that it held when the import began."""

    def __init__(self, store: MessageStore, first: Message) -> None:
        self._name = f"{first.topic}/{first.queue_id}"
        is_there = first.topic in store.topics() and first.queue_id in store.queue_ids(first.topic)
        self._present = store.read(first.topic, first.queue_id) if is_there else iter(())

    def has(self, message: Message, row: str) -> bool:
        """Return whether the queue's next message is this one; raise `InvalidMessage` if it is another."""
        found = next(self._present, None)
        if found is None:
            self._present = iter(())
            return False
        if found.body == message.body and found.tags == message.tags and found.keys == (message.keys or []):
            return True
        raise InvalidMessage(
            f"{self._name} holds another message at offset {found.queue_offset} than {row}: import into a new store"
        )


def _numbered(path: str) -> Generator[tuple[int, Message], None, None]:
    """Yield each row as a message with its number, counted from 1.  Closing it closes the file."""
    with closing(_rows(path)) as rows:
        for number, row in rows:
            if {"queue", "seq_id"} <= row.keys() and "topic" not in row:
                raise _of_rabbit(path)
            yield number, _message(row, path, number)


def _of_rabbit(path: str) -> InvalidMessage:
    """Return the error for rows that were exported from RabbitMQ; they lack what the way back needs."""
    error = InvalidMessage(
        f"{path}: an export of a RabbitMQ folder; expected one of a RocketMQ store; import the folder itself"
    )
    error.add_note("run: brokerstore import RABBIT_DIR --to STORE_DIR  (RABBIT_DIR: the folder that was exported)")
    return error


def _rows(path: str) -> Generator[tuple[int, Row], None, None]:
    """Select the reader by the file's ending."""
    if not os.path.isfile(path):
        raise UnknownStore(f"{path}: no such file")
    if path.endswith(".parquet"):
        return _parquet_rows(path)
    if path.endswith((".jsonl", ".ndjson", ".json")):
        return _json_rows(path)
    raise UnknownStore(f"{path}: expected a .jsonl or .parquet file")


def _json_rows(path: str) -> Generator[tuple[int, Row], None, None]:
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(LINE_SIZE_MAX):
            number += 1
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BadRow(path, number, "a JSON object on one line", str(error)) from error
            if not isinstance(row, dict):
                raise BadRow(path, number, "a JSON object", type(row).__name__)
            yield number, row


def _parquet_rows(path: str) -> Generator[tuple[int, Row], None, None]:
    with needs_extra("arrow"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        with pq.ParquetFile(path) as file:
            batches = file.iter_batches(PARQUET_ROWS)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
    except (pa.ArrowException, OSError, ValueError) as error:  # pyarrow raises a different error for each part of a file
        raise StoreCorrupt("not a Parquet file", file=path, offset=0, expected="Parquet", found=str(error)) from error


def _message(row: Row, path: str, number: int) -> Message:
    """Return the message of a row, all of which is untrusted."""
    try:
        body = row["body_base64"] if "body_base64" in row else row["body"]
        properties = {name: value for name, value in dict(row.get("properties") or ()).items() if name not in DERIVED}
        return Message(
            row["topic"], _body(body, is_base64="body_base64" in row), tags=row.get("tags"), keys=list(row.get("keys") or []),
            properties=properties, queue_id=int(row.get("queue_id") or 0), flag=int(row.get("flag") or 0),
            born_timestamp_ms=int(row.get("born_timestamp_ms") or 0), born_host=row.get("born_host"),
            reconsume_times=int(row.get("reconsume_times") or 0),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, binascii.Error) as error:
        raise BadRow(path, number, "topic, body or body_base64, and fields of the right types", repr(error)) from error


def _body(body: Any, *, is_base64: bool) -> bytes:
    if is_base64:
        return b64decode(body, validate=True)
    return bytes(body, "utf-8") if isinstance(body, str) else bytes(memoryview(body))
