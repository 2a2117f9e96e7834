"""A read-only `Disk` over fsspec: S3, HTTP, HDFS and every other file system with a driver."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from storageio import (
    REAL_DISK,
    Closing,
    Disk,
    DiskError,
    Entry,
    Kind,
    MissingExtra,
    Mode,
    StoreReadOnly,
    UnknownStore,
    Writer,
    needs_extra,
)

HADOOP = ("hdfs://", "viewfs://")
_KINDS = {"file": Kind.FILE, "directory": Kind.FOLDER}


def is_remote(path: str) -> bool:
    """Return whether fsspec reads a path.  A `file:` URL is a local path.

    >>> is_remote("s3://bucket/store"), is_remote("/data/store")
    (True, False)
    """
    return "://" in path and not path.startswith("file://")


def local_path(path: str) -> str:
    """Strip `file:` from a local path; Spark and Hadoop write it with one slash or three.

    >>> local_path("file:/data/store"), local_path("file:///data/store"), local_path("data")
    ('/data/store', '/data/store', 'data')
    """
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:/") else path


def disk_for(path: str) -> Disk:
    """Return the local disk, or one that reads through fsspec."""
    return ObjectDisk() if is_remote(path) else REAL_DISK


def match(pattern: str) -> list[str]:
    """Return the paths that match a glob, sorted."""
    with _named("list", pattern):
        system, path = _system(pattern)
        return sorted(system.unstrip_protocol(found) for found in system.glob(path))


class ObjectDisk:
    """A `Disk` that only reads; every other call raises `StoreReadOnly`."""

    def open(self, path: str, mode: Mode) -> Any:
        """Open a file; each read fetches only its range."""
        if mode is not Mode.READ:
            self._refuse()
        with _named("open", path):
            system, name = _system(path)
            return _ObjectFile(system, name, path, int(system.size(name)))

    def list(self, folder: str) -> list[Entry]:
        """List names, kinds and sizes of a folder's entries."""
        with _named("list", folder):
            system, path = _system(folder)
            rows = system.ls(path, detail=True)
        found = {name: row for row in rows if (name := str(row["name"]).rstrip("/").rpartition("/")[2])}
        return [_entry(name, row) for name, row in sorted(found.items())]

    def stat(self, path: str) -> Entry | None:
        """Return the entry at a path, or None."""
        with _named("stat", path):
            system, name = _system(path.removesuffix("/."))
            try:
                return _entry(name.rstrip("/").rpartition("/")[2], system.info(name))
            except FileNotFoundError:
                return None

    def is_locked(self, path: str) -> bool:
        """Return False: no process writes to an object store."""
        return False

    def writers(self, folder: str) -> tuple[Writer, ...]:
        """Return no writers: an object store has no locks."""
        return ()

    def now_ms(self) -> int:
        """Return the local clock's time in milliseconds."""
        return REAL_DISK.now_ms()

    def sleep(self, pause_s: float) -> None:
        """Sleep on the local clock."""
        REAL_DISK.sleep(pause_s)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StoreReadOnly("an object store is opened for reading only; use a mounted folder for writing")

    make_folder = sync_folder = rename = delete = unlink = free_unlinked = delete_folder = space = lock = _refuse


class _ObjectFile(Closing):
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
        """Do nothing: there is no handle to close."""


def _system(path: str) -> tuple[Any, str]:
    with needs_extra("spark"):
        from fsspec.core import url_to_fs
    try:
        found: tuple[Any, str] = url_to_fs(path)
    except ImportError as error:
        raise MissingExtra(f"{path}: {_driver(path, error)}, where the driver and every executor run") from error
    except OSError as error:
        if path.startswith(HADOOP):
            hadoop = "reading hdfs:// needs Hadoop's libhdfs: set HADOOP_HOME and CLASSPATH, or mount the folder"
            raise MissingExtra(f"{path}: {hadoop} ({str(error).partition(chr(10))[0]})") from error
        raise
    except ValueError as error:
        raise UnknownStore(f"{path}: fsspec has no driver for {path.partition('://')[0]}://") from error
    return found


def _driver(path: str, error: ImportError) -> str:
    """Return how to install the driver of a path's protocol; fsspec knows the package of each, or what its own driver lacks."""
    from fsspec.registry import known_implementations

    protocol = path.partition("://")[0]
    package = str(known_implementations.get(protocol, {}).get("class", "fsspec")).partition(".")[0]
    return f"reading {protocol}:// needs " + (str(error) if package == "fsspec" else f"{package}: pip install {package}")


def _entry(name: str, row: dict[str, Any]) -> Entry:
    return Entry(name, _KINDS.get(row["type"], Kind.OTHER), int(row.get("size") or 0), 0, 0, 0)


@contextmanager
def _named(operation: str, path: str) -> Iterator[None]:
    """Convert a driver's error to `DiskError` with operation and path."""
    try:
        yield
    except (MissingExtra, UnknownStore, DiskError):
        raise
    except Exception as error:
        number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        if isinstance(error, FileNotFoundError):
            number = errno.ENOENT
        raise DiskError(operation, path, number, f"{type(error).__name__}: {error}") from error
