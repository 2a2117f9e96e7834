"""The lifecycle of an engine's background threads, safe from interrupts.

`threading.Event` and `threading.Condition` take their lock in Python code: a KeyboardInterrupt between the lock and the block
that it guards leaves the lock held.  A put may be interrupted anywhere, so what a putting thread calls uses plain locks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

GATHER_MIN_S, GATHER_MAX_S, GATHER_STEP_S = 0.000_1, 0.000_3, 0.000_02


def gather(is_gathered: Callable[[], bool], sync_s: float) -> None:
    """Wait for other threads whose changes the next sync can cover, at most as long as the last sync took."""
    end = time.monotonic() + min(sync_s, GATHER_MAX_S)
    while sync_s >= GATHER_MIN_S and not is_gathered() and time.monotonic() < end:
        time.sleep(GATHER_STEP_S)


class Wakeup:
    """A flag for one waiting thread: `set` ends its current wait, or its next one."""

    def __init__(self) -> None:
        """Create it with the flag unset."""
        self._lock = threading.Lock()
        self._lock.acquire()

    @property
    def is_set(self) -> bool:
        """Whether the next wait would return immediately."""
        return not self._lock.locked()

    def set(self) -> None:
        """Set the flag, from any thread."""
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:  # another thread was faster
                return

    def wait(self, timeout_s: float | None) -> bool:
        """Clear the flag and return whether it was set in time; None waits without a limit."""
        return self._lock.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))


class BackgroundThread:
    """A daemon thread that calls `step` until it is stopped.

    `step` returns how many seconds the thread then sleeps: 0 for none, None until somebody calls `wake`.  `wake` ends a sleep
    early, `stop` ends it for good.  An exception that leaves `step` ends the thread; `failure` keeps it.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        first_pause_s: float | None = 0.0,
        wakeup: Wakeup | None = None,
    ) -> None:
        """Create it; nothing runs before `start`.  The first step follows a sleep of `first_pause_s`.

        Pass `wakeup` to give it to those who wake the thread before the thread exists.
        """
        self.name = name
        self.was_woken = False  # whether `wake`, not the time, ended the sleep before this step
        self.is_stopping = False
        self.failure: BaseException | None = None
        self._step = step
        self._first_pause_s = first_pause_s
        self._wakeup = wakeup or Wakeup()
        self._stopped = Wakeup()
        self._thread: threading.Thread | None = None

    @property
    def is_started(self) -> bool:
        """Whether `start` was called: without a thread the caller does the work."""
        return self._thread is not None

    @property
    def is_woken(self) -> bool:
        """Whether `wake` was called since the last sleep ended."""
        return self._wakeup.is_set

    def start(self) -> None:
        """Start the background thread."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """End the current sleep, or skip the next one."""
        self._wakeup.set()

    def stop(self) -> None:
        """Return when the thread has ended; called by the thread itself, end it after this step.  May be called again."""
        self.is_stopping = True
        self._stopped.set()
        self._wakeup.set()
        thread = self._thread
        if thread is not None and thread.ident is not None and thread is not threading.current_thread():
            thread.join()

    def pause(self, seconds: float) -> bool:
        """Sleep within a step; `stop` ends the sleep, `wake` does not.  Return whether the thread is to stop."""
        return self.is_stopping or self._stopped.wait(seconds) or self.is_stopping

    def _run(self) -> None:
        pause_s = self._first_pause_s
        try:
            while not self.is_stopping:
                self.was_woken = self._wakeup.wait(pause_s)
                if self.is_stopping:
                    return
                pause_s = self._step()
        except BaseException as error:
            self.failure = error
            raise
