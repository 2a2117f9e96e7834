"""One file of the key index: header, map, sync."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from storageio import Closing, Disk, DiskError, File, Map, Mode, StoreCorrupt, StoreReadOnly

from ._index_cy import IndexBuffer, MappedIndex
from .layout import (
    BAD_COUNT,
    BAD_HASH,
    BAD_PREVIOUS,
    BAD_SLOT,
    FIRST_ITEM,
    HEADER,
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    ITEMS_STEP,
    NEXT_ITEM_AT,
    SLOT_SIZE,
    file_size,
)

HITS_AT_ONCE = 256
DAMAGE = {
    BAD_HASH: "an item's hash is negative",
    BAD_PREVIOUS: "an item does not lead to the one before it in its slot",
    BAD_SLOT: "a slot does not lead to its newest item",
    BAD_COUNT: "the header's counts are not the items'",
}


class Header(NamedTuple):
    """The 40 bytes at the start of the file."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    slots_used: int
    next_item: int

    @property
    def items_used(self) -> int:
        """Return the number of items in use; a stored count that is not positive means none."""
        return max(self.next_item, FIRST_ITEM) - FIRST_ITEM

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file's time range and the given one have a moment in common."""
        return begin_ms <= self.end_timestamp_ms and self.begin_timestamp_ms <= end_ms and begin_ms <= end_ms


class IndexFile(MappedIndex, Closing):
    """One file of the index.  It is mapped on first use; `close` drops the map."""

    def __init__(self, disk: Disk, path: str, slots: int, items: int, *, writable: bool) -> None:
        """Set the parameters; open nothing."""
        self.disk = disk
        self.path = path
        self.slots = slots
        self.items = items
        self.writable = writable
        self._guard = threading.Lock()  # held while opening and closing
        self._file: File | None = None
        self._map: Map | None = None
        self.mapped = None  # as `buffer`, but None if there is no map

    @classmethod
    def create(cls, disk: Disk, path: str, slots: int, items: int, before: Header | None = None) -> IndexFile:
        """Create a file with blocks for its slots and first items.

        Begin and end are preset from `before`, the header of the full file before it.

        Deletes the file again if the disk has no room for it.
        """
        made = cls(disk, path, slots, items, writable=True)
        made._file = disk.open(path, Mode.CREATE)
        try:
            made._file.truncate(file_size(slots, items))
            made._open_map()
            made.allocate(0, FIRST_ITEM + ITEMS_STEP)
        except BaseException:
            made.close()
            disk.delete(path)
            raise
        if before is not None:
            made._preset(before)
        return made

    def _preset(self, before: Header) -> None:
        assert self._map is not None
        offset, time_ms = max(before.end_physical_offset, 0), max(before.end_timestamp_ms, 0)
        self._map.view[:HEADER_SIZE] = HEADER.pack(time_ms, time_ms, offset, offset, 0, 0)

    @property
    def name(self) -> str:
        """Return the file's name without its folder."""
        return os.path.basename(self.path)

    @property
    def is_open(self) -> bool:
        """Return whether the file is mapped."""
        return self.mapped is not None

    @property
    def buffer(self) -> IndexBuffer:
        """Return the mapped bytes; a caller that holds them may use them after `close`."""
        with self._guard:
            if self.mapped is None:
                self._open_map()
            assert self.mapped is not None
            return self.mapped

    def _open_map(self) -> None:
        """Map the file; the caller holds the guard.

        Another size is refused: reading past the end of a shorter file would kill the process, and a longer one has other
        slots.
        """
        is_found = self._file is None
        if self._file is None:
            self._file = self.disk.open(self.path, Mode.WRITE if self.writable else Mode.READ)
        requested, found = file_size(self.slots, self.items), self._file.size()
        if found != requested:
            self._close()
            raise StoreCorrupt(
                "index file size", file=self.path, offset=0, expected=f"{requested} bytes", found=f"{found} bytes"
            )
        self._map = self._file.map(requested, writable=self.writable)
        self._map.expect_random()
        self.mapped = IndexBuffer(self._map.view, self.slots, self.items)
        if self.writable and is_found:
            try:
                self.allocate(0, self.header.items_used + FIRST_ITEM)
            except BaseException:  # no caller may store through a map without blocks
                self._close()
                raise
        elif not self.writable:
            self._close_file()

    def allocate(self, first: int, limit: int) -> None:
        """Allocate blocks for items `first` to before `limit`; from item 0 on, for header and slots as well."""
        assert self._file is not None and self.mapped is not None
        items_at = HEADER_SIZE + SLOT_SIZE * self.slots
        limit = min(limit, self.items)
        self._file.allocate(items_at + ITEM_SIZE * limit, items_at + ITEM_SIZE * first if first else 0)
        self.mapped.limit = limit

    def grow(self) -> bool:
        """Allocate blocks for further items; return False if the file is full."""
        buffer, used = self.buffer, self.header.items_used + FIRST_ITEM
        if used < self.items and used >= buffer.limit:
            self.allocate(used, used + ITEMS_STEP)
        return used < self.items

    @property
    def header(self) -> Header:
        """Return the current header; read the file if it is not mapped."""
        buffer = self.mapped
        if buffer is not None:
            return Header._make(HEADER.unpack(buffer.header()))
        with self.disk.open(self.path, Mode.READ) as file:
            data = file.read(0, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            raise StoreCorrupt("index header", file=self.path, offset=0, expected=f"{HEADER_SIZE} bytes", found=f"{len(data)}")
        return Header._make(HEADER.unpack(data))

    def expect_header(self) -> None:
        """Let the system read the header, without waiting for it."""
        self._expect_reads([0])

    def expect_items(self, numbers: list[int]) -> None:
        """Let the system read some items, without waiting for them."""
        self._expect_reads([self._position_of(number) for number in numbers])

    def _expect_reads(self, positions: list[int]) -> None:
        with contextlib.suppress(DiskError), self.disk.open(self.path, Mode.READ) as file:
            for at in positions:
                file.expect_read(at, HEADER_SIZE)

    def _position_of(self, number: int) -> int:
        return HEADER_SIZE + SLOT_SIZE * self.slots + ITEM_SIZE * number

    def items_at(self, numbers: list[int]) -> list[tuple[int, int]]:
        """Return key hash and physical offset of some items; read the file if it is not mapped."""
        positions = [self._position_of(number) for number in numbers]
        buffer = self.mapped
        if buffer is not None:
            rows = [bytes(buffer.data[at : at + ITEM_SIZE]) for at in positions]
        else:
            with self.disk.open(self.path, Mode.READ) as file:
                rows = [file.read(at, ITEM_SIZE) for at in positions]
        for at, row in zip(positions, rows, strict=True):
            if len(row) < ITEM_SIZE:
                expected, found = f"{ITEM_SIZE} bytes", f"{len(row)}"
                raise StoreCorrupt("index item", file=self.path, offset=at, expected=expected, found=found)
        return [ITEM.unpack(row)[:2] for row in rows]

    def mapped_header(self) -> bytes:
        """Return the bytes of the header; map the file if it is not mapped."""
        return self.buffer.header()

    @property
    def is_full(self) -> bool:
        """Return whether the file has no place for another key."""
        return self.header.items_used + FIRST_ITEM >= self.items

    def hits(self, code: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of a key hash, newest first, and no more of them than the file has items."""
        buffer = self.buffer
        found = array("q", bytes(8 * HITS_AT_ONCE))
        left, at = self.header.items_used, 0
        while left > 0:
            count, at = buffer.select(code, at, begin_ms, end_ms, found)
            yield from found[: min(count, left)]
            left -= count
            if not at:
                return

    def expect_sequential(self) -> None:
        """Advise the system that the map, which queries read at random, is read from its beginning to its end now."""
        if self._map is not None:
            self._map.expect_sequential()

    def check(self, *, at_once: int | None = None) -> None:
        """Read every item and raise `StoreCorrupt` if a chain is not what the puts would have made.

        With `at_once` the file is mapped anew after so many items: a map keeps every page that was read.
        """
        replayed, written = self.buffer.new_replay(), self.written_slots()
        for limit in range(at_once or self.items, self.items + (at_once or self.items), at_once or self.items):
            kind, position = self.buffer.check(limit, replayed, written)
            if kind:
                break
            if at_once:
                self.close()
        if kind:
            raise StoreCorrupt(DAMAGE[kind], file=self.path, offset=0, expected="sound chains", found=f"damage at {position}")

    def written_slots(self) -> array[int]:
        """Return the first and last slot, plus one, of each range that is no hole.

        On tmpfs, a hole that is read through the map takes memory. All slots are one range if the file cannot be opened again.
        """
        ranges, stop = array("q"), HEADER_SIZE + SLOT_SIZE * self.slots
        try:
            file = self.disk.open(self.path, Mode.READ)
        except DiskError as error:
            if error.errno not in (errno.ENOENT, errno.EMFILE, errno.ENFILE):  # deleted, or no descriptor is left
                raise
            return array("q", [0, self.slots])
        with file:
            at = file.next_data(HEADER_SIZE)
            while at < stop:
                end = min(max(file.data_end(at), at + SLOT_SIZE), stop)
                ranges.extend(((at - HEADER_SIZE) // SLOT_SIZE, (end - HEADER_SIZE) // SLOT_SIZE))
                at = file.next_data(end)
        return ranges

    def sync(self) -> int:
        """Sync the file and return the end time up to which it is then safe."""
        if not self.writable:
            raise StoreReadOnly(f"{self.path}: opened for reading")
        _, header = self.buffer, self.header
        assert self._map is not None
        if self._file is None:
            self._file = self.disk.open(self.path, Mode.WRITE)
        if header.next_item < FIRST_ITEM:  # RocketMQ's flush stores 1 in an empty file as well
            self._map.view[NEXT_ITEM_AT:HEADER_SIZE] = FIRST_ITEM.to_bytes(4, "big")
        self._file.sync()
        return header.end_timestamp_ms

    def close(self) -> None:
        """Drop map and descriptor without a sync."""
        with self._guard:
            self._close()

    def close_descriptor(self) -> None:
        """Close the descriptor and keep the map."""
        with self._guard:
            self._close_file()

    def _close(self) -> None:
        self._close_file()
        if self._map is not None:
            self._map.close()
        self._map = None
        self.mapped = None

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
