"""Crashes inside a recovery, and inside the recovery from those."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from storageio.testing import ForgettingDisk, Image


def crash_inside(
    image: Image, now_ms: int, recover: Callable[[ForgettingDisk], object], random: Random, *, depth: int, chances: int = 1,
    seen: set[int] | None = None,
) -> int:  # fmt: skip
    """Recover from an image, and from a crash at each changing call on the way; return how many were tried.

    Each call is tried with everything written, with the least that remains, and with `chances` random images; equal content is
    tried once.  `recover` opens the disk, checks it, and stops without a further change; it raises what is wrong.
    """
    seen = set() if seen is None else seen
    disk = ForgettingDisk.of(image, now_ms)
    found: list[Image] = []

    def catch(_operation: str, _path: str) -> None:
        for left in (disk.after_kill(), disk.least(), *(disk.any_image(random) for _ in range(chances))):
            if left.key not in seen:
                seen.add(left.key)
                found.append(left)

    if depth > 0:
        disk.watch = catch
    recover(disk)
    if depth > 0:
        catch("after", "")
    return len(found) + sum(
        crash_inside(left, now_ms, recover, random, depth=depth - 1, chances=chances, seen=seen) for left in found
    )
