"""Classify what is in a store's folder by name: parts that are read, parts that are kept, and parts that forbid writing.

The names are those of the RocketMQ 5.3.3 broker (`docs/formats/store-folder.md#names`). A user's file, such as `README.txt`, is
no part of a store and does not prevent opening it.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from storageio import Disk, Kind

if TYPE_CHECKING:
    from storebytes.finding import Finding

COMPACTION = "compaction"
DLEDGER_PREFIX = "dledger-"
_ROCKSDB_FOLDERS = ("consumequeue_rocksdb", "consumequeue")  # the second if the broker keeps both kinds in one folder
ROCKSDB = "RocksDB database"
NOT_READ = "not_read"  # kind of a note


class Use(Enum):
    """How a part of a store is handled."""

    READ = "read"
    KEPT = "kept"  # neither read nor changed
    UNSUPPORTED = "unsupported"  # the store is not opened for writing


class Part(NamedTuple):
    """One file or folder; `name` is its path below the store's folder."""

    name: str
    what: str
    use: Use


_KNOWN = {
    "commitlog": ("commit log", Use.READ),
    "consumequeue": ("consume queues", Use.READ),
    "consumequeue_ext": ("extended units of consume queues", Use.READ),
    "batchconsumequeue": ("batch consume queues", Use.READ),
    "index": ("key index", Use.READ),
    "config": ("configuration", Use.READ),
    "checkpoint": ("checkpoint", Use.READ),
    "abort": ("mark of a running or killed writer", Use.READ),
    "lock": ("lock file", Use.READ),
    "timerwheel": ("timer wheel", Use.READ),
    "timerlog": ("timer log", Use.READ),
    "config/rdb": ("configuration of version 2", Use.UNSUPPORTED),
    "config/timercheck": ("timer checkpoint", Use.READ),
    COMPACTION: ("compacted topics", Use.READ),
    "kvStore": ("pop consumer state (RocksDB)", Use.KEPT),
    "epochFileCheckpoint": ("epochs of controller mode (auto-switch HA)", Use.UNSUPPORTED),
    "tieredstore": ("tiered storage", Use.UNSUPPORTED),
}


def store_parts(disk: Disk, root: str) -> list[Part]:
    """Return every part of the store that exists in the folder, sorted by name."""
    parts = [_part(disk, root, name) for name in _names(disk, root)]
    return sorted((part for part in parts if part is not None), key=lambda part: part.name)


def unread_parts(disk: Disk, root: str) -> list[Finding]:
    """Return a note for each part that no check of the store reads."""
    from storebytes.finding import note  # 3 ms; a RabbitMQ folder is identified without the log's kernels

    parts = [part for part in store_parts(disk, root) if part.use is not Use.READ]
    return [note(os.path.join(root, part.name), 0, NOT_READ, "a part that is read", part.what) for part in parts]


def _names(disk: Disk, root: str) -> list[str]:
    """Return the names in the store's folder and in `config/`."""
    names = [entry.name for entry in disk.list(root)] if is_folder(disk, root) else []
    config = os.path.join(root, "config")
    inner = disk.list(config) if is_folder(disk, config) else []
    return names + [f"config/{entry.name}" for entry in inner]


def _part(disk: Disk, root: str, name: str) -> Part | None:
    path = os.path.join(root, name)
    what, use = _KNOWN.get(name, ("", Use.READ))
    if use is not Use.KEPT and has_rocksdb(disk, path):
        return Part(name, f"{ROCKSDB} of {what}" if what else ROCKSDB, Use.UNSUPPORTED)
    if name.startswith(DLEDGER_PREFIX) and is_folder(disk, path):
        return Part(name, "DLedger (Raft) log", Use.UNSUPPORTED)
    return Part(name, what, use) if what else None


def is_folder(disk: Disk, path: str) -> bool:
    """Return whether the path is a folder or a symlink to one."""
    entry = disk.stat(os.path.join(path, "."))
    return entry is not None and entry.kind is Kind.FOLDER


def has_rocksdb(disk: Disk, folder: str) -> bool:
    """Return whether a folder contains a RocksDB database.

    Every RocksDB database has the file `CURRENT`; a folder of that name belongs to a topic.
    """
    entry = disk.stat(os.path.join(folder, "CURRENT"))
    return entry is not None and entry.kind is not Kind.FOLDER


def has_rocksdb_queues(disk: Disk, root: str) -> bool:
    """Return whether the store has queues in RocksDB.

    A RocksDB folder contains the file `CURRENT`; a folder of that name belongs to a topic.
    """
    return any(has_rocksdb(disk, os.path.join(root, name)) for name in _ROCKSDB_FOLDERS)


def has_dledger_log(disk: Disk, root: str) -> bool:
    """Return whether the store has a DLedger log: a folder named after the peer."""
    if disk.stat(root) is None:
        return False
    names = [entry.name for entry in disk.list(root) if entry.name.startswith(DLEDGER_PREFIX)]
    return any(is_folder(disk, os.path.join(root, name)) for name in names)
