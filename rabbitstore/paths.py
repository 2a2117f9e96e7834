"""Small reads that every part needs."""

from __future__ import annotations

from storageio import Disk, Kind, Mode

from .names import numbered


def read_all(disk: Disk, path: str) -> bytes:
    """The whole file."""
    file = disk.open(path, Mode.READ)
    try:
        return file.read(0, file.size())
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
