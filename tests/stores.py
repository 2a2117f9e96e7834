"""Configurations of stores that tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commitlog import StoredMessage
from commitlog.walk import LogFiles
from messagestore import StoreConfig
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK

SMALL_SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 << 10,
    "mapped_file_size_consume_queue": 20 * 100,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


def small_config(**changes: Any) -> StoreConfig:
    """Return a configuration with log files of 64 KiB, queue files of 100 units and index files of 400 items."""
    return StoreConfig(**(SMALL_SIZES | changes))


def log_records(folder: Path) -> list[StoredMessage]:
    """Return every record of a store's log."""
    walk = LogFiles(REAL_DISK, [str(folder / "commitlog")]).messages()
    return [found for found in walk if isinstance(found, StoredMessage)]


def problem_kinds(folder: Path) -> set[str]:
    """Return the kinds of what `verify` finds."""
    return {problem.kind for problem in verify_store(str(folder)).problems}
