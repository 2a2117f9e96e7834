"""A lock that compiled code takes without a method lookup: every append takes one."""

from __future__ import annotations

import threading
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from . import no_cython as cython  # type: ignore[no-redef]
if not cython.compiled:
    from ._bytes_cy import (
        Bool, RawLock, free_raw_lock, give_raw_lock, new_raw_lock, take_raw_lock, take_raw_lock_now, take_raw_lock_soon,
    )  # fmt: skip

US_PER_SECOND = 1_000_000


class Lock:
    """A lock like `threading.Lock`: not reentrant, released by any thread.  Create it with `new_lock`."""

    __slots__ = ("_is_held", "_raw")

    def __init__(self) -> None:
        """Create the lock unlocked."""
        self._raw: RawLock = new_raw_lock()
        self._is_held: Bool = False

    def __dealloc__(self) -> None:
        """Free the lock of the compiled class."""
        free_raw_lock(self._raw)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; return whether the caller has it."""
        if not take_raw_lock_now(self._raw):
            if not blocking:
                return False
            if not take_raw_lock_soon(self._raw):
                if not take_raw_lock(self._raw, int(timeout * US_PER_SECOND) if timeout >= 0 else -1):
                    return False
        self._is_held = True
        return True

    def release(self) -> None:
        """Release the lock; raise `RuntimeError` if nobody has it."""
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        give_raw_lock(self._raw)

    def locked(self) -> bool:
        """Return whether any thread has the lock."""
        return bool(self._is_held)

    def __enter__(self) -> bool:
        """Wait for the lock and take it."""
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the lock after the block."""
        self.release()


def new_lock() -> Any:
    """Return a lock for this build.

    The plain build uses the standard library's lock: an interrupt could split a `with` over a class written in Python.
    """
    return Lock() if cython.compiled else threading.Lock()


def take_now(lock: Lock) -> Bool:
    """Take the lock if it is free; return whether the caller has it and must call `give`.  The plain build returns False."""
    if not cython.compiled or not take_raw_lock_now(lock._raw):
        return False
    lock._is_held = True
    return True


def give(lock: Lock) -> Bool:
    """Release the lock after `take_now`."""
    lock._is_held = False
    give_raw_lock(lock._raw)
    return True


def is_taken(lock: Lock) -> Bool:
    """Return `locked` without a method call."""
    return lock._is_held if cython.compiled else lock.locked()
