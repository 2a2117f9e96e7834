"""Read the rows of Mnesia's tables, in which a server of RabbitMQ 3 or 4.0 keeps its declarations (docs/formats/rabbitmq-4.md).

The rows are in NAME.DCD, the changes since then in NAME.DCL and in the logs of transactions:

row       {amqqueue, Name, Durable, .., Arguments, Process, .., Type, State}      Name: {resource, Vhost, queue, Name}
          {vhost, Name, ..}   {internal_user, Name, ..}   {user_permission, {user_vhost, User, Vhost}, ..}
change    {{Table, Key}, Row, write | delete | ..}
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from storageio import REAL_DISK, Disk, StoreCorrupt, UnsupportedFormat, read_head

from ..format.terms_cy import decode

QUEUES, USERS, PERMISSIONS, VHOSTS = (f"rabbit_{name}" for name in ("durable_queue", "user", "user_permission", "vhost"))
LOG_HEAD, ITEM_HEAD, MD5_FROM, MD5_SIZE = 8, 8, 65528, 16
_SIZE_MAX = 1 << 30
TAGS = {QUEUES: "amqqueue", USERS: "internal_user", PERMISSIONS: "user_permission", VHOSTS: "vhost"}
_KEY_PARTS = {QUEUES: 4, PERMISSIONS: 3}
_WORDS = tuple(word.encode() for pair in TAGS.items() for word in pair)
_LOGS = (*(f"{table}.{ending}" for table in TAGS for ending in ("DCD", "DCL")), "PREVIOUS.LOG", "LATEST.LOG")
Row = tuple[Any, ...]
Tables = dict[str, dict[Any, Row]]


def read_tables(node: str, disk: Disk = REAL_DISK) -> Tables:
    """Return the rows of the tables by key; without those behind a damaged item, which another check reports."""
    found: dict[str, dict[Any, Row | None]] = {table: {} for table in TAGS}
    for name in _LOGS:
        for term in _terms(read_head(disk, f"{node}/{name}", _SIZE_MAX) or b""):
            for table, key, row in _changes(term):
                if _is_key(table, key):
                    found[table][key] = row
    return {table: {key: row for key, row in rows.items() if row is not None} for table, rows in found.items()}


def _terms(data: bytes) -> Iterator[Any]:
    """Yield the items of a disk log that name a table or have a row; others are not decoded."""
    at = LOG_HEAD
    while at + ITEM_HEAD <= len(data):
        size = struct.unpack_from(">I", data, at)[0]
        start = at + ITEM_HEAD + (MD5_SIZE if size >= MD5_FROM else 0)
        at = start + size
        item = data[start:at]
        if not size or at > len(data):
            return
        if any(word in item for word in _WORDS):
            try:
                yield decode(item)
            except (StoreCorrupt, UnsupportedFormat):
                return


def _changes(term: Any) -> Iterator[tuple[str, Any, Row | None]]:
    """Yield table, key and row of each change that an item has, None for a deleted row."""
    if not isinstance(term, tuple) or len(term) < 2:
        return
    table = next((table for table, tag in TAGS.items() if term[0] == tag), None)
    if table is not None:
        yield table, term[1], term
    elif term[0] == "commit":
        for part in term:
            for change in part if isinstance(part, list) else ():
                yield from _change(change)
    else:
        yield from _change(term)


def _change(change: Any) -> Iterator[tuple[str, Any, Row | None]]:
    if isinstance(change, tuple) and len(change) == 3 and isinstance(change[0], tuple) and len(change[0]) == 2:
        (table, key), row, action = change
        if table in TAGS:
            yield table, key, row if action == "write" and isinstance(row, tuple) else None


def _is_key(table: str, key: Any) -> bool:
    """Return whether a key has the form that the server writes: a name, or for some tables a tuple of names."""
    if table not in _KEY_PARTS:
        return isinstance(key, bytes)
    return isinstance(key, tuple) and len(key) == _KEY_PARTS[table] and isinstance(key[1], bytes) and isinstance(key[-1], bytes)
