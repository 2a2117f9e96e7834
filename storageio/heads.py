"""A bounded read of a small file."""

from __future__ import annotations

from .disk import Disk, Mode


def read_head(disk: Disk, path: str, size_max: int) -> bytes | None:
    """Read at most `size_max` bytes from a file's start; return None when there is no file."""
    if disk.stat(path) is None:
        return None
    with disk.open(path, Mode.READ) as file:
        return file.read(0, min(file.size(), size_max))
