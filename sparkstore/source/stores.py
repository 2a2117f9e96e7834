"""The stores that a read's paths name."""

from __future__ import annotations

import glob
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from brokerstore.identify import FolderKind, identify
from storageio import UnknownStore

from ..object_disk import disk_for, is_remote, local_path, match
from ..options import is_pattern


@dataclass(frozen=True)
class FoundStore:
    """A folder that a read names, and its kind."""

    path: str
    kind: FolderKind
    log_folders: tuple[str, ...]

    @property
    def is_rabbit(self) -> bool:
        """Return whether this is a RabbitMQ folder."""
        return self.kind is FolderKind.RABBITMQ


def find_stores(paths: Sequence[str]) -> list[FoundStore]:
    """Return the stores that the paths and patterns name.  Raises `UnknownStore` for anything else."""
    found = []
    for path in dict.fromkeys(name for given in paths for name in _resolved(given)):
        folder = identify(path, disk_for(path))
        if folder.kind is FolderKind.DLEDGER:
            folder.refuse_unread()  # of two peers
        if not folder.log_folders and folder.kind is not FolderKind.RABBITMQ:
            folder.refuse_unread()
            raise UnknownStore(f"{path}: a {folder.kind.value} folder; it has no commit log to read")
        found.append(FoundStore(folder.path, folder.kind, tuple(folder.log_folders)))
    kinds = {store.is_rabbit for store in found}
    if len(kinds) > 1:
        raise UnknownStore(
            f"{', '.join(store.path for store in found)}: RocketMQ and RabbitMQ have different columns; load them separately"
        )
    return found


def check_mounted(store: str) -> None:
    """Raise `UnknownStore` if a store that the driver found does not exist on this machine."""
    if disk_for(store).stat(store) is None:
        host = socket.gethostname()
        raise UnknownStore(f"{store}: not found on executor {host}: the store must be on storage that every executor mounts")


def _absolute(path: str) -> str:
    """Return a local path as the driver sees it: an executor has another working directory."""
    return path if is_remote(path) else os.path.abspath(local_path(path))


def _resolved(path: str) -> list[str]:
    if not is_pattern(path):
        return [_absolute(path).rstrip("/") or "/"]
    found = match(path) if is_remote(path) else sorted(glob.glob(_absolute(path)))
    if not found:
        raise UnknownStore(f"{path}: no folder matches this pattern")
    return [name.rstrip("/") for name in found]
