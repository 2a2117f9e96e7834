"""Memory that the host of this machine has given: what fresh pages cost without its part in it."""

from __future__ import annotations

import mmap
from pathlib import Path

from storageio import REAL_DISK, Mode

TOUCHED = 3 << 30  # more than any timed stretch writes
PIECE = 1 << 20
LEFT_ALONE = 2 << 30  # for what both sides hold


def _free_bytes() -> int:
    """What nobody uses, not even as page cache."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemFree"].split()[0]) << 10


def read_data(folder: Path) -> None:
    """Read what was written of every file below, so that the page cache has it and the host its pages at hand.

    After seconds without a touch the first pass over cached pages takes two to four times as long here.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            _read_file(path)


def _read_file(path: Path) -> None:
    """What was only allocated is passed over."""
    file = REAL_DISK.open(str(path), Mode.READ)
    at, size = 0, file.size()
    while (at := file.next_data(at)) < size:
        stop = file.data_end(at)
        for place in range(at, stop, PIECE):
            file.read(place, min(PIECE, stop - place))
        at = stop
    file.close()


def touch_free_memory() -> None:
    """Touch free pages and give them back at once, so that the next ones taken are among them.

    A virtual machine may hand freed pages to its host (free page reporting); whoever takes one next waits 5 to 15 us for it
    where a page at hand takes 0.3 us.  A stretch that meets such pages measures the host, on both sides.
    """
    size = min(TOUCHED, _free_bytes() - LEFT_ALONE)
    if size <= 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, size, mmap.PAGESIZE):
            memory[start] = 1
