"""Configurations of stores that tests share."""

from __future__ import annotations

from typing import Any

from messagestore import StoreConfig


def small_config(**changes: Any) -> StoreConfig:
    """Return a configuration with log files of 64 KiB, queue files of 100 units and index files of 400 items."""
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": 65536,
        "mapped_file_size_consume_queue": 2000,
        "max_hash_slot_num": 100,
        "max_index_num": 400,
    }
    return StoreConfig(**(sizes | changes))
