"""Decode `rocksdbstore`, where a broker since RocketMQ 5.4.0 can keep key index, timers and open transactions.

Integers are big-endian; the page is `docs/formats/rocketmq-rocksdb.md#index-timers-and-transactions`. Column families:

    default  key    store time of the hour in ms (8) | text | log offset (8)
             value  store time in ms (8)
             text   @topic@K@key@uniq key@, @topic@T@tags@uniq key@ or @topic@U@uniq key@
    timer    key    due time in ms (8) | uniq key
             value  size (4) | log offset of the record under the timers' topic (8)
    trans    key    log offset of the prepared record (8) | @topic@transaction id
             value  number of checks (4) | size of the prepared record (4)

Rows with the names below tell how far the log or the timers' queue was taken in, each 8 bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from storageio import Disk, StoreCorrupt

from ..folder_contents import ROCKSDB_STORE, FolderContents
from .database import Database, open_database

INDEX, TIMERS, TRANSACTIONS = "default", "timer", "trans"
LAST_OFFSET, LAST_TIME = b"lastOffsetPy", b"lastStoreTimeStamp"
SCANNED, DELIVERED = b"sys_topic_scan_offset_checkpoint", b"timeline_checkpoint"
KEY, TAG, UNIQUE = "K", "T", "U"
_NUMBER = struct.Struct(">q")
_TIMER = struct.Struct(">iq")
_TRANSACTION = struct.Struct(">ii")
_JOINT = "@"
HOUR_MS = 3_600_000


class IndexRow(NamedTuple):
    """One row of the key index; `text` has topic, kind and key."""

    text: str
    log_offset: int
    store_timestamp_ms: int


class TimerRow(NamedTuple):
    """One timer; delivered ones stay for half an hour."""

    due_ms: int
    log_offset: int
    size_bytes: int


class OpenTransaction(NamedTuple):
    """A prepared message that is neither committed nor rolled back."""

    log_offset: int
    size_bytes: int
    checks: int


class RocksdbTimers(NamedTuple):
    """The timers, and how far they were delivered and taken in."""

    rows: list[TimerRow]
    delivered_ms: int
    queue_offset: int  # of the first message in the timers' queue that was not taken in

    def pending(self) -> list[TimerRow]:
        """Return the timers that are not delivered."""
        return [row for row in self.rows if row.due_ms >= self.delivered_ms]


def index_text(topic: str, kind: str, key: str) -> str:
    """Return how the text of a key's rows begins; that of a UNIQ_KEY ends with it."""
    return _JOINT + _JOINT.join((topic, kind, key)) + _JOINT


def index_key(text: str, log_offset: int, store_timestamp_ms: int) -> bytes:
    """Return the key of a row of the index."""
    hour_ms = store_timestamp_ms // HOUR_MS * HOUR_MS
    return _NUMBER.pack(hour_ms) + text.encode() + _NUMBER.pack(log_offset)


def index_rows(database: Database) -> Iterator[IndexRow]:
    """Yield the index, sorted by hour and text. Raises `StoreCorrupt` for an unknown row."""
    for key, value in _rows(database, INDEX, (LAST_OFFSET, LAST_TIME), _NUMBER.size):
        text = key[8:-8].decode("utf-8", "replace")
        if len(key) <= 2 * _NUMBER.size or not text.startswith(_JOINT):
            raise _unknown(database, INDEX, key, value)
        yield IndexRow(text, _NUMBER.unpack(key[-8:])[0], _NUMBER.unpack(value)[0])


def last_offset(database: Database, family: str) -> int:
    """Return the log offset of the last message that was taken into index or transactions; -1 if there is none."""
    return _number(database, family, LAST_OFFSET, -1)


def read_timers(database: Database) -> RocksdbTimers:
    """Return the timers. Raises `StoreCorrupt` for an unknown row."""
    rows = []
    for key, value in _rows(database, TIMERS, (SCANNED, DELIVERED), _TIMER.size):
        size, offset = _TIMER.unpack(value)
        rows.append(TimerRow(_NUMBER.unpack(key[:8])[0], offset, size))
    return RocksdbTimers(rows, _number(database, TIMERS, DELIVERED, 0), _number(database, TIMERS, SCANNED, 0))


def open_transactions(database: Database) -> list[OpenTransaction]:
    """Return the open transactions in the order of the log. Raises `StoreCorrupt` for an unknown row."""
    found = []
    for key, value in _rows(database, TRANSACTIONS, (LAST_OFFSET,), _TRANSACTION.size):
        checks, size = _TRANSACTION.unpack(value)
        found.append(OpenTransaction(_NUMBER.unpack(key[:8])[0], size, checks))
    return found


def stored_timers(disk: Disk, root: str) -> RocksdbTimers | None:
    """Return the timers that a store keeps in RocksDB; None if it has none there.

    Raises `MissingExtra` for a database with rows without the package that reads it.
    """
    with _opened(disk, root) as database:
        found = read_timers(database) if database is not None else None
    return found if found is not None and (found.rows or found.queue_offset) else None


def stored_transactions(disk: Disk, root: str) -> list[OpenTransaction] | None:
    """Return the open transactions in RocksDB; None if a store keeps none there. Raises `MissingExtra` as `stored_timers`."""
    with _opened(disk, root) as database:
        found = open_transactions(database) if database is not None else []
        return found if found or (database is not None and last_offset(database, TRANSACTIONS) >= 0) else None


@contextmanager
def _opened(disk: Disk, root: str) -> Iterator[Database | None]:
    """Open the store's database; None if it has no rows."""
    if not FolderContents(disk, root).has_rocksdb_rows:
        yield None
        return
    with open_database(os.path.join(root, ROCKSDB_STORE)) as database:
        yield database


def _rows(database: Database, family: str, numbers: tuple[bytes, ...], size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a family but those that hold a number.  Raises `StoreCorrupt` for a value of another size."""
    for key, value in database.rows(family):
        if key in numbers and len(value) == _NUMBER.size:
            continue
        if len(key) <= _NUMBER.size or len(value) != size:
            raise _unknown(database, family, key, value)
        yield key, value


def _number(database: Database, family: str, key: bytes, default: int) -> int:
    if family not in database.families:
        return default
    value = database.get(family, key)
    if value is not None and len(value) != _NUMBER.size:
        raise _unknown(database, family, key, value)
    return default if value is None else int.from_bytes(value, "big", signed=True)


def _unknown(database: Database, family: str, key: bytes, value: bytes) -> StoreCorrupt:
    found = f"{family}: key {key[:80].hex()}, {len(value)} bytes"
    return StoreCorrupt(
        "row of index, timers or transactions", file=database.path, offset=0, expected="a known row", found=found
    )
