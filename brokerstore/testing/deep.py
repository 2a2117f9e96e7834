"""A crash inside a recovery, and inside the recovery of that."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from storageio.testing import ForgettingDisk, Image


def crash_inside(
    image: Image, now_ms: int, recover: Callable[[ForgettingDisk], object], random: Random, *, depth: int, chances: int = 1,
    seen: set[int] | None = None,
) -> int:  # fmt: skip
    """Recover from an image, and from every crash at each call that changes something on the way; how many were tried.

    At each call: everything that was written, the least that is left, and `chances` by chance; the same content is tried
    once.  `recover` opens the disk, checks it, and lets go without a further change; it raises what is wrong.
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
