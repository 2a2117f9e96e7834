"""Writes and removes of one client that the owner has not seen yet (format page, section 5).

A write counts +1, a remove -1, each taken back when the owner meets it.  A count of 0 that is still there means that a
write and a remove have met before the owner saw either: both are skipped.  A count beyond one is a caller's error.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from .errors import StoreBroken

if not cython.compiled:
    from storebytes._bytes_cy import I64, SOURCE_HASH, Bool


class Flying:
    """Counts by message id."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        """Nothing flies."""
        self.counts: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Ids that the owner will still meet."""
        return len(self.counts)

    def started(self, msg_id: bytes, difference: I64) -> None:
        """The client sends a write (+1) or a remove (-1) of an id that flies already; the first one it counts itself."""
        counts = self.counts
        known = counts[msg_id]
        if known + difference not in (0, difference):
            raise StoreBroken(f"message {msg_id.hex()}: a second {'write' if difference > 0 else 'remove'} in flight")
        counts[msg_id] = known + difference

    def arrived(self, msg_id: bytes, difference: I64) -> Bool:
        """The owner meets the write (+1) or the remove (-1); whether it is to be done."""
        counts = self.counts
        known = counts.get(msg_id)
        if known == difference:
            del counts[msg_id]
            return True
        if known == 0:
            del counts[msg_id]
        return False


def is_compiled() -> bool:
    """Which build runs."""
    return cython.compiled


def source_hash() -> int:
    """Of the source this was built from; 0 when plain."""
    return SOURCE_HASH
