"""Detection of the kind of store in a folder, from the names in it."""

from __future__ import annotations

import os
from enum import Enum
from typing import NamedTuple

from messagestore.folder_contents import has_dledger_log, has_rocksdb_queues
from storageio import REAL_DISK, Disk, Kind, Mode, UnknownStore


class FolderKind(Enum):
    """The kinds that are distinguished; not all of them can be opened."""

    ROCKETMQ = "rocketmq"
    LOG = "rocketmq-commitlog"  # the log's own folder, without the store around it
    RABBITMQ = "rabbitmq"  # a virtual host's folder, or a node's data folder
    ROCKSDB = "rocketmq-rocksdb"
    DLEDGER = "rocketmq-dledger"


class StoreFolder(NamedTuple):
    """A folder and its kind; `log_folders` holds the commit log, if there is one."""

    path: str
    kind: FolderKind
    log_folders: list[str]


_LOG = "commitlog"
_VHOSTS = os.path.join("msg_stores", "vhosts")  # in a RabbitMQ node's data folder
_MAGICS = tuple(bytes.fromhex(magic) for magic in ("daa320a7", "daa320ab", "cbd43194"))
_LOOKED_FOR = (
    "a commitlog folder (RocketMQ store), files named by twenty digits (its commit log), "
    ".vhost or msg_store_persistent (RabbitMQ virtual host), a dledger-* folder (DLedger)"
)


def identify(path: str | os.PathLike[str], disk: Disk = REAL_DISK) -> StoreFolder:
    """Return the kind of a folder; raise `UnknownStore`, listing what was looked for, if it holds no known store."""
    folder = os.fspath(path)
    if not is_folder(disk, folder):
        found = "not a folder" if disk.stat(folder) is not None else "no such folder"
        raise UnknownStore(f"{folder}: {found}")
    names = {entry.name for entry in disk.list(folder)}
    kind = _kind(disk, folder, names)
    if kind is None:
        raise UnknownStore(f"{folder}: no store found; looked for {_LOOKED_FOR}{_hint(disk, folder, names)}")
    log_folders = {FolderKind.LOG: [folder]}.get(kind, [os.path.join(folder, _LOG)] if _LOG in names else [])
    return StoreFolder(folder, kind, log_folders)


def is_folder(disk: Disk, path: str) -> bool:
    """Return whether the path is a folder or a link to one: store folders are often links to other disks."""
    entry = disk.stat(os.path.join(path, "."))
    return entry is not None and entry.kind is Kind.FOLDER


def _kind(disk: Disk, folder: str, names: set[str]) -> FolderKind | None:
    if has_rocksdb_queues(disk, folder):
        return FolderKind.ROCKSDB
    if has_dledger_log(disk, folder):
        return FolderKind.DLEDGER
    if _LOG in names and is_folder(disk, os.path.join(folder, _LOG)):
        return FolderKind.ROCKETMQ
    if _is_store_without_log(disk, folder, names):
        return FolderKind.ROCKETMQ
    if ".vhost" in names or "msg_store_persistent" in names or is_folder(disk, os.path.join(folder, _VHOSTS)):
        return FolderKind.RABBITMQ
    return FolderKind.LOG if _is_log(disk, folder) else None


def _is_store_without_log(disk: Disk, folder: str, names: set[str]) -> bool:
    """Return whether the folder is a RocketMQ store whose log is missing: what lies beside a log is there."""
    queues = any(is_folder(disk, os.path.join(folder, name)) for name in ("consumequeue", "batchconsumequeue"))
    return queues or {"checkpoint", "index"} <= names or {"checkpoint", "config"} <= names


def _is_log(disk: Disk, folder: str) -> bool:
    """Return whether the first non-empty file begins like a log; queue files have the same kind of name."""
    for entry in disk.list(folder):
        if entry.kind is Kind.FILE and entry.size_bytes and len(entry.name) == 20 and entry.name.isdigit():
            with disk.open(os.path.join(folder, entry.name), Mode.READ) as file:
                return file.read(4, 4) in _MAGICS
    return False


def _hint(disk: Disk, folder: str, names: set[str]) -> str:
    """Return where the store may be, if the folder is one level above or below it."""
    for inner in ("store", "vhosts"):
        if is_folder(disk, os.path.join(folder, inner)):
            return f"; did you mean {os.path.join(folder, inner)}?"
    if names & {"index", "checkpoint"}:
        return "; this looks like a RocketMQ store whose log is elsewhere (--commitlog)"
    return ""
