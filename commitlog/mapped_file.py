"""One file of the log in memory."""

from __future__ import annotations

from storageio import Disk, DiskError, File, Map, Mode, StoreCorrupt

from ._find_cy import ReadableFile
from .offset_files import OffsetFile

PAGE_SIZE = 4096


class MappedFile(ReadableFile):
    """A file of fixed size, named by the physical offset of its first byte.

    Three positions, each a byte in this file: *written* (appended; every process sees it, or, with a pool buffer, only this
    one), *committed* (in the file, where a pool buffer stands before it; else equal to written) and *flushed* (on the disk).
    flushed <= committed <= written <= size.

    The map is made on first use and lives as long as its last view: deleting the file or dropping this object takes nothing
    away from a reader.  A writable file keeps its descriptor until it is full and flushed.
    """

    def __init__(self, disk: Disk, path: str, start_offset: int, size_bytes: int, *, writable: bool) -> None:
        """Of a file that exists; nothing is opened yet."""
        self._disk = disk
        self.path = path
        self.start_offset = start_offset
        self.size_bytes = size_bytes
        self.writable = writable
        self.written = 0
        self.committed = 0
        self.flushed = 0
        self._failure: DiskError | None = None  # of a sync: what it was to bring to the disk may be dropped by the system
        self.is_synced = True  # its size is on the disk: since the first sync of one that was made here
        self.inode = 0  # as a folder listed it; 0 for one made here
        self._file: File | None = None
        self._direct: File | None = None
        self._map: Map | None = None
        self.reader = None  # over the map, made by who wants one

    @classmethod
    def create(cls, disk: Disk, path: str, start_offset: int, size_bytes: int) -> MappedFile:
        """A new file with all its blocks, mapped.  Where that fails nothing is left behind.

        The folder is not synced here: `MappedFileQueue` does that.
        """
        made = cls(disk, path, start_offset, size_bytes, writable=True)
        made.is_synced = False
        there = disk.stat(path)
        if there is not None and there.size_bytes > 0:
            raise StoreCorrupt("a file where the next one goes", file=path, offset=0, expected="none", found=there.size_bytes)
        try:
            made._file = disk.open(path, Mode.CREATE)
            made._file.allocate(size_bytes)
            _ = made.view
        except BaseException:
            made.close()
            if disk.stat(path) is not None:
                disk.delete(path)
            raise
        return made

    @classmethod
    def of(cls, disk: Disk, found: OffsetFile, *, writable: bool) -> MappedFile:
        """One that a folder lists."""
        listed = cls(disk, found.path, found.start_offset, found.size_bytes, writable=writable)
        listed.inode = found.inode
        return listed

    @property
    def end_offset(self) -> int:
        """The physical offset behind the file's last byte."""
        return self.start_offset + self.size_bytes

    @property
    def is_mapped(self) -> bool:
        """Whether a map is held here."""
        return self._map is not None

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be appended."""
        return self.written == self.size_bytes

    @property
    def view(self) -> memoryview:
        """All of the file's bytes, writable where the file is."""
        if self._map is None:
            self._map = self._opened().map(self.size_bytes, writable=self.writable)
            if not self.writable or self.flushed == self.size_bytes:
                self._close_file()
        return self._map.view

    def next_data(self, position: int) -> int:
        """The first place at or behind `position` that may hold something but zeros; the size when there is none."""
        if position >= self.size_bytes:
            return self.size_bytes
        found = min(self._opened().next_data(position), self.size_bytes)
        if not self.writable:
            self._close_file()
        return found

    def forget_zeros(self, position: int) -> None:
        """See `storageio.File.forget_zeros`."""
        if position < self.size_bytes:
            self._opened().forget_zeros(position)

    def pieces_of_data(self, position: int, size_bytes: int) -> list[tuple[int, int]]:
        """Stretches of at most so many bytes, from `position` on, that hold all that may be something but zeros.

        Reading ahead makes pages of what was never written, and they look like data then.  So all are found before one is
        read, and none goes on behind the data's end: else each opening would find, and read, more zeros than the one before.
        """
        pieces = []
        at = self.next_data(position)
        while at < self.size_bytes:
            end = min(max(self._opened().data_end(at), at + 1), self.size_bytes)
            pieces += [(start, min(start + size_bytes, end)) for start in range(at, end, size_bytes)]
            at = self.next_data(end)
        return pieces

    def select(self, position: int, size_bytes: int) -> memoryview | None:
        """A stretch of what is written, None when it is not all inside."""
        if position < 0 or size_bytes < 0 or position + size_bytes > self.written:
            return None
        return self.view[position : position + size_bytes]

    def can_flush(self, least_pages: int) -> bool:
        """The rule of format page section 6.2."""
        if self.flushed == self.size_bytes:
            return False
        if self.committed == self.size_bytes:
            return True
        if least_pages > 0:
            return self.committed // PAGE_SIZE - self.flushed // PAGE_SIZE >= least_pages
        return self.committed > self.flushed

    def flush(self) -> int:
        """Sync what was committed at the call; the flushed position.  After an error the position stays where it was."""
        goal = self.committed
        if goal > self.flushed:
            self.sync()
            self.flushed = goal
        if self.flushed == self.size_bytes:
            self._close_file()
        return self.flushed

    def sync(self) -> None:
        """Size, allocation and every byte, whatever is believed of them.  Failed once it fails ever after: see `_failure`."""
        if self._failure is not None:
            raise self._failure
        try:
            self._opened().sync()
        except DiskError as error:
            self._failure = error
            raise
        self.is_synced = True

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Past the map: how a pool buffer is committed, and how recovery zeroes."""
        self._opened().write(position, data)

    def write_direct(self, position: int, pieces: list[memoryview]) -> None:
        """As `write`, past the page cache: whole aligned blocks (`DIRECT_BLOCK`) of memory that is aligned so too.

        Nobody may have written to these pages through the map.  A `DiskError` of EINVAL: not on this file system.
        """
        if self._direct is None:
            self._direct = self._disk.open(self.path, Mode.DIRECT)
        self._direct.write_pieces(position, pieces)

    def set_positions(self, position: int) -> None:
        """All three, at opening and after a cut."""
        self.written = self.committed = self.flushed = position

    def drop_map(self) -> None:
        """Views that others hold live on."""
        self.reader = None
        if self._map is not None:
            self._map.close()
            self._map = None

    def close(self) -> None:
        """Let go of map and descriptor; nothing is synced."""
        self.drop_map()
        self._close_file()

    def delete(self) -> None:
        """Take the name away and let go."""
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
        file, self._file = self._file, None  # first: an interrupt must not leave a closed one here
        if file is not None:
            file.close()
