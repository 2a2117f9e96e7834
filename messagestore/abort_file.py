"""The file `abort` exists while a store is open for writing; if an open finds one, the last stop was unclean.

It holds the process id as text.  While a recovery repairs a cleanly stopped store, `clean` follows: if that is interrupted, the
store is still judged as one after a clean stop, in which nothing may be missing.  A broker writes its own text.

The file is durable before the first append and removed last.  A real broker leaves an `abort.bak` beside it, usually empty,
which is ignored.
"""

from __future__ import annotations

import os

from commitlog.layout import FOREVER_MS
from storageio import Disk, Entry, Mode

from .broker.config.ack_file import end_take_over, take_over
from .checkpoint import FILE_NAME as CHECKPOINT_NAME
from .checkpoint import read_checkpoint
from .paths import OWN_FOLDER

FILE_NAME = "abort"
TEXT_SIZE_MAX = 20
_CLEAN = b"clean"


class AbortFile:
    """The abort file of one store."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """Create it for the store in `folder`; no file is touched."""
        self.path = os.path.join(folder, FILE_NAME)
        self._folder = folder
        self._disk = disk

    def entry(self) -> Entry | None:
        """Return the folder entry, which every opening for writing changes, or None without a file."""
        return self._disk.stat(self.path)

    @property
    def is_present(self) -> bool:
        """Whether a writer is running or was killed.  The content does not matter."""
        return self.entry() is not None

    def read_process_id(self) -> int | None:
        """Return the last writer's process id, or None without a file or a readable number in it."""
        text = self._words()[:1]
        return int(text[0]) if text and text[0].isdigit() else None

    @property
    def was_clean(self) -> bool:
        """Whether the store was stopped cleanly, even if a recovery of it was interrupted since."""
        return not self.is_present or self._words()[1:] == [_CLEAN]

    def _words(self) -> list[bytes]:
        if not self.is_present:
            return []
        with self._disk.open(self.path, Mode.READ) as file:
            return file.read(0, TEXT_SIZE_MAX).strip(b" \t\r\n\0").split()

    def create(self, process_id: int, *, is_after_clean_stop: bool = False) -> None:
        """Create the file durably.  An existing one is rewritten in place, so that it never disappears."""
        own_folder = os.path.join(self._folder, OWN_FOLDER)
        take_over(self._disk, own_folder, self.read_process_id(), process_id)
        with self._disk.open(self.path, Mode.CREATE) as file:
            text = str(process_id).encode() + (b" " + _CLEAN if is_after_clean_stop else b"")
            file.write(0, text.ljust(file.size()))  # a kill before the next line leaves no part of the last text
            file.truncate(len(text))
            file.sync()
        self._disk.sync_folder(self._folder)
        end_take_over(self._disk, own_folder, process_id)

    def remove(self) -> None:
        """Remove the file durably, as the last step of a clean stop.  A missing file is no error."""
        if self.is_present:
            self._disk.delete(self.path)
            self._disk.sync_folder(self._folder)


def durable_ms(disk: Disk, folder: str) -> int:
    """Return the store time in milliseconds up to which every record is durable; no limit after a clean stop."""
    if AbortFile(disk, folder).was_clean:
        return FOREVER_MS
    return read_checkpoint(disk, os.path.join(folder, CHECKPOINT_NAME)).values.log_timestamp_ms
