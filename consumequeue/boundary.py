"""Which message answers a question for a time."""

from __future__ import annotations

from enum import Enum


class Boundary(Enum):
    """Which message answers when none, or several, were stored at the time asked for."""

    LOWER = "lower"  # the first stored then or later
    UPPER = "upper"  # the last stored then or earlier
    NEAREST = "nearest"  # the one closest in time, the earlier of two
