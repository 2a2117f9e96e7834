"""Up to where the key index was on the disk: what lets recovery keep it instead of building it anew.

RocketMQ drops every index file that the checkpoint does not vouch for, and that is always the active one.  This note names
the active file and the item before which all was synced; slots and links are made again from those items.  A real broker that
writes in between only adds items behind, or deletes the file: then there is none of the name, and the note says nothing.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from storageio import Disk, Mode, replace_file

NAME = "index.json"
SIZE_MAX = 4096


class IndexNote(NamedTuple):
    """The items of `name` before `next_item`, and all older files, are on the disk."""

    name: str
    next_item: int


def write_note(disk: Disk, folder: str, note: IndexNote) -> None:
    """For good; after the sync that it tells of."""
    disk.make_folder(folder)
    replace_file(disk, os.path.join(folder, NAME), json.dumps(note._asdict()).encode())


def read_note(disk: Disk, folder: str) -> IndexNote | None:
    """None when there is none that can be read: the index is built anew then."""
    path = os.path.join(folder, NAME)
    found = disk.stat(path)
    if found is None or not 0 < found.size_bytes <= SIZE_MAX:
        return None
    file = disk.open(path, Mode.READ)
    try:
        fields = json.loads(file.read(0, SIZE_MAX))
        return IndexNote(str(fields["name"]), int(fields["next_item"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    finally:
        file.close()


def drop_note(disk: Disk, folder: str) -> None:
    """For good, before the index is changed after a crash: what is put now may lie where the note vouches for other items."""
    path = os.path.join(folder, NAME)
    if disk.stat(path) is not None:
        disk.delete(path)
        disk.sync_folder(folder)
