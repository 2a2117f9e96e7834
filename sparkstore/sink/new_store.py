"""A folder where there is no store yet, and how it becomes one again when the first commit to it fails."""

from __future__ import annotations

import contextlib
import os

from brokerstore.identify import is_folder
from messagestore.paths import StorePaths
from messagestore.repair.rebuild import delete_tree
from storageio import Disk, Mode, StoreError, UnknownStore

from .staging import FOLDER, MANIFEST

OWN, SINK = os.path.split(FOLDER)
LOCK = "lock"


def is_absent(disk: Disk, root: str) -> bool:
    """Whether a store can be made there: nothing lies in it but what tasks staged."""
    if disk.stat(root) is None:
        return True
    return is_folder(disk, root) and not {entry.name for entry in disk.list(root)} - {OWN}


def there_already(root: str) -> UnknownStore:
    """The error where a new store is wanted."""
    return UnknownStore(f"{root}: something is there already; a new store is wanted")


def unmake(disk: Disk, root: str) -> None:
    """Take away what opening a store made where there was none, but for what tasks staged.

    A store that has a record, or a commit that was begun, stays; so does one that somebody else has open by now.
    """
    places = StorePaths(root)
    with contextlib.suppress(StoreError):  # the error that led here is the one to tell
        lock = disk.lock(places.lock)
        try:
            if not _is_in_use(disk, places):
                _delete_all(disk, root, keep=(OWN, LOCK))
                _delete_all(disk, places.own, keep=(SINK,))
                disk.delete(places.lock)
        finally:
            lock.release()


def _is_in_use(disk: Disk, places: StorePaths) -> bool:
    """Whether there is a record in the log, or one that will be."""
    staged = os.path.join(places.root, FOLDER)
    sinks = [os.path.join(staged, entry.name) for entry in disk.list(staged)] if disk.stat(staged) is not None else []
    has_log = disk.stat(places.commit_log) is not None
    logs = [os.path.join(places.commit_log, entry.name) for entry in disk.list(places.commit_log)] if has_log else []
    return any(disk.stat(os.path.join(sink, MANIFEST)) for sink in sinks) or any(_has_record(disk, file) for file in logs)


def _has_record(disk: Disk, path: str) -> bool:
    file = disk.open(path, Mode.READ)
    try:
        return any(file.read(0, 8))  # a record's size and magic
    finally:
        file.close()


def _delete_all(disk: Disk, folder: str, keep: tuple[str, ...]) -> None:
    """What lies in a folder."""
    for entry in disk.list(folder) if disk.stat(folder) is not None else ():
        if entry.name not in keep:
            delete_tree(disk, os.path.join(folder, entry.name))
