"""A `Disk` for reading through fsspec: S3, HTTP, HDFS and whatever else has a driver.  Nothing is written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from storageio import REAL_DISK, Disk, DiskError, Entry, Kind, MissingExtra, Mode, StoreReadOnly, Writer

_KINDS = {"file": Kind.FILE, "directory": Kind.FOLDER}


def is_remote(path: str) -> bool:
    """Whether a path is read through fsspec.  `file:` is a local path with more letters.

    >>> is_remote("s3://bucket/store"), is_remote("/data/store")
    (True, False)
    """
    return "://" in path and not path.startswith("file://")


def local_path(path: str) -> str:
    """Without `file:`, as Spark and Hadoop write a local path: with one slash behind it, or three.

    >>> local_path("file:/data/store"), local_path("file:///data/store"), local_path("data")
    ('/data/store', '/data/store', 'data')
    """
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:/") else path


def disk_for(path: str) -> Disk:
    """The machine's own disk, or one that reads through fsspec."""
    return ObjectDisk() if is_remote(path) else REAL_DISK


def match(pattern: str) -> list[str]:
    """What a glob stands for there, sorted."""
    with _named("list", pattern):
        system, path = _system(pattern)
        return sorted(system.unstrip_protocol(found) for found in system.glob(path))


class ObjectDisk:
    """Reads only; every other call of `Disk` raises `StoreReadOnly`."""

    def open(self, path: str, mode: Mode) -> Any:
        """A file whose stretches are fetched when they are read."""
        if mode is not Mode.READ:
            self._refuse()
        with _named("open", path):
            system, name = _system(path)
            return _ObjectFile(system, name, path, int(system.size(name)))

    def list(self, folder: str) -> list[Entry]:
        """Names, kinds and sizes."""
        with _named("list", folder):
            system, path = _system(folder)
            rows = system.ls(path, detail=True)
        found = {name: row for row in rows if (name := str(row["name"]).rstrip("/").rpartition("/")[2])}
        return [_entry(name, row) for name, row in sorted(found.items())]

    def stat(self, path: str) -> Entry | None:
        """None when nothing is there."""
        with _named("stat", path):
            system, name = _system(path.removesuffix("/."))
            try:
                return _entry(name.rstrip("/").rpartition("/")[2], system.info(name))
            except FileNotFoundError:
                return None

    def is_locked(self, path: str) -> bool:
        """Nobody writes to an object store."""
        return False

    def writers(self, folder: str) -> tuple[Writer, ...]:
        """Nobody can be seen."""
        return ()

    def now_ms(self) -> int:
        """The machine's."""
        return REAL_DISK.now_ms()

    def sleep(self, pause_s: float) -> None:
        """As on the machine."""
        REAL_DISK.sleep(pause_s)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StoreReadOnly("an object store is only read")

    make_folder = sync_folder = rename = delete = delete_folder = space = lock = _refuse


class _ObjectFile:
    def __init__(self, system: Any, name: str, path: str, size_bytes: int) -> None:
        self._system = system
        self._name = name
        self.path = path
        self._size = size_bytes

    def size(self) -> int:
        return self._size

    def read(self, offset: int, size_bytes: int) -> bytes:
        stop = min(self._size, offset + size_bytes)
        if offset >= stop:
            return b""
        with _named("read", self.path):
            return bytes(self._system.cat_file(self._name, start=offset, end=stop))

    def close(self) -> None:
        """Nothing is held."""


def _system(path: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingExtra("reading an object store needs fsspec: pip install 'brokerstore[spark]'") from error
    found: tuple[Any, str] = url_to_fs(path)
    return found


def _entry(name: str, row: dict[str, Any]) -> Entry:
    return Entry(name, _KINDS.get(row["type"], Kind.OTHER), int(row.get("size") or 0), 0, 0, 0)


@contextmanager
def _named(operation: str, path: str) -> Iterator[None]:
    """Drivers raise errors of many kinds: each becomes ours, with the path in it."""
    try:
        yield
    except (MissingExtra, DiskError):
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        if isinstance(error, FileNotFoundError):
            number = errno.ENOENT
        raise DiskError(operation, path, number, f"{type(error).__name__}: {error}") from error
