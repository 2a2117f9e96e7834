"""Find the numbers of slots and items of the files of an index.

A file's size only gives 4 * slots + 20 * items.  RocketMQ's default has four items per slot, which the chains confirm or
refute.  Otherwise the position of the last item decides: the header has its number and its physical offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from storageio import Disk, File, Mode, StoreCorrupt

from .index_file import Header, IndexFile
from .index_files import index_paths
from .layout import (
    FIRST_ITEM,
    HEADER_SIZE,
    ITEM,
    ITEM_PHYSICAL_OFFSET_AT,
    ITEM_SIZE,
    ITEMS_PER_SLOT_DEFAULT,
    NO_ITEM,
    SLOT_SIZE,
    file_size,
)

CHECKED_ITEMS = 1000
CANDIDATES_MAX = 100_000
READ_SIZE = 1 << 20
PAUSES_S = (0, 0.001, 0.02, 0.1, 0.5)  # before each attempt: a writer may keep adding items
AT_REST = (0,)  # for callers that know of no writer, or that retry themselves
_DEFAULT_GROUP = SLOT_SIZE + ITEMS_PER_SLOT_DEFAULT * ITEM_SIZE


class Shape(NamedTuple):
    """The numbers of slots and items of an index file; `items` counts the unused item 0."""

    slots: int
    items: int


def shape_for(size_bytes: int, slots: int) -> Shape | None:
    """Return the shape of a file of this size and number of slots, or None if the rest is not whole items."""
    rest = size_bytes - HEADER_SIZE - SLOT_SIZE * slots
    return Shape(slots, rest // ITEM_SIZE) if slots > 0 and rest >= ITEM_SIZE and rest % ITEM_SIZE == 0 else None


def default_shape(size_bytes: int) -> Shape | None:
    """Return the shape with four items per slot, or None if the size does not allow it."""
    slots, rest = divmod(size_bytes - HEADER_SIZE, _DEFAULT_GROUP)
    return shape_for(size_bytes, slots) if rest == 0 else None


def itemless_shape(disk: Disk, paths: list[str]) -> Shape | None:
    """Return a shape for files without items: that of the newest file's size with about four items per slot.

    Returns None if a file holds items, which fit one shape only, or if no file is longer than a header.
    """
    files = list(_newest_first(disk, paths))
    return _nearest_shape(files[0][1]) if files and not any(header.items_used for _, _, header in files) else None


def _newest_first(disk: Disk, paths: list[str]) -> Iterator[tuple[str, int, Header]]:
    """Yield path, size and header of each file that is longer than a header."""
    for path in reversed(paths):
        entry = disk.stat(path)
        if entry is not None and entry.size_bytes > HEADER_SIZE:
            yield path, entry.size_bytes, IndexFile(disk, path, 1, 1, writable=False).header


def _nearest_shape(size_bytes: int) -> Shape | None:
    """Return the shape nearest to four items per slot, or None for a size that no file has."""
    most = (size_bytes - HEADER_SIZE) // _DEFAULT_GROUP
    slots = range(most, max(0, most - ITEM_SIZE // SLOT_SIZE), -1)
    return next((shape for count in slots if (shape := shape_for(size_bytes, count)) is not None), None)


def find_shape(disk: Disk, paths: list[str], pauses_s: Sequence[float] = PAUSES_S) -> Shape | None:
    """Return the shape that the files agree with, or None if they do not reveal it and the caller must ask for the slots.

    All files of a folder have one shape; the newest that holds items decides.  Without any item the default is taken.
    `pauses_s` are the pauses before each attempt, in seconds.
    """
    fallback = None
    for path, size_bytes, header in _newest_first(disk, paths):
        usual = default_shape(size_bytes)
        fallback = fallback or usual
        if header.items_used:
            return _read_again(disk, path, size_bytes, usual, pauses_s)
    return fallback


def folder_shape(disk: Disk, folder: str, kept: Shape | None, pauses_s: Sequence[float] = AT_REST) -> Shape | None:
    """Return the shape that the items of a folder show, else `kept` for files of its length; None if it is not known."""
    paths = index_paths(disk, folder)[0]
    fitting = kept if has_shape(disk, paths, kept) else None
    if fitting is not None and itemless_shape(disk, paths) is not None:
        return fitting
    return find_shape(disk, paths, pauses_s) or fitting


def has_shape(disk: Disk, paths: list[str], shape: Shape | None) -> bool:
    """Return whether the newest file has the length of a shape."""
    newest = disk.stat(paths[-1]) if paths else None
    return shape is not None and newest is not None and newest.size_bytes == file_size(*shape)


def _read_again(disk: Disk, path: str, size_bytes: int, usual: Shape | None, pauses_s: Sequence[float]) -> Shape | None:
    """Try several times: while a writer adds an item, header, item and slot disagree for some microseconds."""
    for pause_s in pauses_s:
        disk.sleep(pause_s)
        if usual is not None and _agrees(disk, path, usual):
            return usual
        found = _search(disk, path, size_bytes, IndexFile(disk, path, 1, 1, writable=False).header)
        if found is not None:
            return found
    return None


def refuse_other_shape(disk: Disk, paths: list[str], requested: Shape) -> None:
    """Raise `StoreCorrupt` if the files certainly have another shape; with a wrong shape, queries find nothing.

    Files of one size can have many shapes, so the chains decide; a file that agrees with no shape is not judged.
    """
    for path, _, header in _newest_first(disk, paths):
        if header.items_used == 0:
            continue
        found = None if _agrees(disk, path, requested) else find_shape(disk, [path], AT_REST)
        if found is not None and found != requested:
            expected = f"{requested.slots} slots and {requested.items} items"
            text = f"{found.slots} slots and {found.items} items"
            raise StoreCorrupt("index shape", file=path, offset=0, expected=expected, found=text)
        return


def _agrees(disk: Disk, path: str, shape: Shape) -> bool:
    """Return whether the file's chains are those that puts with this shape make."""
    try:
        with IndexFile(disk, path, *shape, writable=False) as file:
            header = file.header
            if header.items_used >= shape.items:
                return False
            damage, _ = file.buffer.check(CHECKED_ITEMS, None, file.written_slots())
            return not damage and header.end_physical_offset in _last_offset(file, header)
    except StoreCorrupt:
        return False


def _last_offset(file: IndexFile, header: Header) -> set[int]:
    """Return the physical offset of the last item, as a set."""
    at = HEADER_SIZE + SLOT_SIZE * file.slots + ITEM_SIZE * header.items_used + ITEM_PHYSICAL_OFFSET_AT
    with file.disk.open(file.path, Mode.READ) as opened:
        return {int.from_bytes(opened.read(at, 8), "big", signed=True)}


def _search(disk: Disk, path: str, size_bytes: int, header: Header) -> Shape | None:
    """Try every position that contains the last item's physical offset."""
    with disk.open(path, Mode.READ) as file:
        positions = _positions(file, size_bytes, header.end_physical_offset.to_bytes(8, "big", signed=True))
        for position in islice(positions, CANDIDATES_MAX):
            items_at = position - ITEM_PHYSICAL_OFFSET_AT - ITEM_SIZE * header.items_used
            slots, rest = divmod(items_at - HEADER_SIZE, SLOT_SIZE)
            shape = shape_for(size_bytes, slots) if rest == 0 else None
            if shape is not None and _is_likely(file, shape, header) and _agrees(disk, path, shape):
                return shape
    return None


def _is_likely(file: File, shape: Shape, header: Header) -> bool:
    """Return whether the first item is plausible and the last one's slot leads to it, with three short reads."""
    items_at = HEADER_SIZE + SLOT_SIZE * shape.slots
    _, first_offset, _, previous = ITEM.unpack(file.read(items_at + ITEM_SIZE * FIRST_ITEM, ITEM_SIZE))
    if first_offset != header.begin_physical_offset or previous != NO_ITEM or header.items_used >= shape.items:
        return False
    key_hash = ITEM.unpack(file.read(items_at + ITEM_SIZE * header.items_used, ITEM_SIZE))[0]
    slot = file.read(HEADER_SIZE + SLOT_SIZE * (key_hash % shape.slots), SLOT_SIZE)
    return key_hash >= 0 and int.from_bytes(slot, "big") == header.items_used


def _positions(file: File, size_bytes: int, expected: bytes) -> Iterator[int]:
    """Yield every position of these bytes, overlapping ones included."""
    for at in range(HEADER_SIZE, size_bytes, READ_SIZE):
        data = file.read(at, READ_SIZE + len(expected) - 1)
        found = data.find(expected)
        while found >= 0:
            yield at + found
            found = data.find(expected, found + 1)
