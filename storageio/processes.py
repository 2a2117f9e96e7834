"""What the operating system does to a process that holds a store: forks it, ends it, or has memory to spare."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_forked_child(call: Callable[[], None]) -> None:
    """Have `call` run in every child that this process forks, before anything else there; nothing where there is no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def process_id() -> int:
    """Of this process."""
    return os.getpid()


def random_bytes(size_bytes: int) -> bytes:
    """Unforeseeable ones."""
    return os.urandom(size_bytes)


def memory_bytes() -> int:
    """The machine's memory; 1 GiB where it cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 30
