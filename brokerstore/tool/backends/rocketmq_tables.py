"""`ls` and `stats` of a RocketMQ folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from brokerstore.identify import FolderKind
from commitlog import StoredMessage, Tally
from commitlog.topic_names import is_virtual_topic
from commitlog.walk import LogFiles
from messagestore.folder import FolderFacts
from storageio import REAL_DISK, DiskError, StoreCorrupt, StoreError
from storebytes.finding import Finding

from ..output import Answer, Table, in_use_keys, print_line, progress, report_in_use, table_time
from .rocketmq_compaction import compacted_keys_and_tables
from .rocketmq_folder import RocketmqFolder
from .rocketmq_pop import pop_keys_and_tables
from .rocketmq_rocksdb import queue_rows, unreadable
from .rocketmq_timers import keys_and_tables

KEYS = ("topic", "queue_id", "min_offset", "max_offset", "messages")
HEADERS = ("topic", "queue", "min offset", "max offset", "messages")
HOUR_MS = 3_600_000
_STATS_KEYS = ("messages", "size_bytes", "first_store_timestamp_ms", "last_store_timestamp_ms")
_STATS_HEADERS = ("messages", "bytes", "first stored (UTC)", "last stored (UTC)")
_GROUP_KEYS = {"queue": ("topic", "queue_id"), "hour": ("hour_ms", "topic")}
_GROUP_HEADERS = {"queue": ("topic", "queue"), "hour": ("hour (UTC)", "topic")}
Row = dict[str, Any]


def ls(folder: RocketmqFolder, only: str | None) -> Answer:
    """List every queue, or those of one topic, from the queue files or from the log; then the topics of topics.json."""
    facts, files = folder.facts, folder.files()
    incomplete: Row = {}
    if facts.is_store and facts.has("consumequeue"):
        for finding in files.check():
            folder.add(finding)
        rows = list(_rows_of_queues(folder, max(0, files.files[0].start_offset if files.files else 0)))
        if folder.facts.contents.has_both_queues:  # LMQs are in RocksDB alone
            known = {(row["topic"], row["queue_id"]) for row in rows}
            rows += [_row(*row) for row in queue_rows(folder) or () if row[:2] not in known]
        incomplete = _incomplete(folder)
    else:
        rows = _rows_of_rocksdb(folder) or _rows_of_log(folder)
    topics = _topics(folder)
    if only is not None:
        rows, topics = ([one for one in found if one["topic"] == only] for found in (rows, topics))
    beside, more_tables = _beside(folder, only)
    seen = {row["topic"] for row in rows}
    without = [[topic["topic"]] for topic in topics if topic["topic"] not in seen]
    tables = [Table(HEADERS, [list(row.values()) for row in rows]), *more_tables]
    tables += [Table(("topics without a queue",), without)] if without else []
    return Answer({"queues": rows, "topics": topics} | beside | incomplete, tables, folder.code)


def _beside(folder: RocketmqFolder, only: str | None = None) -> tuple[Row, list[Table]]:
    """Return the JSON keys and the tables of pending timers, consumers in POP mode and compacted topics."""
    keys: Row = {}
    tables: list[Table] = []
    for part in (keys_and_tables, pop_keys_and_tables, compacted_keys_and_tables):
        more, shown = part(folder, only)
        keys |= more
        tables += shown
    return keys, tables


def _incomplete(folder: RocketmqFolder) -> Row:
    """Return the JSON keys for messages of a killed writer that no queue has; the store is opened only then."""
    if not folder.facts.has("abort") or folder.is_in_use:
        return {}
    try:
        with folder.open_store() as store:
            return folder.incomplete_keys(store)
    except StoreError as error:
        print_line(f"brokerstore: incomplete: the queues were not compared with the log: {error}")
        return {"undispatched_messages": None}


def _row(topic: str, queue_id: int, low: int, high: int, messages: int) -> Row:
    return dict(zip(KEYS, (topic, queue_id, low, high, messages), strict=True))


def _rows_of_queues(folder: RocketmqFolder, log_min_offset: int) -> Iterator[Row]:
    """Read the queue files; report a queue that cannot be read, and go on."""
    with folder.queues() as queues:
        for topic in queues.topics():
            for queue_id in queues.queue_ids(topic):
                queue = queues.get(topic, queue_id)
                assert queue is not None
                try:
                    low = queue.correct_min_offset(log_min_offset)
                    yield _row(topic, queue_id, low, queue.max_offset, queue.max_offset - low)
                except DiskError:
                    raise
                except StoreError as error:
                    folder.problems.append(Finding(queue.folder, 0, "unreadable", "queue files", str(error)))
                    print_line(f"brokerstore: {error}")


def _rows_of_rocksdb(folder: RocketmqFolder) -> list[Row]:
    """Return the rows of queues in RocksDB; empty for another store, and if they cannot be read."""
    found = queue_rows(folder) if folder.target.kind is FolderKind.ROCKSDB else None
    return [_row(*row) for row in found or ()]


def _rows_of_log(folder: RocketmqFolder) -> list[Row]:
    """Count what the log dispatches: no prepared or rolled-back messages, and none of deleted topics."""
    from messagestore.derive.kinds import is_dispatched, queue_keys_of

    found: dict[tuple[str, int], list[int]] = {}
    is_deleted = _deleted(folder.facts)
    for message in _messages(folder, folder.files()):
        if is_dispatched(message):
            for (topic, queue_id), number in {queue_key[:2]: queue_key[2] for queue_key in queue_keys_of(message)}.items():
                row = found.setdefault((topic, queue_id), [number, 0, 0])
                row[2] += 1
                row[1] = row[0] + row[2] if is_virtual_topic(topic) else number + 1  # those close gaps
    return [_row(*queue, *row) for queue, row in sorted(found.items()) if not is_deleted(queue[0])]


def _messages(folder: RocketmqFolder, files: LogFiles) -> Iterator[StoredMessage]:
    for piece in folder.pieces(files):
        yield from piece.messages()


def _deleted(facts: FolderFacts) -> Callable[[str], bool]:
    if not facts.is_store or not facts.has("config"):
        return lambda _topic: False
    from messagestore.broker.config.topics import Topics, is_deleted

    topics = Topics(REAL_DISK, facts.paths.config)
    return lambda topic: is_deleted(topics, topic)


def _topics(folder: RocketmqFolder) -> list[Row]:
    """Return the topics of the configuration; report a database that cannot be read, and go on."""
    facts = folder.facts
    if not (facts.is_store or facts.kind is FolderKind.ROCKSDB) or not facts.has("config"):
        return []
    from messagestore.broker.config.topics import Topics

    topics = Topics(REAL_DISK, facts.paths.config)
    if isinstance(topics.rocksdb_error, StoreCorrupt):
        unreadable(folder, topics.path, topics.rocksdb_error)
    elif topics.rocksdb_error is not None:
        print_line(f"brokerstore: no topics: {topics.rocksdb_error}")
    found = [config for name in topics.names() if (config := topics.get(name)) is not None]
    return [
        {"topic": one.name, "read_queues": one.read_queues, "write_queues": one.write_queues, "perm": one.perm} for one in found
    ]


def stats(folder: RocketmqFolder, by: str, quiet: bool) -> Answer:
    """Count messages and bytes of whole records, for each queue or each hour and topic."""
    files = folder.files()
    with progress("stats", sum(file.size_bytes for file in files.files), quiet=quiet) as advance:
        rows = _stats_rows(folder, files, by, advance)
    names = (*_GROUP_KEYS[by], *_STATS_KEYS)
    found = [dict(zip(names, (*group, *row), strict=True)) for group, row in sorted(rows.items())]
    total = {"messages": sum(row[0] for row in rows.values()), "size_bytes": sum(row[1] for row in rows.values())}
    cells = [[table_time(cell) if name.endswith("_ms") else cell for name, cell in row.items()] for row in found]
    beside, more_tables = _beside(folder)
    report_in_use(files.end_offset)
    facts = {"queues" if by == "queue" else "hours": found, "total": total} | beside | in_use_keys(files.end_offset)
    return Answer(facts, [Table((*_GROUP_HEADERS[by], *_STATS_HEADERS), cells), *more_tables], folder.code)


def _stats_rows(
    folder: RocketmqFolder, files: LogFiles, by: str, advance: Callable[[int], None]
) -> dict[tuple[Any, Any], list[int]]:
    """Return messages, bytes, first and last time of each group."""
    tally = Tally() if by == "queue" else Tally(HOUR_MS)
    for piece in folder.pieces(files):
        tally.add(piece.view, piece.positions)
        advance(piece.stop - piece.start)
    rows: dict[tuple[Any, Any], list[int]] = {}
    for encoded, number, count, size_bytes, first_ms, last_ms in tally.rows():
        topic = encoded.decode("utf-8", "replace")  # invalid bytes of different topics may become one text
        group = (topic, number) if by == "queue" else (number * HOUR_MS, topic)
        row = rows.setdefault(group, [0, 0, first_ms, last_ms])
        rows[group] = [row[0] + count, row[1] + size_bytes, min(row[2], first_ms), max(row[3], last_ms)]
    return rows
