"""Up to where queues and key index were on the disk: what lets recovery keep them instead of going over the log's last file.

RocketMQ drops every index file that the checkpoint does not vouch for, and that is always the active one.  This note names
the active file, the item before which all was synced, and the last record whose keys are all among those items.  A real broker
that writes in between only adds items behind, deletes the file (then there is none of the name), or cuts the log and writes
other records (then the record is not the one of the note): in both of the latter cases the note says nothing.

The queues were synced before the index, so that the same record stands for them.  Of each of them nothing is named: there may
be a million.  Where their next offsets together are still what they were then, none of them lost a unit; else dispatch begins
where the checkpoint says.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from commitlog import CommitLog
from indexfile import IndexFiles, item_hash
from storageio import Disk, replace_file

from ..sidecar import read_own_note

NAME = "index.json"
UNKNOWN = -1
SIZE_MAX = 4096


class IndexNote(NamedTuple):
    """The items of `name` before `next_item`, and all older files, are on the disk: every key up to one record's end.

    So is every unit of the queues.
    """

    name: str
    next_item: int
    last_offset: int
    store_timestamp_ms: int  # of the record there: whether the log is still the one of the note
    end_offset: int  # behind it
    next_total: int = UNKNOWN  # the queues' next offsets together, when this record was the last one dispatched


def note_of(log: CommitLog, index: IndexFiles, last_offset: int, next_total: int) -> IndexNote | None:
    """Sync the active file and say what is safe then.

    `last_offset` and `next_total` were true together (`DispatchService.reached`) before the queues were synced.
    """
    synced = index.sync_active()
    record = log.message_at(last_offset) if last_offset >= 0 else None
    if synced is None or record is None:
        return None
    return IndexNote(*synced, last_offset, record.store_timestamp_ms, last_offset + record.size, next_total)


def still_holds(log: CommitLog, note: IndexNote) -> bool:
    """Whether the log has the note's record."""
    record = log.message_at(note.last_offset)
    return (
        record is not None
        and record.store_timestamp_ms == note.store_timestamp_ms
        and note.last_offset + record.size == note.end_offset
    )


def write_note(disk: Disk, folder: str, note: IndexNote) -> None:
    """For good; after the sync that it tells of."""
    disk.make_folder(folder)
    replace_file(disk, os.path.join(folder, NAME), json.dumps(note._asdict()).encode())


def read_note(disk: Disk, folder: str) -> IndexNote | None:
    """None when there is none that can be read: the index is built anew then."""
    return read_own_note(disk, os.path.join(folder, NAME), SIZE_MAX, _parsed)


def _parsed(fields: Any) -> IndexNote:
    fields = {"next_total": UNKNOWN, **fields}  # notes of before had none
    return IndexNote(str(fields["name"]), *(int(fields[name]) for name in IndexNote._fields[1:]))


def is_of_log(log: CommitLog, index: IndexFiles, log_end: int) -> bool:
    """Whether the newest item is of a record that the log has: the index of another log can be sound in itself."""
    last = index.last_item(log_end)
    if last is None:
        return True
    code, offset = last
    record = log.message_at(offset)
    if record is None:
        return False
    words = [record.all_properties.get("UNIQ_KEY", ""), *record.keys]
    return code in [item_hash(record.topic, word) for word in words if word]


def drop_note(disk: Disk, folder: str) -> None:
    """For good, before the index is replaced, or gets other items where the note vouches for those it had."""
    path = os.path.join(folder, NAME)
    if disk.stat(path) is not None:
        disk.delete(path)
        disk.sync_folder(folder)
