"""Open queue files and read maps, few at a time.

Ten thousand queues have more files than a process has descriptors.  So a queue holds neither: it borrows them here by
path, and the least recently used go when there are too many.  A map of Python's keeps a descriptor of its own, and its
touched pages count as the process's memory, hence the smaller bound for maps.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from types import TracebackType

from storageio import Disk, File, Map, Mode

OPEN_FILES_MAX = 128
OPEN_MAPS_MAX = 32


class OpenFile:
    """A file in the cache; `with` keeps it open while it is used, in any number of threads."""

    __slots__ = ("_cache", "file", "is_dropped", "users")

    def __init__(self, cache: QueueFiles, file: File) -> None:
        """Made by `QueueFiles.borrow`."""
        self._cache = cache
        self.file = file
        self.users = 0
        self.is_dropped = False

    def __enter__(self) -> File:
        """The file; the borrower was counted by `borrow`."""
        return self.file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give it back."""
        self._cache.give_back(self)


class OpenMap:
    """A map in the cache, as a queue may remember it: `view` is None once the cache let it go."""

    __slots__ = ("_map", "start", "view")

    def __init__(self, made: Map, start: int) -> None:
        """Of the file that begins at `start`."""
        self._map = made
        self.start = start
        self.view: memoryview | None = made.view

    def close(self) -> None:
        """Views that others hold live on."""
        self.view = None
        self._map.close()


class QueueFiles:
    """The open files of a set of queues.  Safe to use from several threads."""

    def __init__(self, disk: Disk, *, writable: bool, max_files: int = OPEN_FILES_MAX, max_maps: int = OPEN_MAPS_MAX) -> None:
        """`writable`: whether files are opened for writing at all."""
        self.disk = disk
        self.writable = writable
        self.log_min_offset = 0  # records before it left the log
        self.structure = threading.RLock()  # held by whoever makes or deletes files of any queue of the set
        self._guard = threading.Lock()
        self._max_files = max_files
        self._max_maps = max_maps
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._maps: OrderedDict[str, OpenMap] = OrderedDict()

    @property
    def open_count(self) -> int:
        """Descriptors held: one a file, one a map."""
        return len(self._files) + len(self._maps)

    def borrow(self, path: str) -> OpenFile:
        """The open file for a `with` block."""
        with self._guard:
            found = self._files.get(path)
            if found is None:
                mode = Mode.WRITE if self.writable else Mode.READ
                found = self._files[path] = OpenFile(self, self.disk.open(path, mode))
                found.users = 1
                self._shrink()
            else:
                self._files.move_to_end(path)
                found.users += 1
            return found

    def give_back(self, entry: OpenFile) -> None:
        """The end of a `with` block."""
        with self._guard:
            entry.users -= 1
            if entry.is_dropped and entry.users == 0:
                entry.file.close()

    def open_map(self, path: str, start: int, size_bytes: int) -> OpenMap:
        """A read map of the whole file, which must be of this size.  Slices of it live as long as somebody holds them."""
        with self._guard:
            found = self._maps.get(path)
            if found is not None:
                self._maps.move_to_end(path)
                return found
        with self.borrow(path) as file:
            made = OpenMap(file.map(size_bytes, writable=False), start)
        with self._guard:
            self._maps[path] = made
            while len(self._maps) > self._max_maps:
                self._maps.popitem(last=False)[1].close()
        return made

    def create(self, path: str, size_bytes: int) -> None:
        """A new file of zeros that takes no room on the disk yet."""
        file = self.disk.open(path, Mode.CREATE)
        try:
            file.truncate(size_bytes)
        finally:
            file.close()

    def delete(self, path: str) -> None:
        """Forget the file and take its name away."""
        self.forget(path)
        self.disk.delete(path)

    def forget(self, path: str) -> None:
        """Close what is open of it as soon as nobody uses it."""
        with self._guard:
            entry = self._files.pop(path, None)
            if entry is not None:
                self._drop(entry)
            found = self._maps.pop(path, None)
            if found is not None:
                found.close()

    def close(self) -> None:
        """Close everything; what is borrowed closes when it is given back."""
        with self._guard:
            for entry in self._files.values():
                self._drop(entry)
            for found in self._maps.values():
                found.close()
            self._files.clear()
            self._maps.clear()

    def _shrink(self) -> None:
        """Close the least recently used; one in use closes when it is given back."""
        while len(self._files) > self._max_files:
            self._drop(self._files.popitem(last=False)[1])

    def _drop(self, entry: OpenFile) -> None:
        entry.is_dropped = True
        if entry.users == 0:
            entry.file.close()
