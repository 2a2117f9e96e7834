"""Find messages by key or tags in a folder whose queues or key index are in RocksDB, which no engine opens.

Index files and index rows name records; what neither has taken in yet is found in the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from commitlog import StoredMessage
from commitlog.layout import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from commitlog.walk import LogFiles, Piece
from indexfile import IndexFiles
from storageio import Disk

from ..folder_contents import ROCKSDB_STORE
from ..rocksdb.database import open_database
from ..rocksdb.store_rows import INDEX, KEY, TAG, UNIQUE, index_rows, index_text, last_offset
from ._lookup_cy import has_key
from .index_coverage import NOTHING, TAG_ITEM, has_tags

if TYPE_CHECKING:
    from ..config import StoreConfig
    from ..folder import FolderFacts


def search_key(
    facts: FolderFacts, config: StoreConfig, files: LogFiles, topic: str, key: str, *, is_tag: bool = False
) -> Iterator[StoredMessage]:  # fmt: skip
    """Yield the messages of a topic with a key, or these tags, oldest first. Raises `MissingExtra` without the extra."""
    matches = has_tags if is_tag else has_key
    offsets, covered = _in_files(facts.disk, facts.paths.index, config, topic, TAG_ITEM + key if is_tag else key)
    if facts.contents.has_rocksdb_rows:
        more, taken_in = _in_rows(os.path.join(facts.path, ROCKSDB_STORE), topic, key, is_tag=is_tag)
        offsets, covered = offsets | more, max(covered, taken_in)
    for offset in sorted(offset for offset in offsets if offset <= covered):
        message = files.message_at(offset)
        if isinstance(message, StoredMessage) and matches(message, topic, key):
            yield message
    for step in files.walk():
        for message in step.messages() if isinstance(step, Piece) and step.base + step.stop > covered else ():
            is_rolled_back = message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK
            if message.physical_offset > covered and not is_rolled_back and matches(message, topic, key):
                yield message


def _in_files(disk: Disk, folder: str, config: StoreConfig, topic: str, key: str) -> tuple[set[int], int]:
    """Return the log offsets that index files have for a key, and that of the last record in them."""
    assert config.max_hash_slot_num and config.max_index_num
    with IndexFiles(disk, folder, writable=False, slots=config.max_hash_slot_num, items=config.max_index_num) as index:
        last = index.last_header()
        return set(index.hits(topic, key)), NOTHING if last is None else last.end_physical_offset


def _in_rows(path: str, topic: str, key: str, *, is_tag: bool) -> tuple[set[int], int]:
    """Return the log offsets that the rows of a database have for a key, and that of the last record in it."""
    beginnings = tuple(index_text(topic, kind, key) for kind in ((TAG,) if is_tag else (KEY, UNIQUE)))
    with open_database(path) as database:
        found = {row.log_offset for row in index_rows(database) if row.text.startswith(beginnings)}
        return found, last_offset(database, INDEX)
