"""Marker of a failed fsync; the next open rewrites the affected ranges.

After a failed fsync the kernel marks the pages clean.  They stay in the page cache, where readers find them whole, and no later
fsync writes them.  A store that is opened again before the machine restarts would find such pages sound and acknowledge them.
So a failed fsync leaves a marker file, and the next open writes every byte that may be affected once more.

The marker itself needs no fsync: if it is lost, so is the page cache.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os

from commitlog import MappedFile
from storageio import Disk, Kind, Mode, StoreError

from ..sidecar import read_sidecar

NAME = "doubt.json"
PIECE = 1 << 20
LOG = logging.getLogger(f"brokerstore.{__name__}")


def mark_sync_failure(disk: Disk, own_folder: str, flushed_offset: int) -> None:
    """Create the marker: records from `flushed_offset` on, queues and index may not be on the disk.  An older marker stays."""
    path = os.path.join(own_folder, NAME)
    with contextlib.suppress(StoreError):  # the disk may accept no write at all
        if disk.stat(path) is None:
            disk.make_folder(own_folder)
            with disk.open(path, Mode.CREATE) as file:
                file.write(0, json.dumps({"flushed_offset": flushed_offset}).encode())


def rewrite_after_sync_failure(disk: Disk, own_folder: str, log_files: list[MappedFile], derived: list[str]) -> None:
    """Rewrite the log from the marked offset on, and every file below the folders `derived`, and sync them.

    If the marker is empty, the whole log is rewritten: a full disk may accept the marker's name but not its content.
    """
    path = os.path.join(own_folder, NAME)
    if disk.stat(path) is None:
        return
    sidecar = read_sidecar(disk, path, lambda fields: int(fields["flushed_offset"])) or 0
    LOG.warning("a sync failed before the store was last closed: rewriting what may not be on the disk")
    for log_file in log_files:
        if log_file.end_offset > sidecar:
            _write_again(disk, log_file.path, max(0, sidecar - log_file.start_offset))
    for folder in (folder for folder in derived if disk.stat(folder) is not None):
        _write_folder_again(disk, folder)
        disk.sync_folder(os.path.dirname(folder))
    disk.delete(path)


def _write_again(disk: Disk, path: str, start: int) -> None:
    """Rewrite a file's data from a position on."""
    with disk.open(path, Mode.WRITE) as file:
        size = file.size()
        at = file.next_data(start)
        while at < size:
            data = file.read(at, min(PIECE, size - at))
            file.write(at, data)
            at = file.next_data(at + len(data))
        file.sync()


def _write_folder_again(disk: Disk, folder: str) -> None:
    """Rewrite the files of a folder and its subfolders and sync their names; links are not followed."""
    for entry in disk.list(folder):
        path = os.path.join(folder, entry.name)
        if entry.kind is Kind.FOLDER:
            _write_folder_again(disk, path)
        elif entry.kind is Kind.FILE:
            _write_again(disk, path, 0)
    disk.sync_folder(folder)
