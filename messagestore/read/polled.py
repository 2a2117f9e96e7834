"""The iteration of consumers, whose messages come from `poll`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from commitlog import StoredMessage
from storageio import Closing

FETCH_COUNT = 32


class Polled(Closing):
    """An iterator over the messages that `poll` returns, until it is closed or the time-out passes without a message."""

    def __init__(self, timeout_s: float | None) -> None:
        """Set the time-out of the iteration; None waits without a limit."""
        self.is_closed = self.is_stopped = False
        self._timeout_s = timeout_s

    @abstractmethod
    def poll(self, max_count: int = FETCH_COUNT, timeout_s: float | None = 0) -> list[StoredMessage]:
        """Return up to `max_count` messages; wait for the first until the timeout, or without limit if it is None.

        Finds every message that was put before the call.
        """

    def __iter__(self) -> Iterator[StoredMessage]:
        """Return the consumer itself."""
        return self

    def __next__(self) -> StoredMessage:
        """Return the next message; the iteration ends at `stop` or `close`, or if no message came within the timeout."""
        found = [] if self.is_closed else self.poll(1, self._timeout_s)
        if not found:
            raise StopIteration
        return found[0]
