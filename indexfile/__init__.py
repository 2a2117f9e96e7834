"""The key index: from a topic and a key to the records that carry it.

Files
- `index/<yyyyMMddHHmmssSSS>`: named by the local time of its creation.  A header of 40 bytes, hash slots of 4 bytes, items of
  20 bytes chained from the newest of a slot to the oldest; 420,000,040 bytes by default (5,000,000 slots, 20,000,000 items).
  It is written through a map; blocks of header and slots are allocated when a file is created, those of items in steps ahead.
- `brokerstore/keys/`: filters of full files, so that a query reads few of them (`filters.py`).  RocketMQ ignores them.
The format and its rules: `docs/formats/indexfile.md`.

Order of calls
- A writer makes `IndexFiles(disk, folder, writable=True, slots=..., items=...)`; the numbers must be those of the existing
  files, which `find_shape` finds.  After an unclean stop it first calls `keep_until` with the last result of
  `sync_active`, or `keep_sound` if there is none.
- A dispatch kernel adds items in the order of the log, from one thread, to the result of `active()`: `is_before_end` and
  `put_item` for a record whose keys fit (`space_of`); else it stops, and goes on with the next result.
- `sync_full()` from any one thread syncs the files that became full and returns the time for the checkpoint; `sync()` at a
  clean stop.
- `select(...)` at any time, in any thread.  It compares hashes only, so the caller checks the key of each record.

What the words mean
- *written*: the put returned; every process sees the changed header, slot and item.
- *safe*: `sync` returned.  RocketMQ never syncs the active file while it is written to; it may be torn after a crash, and is
  then rebuilt.  `sync_active` syncs it.
- The index holds nothing that the log does not; a damaged file is deleted and built again.  Every read ends: no chain is
  followed for more steps than there are items.
"""

import storebytes  # noqa: F401  (first of all: it decides which build of the kernels is found)

from .filters import KeyFilters, damaged_filters
from .index_file import Header, IndexFile
from .index_files import IndexFiles, index_paths, item_hash, name_of
from .shape import (
    AT_REST,
    PAUSES_S,
    Shape,
    default_shape,
    find_shape,
    folder_shape,
    has_shape,
    itemless_shape,
    refuse_other_shape,
    shape_for,
)

__all__ = [
    "AT_REST",
    "PAUSES_S",
    "Header",
    "IndexFile",
    "IndexFiles",
    "KeyFilters",
    "Shape",
    "damaged_filters",
    "default_shape",
    "find_shape",
    "folder_shape",
    "has_shape",
    "index_paths",
    "item_hash",
    "itemless_shape",
    "name_of",
    "refuse_other_shape",
    "shape_for",
]
