"""`brokerstore.open`: a folder with the engine for it."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, overload

from storageio import UnknownStore
from storageio.settings import check_mode

from .identify import FolderKind, identify

if TYPE_CHECKING:
    from collections.abc import Callable

    from messagestore import MessageStore, StoreConfig
    from rabbitstore import RabbitSettings, RabbitStore
    from storageio import Disk

_ENGINES = {
    FolderKind.ROCKETMQ: ("messagestore", "MessageStore"),
    FolderKind.DLEDGER: ("messagestore", "MessageStore"),
    FolderKind.RABBITMQ: ("rabbitstore", "RabbitStore"),
}


@overload
def open(
    path: str | os.PathLike[str], mode: str = "r", *, config: StoreConfig, clock: Callable[[], int] | None = None,
    disk: Disk | None = None,
) -> MessageStore: ...  # fmt: skip
@overload
def open(
    path: str | os.PathLike[str], mode: str = "r", *, settings: RabbitSettings, vhost: str | None = None,
    disk: Disk | None = None,
) -> RabbitStore: ...  # fmt: skip
@overload
def open(
    path: str | os.PathLike[str], mode: str = "r", *, vhost: str | None = None, clock: Callable[[], int] | None = None,
    disk: Disk | None = None,
) -> MessageStore | RabbitStore: ...  # fmt: skip
def open(path: str | os.PathLike[str], mode: str = "r", **options: Any) -> MessageStore | RabbitStore:
    """Open a folder as a `MessageStore` or a `RabbitStore`, for reading by default.

    `config` and `clock` are for a `MessageStore`, `settings` and `vhost` for a `RabbitStore`; either refuses the other's with
    a `TypeError`.  Raises `UnknownStore` for a folder that is neither, and for a kind that is recognised but cannot be read.
    """
    check_mode(mode, ("a", "r", "r+", "x"), "open(path, config=config)")
    folder = identify(path)
    folder.refuse_unread()
    if folder.kind is FolderKind.LOG:
        raise UnknownStore(f"{folder.path}: a commit log without its store; use commitlog.open_log() to read it")
    package, name = _ENGINES[folder.kind]
    engine = getattr(importlib.import_module(package), name, None)
    if engine is None:
        raise UnknownStore(f"{folder.path}: a {folder.kind.value} store; this version has no {name} to open it")
    given = {name: value for name, value in options.items() if value is not None}
    store: MessageStore | RabbitStore = engine.open(path, mode, **given)
    return store
