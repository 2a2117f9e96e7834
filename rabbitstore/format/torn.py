"""Index entries that a crash tore at a sector border (docs/formats/rabbitmq-index.md#reading)."""

from __future__ import annotations

from storageio import SECTOR_SIZE


def is_torn_head(data: bytes, at: int, size_bytes: int) -> bool:
    """Return whether the head of `size_bytes` at `at` reaches into a sector of zeros.

    The number in such a head has lost its low bytes and would name another entry: an acknowledgement of 5 reads as one of 0.
    A whole entry at the file's end whose low bytes are zero looks torn too; its message is delivered again.
    """
    border = (at // SECTOR_SIZE + 1) * SECTOR_SIZE
    stop = min(len(data), border + SECTOR_SIZE)
    return border < at + size_bytes and data.count(0, border, stop) == stop - border
