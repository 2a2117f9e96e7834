"""How much the long tests do: a sample of each kind before a merge, all of it at night (`BROKERSTORE_NIGHT=1`)."""

from __future__ import annotations

import os

IS_NIGHT = bool(os.environ.get("BROKERSTORE_NIGHT"))


def amount(sample: int, night: int) -> int:
    """Return the number of rounds, folders or seeds for this run."""
    return night if IS_NIGHT else sample
