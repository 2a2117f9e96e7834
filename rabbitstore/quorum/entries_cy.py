"""Where the entries of a log are, in columns: eight bytes for an entry (docs/formats/rabbitmq-quorum.md#write-ahead-log).

`wal` and `segment` read what is not as expected, an entry at a time, and say what is wrong with it.
"""

from __future__ import annotations

from array import array
from zlib import adler32

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from . import layout

if not cython.compiled:
    from storebytes._bytes_cy import (
        I64, I32s, Size, Source, get_i32, get_i64, i32s_of, source_of, take_view,
    )  # fmt: skip
    from storebytes._crc_cy import crc32_more

CAPACITY: Size = 64
CAPACITY_MAX: Size = 1 << 16
WRITER: Size = layout.WRITER_SIZE
CHECKED: Size = layout.WRITER_SIZE + layout.CHECKED_AT
RECORD: Size = layout.WRITER_SIZE + layout.WAL_RECORD.size
WIDE: Size = layout.SEGMENT_ENTRY[2].size
NUMBER_MAX: I64 = layout.NUMBER_MAX
POSITION_MAX: I64 = 0xFFFFFFFF


class EntryRun:
    """Entries of one term and file whose indexes follow one another, from `first` to the one before `stop`.

    It holds place and size of each entry's data in `view`, in columns that double when they are full, up to ROOM_MAX entries.
    Places are relative to the first one; an entry that is not within 4 GiB behind it does not belong to the run.
    A `part` shares the columns and does not grow, so a run may go on growing where it was read.
    """

    __slots__ = (
        "_base",
        "_capacity",
        "_is_closed",
        "_origin",
        "_positions",
        "_positions_held",
        "_sizes",
        "_sizes_held",
        "file",
        "first",
        "stop",
        "term",
        "view",
    )  # fmt: skip

    def __init__(self, first: I64, term: I64, view: memoryview, file: str) -> None:
        """Begin with an empty run."""
        self.first = self.stop = self._base = first
        self.term = term
        self.view = view
        self.file = file
        self._is_closed = False
        self._origin = 0
        self._capacity = 0
        self._grow(CAPACITY)

    def _grow(self, capacity: Size) -> None:
        positions = array("i", bytes(4 * capacity))
        sizes = array("i", bytes(4 * capacity))
        if self._capacity:
            memoryview(positions)[: self._capacity] = self._positions_held
            memoryview(sizes)[: self._capacity] = self._sizes_held
        self._positions_held: memoryview = memoryview(positions)
        self._sizes_held: memoryview = memoryview(sizes)
        self._positions: I32s = i32s_of(self._positions_held)
        self._sizes: I32s = i32s_of(self._sizes_held)
        self._capacity = capacity

    def append(self, at: I64, size: I64) -> bool:
        """Add the entry `stop`; return False when it has no room in the run."""
        number: Size = self.stop - self._base
        if self._is_closed or number >= CAPACITY_MAX:
            return False
        if number == 0:
            self._origin = at
        if not 0 <= at - self._origin <= POSITION_MAX:
            return False
        if number == self._capacity:
            self._grow(2 * number)
        self._positions[number] = _signed(at - self._origin)
        self._sizes[number] = _signed(size)
        self.stop += 1
        return True

    def position(self, index: I64) -> I64:
        """Return where the data of an entry begins."""
        position: I64 = self._positions[index - self._base]
        return self._origin + (position & POSITION_MAX)

    def size(self, index: I64) -> I64:
        """Return the size of an entry's data."""
        size: I64 = self._sizes[index - self._base]
        return size & POSITION_MAX

    def part(self, first: I64, stop: I64) -> EntryRun:
        """Return these entries as a run that does not grow."""
        found: EntryRun = EntryRun.__new__(EntryRun)
        found.first = first
        found.stop = stop
        found._base = self._base
        found._origin = self._origin
        found.term = self.term
        found.view = self.view
        found.file = self.file
        found._is_closed = True
        found._capacity = self._capacity
        found._positions_held = self._positions_held
        found._sizes_held = self._sizes_held
        found._positions = self._positions
        found._sizes = self._sizes
        return found


def take_records(view: memoryview, at: Size, runs: dict[int, EntryRun]) -> int:
    """Add the records of a write-ahead log that continue a run, and return where the first other one is.

    `runs` has the last run of each writer, by the first three bytes of its records.  A record continues it if it has the next
    index, the same term and a right checksum; one without a checksum, with a name, or after a gap is left to `WalScan`.
    """
    source: Source = source_of(view)
    stop: Size = len(view)
    size: Size
    word: Size
    run: EntryRun | None
    while stop - at >= RECORD:
        word = (source[at] << 16) | (source[at + 1] << 8) | source[at + 2]
        size = get_i32(source, at + WRITER + 4)
        run = runs.get(word)
        if run is None or size < 0 or size > stop - at - RECORD:
            break
        if get_i64(source, at + WRITER + 8) != run.stop or get_i64(source, at + WRITER + 16) != run.term:
            break
        if (adler32(take_view(view, at + CHECKED, RECORD - CHECKED + size)) ^ get_i32(source, at + WRITER)) & 0xFFFFFFFF:
            break
        if not run.append(at + RECORD, size):
            break
        at += RECORD + size
    return at


def take_entries(view: memoryview, at: Size, stop: Size, data_at: Size, width: Size, runs: list[EntryRun], file: str) -> int:
    """Add the entries in at..stop of a segment's index, and return where the first one is that is left to `read_segment`.

    An entry is taken if its index is behind the last one's and its CRC is right; `width` is that of the version, and `data_at`
    where the data begins.
    """
    source: Source = source_of(view)
    end: Size = len(view)
    position: I64
    size: I64
    index: I64
    term: I64
    run: EntryRun | None = runs[len(runs) - 1] if runs else None
    while at < stop:
        index = get_i64(source, at)
        term = get_i64(source, at + 8)
        position = get_i64(source, at + 16) if width == WIDE else get_i32(source, at + 16)
        size = get_i32(source, at + width - 8)
        if not (0 <= index <= NUMBER_MAX and 0 <= term <= NUMBER_MAX):
            break
        if size < 0 or position < data_at or position > end or size > end - position:
            break
        if (crc32_more(0, source, position, size) ^ get_i32(source, at + width - 4)) & 0xFFFFFFFF:
            break
        if run is not None and index < run.stop:
            break
        if run is None or index != run.stop or term != run.term or not run.append(position, size):
            run = EntryRun(index, term, view, file)
            run.append(position, size)
            runs.append(run)
        at += width
    return at


@cython.cfunc
@cython.exceptval(check=False)
def _signed(number: I64) -> I64:
    """Return the signed number of the same 32 bits."""
    return number if number < 0x80000000 else number - 0x100000000
