"""Compare index items with the log in both directions: which records lack items, and which items have no record.

Items are compared as sets of key hash and physical offset, but only those of offsets at which the order of the log and that of
the files differ (`indexfile._match_cy`). An index that a dispatcher built in one go has none.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from commitlog import MappedFile
from commitlog._scan_cy import scan
from commitlog.walk import PIECE_RECORDS, Piece
from indexfile import IndexFile, IndexFiles
from indexfile._index_cy import IndexBuffer
from indexfile._match_cy import ItemMatcher
from indexfile.layout import FIRST_ITEM, HEADER_SIZE, ITEM_SIZE, SECONDS_OPTIONAL, SLOT_SIZE
from storageio import DiskError, StoreCorrupt, StoreError
from storebytes.finding import Finding

from ..unreadable import unreadable

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[Any]]

HASH_BIAS = 1 << 31  # added to a hash, so that the greater number is the greater hash
MadeItems = Callable[[memoryview, int, int, int], Iterator[IndexBuffer]]  # of a range of whole records


class _Range(NamedTuple):
    """Consecutive whole records: bytes start..stop of a log file of `size_bytes` bytes that begins at `base`."""

    file: str
    size_bytes: int
    base: int
    start: int
    stop: int


class _Items(NamedTuple):
    """The columns of some items."""

    offsets: Numbers
    hashes: Numbers
    are_optional: Numbers  # of items that the log requires: whether an index may lack them


class IndexComparison:
    """One comparison of an index with a log whose records are taken in log order."""

    def __init__(self, index: IndexFiles, low: int, end_offset: int, made_items: MadeItems) -> None:
        """Compare records from `low` to before `end_offset`. `made_items` yields the items that a range of records requires."""
        self._index = index
        self._low = low
        self._end = end_offset
        self._made_items = made_items
        self._left = index.files[::-1]
        self._buffer: IndexBuffer | None = None
        self._matcher = ItemMatcher()
        self._ranges: list[_Range] = []
        self._is_disordered = False
        self._unreadable: dict[str, StoreError] = {}  # the error of each file that cannot be read, by path
        self.items = 0  # different items that the log requires, known after `problems`

    def walk(self, piece: Piece) -> None:
        """Note a range of the log before its items are taken. Ranges must not overlap, or everything is compared as sets."""
        if self._ranges and piece.base + piece.start < self._ranges[-1].base + self._ranges[-1].stop:
            self._is_disordered = True
        self._ranges.append(_Range(piece.file, len(piece.view), piece.base, piece.start, piece.stop))

    def take(self, made: IndexBuffer, *, is_split: bool) -> None:
        """Match the next items of the log. `is_split` says that the last record's further items follow in the next buffer."""
        at, stop = FIRST_ITEM, _next_item(made)
        while at < stop:
            if self._buffer is None:
                self._next_file()
            at = self._matcher.match(made, at, self._buffer, self._low, self._end)
            if at < stop:
                self._buffer = None
        if is_split:
            self._matcher.list_last(made, self._low, self._end)

    def _next_file(self) -> None:
        """Go on with the next index file that can be opened; `problems` reports the others."""
        while self._left and self._buffer is None:
            file = self._left.pop()
            buffer = self._opened(file)
            if buffer is not None:
                file.expect_sequential()
                self._buffer, self._matcher.at = buffer, FIRST_ITEM

    def problems(self, low: int, newest_is_growing: bool) -> Iterator[Finding]:
        """Yield damaged files, and missing and dangling items of records from `low` on, after the log's last record."""
        while self._buffer is not None or self._left:
            if self._buffer is None:
                self._next_file()
            if self._buffer is not None:
                self._matcher.rest(self._buffer, self._low, self._end)
                self._buffer = None
        for file in self._index.files:
            if self._opened(file) is None:
                yield unreadable(self._unreadable[file.path], file.path)
                continue
            try:
                if not newest_is_growing or file is not self._index.files[-1]:  # the writer still changes its chains
                    file.check()
            except StoreCorrupt as error:
                yield Finding(file.path, 0, "damaged_index", "sound chains", str(error))
        self.items = self._matcher.unique
        if self._is_disordered or len(self._matcher.differing_made) or len(self._matcher.differing_found):
            yield from self._differences(low)

    def _opened(self, file: IndexFile) -> IndexBuffer | None:
        """Return the bytes of a file, None if its size is wrong or the system does not read it."""
        if file.path in self._unreadable:
            return None
        try:
            return file.buffer
        except StoreError as error:
            self._unreadable[file.path] = error
            return None

    def errors(self) -> list[StoreError]:
        """Return the errors of the files that cannot be read."""
        return list(self._unreadable.values())

    def _differences(self, low: int) -> Iterator[Finding]:
        """Compare the items of all listed offsets as sets."""
        import numpy as np

        differing_made, differing_found = (
            np.frombuffer(differing, np.int64) for differing in (self._matcher.differing_made, self._matcher.differing_found)
        )
        differing = None if self._is_disordered else np.unique(np.concatenate([differing_made, differing_found]))
        made, found = _joined(self._made_pairs(differing)), _joined(self._found_pairs(differing))
        offsets = np.unique(np.concatenate([made.offsets, found.offsets]))
        keys = _keys(made, offsets)
        expected, allowed = np.unique(keys[~made.are_optional]), np.unique(keys)
        own = expected if differing is None else expected[np.isin(offsets[expected >> 32], differing_made)]
        self.items = len(own) + (0 if differing is None else self._matcher.unique)
        present = np.unique(_keys(found, offsets))
        expected, present = expected[offsets[expected >> 32] >= low], present[offsets[present >> 32] >= low]
        missing, dangling = np.setdiff1d(expected, present), np.setdiff1d(present, allowed)
        for kind, keys in (("missing_item", missing), ("dangling_item", dangling)):
            if len(keys):
                offset, key_hash = offsets[keys[0] >> 32], (keys[0] & 0xFFFFFFFF) - HASH_BIAS
                first = f"the first key hash {key_hash} of the record at {offset}"
                yield Finding(self._index.folder, 0, kind, f"{self.items} items", f"{len(keys)} {kind.split('_')[0]}, {first}")

    def _made_pairs(self, differing: Numbers | None) -> Iterator[_Items]:
        """Yield offsets and hashes of the items that the log requires for the listed offsets."""
        import numpy as np

        for one in self._ranges:
            first, stop = one.base + one.start, one.base + one.stop
            if differing is not None and not np.searchsorted(differing, stop) > np.searchsorted(differing, first):
                continue
            try:
                with MappedFile(self._index.disk, one.file, one.base, one.size_bytes, writable=False) as file:
                    for low, high in _differing_records(file.view, one, differing):
                        for made in self._made_items(file.view, low, high, one.base):
                            yield _pairs(made, differing, self._low, self._end)
            except DiskError as error:
                if error.errno != errno.ENOENT:  # a writer deletes files while its store is checked
                    raise

    def _found_pairs(self, differing: Numbers | None) -> Iterator[_Items]:
        """Yield offsets and hashes of the index's items for the listed offsets."""
        for file in self._index.files:
            buffer = self._opened(file)
            if buffer is not None:
                yield _pairs(buffer, differing, self._low, self._end)


def _next_item(buffer: IndexBuffer) -> int:
    """Return the number behind the last item."""
    return max(FIRST_ITEM, min(int.from_bytes(buffer.header()[36:40], "big", signed=True), buffer.items))


def _differing_records(view: memoryview, one: _Range, differing: Numbers | None) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive records that begin at listed offsets."""
    import numpy as np

    if differing is None:
        yield one.start, one.stop
        return
    at = one.start
    while at < one.stop:
        positions, sizes = array("q", bytes(8 * PIECE_RECORDS)), array("i", bytes(4 * PIECE_RECORDS))
        end, _, rows, _, _ = scan(view, at, one.stop, one.base, 0, positions, sizes)
        assert rows, "a range has whole records only"
        starts = np.frombuffer(positions, np.int64)[:rows]
        ends = starts + np.frombuffer(sizes, np.int32)[:rows]
        is_differing = np.isin(starts + one.base, differing)
        changes = np.flatnonzero(np.diff(np.concatenate([[False], is_differing, [False]])))
        yield from zip(starts[changes[::2]].tolist(), ends[changes[1::2] - 1].tolist(), strict=True)
        at = end


def _pairs(buffer: IndexBuffer, differing: Numbers | None, low: int, end: int) -> _Items:
    """Return the items of listed offsets in low..end."""
    import numpy as np

    kind = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
    start = HEADER_SIZE + SLOT_SIZE * buffer.slots + ITEM_SIZE * FIRST_ITEM
    items = np.frombuffer(buffer.data, kind, _next_item(buffer) - FIRST_ITEM, start)
    offsets, hashes = items["offset"].astype(np.int64), items["hash"].astype(np.int64)
    kept = (offsets >= low) & (offsets < end)
    if differing is not None:
        kept &= np.isin(offsets, differing)
    return _Items(offsets[kept], hashes[kept], items["seconds"][kept] == SECONDS_OPTIONAL)


def _joined(parts: Iterator[_Items]) -> _Items:
    import numpy as np

    empty = np.empty(0, np.int64)
    every = [_Items(empty, empty, np.empty(0, np.bool_)), *parts]
    return _Items(*(np.concatenate(column) for column in zip(*every, strict=True)))


def _keys(items: _Items, offsets: Numbers) -> Numbers:
    """Return one number for each item: the rank of its offset, then its hash."""
    import numpy as np

    return np.asarray((np.searchsorted(offsets, items.offsets) << 32) | (items.hashes + HASH_BIAS), np.int64)
