"""Process services: fork handlers, other writers, random bytes, and limits of memory, maps and descriptors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from .disk import Writer

try:
    import resource
except ImportError:  # absent on Windows
    resource = None  # type: ignore[assignment]

MAPS_MAX = 4096  # Linux allows a process 65,530 mappings
MAPS_LEAST = 64
ADDRESSES = 2 * sys.maxsize
PROC_FILE_MAX = 4096


def in_forked_child(call: Callable[[], None]) -> None:
    """Register `call` to run first in every child that this process forks; do nothing where the system has no fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def process_id() -> int:
    """Return the id of this process."""
    return os.getpid()


def writing_processes(folder: str) -> tuple[Writer, ...]:
    """Return the other processes that have a file below the folder open for writing, from /proc; empty where it is missing."""
    above = os.path.join(os.path.realpath(folder), "")
    others = (name for name in _listed("/proc") if name.isdigit() and int(name) != os.getpid())
    return tuple(Writer(int(name), _first_line(f"/proc/{name}/comm")) for name in others if _writes_below(name, above))


def process_text(number: int) -> str:
    """Return the name and id of another process as text."""
    name = _first_line(f"/proc/{number}/comm") if number > 0 else ""
    return f"{name or 'another program'}, process {number}," if number > 0 else "another process"


def _writes_below(process: str, above: str) -> bool:
    return any(
        _link(f"/proc/{process}/fd/{number}").startswith(above) and _is_for_writing(f"/proc/{process}/fdinfo/{number}")
        for number in _listed(f"/proc/{process}/fd")
    )


def _is_for_writing(path: str) -> bool:
    """Return whether the flags of a descriptor, in octal digits, include write access."""
    flags = next((line.split()[1] for line in _lines(path) if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _first_line(path: str) -> str:
    return next(iter(_lines(path)), "")


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of a file in /proc; nothing if the process is gone or belongs to another user."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            yield from file.read(PROC_FILE_MAX).splitlines()
    except OSError:
        return


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def random_bytes(size_bytes: int) -> bytes:
    """Return cryptographically random bytes."""
    return os.urandom(size_bytes)


def memory_bytes() -> int:
    """Return the machine's memory, 1 GiB where the system cannot tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 30


def maps_max(size_bytes: int) -> int:
    """Return how many files of this size a store keeps mapped.

    With one map each they take at most a quarter of the addresses and an eighth of the descriptors; a log file has up to two.
    """
    return max(1, min(MAPS_MAX, max(MAPS_LEAST, _descriptors_max() // 8), ADDRESSES // 4 // size_bytes))


def _descriptors_max() -> int:
    """Return how many descriptors this process may have open, 1024 where the system cannot tell."""
    if resource is None:
        return 1024
    try:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except (ValueError, OSError):
        return 1024
    return limit if limit != resource.RLIM_INFINITY else 8 * MAPS_MAX
