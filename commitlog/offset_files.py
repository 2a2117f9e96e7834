"""A folder of files of one size, each named by the offset of its first byte in twenty digits.

The commit log and every consume queue are such folders.  Rules: docs/formats/store-folder.md#directory-listings.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import NamedTuple

from storageio import Disk, Kind, StoreCorrupt

from .layout import FILE_NAME_SIZE

NFS_PREFIX = ".nfs"
DLEDGER_PREFIX = "dledger-"  # then the name of the peer
ENTRIES = "data"  # the folder of a DLedger log in the peer's
OFFSET_MAX = (1 << 63) - 1
FILE_SIZE_MAX = (1 << 31) - 1  # the size is a Java int in the broker's configuration


class OffsetFile(NamedTuple):
    """One file in a folder listing."""

    start_offset: int
    path: str
    size_bytes: int
    modified_ms: int
    inode: int = 0


def holds_entries(path: str) -> bool:
    """Return whether a log file has the place of a DLedger log's; only a damaged one needs to be asked."""
    folder = os.path.dirname(os.path.abspath(path))
    return os.path.basename(folder) == ENTRIES and os.path.basename(os.path.dirname(folder)).startswith(DLEDGER_PREFIX)


def file_name(start_offset: int) -> str:
    """Return the name in twenty digits.

    >>> file_name(1073741824)
    '00000000001073741824'
    """
    return f"{start_offset:0{FILE_NAME_SIZE}d}"


def list_offset_files(disk: Disk, folder: str) -> list[OffsetFile]:
    """Return the files in order of their start; none if the folder is missing.

    Folders are skipped, and names that an NFS client gives to deleted files that are open.  Any other name that is not a
    decimal number is a stray file and raises `StoreCorrupt`: RocketMQ would not load the folder either.
    """
    if disk.stat(folder) is None:
        return []
    found = []
    for entry in disk.list(folder):
        if entry.kind is Kind.FOLDER or entry.name.startswith(NFS_PREFIX):
            continue
        path = os.path.join(folder, entry.name)
        is_number = entry.name.isascii() and entry.name.isdigit() and int(entry.name) <= OFFSET_MAX
        if entry.kind is not Kind.FILE or not is_number:
            raise StoreCorrupt(
                "stray file", file=path, offset=0, expected="files named by a decimal offset", found=repr(entry.name)
            )
        found.append(OffsetFile(int(entry.name), path, entry.size_bytes, entry.modified_ms, entry.inode))
    return sorted(found)


def load_offset_files(disk: Disk, folder: str, file_size_bytes: int) -> list[OffsetFile]:
    """List the files and check their size; an empty last file, which a crash leaves, is skipped.

    The empty file is not deleted here; opening for writing does that.
    """
    return check_sizes(list_offset_files(disk, folder), file_size_bytes)


def check_sizes(found: list[OffsetFile], file_size_bytes: int) -> list[OffsetFile]:
    """Check the sizes of listed files, as `load_offset_files` does."""
    files = found[:-1] if found and found[-1].size_bytes == 0 else found
    for file in files:
        if file.size_bytes != file_size_bytes:
            raise StoreCorrupt(
                "wrong file size",
                file=file.path,
                offset=0,
                expected=f"{file_size_bytes} bytes",
                found=f"{file.size_bytes} bytes",
            )
    return files


def common_file_size(files: list[OffsetFile]) -> int | None:
    """Return the file size that the files suggest, None if there are none.

    The distance of neighboring names decides, since damage to a file does not change it; then the majority of lengths; then the
    largest, since a repair to that size drops nothing.  `load_offset_files` reports the files that differ.  RocketMQ has no
    file of more than `FILE_SIZE_MAX`, but a sparse file of any length is easily made.
    """
    sizes = [file.size_bytes for file in files if 0 < file.size_bytes <= FILE_SIZE_MAX]
    starts = [file.start_offset for file in files]
    steps = [after - before for before, after in pairwise(starts)]
    return max(set(sizes), key=lambda size: (steps.count(size), sizes.count(size), size)) if sizes else None
