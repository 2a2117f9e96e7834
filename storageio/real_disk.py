"""The machine's own disk."""

from __future__ import annotations

import contextlib
import errno as errnos
import mmap
import os
import shutil
import stat
import struct
import sys
import threading
import time
from collections.abc import Iterator

from .disk import Entry, File, FolderLock, Kind, Map, Mode, Space, Writer
from .errors import DiskError, DiskFull, StoreLocked, UnsupportedPlatform
from .processes import writing_processes

PAGE_SIZE = mmap.PAGESIZE
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE (Linux 5.14); the mmap module does not name it
_FULL = {errnos.ENOSPC, errnos.EDQUOT}
_IS_WINDOWS = sys.platform == "win32"
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_NO_ACCESS_TIME = getattr(os, "O_NOATIME", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_ZEROS = bytes(1 << 20)


@contextlib.contextmanager
def _named(operation: str, path: str) -> Iterator[None]:
    """Turn the standard library's error into ours, with the file in it."""
    try:
        yield
    except OSError as error:
        raise disk_error(operation, path, error) from error
    except ValueError as error:  # a NUL in the name
        raise DiskError(operation, repr(path), errnos.EINVAL, str(error)) from error


def disk_error(operation: str, path: str, error: OSError) -> DiskError:
    """Our error for the operating system's."""
    number = error.errno or 0
    kind = DiskFull if number in _FULL else DiskError
    return kind(operation, path, number, error.strerror or str(error))


class RealMap:
    """A shared map of a file."""

    def __init__(self, descriptor: int, path: str, size_bytes: int, writable: bool) -> None:
        """Python's mmap keeps a duplicate of `descriptor`."""
        self._path = path
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._mmap: mmap.mmap | None = mmap.mmap(descriptor, size_bytes, access=access)
        self._view: memoryview | None = memoryview(self._mmap)
        self._address = 0

    @property
    def view(self) -> memoryview:
        """The whole map."""
        assert self._view is not None, "a closed map was used"
        return self._view

    def populate(self, start: int, stop: int) -> None:
        """Best effort: a kernel without the call faults page by page later."""
        stop = min(stop, len(self._view) if self._view is not None else 0)
        if self._view is None or stop <= start:
            return
        import ctypes  # 10 ms, and only writers need it

        if not self._address:
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._view))
        first = start // PAGE_SIZE * PAGE_SIZE
        place, size = ctypes.c_void_p(self._address + first), ctypes.c_size_t(stop - first)
        ctypes.CDLL(None).madvise(place, size, ctypes.c_int(_POPULATE_WRITE))

    def expect_random(self) -> None:
        """Advice only, so a kernel that refuses it is no error."""
        if self._mmap is not None and hasattr(mmap, "MADV_RANDOM"):
            with contextlib.suppress(OSError):
                self._mmap.madvise(mmap.MADV_RANDOM)

    def close(self) -> None:
        """The memory goes when the last view goes."""
        self._view = None
        self._mmap = None


class RealFile:
    """A descriptor."""

    def __init__(self, path: str, descriptor: int) -> None:
        """Made by `RealDisk.open`."""
        self._path = path
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        """As it was opened."""
        return self._path

    def size(self) -> int:
        """From the descriptor."""
        with _named("stat", self._path):
            return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size_bytes: int) -> bytes:
        """One call where the kernel gives all at once."""
        parts = []
        with _named("read", self._path):
            while size_bytes > 0:
                part = self._read_part(offset, size_bytes)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                size_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_part(self, offset: int, size_bytes: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size_bytes, offset)
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        return os.read(self._descriptor, size_bytes)

    def next_data(self, offset: int) -> int:
        """Asked of the file system."""
        return self._seek("SEEK_DATA", offset, offset)

    def data_end(self, offset: int) -> int:
        """Asked of the file system."""
        return self._seek("SEEK_HOLE", offset, self.size())

    def forget_zeros(self, offset: int) -> None:
        """Pages that are as on the disk leave the memory; what was written and is not there yet stays."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, offset, 0, os.POSIX_FADV_DONTNEED)

    def _seek(self, what: str, offset: int, unknown: int) -> int:
        """Where data or a hole begins; `unknown` where the system cannot tell, the file's size when there is none."""
        with _named("next data", self._path):
            size = os.fstat(self._descriptor).st_size
            if offset >= size or not hasattr(os, what):
                return min(unknown, size)
            try:
                return os.lseek(self._descriptor, offset, getattr(os, what))
            except OSError as error:
                if error.errno == errnos.ENXIO:  # nothing but holes from there on
                    return size
                if error.errno == errnos.EINVAL:
                    return unknown
                raise

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Short writes go on where they stopped."""
        left = memoryview(data).cast("B")
        with _named("write", self._path):
            while left:
                done = os.pwrite(self._descriptor, left, offset)
                left = left[done:]
                offset += done

    def write_pieces(self, offset: int, pieces: list[memoryview]) -> None:
        """One call where the kernel takes all at once."""
        left = list(pieces)
        try:  # not `_named`: a synchronous put waits for this
            while left:
                done = os.pwritev(self._descriptor, left, offset) if hasattr(os, "pwritev") else self._write_first(left, offset)
                offset += done
                while left and done >= len(left[0]):
                    done -= len(left.pop(0))
                if done:
                    left[0] = left[0][done:]
        except OSError as error:
            raise disk_error("write", self._path, error) from error

    def _write_first(self, pieces: list[memoryview], offset: int) -> int:
        return os.pwrite(self._descriptor, pieces[0], offset)

    def allocate(self, size_bytes: int) -> None:
        """`posix_fallocate`, or zeros where the platform has none."""
        with _named("allocate", self._path):
            if hasattr(os, "posix_fallocate"):
                if size_bytes:
                    os.posix_fallocate(self._descriptor, 0, size_bytes)
                return
        for offset in range(self.size(), size_bytes, len(_ZEROS)):
            self.write(offset, _ZEROS[: size_bytes - offset])

    def truncate(self, size_bytes: int) -> None:
        """Sparse when it grows."""
        with _named("truncate", self._path):
            os.ftruncate(self._descriptor, size_bytes)

    def sync(self) -> None:
        """`fdatasync`, or what the platform has that reaches the medium."""
        try:
            if hasattr(os, "fdatasync"):
                os.fdatasync(self._descriptor)
            elif sys.platform == "darwin":
                _full_sync(self._descriptor)
            else:
                os.fsync(self._descriptor)
        except OSError as error:
            raise disk_error("sync", self._path, error) from error

    def map(self, size_bytes: int, *, writable: bool) -> Map:
        """Refuses to map past the file's end: touching that would kill the process."""
        with _named("map", self._path):
            if not 0 < size_bytes <= os.fstat(self._descriptor).st_size:
                raise OSError(errnos.EINVAL, f"the file is shorter than the {size_bytes} bytes to map, or that is none")
            return RealMap(self._descriptor, self._path, size_bytes, writable)

    def __del__(self) -> None:
        """A file that an error left open is given back too."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    def close(self) -> None:
        """Twice is harmless."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with _named("close", self._path):
                os.close(descriptor)


def _open(path: str, flags: int) -> int:
    """A descriptor.  Reading leaves the access time alone where the system lets us: only the owner may ask for that."""
    if _NO_ACCESS_TIME and not flags & (os.O_WRONLY | os.O_RDWR):
        with contextlib.suppress(PermissionError):
            return os.open(path, flags | _NO_ACCESS_TIME)
    return os.open(path, flags, 0o644)


@contextlib.contextmanager
def _names(folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    """A folder's names, read through a descriptor where that keeps its access time."""
    if not _NO_ACCESS_TIME:
        with os.scandir(folder) as names:
            yield names
        return
    descriptor = _open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(descriptor) as names:
            yield names
    finally:
        os.close(descriptor)


def _full_sync(descriptor: int) -> None:
    """macOS: `fsync` stops at the drive's cache."""
    import fcntl  # absent on Windows

    fcntl.fcntl(descriptor, getattr(fcntl, "F_FULLFSYNC", 51))


class _RecordLock:
    """A POSIX record lock on byte 0, as RocketMQ takes it.

    Such a lock belongs to the process: it does not keep us from ourselves, and closing *any* descriptor of the file frees
    it.  So a table of the files held here refuses a second one, and this descriptor is the only one ever opened.
    """

    _held: dict[tuple[int, int], int] = {}  # noqa: RUF012  (shared on purpose: it stands for the process)
    _guard = threading.Lock()

    def __init__(self, path: str, wait: bool) -> None:
        import fcntl  # absent on Windows

        self._key = (0, 0)
        with self._guard:
            known = os.stat(path) if os.path.exists(path) else None
            if known is not None and self._held.get((known.st_dev, known.st_ino)) == os.getpid():
                raise StoreLocked(f"{path}: this process has the store open for writing")
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _SAFE, 0o644)
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, 0, os.SEEK_SET)
            except OSError as error:
                os.close(self._descriptor)
                if not isinstance(error, BlockingIOError | PermissionError):
                    raise
                raise StoreLocked(f"{path}: another process has the store open for writing") from error
            here = os.fstat(self._descriptor)
            self._key = (here.st_dev, here.st_ino)
            self._held[self._key] = os.getpid()

    @classmethod
    def is_held(cls, path: str) -> bool:
        """Whether some process holds the lock.

        Closing any descriptor of the file frees a lock that this process holds.  So the file is opened only when the table
        says that this process holds none, and the guard is kept until it is closed again.
        """
        with cls._guard:
            try:
                known = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            if cls._held.get((known.st_dev, known.st_ino)) == os.getpid():
                return True
            if not stat.S_ISREG(known.st_mode):
                return False
            try:
                descriptor = os.open(path, os.O_RDONLY | _SAFE)
            except OSError:  # a link, or not ours to read: a lock cannot be seen
                return False
            try:
                return _is_locked_elsewhere(descriptor)
            finally:
                os.close(descriptor)

    def renew(self) -> bool:
        """Locking again a byte that this process has locked changes nothing, and takes it where the lock was lost."""
        import fcntl  # absent on Windows

        with self._guard:
            if self._held.get(self._key) != os.getpid():
                return False
            was_lost = _is_unlocked(self._descriptor)
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            except (BlockingIOError, PermissionError) as error:
                raise StoreLocked("the lock was lost, and another process has it now") from error
            return was_lost

    def release(self) -> None:
        """In a forked child this touches nothing: the lock is the parent's."""
        with self._guard:
            if self._held.get(self._key) != os.getpid():
                return
            del self._held[self._key]
            os.close(self._descriptor)


def _is_locked_elsewhere(descriptor: int) -> bool:
    """Whether another process has a lock on byte 0 (F_GETLK, which takes none)."""
    import fcntl  # absent on Windows

    if sys.platform == "darwin":
        layout, kind_at = struct.Struct("qqihh"), 3
        asked = layout.pack(0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    else:
        layout, kind_at = struct.Struct("hhqqi"), 0
        asked = layout.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    return bool(layout.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[kind_at] != fcntl.F_UNLCK)


def _is_unlocked(descriptor: int) -> bool:
    """Whether no process has a lock on byte 0, this one included; False where the system cannot tell (Linux can).

    A query for an open file description's lock is told of the record locks of its own process too.
    """
    import fcntl  # absent on Windows

    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    layout = struct.Struct("hhqqi")
    asked = layout.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    return bool(layout.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))[0] == fcntl.F_UNLCK)


class RealDisk:
    """Local file systems of this machine."""

    def open(self, path: str, mode: Mode) -> File:
        """Never follows a link, never waits for a pipe."""
        flags = os.O_RDONLY if mode is Mode.READ else os.O_RDWR | (os.O_CREAT if mode is Mode.CREATE else 0)
        if mode is not Mode.READ and _IS_WINDOWS:
            raise UnsupportedPlatform(f"{path}: stores are written on Linux and macOS only")
        with _named("open", path):
            if mode is Mode.DIRECT:
                if not hasattr(os, "O_DIRECT"):
                    raise OSError(errnos.EINVAL, "no way past the page cache here")
                flags |= os.O_DIRECT
            descriptor = _open(path, flags | _SAFE | _BINARY)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(errnos.EINVAL, "not a regular file")
        return RealFile(path, descriptor)

    def list(self, folder: str) -> list[Entry]:
        """A name that vanishes while we look is left out."""
        found = []
        with _named("list", folder), _names(folder) as names:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found.append(_entry(name.name, name.stat(follow_symlinks=False)))
        return sorted(found)

    def stat(self, path: str) -> Entry | None:
        """None for a missing file and for a missing folder above it."""
        try:
            return _entry(os.path.basename(path), os.lstat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:  # a NUL in the name
            raise DiskError("stat", repr(path), errnos.EINVAL, str(error)) from error
        except OSError as error:
            raise disk_error("stat", path, error) from error

    def make_folder(self, folder: str) -> None:
        """From the first missing parent down."""
        missing = []
        here = os.path.abspath(folder)
        while not os.path.isdir(here) and here != os.path.dirname(here):
            missing.append(here)
            here = os.path.dirname(here)
        for path in reversed(missing):
            with _named("make folder", path):
                _make_folder(path)
            self.sync_folder(os.path.dirname(path))

    def sync_folder(self, folder: str) -> None:
        """Where folders cannot be synced (Windows) this does nothing."""
        if _IS_WINDOWS:
            return
        with _named("sync folder", folder):
            descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        """Atomic for every reader; durable after `sync_folder`."""
        with _named("rename", source):
            os.replace(source, target)

    def delete(self, path: str) -> None:
        """Files only."""
        with _named("delete", path):
            os.unlink(path)

    def delete_folder(self, folder: str) -> None:
        """Refused by the system when something is in it."""
        with _named("delete folder", folder):
            os.rmdir(folder)

    def space(self, path: str) -> Space:
        """What an ordinary user may still use."""
        with _named("space", path):
            usage = shutil.disk_usage(path)
        return Space(usage.total, usage.free)

    def lock(self, path: str, *, wait: bool = False) -> FolderLock:
        """Excludes a real broker's Java process and is excluded by it."""
        if _IS_WINDOWS:
            raise UnsupportedPlatform(f"{path}: stores are written on Linux and macOS only")
        with _named("lock", path):
            return _RecordLock(path, wait)

    def is_locked(self, path: str) -> bool:
        """By POSIX record locks, as our writers and RocketMQ's take them; locks of other machines may not be seen."""
        if _IS_WINDOWS:
            return False
        with _named("lock", path):
            return _RecordLock.is_held(path)

    def writers(self, folder: str) -> tuple[Writer, ...]:
        """By what each process says of its descriptors."""
        return writing_processes(folder)

    def now_ms(self) -> int:
        """Wall time."""
        return time.time_ns() // 1_000_000

    def sleep(self, pause_s: float) -> None:
        """Of this thread."""
        time.sleep(pause_s)


def _make_folder(path: str) -> None:
    """No error when somebody else was faster; one when the name is something else's."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _entry(name: str, found: os.stat_result) -> Entry:
    """An entry from what the system says."""
    is_file, is_folder = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)
    kind = Kind.FILE if is_file else Kind.FOLDER if is_folder else Kind.OTHER
    return Entry(name, kind, found.st_size, found.st_mtime_ns // 1_000_000, found.st_dev, found.st_ino)


REAL_DISK = RealDisk()
