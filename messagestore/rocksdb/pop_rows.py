"""Decode `kvStore`, where a broker with popConsumerKVServiceEnable keeps what groups in POP mode have taken.

There is a row for each message that is not acknowledged yet; the page is `docs/formats/rocketmq-pop.md#state-in-rocksdb`:

    popState  key    time of revival in ms (8) | group | @ | topic | @ | queue id (4) | @ | queue offset (8)
              value  JSON with the same and more

Rows name messages by queue and queue offset alone, so they are true for every store that has the messages there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from storageio import Disk, StoreCorrupt

from ..folder_contents import POP_STORE, has_rocksdb, is_empty_rocksdb
from .database import Database, new_database, open_database

POP_STATE = "popState"
_FAMILIES = ["default", POP_STATE]
_NUMBERS = ("queueId", "offset", "popTime", "invisibleTime")
_INT64 = range(-(1 << 63), 1 << 63)


class PopRow(NamedTuple):
    """A message that a group has in hand; without an acknowledgement it is put into the retry topic at `revive_ms`."""

    topic: str
    group: str
    queue_id: int
    queue_offset: int
    revive_ms: int
    key: bytes
    value: bytes


def stored_pop_rows(disk: Disk, root: str) -> list[PopRow]:
    """Return the rows of a store; none without the database.

    Raises `StoreCorrupt` for an unknown row, and `MissingExtra` without the package that reads the database.
    """
    path = os.path.join(root, POP_STORE)
    if not has_rocksdb(disk, path) or is_empty_rocksdb(disk, path):
        return []
    with open_database(path) as database:
        return list(_rows(database))


def write_pop_rows(disk: Disk, root: str, rows: Iterable[PopRow]) -> None:
    """Create the database of a store that has none."""
    with new_database(disk, os.path.join(root, POP_STORE), _FAMILIES) as database:
        for row in rows:
            database.put(POP_STATE, row.key, row.value)


def _rows(database: Database) -> Iterator[PopRow]:
    for key, value in database.rows(POP_STATE):
        try:
            found = json.loads(value)
            topic, group = found["topicId"], found["groupId"]
            queue_id, offset, taken_ms, invisible_ms = numbers = [found[name] for name in _NUMBERS]
            if not all(isinstance(one, str) for one in (topic, group)):
                raise TypeError
            if not all(type(one) is int and one in _INT64 for one in numbers):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            text = f"key {key[:80].hex()}, value {value[:80]!r}"
            known = "a row of the state of POP consumers"
            raise StoreCorrupt("POP state", file=database.path, offset=0, expected=known, found=text) from error
        yield PopRow(topic, group, queue_id, offset, taken_ms + invisible_ms, key, value)
