"""Read files of a virtual host's folder, with limits on the size of those that are read into memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from storageio import Disk, File, Kind, Mode, StoreCorrupt, read_head

from .format.names import numbered

FILE_SIZE_MAX = 1 << 30  # of a file that is read whole; RabbitMQ's largest have 16 MiB and one message
SMALL_SIZE_MAX = 1 << 20  # of a file with a name or a setting
JSON_SIZE_MAX = 64 << 20
READ_FIRST = 64 << 10  # of a mapped file: Linux then reads ahead into large pages, and after a first page fault into small ones


def read_all(disk: Disk, path: str) -> bytes:
    """Read a whole file.  Raise `StoreCorrupt` for one that is too large for memory: a sparse file can have any size."""
    with closing(disk.open(path, Mode.READ)) as file:
        return file.read(0, _size_of(file))


def _size_of(file: File) -> int:
    size = file.size()
    if size > FILE_SIZE_MAX:
        raise StoreCorrupt("file too long", file=file.path, offset=0, expected=f"at most {FILE_SIZE_MAX} bytes", found=size)
    return size


def read_if_there(disk: Disk, path: str) -> bytes | None:
    """Read a whole file; return None when there is no file."""
    return None if disk.stat(path) is None else read_all(disk, path)


def map_if_there(disk: Disk, path: str) -> memoryview | None:
    """Map a whole file that is read from its beginning to its end; return None when there is no file.

    The map ends with the last view of it.  Only for files that no server cuts: their pages would be gone.
    """
    if disk.stat(path) is None:
        return None
    with closing(disk.open(path, Mode.READ)) as file:
        size = _size_of(file)
        if size == 0:
            return memoryview(b"")
        file.read(0, READ_FIRST)
        with closing(file.map(size, writable=False)) as held:
            held.expect_sequential()
            return held.view


def read_json(disk: Disk, path: str) -> dict[str, Any]:
    """Read a JSON object; return an empty one when the file is missing or damaged."""
    entry = disk.stat(path)
    data = read_head(disk, path, JSON_SIZE_MAX) if entry is not None and entry.kind is Kind.FILE else None
    try:
        found = json.loads(data) if data is not None else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def mapped(disk: Disk, path: str) -> Iterator[memoryview]:
    """Map a whole file for reading."""
    with closing(disk.open(path, Mode.READ)) as file:
        size = file.size()
        if size == 0:
            yield memoryview(b"")
            return
        with closing(file.map(size, writable=False)) as held:
            yield held.view


def numbers_in(disk: Disk, folder: str, ending: str) -> list[int]:
    """Return the N of every file `N.ending`, ascending; an empty list when the folder does not exist."""
    if disk.stat(folder) is None:
        return []
    found = (numbered(entry.name, ending) for entry in disk.list(folder) if entry.kind is Kind.FILE)
    return sorted(number for number in found if number is not None)
