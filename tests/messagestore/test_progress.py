"""Waking threads: no waiter is forgotten, and no wake-up raises, whichever thread is faster."""

from __future__ import annotations

import threading
from typing import Any

from messagestore.write.progress import Progress
from storageio.background import Wakeup


class _Overtaken:
    """A lock that another thread releases between the check and the release."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def locked(self) -> bool:
        was_locked: bool = self._inner.locked()
        if was_locked:
            self._inner.release()
        return was_locked

    def release(self) -> None:
        self._inner.release()

    def acquire(self, *, timeout: float) -> bool:
        taken: bool = self._inner.acquire(timeout=timeout)
        return taken


def test_two_threads_that_wake_one_waiter_wake_it_once() -> None:
    """The slower one, for example a put, must not get an error of the lock, which looks like a lost message."""
    wakeup = Wakeup()
    wakeup._lock = _Overtaken(wakeup._lock)  # type: ignore[assignment]
    wakeup.set()
    assert wakeup.wait(0)
    assert not wakeup.wait(0)


def test_step_between_the_check_and_the_wait_is_not_missed() -> None:
    """A condition that becomes true while the waiter goes to sleep ends its wait without another step."""
    progress = Progress()
    answers = iter([False, True])
    assert progress.wait_until(lambda: next(answers), None)
    assert not progress.is_awaited


def test_wait_returns_false_at_its_timeout() -> None:
    """The wait returns False, and leaves nothing that a later step would wake."""
    progress = Progress()
    assert not progress.wait(0, 0)
    assert not progress.wait(0, 0.001)
    assert not progress.is_awaited
    waiter = threading.Thread(target=progress.wait, args=(0, None))
    waiter.start()
    progress.notify()
    waiter.join(60)
    assert not waiter.is_alive()
