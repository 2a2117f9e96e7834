"""The queues of a folder, found by the names of folders, and the sync of these names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from storageio import Disk, Kind

QUEUE_ID_MAX = (1 << 31) - 1


def queue_folders(disk: Disk, folder: str) -> Iterator[tuple[str, int]]:
    """Yield (topic, queue id) of every folder `<folder>/<topic>/<integer>`; other names are skipped.

    See `docs/formats/store-folder.md#directory-listings`.
    """
    if disk.stat(folder) is None:
        return
    for topic in disk.list(folder):
        if topic.kind is not Kind.FOLDER:
            continue
        for entry in disk.list(os.path.join(folder, topic.name)):
            is_number = entry.name.isascii() and entry.name.isdigit() and str(int(entry.name)) == entry.name
            if entry.kind is Kind.FOLDER and is_number and int(entry.name) <= QUEUE_ID_MAX:
                yield topic.name, int(entry.name)


def sync_names(disk: Disk, folder: str, topics: Iterable[str]) -> None:
    """Sync the names of the queues of these topics, and of the topics; one may have been deleted meanwhile."""
    for path in (os.path.join(folder, topic) for topic in topics):
        if disk.stat(path) is not None:
            disk.sync_folder(path)
    if disk.stat(folder) is not None:
        disk.sync_folder(folder)
