"""A cache of open queue files and read maps.

Ten thousand queues have more files than a process may have descriptors.  A queue therefore holds none: it borrows files by
path, and the least recently used are closed when there are too many.  A Python map keeps a descriptor of its own, and its
touched pages count as memory of the process, so fewer maps are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from types import TracebackType

from storageio import Disk, File, Map, Mode

OPEN_FILES_MAX = 128
OPEN_MAPS_MAX = 32


class OpenFile:
    """A file in the cache; a `with` block keeps it open, in any number of threads."""

    __slots__ = ("_cache", "file", "is_dropped", "users")

    def __init__(self, cache: QueueFiles, file: File) -> None:
        """Create it; only `QueueFiles.borrow` does."""
        self._cache = cache
        self.file = file
        self.users = 0
        self.is_dropped = False

    def __enter__(self) -> File:
        """Return the file; `borrow` has counted the user."""
        return self.file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Return the file to the cache."""
        self._cache.give_back(self)


class OpenMap:
    """A map in the cache.  A queue may keep a reference; `view` is None after the cache closed the map.

    Threads share `view`, so each slices its own (`storageio.own_view`).
    """

    __slots__ = ("_map", "start", "view")

    def __init__(self, made: Map, start: int) -> None:
        """Create it for the file that begins at `start`."""
        self._map = made
        self.start = start
        self.view: memoryview | None = made.view

    def close(self) -> None:
        """Close the map; slices that others hold stay valid."""
        self.view = None
        self._map.close()


class QueueFiles:
    """The open files of a set of queues.  Safe to use from several threads."""

    def __init__(self, disk: Disk, *, writable: bool, max_files: int = OPEN_FILES_MAX, max_maps: int = OPEN_MAPS_MAX) -> None:
        """Create an empty cache; files are opened for reading only unless `writable`."""
        self.disk = disk
        self.writable = writable
        self.log_min_offset = 0  # the log has no records before it
        self.structure = threading.RLock()  # held while files of any queue are created or deleted
        self._guard = threading.Lock()
        self._max_files = max_files
        self._max_maps = max_maps
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._maps: OrderedDict[str, OpenMap] = OrderedDict()

    @property
    def open_count(self) -> int:
        """Number of descriptors in use: one per file, one per map."""
        return len(self._files) + len(self._maps)

    def borrow(self, path: str) -> OpenFile:
        """Return the open file for a `with` block."""
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
        """End a use of the file; close it if it left the cache meanwhile."""
        with self._guard:
            entry.users -= 1
            if entry.is_dropped and entry.users == 0:
                entry.file.close()

    def open_map(self, path: str, start: int, size_bytes: int) -> OpenMap:
        """Return a read map of the whole file, which must have this size; slices of it stay valid while they are referenced."""
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
        """Create a sparse file of zeros, which takes no disk space yet."""
        with self.disk.open(path, Mode.CREATE) as file:
            file.truncate(size_bytes)

    def delete(self, path: str) -> None:
        """Remove the file from the cache and unlink it."""
        self.forget(path)
        self.disk.delete(path)

    def forget(self, path: str) -> None:
        """Remove the file from the cache; its descriptor is closed after the last use."""
        with self._guard:
            entry = self._files.pop(path, None)
            if entry is not None:
                self._drop(entry)
            found = self._maps.pop(path, None)
            if found is not None:
                found.close()

    def close(self) -> None:
        """Close everything; a borrowed file is closed after its last use."""
        with self._guard:
            for entry in self._files.values():
                self._drop(entry)
            for found in self._maps.values():
                found.close()
            self._files.clear()
            self._maps.clear()

    def _shrink(self) -> None:
        """Remove the least recently used files; one in use is closed after its last use."""
        while len(self._files) > self._max_files:
            self._drop(self._files.popitem(last=False)[1])

    def _drop(self, entry: OpenFile) -> None:
        entry.is_dropped = True
        if entry.users == 0:
            entry.file.close()
