"""A lock that compiled code takes without looking up a method: around every append there is one."""

from __future__ import annotations

import threading
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from . import no_cython as cython  # type: ignore[no-redef]
if not cython.compiled:
    from ._bytes_cy import (
        Bool, RawLock, free_raw_lock, give_raw_lock, new_raw_lock, take_raw_lock, take_raw_lock_now,
    )  # fmt: skip

US_PER_SECOND = 1_000_000


class Lock:
    """As `threading.Lock`: not reentrant, given back by any thread.  Made by `new_lock`."""

    __slots__ = ("_is_held", "_raw")

    def __init__(self) -> None:
        """Nobody has it."""
        self._raw: RawLock = new_raw_lock()
        self._is_held: Bool = False

    def __dealloc__(self) -> None:
        """Of the compiled class."""
        free_raw_lock(self._raw)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Whether the caller has it now."""
        if not take_raw_lock_now(self._raw):
            if not blocking or not take_raw_lock(self._raw, int(timeout * US_PER_SECOND) if timeout >= 0 else -1):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        """Let the next one have it.  Raises `RuntimeError` where nobody has it."""
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        give_raw_lock(self._raw)

    def locked(self) -> bool:
        """Whether anybody has it."""
        return bool(self._is_held)

    def __enter__(self) -> bool:
        """Wait for it."""
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self.release()


def new_lock() -> Any:
    """The one for this build.

    The plain build has the standard library's: a `with` over a class of Python code could be cut in two by an interrupt.
    """
    return Lock() if cython.compiled else threading.Lock()


@cython.cfunc
@cython.exceptval(check=False)
def take_now(lock: Lock) -> Bool:
    """Whether nobody had it; the caller has it then, and calls `give`.  Never in the plain build, which uses `with` alone."""
    if not cython.compiled or not take_raw_lock_now(lock._raw):
        return False
    lock._is_held = True
    return True


@cython.cfunc
@cython.exceptval(check=False)
def give(lock: Lock) -> Bool:
    """After `take_now`."""
    lock._is_held = False
    give_raw_lock(lock._raw)
    return True


@cython.cfunc
@cython.exceptval(check=False)
def is_taken(lock: Lock) -> Bool:
    """`locked` without a call."""
    return lock._is_held if cython.compiled else lock.locked()
