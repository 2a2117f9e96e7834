"""Atomic replacement of a small file."""

from __future__ import annotations

import os

from .disk import Disk, Mode


def replace_file(disk: Disk, path: str, data: bytes, *, keep_backup: bool = False) -> None:
    """Write `data` beside `path`, sync it, rename it over `path`, sync the folder.

    With `keep_backup` the old file stays as `path`.bak, as RocketMQ keeps it.  Between the two renames only the backup exists,
    so readers must look at both.
    """
    folder = os.path.dirname(path) or "."
    fresh = path + ".new"
    file = disk.open(fresh, Mode.CREATE)
    try:
        file.truncate(0)
        file.write(0, data)
        file.sync()
    finally:
        file.close()
    if keep_backup and disk.stat(path) is not None:
        disk.rename(path, path + ".bak")
    disk.rename(fresh, path)
    disk.sync_folder(folder)
