"""The interface between the engines and the operating system."""

from __future__ import annotations

import sys
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Protocol, Self


class Kind(Enum):
    """The type of a folder entry.  Symbolic links, pipes and devices are OTHER and are never opened."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"


class Mode(Enum):
    """The mode in which a file is opened."""

    READ = "read"  # must exist
    WRITE = "write"  # must exist
    CREATE = "create"  # created if it does not exist
    DIRECT = "direct"  # must exist; writes bypass the page cache, in whole aligned blocks of DIRECT_BLOCK bytes


DIRECT_BLOCK = 4096
FREE_THREADED = "t" in getattr(sys, "abiflags", "")  # whether CPython was built to run without a GIL
SECTOR_SIZE = 512  # bytes that a disk writes completely or not at all, even in a power failure


class Entry(NamedTuple):
    """One folder entry; a symbolic link is not followed."""

    name: str
    kind: Kind
    size_bytes: int
    modified_ms: int
    device: int
    inode: int


class Writer(NamedTuple):
    """Another process that has a file open for writing."""

    process_id: int
    name: str


class Space(NamedTuple):
    """The size of the file system that holds a path."""

    total_bytes: int  # used, or available to an unprivileged user
    free_bytes: int  # available to an unprivileged user


def own_view(view: memoryview) -> memoryview:
    """Return a view of the same object for a thread of its own; `view` must cover the whole object.

    Slices of one view share a counter, and CPython changes it without a lock (python/cpython#127716): where threads run without
    a GIL, the first slice that is dropped too early ends all of them.  With a GIL the view itself is returned.
    """
    return memoryview(view.obj) if FREE_THREADED else view


class Resource(Protocol):
    """What a `with` block closes; implementations inherit `Closing`."""

    def __enter__(self) -> Self:
        """Return the object itself."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it, whatever ended the block."""

    def close(self) -> None:
        """Release what it holds."""


class Map(Resource, Protocol):
    """A mapped range of a file.

    `view` is writable if the map was created writable; each thread asks for it again.  The memory stays mapped until the last
    view, slice of a view or object based on one is released; `close` only drops this reference.
    """

    @property
    def view(self) -> memoryview:
        """The whole mapped range."""

    def populate(self, start: int, stop: int) -> None:
        """Fault the pages of start..stop in for writing, so that the first store does not fault.  Releases the GIL."""

    def expect_random(self) -> None:
        """Advise the system not to read ahead around a touched page."""

    def expect_sequential(self) -> None:
        """Advise the system to read far ahead of the touched pages."""

    def close(self) -> None:
        """Drop this reference.  Does not sync."""


class File(Resource, Protocol):
    """An open regular file."""

    @property
    def path(self) -> str:
        """The path it was opened with."""

    def size(self) -> int:
        """Return the size in bytes."""

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return `size_bytes` bytes from `offset`; fewer only at the end of the file."""

    def next_data(self, offset: int) -> int:
        """Return the first position at or after `offset` that may hold other bytes than zeros; the size if there is none.

        Return `offset` itself if the system cannot tell.  Callers use it to skip ranges that were allocated but never written.
        """

    def data_end(self, offset: int) -> int:
        """Return the end of the data that `next_data` found, the file's size where the system cannot tell; zeros follow it."""

    def forget_zeros(self, offset: int) -> None:
        """Drop clean cached pages after `offset`, so that `next_data` does not report pages that were only read ahead.

        Advice only.
        """

    def expect_read(self, offset: int, size_bytes: int) -> None:
        """Advise the system to read a range into the page cache now.  Returns without waiting for it."""

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`, or raise."""

    def write_pieces(self, offset: int, pieces: list[memoryview]) -> None:
        """Write all pieces one after another, or raise.  Releases the GIL."""

    def allocate(self, size_bytes: int, start: int = 0) -> None:
        """Give the range from `start` to `size_bytes` real blocks; grow the file if it is shorter.

        New blocks read as zeros. A later store through a map into this range cannot meet a full disk.
        """

    def truncate(self, size_bytes: int) -> None:
        """Set the size; what it grows by has no blocks.

        The caller must not cut below a mapped range: touching the lost pages would kill the process.
        """

    def sync(self) -> None:
        """Return when data, size and allocation are on the disk.  Releases the GIL."""

    def map(self, size_bytes: int, *, writable: bool) -> Map:
        """Map the first `size_bytes`, which must exist in the file."""

    def close(self) -> None:
        """Close the descriptor; maps stay valid."""


class FolderLock(Protocol):
    """A held record lock."""

    def renew(self) -> bool:
        """Take the lock again if this process lost it; return whether it had been lost, as far as the system can tell.

        Raises `StoreLocked` if another process holds it now.
        """

    def release(self) -> None:
        """Release the lock for other processes."""


class Disk(Protocol):
    """The disk of this machine, or a test double."""

    def open(self, path: str, mode: Mode) -> File:
        """Open a regular file; raise `DiskError` if the path is anything else."""

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder, sorted by name."""

    def stat(self, path: str) -> Entry | None:
        """Return the entry of a path, None if it does not exist."""

    def make_folder(self, folder: str) -> None:
        """Create a folder and its parents unless they exist, and sync every folder that got a new name."""

    def sync_folder(self, folder: str) -> None:
        """Return when the folder's names are on the disk."""

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target`, replacing it atomically."""

    def delete(self, path: str) -> None:
        """Unlink a file; maps of it stay valid."""

    def unlink(self, path: str) -> None:
        """Delete only the name of a file: the system takes 50 us a MiB to free the space, which `free_unlinked` waits for."""

    def free_unlinked(self) -> None:
        """Free the space of files that `unlink` deleted.  Releases the GIL."""

    def delete_folder(self, folder: str) -> None:
        """Remove an empty folder."""

    def space(self, path: str) -> Space:
        """Return the space of the file system that holds `path`, which must exist."""

    def lock(self, path: str, *, wait: bool = False) -> FolderLock:
        """Lock byte 0 of the file `path`, created if missing; raise `StoreLocked` if any process, also this one, holds it.

        With `wait` it waits for another process instead.
        """

    def is_locked(self, path: str) -> bool:
        """Return whether any process, this one included, holds the `lock` of the file `path`; take no lock, create no file."""

    def writers(self, folder: str) -> tuple[Writer, ...]:
        """Return the other processes that have files below the folder open for writing, as far as this one can see (Linux)."""

    def now_ms(self) -> int:
        """Return the wall clock time."""

    def sleep(self, pause_s: float) -> None:
        """Pause the calling thread, so that another writer can proceed."""
