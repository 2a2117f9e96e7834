"""A hint for recovery: how far queues and key index were on the disk, so that it keeps them instead of rebuilding them.

RocketMQ deletes every index file that the checkpoint does not cover, which always includes the active one.  The hint names the
active file, the item before which everything was synced, and the last record whose keys are all among those items.  A real
broker that writes in between only appends items, or deletes the file, or cuts the log and writes other records.  In the last
two cases the file or the record does not match, and recovery ignores the hint.

Queues are synced before the index, so the same record covers them.  The hint does not list them, because there may be a
million.  It has the sum of their next offsets: if the sum is unchanged, no queue lost a unit; otherwise dispatch begins at the
position that the checkpoint gives.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from commitlog import CommitLog
from indexfile import IndexFiles
from storageio import Disk

from .sidecar import read_sidecar, write_sidecar

NAME = "index.json"
UNKNOWN = -1


class IndexHint(NamedTuple):
    """The hint: every key and every unit of the records before `end_offset` is on the disk.

    The keys are the items of file `name` before `next_item`, and all older files.
    """

    name: str
    next_item: int
    last_offset: int
    store_timestamp_ms: int  # of the record at `last_offset`; another time means another log
    end_offset: int  # where that record ends
    next_total: int = UNKNOWN  # sum of the queues' next offsets when this record was dispatched


def hint_of(log: CommitLog, index: IndexFiles, last_offset: int, next_total: int) -> IndexHint | None:
    """Sync the active index file and return the hint for it, or None if there is nothing to keep.

    `last_offset` and `next_total` come from one `DispatchService.reached`, read before the queues were synced.
    """
    synced = index.sync_active()
    record = log.message_at(last_offset) if last_offset >= 0 else None
    if synced is None or record is None:
        return None
    return IndexHint(*synced, last_offset, record.store_timestamp_ms, last_offset + record.size, next_total)


def still_holds(log: CommitLog, hint: IndexHint) -> bool:
    """Return whether the log still has the record that the hint names."""
    record = log.message_at(hint.last_offset)
    return (
        record is not None
        and record.store_timestamp_ms == hint.store_timestamp_ms
        and hint.last_offset + record.size == hint.end_offset
    )


def write_hint(disk: Disk, folder: str, hint: IndexHint) -> None:
    """Write the hint durably.  Call it after the sync that it describes."""
    write_sidecar(disk, os.path.join(folder, NAME), hint._asdict())


def read_hint(disk: Disk, folder: str) -> IndexHint | None:
    """Return the hint, or None if there is no readable one; the index is then rebuilt."""
    return read_sidecar(disk, os.path.join(folder, NAME), _parsed)


def _parsed(fields: Any) -> IndexHint:
    fields = {"next_total": UNKNOWN, **fields}  # older hints have none
    return IndexHint(str(fields["name"]), *(int(fields[name]) for name in IndexHint._fields[1:]))


def delete_hint(disk: Disk, folder: str) -> None:
    """Delete the hint durably.  Call it before the index is replaced or gets other items in the range that the hint covers."""
    path = os.path.join(folder, NAME)
    if disk.stat(path) is not None:
        disk.delete(path)
        disk.sync_folder(folder)
