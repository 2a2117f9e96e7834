"""Swap in new files and folders, and keep what they replace in `brokerstore/kept-...`, named after its original path.

Nothing reads kept files; the operator may delete them.
"""

from __future__ import annotations

import os

from storageio import Disk, Kind, free_path, keep_copy

from .paths import OWN_FOLDER, replaced_folder


def kept_path(disk: Disk, root: str, path: str) -> str:
    """Return a free name in the store's own folder for a copy of what is or was at `path`."""
    name = os.path.relpath(path, root).replace(os.sep, "-")
    return free_path(disk, os.path.join(root, OWN_FOLDER, f"kept-{name}-"))


def keep_file(disk: Disk, root: str, path: str) -> None:
    """Copy a file, if it exists, before it is overwritten; the copy is synced when this returns."""
    entry = disk.stat(path)
    if entry is not None and entry.kind is Kind.FILE:
        keep_copy(disk, path, kept_path(disk, root, path))


def replace_tree(disk: Disk, fresh: str, target: str, root: str, *, keeps: bool = False) -> None:
    """Replace a folder by another; both names are synced before the old content is deleted.

    The old folder is kept in `brokerstore/` if `keeps` is set or if it has files that belong to no queue or index.
    """
    if disk.stat(fresh) is None:
        disk.make_folder(fresh)
    replaced = replaced_folder(root, os.path.basename(target))
    _put_aside(disk, replaced, target, root, keeps=keeps)
    if disk.stat(target) is not None:
        disk.rename(target, replaced)
    disk.rename(fresh, target)
    disk.sync_folder(os.path.dirname(target))
    disk.sync_folder(os.path.dirname(replaced))
    _put_aside(disk, replaced, target, root, keeps=keeps)


def _put_aside(disk: Disk, replaced: str, target: str, root: str, *, keeps: bool) -> None:
    """Delete a replaced folder, or keep it under a name that tells its original path."""
    if disk.stat(replaced) is None:
        return
    if keeps or _has_others(disk, replaced):
        disk.rename(replaced, kept_path(disk, root, target))
        disk.sync_folder(os.path.dirname(replaced))
    else:
        delete_tree(disk, replaced)


def _has_others(disk: Disk, folder: str) -> bool:
    """Return whether a folder contains anything other than folders and files named by a number."""
    entry = disk.stat(folder)
    if entry is None or entry.kind is not Kind.FOLDER:
        return False
    for inner in disk.list(folder):
        if inner.kind is Kind.FOLDER:
            if _has_others(disk, os.path.join(folder, inner.name)):
                return True
        elif inner.kind is not Kind.FILE or not inner.name.isdigit():
            return True
    return False


def delete_tree(disk: Disk, folder: str) -> None:
    """Delete a folder with its content; symlinks are not followed."""
    found = disk.stat(folder)
    if found is None:
        return
    if found.kind is not Kind.FOLDER:
        disk.delete(folder)
        return
    for entry in disk.list(folder):
        path = os.path.join(folder, entry.name)
        if entry.kind is Kind.FOLDER:
            delete_tree(disk, path)
        else:
            disk.delete(path)
    disk.delete_folder(folder)
