"""Files of a log that a real store would refuse: of a wrong size, missing, or strange.

A file that is too short gets zeros, one that is too long loses what is over, a missing one in the middle is made with zeros (a
hole to be closed like any other), and a stray is moved to `brokerstore/strays/`.  What is taken away is kept first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

from commitlog.offset_files import OffsetFile, file_name
from commitlog.walk import LogFiles
from storageio import Disk, Mode

from ..recovery import OWN_FOLDER, keep


def missing_starts(files: LogFiles) -> Iterator[int]:
    """Where files are missing between others."""
    size = files.file_size_bytes
    for before, after in pairwise(files.files):
        start = before.start_offset + size
        while size and start < after.start_offset and after.start_offset % size == 0:
            yield start
            start += size


def odd_files(files: LogFiles) -> Iterator[OffsetFile]:
    """Files of another size than the rest; an empty last one is deleted by any opening."""
    for file in files.files:
        if file.size_bytes != files.file_size_bytes and (file.size_bytes or file is not files.files[-1]):
            yield file


def plan_files(files: LogFiles, actions: list[str]) -> None:
    """Say what `mend_files` would do."""
    actions += [f"move the stray file {finding.file} aside" for finding in files.strays]
    actions += [f"bring {file.path} from {file.size_bytes} to {files.file_size_bytes} bytes" for file in odd_files(files)]
    actions += [f"make the missing file {file_name(start)} again" for start in missing_starts(files)]


def mend_files(files: LogFiles, disk: Disk, root: str, *, keep_backup: bool) -> None:
    """Do it."""
    for finding in files.strays:
        folder = os.path.join(root, OWN_FOLDER, "strays")
        disk.make_folder(folder)
        disk.rename(finding.file, os.path.join(folder, os.path.basename(finding.file)))
        disk.sync_folder(os.path.dirname(finding.file))
    for file in odd_files(files):
        _resize(disk, root, file, files.file_size_bytes, keep_backup)
    for start in list(missing_starts(files)):
        _make_empty(disk, os.path.dirname(files.files[0].path), start, files.file_size_bytes)


def _resize(disk: Disk, root: str, file: OffsetFile, size_bytes: int, keep_backup: bool) -> None:
    """Nobody has it mapped: the caller holds the lock, and readers of a damaged store were refused."""
    opened = disk.open(file.path, Mode.WRITE)
    try:
        over = opened.read(size_bytes, max(0, file.size_bytes - size_bytes))
        if over.strip(b"\0") and keep_backup:
            keep(disk, root, file.start_offset + size_bytes, memoryview(over))
        if file.size_bytes > size_bytes:
            opened.truncate(size_bytes)
        opened.allocate(size_bytes)
        opened.sync()
    finally:
        opened.close()


def _make_empty(disk: Disk, folder: str, start: int, size_bytes: int) -> None:
    """A file of zeros."""
    path = os.path.join(folder, file_name(start))
    opened = disk.open(path + ".new", Mode.CREATE)
    try:
        opened.allocate(size_bytes)
        opened.sync()
    finally:
        opened.close()
    disk.rename(path + ".new", path)
    disk.sync_folder(folder)
