"""Build index files from items in log order, byte-identical to the result of single puts.

The items come in pieces; memory holds one piece and the map of the current file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from indexfile import IndexFiles
from indexfile.index_file import IndexFile
from indexfile.layout import FIRST_ITEM, HEADER, HEADER_SIZE, ITEM_SIZE, SECONDS_MAX, SLOT_SIZE
from storageio import Disk

from .dispatching import stored_item

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MS_PER_SECOND = 1000


class IndexBuild:
    """Builds index files: call `add` for each piece, then `finish`."""

    def __init__(self, disk: Disk, folder: str, slots: int, items: int, names: Iterator[str]) -> None:
        """Use `names`, those of the replaced files in order, first; later files are named by the clock."""
        self._disk = disk
        self._folder = folder
        self._slots = slots
        self._items = items
        self._names = names
        self._namer = IndexFiles(disk, folder, writable=True, slots=slots, items=items)
        self._file: IndexFile | None = None
        self._count = FIRST_ITEM  # the number of the next item
        self.files = 0

    def add(self, items: Array) -> None:
        """Append items; a full file is closed when another item comes."""
        done = 0
        while done < len(items):
            if self._file is None or self._count >= self._items:
                self._roll()
            part = items[done : done + self._items - self._count]
            self._put(part)
            done += len(part)

    def finish(self, last_record: int) -> None:
        """Close the last file; `last_record` is the physical offset of the log's last record, or -1.

        A record without keys creates a file if there is none or the last one is full, as in a real store.
        """
        is_full = self._file is not None and self._count >= self._items and self._file.header.end_physical_offset < last_record
        if (self._file is None and last_record >= 0) or is_full:
            self._roll()
        self._close()

    def _roll(self) -> None:
        before = self._file.header if self._file is not None else None
        self._close()
        if before is None:
            self._disk.make_folder(self._folder)
        self._namer.refresh()
        path = os.path.join(self._folder, next(self._names, None) or self._namer._new_name())
        self._file = IndexFile.create(self._disk, path, self._slots, self._items, before)
        self._count = FIRST_ITEM
        self.files += 1

    def _put(self, part: Array) -> None:
        """Write items, their chains, and the header."""
        import numpy as np

        assert self._file is not None
        data = self._file.buffer.data
        self._file.allocate(self._count, self._count + len(part))
        head = self._file.header
        table = np.frombuffer(data, ">i4", self._slots, HEADER_SIZE)
        start = HEADER_SIZE + SLOT_SIZE * self._slots + ITEM_SIZE * self._count
        made = np.frombuffer(data, stored_item(), len(part), start)
        numbers = np.arange(self._count, self._count + len(part), dtype=np.int32)
        slot = part["hash"] % self._slots
        previous = _previous(slot, numbers, table)
        made["hash"], made["offset"], made["previous"] = part["hash"], part["offset"], previous
        begin_ms, begin_offset = head.begin_timestamp_ms, head.begin_physical_offset
        made["seconds"] = _seconds(part["time_ms"], begin_ms)
        if (
            self._count == FIRST_ITEM
        ):  # the first item counts seconds from the preset begin, the others from the first item's time
            begin_ms, begin_offset = int(part["time_ms"][0]), int(part["offset"][0])
            made["seconds"][1:] = _seconds(part["time_ms"][1:], begin_ms)
        table[slot] = numbers  # the last of equal slots wins
        used = min(SECONDS_MAX, head.slots_used + int((previous == 0).sum()))
        self._count += len(part)
        last = part[-1]
        data[:HEADER_SIZE] = HEADER.pack(begin_ms, int(last["time_ms"]), begin_offset, int(last["offset"]), used, self._count)

    def _close(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()


def _previous(slot: Array, numbers: Array, table: Array) -> Array:
    """Return the previous item of each slot, from this piece or from the table."""
    import numpy as np

    order = np.argsort(slot, kind="stable")
    in_order = slot[order]
    is_first = np.ones(len(slot), bool)
    is_first[1:] = in_order[1:] != in_order[:-1]
    before = np.empty(len(slot), np.int32)
    before[1:] = numbers[order[:-1]]
    before[is_first] = table[in_order[is_first]]
    made = np.empty(len(slot), np.int32)
    made[order] = before
    return made


def _seconds(times_ms: Array, begin_ms: int) -> Array:
    import numpy as np

    seconds = np.minimum((times_ms - begin_ms) // MS_PER_SECOND, SECONDS_MAX)
    return np.where((begin_ms > 0) & (times_ms > begin_ms), seconds, 0)
