"""Delivery in kombu's event loop, in which Celery's workers consume."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from messagestore import SharedStore
from messagestore.shared.news import Watch
from storageio.readable_flag import ReadableFlag

CHECK_S = 1.0
TURN_S = 0.001


class LoopReader:
    """Delivers a transport's messages in a loop: for TURN_S in each turn, so that timers and signals have theirs.

    The loop watches a flag. It is set when the store has new messages, and when a consumer may take one again. Each CHECK_S
    seconds it is set as well: for queues that another process left, and for topics of other priorities.
    """

    def __init__(self, loop: Any, store: SharedStore, deliver_one: Callable[[], None], on_check: Callable[[], None]) -> None:
        """Begin to deliver in a loop: `deliver_one` raises `Empty` without a message, `on_check` runs each CHECK_S seconds."""
        self.loop = loop
        self._deliver_one = deliver_one
        self._on_check = on_check
        self._flag = ReadableFlag()
        self._watch = Watch(store, self.wake)
        self._timer = loop.call_repeatedly(CHECK_S, self._check)
        self._descriptor = self._flag.fileno()
        loop.add_reader(self._descriptor, self._deliver)
        self.wake()

    def wake(self) -> None:
        """Let the loop look for messages in its next turn. Any thread may call it."""
        self._flag.set()

    def _check(self) -> None:
        self._on_check()
        self.wake()

    def _deliver(self) -> None:
        """Deliver messages for TURN_S, and come again; without one wait for the next news."""
        self._flag.clear()
        end = time.monotonic() + TURN_S
        try:
            self._deliver_one()
            while time.monotonic() < end:
                self._deliver_one()
        except Empty:
            self._watch.arm()
        else:
            self.wake()

    def close(self) -> None:
        """End the delivery; the store must still be open."""
        self._timer.cancel()
        if self._descriptor in self.loop.readers:  # a loop that was reset has forgotten it
            self.loop.remove_reader(self._descriptor)
        self._watch.close()
        self._flag.close()
