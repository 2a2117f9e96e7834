"""What an engine may ask of the operating system."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol


class Kind(Enum):
    """What a name in a folder is.  Links, pipes and devices are OTHER and never opened."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"


class Mode(Enum):
    """How a file is opened."""

    READ = "read"  # must exist
    WRITE = "write"  # must exist
    CREATE = "create"  # is made if it is not there
    DIRECT = "direct"  # must exist; for writing past the page cache, in whole aligned blocks of DIRECT_BLOCK bytes


DIRECT_BLOCK = 4096
SECTOR_SIZE = 512  # bytes that a disk writes whole or not at all, whatever loses its power


class Entry(NamedTuple):
    """One name in a folder, not followed when it is a link."""

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
    """Of the file system that a path lies on."""

    total_bytes: int
    free_bytes: int  # to an ordinary user


class Map(Protocol):
    """A stretch of a file in memory.

    `view` is writable if the map was asked for so.  The memory lives until the last view, slice of a view or object made
    on one is gone; `close` only drops this reference.
    """

    @property
    def view(self) -> memoryview:
        """The whole map."""

    def populate(self, start: int, stop: int) -> None:
        """Have the pages of start..stop ready for writing, so that the first store does not fault.  Releases the GIL."""

    def expect_random(self) -> None:
        """Say that neighbours of a touched page will not be wanted."""

    def close(self) -> None:
        """Drop this reference.  Does not sync."""


class File(Protocol):
    """An open regular file."""

    @property
    def path(self) -> str:
        """As it was opened."""

    def size(self) -> int:
        """Bytes."""

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Fewer bytes only at the file's end."""

    def next_data(self, offset: int) -> int:
        """The first place at or behind `offset` that may hold something but zeros; the file's size when there is none.

        `offset` itself where the system cannot tell: what was allocated and never written need not be read to know it.
        """

    def data_end(self, offset: int) -> int:
        """Where what `next_data` found ends: zeros follow, as far as the system can tell; else the file's size."""

    def forget_zeros(self, offset: int) -> None:
        """Before `next_data`: what was read ahead behind `offset` and never written looks like data while it is in memory.

        Advice only.
        """

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """All of it, or an error."""

    def write_pieces(self, offset: int, pieces: list[memoryview]) -> None:
        """All of them, one behind the other, or an error.  Releases the GIL."""

    def allocate(self, size_bytes: int) -> None:
        """Grow to this size with real blocks, reading as zeros: a later store through a map cannot meet a full disk."""

    def truncate(self, size_bytes: int) -> None:
        """Set the size.  Never below what is mapped: touching the lost pages would kill the process."""

    def sync(self) -> None:
        """Return when data, size and allocation are on the disk.  Releases the GIL."""

    def map(self, size_bytes: int, *, writable: bool) -> Map:
        """The first `size_bytes`, which the file must have."""

    def close(self) -> None:
        """Give the descriptor back; maps live on."""


class FolderLock(Protocol):
    """A held record lock."""

    def renew(self) -> bool:
        """Take the lock again where this process lost it; return whether it had, as far as the system tells.

        Raises `StoreLocked` where another process has it now.
        """

    def release(self) -> None:
        """Let others in."""


class Disk(Protocol):
    """The machine's disk, or one that a test puts in its place."""

    def open(self, path: str, mode: Mode) -> File:
        """A regular file; anything else in its place is a `DiskError`."""

    def list(self, folder: str) -> list[Entry]:
        """What lies in a folder, sorted by name."""

    def stat(self, path: str) -> Entry | None:
        """One entry, None when nothing is there."""

    def make_folder(self, folder: str) -> None:
        """With its parents; no error when it is there.  Every folder that got a new name in it is synced."""

    def sync_folder(self, folder: str) -> None:
        """Return when the folder's names are on the disk."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` at once."""

    def delete(self, path: str) -> None:
        """Take a file's name away; maps of it live on."""

    def delete_folder(self, folder: str) -> None:
        """An empty one."""

    def space(self, path: str) -> Space:
        """Of the file system that `path`, which exists, lies on."""

    def lock(self, path: str, *, wait: bool = False) -> FolderLock:
        """Hold byte 0 of the file `path`, made if need be; `StoreLocked` when somebody, this process included, has it."""

    def is_locked(self, path: str) -> bool:
        """Return whether somebody, this process included, holds `lock` of the file `path`.  Takes no lock and makes no file."""

    def writers(self, folder: str) -> tuple[Writer, ...]:
        """Other processes that have files below the folder open for writing, as far as this one may see (Linux alone)."""

    def now_ms(self) -> int:
        """Wall time."""

    def sleep(self, pause_s: float) -> None:
        """Let whoever else writes go on for so long."""
