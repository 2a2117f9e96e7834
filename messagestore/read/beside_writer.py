"""Read files while a writer creates and deletes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from storageio import Disk, DiskError, StoreCorrupt

from ..abort_file import AbortFile

TRIES = 10
PAUSE_S = 0.02
Found = TypeVar("Found")


def beside_writer(disk: Disk, root: str, read: Callable[[], Found]) -> Found:
    """Return the result of `read`, and call it again a few times if it raises and the folder may be in use.

    A file that a writer is creating does not have its full length yet, and one that it deletes is listed but cannot be
    opened.  A folder may be in use if it has an abort file.
    """
    for _ in range(TRIES - 1):
        try:
            return read()
        except (StoreCorrupt, DiskError):
            if not AbortFile(disk, root).is_present:
                raise
        disk.sleep(PAUSE_S)
    return read()
