"""Decide where a log file is finished; every reader of a log calls this."""

from __future__ import annotations

from .checks import BLANK, STOPS, TORN
from .layout import BLANK_SIZE


def is_whole_blank(head: memoryview | bytes, left: int) -> bool:
    """Return whether a blank record, of which `head` has the size, covers the `left` bytes to the end of its file."""
    return int.from_bytes(head[:4], "big", signed=True) == left


def is_file_end(why: str, left: int, head: memoryview | bytes = b"", *, any_blank: bool = False) -> bool:
    """Return whether a walk that stopped because of `why` (`checks.STOPS`) is at the end of a finished file.

    `left` counts the bytes to the end of the file, and `head` holds them. A blank record must cover all of them
    (`docs/formats/commitlog.md#blank-record`): behind one of another size, records may follow. With `any_blank` its size does
    not count, as in RocketMQ's dispatcher. Fewer bytes than a blank record needs also end a file.
    """
    if why == STOPS[BLANK]:
        return any_blank or is_whole_blank(head, left)
    return left == 0 or (why == STOPS[TORN] and left < BLANK_SIZE)
