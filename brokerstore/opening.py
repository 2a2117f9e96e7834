"""`brokerstore.open`: a folder with the engine for it."""

from __future__ import annotations

import importlib
import os
from typing import Any

from messagestore.foreign import DLEDGER_TEXT, ROCKSDB_TEXT, unsupported_store
from storageio import REAL_DISK, Disk, UnknownStore

from .identify import FolderKind, StoreFolder, identify

_ENGINES = {FolderKind.ROCKETMQ: ("messagestore", "MessageStore"), FolderKind.RABBITMQ: ("rabbitstore", "RabbitStore")}
_NAMED = {
    FolderKind.ROCKSDB: ROCKSDB_TEXT,
    FolderKind.DLEDGER: DLEDGER_TEXT,
}


def open(path: str | os.PathLike[str], mode: str = "r", **options: Any) -> Any:
    """Open a folder as a `MessageStore` or a `RabbitStore`; `options` are passed to it.

    Raises `UnknownStore` for a folder that is neither, and for a kind that is recognised but cannot be read.
    """
    folder = identify(path)
    refuse_unread(folder)
    if folder.kind is FolderKind.LOG:
        raise UnknownStore(f"{folder.path}: a commit log without its store; use commitlog.open_log() to read it")
    room, name = _ENGINES[folder.kind]
    engine = getattr(importlib.import_module(room), name, None)
    if engine is None:
        raise UnknownStore(f"{folder.path}: a {folder.kind.value} store; this version has no {name} to open it")
    return engine.open(path, mode, **options)


def refuse_unread(folder: StoreFolder) -> None:
    """Raise `UnsupportedFormat` for a kind that is recognised but cannot be read."""
    if folder.kind in _NAMED:
        raise unsupported_store(folder.path, _NAMED[folder.kind])


def log_folders(path: str | os.PathLike[str], disk: Disk = REAL_DISK) -> list[str]:
    """Return the folders of the commit log at or in `path`; raise `UnknownStore` if there is none."""
    folder = identify(path, disk)
    if folder.kind is FolderKind.DLEDGER or not folder.log_folders:
        refuse_unread(folder)
        raise UnknownStore(f"{folder.path}: a {folder.kind.value} folder; it has no commit log to read")
    return folder.log_folders
