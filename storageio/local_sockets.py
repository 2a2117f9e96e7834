"""Stream sockets between processes of one user on one machine.

The address is a file below a store, and a Unix address has at most 108 bytes. So the folder is opened, and the address goes
through `/proc/self/fd`, which keeps it short wherever the store is. Where there is no such folder, the path itself must fit.

Only processes of the same user are let in: the socket file has the mode 0600, and each side checks the user of the other.
A forked child closes its copies, so that the death of the parent is seen by the other side.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

from .errors import StoreError, UnsupportedPlatform
from .processes import in_forked_child
from .real_disk import disk_error

BACKLOG = 128
ADDRESS_MAX = 104  # bytes; macOS has 104, Linux 108
PROC_FOLDER = "/proc/self/fd"
CREDENTIALS = struct.Struct("3i")  # process, user, group
TIME_LIMIT = struct.Struct("@ll")  # seconds, microseconds
Buffer = TypeVar("Buffer", int, memoryview)
Found = TypeVar("Found", bytes, int)


class PeerGone(StoreError):
    """Nobody serves the address, or the other side of a connection ended."""


class PeerSilent(StoreError):
    """The other side neither read nor answered in time. The connection cannot be used any longer."""


def _received(receive: Callable[[Buffer], Found], capacity: Buffer) -> Found:
    """Call a method of the socket that receives, and name what went wrong."""
    try:
        found = receive(capacity)
    except BlockingIOError as error:
        raise PeerSilent("the other process does not answer") from error
    except OSError as error:
        raise PeerGone(f"the connection ended: {error}") from error
    if not found:
        raise PeerGone("the other side closed the connection")
    return found


class LocalSocket:
    """An open connection to another process."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over an open socket."""
        self._socket = connection
        _open_sockets.add(self)

    def limit_waits(self, *, send_s: float, receive_s: float = 0.0) -> None:
        """Let `send` and `receive` raise `PeerSilent` after a time; 0 sets no limit."""
        _limit_waits(self._socket, send_s, receive_s)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it. Raises `PeerGone`, and `PeerSilent` after the time-out."""
        try:
            self._socket.sendall(data)
        except BlockingIOError as error:
            raise PeerSilent("the other process does not read") from error
        except OSError as error:
            raise PeerGone(f"the connection ended: {error}") from error

    def receive(self, size_bytes: int) -> bytes:
        """Return what has arrived, at most `size_bytes`; wait for the first byte.

        Raises `PeerGone` at the end, and `PeerSilent` after the time-out.
        """
        return _received(self._socket.recv, size_bytes)

    def receive_into(self, buffer: memoryview) -> int:
        """Write what has arrived into a buffer that is not empty, as `receive`; return how many bytes."""
        return _received(self._socket.recv_into, buffer)

    def wait(self, timeout_s: float) -> bool:
        """Wait until `receive` would return or raise; return False after the time-out."""
        try:
            waiter = select.poll()
            waiter.register(self._socket, select.POLLIN)
            return bool(waiter.poll(math.ceil(1000 * timeout_s)))
        except (OSError, ValueError):  # closed: `receive` raises
            return True

    @property
    def peer_host(self) -> str:
        """The address of the other side's machine; empty for a Unix socket, or if the connection ended."""
        try:
            name = self._socket.getpeername()
        except OSError:
            return ""
        return str(name[0]) if isinstance(name, tuple) else ""

    def end_input(self) -> None:
        """Let `receive` of any thread return what has arrived, and then raise."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def shut_down(self) -> None:
        """End `send` and `receive` of any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's descriptor."""
        self._socket.close()


class LocalListener:
    """The serving side of an address."""

    def __init__(self, path: str) -> None:
        """Replace whatever socket is at the path. The caller holds a lock that keeps others from doing the same."""
        if not hasattr(socket, "AF_UNIX"):
            raise UnsupportedPlatform(f"{path}: this system has no Unix sockets")
        self.path = path
        self._is_ended = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            with _short(path) as address:
                self._socket.bind(address)
            os.chmod(path, 0o600)  # before it listens: until then nobody can connect
            self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            raise disk_error("listen", path, error) from error
        _open_sockets.add(self)

    def accept(self) -> LocalSocket | None:
        """Wait for the next connection; None for one that is refused, as one of another user. Raises `PeerGone` at the end."""
        try:
            connection = self._socket.accept()[0]
        except OSError as error:
            if self._is_ended or self._socket.fileno() < 0:
                raise PeerGone(f"{self.path}: no longer served") from error
            return None  # too many descriptors, or the other side was faster
        if not _is_own(connection):
            connection.close()
            return None
        return LocalSocket(connection)

    def end(self) -> None:
        """Remove the address and end `accept` of any thread."""
        self._is_ended = True
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's descriptor."""
        self._socket.close()


def connect_local(path: str, answer_s: float) -> LocalSocket:
    """Connect to the process that serves an address; limit each `send` and `receive` to `answer_s` seconds.

    Raises `PeerGone` without one, or for one of another user.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise UnsupportedPlatform(f"{path}: this system has no Unix sockets")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _limit_waits(connection, answer_s, answer_s)
        with _short(path) as address:
            connection.connect(address)
        if not _is_own(connection):
            raise PeerGone(f"{path}: served by another user")
    except (FileNotFoundError, ConnectionError, BlockingIOError) as error:
        connection.close()
        raise PeerGone(f"{path}: not served") from error
    except OSError as error:
        connection.close()
        raise disk_error("connect", path, error) from error
    except BaseException:
        connection.close()
        raise
    return LocalSocket(connection)


def _limit_waits(connection: socket.socket, send_s: float, receive_s: float) -> None:
    for option, seconds in ((socket.SO_SNDTIMEO, send_s), (socket.SO_RCVTIMEO, receive_s)):
        whole = int(seconds)
        connection.setsockopt(socket.SOL_SOCKET, option, TIME_LIMIT.pack(whole, int((seconds - whole) * 1_000_000)))


@contextlib.contextmanager
def _short(path: str) -> Iterator[str]:
    """Provide an address for the path that fits."""
    if len(os.fsencode(path)) <= ADDRESS_MAX or not os.path.isdir(PROC_FOLDER):
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{PROC_FOLDER}/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _is_own(connection: socket.socket) -> bool:
    """Return whether the other side runs as the same user; elsewhere than on Linux the mode of the file has to do."""
    if sys.platform != "linux":
        return True
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(packed)[1] == os.geteuid())


_open_sockets: weakref.WeakSet[LocalSocket | LocalListener] = weakref.WeakSet()


def _close_all() -> None:  # pragma: no cover - runs only in a forked child, where coverage is not measured
    """Close a forked child's copies, without ending the parent's connections."""
    for item in list(_open_sockets):
        item.close()


in_forked_child(_close_all)
