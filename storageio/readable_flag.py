"""A flag that an event loop can watch."""

from __future__ import annotations

import contextlib
import socket

CLEARED_BYTES = 4096


class ReadableFlag:
    """A flag whose descriptor is readable while it is set. Any thread may set it; the thread of the loop clears it."""

    def __init__(self) -> None:
        """Create it with the flag unset."""
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._reader.fileno()

    def set(self) -> None:
        """Set the flag. It stays set until `clear`; after `close` nothing happens."""
        with contextlib.suppress(OSError):  # full: it is set
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Clear the flag, until the next `set`."""
        with contextlib.suppress(BlockingIOError):
            while len(self._reader.recv(CLEARED_BYTES)) == CLEARED_BYTES:
                continue

    def close(self) -> None:
        """Close the descriptors. The loop must not watch them any longer."""
        self._reader.close()
        self._writer.close()
