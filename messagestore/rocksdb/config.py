"""Read the configuration that a broker keeps in RocksDB: topics, groups and consumer offsets; copy it with other offsets.

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
from ..paths import replaced_folder
from .database import Database, new_database, open_database

TOPICS, GROUPS, OFFSETS = "config/topics", "config/subscriptionGroups", "config/consumerOffsets"
VERSION_2 = "config/rdb"
METADATA = "config/metadata"  # since 5.5: one database in place of the three
DATABASES = (TOPICS, GROUPS, OFFSETS)
_FAMILIES = {TOPICS: "topic", GROUPS: "subscriptionGroup", OFFSETS: "consumerOffset"}  # of `METADATA`
_VERSIONS = {TOPICS: "topicVersion", GROUPS: "subscriptionGroupVersion"}
_VERSION_ROW, _VERSION_FAMILY = b"kvDataVersionKey", "kvDataVersion"
_JSON_FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "lmqConsumerOffset.json")
_BESIDE_VERSION_2 = (*DATABASES, METADATA, *(f"config/{name}" for name in _JSON_FILES))
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
    return any(database_path(disk, root, name) is not None for name in (VERSION_2, METADATA, *DATABASES))


def database_path(disk: Disk, root: str, name: str) -> str | None:
    """Return the path of a database: `name` in the store, or where it was put aside by a repair that was killed."""
    paths = os.path.join(root, name), replaced_folder(root, os.path.basename(name))
    return next((path for path in paths if has_rocksdb(disk, path)), None)


def read_config(disk: Disk, root: str) -> RocksdbConfig:
    """Read all tables; one without a database is empty.

    Raises `MissingExtra` without the package that reads RocksDB, `StoreCorrupt` for what cannot be read, and
    `UnsupportedFormat` for version 2 beside another configuration, because the folder does not show which one the broker uses.
    """
    try:
        return _read(disk, root)
    except StoreCorrupt as error:
        where = os.path.join(root, "config")
        error.add_note(
            f"restore this database from a copy of {where}, or move it elsewhere: a broker then begins without its content"
        )
        raise


def _read(disk: Disk, root: str) -> RocksdbConfig:
    path = database_path(disk, root, VERSION_2)
    if path is not None:
        beside = [name for name in _BESIDE_VERSION_2 if disk.stat(os.path.join(root, name)) is not None]
        if beside:
            raise UnsupportedFormat("configuration:", file=path, found=f"version 2 beside {beside[0]}", supported="one of them")
        with open_database(path) as database:
            return _version_2(database)
    topics, groups, offsets = (_newest_table(disk, root, name) for name in DATABASES)
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


def offsets_name(disk: Disk, root: str) -> str:
    """Return the name of the database with the consumers' offsets."""
    if database_path(disk, root, VERSION_2) is not None:
        return VERSION_2
    return METADATA if _uses_metadata(disk, root, TOPICS) else OFFSETS


def copy_with_offsets(disk: Disk, root: str, fresh: str, changes: dict[tuple[str, int], int]) -> None:
    """Copy the database with the consumers' offsets to a new folder, with `changes` by `topic@group` and queue id."""
    name = offsets_name(disk, root)
    path = database_path(disk, root, name)
    assert path is not None, "there are offsets to change"
    of_key: dict[str, dict[int, int]] = {}
    for (joined, queue_id), offset in changes.items():
        of_key.setdefault(joined, {})[queue_id] = offset
    family_of_table = _FAMILIES[OFFSETS] if name == METADATA else "default"
    with open_database(path) as old, new_database(disk, fresh, old.families) as made:
        for family in old.families:
            for key, value in old.rows(family):
                is_table = family == family_of_table
                changed = (_changed_row if name == VERSION_2 else _changed_object)(key, value, of_key) if is_table else value
                made.put(family, key, changed)


def _changed_row(key: bytes, value: bytes, of_key: dict[str, dict[int, int]]) -> bytes:
    """Return a value of version 2, with the new offset if the row has one that is changed."""
    if key[: _KEY.size] != _KEY.pack(1, _OFFSET_TABLE, _IS_DATA):
        return value
    (group, topic), queue_id = _names(key[_KEY.size :], 2, _SEPARATOR)
    offset = of_key.get(topic + _JOINT + group, {}).get(int.from_bytes(queue_id, "big"))
    return value if offset is None else offset.to_bytes(8, "big")


def _changed_object(key: bytes, value: bytes, of_key: dict[str, dict[int, int]]) -> bytes:
    """Return a value of version 1, with the new offsets of its group and topic."""
    changes = of_key.get(key.decode("utf-8", "replace"))
    if not changes:
        return value
    document = json.loads(value)
    document["offsetTable"] |= {str(queue_id): offset for queue_id, offset in changes.items()}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


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


def _newest_table(disk: Disk, root: str, name: str) -> dict[str, dict[str, Any]]:
    if _uses_metadata(disk, root, name):
        return _table(disk, root, METADATA, _FAMILIES[name])
    return _table(disk, root, name, "default")


def _uses_metadata(disk: Disk, root: str, name: str) -> bool:
    """Return whether a table is in the one database for all: the old one stays where it was, and the newer version counts.

    Offsets have no version; they are where the topics are.
    """
    if database_path(disk, root, METADATA) is None or database_path(disk, root, name) is None:
        return database_path(disk, root, METADATA) is not None
    name = TOPICS if name == OFFSETS else name
    return _version(disk, root, METADATA, _VERSIONS[name]) >= _version(disk, root, name, _VERSION_FAMILY)


def _version(disk: Disk, root: str, name: str, family: str) -> tuple[int, ...]:
    """Return the version of a table, of which the later one is greater."""
    path = database_path(disk, root, name)
    if path is None:
        return ()
    with open_database(path) as database:
        rows = [_object(database, key, value) for key, value in database.rows(family) if key == _VERSION_ROW]
    found = [[row.get(part) for part in ("stateVersion", "timestamp", "counter")] for row in rows]
    return tuple(part for part in found[0] if isinstance(part, int)) if found else ()


def _table(disk: Disk, root: str, name: str, family: str) -> dict[str, dict[str, Any]]:
    path = database_path(disk, root, name)
    if path is None:
        return {}
    with open_database(path) as database:
        return {key.decode("utf-8", "replace"): _object(database, key, value) for key, value in database.rows(family)}


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
