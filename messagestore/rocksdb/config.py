"""Read the configuration that a broker keeps in RocksDB (configManagerVersion v1): topics, groups and consumer offsets."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from storageio import Disk, StoreCorrupt, UnsupportedFormat

from ..folder_contents import has_rocksdb
from .database import Database, open_database

TOPICS, GROUPS, OFFSETS = "config/topics", "config/subscriptionGroups", "config/consumerOffsets"
VERSION_2 = "config/rdb"
DATABASES = (TOPICS, GROUPS, OFFSETS)
_JOINT = "@"
_ROW = "row of the configuration"


class RocksdbConfig(NamedTuple):
    """The tables: the objects of topics and groups by name, and offsets by (topic, group) and queue id."""

    topics: dict[str, dict[str, Any]]
    groups: dict[str, dict[str, Any]]
    offsets: dict[tuple[str, str], dict[int, int]]


def read_config(disk: Disk, root: str) -> RocksdbConfig:
    """Read all tables; one without a database is empty.

    Raises `MissingExtra` without the package that reads RocksDB, `UnsupportedFormat` for configManagerVersion v2, and
    `StoreCorrupt` for what cannot be read.
    """
    if has_rocksdb(disk, os.path.join(root, VERSION_2)):
        raise UnsupportedFormat("configuration:", file=os.path.join(root, VERSION_2), found="version 2", supported="version 1")
    topics, groups, offsets = (_table(disk, os.path.join(root, name)) for name in DATABASES)
    return RocksdbConfig(topics, groups, {_pair(root, key): _offsets(root, key, value) for key, value in offsets.items()})


def _table(disk: Disk, path: str) -> dict[str, dict[str, Any]]:
    if not has_rocksdb(disk, path):
        return {}
    with open_database(path) as database:
        return {key.decode("utf-8", "replace"): _object(database, key, value) for key, value in database.rows("default")}


def _object(database: Database, key: bytes, value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        shown = f"{key!r}: {value[:80]!r}"
        raise StoreCorrupt(_ROW, file=database.path, offset=0, expected="a JSON object", found=shown)
    return found


def _pair(root: str, key: str) -> tuple[str, str]:
    topic, joint, group = key.partition(_JOINT)
    if not joint:
        raise StoreCorrupt(_ROW, file=os.path.join(root, OFFSETS), offset=0, expected="topic@group", found=key)
    return topic, group


def _offsets(root: str, key: str, value: dict[str, Any]) -> dict[int, int]:
    table = value.get("offsetTable")
    if not isinstance(table, dict) or not all(queue.isdigit() and type(offset) is int for queue, offset in table.items()):
        expected = "an offsetTable of numbers"
        raise StoreCorrupt(_ROW, file=os.path.join(root, OFFSETS), offset=0, expected=expected, found=f"{key}: {value}")
    return {int(queue): offset for queue, offset in table.items()}
