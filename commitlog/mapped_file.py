"""One mapped file of the log."""

from __future__ import annotations

import contextlib
import os

from storageio import Closing, Disk, DiskError, File, Map, Mode, StoreCorrupt

from ._find_cy import ReadableFile
from ._scan_cy import find_record
from .offset_files import OffsetFile

PAGE_SIZE = 4096
STEP_BYTES = 16 << 20  # blocks that are allocated ahead of the appends
LARGE_STEP_BYTES = 128 << 20  # once a file has as much
SMALL_STEP_BYTES = 1 << 16  # on a disk that has no room for several steps
SPARE_STEPS = 4
SEARCH_BYTES = 4 << 20  # in one call; ranges that were never written are skipped without reading


class MappedFile(ReadableFile, Closing):
    """A file of fixed size, named by the physical offset of its first byte.

    It has three positions: *written* (appended; visible to every process, or, with a pool buffer, only to this one),
    *committed* (in the file, if there is a pool buffer; else equal to written) and *flushed* (on the disk).  flushed <=
    committed <= written <= size.

    The map is created on first use and lives as long as its last view: deleting the file or dropping this object does not
    affect a reader.  A writable file keeps its descriptor until it is full and flushed.

    A file has its full size from the beginning, but blocks only up to *allocated*: `allocate` comes before every store through
    the map.
    """

    def __init__(self, disk: Disk, path: str, start_offset: int, size_bytes: int, *, writable: bool) -> None:
        """Take an existing file; nothing is opened yet."""
        self._disk = disk
        self.path = path
        self.start_offset = start_offset
        self.size_bytes = size_bytes
        self.writable = writable
        self.written = 0
        self.committed = 0
        self.flushed = 0
        self.allocated = -1  # blocks exist from the first append up to here; -1: not known
        self._failure: DiskError | None = None  # of a sync: the system may have dropped the pages that it was to write
        self.is_synced = True  # its size is on the disk; False for a file created here until its first sync
        self.inode = 0  # from the folder listing; 0 for a file created here
        self._file: File | None = None
        self._direct: File | None = None
        self._map: Map | None = None
        self._lookup_map: Map | None = None
        self._is_fresh = False  # created here and not yet full and flushed
        self.forget_readers()  # they are created on demand

    @classmethod
    def create(cls, disk: Disk, path: str, start_offset: int, size_bytes: int, *, whole: bool = False) -> MappedFile:
        """Create a file with the blocks of its first appends, or with all if `whole`, and map it.

        A failure leaves nothing behind.  The folder is not synced here: `MappedFileQueue` does that.
        """
        made = cls(disk, path, start_offset, size_bytes, writable=True)
        made.is_synced = False
        made._is_fresh = True
        there = disk.stat(path)
        if there is not None and there.size_bytes > 0:
            raise StoreCorrupt("a file where the next one goes", file=path, offset=0, expected="none", found=there.size_bytes)
        try:
            made._file = disk.open(path, Mode.CREATE)
            made.allocated = size_bytes if whole else min(STEP_BYTES, size_bytes)
            if made.allocated < size_bytes:
                made._file.truncate(size_bytes)
            made._file.allocate(made.allocated)
            _ = made.view
        except BaseException:
            made.close()
            if disk.stat(path) is not None:
                disk.delete(path)
            raise
        return made

    @classmethod
    def of(cls, disk: Disk, found: OffsetFile, *, writable: bool) -> MappedFile:
        """Return a file of a folder listing."""
        listed = cls(disk, found.path, found.start_offset, found.size_bytes, writable=writable)
        listed.inode = found.inode
        return listed

    @property
    def end_offset(self) -> int:
        """The physical offset after the file's last byte."""
        return self.start_offset + self.size_bytes

    @property
    def is_mapped(self) -> bool:
        """Whether this object holds a map."""
        return self._map is not None or self._lookup_map is not None

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be appended."""
        return self.written == self.size_bytes

    @property
    def view(self) -> memoryview:
        """All bytes of the file, writable if the file is."""
        if self._map is None:
            self._map = self._opened().map(self.size_bytes, writable=self.writable)
            if not self.writable or self.flushed == self.size_bytes:
                self._close_file()
        return self._map.view

    @property
    def lookup_view(self) -> memoryview:
        """All bytes, through a second map of the file, for records that are read one at a time.

        It is the same one while this process fills the file: the pages are there, as they were written through that map.

        A page fault reads around its page, 128 KiB or as much as the system is set to (8 MiB on some), which a scan needs and a
        single record does not.  Advice is per map, and appends, walks and lookups use a file at the same time: so lookups have
        their own.
        """
        if self._is_fresh:
            return self.view
        if self._lookup_map is None:
            with self._disk.open(self.path, Mode.READ) as file:  # not `_file`, which another thread closes after a flush
                made = file.map(self.size_bytes, writable=False)
            made.expect_random()
            self._lookup_map = made
        return self._lookup_map.view

    def expect_lookups(self, positions: list[int]) -> None:
        """Let the system read the page or two of each small record, without waiting for them."""
        with contextlib.suppress(DiskError), self._disk.open(self.path, Mode.READ) as file:
            for position in positions:
                file.expect_read(position, PAGE_SIZE)

    def allocate(self, end: int) -> int:
        """Allocate blocks from the written position to at least `end`; return the position up to which there are some.

        It allocates a step ahead, and little on a disk that is almost full, which other files need too.  Raises `DiskFull`
        without room up to `end`.
        """
        if self.allocated < 0:
            self.allocated = self.written
        if end > self.allocated:
            step = LARGE_STEP_BYTES if self.allocated >= LARGE_STEP_BYTES else STEP_BYTES
            if self._disk.space(os.path.dirname(self.path)).free_bytes < SPARE_STEPS * step:
                step = SMALL_STEP_BYTES
            end = min(max(end, self.allocated + step), self.size_bytes)
            self._opened().allocate(end, self.allocated)
            self.allocated = end
        return self.allocated

    def next_data(self, position: int) -> int:
        """Return the first position at or after `position` that may hold other bytes than zeros; the size if there is none."""
        if position >= self.size_bytes:
            return self.size_bytes
        found = min(self._opened().next_data(position), self.size_bytes)
        if not self.writable:
            self._close_file()
        return found

    def expect_sequential(self) -> None:
        """Advise the system that the map is read from its beginning to its end."""
        if self._map is not None:
            self._map.expect_sequential()

    def forget_zeros(self, position: int) -> None:
        """Drop clean cached pages, as `storageio.File.forget_zeros` does."""
        if position < self.size_bytes:
            self._opened().forget_zeros(position)

    def pieces_of_data(self, position: int, size_bytes: int) -> list[tuple[int, int]]:
        """Return ranges of at most `size_bytes` bytes, from `position` on, that cover all bytes that may not be zeros.

        Reading ahead creates pages for ranges that were never written, which then look like data.  So all ranges are found
        before one is read, and none extends past the end of its data; otherwise each open would find and read more zeros than
        the one before.
        """
        pieces = []
        at = self.next_data(position)
        while at < self.size_bytes:
            end = min(max(self._opened().data_end(at), at + 1), self.size_bytes)
            pieces += [(start, min(start + size_bytes, end)) for start in range(at, end, size_bytes)]
            at = self.next_data(end)
        return pieces

    def find_record(self, position: int) -> int:
        """Return the first position at or after `position` of a whole record that has its own offset; -1 if there is none."""
        for start, stop in self.pieces_of_data(position, SEARCH_BYTES):
            found = find_record(self.view, start, self.size_bytes, self.start_offset, stop)
            if found >= 0:
                return found
        return -1

    def can_flush(self, least_pages: int) -> bool:
        """Return whether a flush is due (docs/formats/mapped-files.md#flush-rule)."""
        if self.flushed == self.size_bytes:
            return False
        if self.committed == self.size_bytes:
            return True
        if least_pages > 0:
            return self.committed // PAGE_SIZE - self.flushed // PAGE_SIZE >= least_pages
        return self.committed > self.flushed

    def flush(self) -> int:
        """Sync the bytes committed at the call; return the flushed position, which an error does not change."""
        goal = self.committed
        if goal > self.flushed:
            self.sync()
            self.flushed = goal
        if self.flushed == self.size_bytes:
            self._close_file()
            if self._is_fresh:  # from now on other files take the memory of its pages
                self._is_fresh = False
                self.keep_reader(None, False)
        return self.flushed

    def sync(self) -> None:
        """Sync size, allocation and every byte.  After one failure it fails forever: see `_failure`."""
        if self._failure is not None:
            raise self._failure
        try:
            self._opened().sync()
        except DiskError as error:
            self._failure = error
            raise
        self.is_synced = True

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write without the map: used to commit a pool buffer, and by recovery to zero bytes."""
        self._opened().write(position, data)

    def write_direct(self, position: int, pieces: list[memoryview]) -> None:
        """Write past the page cache: whole blocks of `DIRECT_BLOCK` from memory that is aligned to them.

        These pages must not have been written through the map.  A file system without direct writes raises `DiskError` with
        EINVAL.
        """
        if self._direct is None:
            self._direct = self._disk.open(self.path, Mode.DIRECT)
        self._direct.write_pieces(position, pieces)

    def set_positions(self, position: int) -> None:
        """Set all three positions, when the file is opened or cut."""
        self.written = self.committed = self.flushed = position
        self.allocated = -1

    def drop_map(self) -> None:
        """Drop the maps; views that others hold stay valid."""
        self.forget_readers()
        for held in (self._map, self._lookup_map):
            if held is not None:
                held.close()
        self._map = self._lookup_map = None

    def close(self) -> None:
        """Close map and descriptor; nothing is synced."""
        self.drop_map()
        self._close_file()

    def delete(self) -> None:
        """Unlink the file and close it."""
        self._disk.delete(self.path)
        self.close()

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path, Mode.WRITE if self.writable else Mode.READ)
        return self._file

    def _close_file(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()
        file, self._file = self._file, None  # first: an interrupt must not leave a closed file here
        if file is not None:
            file.close()
