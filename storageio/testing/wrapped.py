"""A disk around another, which sees every call before it is made."""

from __future__ import annotations

import errno as errnos
import os
from collections import Counter
from typing import NamedTuple

from ..disk import Disk, Entry, File, FolderLock, Map, Mode, Space, Writer
from ..errors import DiskError, DiskFull
from ..real_disk import REAL_DISK


class Call(NamedTuple):
    """One call as a test sees it."""

    operation: str
    path: str


class WrappedMap:
    """A map whose calls are seen."""

    def __init__(self, disk: WrappedDisk, inner: Map, path: str) -> None:
        """Around `inner`."""
        self._disk = disk
        self._inner = inner
        self._path = path

    @property
    def view(self) -> memoryview:
        """The inner map's."""
        return self._inner.view

    def populate(self, start: int, stop: int) -> None:
        """Seen, then done."""
        self._disk.before("populate", self._path)
        self._inner.populate(start, stop)

    def expect_random(self) -> None:
        """Advice is not counted: it cannot fail."""
        self._inner.expect_random()

    def close(self) -> None:
        """Not counted: it cannot fail."""
        self._inner.close()


class WrappedFile:
    """A file whose calls are seen."""

    def __init__(self, disk: WrappedDisk, inner: File) -> None:
        """Around `inner`."""
        self._disk = disk
        self._inner = inner

    @property
    def path(self) -> str:
        """The inner file's."""
        return self._inner.path

    def size(self) -> int:
        """Seen, then done."""
        self._disk.before("size", self.path)
        return self._inner.size()

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Seen, then done."""
        self._disk.before("read", self.path)
        return self._inner.read(offset, size_bytes)

    def next_data(self, offset: int) -> int:
        """Seen, then done."""
        self._disk.before("next data", self.path)
        return self._inner.next_data(offset)

    def forget_zeros(self, offset: int) -> None:
        """Done."""
        self._inner.forget_zeros(offset)

    def data_end(self, offset: int) -> int:
        """Seen, then done."""
        self._disk.before("next data", self.path)
        return self._inner.data_end(offset)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Seen, then done."""
        self._disk.before("write", self.path)
        self._inner.write(offset, data)

    def write_pieces(self, offset: int, pieces: list[memoryview]) -> None:
        """Seen as a write, then done."""
        self._disk.before("write", self.path)
        self._inner.write_pieces(offset, pieces)

    def allocate(self, size_bytes: int) -> None:
        """Seen, then done."""
        self._disk.before("allocate", self.path)
        self._inner.allocate(size_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Seen, then done."""
        self._disk.before("truncate", self.path)
        self._inner.truncate(size_bytes)

    def sync(self) -> None:
        """Seen, then done."""
        self._disk.before("sync", self.path)
        self._inner.sync()

    def map(self, size_bytes: int, *, writable: bool) -> Map:
        """Seen, then done."""
        self._disk.before("map", self.path)
        return WrappedMap(self._disk, self._inner.map(size_bytes, writable=writable), self.path)

    def close(self) -> None:
        """Not counted: nothing can be done about a failed close."""
        self._inner.close()


class WrappedDisk:
    """Every call goes through `before`, which may raise."""

    def __init__(self, inner: Disk = REAL_DISK) -> None:
        """Around `inner`."""
        self.inner = inner

    def before(self, operation: str, path: str) -> None:
        """Called first, with the operation's name."""

    def open(self, path: str, mode: Mode) -> File:
        """Seen as `open` or `create`."""
        self.before("create" if mode is Mode.CREATE else "open", path)
        return WrappedFile(self, self.inner.open(path, mode))

    def list(self, folder: str) -> list[Entry]:
        """Seen, then done."""
        self.before("list", folder)
        return self.inner.list(folder)

    def stat(self, path: str) -> Entry | None:
        """Seen, then done."""
        self.before("stat", path)
        return self.inner.stat(path)

    def make_folder(self, folder: str) -> None:
        """Seen, then done."""
        self.before("make folder", folder)
        self.inner.make_folder(folder)

    def sync_folder(self, folder: str) -> None:
        """Seen, then done."""
        self.before("sync folder", folder)
        self.inner.sync_folder(folder)

    def rename(self, source: str, target: str) -> None:
        """Seen, then done."""
        self.before("rename", source)
        self.inner.rename(source, target)

    def delete(self, path: str) -> None:
        """Seen, then done."""
        self.before("delete", path)
        self.inner.delete(path)

    def delete_folder(self, folder: str) -> None:
        """Seen, then done."""
        self.before("delete folder", folder)
        self.inner.delete_folder(folder)

    def space(self, path: str) -> Space:
        """Seen, then done."""
        self.before("space", path)
        return self.inner.space(path)

    def lock(self, path: str, *, wait: bool = False) -> FolderLock:
        """Seen, then done."""
        self.before("lock", path)
        return self.inner.lock(path, wait=wait)

    def is_locked(self, path: str) -> bool:
        """Not counted: it changes nothing."""
        return self.inner.is_locked(path)

    def writers(self, folder: str) -> tuple[Writer, ...]:
        """Not counted: it cannot fail."""
        return self.inner.writers(folder)

    def now_ms(self) -> int:
        """Not counted: it cannot fail."""
        return self.inner.now_ms()

    def sleep(self, pause_s: float) -> None:
        """Not counted: it cannot fail."""
        self.inner.sleep(pause_s)


class CountingDisk(WrappedDisk):
    """Remembers every call."""

    def __init__(self, inner: Disk = REAL_DISK) -> None:
        """Around `inner`."""
        super().__init__(inner)
        self.calls: list[Call] = []

    def before(self, operation: str, path: str) -> None:
        """Written down."""
        self.calls.append(Call(operation, path))

    @property
    def counts(self) -> Counter[str]:
        """How often each operation was called."""
        return Counter(call.operation for call in self.calls)


class FailingDisk(CountingDisk):
    """Fails call number `fail_at` (from 1), once or for ever after."""

    def __init__(
        self, fail_at: int, *, errno: int = errnos.EIO, for_ever: bool = False, only: str = "", inner: Disk = REAL_DISK
    ) -> None:
        """`only`: count and fail calls of this operation alone."""
        super().__init__(inner)
        self.fail_at = fail_at
        self.errno = errno
        self.for_ever = for_ever
        self.only = only

    def before(self, operation: str, path: str) -> None:
        """The N-th raises what the real disk would."""
        if self.only and operation != self.only:
            return
        super().before(operation, path)
        number = len(self.calls)
        if number == self.fail_at or (self.for_ever and number > self.fail_at):
            kind = DiskFull if self.errno in (errnos.ENOSPC, errnos.EDQUOT) else DiskError
            raise kind(operation, path, self.errno, os.strerror(self.errno))
