"""Waits for steps of the owner's dispatcher: after each one a consumer or a reader may find new messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from storageio import StoreError
from storageio.background import BackgroundThread
from storageio.local_sockets import PeerGone, PeerSilent

from .answers import unpack_answer
from .client import OwnerChannel
from .election import Member
from .protocol import pack_call

RETRY_S = 0.002
NEW_OWNER = 1 << 62
PAUSE_S = 0.005
NEWS_S = 1.0  # a wait for news that takes longer begins again


class News:
    """The waits of one thread, on a connection of their own."""

    def __init__(self, member: Member) -> None:
        """Connect at the first wait."""
        self._member = member
        self._channel: OwnerChannel | None = None

    def wait(self, seen: int, timeout_s: float, is_ended: Callable[[], bool] = lambda: False) -> int:
        """Wait until the number of steps differs from `seen`, and return it; a change of the owner counts as a step.

        Raises `StoreBusy` if the owner does not answer, and `StoreClosed`.
        """
        self._member.check_open()
        service = self._member.service
        if service is not None:
            return service.news(seen, timeout_s, is_ended)
        try:
            channel = self._channel = self._channel or self._member.new_channel()
            found: int = unpack_answer(channel.exchange(pack_call("news", seen, min(timeout_s, self._member.wait_s / 2))))
            return found
        except PeerSilent as error:
            self.close()
            raise self._member.busy() from error
        except PeerGone:
            self.close()
            time.sleep(RETRY_S)
            return seen ^ NEW_OWNER

    def end(self) -> None:
        """End the wait of another thread."""
        self.wake()
        if self._member.local is not None:
            self._member.local.engine.progress.notify()

    def wake(self) -> None:
        """Let the wait of another thread look whether it is to end. Takes no lock, so a signal handler may call it."""
        channel, local = self._channel, self._member.local
        if channel is not None:
            channel.shut_down()
        if local is not None:
            local.engine.progress.recheck()

    def close(self) -> None:
        """Close the connection; the next wait connects again."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class SharedTopics:
    """The topics of a shared store, and the waits for messages of any of them, for a consumer of several."""

    def __init__(self, topics: Callable[[], list[str]], member: Member) -> None:
        """Take the list of topics; connect at the first wait."""
        self.topics = topics
        self._news = News(member)

    def wait(self, seen: int, timeout_s: float, is_ended: Callable[[], bool]) -> int:
        """Wait for the next step of the owner's dispatcher; return the number of steps."""
        return seen if is_ended() else self._news.wait(seen, timeout_s, is_ended)

    def wake(self) -> None:
        """End the wait, from any thread and from a signal handler."""
        self._news.wake()

    def close(self) -> None:
        """Close the connection to the owner."""
        self._news.close()


class Watched(Protocol):
    """What a watch needs of a shared store."""

    _member: Member


class Watch:
    """A thread that calls a function at the first step after each `arm`, for an event loop that must not wait itself.

    It asks for nothing while it is not armed, nor for PAUSE_S after a call: many puts, also to topics that the loop does not
    read, then cost neither the loop nor the owner a request each.
    """

    def __init__(self, store: Watched, on_news: Callable[[], None]) -> None:
        """Start the thread. `on_news` runs on it, also after an error: the next call to the store raises that."""
        self._news = News(store._member)
        self._on_news = on_news
        self._seen = -1
        self._thread = BackgroundThread("brokerstore-watch", self._step, None)
        self._thread.start()

    def arm(self) -> None:
        """Ask for one more call. Steps since the last call count."""
        self._thread.wake()

    def _step(self) -> float | None:
        try:
            count = self._news.wait(self._seen, NEWS_S)
        except StoreError:
            self._on_news()
            return None
        if count == self._seen:
            return 0.0
        self._seen = count
        self._on_news()
        self._thread.pause(PAUSE_S)
        return None

    def close(self) -> None:
        """End the thread; the store must still be open."""
        self._thread.is_stopping = True
        self._news.end()
        self._thread.stop()
        self._news.close()
