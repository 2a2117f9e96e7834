"""A disk that wraps another and passes every call through a hook first."""

from __future__ import annotations

import errno as errnos
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from ..closing import Closing
from ..disk import Disk, Entry, File, FolderLock, Map, Mode, Space, Writer
from ..errors import DiskError, DiskFull
from ..real_disk import REAL_DISK


class Call(NamedTuple):
    """One call: operation and path."""

    operation: str
    path: str


OPERATIONS = {"data_end": "next data", "write_pieces": "write"}  # what the hook receives, if it is not the name of the call


class WrappedFile(Closing):
    """A file or a map whose calls go through the hook."""

    def __init__(self, disk: WrappedDisk, inner: Any, path: str) -> None:
        """Wrap a file or a map of it."""
        self._disk = disk
        self._inner = inner
        self.path = path

    @property
    def view(self) -> memoryview:
        """The view of a map."""
        view: memoryview = self._inner.view
        return view

    def map(self, size_bytes: int, *, writable: bool) -> Map:
        """Run the hook, then map a file."""
        self._disk.before("map", self.path)
        return cast(Map, WrappedFile(self._disk, self._inner.map(size_bytes, writable=writable), self.path))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a call of the inner object, with the hook before it."""
        call = getattr(self._inner, name)

        def hooked(*arguments: Any, **options: Any) -> Any:
            operation = OPERATIONS.get(name, name.replace("_", " "))
            if operation.startswith("expect "):  # advice cannot fail
                self._disk.advised(operation, self.path)
            elif operation != "forget zeros":
                self._disk.before(operation, self.path)
            return call(*arguments, **options)

        return hooked

    def close(self) -> None:
        """Close without the hook: a failed close cannot be handled."""
        self._inner.close()


class WrappedDisk:
    """A disk whose calls go through `before`, which may raise."""

    def __init__(self, inner: Disk = REAL_DISK) -> None:
        """Wrap the disk `inner`."""
        self.inner = inner

    def before(self, operation: str, path: str) -> None:
        """Receive the operation's name before the call; override this."""

    def advised(self, advice: str, path: str) -> None:
        """Receive the advice given for a map; override this."""

    def open(self, path: str, mode: Mode) -> File:
        """Run the hook as `open` or `create`, then open."""
        self.before("create" if mode is Mode.CREATE else "open", path)
        return cast(File, WrappedFile(self, self.inner.open(path, mode), path))

    def list(self, folder: str) -> list[Entry]:
        """Run the hook, then list."""
        self.before("list", folder)
        return self.inner.list(folder)

    def stat(self, path: str) -> Entry | None:
        """Run the hook, then stat."""
        self.before("stat", path)
        return self.inner.stat(path)

    def make_folder(self, folder: str) -> None:
        """Run the hook, then create."""
        self.before("make folder", folder)
        self.inner.make_folder(folder)

    def sync_folder(self, folder: str) -> None:
        """Run the hook, then sync."""
        self.before("sync folder", folder)
        self.inner.sync_folder(folder)

    def rename(self, source: str, target: str) -> None:
        """Run the hook, then rename."""
        self.before("rename", source)
        self.inner.rename(source, target)

    def delete(self, path: str) -> None:
        """Run the hook, then delete."""
        self.before("delete", path)
        self.inner.delete(path)

    def unlink(self, path: str) -> None:
        """Run the hook as `delete`, then unlink."""
        self.before("delete", path)
        self.inner.unlink(path)

    def free_unlinked(self) -> None:
        """Free without the hook: it cannot fail."""
        self.inner.free_unlinked()

    def delete_folder(self, folder: str) -> None:
        """Run the hook, then delete."""
        self.before("delete folder", folder)
        self.inner.delete_folder(folder)

    def space(self, path: str) -> Space:
        """Run the hook, then return the space."""
        self.before("space", path)
        return self.inner.space(path)

    def lock(self, path: str, *, wait: bool = False) -> FolderLock:
        """Run the hook, then lock."""
        self.before("lock", path)
        return self.inner.lock(path, wait=wait)

    def is_locked(self, path: str) -> bool:
        """Ask without the hook: it changes nothing."""
        return self.inner.is_locked(path)

    def writers(self, folder: str) -> tuple[Writer, ...]:
        """Ask without the hook: it cannot fail."""
        return self.inner.writers(folder)

    def now_ms(self) -> int:
        """Ask without the hook: it cannot fail."""
        return self.inner.now_ms()

    def sleep(self, pause_s: float) -> None:
        """Sleep without the hook: it cannot fail."""
        self.inner.sleep(pause_s)


class CountingDisk(WrappedDisk):
    """A disk that records every call."""

    def __init__(self, inner: Disk = REAL_DISK) -> None:
        """Wrap the disk `inner`."""
        super().__init__(inner)
        self.calls: list[Call] = []
        self.advice: list[Call] = []  # not among the calls, because it cannot fail

    def before(self, operation: str, path: str) -> None:
        """Record the operation and the path."""
        self.calls.append(Call(operation, path))

    def advised(self, advice: str, path: str) -> None:
        """Record the advice and the path."""
        self.advice.append(Call(advice, path))

    @property
    def counts(self) -> Counter[str]:
        """The number of calls of each operation."""
        return Counter(call.operation for call in self.calls)


class FailingDisk(CountingDisk):
    """A disk that fails call number `fail_at` (from 1), once or from then on."""

    def __init__(
        self, fail_at: int, *, errno: int = errnos.EIO, for_ever: bool = False, only: str = "", inner: Disk = REAL_DISK
    ) -> None:
        """Count and fail only calls of the operation `only`, if given."""
        super().__init__(inner)
        self.fail_at = fail_at
        self.errno = errno
        self.for_ever = for_ever
        self.only = only

    def before(self, operation: str, path: str) -> None:
        """Raise the error of a real disk at the N-th call."""
        if self.only and operation != self.only:
            return
        super().before(operation, path)
        number = len(self.calls)
        if number == self.fail_at or (self.for_ever and number > self.fail_at):
            kind = DiskFull if self.errno in (errnos.ENOSPC, errnos.EDQUOT) else DiskError
            raise kind(operation, path, self.errno, os.strerror(self.errno))
