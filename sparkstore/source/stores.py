"""The stores that a read's paths name."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass

from brokerstore.identify import FolderKind, identify
from brokerstore.opening import refuse_unread
from storageio import UnknownStore

from ..object_disk import disk_for, is_remote, local_path, match
from ..options import is_pattern


@dataclass(frozen=True)
class FoundStore:
    """A folder that was asked for, and what it is."""

    path: str
    kind: FolderKind
    log_folders: tuple[str, ...]

    @property
    def is_rabbit(self) -> bool:
        """Whether it is RabbitMQ's."""
        return self.kind is FolderKind.RABBITMQ


def find_stores(paths: Sequence[str]) -> list[FoundStore]:
    """What lies there, patterns resolved.  Raises `UnknownStore` for what is no store."""
    found = []
    for path in dict.fromkeys(name for asked in paths for name in _resolved(asked)):
        folder = identify(path, disk_for(path))
        if folder.kind is FolderKind.DLEDGER or (not folder.log_folders and folder.kind is not FolderKind.RABBITMQ):
            refuse_unread(folder)
            raise UnknownStore(f"{path}: a {folder.kind.value} folder; it has no commit log to read")
        found.append(FoundStore(folder.path, folder.kind, tuple(folder.log_folders)))
    kinds = {store.is_rabbit for store in found}
    if len(kinds) > 1:
        raise UnknownStore(
            f"{', '.join(store.path for store in found)}: RocketMQ and RabbitMQ have other columns; load them apart"
        )
    return found


def _resolved(path: str) -> list[str]:
    if not is_pattern(path):
        return [local_path(path).rstrip("/") or "/"]
    found = match(path) if is_remote(path) else sorted(glob.glob(local_path(path)))
    if not found:
        raise UnknownStore(f"{path}: nothing matches")
    return [name.rstrip("/") for name in found]
