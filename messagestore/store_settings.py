"""Keep settings that a store's files do not tell in `brokerstore/settings.json`; each writer updates them.

The length of an index file fits many numbers of slots and items, and only its items show which. RocketMQ has both numbers only
in the broker's configuration.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from storageio import Disk

from .config import RetentionPolicy, StoreConfig, delay_times_ms
from .derive.kinds.scheduled import DelayLevels, ScheduledEntry
from .sidecar import read_sidecar, write_sidecar

NAME = "settings.json"


class FileSettings(NamedTuple):
    """The settings of the last writer; a layout of (0, 0) is unknown. `delay_levels`: see `derive/kinds/scheduled.py`.

    `retention` is the value of the policy, and `broker_version` a name of `broker_versions.py`; None if no writer of this
    library has kept one.
    """

    index_slots: int = 0
    index_items: int = 0
    delay_levels: tuple[ScheduledEntry, ...] = ()
    retention: str | None = None
    broker_version: str | None = None


def read_settings(disk: Disk, folder: str) -> FileSettings:
    """Return the settings in a store's own folder; unknown ones if there is no readable file."""
    return read_sidecar(disk, os.path.join(folder, NAME), _parsed) or FileSettings()


def write_settings(disk: Disk, folder: str, settings: FileSettings) -> None:
    """Write the settings durably if they differ from those in the file."""
    if settings != read_settings(disk, folder):
        write_sidecar(disk, os.path.join(folder, NAME), settings._asdict())


def _parsed(fields: Any) -> FileSettings:
    slots, items = (int(fields.get(name, 0)) for name in ("index_slots", "index_items"))
    levels = tuple(_entry(*pair) for pair in fields.get("delay_levels", ()))
    retention = fields.get("retention")
    found = FileSettings(delay_levels=levels, retention=None if retention is None else str(retention))
    version = fields.get("broker_version")
    found = found._replace(broker_version=None if version is None else str(version))
    return found._replace(index_slots=slots, index_items=items) if slots > 0 and items > 0 else found


def _entry(start: Any, levels: Any) -> ScheduledEntry:
    if levels is not None:
        delay_times_ms(levels)
    return ScheduledEntry(int(start), levels)


def read_retention(disk: Disk, own_folder: str, given: StoreConfig, *, is_new: bool) -> RetentionPolicy:
    """Return the retention policy of a store: the given one, the kept one, or that of a new store.

    A folder that a broker wrote has RocketMQ's. A policy of a later version deletes nothing that is pending.
    """
    if given.retention is not None:
        return given.retention
    kept = read_settings(disk, own_folder).retention
    if kept is None:
        return given.retention_of_new_store if is_new else RetentionPolicy.LIMITS
    return RetentionPolicy.LIMITS if kept == RetentionPolicy.LIMITS.value else RetentionPolicy.CONSUMED


def read_levels(disk: Disk, own_folder: str, given: str | None) -> DelayLevels:
    """Return the delay levels of a store; `given` are the caller's levels, or None.

    Records behind the end of the last clean stop were written by a broker whose levels are not known.
    """
    from .clean_stop import read_clean  # the log, which `FolderFacts` does not need

    entries = list(read_settings(disk, own_folder).delay_levels)
    stop = read_clean(disk, os.path.dirname(own_folder))
    if entries and stop is not None:
        entries = [entry for entry in entries if entry.start < stop.end_offset] + [ScheduledEntry(stop.end_offset, None)]
    return DelayLevels(entries, given)
