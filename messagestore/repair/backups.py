"""Keep what a recovery removes or overwrites in `brokerstore/kept-...`, named after its original path.

Nothing reads these files; the operator may delete them.
"""

from __future__ import annotations

import os

from storageio import Disk, Kind, free_path, keep_copy

from ..paths import OWN_FOLDER


def kept_path(disk: Disk, root: str, path: str) -> str:
    """Return a free name in the store's own folder for a copy of what is or was at `path`."""
    name = os.path.relpath(path, root).replace(os.sep, "-")
    return free_path(disk, os.path.join(root, OWN_FOLDER, f"kept-{name}-"))


def keep_file(disk: Disk, root: str, path: str) -> None:
    """Copy a file, if it exists, before it is overwritten; the copy is synced when this returns."""
    entry = disk.stat(path)
    if entry is None or entry.kind is not Kind.FILE:
        return
    keep_copy(disk, path, kept_path(disk, root, path))
