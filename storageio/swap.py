"""Put new files in the place of old ones so that a crash leaves one or the other, and keep what would be lost.

A new file is *staged* beside the old one under its name and `.new`, synced, and then *committed*: renamed over the old name,
with a sync of the folder.  Whatever a crash leaves at the name with `.new` is overwritten by the next attempt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .disk import Disk, File, Mode

NEW = ".new"
ASIDE = ".aside-"
PIECE_SIZE = 1 << 20


@contextmanager
def staged(disk: Disk, path: str) -> Iterator[File]:
    """Open an empty file beside `path`; commit it at the end of the block, unless the block raises."""
    with disk.open(path + NEW, Mode.CREATE) as file:
        file.truncate(0)
        yield file
        file.sync()
    commit(disk, path)


def commit(disk: Disk, path: str) -> None:
    """Rename the staged file over `path` and sync the folder."""
    disk.rename(path + NEW, path)
    disk.sync_folder(os.path.dirname(path) or ".")


def replace_file(disk: Disk, path: str, data: bytes, *, keep_backup: bool = False) -> None:
    """Stage `data` and commit it.

    With `keep_backup` the old file stays as `path`.bak, as RocketMQ keeps it.  Between the two renames only the backup exists,
    so readers must look at both.
    """
    with disk.open(path + NEW, Mode.CREATE) as file:
        file.truncate(0)
        file.write(0, data)
        file.sync()
    if keep_backup and disk.stat(path) is not None:
        disk.rename(path, path + ".bak")
    commit(disk, path)


def free_path(disk: Disk, stem: str) -> str:
    """Return the first of `stem`0, `stem`1 and so on that does not exist, so that nothing kept earlier is overwritten."""
    number = 0
    while disk.stat(path := f"{stem}{number}") is not None:
        number += 1
    return path


def move_aside(disk: Disk, path: str) -> str:
    """Rename durably to an unused name in the same folder, without following links.  Return the new path."""
    target = free_path(disk, path + ASIDE)
    disk.rename(path, target)
    disk.sync_folder(os.path.dirname(path))
    return target


def keep(disk: Disk, path: str, write: Callable[[File], object]) -> None:
    """Create `path`, whose folder is created if it is missing, with what `write` writes; it is durable when this returns."""
    folder = os.path.dirname(path)
    disk.make_folder(folder)
    with disk.open(path, Mode.CREATE) as file:
        write(file)
        file.sync()
    disk.sync_folder(folder)


def keep_copy(disk: Disk, path: str, target: str) -> None:
    """Copy a file to `target`, durably; its holes stay holes."""

    def write(copy: File) -> None:
        copy_rest(source, 0, copy)
        copy.truncate(source.size())

    with disk.open(path, Mode.READ) as source:
        keep(disk, target, write)


def copy_rest(source: File, start: int, target: File) -> None:
    """Copy what lies behind `start` to the beginning of an empty file; zeros at the end need not be copied."""
    for at, data in pieces(source, start):
        target.write(at - start, data)


def pieces(file: File, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, data) of the pieces behind `start` that are not all zeros; a sparse file may claim terabytes."""
    at, size = file.next_data(start), file.size()
    while at < size:
        data = file.read(at, min(PIECE_SIZE, size - at))
        if data.strip(b"\0"):
            yield at, data
        at = file.next_data(at + len(data))
