"""What a crash leaves of an entry in an index file whose next sector never reached the disk."""

from __future__ import annotations

from storageio import SECTOR_SIZE


def is_torn_head(data: bytes, at: int, size_bytes: int) -> bool:
    """Whether the head of `size_bytes` at `at` goes over the border of a sector of zeros.

    The number in such a head has lost its low bytes and would be another entry's: an acknowledgement of 5 would be one of 0.
    An entry that ends the file there and whose low bytes are zero in truth passes for torn too: its message comes again.
    """
    border = (at // SECTOR_SIZE + 1) * SECTOR_SIZE
    stop = min(len(data), border + SECTOR_SIZE)
    return border < at + size_bytes and data.count(0, border, stop) == stop - border
