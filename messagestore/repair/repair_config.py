"""Restore damaged config files from a readable backup.

A file without a readable backup stays as it is, because any replacement would be a guess.
"""

from __future__ import annotations

from storageio import Disk, StoreCorrupt

from ..broker.config.config_files import Source
from ..broker.config.config_table import ConfigTable
from .backups import keep_file
from .verification import TABLES


def damaged_tables(disk: Disk, config_folder: str) -> list[ConfigTable]:
    """Return the tables that were read from their backup because the file is damaged."""
    found = []
    for kind in TABLES:
        try:
            table = kind(disk, config_folder)
        except StoreCorrupt:
            continue
        if table.damage is not None and table.source is Source.BACKUP:
            found.append(table)
    return found


def plan_config(disk: Disk, config_folder: str, actions: list[str]) -> None:
    """Add what `restore_config` would do to the actions."""
    actions += [f"write {table.path} again from its backup" for table in damaged_tables(disk, config_folder)]


def restore_config(disk: Disk, config_folder: str, root: str, *, keep_backup: bool) -> None:
    """Write each damaged file again from its backup; with `keep_backup`, copy it into the store's own folder first."""
    for table in damaged_tables(disk, config_folder):
        if keep_backup:
            keep_file(disk, root, table.path)
        table.write_again()
