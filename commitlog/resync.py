"""Search for the next record after damage, or in the middle of a file."""

from __future__ import annotations

from ._scan_cy import find_record
from .mapped_file import MappedFile

PIECE = 4 << 20  # bytes searched in one call; ranges that were never written are skipped without reading


def find_in_file(file: MappedFile, position: int) -> int:
    """Return the first position at or after `position` of a whole record that has its own offset; -1 if there is none."""
    for start, stop in file.pieces_of_data(position, PIECE):
        found = find_record(file.view, start, file.size_bytes, file.start_offset, stop)
        if found >= 0:
            return found
    return -1
