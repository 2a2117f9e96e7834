"""Repair log files that a real store would refuse: of a wrong size, missing, or strays.

A short file is extended with zeros, and a long one is truncated. A missing one in the middle is created with zeros, which is a
hole to be closed like any other. A stray is moved to `brokerstore/strays/`. What is removed is copied first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import pairwise

from commitlog.layout import FILE_SIZE_DEFAULT
from commitlog.offset_files import OffsetFile, file_name
from commitlog.walk import LogFiles
from storageio import Disk, DiskError, File, Mode

from ..paths import OWN_FOLDER
from ..recovery.log_end import keep_written
from ..swap import free_path

PIECE = 1 << 20


def missing_starts(files: LogFiles) -> Iterator[int]:
    """Yield the start offsets of files missing between others."""
    size = files.file_size_bytes
    for before, after in pairwise(files.files):
        start = before.start_offset + size
        while size and start < after.start_offset and after.start_offset % size == 0:
            yield start
            start += size


def odd_files(files: LogFiles) -> Iterator[OffsetFile]:
    """Yield files whose size differs from the rest; an empty last file is deleted by any open."""
    for file in files.files:
        if file.size_bytes != files.file_size_bytes and (file.size_bytes or file is not files.files[-1]):
            yield file


def plan_files(files: LogFiles, actions: list[str]) -> None:
    """Add what `repair_files` would do to the actions."""
    actions += [f"move the stray file {finding.file} aside" for finding in files.strays]
    actions += [f"bring {file.path} from {file.size_bytes} to {files.file_size_bytes} bytes" for file in odd_files(files)]
    actions += [f"make the missing file {file_name(start)} again" for start in missing_starts(files)]


def repair_files(files: LogFiles, disk: Disk, root: str, *, keep_backup: bool) -> None:
    """Move strays aside, resize files, and create missing ones."""
    for finding in files.strays:
        _put_aside(disk, finding.file, os.path.join(root, OWN_FOLDER, "strays"))
    for file in odd_files(files):
        _resize(disk, root, file, files.file_size_bytes, keep_backup)
    for start in list(missing_starts(files)):
        _make_empty(disk, os.path.dirname(files.files[0].path), start, files.file_size_bytes)


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
        target = free_path(disk, target)
    try:
        disk.rename(path, target)
    except DiskError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(disk, path, target)
        disk.sync_folder(folder)
        disk.delete(path)
    disk.sync_folder(folder)
    disk.sync_folder(os.path.dirname(path))


def _copy(disk: Disk, path: str, target: str) -> None:
    """Copy a file's bytes and sync the copy."""
    source = disk.open(path, Mode.READ)
    try:
        copy = disk.open(target, Mode.CREATE)
        try:
            _copy_rest(source, 0, copy)
            copy.truncate(source.size())
            copy.sync()
        finally:
            copy.close()
    finally:
        source.close()


def _copy_rest(source: File, start: int, target: File) -> None:
    """Copy what lies behind `start` to the beginning of another file; unwritten ranges stay sparse."""
    for at, data in _pieces(source, start):
        target.write(at - start, data)


def _pieces(file: File, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, data) of nonzero pieces behind `start`; a sparse file may claim terabytes."""
    at, size = file.next_data(start), file.size()
    while at < size:
        data = file.read(at, min(PIECE, size - at))
        if data.strip(b"\0"):
            yield at, data
        at = file.next_data(at + len(data))


def _resize(disk: Disk, root: str, file: OffsetFile, size_bytes: int, keep_backup: bool) -> None:
    """Bring a file to its right size.

    The file is not mapped: the caller holds the lock, and readers refuse a damaged store.
    """
    opened = disk.open(file.path, Mode.WRITE)
    try:
        if file.size_bytes > size_bytes:
            if keep_backup:
                _keep_rest(disk, root, opened, file.start_offset, size_bytes)
            opened.truncate(size_bytes)
        opened.allocate(size_bytes)
        opened.sync()
    finally:
        opened.close()


def _keep_rest(disk: Disk, root: str, file: File, start_offset: int, size_bytes: int) -> None:
    """Copy what lies behind a file's right size, if it is not all zeros."""
    if next(_pieces(file, size_bytes), None) is not None:
        keep_written(disk, root, start_offset + size_bytes, lambda kept: _copy_rest(file, size_bytes, kept))


def _make_empty(disk: Disk, folder: str, start: int, size_bytes: int) -> None:
    """Create a file of zeros."""
    path = os.path.join(folder, file_name(start))
    opened = disk.open(path + ".new", Mode.CREATE)
    try:
        opened.allocate(size_bytes)
        opened.sync()
    finally:
        opened.close()
    disk.rename(path + ".new", path)
    disk.sync_folder(folder)
