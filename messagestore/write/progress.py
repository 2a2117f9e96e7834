"""Waking threads up, in ways that an interrupt in any thread cannot break.

`threading.Condition` and `threading.Event` take their lock in Python code: a KeyboardInterrupt that comes between the lock and
the block it guards leaves it held for ever, and with it every thread that looks at it.  A put may be interrupted at any place,
so what a putting thread touches is built on plain locks, whose calls and `with` blocks are not cut in two.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_S = 1.0  # a waiter looks by itself now and then, should the one who would wake it be interrupted


class Wakeup:
    """For one waiting thread: `set` lets it, or its next `wait`, go on once."""

    def __init__(self) -> None:
        """Not set."""
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """From any thread; twice is as once."""
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:  # another thread was faster
                return

    def wait(self, timeout_s: float) -> bool:
        """Whether it was set in time; it is not afterwards."""
        return self._lock.acquire(timeout=max(0.0, timeout_s))


class Progress:
    """A number that grows with every step, and those who wait for it.

    Look at `count`, look for work, and wait only if there was none: then no step is missed.
    """

    def __init__(self) -> None:
        """Nothing happened yet."""
        self._guard = threading.Lock()
        self._sleepers: list[Wakeup] = []
        self.count = 0

    def notify(self) -> None:
        """One step more."""
        with self._guard:
            self.count += 1
            for sleeper in self._sleepers:
                sleeper.set()

    def wait(self, seen: int, timeout_s: float | None) -> bool:
        """Until the number is another than `seen`; False when it was not in time."""
        return self.wait_until(lambda: self.count != seen, timeout_s)

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float | None) -> bool:
        """Until something is so, asked after each step; False when it was not in time."""
        if is_so():
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        sleeper = Wakeup()
        with self._guard:
            self._sleepers.append(sleeper)
        try:
            while not is_so():
                left = LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())
                if left <= 0:
                    return False
                sleeper.wait(left)
            return True
        finally:
            with self._guard:
                self._sleepers.remove(sleeper)
