"""The files of a log, in order."""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

from storageio import Disk, DiskError, StoreCorrupt, maps_max

from ._find_cy import FileList
from .log_paths import LogPaths
from .mapped_file import MappedFile
from .offset_files import OffsetFile, file_name

SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # descriptors or addresses: fewer maps may help


class MappedFileQueue(FileList):
    """Equally long files without a gap, oldest first.

    Files are made and taken away under one lock.  `prepare_next` makes the file behind the last one ahead of time, on the
    caller's thread; `next_file` takes it, or makes it when nobody did.
    """

    def __init__(self, disk: Disk, paths: LogPaths, file_size_bytes: int, *, writable: bool) -> None:
        """Knows no files before `load`."""
        self._disk = disk
        self.paths = paths
        self.file_size_bytes = file_size_bytes
        self.writable = writable
        self.files: list[MappedFile] = []
        self.on_failed: list[Callable[[], None]] = []  # called when the sync of the last file fails on the way to the next
        self._prepared: MappedFile | None = None
        self._making = ""  # the path of a file that is in neither list yet
        self._lock = threading.RLock()
        self._used: OrderedDict[int, MappedFile] = OrderedDict()
        self._maps_max = maps_max(file_size_bytes)

    def load(self, listed: list[list[OffsetFile]] | None = None) -> None:
        """Take in what the folders hold.  Raises `StoreCorrupt` for a stray file, a wrong size or a missing file."""
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
        """For a reader beside a writer: take in files that came, let go of files that went, and of those made anew.

        A last file that is still being made has not its size yet and is left out; whether there was none such.
        """
        found_all = self.paths.all_files()
        listed = [found for found in found_all if found.size_bytes > 0]
        if len(self.files) <= 1 and listed:
            self._adopt_size(listed)
        whole = [found for found in listed if found.size_bytes == self.file_size_bytes]
        if whole != listed[: len(whole)] or len(whole) < len(listed) - 1:
            self.paths.load(self.file_size_bytes)  # raises, naming the odd one
        known = {(file.start_offset, file.inode, file.size_bytes): file for file in self.files}
        fresh = [known.get((found.start_offset, found.inode, found.size_bytes)) or self._taken_in(found) for found in whole]
        with self._lock:
            if fresh != self.files:
                self.files = fresh
            for file in set(self._used.values()).difference(fresh):
                del self._used[file.start_offset]
        return len(whole) == len(found_all)

    def _adopt_size(self, listed: list[OffsetFile]) -> None:
        """From the names of two files; a single one may still grow, so its length holds only until the next look."""
        self.file_size_bytes = listed[1].start_offset - listed[0].start_offset if len(listed) > 1 else listed[0].size_bytes

    def _taken_in(self, found: OffsetFile) -> MappedFile:
        """A file that a writer made, all of it readable."""
        file = MappedFile.of(self._disk, found, writable=self.writable)
        file.set_positions(file.size_bytes)
        return file

    @property
    def min_offset(self) -> int:
        """The first file's first byte, -1 when there is no file."""
        return self.files[0].start_offset if self.files else -1

    @property
    def end_offset(self) -> int:
        """Behind the last file's last byte, written or not; 0 when there is no file."""
        return self.files[-1].end_offset if self.files else 0

    def roll_next_file(self, offset: int) -> int:
        """The first byte of the file behind the one that holds `offset`."""
        return offset + self.file_size_bytes - offset % self.file_size_bytes

    def find(self, offset: int, *, first_if_not_found: bool = False) -> MappedFile | None:
        """The file that holds a physical offset."""
        files = self.files
        if files:  # nearly always they are all of one length
            place = (offset - files[0].start_offset) // self.file_size_bytes
            if 0 <= place < len(files) and files[place].start_offset <= offset < files[place].end_offset:
                return files[place]
        place = bisect_right(files, offset, key=lambda file: file.start_offset) - 1
        if place >= 0 and offset < files[place].end_offset:
            return files[place]
        return files[0] if first_if_not_found and files else None

    def find_by_time(self, timestamp_ms: int) -> MappedFile | None:
        """The first file changed at or after a time, else the last."""
        for file in self.files:
            found = self._disk.stat(file.path)
            if found is not None and found.modified_ms >= timestamp_ms:
                return file
        return self.files[-1] if self.files else None

    def view(self, file: MappedFile) -> memoryview:
        """A file's map, from a bounded number of them; fewer where the process has no room for more.

        A map that a reader still uses lives on without being counted.
        """
        with self._lock:
            self._used[file.start_offset] = file
            self._used.move_to_end(file.start_offset)
            self._keep_maps(self._maps_max)
            try:
                return file.view
            except DiskError as error:
                if error.errno not in SCARCE:
                    raise
                self._keep_maps(1)
                return file.view

    def _keep_maps(self, count: int) -> None:
        """The last used, and the one that is written."""
        while len(self._used) > count:
            _, oldest = self._used.popitem(last=False)
            if oldest is not self.files[-1]:
                oldest.drop_map()

    def prepare_next(self) -> None:
        """Make the file behind the last one, if nobody has; harmless to call often."""
        with self._lock:
            if self._prepared is None:
                self._prepared = self._create(self.end_offset)

    def next_file(self, start_offset: int = 0) -> MappedFile:
        """The file behind the last one, now part of the log; the very first begins at `start_offset`."""
        with self._lock:
            wanted = self.end_offset if self.files else start_offset
            file = self._prepared if self._prepared is not None else self._create(wanted)
            self._prepared = None
            if file.start_offset != wanted:
                raise AssertionError(f"prepared {file.start_offset}, wanted {wanted}")
            self.files = [*self.files, file]
            self._making = ""
            self._used[file.start_offset] = file
            return file

    def _create(self, start_offset: int) -> MappedFile:
        """A new file whose name is on the disk before it is used, as is the size of the file before it.

        A crash may then leave the last file alone empty.
        """
        folder = self.paths.folder_for(start_offset, self.file_size_bytes)
        self._disk.make_folder(folder)
        path = os.path.join(folder, file_name(start_offset))
        if path == self._making and self._disk.stat(path) is not None:
            self._disk.delete(path)  # an interrupt came between making it and taking it in
        if self.files and not self.files[-1].is_synced:
            self._sync_last()
        self._making = path
        made = MappedFile.create(self._disk, path, start_offset, self.file_size_bytes)
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
            for call in self.on_failed:
                call()
            raise

    def drop_prepared(self) -> None:
        """Delete a file that was made ahead and never used, as a clean stop does."""
        with self._lock:
            if self._prepared is not None:
                prepared, self._prepared = self._prepared, None
                prepared.delete()
                self._disk.sync_folder(os.path.dirname(prepared.path))

    def delete_first(self, count: int) -> int:
        """Take files from the front, never the last; how many went."""
        with self._lock:
            gone = self.files[: min(count, max(0, len(self.files) - 1))]
            self.files = self.files[len(gone) :]
            for file in gone:  # each for good before the next: a crash between leaves no gap
                self._used.pop(file.start_offset, None)
                file.delete()
                self._disk.sync_folder(os.path.dirname(file.path))
            return len(gone)

    def truncate(self, offset: int) -> None:
        """Cut the log at `offset`: later files are deleted, the one that holds it ends there.

        The bytes behind stay as they are; recovery zeroes them (`MappedFile.write`).  A file that begins there stays, empty.
        """
        with self._lock:
            self.drop_prepared()
            kept = [file for file in self.files if file.start_offset <= offset]
            gone = [file for file in self.files if file.start_offset > offset]
            self.files = kept
            if kept:
                kept[-1].set_positions(min(kept[-1].size_bytes, offset - kept[-1].start_offset))
            for file in reversed(gone):  # each for good before the one before it: a crash between leaves no gap
                self._used.pop(file.start_offset, None)
                file.delete()
                self._disk.sync_folder(os.path.dirname(file.path))

    def close(self) -> None:
        """Let go of every map and descriptor; nothing is synced or deleted."""
        with self._lock:
            for file in [*self.files, *([self._prepared] if self._prepared else [])]:
                file.close()
            self._used.clear()
