"""A folder of equally long files, each named by the offset of its first byte in twenty digits.

The commit log and every consume queue are such folders.  How strict reading one is: format page, section 0.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import NamedTuple

from storageio import Disk, Kind, StoreCorrupt

from .layout import FILE_NAME_SIZE

OFFSET_MAX = (1 << 63) - 1
FILE_SIZE_MAX = (1 << 31) - 1  # a Java int in the broker's configuration


class OffsetFile(NamedTuple):
    """One file as the folder lists it."""

    start_offset: int
    path: str
    size_bytes: int
    modified_ms: int
    inode: int = 0


def file_name(start_offset: int) -> str:
    """Twenty digits.

    >>> file_name(1073741824)
    '00000000001073741824'
    """
    return f"{start_offset:0{FILE_NAME_SIZE}d}"


def list_offset_files(disk: Disk, folder: str) -> list[OffsetFile]:
    """The files in order of their start; none for a missing folder.

    Folders are passed over.  Any other name that is no decimal number is a stray file and raises `StoreCorrupt`: a real
    store would refuse to load it.
    """
    if disk.stat(folder) is None:
        return []
    found = []
    for entry in disk.list(folder):
        if entry.kind is Kind.FOLDER:
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
    """As `list_offset_files`, every file of the given size; a last file of no bytes is left out (a crash left it).

    The empty file is not deleted here: whoever opens for writing does that.
    """
    return of_one_size(list_offset_files(disk, folder), file_size_bytes)


def of_one_size(found: list[OffsetFile], file_size_bytes: int) -> list[OffsetFile]:
    """`load_offset_files` of a folder that was listed already."""
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
    """The size that all files share, found without being told; None when there is none to go by.

    Two files next to each other say it by their names, which damage to a file does not change; then the lengths' majority; then
    the greatest, since mending to it drops nothing.  `load_offset_files` names the odd ones.  No real store has a file of
    more than `FILE_SIZE_MAX`, but a sparse one of any length is quickly made.
    """
    sizes = [file.size_bytes for file in files if 0 < file.size_bytes <= FILE_SIZE_MAX]
    starts = [file.start_offset for file in files]
    steps = [after - before for before, after in pairwise(starts)]
    return max(set(sizes), key=lambda size: (steps.count(size), sizes.count(size), size)) if sizes else None
