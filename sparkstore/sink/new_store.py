"""Create a store in an empty folder, and undo that when the first commit fails."""

from __future__ import annotations

import contextlib
import os

from messagestore.folder_contents import is_folder
from messagestore.paths import StorePaths
from messagestore.swap import delete_tree
from storageio import Disk, Mode, StoreError, UnknownStore

from .staging import FOLDER, MANIFEST

OWN, SINK = os.path.split(FOLDER)
LOCK = "lock"


def is_absent(disk: Disk, root: str) -> bool:
    """Return whether a new store can be created: the folder contains at most what tasks staged."""
    if disk.stat(root) is None:
        return True
    return is_folder(disk, root) and not {entry.name for entry in disk.list(root)} - {OWN}


def there_already(root: str) -> UnknownStore:
    """Return the error for a new store in a folder that is in use."""
    return UnknownStore(f"{root}: the folder is not empty, and newStore=true needs a new or empty one")


def unmake(disk: Disk, root: str) -> None:
    """Delete what opening a new store created, except what tasks staged.

    A store with a record or a started commit stays, and so does one that another process has open by now.
    """
    paths = StorePaths(root)
    with contextlib.suppress(StoreError):  # report the original error instead
        lock = disk.lock(paths.lock)
        try:
            if not _is_in_use(disk, paths):
                _delete_all(disk, root, keep=(OWN, LOCK))
                _delete_all(disk, paths.own, keep=(SINK,))
                disk.delete(paths.lock)
        finally:
            lock.release()


def _is_in_use(disk: Disk, paths: StorePaths) -> bool:
    """Return whether the log has a record, or a started commit will append one."""
    staged = os.path.join(paths.root, FOLDER)
    sinks = [os.path.join(staged, entry.name) for entry in disk.list(staged)] if disk.stat(staged) is not None else []
    has_log = disk.stat(paths.commit_log) is not None
    logs = [os.path.join(paths.commit_log, entry.name) for entry in disk.list(paths.commit_log)] if has_log else []
    return any(disk.stat(os.path.join(sink, MANIFEST)) for sink in sinks) or any(_has_record(disk, file) for file in logs)


def _has_record(disk: Disk, path: str) -> bool:
    with disk.open(path, Mode.READ) as file:
        return any(file.read(0, 8))  # a record's size and magic


def _delete_all(disk: Disk, folder: str, keep: tuple[str, ...]) -> None:
    """Delete the entries of a folder except those in `keep`."""
    for entry in disk.list(folder) if disk.stat(folder) is not None else ():
        if entry.name not in keep:
            delete_tree(disk, os.path.join(folder, entry.name))
