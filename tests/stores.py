"""Configurations of stores, and bytes that clients and dispatchers make of messages, for tests of all packages."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from commitlog import StoredMessage, encode_properties
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


def index_record(
    index: Any, topic: str, unique_key: str | None, keys: str | None, physical_offset: int, store_timestamp_ms: int, *,
    is_rollback: bool = False,
) -> int:  # fmt: skip
    """Index one record as a dispatcher does (docs/formats/indexfile.md#what-is-indexed); return the number of items added."""
    buffer = index.active()
    if is_rollback or buffer.is_repeat(physical_offset):
        return 0
    words = [word for word in [unique_key or "", *(keys or "").split(" ")] if word]
    for word in words:
        while not buffer.put(topic.encode(), word.encode("utf-8", "replace"), physical_offset, store_timestamp_ms):
            buffer = index.active()
    return len(words)


def encode_wire_batch(messages: Iterable[Any], encode: Callable[[Any], bytes] = encode_properties) -> bytes:
    """Return a batch in the form in which RocketMQ's clients send it (docs/formats/put-rules.md#wire-batch)."""
    parts = []
    for message in messages:
        raw = encode(message)
        head = struct.pack(">iiiii", 22 + len(message.body) + len(raw), 0, 0, message.flag, len(message.body))
        parts += [head, message.body, struct.pack(">H", len(raw)), raw]
    return b"".join(parts)
