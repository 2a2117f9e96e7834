"""`brokerstore.open`: a folder with the engine for it."""

from __future__ import annotations

import importlib
import os
from typing import Any

from storageio import UnknownStore

from .identify import FolderKind, identify

_ENGINES = {FolderKind.ROCKETMQ: ("messagestore", "MessageStore"), FolderKind.RABBITMQ: ("rabbitstore", "RabbitStore")}


def open(path: str | os.PathLike[str], mode: str = "r", **options: Any) -> Any:
    """Open a folder as a `MessageStore` or a `RabbitStore`; `options` are passed to it.

    Raises `UnknownStore` for a folder that is neither, and for a kind that is recognised but cannot be read.
    """
    folder = identify(path)
    folder.refuse_unread()
    if folder.kind is FolderKind.LOG:
        raise UnknownStore(f"{folder.path}: a commit log without its store; use commitlog.open_log() to read it")
    package, name = _ENGINES[folder.kind]
    engine = getattr(importlib.import_module(package), name, None)
    if engine is None:
        raise UnknownStore(f"{folder.path}: a {folder.kind.value} store; this version has no {name} to open it")
    return engine.open(path, mode, **options)
