"""Repair log files that a real store would refuse: of a wrong size, missing, or strays.

A short file is extended with zeros, and a long one is truncated. A missing one in the middle is created with zeros, which is a
hole to be closed like any other. A stray is moved to `brokerstore/strays/`. What is removed is copied first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from commitlog.layout import FILE_SIZE_DEFAULT
from commitlog.offset_files import OffsetFile, file_name, holds_entries
from commitlog.walk import LogFiles
from storageio import Disk, DiskError, File, Mode, copy_rest, free_path, keep_copy, pieces, staged
from storebytes.plan import Step

from ..paths import OWN_FOLDER
from ..recovery.log_end import keep_written


def missing_starts(files: LogFiles) -> Iterator[int]:
    """Yield the start offsets of files missing between others."""
    size = files.file_size_bytes
    for before, after in pairwise(files.files):
        start = before.start_offset + size
        while size and start < after.start_offset and after.start_offset % size == 0:
            yield start
            start += size


def unusual_files(files: LogFiles) -> Iterator[OffsetFile]:
    """Yield files whose size differs from the rest; any open deletes an empty last file, but for that of a DLedger log."""
    for file in files.files:
        is_deleted = not file.size_bytes and file is files.files[-1] and not holds_entries(file.path)
        if file.size_bytes != files.file_size_bytes and not is_deleted:
            yield file


def file_steps(files: LogFiles, disk: Disk, root: str, *, keep_backup: bool) -> Iterator[Step]:
    """Yield steps that move strays aside, resize files, and create missing ones."""
    size = files.file_size_bytes
    for finding in files.strays:
        run = partial(_put_aside, disk, finding.file, os.path.join(root, OWN_FOLDER, "strays"))
        yield Step("move_stray", os.path.relpath(finding.file, root), "no file of the log has this name", run)
    for file in unusual_files(files):
        run = partial(_resize, disk, root, file, size, keep_backup)
        yield Step("resize_file", os.path.relpath(file.path, root), f"it has {file.size_bytes} bytes instead of {size}", run)
    for start in missing_starts(files):
        folder = os.path.dirname(max(file for file in files.files if file.start_offset < start).path)
        path = os.path.relpath(os.path.join(folder, file_name(start)), root)
        yield Step("create_file", path, "it is missing between others", partial(_make_empty, disk, folder, start, size))


def make_files(files: LogFiles, disk: Disk, commit_log: str, offsets: list[int]) -> None:
    """Create the files that are missing at the end of the log and would contain these physical offsets."""
    size = files.file_size_bytes or FILE_SIZE_DEFAULT
    folder = os.path.dirname(files.files[-1].path) if files.files else commit_log.split(",")[0]
    starts = {file.start_offset for file in files.files if file.size_bytes}  # an open deletes an empty last file
    disk.make_folder(folder)
    for start in sorted({offset // size * size for offset in offsets} - starts):
        _make_empty(disk, folder, start, size)


def _put_aside(disk: Disk, path: str, folder: str) -> None:
    """Move a file into a folder under a free name; copy it if the folder is on another file system."""
    disk.make_folder(folder)
    target = os.path.join(folder, os.path.basename(path))
    if disk.stat(target) is not None:
        target = free_path(disk, f"{target}-")
    try:
        disk.rename(path, target)
    except DiskError as error:
        if error.errno != errno.EXDEV:
            raise
        keep_copy(disk, path, target)
        disk.delete(path)
    disk.sync_folder(folder)
    disk.sync_folder(os.path.dirname(path))


def _resize(disk: Disk, root: str, file: OffsetFile, size_bytes: int, keep_backup: bool) -> None:
    """Bring a file to its right size.

    The file is not mapped: the caller holds the lock, and readers refuse a damaged store.
    """
    with disk.open(file.path, Mode.WRITE) as opened:
        if file.size_bytes > size_bytes:
            if keep_backup:
                _keep_rest(disk, root, opened, file.start_offset, size_bytes)
            opened.truncate(size_bytes)
        opened.allocate(size_bytes)
        opened.sync()


def _keep_rest(disk: Disk, root: str, file: File, start_offset: int, size_bytes: int) -> None:
    """Copy what lies behind a file's right size, if it is not all zeros."""
    if next(pieces(file, size_bytes), None) is not None:
        keep_written(disk, root, start_offset + size_bytes, lambda kept: copy_rest(file, size_bytes, kept))


def _make_empty(disk: Disk, folder: str, start: int, size_bytes: int) -> None:
    """Create a file of zeros."""
    with staged(disk, os.path.join(folder, file_name(start))) as opened:
        opened.allocate(size_bytes)
