"""The files and folders of a `ForgettingDisk`: their present state, and their possible states after a crash.

A file has *live* bytes, which every process sees, and *durable* bytes, those of its last sync.  Between them lie versions: each
page as it was seen at some moment since, and each size.  A folder has live and durable names, and the changes that lead from
the durable to the live ones.
"""

from __future__ import annotations

import gc
from enum import Enum
from typing import NamedTuple

from ..disk import SECTOR_SIZE

PAGE_SIZE = 4096
SECTORS = PAGE_SIZE // SECTOR_SIZE


class Version(NamedTuple):
    """The bytes of a page or the size of a file since the change of this number; numbers are unique on a disk."""

    number: int
    data: bytes
    size_bytes: int = -1


class FileNode:
    """A file, independent of its names.

    `pages`: by the first byte of a page, its versions since the last sync, oldest first.  `stuck`: the same for pages whose
    sync failed.  The system takes them for clean, so a later sync does not write them, and their state on the disk is unknown.
    `blocks`: the first bytes of the pages that have blocks.  A store through a map to any other page could meet a full disk,
    which would kill the process, so it is an error.
    """

    __slots__ = ("blocks", "durable", "inode", "is_cut", "live", "modified_ms", "pages", "seen", "sizes", "stuck")

    def __init__(self, inode: int, data: bytes, modified_ms: int) -> None:
        """Create a file whose `data` is durable."""
        self.inode = inode
        self.live = bytearray(data)
        self.durable = data
        self.seen = data
        self.pages: dict[int, list[Version]] = {}
        self.stuck: dict[int, list[Version]] = {}
        self.sizes: list[Version] = []
        self.blocks = {at for at in range(0, len(data), PAGE_SIZE) if any(data[at : at + PAGE_SIZE])}
        self.is_cut = False  # cut since the last sync
        self.modified_ms = modified_ms

    @property
    def is_dirty(self) -> bool:
        """Whether a crash could leave anything but the live state."""
        return bool(self.pages or self.sizes or self.stuck)

    def resize(self, size_bytes: int) -> None:
        """Set the live size; it grows with zeros.  Raises `BufferError` while the file is mapped."""
        if size_bytes < len(self.live):
            del self.live[size_bytes:]
            self.blocks = {at for at in self.blocks if at < size_bytes}
        elif size_bytes > len(self.live):
            try:
                self.live.extend(bytes(size_bytes - len(self.live)))
            except BufferError:  # perhaps a map in a reference cycle of a handled exception, which nobody uses any more
                gc.collect()
                self.live.extend(bytes(size_bytes - len(self.live)))

    def allocate(self, start: int, stop: int) -> None:
        """Give the pages of a range blocks."""
        self.blocks.update(range(start // PAGE_SIZE * PAGE_SIZE, stop, PAGE_SIZE))

    def examine(self, number: int, now_ms: int) -> bool:
        """Record what changed since the last look; return whether anything did.

        A truncation alone adds no versions of the pages after the cut, in case the old size survives; if the file grows again,
        they become zeros.
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
                assert at in self.blocks, f"a store to byte {at} of file {self.inode}, which has no block there"
                self.pages.setdefault(at, []).append(Version(number, new.ljust(PAGE_SIZE, b"\0")))
        self.seen = live
        self.modified_ms = now_ms
        return True

    def touch(self, start: int, stop: int, number: int) -> None:
        """Record a write of unchanged bytes: a page whose sync failed becomes dirty again."""
        for at in self.stuck:
            if start < at + PAGE_SIZE and at < stop:
                page = bytes(self.live[at : at + PAGE_SIZE]).ljust(PAGE_SIZE, b"\0")
                self.pages.setdefault(at, []).append(Version(number, page))

    def sync(self) -> None:
        """Make the live content durable, except pages whose last sync failed and that were not written since."""
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
        """Mark the pages clean; the disk has the old, the new or any version in between."""
        for at, versions in self.pages.items():
            self.stuck.setdefault(at, []).extend(versions)
        self.pages = {}

    def versions(self, at: int) -> list[Version]:
        """Return what a page may be after a crash, oldest first; the first version is the durable one."""
        old = Version(0, self.durable[at : at + PAGE_SIZE].ljust(PAGE_SIZE, b"\0"))
        return [old, *self.stuck.get(at, ()), *self.pages.get(at, ())]

    def size_versions(self) -> list[Version]:
        """Return what the size may be after a crash, oldest first."""
        return [Version(0, b"", len(self.durable)), *self.sizes]


class QuestionKind(Enum):
    """The kind of a change of names in a folder."""

    LINK = "link"
    UNLINK = "unlink"
    RENAME = "rename"


class Change(NamedTuple):
    """One change that may not be on the disk.  `folder` and `name` of a rename are those of the source."""

    number: int
    kind: QuestionKind
    folder: FolderNode
    name: str
    node: FileNode | FolderNode
    to_folder: FolderNode
    to_name: str = ""


class FolderNode:
    """Names, and the file or folder of each."""

    __slots__ = ("durable", "inode", "is_cut", "live", "modified_ms")

    def __init__(self, inode: int, modified_ms: int) -> None:
        """Create a folder without names."""
        self.inode = inode
        self.live: dict[str, FileNode | FolderNode] = {}
        self.durable: dict[str, FileNode | FolderNode] = {}
        self.modified_ms = modified_ms
