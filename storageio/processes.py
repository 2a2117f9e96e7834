"""What the operating system does to a process that holds a store: forks it, ends it, or has memory to spare."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

MAPS_MAX = 4096  # of 65,530 stretches of memory that Linux lets a process have
MAPS_LEAST = 64
ADDRESSES = 2 * sys.maxsize


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


def maps_max(size_bytes: int) -> int:
    """How many maps of this size a store keeps: in a quarter of the addresses, with an eighth of the descriptors, one a map."""
    return max(1, min(MAPS_MAX, max(MAPS_LEAST, _descriptors_max() // 8), ADDRESSES // 4 // size_bytes))


def _descriptors_max() -> int:
    """That this process may have open; 1024 where it cannot be asked."""
    try:
        import resource  # absent on Windows

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ImportError, ValueError, OSError):
        return 1024
    return limit if limit != resource.RLIM_INFINITY else 8 * MAPS_MAX
