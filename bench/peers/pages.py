"""Memory that the host has already given to this machine, so that page faults do not measure the host."""

from __future__ import annotations

import mmap
from pathlib import Path

from storageio import REAL_DISK, Mode

TOUCHED = 3 << 30  # more than any timed section writes
PIECE = 1 << 20
LEFT_ALONE = 2 << 30  # memory for both sides


def _free_bytes() -> int:
    """Return the memory that nothing uses, not even as page cache."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemFree"].split()[0]) << 10


def read_data(folder: Path) -> None:
    """Read the data of every file below, so that the page cache and the host have its pages.

    After seconds without an access, the first pass over cached pages takes two to four times as long here.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            _read_file(path)


def _read_file(path: Path) -> None:
    """Read the written ranges of a file; allocated ones without data are skipped."""
    file = REAL_DISK.open(str(path), Mode.READ)
    at, size = 0, file.size()
    while (at := file.next_data(at)) < size:
        stop = file.data_end(at)
        for position in range(at, stop, PIECE):
            file.read(position, min(PIECE, stop - position))
        at = stop
    file.close()


def touch_free_memory() -> None:
    """Touch free pages and free them again, so that the pages allocated next are among them.

    A virtual machine may return freed pages to its host (free page reporting); allocating such a page takes 5 to 15 us instead
    of 0.3 us.  A measurement that hits such pages measures the host, on both sides.
    """
    size = min(TOUCHED, _free_bytes() - LEFT_ALONE)
    if size <= 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, size, mmap.PAGESIZE):
            memory[start] = 1
