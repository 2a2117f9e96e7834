"""The topics of a shared store, for a consumer of several of them."""

from __future__ import annotations

from collections.abc import Callable

from .news import News
from .store import SharedStore


class SharedTopics:
    """The topics, and the waits for messages of any of them."""

    def __init__(self, store: SharedStore) -> None:
        """Connect at the first wait."""
        self.topics = store.topics
        self._news = News(store._member)

    def wait(self, seen: int, timeout_s: float, is_ended: Callable[[], bool]) -> int:
        """Wait for the next step of the owner's dispatcher; return the number of steps."""
        return seen if is_ended() else self._news.wait(seen, timeout_s, is_ended)

    def wake(self) -> None:
        """End the wait, from any thread and from a signal handler."""
        self._news.wake()

    def close(self) -> None:
        """Close the connection."""
        self._news.close()
