"""A counter of progress that threads wait for, safe from interrupts (see `storageio.background`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from storageio.background import Wakeup

POLL_S = 1.0  # a waiter also polls, in case the thread that should wake it is interrupted


class Progress:
    """A counter of steps, and the threads that wait for the next one.

    Read `count`, look for work, and wait only if there was none: then no step is missed.
    """

    def __init__(self) -> None:
        """Create it with a count of 0."""
        self._guard = threading.Lock()
        self._wakes: list[Callable[[], None]] = []
        self.count = 0
        self.before_wait: Callable[[], None] | None = None  # called when somebody begins to wait

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the next step."""
        return bool(self._wakes)

    def notify(self) -> None:
        """Count one step and wake the waiters."""
        with self._guard:
            self.count += 1
            for wake in self._wakes:
                wake()

    def recheck(self) -> None:
        """Let the waiters check their conditions again. Takes no lock, so a signal handler may call it."""
        for wake in list(self._wakes):
            wake()

    def add(self, wake: Callable[[], None]) -> None:
        """Call a function at each step, in the thread that reports it, until `remove`; `count` tells of earlier steps."""
        with self._guard:
            self._wakes.append(wake)
        if self.before_wait is not None:
            self.before_wait()

    def remove(self, wake: Callable[[], None]) -> None:
        """Call a function no more."""
        with self._guard:
            self._wakes.remove(wake)

    def wait(self, seen: int, timeout_s: float | None) -> bool:
        """Wait until the count differs from `seen`; return False after the timeout."""
        return self.wait_until(lambda: self.count != seen, timeout_s)

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until a condition holds, checked after each step; return False after the timeout."""
        if is_so():
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        sleeper = Wakeup()
        self.add(sleeper.set)
        try:
            while not is_so():
                left = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
                if left <= 0:
                    return False
                sleeper.wait(left)
            return True
        finally:
            self.remove(sleeper.set)
