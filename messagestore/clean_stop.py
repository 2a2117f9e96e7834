"""The file `clean.json`, which a clean stop writes: where the log ended and where its last record begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from commitlog import StoredMessage
from storageio import Disk

from .paths import OWN_FOLDER
from .sidecar import read_sidecar, write_sidecar

CLEAN_NAME = "clean.json"


class CleanStop(NamedTuple):
    """The content of `clean.json`, written by the last clean stop."""

    end_offset: int
    last_offset: int


def clean_path(root: str) -> str:
    """Return the path of `clean.json`."""
    return os.path.join(root, OWN_FOLDER, CLEAN_NAME)


def write_clean(disk: Disk, root: str, clean_stop: CleanStop) -> None:
    """Write `clean.json` at a clean stop, before the abort file is removed."""
    write_sidecar(disk, clean_path(root), clean_stop._asdict())


def read_clean(disk: Disk, root: str) -> CleanStop | None:
    """Return the content of `clean.json`, or None without a readable one.  The file only saves a scan."""
    return read_sidecar(disk, clean_path(root), lambda fields: CleanStop(*(int(fields[name]) for name in CleanStop._fields)))


def clean_stop_ms(clean_stop: CleanStop | None, message_at: Callable[[int], object]) -> int:
    """Return the store time of the last record of a clean stop, 0 if the record is gone.

    Records up to that time were on the disk.  The file outlives a recovery that was killed, after which the abort file alone
    would look like a crash.
    """
    last = message_at(clean_stop.last_offset) if clean_stop is not None else None
    return last.store_timestamp_ms if isinstance(last, StoredMessage) else 0
