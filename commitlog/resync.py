"""Taking up a walk again behind damage, or in the middle of a file."""

from __future__ import annotations

from ._scan_cy import find_record
from .mapped_file import MappedFile

PIECE = 4 << 20  # searched at once; between two pieces what was never written is passed over unread


def find_in_file(file: MappedFile, position: int) -> int:
    """The first place at or behind `position` where a whole record lies that says its own place; -1 when there is none."""
    for start, stop in file.pieces_of_data(position, PIECE):
        found = find_record(file.view, start, file.size_bytes, file.start_offset, stop)
        if found >= 0:
            return found
    return -1
