"""What a failed sync leaves in doubt, and how the next opening ends that.

The system takes pages that it could not write for written: they are in its cache, whole to whoever reads them, and no later
sync brings them to the disk.  A store that is opened again before the machine starts anew would find them sound and promise
them.  So a failed sync leaves a note, and the next opening writes every byte that may be concerned once more.

The note itself needs no sync: where it is lost, the cache is lost too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os

from commitlog import MappedFile
from storageio import Disk, Kind, Mode, StoreError

from ..sidecar import read_own_note

NAME = "doubt.json"
SIZE_MAX = 200
PIECE = 1 << 20
LOG = logging.getLogger(__name__)


def mark_sync_failure(disk: Disk, own_folder: str, flushed_offset: int) -> None:
    """Records from `flushed_offset` on, and all that is derived, are in doubt.  An older note says more, so it stays."""
    path = os.path.join(own_folder, NAME)
    with contextlib.suppress(StoreError):  # a disk that takes nothing any more
        if disk.stat(path) is None:
            disk.make_folder(own_folder)
            file = disk.open(path, Mode.CREATE)
            try:
                file.write(0, json.dumps({"flushed_offset": flushed_offset}).encode())
            finally:
                file.close()


def rewrite_after_sync_failure(disk: Disk, own_folder: str, log_files: list[MappedFile], derived: list[str]) -> None:
    """Write the log from the note's place on, and every file below the folders `derived`, as they are; on the disk then.

    From its begin where the note does not say: a full disk takes a name, and nothing into the file.
    """
    path = os.path.join(own_folder, NAME)
    if disk.stat(path) is None:
        return
    note = read_own_note(disk, path, SIZE_MAX, lambda fields: int(fields["flushed_offset"])) or 0
    LOG.warning("a sync failed before this opening: what was not on the disk by then is written again")
    for log_file in log_files:
        if log_file.end_offset > note:
            _write_again(disk, log_file.path, max(0, note - log_file.start_offset))
    for folder in (folder for folder in derived if disk.stat(folder) is not None):
        _write_folder_again(disk, folder)
        disk.sync_folder(os.path.dirname(folder))
    disk.delete(path)


def _write_again(disk: Disk, path: str, start: int) -> None:
    """All that was ever written, from a place on."""
    file = disk.open(path, Mode.WRITE)
    try:
        size = file.size()
        at = file.next_data(start)
        while at < size:
            data = file.read(at, min(PIECE, size - at))
            file.write(at, data)
            at = file.next_data(at + len(data))
        file.sync()
    finally:
        file.close()


def _write_folder_again(disk: Disk, folder: str) -> None:
    """Its files, its names, and those below; links are not followed."""
    for entry in disk.list(folder):
        path = os.path.join(folder, entry.name)
        if entry.kind is Kind.FOLDER:
            _write_folder_again(disk, path)
        elif entry.kind is Kind.FILE:
            _write_again(disk, path, 0)
    disk.sync_folder(folder)
