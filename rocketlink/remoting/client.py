"""Ask a broker or a name server, one request at a time."""

from __future__ import annotations

import time

from storageio import Closing
from storageio.local_sockets import PeerGone
from storageio.tcp_sockets import connect_tcp

from ..errors import RemoteError
from .codes import SUCCESS
from .frames import Command, RemotingFrameReader, encode
from .signature import Access

RECEIVE_SIZE = 1 << 18


class RemotingClient(Closing):
    """One connection.  Only one thread may use it at a time; `shut_down` may be called by another."""

    def __init__(self, host: str, port: int, timeout_s: float = 5.0, access: Access | None = None) -> None:
        """Connect to the server; requests are signed with `access`.  Raises `PeerGone`."""
        self._access = access
        self._timeout_s = timeout_s
        self._link = connect_tcp(host, port, timeout_s)
        self._frames = RemotingFrameReader()
        self._last = 0

    def invoke(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        """Return the answer.  Raises `RemoteError` for one with an error code, and `PeerGone` without one in time."""
        self._last += 1
        signed = (fields or {}) if self._access is None else self._access.signed(fields or {}, body)
        self._link.send(encode(Command(code, signed, body, self._last)))
        end = time.monotonic() + self._timeout_s
        while self._link.wait(max(0.0, end - time.monotonic())):
            for found in self._frames.feed(self._link.receive(RECEIVE_SIZE)):
                if found.is_answer and found.opaque == self._last:
                    if found.code != SUCCESS:
                        raise RemoteError(code, found.code, found.remark)
                    return found
            if time.monotonic() >= end:
                break
        raise PeerGone(f"no answer to request {code} within {self._timeout_s} s")

    def shut_down(self) -> None:
        """End a request of another thread."""
        self._link.shut_down()

    def close(self) -> None:
        """Close the connection, without an error if it ended."""
        self._link.shut_down()
        self._link.close()
