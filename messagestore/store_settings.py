"""Keep settings that a store's files do not tell in `brokerstore/settings.json`; each writer updates them.

The length of an index file fits many numbers of slots and items, and only its items show which. RocketMQ has both numbers only
in the broker's configuration.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from indexfile import AT_REST, Shape, find_shape, index_paths, itemless_shape
from indexfile.layout import ITEMS_DEFAULT, SLOTS_DEFAULT, file_size
from storageio import Disk, InvalidMessage, replace_file

from .config import StoreConfig, delay_times_ms
from .derive.kinds.scheduled import DelayLevels, Entry
from .sidecar import read_sidecar

NAME = "settings.json"
SIZE_MAX = 64 << 10


class StoreSettings(NamedTuple):
    """The settings of the last writer; a layout of (0, 0) is unknown. `delay_levels`: see `derive/kinds/scheduled.py`."""

    index_slots: int = 0
    index_items: int = 0
    delay_levels: tuple[Entry, ...] = ()


def read_settings(disk: Disk, folder: str) -> StoreSettings:
    """Return the settings in a store's own folder; unknown ones if there is no readable file."""
    return read_sidecar(disk, os.path.join(folder, NAME), SIZE_MAX, _parsed) or StoreSettings()


def write_settings(disk: Disk, folder: str, settings: StoreSettings) -> None:
    """Write the settings durably if they differ from those in the file."""
    if settings != read_settings(disk, folder):
        disk.make_folder(folder)
        replace_file(disk, os.path.join(folder, NAME), json.dumps(settings._asdict()).encode())


def _parsed(fields: Any) -> StoreSettings:
    slots, items = (int(fields.get(name, 0)) for name in ("index_slots", "index_items"))
    levels = tuple(_entry(*pair) for pair in fields.get("delay_levels", ()))
    return StoreSettings(slots, items, levels) if slots > 0 and items > 0 else StoreSettings(delay_levels=levels)


def _entry(start: Any, levels: Any) -> Entry:
    if levels is not None:
        delay_times_ms(levels)
    return Entry(int(start), levels)


def read_levels(disk: Disk, own_folder: str, given: str | None) -> DelayLevels:
    """Return the delay levels of a store; `given` are the caller's levels, or None.

    Records behind the end of the last clean stop were written by a broker whose levels are not known.
    """
    from .recovery.log_end import read_clean  # the log, which `index_shape` does not need

    entries = list(read_settings(disk, own_folder).delay_levels)
    stop = read_clean(disk, os.path.dirname(own_folder))
    if entries and stop is not None:
        entries = [entry for entry in entries if entry.start < stop.end_offset] + [Entry(stop.end_offset, None)]
    return DelayLevels(entries, given)


def index_shape(disk: Disk, index_folder: str, own_folder: str, pauses_s: Sequence[float] = AT_REST) -> Shape | None:
    """Return the slot layout that the items show, else the one kept for files of this length; None if it is not known."""
    paths = index_paths(disk, index_folder)[0]
    kept = _kept_for(disk, own_folder, paths)
    if kept is not None and itemless_shape(disk, paths) is not None:
        return kept
    return find_shape(disk, paths, pauses_s) or kept


def _kept_for(disk: Disk, own_folder: str, paths: list[str]) -> Shape | None:
    """Return the kept slot layout, if the newest file has its length."""
    kept = kept_shape(disk, own_folder)
    newest = disk.stat(paths[-1]) if paths else None
    return kept if kept is not None and newest is not None and newest.size_bytes == file_size(*kept) else None


def kept_shape(disk: Disk, own_folder: str) -> Shape | None:
    """Return the slot layout of the last writer's index, or None."""
    settings = read_settings(disk, own_folder)
    return Shape(settings.index_slots, settings.index_items) if settings.index_slots else None


def refuse_unknown_shape(disk: Disk, index_folder: str, own_folder: str, config: StoreConfig) -> None:
    """Raise `InvalidMessage` if keys would be written to files whose number of slots is not known.

    Only items show it. A file whose length matches RocketMQ's defaults is taken to have the default layout.
    """
    is_given = config.max_hash_slot_num and config.max_index_num
    paths = index_paths(disk, index_folder)[0]
    if is_given or not config.message_index_enable or itemless_shape(disk, paths) is None:
        return
    newest = disk.stat(paths[-1])
    is_default = newest is not None and newest.size_bytes == file_size(SLOTS_DEFAULT, ITEMS_DEFAULT)
    if not is_default and _kept_for(disk, own_folder, paths) is None:
        raise InvalidMessage(
            f"{index_folder}: the files have no key yet and do not say how many slots they have; give the broker's "
            "max_hash_slot_num and max_index_num (--index-slots and --index-num)"
        )
