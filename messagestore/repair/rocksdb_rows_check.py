"""Compare the index, timers and transactions that a broker keeps in RocksDB with the log."""

from __future__ import annotations

from collections.abc import Iterator

from commitlog import StoredMessage
from commitlog.layout import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from commitlog.walk import LogFiles, Piece
from storageio import Disk, StoreCorrupt
from storebytes.finding import Finding, limited

from ..rocksdb.database import Database, open_database
from ..rocksdb.store_rows import (
    INDEX,
    KEY,
    TAG,
    UNIQUE,
    index_key,
    index_rows,
    index_text,
    last_offset,
    open_transactions,
    read_timers,
)  # fmt: skip
from ..timers.records import TimerRecords
from ..timers.undelivered import due_of
from ..unreadable import unreadable

INDEX_ROW, TIMER_ROW, TRANSACTION_ROW = "rocksdb_index", "rocksdb_timer", "rocksdb_transaction"


def store_rows_findings(disk: Disk, path: str, files: LogFiles) -> Iterator[Finding]:
    """Yield what is wrong with the rows of the database at `path`, at most `FINDINGS_MAX` of a kind.

    Raises `MissingExtra` without the package that reads RocksDB.
    """
    try:
        with open_database(path) as database:
            yield from limited(_findings(disk, database, files))
    except StoreCorrupt as error:
        yield unreadable(error, path)


def _findings(disk: Disk, database: Database, files: LogFiles) -> Iterator[Finding]:
    low, end = files.files[0].start_offset if files.files else 0, files.end().offset
    records = TimerRecords(disk, files)
    timers = read_timers(database)
    for timer in timers.pending():
        if low <= timer.log_offset:
            message = records.record_at(timer.log_offset, timer.size_bytes)
            if isinstance(message, str) or due_of(message) != timer.due_ms:
                found = message if isinstance(message, str) else f"one due at {due_of(message)}"
                expected = f"a timer of {timer.size_bytes} bytes at {timer.log_offset}, due at {timer.due_ms}"
                yield Finding(database.path, 0, TIMER_ROW, expected, found)
    for one in open_transactions(database):
        if low <= one.log_offset:
            message = records.record_at(one.log_offset, one.size_bytes)
            if isinstance(message, str) or message.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_PREPARED):
                found = message if isinstance(message, str) else "another record"
                expected = f"a prepared message of {one.size_bytes} bytes at {one.log_offset}"
                yield Finding(database.path, 0, TRANSACTION_ROW, expected, found)
    yield from _index_findings(database, files, low, end)


def _index_findings(database: Database, files: LogFiles, low: int, end: int) -> Iterator[Finding]:
    """Compare the index: records up to the last one that was taken in have all their rows, and each row has its record."""
    done = last_offset(database, INDEX)
    if done < 0:
        return
    if done >= end:
        yield Finding(database.path, 0, INDEX_ROW, f"lastOffsetPy below {end}, the end of the log", done)
    found = 0
    for step in files.walk():
        for message in step.messages() if isinstance(step, Piece) else ():
            if message.physical_offset <= done:
                for text in sorted(index_texts(message)):
                    value = database.get(INDEX, index_key(text, message.physical_offset, message.store_timestamp_ms))
                    found += value is not None
                    if value is None:
                        yield Finding(database.path, 0, INDEX_ROW, f"{text} at {message.physical_offset}", "no row")
    inside = sum(row.log_offset >= low for row in index_rows(database))
    if inside > found:
        yield Finding(database.path, 0, INDEX_ROW, f"{found} rows", f"{inside}, of which {inside - found} belong to no record")


def index_texts(message: StoredMessage) -> set[str]:
    """Return the texts of the rows that a broker writes for a message: none without a UNIQ_KEY, and none for a rollback."""
    unique = message.all_properties.get("UNIQ_KEY", "")
    if not unique or message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return set()
    texts = {index_text(message.topic, KEY, key) + unique + "@" for key in message.keys if key}
    if message.tags:
        texts.add(index_text(message.topic, TAG, message.tags) + unique + "@")
    return texts | {index_text(message.topic, UNIQUE, unique)}
