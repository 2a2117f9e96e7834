"""What a disk that forgets remembers of one file and of one folder: how it is, and how it may be after a crash.

A file is *live* bytes, which every process sees, and *durable* ones, which were there when it was last synced.  In between
lie versions: each page as it was seen at some moment since, and each size.  A folder has live and durable names, and the
changes that lead from the one to the other.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..disk import SECTOR_SIZE

PAGE_SIZE = 4096
SECTORS = PAGE_SIZE // SECTOR_SIZE


class Version(NamedTuple):
    """A page's bytes, or a file's size, since the change of this number; numbers count over the whole disk."""

    number: int
    data: bytes
    size_bytes: int = -1


class FileNode:
    """A file, whatever its names.

    `pages`: by the page's first byte, what it was since the last sync, oldest first.  `stuck`: the same of pages whose sync
    failed: the system takes them for clean, so that a later sync does not write them, and nobody knows what the disk has.
    """

    __slots__ = ("durable", "inode", "is_cut", "live", "modified_ms", "pages", "seen", "sizes", "stuck")

    def __init__(self, inode: int, data: bytes, modified_ms: int) -> None:
        """All of `data` is durable."""
        self.inode = inode
        self.live = bytearray(data)
        self.durable = data
        self.seen = data
        self.pages: dict[int, list[Version]] = {}
        self.stuck: dict[int, list[Version]] = {}
        self.sizes: list[Version] = []
        self.is_cut = False  # since the last sync
        self.modified_ms = modified_ms

    @property
    def is_dirty(self) -> bool:
        """Whether a crash could leave anything but what is live."""
        return bool(self.pages or self.sizes or self.stuck)

    def resize(self, size_bytes: int) -> None:
        """Zeros where it grows.  A file that is mapped keeps its size: in a real one a lost page kills the process."""
        if size_bytes < len(self.live):
            del self.live[size_bytes:]
        elif size_bytes > len(self.live):
            self.live.extend(bytes(size_bytes - len(self.live)))

    def look(self, number: int, now_ms: int) -> bool:
        """Take note of what changed since the last look; whether anything did.

        A truncation alone leaves the bytes behind it as they are, should the size come back; zeros stand there once the file
        grows again.
        """
        if self.live == self.seen:
            return False
        live, seen = bytes(self.live), self.seen
        if len(live) != len(seen):
            self.sizes.append(Version(number, b"", len(live)))
        self.is_cut = self.is_cut or len(live) < len(seen)
        stop = min(len(live), len(seen)) if len(live) < len(seen) else len(live)
        for at in range(0, stop, PAGE_SIZE):
            new, old = live[at : min(at + PAGE_SIZE, stop)], seen[at : min(at + PAGE_SIZE, stop)]
            if self.is_cut and len(old) < len(new):
                self.pages.setdefault(at, []).append(Version(number, old.ljust(PAGE_SIZE, b"\0")))
            if new.ljust(PAGE_SIZE, b"\0") != old.ljust(PAGE_SIZE, b"\0"):
                self.pages.setdefault(at, []).append(Version(number, new.ljust(PAGE_SIZE, b"\0")))
        self.seen = live
        self.modified_ms = now_ms
        return True

    def touch(self, start: int, stop: int, number: int) -> None:
        """Written to with the bytes that were there: a page whose sync failed is dirty again."""
        for at in self.stuck:
            if start < at + PAGE_SIZE and at < stop:
                page = bytes(self.live[at : at + PAGE_SIZE]).ljust(PAGE_SIZE, b"\0")
                self.pages.setdefault(at, []).append(Version(number, page))

    def sync(self) -> None:
        """What is live is durable; but not a page whose last sync failed and that was not written to since."""
        durable = bytearray(self.live)
        for at in [at for at in self.stuck if at in self.pages]:
            del self.stuck[at]
        for at in self.stuck:
            durable[at : at + PAGE_SIZE] = self.durable[at : at + PAGE_SIZE].ljust(PAGE_SIZE, b"\0")[: len(durable) - at]
        self.durable = bytes(durable)
        self.pages = {}
        self.sizes = []
        self.is_cut = False

    def fail_sync(self) -> None:
        """The pages are clean now, and old, new or anything in between on the disk."""
        for at, versions in self.pages.items():
            self.stuck.setdefault(at, []).extend(versions)
        self.pages = {}

    def versions(self, at: int) -> list[Version]:
        """What a page may be after a crash, oldest first; the first is the durable one."""
        old = Version(0, self.durable[at : at + PAGE_SIZE].ljust(PAGE_SIZE, b"\0"))
        return [old, *self.stuck.get(at, ()), *self.pages.get(at, ())]

    def size_versions(self) -> list[Version]:
        """The same of the size."""
        return [Version(0, b"", len(self.durable)), *self.sizes]


class Kind(Enum):
    """A change of a folder's names."""

    LINK = "link"
    UNLINK = "unlink"
    RENAME = "rename"


class Change(NamedTuple):
    """One change that is not on the disk for sure.  Of a rename `folder` and `name` are the source's."""

    number: int
    kind: Kind
    folder: FolderNode
    name: str
    node: FileNode | FolderNode
    to_folder: FolderNode
    to_name: str = ""


class FolderNode:
    """Names, each with what it stands for."""

    __slots__ = ("durable", "inode", "is_cut", "live", "modified_ms")

    def __init__(self, inode: int, modified_ms: int) -> None:
        """Empty."""
        self.inode = inode
        self.live: dict[str, FileNode | FolderNode] = {}
        self.durable: dict[str, FileNode | FolderNode] = {}
        self.modified_ms = modified_ms
