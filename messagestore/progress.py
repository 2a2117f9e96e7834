"""What consumers and followers wait for in the writing process: that something was dispatched, flushed, or closed."""

from __future__ import annotations

import threading


class Progress:
    """A number that grows with every step.

    Look at `count`, look for work, and wait only if there was none: then no step is missed.
    """

    def __init__(self) -> None:
        """Nothing happened yet."""
        self._changed = threading.Condition()
        self.count = 0

    def notify(self) -> None:
        """One step more."""
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, seen: int, timeout_s: float | None) -> bool:
        """Until the number is another than `seen`; False when it was not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count != seen, timeout_s)
