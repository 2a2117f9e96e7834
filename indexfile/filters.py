"""The folder of key filters: files that show which full index files cannot hold a key (docs/formats/indexfile.md#key-filters).

A filter only saves work.  One that is missing, damaged or of other index files is not used, and its index files are searched.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise

from storageio import Disk, DiskError, File, Kind, Mode, StoreError, staged

from ._filter_cy import FilterBuffer, add_items, block_count, join_blocks, seal
from .index_file import IndexFile
from .index_files import IndexFiles
from .key_filter import FilterColumn, KeyFilter
from .layout import FILTER_BLOCK_SIZE, FILTER_WIDTH_MAX, FIRST_ITEM, HEADER_SIZE

LOG = logging.getLogger(f"brokerstore.{__name__}")
SUFFIX = ".keys"
MAGIC = b"BSKEYS\0\1"
HEAD = struct.Struct(">8siiii")  # magic, width, slots, items, blocks
COLUMN = struct.Struct(f">q{HEADER_SIZE}s")  # number that is the name of the index file, its header
CHECKSUM = struct.Struct(">I")
HEAD_SIZE = 4096
assert HEAD.size + FILTER_WIDTH_MAX * COLUMN.size + CHECKSUM.size <= HEAD_SIZE
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
ITEMS_AT_ONCE = 1 << 16
CHUNK_SIZE = 1 << 20
CHUNKS_A_SYNC = 16
STEP_S = 0.05  # of one call of `step`, which the housekeeper makes each second


def head_of(slots: int, items: int, columns: list[FilterColumn]) -> bytes:
    """Return the first page of a filter file, which ends with its checksum."""
    head = HEAD.pack(MAGIC, len(columns), slots, items, block_count(items)) + b"".join(COLUMN.pack(*one) for one in columns)
    head = head.ljust(HEAD_SIZE - CHECKSUM.size, b"\0")
    return head + CHECKSUM.pack(zlib.crc32(head))


def open_filter(disk: Disk, path: str) -> tuple[KeyFilter, int, int] | None:
    """Map a filter file; return it with its slots and items, or None if it is damaged.  Its blocks are checked when used."""
    try:
        return _open_filter(disk, path)
    except DiskError as error:  # a writer deleted it, or it cannot be read
        LOG.info("%s", error)
        return None


def _open_filter(disk: Disk, path: str) -> tuple[KeyFilter, int, int] | None:
    entry = disk.stat(path)
    if entry is None or entry.size_bytes <= HEAD_SIZE:
        return None
    with disk.open(path, Mode.READ) as file:
        head = file.read(0, HEAD_SIZE)
        magic, width, slots, items, blocks = HEAD.unpack_from(head)
        seed = zlib.crc32(head[: -CHECKSUM.size])
        is_sound = magic == MAGIC and head[-CHECKSUM.size :] == CHECKSUM.pack(seed) and width in WIDTHS
        size = HEAD_SIZE + FILTER_BLOCK_SIZE * width * blocks
        if not is_sound or blocks != block_count(items) or not size == entry.size_bytes == file.size():
            return None
        mapped = file.map(size, writable=False)
    mapped.expect_random()
    columns = [FilterColumn(*COLUMN.unpack_from(head, HEAD.size + COLUMN.size * index)) for index in range(width)]
    return KeyFilter(path, columns, FilterBuffer(mapped.view[HEAD_SIZE:], width, blocks, seed)), slots, items


def _is_folder(disk: Disk, path: str) -> bool:
    entry = disk.stat(path)
    return entry is not None and entry.kind is Kind.FOLDER


def filter_paths(disk: Disk, folder: str) -> list[str]:
    """Return the paths of the filter files."""
    if not _is_folder(disk, folder):
        return []
    return [os.path.join(folder, entry.name) for entry in disk.list(folder) if entry.name.endswith(SUFFIX)]


def damaged_filters(disk: Disk, folder: str) -> Iterator[tuple[str, str]]:
    """Read every filter file; yield path and damage of those that are damaged."""
    for path in filter_paths(disk, folder):
        found = open_filter(disk, path)
        if found is None:
            if disk.stat(path) is not None:
                yield path, "its first page or its size is wrong"
            continue
        block = found[0].buffer.find_damage()
        if block >= 0:
            yield path, f"the checksum of block {block} is wrong"


class _DamagedFilter(Exception):
    """A merge found damage in one of its filters."""


class KeyFilters:
    """The filters of an index: a writer builds them in short steps, a reader loads them."""

    def __init__(self, disk: Disk, folder: str, index: IndexFiles) -> None:
        """Set the fields without reading anything."""
        self._disk = disk
        self._folder = folder
        self._index = index
        self._tried: set[str] = set()
        self._steps: Iterator[None] | None = None
        self._is_failed = False

    def load(self) -> None:
        """Use the filters of the folder.  Widest first: a crash may have left those that a wider one replaces."""
        found = [open_filter(self._disk, path) for path in filter_paths(self._disk, self._folder)]
        shape = (self._index.slots, self._index.items)
        filters = [one[0] for one in found if one is not None and one[1:] == shape]
        filters.sort(key=lambda one: (-len(one.columns), one.columns[0].name))
        covered: set[int] = set()
        used = []
        for one in filters:
            names = {column.name for column in one.columns}
            if not names & covered:
                covered |= names
                used.append(one)
        self._use(used)

    def _use(self, filters: list[KeyFilter]) -> None:
        self._index.use_filters(sorted(filters, key=lambda one: one.columns[0].name))

    def step(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Build and merge filters for a short time.  A failure is logged and ends the building: queries need no filter."""
        if self._is_failed or len(self._index.listed) < 2:
            return
        stop_s = now_s() + STEP_S
        try:
            while now_s() < stop_s:
                if self._steps is None:
                    self._steps = self._work()
                if next(self._steps, self) is self:
                    self._steps = None
                    return
        except (StoreError, OSError, MemoryError) as error:
            self._is_failed = True
            self._steps = None
            LOG.warning("%s: key filters are not built any more: %s", self._folder, error)

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to build or merge."""
        return self._steps is None

    def close(self) -> None:
        """Stop a step that is not finished; the next writer deletes what it wrote."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()  # type: ignore[attr-defined]

    def _work(self) -> Iterator[None]:
        """Do all that there is to do now, with a yield every few milliseconds."""
        if not self._tried:
            self._disk.make_folder(self._folder)
            if not _is_folder(self._disk, self._folder):  # a symlink: the files behind it are not ours to delete
                raise StoreError("not a folder")
            self.load()
            self._delete_others()
            self._tried.add("")
        self._delete_unused()
        for file in self._index.files[:-1]:
            if file.path not in self._tried and not self._index.has_filter(file):
                self._tried.add(file.path)
                yield from self._build(file)
        while (pair := self._pair()) is not None:
            yield from self._merge(*pair)

    def _delete_others(self) -> None:
        """Delete the files that are not used: of an unfinished step, of other index files, replaced or damaged ones."""
        used = {one.path for one in self._index.filters}
        for entry in self._disk.list(self._folder):
            path = os.path.join(self._folder, entry.name)
            if entry.kind is Kind.FILE and path not in used:
                self._disk.delete(path)

    def _delete_unused(self) -> None:
        """Delete damaged filters, and those whose index files are all gone."""
        live = {int(file.name) for file in self._index.files}
        for one in self._index.filters:
            if one.buffer.is_damaged or not live & {column.name for column in one.columns}:
                self._use([other for other in self._index.filters if other is not one])
                self._disk.delete(one.path)
                self._tried -= {file.path for file in self._index.files}

    def _pair(self) -> tuple[KeyFilter, KeyFilter] | None:
        """Return two neighbours of one width to merge, so that a query reads few filters."""
        for low, high in pairwise(self._index.filters):
            is_damaged = low.buffer.is_damaged or high.buffer.is_damaged
            if len(low.columns) == len(high.columns) < FILTER_WIDTH_MAX and not is_damaged:
                return low, high
        return None

    def _build(self, file: IndexFile) -> Iterator[None]:
        """Build the filter of one full file."""
        self._index.keep_open(file)
        buffer, header = file.buffer, file.mapped_header()
        if file.header.next_item < self._index.items:
            return
        columns = [FilterColumn(int(file.name), header)]
        bits = bytearray(FILTER_BLOCK_SIZE * block_count(self._index.items))
        for start in range(FIRST_ITEM, self._index.items, ITEMS_AT_ONCE):
            if not add_items(buffer, start, min(start + ITEMS_AT_ONCE, self._index.items), bits):
                LOG.warning("%s: items are missing: no key filter is built", file.path)
                return
            yield
        yield from self._write(columns, lambda first, chunk: memoryview(bits)[FILTER_BLOCK_SIZE * first :][: len(chunk)], [])

    def _merge(self, low: KeyFilter, high: KeyFilter) -> Iterator[None]:
        """Join two filters of one width into one of twice the width, unless one of them turns out to be damaged."""

        def joined(first: int, chunk: bytearray) -> memoryview:
            if not join_blocks(low.buffer, high.buffer, first, chunk):
                raise _DamagedFilter
            return memoryview(chunk)

        with contextlib.suppress(_DamagedFilter):  # it is marked, and `_delete_unused` deletes it
            yield from self._write(low.columns + high.columns, joined, [low, high])

    def _write(
        self, columns: list[FilterColumn], blocks_from: Callable[[int, bytearray], memoryview], replaced: list[KeyFilter]
    ) -> Iterator[None]:
        """Write a filter file beside its name, rename it, use it, and delete those that it replaces."""
        width, count = len(columns), block_count(self._index.items)
        head = head_of(self._index.slots, self._index.items, columns)
        path = os.path.join(self._folder, f"{columns[0].name}-{width}{SUFFIX}")
        with staged(self._disk, path) as file:
            file.write(0, head)
            yield from self._write_blocks(file, width, count, CHECKSUM.unpack(head[-CHECKSUM.size :])[0], blocks_from)
        made = open_filter(self._disk, path)
        if made is None:
            raise StoreError(f"{path}: it was written and cannot be used")
        # An index file that was cut and filled again has the name of its former filter.
        kept = [one for one in self._index.filters if one not in replaced and one.path != path]
        self._use([*kept, made[0]])
        for one in replaced:
            self._disk.delete(one.path)

    def _write_blocks(
        self, file: File, width: int, count: int, seed: int, blocks_from: Callable[[int, bytearray], memoryview]
    ) -> Iterator[None]:
        size = FILTER_BLOCK_SIZE * width
        at_once = max(1, CHUNK_SIZE // size)
        for first in range(0, count, at_once):
            chunk = blocks_from(first, bytearray(size * min(at_once, count - first)))
            seal(chunk, width, first, seed)
            file.write(HEAD_SIZE + size * first, chunk)
            if first // at_once % CHUNKS_A_SYNC == CHUNKS_A_SYNC - 1:
                file.sync()  # or the last sync takes seconds, and the housekeeper waits for it
            yield
