"""The choice between messages in a search by store time."""

from __future__ import annotations

from enum import Enum


class Boundary(Enum):
    """Which message a search by time returns if none, or several, were stored at that time."""

    LOWER = "lower"  # the first stored at or after the time
    UPPER = "upper"  # the last stored at or before the time
    NEAREST = "nearest"  # the one closest in time, the earlier of two
