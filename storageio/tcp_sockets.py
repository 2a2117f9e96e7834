"""TCP connections to brokers and clients on other machines, as the same `LocalSocket` that processes of one machine use."""

from __future__ import annotations

import contextlib
import socket

from .local_sockets import BACKLOG, LocalSocket, PeerGone
from .real_disk import disk_error


def connect_tcp(host: str, port: int, timeout_s: float) -> LocalSocket:
    """Connect to a server.  Raises `PeerGone` if it does not accept within the time."""
    try:
        connection = socket.create_connection((host, port), timeout_s)
    except OSError as error:
        gone = PeerGone(f"{host}:{port}: {error}")
        gone.add_note(f"start what serves {host}:{port}, or correct the address; of a broker it is the one that clients use")
        raise gone from error
    return _opened(connection)


class TcpListener:
    """The serving side of a port."""

    def __init__(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one, which `port` then has."""
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            raise disk_error("listen", f"{host}:{port}", error) from error
        self.port: int = self._socket.getsockname()[1]
        self._is_ended = False

    def accept(self) -> LocalSocket | None:
        """Wait for the next connection; None if the other side was faster.  Raises `PeerGone` after `end`."""
        try:
            return _opened(self._socket.accept()[0])
        except OSError as error:
            if self._is_ended or self._socket.fileno() < 0:
                raise PeerGone("no longer served") from error
            return None

    def end(self) -> None:
        """End `accept` of any thread, and close the port."""
        self._is_ended = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _opened(connection: socket.socket) -> LocalSocket:
    """Send small frames immediately: every one of them is waited for."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return LocalSocket(connection)
