"""Small reads that every part needs."""

from __future__ import annotations

from storageio import Disk, Kind, Mode, StoreCorrupt

from .names import numbered

FILE_SIZE_MAX = 1 << 30  # of one that is read at once; RabbitMQ's longest have 16 MiB and a message
SMALL_SIZE_MAX = 1 << 20  # of one that holds a name or a setting


def read_all(disk: Disk, path: str) -> bytes:
    """The whole file.  Raises `StoreCorrupt` for one that no memory should be given to: sparse files can be of any length."""
    file = disk.open(path, Mode.READ)
    try:
        size = file.size()
        if size > FILE_SIZE_MAX:
            raise StoreCorrupt("file too long", file=path, offset=0, expected=f"at most {FILE_SIZE_MAX} bytes", found=size)
        return file.read(0, size)
    finally:
        file.close()


def read_head(disk: Disk, path: str, size_max: int = SMALL_SIZE_MAX) -> bytes | None:
    """A small file, of a longer one the begin, which then is not what was expected; None when nothing is there."""
    if disk.stat(path) is None:
        return None
    file = disk.open(path, Mode.READ)
    try:
        return file.read(0, min(file.size(), size_max))
    finally:
        file.close()


def read_if_there(disk: Disk, path: str) -> bytes | None:
    """The whole file, None when nothing is there."""
    return None if disk.stat(path) is None else read_all(disk, path)


def numbers_in(disk: Disk, folder: str, ending: str) -> list[int]:
    """The N of every file `N.ending`, ascending; none when the folder is not there."""
    if disk.stat(folder) is None:
        return []
    found = (numbered(entry.name, ending) for entry in disk.list(folder) if entry.kind is Kind.FILE)
    return sorted(number for number in found if number is not None)
