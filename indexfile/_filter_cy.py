"""Bits that show which of several full index files cannot hold a key hash.

The filters of up to `FILTER_WIDTH_MAX` files share one buffer: a row has one bit for each file, and a key hash has `PROBES`
rows in one block.  So a query reads one block, which is within one page, instead of a slot and a chain of items in each file.

    block, 64 * width bytes
    rows  content
    0     checksum of the block, 4 bytes; the rest of the first 32 rows is unused
    32    480 rows of `width` bits; bit n of a row is for file n

A row of 8 bits or more is a big-endian integer.  Rows of fewer bits fill a byte from its lowest bit on.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ._index_cy import IndexBuffer, IndexList, MappedIndex
from .layout import FILTER_BLOCK_SIZE, FIRST_ITEM

if not cython.compiled:
    from storebytes._bytes_cy import I32, I64, Bool, Nothing, Size, Source, Target
    from storebytes._bytes_cy import get_i32, get_i64, prefetch, source_of, target_of
    from storebytes._crc_cy import crc32

    from ._index_cy import hash_at, is_bare, is_blank, is_unused

ROWS = 512
UNUSED_ROWS = 32
USED_ROWS = 480
PROBES = 6
ROW_BITS = 9
BITS_PER_KEY = 16
CHECKSUM_SIZE = 4
AHEAD_ITEMS = 16  # prefetch distance of `add_items`
LOW_31 = 0x7FFFFFFF
LOW_32 = 0xFFFFFFFF
EVERY_BIT = -1
MIX_BLOCK = 0x5BD1E995
MIX_ROW = 0x1B873593
MIX_ROWS = 0x2545F491
ROWS_FROM = 7  # bits of the last product that depend on few bits of the hash


class FilterBuffer:
    """The blocks of one filter.  A block is checked when it is first used."""

    __slots__ = ("_checked", "_is_checked", "_source", "_view", "blocks", "is_damaged", "seed", "width")

    def __init__(self, buffer: Any, width: int, blocks: int, seed: int) -> None:
        """Take the contiguous bytes of all blocks; `seed` is the one that `seal` had."""
        view: memoryview = memoryview(buffer).cast("B")
        if width not in (1, 2, 4, 8, 16, 32, 64) or blocks < 1 or len(view) != FILTER_BLOCK_SIZE * width * blocks:
            raise ValueError(f"{len(view)} bytes are not {blocks} blocks of width {width}")
        self._view = view
        self._source: Source = source_of(view)
        self.width = width
        self.blocks = blocks
        self.seed = seed
        self.is_damaged = False
        self._checked = memoryview(bytearray(blocks))
        self._is_checked: Target = target_of(self._checked)

    @property
    def data(self) -> memoryview:
        """Return the bytes of all blocks."""
        return self._view

    def mask(self, code: int) -> int:
        """Return a bit for each file that may hold the key hash `code`."""
        return mask_of(self, code)

    def find_damage(self) -> int:
        """Return the number of the first block with a wrong checksum, -1 if there is none."""
        block: Size
        for block in range(self.blocks):
            if not _is_sound(self, block):
                return block
        return -1


class FilteredFiles:
    """Full index files, from oldest to newest, with the filter that has their bits."""

    __slots__ = ("buffer", "files", "live")

    def __init__(self, buffer: FilterBuffer, files: list[Any]) -> None:
        """Take the file of each bit, None where the bit is not used."""
        self.buffer = buffer
        self.files = files
        self.live = 0  # the used bits
        bit: Size
        for bit in range(len(files)):
            if files[bit] is not None:
                self.live |= cython.cast(I64, 1) << bit


def block_count(items: int) -> int:
    """Return the number of blocks for files with room for this many items."""
    return max(1, -(-items * BITS_PER_KEY // USED_ROWS))


def add_items(index: IndexBuffer, start: int, stop: int, out: Any) -> bool:
    """Set the bits of the items from start to before stop in the blocks of a filter of width 1.

    Returns False if an item is all zeros: the disk lost it, and the filter would hide that.
    """
    held: memoryview = memoryview(out)
    target: Target = target_of(held)
    if held.readonly or not held.c_contiguous or held.itemsize != 1 or len(held) % FILTER_BLOCK_SIZE or len(held) == 0:
        raise ValueError("whole writable blocks of width 1 are wanted")
    if start < FIRST_ITEM or stop > index.items:
        raise ValueError(f"items {start} to {stop} of {index.items}")
    blocks: Size = len(held) // FILTER_BLOCK_SIZE
    at: Size
    first: Size = start
    last: Size = stop
    blanks: Size = 0
    with cython.nogil:
        for at in range(first, last):
            blanks += is_blank(index, at)
            if last - at > AHEAD_ITEMS:
                prefetch(target, FILTER_BLOCK_SIZE * _block_of(hash_at(index, at + AHEAD_ITEMS), blocks), FILTER_BLOCK_SIZE)
            _set_bits(target, hash_at(index, at), blocks)
    return blanks == 0


def join_blocks(low: FilterBuffer, high: FilterBuffer, start: int, out: Any) -> bool:
    """Write blocks of twice the width from block `start` on: the bits of `low`, then those of `high`.

    At a wrong checksum, mark the filter as damaged and return False: the new checksums would cover the damage.
    """
    held: memoryview = memoryview(out)
    target: Target = target_of(held)
    width: Size = low.width
    size: Size = 2 * FILTER_BLOCK_SIZE * width
    count: Size = len(held) // size
    first: Size = start
    is_same: Bool = high.width == width and high.blocks == low.blocks
    is_whole: Bool = held.c_contiguous and held.itemsize == 1 and len(held) == count * size
    if not is_same or not is_whole or held.readonly or first < 0 or first + count > low.blocks:
        raise ValueError("whole writable blocks of two like filters are wanted")
    block: Size
    row: Size
    for block in range(first, first + count):
        low.is_damaged = low.is_damaged or not _is_sound(low, block)
        high.is_damaged = high.is_damaged or not _is_sound(high, block)
    if low.is_damaged or high.is_damaged:
        return False
    with cython.nogil:
        for block in range(count):
            for row in range(UNUSED_ROWS, ROWS):
                bits: I64 = _row(low._source, FILTER_BLOCK_SIZE * width * (first + block), row, width)
                bits |= _row(high._source, FILTER_BLOCK_SIZE * width * (first + block), row, width) << width
                _put_row(target, size * block, row, 2 * width, bits)
    return True


def seal(out: Any, width: int, start: int, seed: int) -> None:
    """Write the checksums of blocks; `start` is the number of the first one."""
    held: memoryview = memoryview(out)
    target: Target = target_of(held)
    if held.readonly or not held.c_contiguous or held.itemsize != 1 or width < 1 or len(held) % (FILTER_BLOCK_SIZE * width):
        raise ValueError("whole writable blocks are wanted")
    size: Size = FILTER_BLOCK_SIZE * width
    count: Size = len(held) // size
    first: Size = start
    salt: I64 = seed
    block: Size
    with cython.nogil:
        for block in range(count):
            _put_row(target, size * block, 0, 32, _checksum(target, size * block, size, salt, first + block))


def mask_of(filter: FilterBuffer, code: I32) -> I64:
    """Return a bit for each file that may hold the key hash; all bits if the block is damaged."""
    block: Size = _block_of(code, filter.blocks)
    if filter._is_checked[block] == 0:
        if not _is_sound(filter, block):
            filter.is_damaged = True
            return EVERY_BIT
        filter._is_checked[block] = 1
    at: Size = FILTER_BLOCK_SIZE * filter.width * block
    rows: I64 = _rows_of(code)
    bits: I64 = EVERY_BIT
    probe: Size
    for probe in range(PROBES):
        bits &= _row(filter._source, at, _nth_row(rows, probe), filter.width)
    return bits


def prefetch_filters(index: IndexList, hash_code: I32) -> Nothing:
    """Prefetch what `mask_of` will read of every filter, so that the reads of one wait for no other."""
    rows: I64 = _rows_of(hash_code)
    searched: list[Any]
    with cython.critical_section(index):
        searched = index._searched
    for item in searched:
        if isinstance(item, FilteredFiles):
            filtered: FilteredFiles = cython.cast(FilteredFiles, item)
            filter: FilterBuffer = filtered.buffer
            block: Size = _block_of(hash_code, filter.blocks)
            at: Size = FILTER_BLOCK_SIZE * filter.width * block
            prefetch(filter._is_checked, block, 1)
            probe: Size
            for probe in range(PROBES):
                prefetch(filter._source, at + (_nth_row(rows, probe) * filter.width >> 3), 1)


def leads_nowhere(index: IndexList, hash_code: I32) -> Bool:
    """Return whether no file can hold the hash, by filters and by slots of mapped files; False proves nothing."""
    searched: list[Any]
    buffer: IndexBuffer | None
    with cython.critical_section(index):
        searched = index._searched
    for item in searched:
        if isinstance(item, FilteredFiles):
            filtered: FilteredFiles = cython.cast(FilteredFiles, item)
            if mask_of(filtered.buffer, hash_code) & filtered.live:
                return False
            continue
        file: MappedIndex = cython.cast(MappedIndex, item)
        with cython.critical_section(file):
            buffer = file._mapped
        if buffer is None or not is_unused(buffer, hash_code) or is_bare(buffer, hash_code):
            return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _is_sound(filter: FilterBuffer, block: Size) -> Bool:
    """Return whether the checksum of a block is right."""
    size: Size = FILTER_BLOCK_SIZE * filter.width
    found: I64 = get_i32(filter._source, size * block)
    return found & LOW_32 == _checksum(filter._source, size * block, size, filter.seed, block)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _checksum(source: Source, at: Size, size: Size, seed: I64, block: Size) -> I64:
    """Return the checksum of a block, which depends on its file and number as well."""
    crc: I64 = crc32(source, at + CHECKSUM_SIZE, size - CHECKSUM_SIZE)
    return (crc ^ (seed + block)) & LOW_32


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _mixed(code: I64, factor: I64) -> I64:
    """Return 31 bits that depend on all bits of 31."""
    product: I64 = code * factor
    return (product >> 31) ^ (product & LOW_31)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _block_of(code: I32, blocks: Size) -> Size:
    """Return the number of a key hash's block."""
    return _mixed(_mixed(code, MIX_BLOCK), MIX_ROW) % blocks


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _rows_of(code: I32) -> I64:
    """Return `PROBES` numbers of 9 bits for a key hash."""
    return (_mixed(code, MIX_ROW) * MIX_ROWS) >> ROWS_FROM


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _nth_row(rows: I64, probe: Size) -> Size:
    """Return a row, one of 480, from its 9 bits."""
    return UNUSED_ROWS + (((rows >> (ROW_BITS * probe)) & (ROWS - 1)) * USED_ROWS >> ROW_BITS)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _set_bits(target: Target, code: I32, blocks: Size) -> Nothing:
    """Set the bits of a key hash in blocks of width 1."""
    at: Size = FILTER_BLOCK_SIZE * _block_of(code, blocks)
    rows: I64 = _rows_of(code)
    probe: Size
    for probe in range(PROBES):
        row: Size = _nth_row(rows, probe)
        target[at + (row >> 3)] |= 1 << (row & 7)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _row(source: Source, at: Size, row: Size, width: Size) -> I64:
    """Return a row of the block at `at`."""
    bits: I64
    if width == 64:
        return get_i64(source, at + 8 * row)
    if width == 32:
        bits = get_i32(source, at + 4 * row)
        return bits & LOW_32
    if width == 16:
        bits = source[at + 2 * row] << 8
        bits |= source[at + 2 * row + 1]
        return bits
    position: Size = row * width
    bits = source[at + (position >> 3)]
    return (bits >> (position & 7)) & ((1 << width) - 1)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_row(target: Target, at: Size, row: Size, width: Size, bits: I64) -> Nothing:
    """Write a row of a block whose bytes are zero."""
    position: Size = row * width
    first: Size = at + (position >> 3)
    if width < 8:
        target[first] |= bits << (position & 7)
        return
    count: Size = width >> 3
    number: Size
    for number in range(count):
        target[first + number] = (bits >> (width - 8 - 8 * number)) & 255
