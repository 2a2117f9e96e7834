"""The file `abort`: there while a store is open for writing, so whoever finds it knows of a stop that was not clean.

It holds the process id as text.  It is made for good before the first append and removed last.  A real broker leaves an
`abort.bak` beside it, mostly empty; it means nothing, is not made here and stays if it is there.
"""

from __future__ import annotations

import os

from storageio import Disk, Mode

FILE_NAME = "abort"
TEXT_SIZE_MAX = 20


class AbortFile:
    """Whether the last writer stopped cleanly, and the mark that this one has not yet."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """`folder` is the store's."""
        self.path = os.path.join(folder, FILE_NAME)
        self._folder = folder
        self._disk = disk

    @property
    def is_present(self) -> bool:
        """Whether a writer is at work or died.  What the file holds does not matter."""
        return self._disk.stat(self.path) is not None

    def read_process_id(self) -> int | None:
        """The last writer's; None when there is no file, or nothing readable in it."""
        if not self.is_present:
            return None
        file = self._disk.open(self.path, Mode.READ)
        try:
            text = file.read(0, TEXT_SIZE_MAX).strip(b" \t\r\n\0")
        finally:
            file.close()
        return int(text) if text.isdigit() else None

    def create(self, process_id: int) -> None:
        """Return when the file is there for good.  One that was there is written anew and never away in between."""
        file = self._disk.open(self.path, Mode.CREATE)
        try:
            text = str(process_id).encode()
            file.write(0, text)
            file.truncate(len(text))
            file.sync()
        finally:
            file.close()
        self._disk.sync_folder(self._folder)

    def remove(self) -> None:
        """Return when the file is gone for good: the last act of a clean stop.  No error when it is not there."""
        if self.is_present:
            self._disk.delete(self.path)
            self._disk.sync_folder(self._folder)
