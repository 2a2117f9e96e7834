"""Read the configuration that a broker keeps in RocksDB: topics, groups and consumer offsets.

Version 1 (`configManagerVersion=v1`) has three databases of JSON texts, version 2 has one database, `config/rdb`. The bytes
are on the page `docs/formats/rocketmq-rocksdb.md#configuration`.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any, NamedTuple

from storageio import Disk, StoreCorrupt, UnsupportedFormat

from ..folder_contents import has_rocksdb
from .database import Database, open_database

TOPICS, GROUPS, OFFSETS = "config/topics", "config/subscriptionGroups", "config/consumerOffsets"
VERSION_2 = "config/rdb"
DATABASES = (TOPICS, GROUPS, OFFSETS)
_JSON_FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "lmqConsumerOffset.json")
_BESIDE_VERSION_2 = (*DATABASES, *(f"config/{name}" for name in _JSON_FILES))
_JOINT = "@"
_SEPARATOR = b"\x01"
_ROW = "row of the configuration"
_KEY = struct.Struct(">BHB")  # 1, table, kind of row
_OFFSET_TABLE, _PULL_TABLE, _TOPIC_TABLE, _GROUP_TABLE = 1, 2, 3, 4
_IS_VERSION, _IS_DATA = 1, 2
_VERSION_KEY, _VERSION_SIZE = b"data_version", 24
_IS_JSON = 1


class RocksdbConfig(NamedTuple):
    """The tables: the objects of topics and groups by name, and offsets by `topic@group` and queue id."""

    topics: dict[str, dict[str, Any]]
    groups: dict[str, dict[str, Any]]
    offsets: dict[str, dict[int, int]]


def has_config(disk: Disk, root: str) -> bool:
    """Return whether a store keeps its configuration in RocksDB, in either version."""
    return any(has_rocksdb(disk, os.path.join(root, name)) for name in (VERSION_2, *DATABASES))


def read_config(disk: Disk, root: str) -> RocksdbConfig:
    """Read all tables; one without a database is empty.

    Raises `MissingExtra` without the package that reads RocksDB, `StoreCorrupt` for what cannot be read, and
    `UnsupportedFormat` for version 2 beside another configuration, because the folder does not show which one the broker uses.
    """
    path = os.path.join(root, VERSION_2)
    if has_rocksdb(disk, path):
        beside = [name for name in _BESIDE_VERSION_2 if disk.stat(os.path.join(root, name)) is not None]
        if beside:
            raise UnsupportedFormat("configuration:", file=path, found=f"version 2 beside {beside[0]}", supported="one of them")
        with open_database(path) as database:
            return _version_2(database)
    topics, groups, offsets = (_table(disk, os.path.join(root, name)) for name in DATABASES)
    return RocksdbConfig(topics, groups, {key: _offsets(root, key, value) for key, value in offsets.items()})


def _version_2(database: Database) -> RocksdbConfig:
    """Decode every row. Pull offsets and the versions of the tables are checked and not returned."""
    found = RocksdbConfig({}, {}, {})
    for key, value in database.rows("default"):
        one, table, kind = _KEY.unpack_from(key) if len(key) >= _KEY.size else (0, 0, 0)
        rest = key[_KEY.size :]
        if one == 1 and kind == _IS_VERSION and rest == _VERSION_KEY and len(value) == _VERSION_SIZE:
            continue
        if one != 1 or kind != _IS_DATA or not value:
            raise _unknown(database, key, value)
        if table in (_TOPIC_TABLE, _GROUP_TABLE):
            names, rest = _names(rest, 1, b"")
            if rest or not names:
                raise _unknown(database, key, value)
            (found.topics if table == _TOPIC_TABLE else found.groups)[names[0]] = _value(database, key, value)
        else:
            names, rest = _names(rest, 2, _SEPARATOR)
            if table not in (_OFFSET_TABLE, _PULL_TABLE) or len(names) != 2 or len(rest) != 4 or len(value) != 8:
                raise _unknown(database, key, value)
            if table == _OFFSET_TABLE:
                group, topic = names
                queues = found.offsets.setdefault(topic + _JOINT + group, {})
                queues[int.from_bytes(rest, "big")] = int.from_bytes(value, "big", signed=True)
    return found


def _names(data: bytes, count: int, separator: bytes) -> tuple[list[str], bytes]:
    """Split names, each with its length in two bytes before it, off a key. A damaged key gives fewer names."""
    found: list[str] = []
    while len(found) < count:
        end = 2 + int.from_bytes(data[:2], "big")
        name, rest = data[2:end], data[end:]
        if len(name) != end - 2 or not name or not rest.startswith(separator):
            break
        found.append(name.decode("utf-8", "replace"))
        data = rest[len(separator) :]
    return found, data


def _value(database: Database, key: bytes, value: bytes) -> dict[str, Any]:
    if value[0] != _IS_JSON:
        found = f"serialization type {value[0]} at {key!r}"
        raise UnsupportedFormat("configuration:", file=database.path, found=found, supported="1 (JSON)")
    return _object(database, key, value[1:])


def _unknown(database: Database, key: bytes, value: bytes) -> StoreCorrupt:
    shown = f"{key!r}: {value[:80]!r}"
    return StoreCorrupt(_ROW, file=database.path, offset=0, expected="a row of version 2", found=shown)


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


def _offsets(root: str, key: str, value: dict[str, Any]) -> dict[int, int]:
    if _JOINT not in key:
        raise StoreCorrupt(_ROW, file=os.path.join(root, OFFSETS), offset=0, expected="topic@group", found=key)
    table = value.get("offsetTable")
    if not isinstance(table, dict) or not all(queue.isdigit() and type(offset) is int for queue, offset in table.items()):
        expected = "an offsetTable of numbers"
        raise StoreCorrupt(_ROW, file=os.path.join(root, OFFSETS), offset=0, expected=expected, found=f"{key}: {value}")
    return {int(queue): offset for queue, offset in table.items()}
