"""Classify a store's folder and what is in it by name: parts that are read, that are kept, and that forbid writing.

The names are those of RocketMQ brokers up to 5.5.1 (`docs/formats/store-folder.md#names`). A user's file, such as
`README.txt`, is no part of a store and does not prevent opening it.
"""

from __future__ import annotations

import os
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from commitlog.entry_layout import ENTRY_BODY_SIZE_AT, ENTRY_HEADER_SIZE, ENTRY_MAGIC, ENTRY_SIZE_AT
from commitlog.offset_files import DLEDGER_PREFIX, ENTRIES
from storageio import Disk, Entry, Kind, Mode
from storebytes.folder_kind import FolderKind

COMPACTION = "compaction"
ROCKSDB_STORE = "rocksdbstore"  # since 5.4.0, empty unless an option puts index, timers or transactions there
POP_STORE = "kvStore"  # of a broker with popConsumerKVServiceEnable
LOG = "commitlog"
NAME_LENGTH = 20  # digits of a log file's name
WHEEL_SNAPSHOT = "timerwheel."  # before the position in the timer log
_ROCKSDB_FOLDERS = ("consumequeue_rocksdb", "consumequeue")  # the second if the broker keeps both kinds in one folder
ROCKSDB = "RocksDB database"
NOT_READ = "not_read"  # kind of a note
_MAGICS = tuple(bytes.fromhex(magic) for magic in ("daa320a7", "daa320ab", "cbd43194"))


class Use(Enum):
    """How a part of a store is handled."""

    READ = "read"
    KEPT = "kept"  # read, and never changed
    UNSUPPORTED = "unsupported"  # the store is not opened for writing


class FolderPart(NamedTuple):
    """One file or folder; `name` is its path below the store's folder."""

    name: str
    what: str
    use: Use


_KNOWN = {
    "consumequeue_rocksdb": ("consume queues", Use.READ),
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
    "abort.bak": ("what a broker copies of `abort`, without meaning", Use.READ),
    ROCKSDB_STORE: ("index, timers and transactions", Use.READ),
    POP_STORE: ("pop consumer state (RocksDB)", Use.KEPT),
    "epochFileCheckpoint": ("epochs of controller mode (auto-switch HA)", Use.UNSUPPORTED),
    "tieredstore": ("tiered storage", Use.UNSUPPORTED),
}


class FolderContents:
    """What the names in a folder show; each folder is listed once."""

    def __init__(self, disk: Disk, root: str) -> None:
        """Nothing is listed yet."""
        self.disk = disk
        self.root = root

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """The entries by name, with those of `config/`."""
        inner = _listed(self.disk, os.path.join(self.root, "config")) or {}
        return (self._own or {}) | {f"config/{name}": entry for name, entry in inner.items()}

    @cached_property
    def _own(self) -> dict[str, Entry] | None:
        return _listed(self.disk, self.root)

    @property
    def is_folder(self) -> bool:
        """Whether this is a folder at all."""
        return self._own is not None

    def has_folder(self, name: str) -> bool:
        """Return whether an entry is a folder or a symlink to one."""
        entry = self.entries.get(name)
        if entry is None or entry.kind is Kind.FILE:
            return False
        return entry.kind is Kind.FOLDER or is_folder(self.disk, os.path.join(self.root, name))

    @cached_property
    def log_parts(self) -> list[str]:
        """The names of the folders that hold a log together, as with several paths in storePathCommitLog; else none.

        They lie side by side, all files have one size, no name occurs twice, and the files of all leave no hole.
        """
        names = [name for name in sorted(self.entries) if name == LOG or ("/" not in name and name not in _KNOWN)]
        files = {name: _log_files(self.disk, os.path.join(self.root, name)) for name in names if self.has_folder(name)}
        parts = {name: found for name, found in files.items() if found}
        starts = sorted(start for found in parts.values() for start in found)
        sizes = {size for found in parts.values() for size in found.values()}
        is_whole = len(sizes) == 1 and all(after - before in sizes for before, after in pairwise(starts))
        return list(parts) if set(parts) - {LOG} and is_whole else []

    def has_rocksdb(self, name: str) -> bool:
        """Return whether an entry is a RocksDB database."""
        entry = self.entries.get(name)
        return entry is not None and entry.kind is not Kind.FILE and has_rocksdb(self.disk, os.path.join(self.root, name))

    @property
    def has_rocksdb_queues(self) -> bool:
        """Whether the store has queues in RocksDB."""
        return any(map(self.has_rocksdb, _ROCKSDB_FOLDERS))

    @cached_property
    def has_both_queues(self) -> bool:
        """Whether ordinary queues are in files and in RocksDB, as with rocksdbCQDoubleWriteEnable; LMQs are not in files."""
        if not self.has_rocksdb_queues or not self.has_folder("consumequeue"):
            return False
        found = self.disk.list(os.path.join(self.root, "consumequeue"))
        return any(entry.kind is Kind.FOLDER for entry in found)

    @cached_property
    def has_rocksdb_rows(self) -> bool:
        """Whether index, timers or transactions are in RocksDB: the database that newer brokers create is not empty."""
        return self.has_rocksdb(ROCKSDB_STORE) and not is_empty_rocksdb(self.disk, os.path.join(self.root, ROCKSDB_STORE))

    @property
    def has_dledger_log(self) -> bool:
        """Whether the store has a DLedger log: a folder named after the peer."""
        return bool(self.dledger_folders)

    @cached_property
    def dledger_folders(self) -> list[str]:
        """The folders of peers, `dledger-n0` as a rule; more than one if the broker was started with another name."""
        return sorted(name for name in self.entries if name.startswith(DLEDGER_PREFIX) and self.has_folder(name))

    @cached_property
    def dledger_logs(self) -> list[str]:
        """The folders of entries in them, as paths below the store's folder."""
        names = [os.path.join(name, ENTRIES) for name in self.dledger_folders]
        return [name for name in names if is_folder(self.disk, os.path.join(self.root, name))]

    @cached_property
    def kind(self) -> FolderKind | None:
        """The kind of a RocketMQ-style folder, None for any other."""
        if self.has_rocksdb_queues and not self.has_both_queues:
            return FolderKind.ROCKSDB
        if self.has_dledger_log:
            return FolderKind.DLEDGER
        if self.has_folder(LOG) or self._is_store_without_log:
            return FolderKind.ROCKETMQ
        return FolderKind.LOG if self._is_log() else None

    @property
    def _is_store_without_log(self) -> bool:
        """Whether this is a RocketMQ store whose log is missing: what lies beside a log is there."""
        queues = self.has_folder("consumequeue") or self.has_folder("batchconsumequeue")
        return queues or {"checkpoint", "index"} <= self.entries.keys() or {"checkpoint", "config"} <= self.entries.keys()

    def _is_log(self) -> bool:
        """Return whether the first non-empty file begins like a log; queue files have the same kind of name."""
        for name, entry in self.entries.items():
            if entry.kind is Kind.FILE and entry.size_bytes and len(name) == 20 and name.isdigit():
                with self.disk.open(os.path.join(self.root, name), Mode.READ) as file:
                    head = file.read(0, ENTRY_HEADER_SIZE)
                return head[4:8] in _MAGICS or is_entry(head)
        return False

    @cached_property
    def parts(self) -> list[FolderPart]:
        """Every part of the store that is there, sorted by name."""
        parts = map(self._part, self.entries)
        return sorted((part for part in parts if part is not None), key=lambda part: part.name)

    def _part(self, name: str) -> FolderPart | None:
        what, use = _KNOWN.get(name, ("", Use.READ))
        if name == ROCKSDB_STORE and self.has_rocksdb(name) and not self.has_rocksdb_rows:
            return FolderPart(name, f"{ROCKSDB} of {what} (empty)", Use.READ)
        if name.startswith(WHEEL_SNAPSHOT) and name.removeprefix(WHEEL_SNAPSHOT).isdecimal():
            return FolderPart(name, "snapshot of the timer wheel", Use.READ)
        if use is not Use.KEPT and self.has_rocksdb(name):
            return FolderPart(name, f"{ROCKSDB} of {what}" if what else ROCKSDB, Use.UNSUPPORTED)
        if name in self.dledger_folders:
            return FolderPart(name, "DLedger (Raft) log", Use.READ)
        return FolderPart(name, what, use) if what else None


def _listed(disk: Disk, folder: str) -> dict[str, Entry] | None:
    """Return the entries of a folder, or of one that a symlink leads to; None for anything else."""
    found = disk.stat(os.path.join(folder, "."))
    is_there = found is not None and found.kind is Kind.FOLDER
    return {entry.name: entry for entry in disk.list(folder)} if is_there else None


def is_folder(disk: Disk, path: str) -> bool:
    """Return whether the path is a folder or a symlink to one."""
    entry = disk.stat(os.path.join(path, "."))
    return entry is not None and entry.kind is Kind.FOLDER


def is_entry(head: bytes) -> bool:
    """Return whether a log file begins with the header of a DLedger entry."""
    if int.from_bytes(head[:4], "big") != ENTRY_MAGIC or len(head) < ENTRY_HEADER_SIZE:
        return False
    size, body_size = (int.from_bytes(head[at : at + 4], "big") for at in (ENTRY_SIZE_AT, ENTRY_BODY_SIZE_AT))
    return size == ENTRY_HEADER_SIZE + body_size


def has_rocksdb(disk: Disk, folder: str) -> bool:
    """Return whether a folder contains a RocksDB database.

    Every RocksDB database has the file `CURRENT`; a folder of that name belongs to a topic.
    """
    entry = disk.stat(os.path.join(folder, "CURRENT"))
    return entry is not None and entry.kind is not Kind.FOLDER


def _log_files(disk: Disk, path: str) -> dict[int, int]:
    """Return the sizes of a folder's files by the log offsets in their names; nothing if one has another name."""
    found = {entry.name: entry.size_bytes for entry in disk.list(path) if entry.kind is Kind.FILE}
    if not all(len(name) == NAME_LENGTH and name.isascii() and name.isdecimal() for name in found):
        return {}
    return {int(name): size for name, size in found.items()}


def queues_databases(disk: Disk, root: str) -> list[str]:
    """Return the names of the folders that have consume queues in RocksDB."""
    return [name for name in _ROCKSDB_FOLDERS if has_rocksdb(disk, os.path.join(root, name))]


def is_empty_rocksdb(disk: Disk, folder: str) -> bool:
    """Return whether a RocksDB database has no row: no table file, and nothing in a write-ahead log."""
    return not any(
        entry.name.endswith(".sst") or (entry.name.endswith(".log") and entry.size_bytes) for entry in disk.list(folder)
    )
