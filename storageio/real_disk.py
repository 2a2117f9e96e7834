"""The disk of this machine."""

from __future__ import annotations

import contextlib
import errno as errnos
import mmap
import os
import stat
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

from .closing import Closing
from .disk import Entry, File, FolderLock, Kind, Map, Mode, Space, Writer, own_view
from .errors import DiskError, DiskFull, StoreLocked, UnsupportedPlatform
from .processes import process_text, writing_processes

PAGE_SIZE = mmap.PAGESIZE
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE (Linux 5.14); the mmap module does not name it
_FULL_ERRNOS = {errnos.ENOSPC, errnos.EDQUOT}
_IS_WINDOWS = sys.platform == "win32"
_OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_UNLINKED_MAX = 64  # files of 16 MiB: a message store's
_NO_ACCESS_TIME = getattr(os, "O_NOATIME", 0)
_BINARY = getattr(os, "O_BINARY", 0)
COPY_SIZE = 1 << 20


@contextlib.contextmanager
def _disk_errors(operation: str, path: str) -> Iterator[None]:
    """Turn errors of the standard library into `DiskError`, with the operation and the path."""
    try:
        yield
    except OSError as error:
        raise disk_error(operation, path, error) from error
    except ValueError as error:  # a NUL in the name
        raise DiskError(operation, repr(path), errnos.EINVAL, str(error)) from error


def disk_error(operation: str, path: str, error: OSError) -> DiskError:
    """Return the `DiskError` or `DiskFull` for an error of the operating system."""
    number = error.errno or 0
    kind = DiskFull if number in _FULL_ERRNOS else DiskError
    return kind(operation, path, number, error.strerror or str(error))


class RealMap(Closing):
    """A shared map of a file."""

    def __init__(self, descriptor: int, path: str, size_bytes: int, writable: bool) -> None:
        """Map the file; Python's mmap keeps a duplicate of `descriptor`."""
        self._path = path
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._mmap: mmap.mmap | None = mmap.mmap(descriptor, size_bytes, access=access)
        self._view: memoryview | None = memoryview(self._mmap)
        self._address = 0

    @property
    def view(self) -> memoryview:
        """The whole mapped range."""
        view = self._view
        assert view is not None, "a closed map was used"
        return own_view(view)

    def populate(self, start: int, stop: int) -> None:
        """Populate the pages; a kernel without MADV_POPULATE_WRITE faults page by page later."""
        stop = min(stop, len(self._view) if self._view is not None else 0)
        if self._view is None or stop <= start:
            return
        import ctypes  # 10 ms, and only writers need it

        if not self._address:
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._view))
        first = start // PAGE_SIZE * PAGE_SIZE
        address, size = ctypes.c_void_p(self._address + first), ctypes.c_size_t(stop - first)
        ctypes.CDLL(None).madvise(address, size, ctypes.c_int(_POPULATE_WRITE))

    def expect_random(self) -> None:
        """Advise random access; a kernel that rejects the advice is no error."""
        self._advise("MADV_RANDOM")

    def expect_sequential(self) -> None:
        """Advise sequential access; a kernel that rejects the advice is no error."""
        self._advise("MADV_SEQUENTIAL")

    def _advise(self, name: str) -> None:
        if self._mmap is not None and hasattr(mmap, name):
            with contextlib.suppress(OSError):
                self._mmap.madvise(getattr(mmap, name))

    def close(self) -> None:
        """Drop the references; the memory is unmapped with the last view."""
        self._view = None
        self._mmap = None


class RealFile(Closing):
    """A regular file, held by its descriptor."""

    def __init__(self, path: str, descriptor: int) -> None:
        """Take a descriptor that `RealDisk.open` opened."""
        self._path = path
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        """The path it was opened with."""
        return self._path

    def size(self) -> int:
        """Return the size in bytes, from the descriptor."""
        with _disk_errors("stat", self._path):
            return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read until `size_bytes` or the end of the file; usually one call."""
        parts = []
        with _disk_errors("read", self._path):
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
        """Return the next data position by SEEK_DATA."""
        return self._seek("SEEK_DATA", offset, offset)

    def data_end(self, offset: int) -> int:
        """Return the end of the data by SEEK_HOLE."""
        return self._seek("SEEK_HOLE", offset, self.size())

    def forget_zeros(self, offset: int) -> None:
        """Drop clean pages from the page cache; dirty pages stay."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, offset, 0, os.POSIX_FADV_DONTNEED)

    def expect_read(self, offset: int, size_bytes: int) -> None:
        """Let the system read the pages."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor, offset, size_bytes, os.POSIX_FADV_WILLNEED)

    def _seek(self, what: str, offset: int, unknown: int) -> int:
        """Return where data or a hole begins; `unknown` where the system cannot tell, the file's size if there is none."""
        with _disk_errors("next data", self._path):
            size = os.fstat(self._descriptor).st_size
            if offset >= size or not hasattr(os, what):
                return min(unknown, size)
            try:
                return os.lseek(self._descriptor, offset, getattr(os, what))
            except OSError as error:
                if error.errno == errnos.ENXIO:  # only holes from there on
                    return size
                if error.errno == errnos.EINVAL:
                    return unknown
                raise

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`; a short write continues where it stopped."""
        left = memoryview(data).cast("B")
        with _disk_errors("write", self._path):
            while left:
                done = os.pwrite(self._descriptor, left, offset)
                left = left[done:]
                offset += done

    def write_pieces(self, offset: int, pieces: list[memoryview]) -> None:
        """Write all pieces, usually by one call."""
        left = list(pieces)
        try:  # not `_disk_errors`, which is slower: a synchronous put waits for this
            while left:
                if hasattr(os, "pwritev"):
                    done = os.pwritev(self._descriptor, left, offset)
                else:
                    done = os.pwrite(self._descriptor, left[0], offset)
                offset += done
                while left and done >= len(left[0]):
                    done -= len(left.pop(0))
                if done:
                    left[0] = left[0][done:]
        except OSError as error:
            raise disk_error("write", self._path, error) from error

    def allocate(self, size_bytes: int, start: int = 0) -> None:
        """Call `posix_fallocate`, or write what the range holds, or zeros, where the platform lacks it."""
        with _disk_errors("allocate", self._path):
            if hasattr(os, "posix_fallocate"):
                if size_bytes > start:
                    os.posix_fallocate(self._descriptor, start, size_bytes - start)
                return
        for offset in range(start, size_bytes, COPY_SIZE):
            size = min(COPY_SIZE, size_bytes - offset)
            self.write(offset, self.read(offset, size).ljust(size, b"\0"))

    def truncate(self, size_bytes: int) -> None:
        """Set the size; the file is sparse where it grows."""
        with _disk_errors("truncate", self._path):
            os.ftruncate(self._descriptor, size_bytes)

    def sync(self) -> None:
        """Call `fdatasync`, or what reaches the medium on this platform."""
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
        """Map the file.  A map past its end is rejected: touching it would kill the process."""
        with _disk_errors("map", self._path):
            if not 0 < size_bytes <= os.fstat(self._descriptor).st_size:
                raise OSError(errnos.EINVAL, f"the file is shorter than the {size_bytes} bytes to map, or that is none")
            return RealMap(self._descriptor, self._path, size_bytes, writable)

    def __del__(self) -> None:
        """Close a descriptor that an error left open."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with _disk_errors("close", self._path):
                os.close(descriptor)


def _open(path: str, flags: int) -> int:
    """Return a descriptor.  Reads leave the access time alone where the system allows it, which is for the owner only."""
    if _NO_ACCESS_TIME and not flags & (os.O_WRONLY | os.O_RDWR):
        with contextlib.suppress(PermissionError):
            return os.open(path, flags | _NO_ACCESS_TIME)
    return os.open(path, flags, 0o644)


@contextlib.contextmanager
def _names(folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Yield the entries of a folder, through a descriptor where that keeps its access time."""
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
    """Sync to the medium on macOS, where `fsync` stops at the drive's cache."""
    import fcntl  # absent on Windows

    fcntl.fcntl(descriptor, getattr(fcntl, "F_FULLFSYNC", 51))


class _RecordLock:
    """A POSIX record lock on byte 0, as RocketMQ takes it.

    The system gives such a lock to the process: it does not exclude a second lock by the same process, and closing *any*
    descriptor of the file releases it.  So a table of the files locked here rejects a second lock, and only this descriptor of
    the file is ever opened.
    """

    _held: dict[tuple[int, int], int] = {}  # noqa: RUF012  (shared on purpose: locks belong to the process)
    _guard = threading.Lock()

    def __init__(self, path: str, wait: bool) -> None:
        import fcntl  # absent on Windows

        self._key = (0, 0)
        with self._guard:
            known = os.stat(path) if os.path.exists(path) else None
            if known is not None and self._held.get((known.st_dev, known.st_ino)) == os.getpid():
                raise StoreLocked(f"{path}: this process has the store open for writing")
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o644)
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, 0, os.SEEK_SET)
            except OSError as error:
                holder = _lock_holder(self._descriptor) if isinstance(error, BlockingIOError | PermissionError) else 0
                os.close(self._descriptor)
                if not isinstance(error, BlockingIOError | PermissionError):
                    raise
                raise StoreLocked(f"{path}: {process_text(holder)} has the store open for writing") from error
            here = os.fstat(self._descriptor)
            self._key = (here.st_dev, here.st_ino)
            self._held[self._key] = os.getpid()

    @classmethod
    def is_held(cls, path: str) -> bool:
        """Return whether any process holds the lock.

        Closing any descriptor of the file releases a lock that this process holds.  So the file is opened only if the table
        shows no lock of this process, and the guard is held until it is closed again.
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
                descriptor = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
            except OSError:  # a symbolic link, or not readable: a lock cannot be seen
                return False
            try:
                return _lock_holder(descriptor) != 0
            finally:
                os.close(descriptor)

    def renew(self) -> bool:
        """Lock byte 0 again: this changes nothing if this process has the lock, and takes it if the lock was lost."""
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
        """Release the lock; do nothing in a forked child, where the lock is the parent's."""
        with self._guard:
            if self._held.get(self._key) != os.getpid():
                return
            del self._held[self._key]
            os.close(self._descriptor)


def _lock_holder(descriptor: int) -> int:
    """Return the id of another process that has a lock on byte 0, by F_GETLK, which takes none; 0 without one.

    It is -1 for a process that cannot be seen, such as one in another container.
    """
    import fcntl  # absent on Windows

    if sys.platform == "darwin":
        layout, kind_at, process_at = struct.Struct("qqihh"), 3, 2
        requested = layout.pack(0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    else:
        layout, kind_at, process_at = struct.Struct("hhqqi"), 0, 4
        requested = layout.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    found = layout.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, requested))
    return 0 if found[kind_at] == fcntl.F_UNLCK else found[process_at] or -1


def _is_unlocked(descriptor: int) -> bool:
    """Return whether no process, this one included, has a lock on byte 0; False where the system cannot tell (Linux can).

    F_OFD_GETLK also reports the record locks of its own process.
    """
    import fcntl  # absent on Windows

    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    layout = struct.Struct("hhqqi")
    requested = layout.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    return bool(layout.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, requested))[0] == fcntl.F_UNLCK)


_unlinked: deque[int] = deque()  # descriptors of deleted files, whose space the last close frees


def _free_oldest() -> None:
    with contextlib.suppress(IndexError):  # another thread took the last one
        os.close(_unlinked.popleft())


class RealDisk:
    """The local file systems of this machine."""

    def open(self, path: str, mode: Mode) -> File:
        """Open a regular file without following a link or waiting for a pipe."""
        flags = os.O_RDONLY if mode is Mode.READ else os.O_RDWR | (os.O_CREAT if mode is Mode.CREATE else 0)
        if mode is not Mode.READ and _IS_WINDOWS:
            raise UnsupportedPlatform(f"{path}: stores are written on Linux and macOS only")
        with _disk_errors("open", path):
            if mode is Mode.DIRECT:
                if not hasattr(os, "O_DIRECT"):
                    raise OSError(errnos.EINVAL, "no way past the page cache here")
                flags |= os.O_DIRECT
            descriptor = _open(path, flags | _OPEN_FLAGS | _BINARY)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(errnos.EINVAL, "not a regular file")
        return RealFile(path, descriptor)

    def list(self, folder: str) -> list[Entry]:
        """Return the entries of a folder; a name that vanishes meanwhile is skipped."""
        found = []
        with _disk_errors("list", folder), _names(folder) as names:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found.append(_entry(name.name, name.stat(follow_symlinks=False)))
        return sorted(found)

    def stat(self, path: str) -> Entry | None:
        """Return the entry; None if the file or a folder above it is missing."""
        try:
            return _entry(os.path.basename(path), os.lstat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:  # a NUL in the name
            raise DiskError("stat", repr(path), errnos.EINVAL, str(error)) from error
        except OSError as error:
            raise disk_error("stat", path, error) from error

    def make_folder(self, folder: str) -> None:
        """Create the missing folders, from the topmost one down."""
        missing = []
        here = os.path.abspath(folder)
        while not os.path.isdir(here) and here != os.path.dirname(here):
            missing.append(here)
            here = os.path.dirname(here)
        for path in reversed(missing):
            with _disk_errors("make folder", path):
                _make_folder(path)
            self.sync_folder(os.path.dirname(path))

    def sync_folder(self, folder: str) -> None:
        """Sync a folder; do nothing on Windows, where folders cannot be synced."""
        if _IS_WINDOWS:
            return
        with _disk_errors("sync folder", folder):
            descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        """Rename atomically; the new name is durable after `sync_folder`."""
        with _disk_errors("rename", source):
            os.replace(source, target)

    def delete(self, path: str) -> None:
        """Unlink a file, not a folder."""
        with _disk_errors("delete", path):
            os.unlink(path)

    def unlink(self, path: str) -> None:
        """Unlink a file that is held open, which keeps its space; free older ones when too many are held."""
        try:
            held = os.open(path, _OPEN_FLAGS)
        except OSError:  # for example no free descriptor
            self.delete(path)
            return
        _unlinked.append(held)
        self.delete(path)
        while len(_unlinked) > _UNLINKED_MAX:
            _free_oldest()

    def free_unlinked(self) -> None:
        """Close what `unlink` holds."""
        while _unlinked:
            _free_oldest()

    def delete_folder(self, folder: str) -> None:
        """Remove a folder; the system rejects it unless it is empty."""
        with _disk_errors("delete folder", folder):
            os.rmdir(folder)

    def space(self, path: str) -> Space:
        """Return the space as `df` and RocketMQ's `UtilAll` count it: reserved blocks that are free belong to nobody."""
        import shutil  # it imports every module of compression

        with _disk_errors("space", path):
            usage = shutil.disk_usage(path)
        return Space(usage.used + usage.free, usage.free)

    def lock(self, path: str, *, wait: bool = False) -> FolderLock:
        """Take a lock that excludes a real broker's Java process, and that such a process excludes."""
        if _IS_WINDOWS:
            raise UnsupportedPlatform(f"{path}: stores are written on Linux and macOS only")
        with _disk_errors("lock", path):
            return _RecordLock(path, wait)

    def is_locked(self, path: str) -> bool:
        """Look for POSIX record locks, as this library and RocketMQ take them; locks of other machines may be invisible."""
        if _IS_WINDOWS:
            return False
        with _disk_errors("lock", path):
            return _RecordLock.is_held(path)

    def writers(self, folder: str) -> tuple[Writer, ...]:
        """Return the writing processes from their open descriptors."""
        return writing_processes(folder)

    def now_ms(self) -> int:
        """Return the wall clock time."""
        return time.time_ns() // 1_000_000

    def sleep(self, pause_s: float) -> None:
        """Pause the calling thread."""
        time.sleep(pause_s)


def _make_folder(path: str) -> None:
    """Create a folder.  A folder that another process created first is no error; anything else of that name is."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _entry(name: str, found: os.stat_result) -> Entry:
    """Return the entry for a result of `os.stat`."""
    is_file, is_folder = stat.S_ISREG(found.st_mode), stat.S_ISDIR(found.st_mode)
    kind = Kind.FILE if is_file else Kind.FOLDER if is_folder else Kind.OTHER
    return Entry(name, kind, found.st_size, found.st_mtime_ns // 1_000_000, found.st_dev, found.st_ino)


REAL_DISK = RealDisk()


def real_path(path: str) -> str:
    """Return the absolute path without symbolic links; what does not exist keeps its name."""
    return os.path.realpath(path)
