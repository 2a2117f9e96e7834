"""The files of a log, in order."""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

from storageio import Disk, DiskError, DiskFull, StoreCorrupt, maps_max

from ._find_cy import FileList
from ._scan_cy import Reader
from .log_paths import LogPaths
from .mapped_file import MappedFile
from .offset_files import OffsetFile, file_name

SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # out of descriptors or addresses: fewer maps may help


class MappedFileQueue(FileList):
    """Files of one size without a gap, oldest first.

    Files are created and deleted under one lock.  `prepare_next` creates the file after the last one ahead of time, on the
    caller's thread; `next_file` uses it, or creates the file if it is not prepared.
    """

    def __init__(
        self, disk: Disk, paths: LogPaths, file_size_bytes: int, *, writable: bool, on_failed: Callable[[], None] | None = None
    ) -> None:
        """Create it without files; call `load`.

        `on_failed` is called if the sync of the last file fails before the next is created.
        """
        self._disk = disk
        self.paths = paths
        self.file_size_bytes = file_size_bytes
        self.writable = writable
        self.files: list[MappedFile] = []
        self.size_max = 0  # bytes of all files; 0 without a limit
        self._count_beyond = 0  # files that the limit allows once
        self.allocates_whole = False  # for writers that do not call `MappedFile.allocate`
        self._on_failed = on_failed
        self._prepared: MappedFile | None = None
        self._making = ""  # the path of a file that is being created
        self._lock = threading.RLock()
        self._used: OrderedDict[int, MappedFile] = OrderedDict()
        self._maps_max = maps_max(file_size_bytes)

    def load(self, listed: list[list[OffsetFile]] | None = None) -> None:
        """Load the files of the folders.  Raises `StoreCorrupt` for a stray file, a wrong size or a missing file."""
        found = self.paths.load(self.file_size_bytes, listed)
        files = [MappedFile.of(self._disk, file, writable=self.writable) for file in found]
        for before, after in pairwise(files):
            if after.start_offset != before.end_offset:
                raise StoreCorrupt(
                    "a log file is missing",
                    file=after.path,
                    offset=0,
                    expected=file_name(before.end_offset),
                    found=file_name(after.start_offset),
                )
        for file in files:
            if file.start_offset % self.file_size_bytes:
                raise StoreCorrupt(
                    "wrong file name",
                    file=file.path,
                    offset=0,
                    expected=f"a multiple of {self.file_size_bytes}",
                    found=str(file.start_offset),
                )
            file.set_positions(file.size_bytes)
        self.files = files

    def refresh(self) -> bool:
        """Update the list for a reader beside a writer: add new files, drop deleted ones and those created anew.

        A last file that is still being created does not have its size yet and is skipped; returns False if there is one.
        """
        found_all = self.paths.all_files()
        listed = [found for found in found_all if found.size_bytes > 0]
        if len(self.files) <= 1 and listed:
            self._adopt_size(listed)
        whole = [found for found in listed if found.size_bytes == self.file_size_bytes]
        if whole != listed[: len(whole)] or len(whole) < len(listed) - 1:
            self.paths.load(self.file_size_bytes)  # raises, naming the odd one
        known = {(file.start_offset, file.inode, file.size_bytes): file for file in self.files}
        fresh = [known.get((found.start_offset, found.inode, found.size_bytes)) or self._listed_file(found) for found in whole]
        with self._lock:
            if fresh != self.files:
                self.files = fresh
            for file in set(self._used.values()).difference(fresh):
                del self._used[file.start_offset]
        return len(whole) == len(found_all)

    def _adopt_size(self, listed: list[OffsetFile]) -> None:
        """Take the size from the names of two files, or from the length of a single one, which may still grow later."""
        self.file_size_bytes = listed[1].start_offset - listed[0].start_offset if len(listed) > 1 else listed[0].size_bytes

    def _listed_file(self, found: OffsetFile) -> MappedFile:
        """Return a file that a writer created, all of it readable."""
        file = MappedFile.of(self._disk, found, writable=self.writable)
        file.set_positions(file.size_bytes)
        return file

    @property
    def min_offset(self) -> int:
        """The first offset of the first file, -1 if there is no file."""
        return self.files[0].start_offset if self.files else -1

    @property
    def end_offset(self) -> int:
        """The offset after the last file, written or not; 0 if there is no file."""
        return self.files[-1].end_offset if self.files else 0

    def roll_next_file(self, offset: int) -> int:
        """Return the start of the file after the one that holds `offset`."""
        return offset + self.file_size_bytes - offset % self.file_size_bytes

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds a physical offset."""
        files = self.files
        if files:  # nearly always all have one length
            index = (offset - files[0].start_offset) // self.file_size_bytes
            if 0 <= index < len(files) and files[index].start_offset <= offset < files[index].end_offset:
                return files[index]
        index = bisect_right(files, offset, key=lambda file: file.start_offset) - 1
        if index >= 0 and offset < files[index].end_offset:
            return files[index]
        return None

    def view(self, file: MappedFile) -> memoryview:
        """Return a file's map, from a bounded number of maps; fewer if the process has no room for more.

        A map that a reader still uses stays valid without being counted.
        """
        return self._mapped(file, lambda: file.view)

    def new_reader(self, file: MappedFile, is_scan: bool) -> Reader:
        """Return a reader over a file's map, or over its map for lookups, which counts with it."""
        view = self.view(file) if is_scan else self._mapped(file, lambda: file.lookup_view)
        return Reader(view, file.start_offset)

    def _mapped(self, file: MappedFile, mapped: Callable[[], memoryview]) -> memoryview:
        """Return what `mapped` does, from a bounded number of maps."""
        with self._lock:
            self._used[file.start_offset] = file
            self._used.move_to_end(file.start_offset)
            self._keep_maps(self._maps_max)
            try:
                return mapped()
            except DiskError as error:
                if error.errno not in SCARCE:
                    raise
                self._keep_maps(1)
                return mapped()

    def _keep_maps(self, count: int) -> None:
        """Drop the least recently used maps, except that of the file being written."""
        while len(self._used) > count:
            _, oldest = self._used.popitem(last=False)
            if oldest is not self.files[-1]:
                oldest.drop_map()

    def prepare_next(self) -> None:
        """Create the file after the last one unless it is prepared; cheap to call often."""
        with self._lock:
            if self._prepared is None and not self.is_at_limit:
                self._prepared = self._create(self.end_offset)

    @property
    def is_at_limit(self) -> bool:
        """Whether one more file would exceed the maximum size.  The first file is always allowed."""
        count = len(self.files) + 1
        return 0 < self.size_max < count * self.file_size_bytes and count > max(1, self._count_beyond)

    def allow_one_more(self) -> None:
        """Let the next file exceed the maximum size."""
        self._count_beyond = len(self.files) + 1

    def next_file(self, start_offset: int = 0) -> MappedFile:
        """Add the file after the last one to the log and return it; the very first starts at `start_offset`.

        Raises `DiskFull` if that exceeds the maximum size.
        """
        with self._lock:
            expected = self.end_offset if self.files else start_offset
            if self._prepared is None and self.is_at_limit:
                text = f"the log has its maximum size of {self.size_max} bytes"
                raise DiskFull("create", self.files[-1].path, errno.ENOSPC, text)
            file = self._prepared if self._prepared is not None else self._create(expected)
            self._prepared = None
            if file.start_offset != expected:
                raise AssertionError(f"prepared {file.start_offset}, wanted {expected}")
            self.files = [*self.files, file]
            self._making = ""
            self._used[file.start_offset] = file
            return file

    def _create(self, start_offset: int) -> MappedFile:
        """Create a file; its name and the previous file's size are on the disk before it is used.

        So a crash can leave only the last file empty.
        """
        folder = self.paths.folder_for(start_offset, self.file_size_bytes)
        self._disk.make_folder(folder)
        path = os.path.join(folder, file_name(start_offset))
        if path == self._making and self._disk.stat(path) is not None:
            self._disk.delete(path)  # an interrupt came between its creation and its use
        if self.files and not self.files[-1].is_synced:
            self._sync_last()
        self._making = path
        made = MappedFile.create(self._disk, path, start_offset, self.file_size_bytes, whole=self.allocates_whole)
        try:
            self._disk.sync_folder(folder)
        except BaseException:
            made.delete()
            raise
        return made

    def _sync_last(self) -> None:
        try:
            self.files[-1].sync()
        except DiskError:
            if self._on_failed is not None:
                self._on_failed()
            raise

    def drop_prepared(self) -> None:
        """Delete a file that was created ahead and never used, as a clean stop does."""
        with self._lock:
            if self._prepared is not None:
                prepared, self._prepared = self._prepared, None
                prepared.delete()
                self._disk.sync_folder(os.path.dirname(prepared.path))

    def delete_first(self, count: int) -> int:
        """Delete files from the front, never the last one; return the number of files deleted."""
        with self._lock:
            gone = self.files[: min(count, max(0, len(self.files) - 1))]
            self.files = self.files[len(gone) :]
            for file in gone:  # each durably before the next: a crash in between leaves no gap
                self._used.pop(file.start_offset, None)
                file.delete()
                self._disk.sync_folder(os.path.dirname(file.path))
            return len(gone)

    def truncate(self, offset: int, remove: Callable[[MappedFile], None] = MappedFile.delete) -> None:
        """Cut the log at `offset`: remove later files, and end the one that holds it there.

        The bytes after it stay as they are; recovery zeroes them (`MappedFile.write`).  A file that starts at `offset` stays,
        empty.
        """
        with self._lock:
            self.drop_prepared()
            kept = [file for file in self.files if file.start_offset <= offset]
            gone = [file for file in self.files if file.start_offset > offset]
            self.files = kept
            if kept:
                kept[-1].set_positions(min(kept[-1].size_bytes, offset - kept[-1].start_offset))
            for file in reversed(gone):  # each durably before its predecessor: a crash in between leaves no gap
                self._used.pop(file.start_offset, None)
                remove(file)
                self._disk.sync_folder(os.path.dirname(file.path))

    def close(self) -> None:
        """Close every map and descriptor; nothing is synced or deleted."""
        with self._lock:
            for file in [*self.files, *([self._prepared] if self._prepared else [])]:
                file.close()
            self._used.clear()
