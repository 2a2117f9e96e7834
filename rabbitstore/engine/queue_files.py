"""The files of a queue's folder that both versions of the index have."""

from __future__ import annotations

from storageio import Disk

from ..format.layout import QUEUE_NAME_FILE

SYNC_FAILED_NAME = "sync_failed"  # an empty file: a sync failed, so the next opening rewrites what it finds


def delete_queue_folder(disk: Disk, folder: str) -> None:
    """Delete the queue's folder durably.

    The messages go first: `N.qs` without its index is damage.  The name file goes last: a crash must not leave messages of a
    queue without a name.
    """
    if disk.stat(folder) is None:
        return
    names = [entry.name for entry in disk.list(folder)]
    stores = [name for name in names if name.endswith(".qs")]
    for name in stores:
        disk.delete(f"{folder}/{name}")
    if stores:
        disk.sync_folder(folder)
    for name in names:
        if name not in (*stores, QUEUE_NAME_FILE):
            disk.delete(f"{folder}/{name}")
    disk.sync_folder(folder)
    if QUEUE_NAME_FILE in names:
        disk.delete(f"{folder}/{QUEUE_NAME_FILE}")
    disk.delete_folder(folder)
    disk.sync_folder(folder.rpartition("/")[0] or ".")
