"""Looking at files that a writer makes and deletes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from storageio import Disk, DiskError, StoreCorrupt

from ..recovery.abort_file import AbortFile

TRIES = 10
PAUSE_S = 0.02
Found = TypeVar("Found")


def beside_writer(disk: Disk, root: str, look: Callable[[], Found]) -> Found:
    """Return what `look` returns.

    A file that a writer is just making has not its length yet, and one that it deletes is listed and cannot be opened.  So in a
    folder that may be in use (it has an abort file) `look` is called again when it raises, a few times.
    """
    for _ in range(TRIES - 1):
        try:
            return look()
        except (StoreCorrupt, DiskError):
            if not AbortFile(disk, root).is_present:
                raise
        disk.sleep(PAUSE_S)
    return look()
