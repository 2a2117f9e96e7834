"""Writes and removes of one client that are in the mailbox (docs/formats/rabbitmq-queue.md#in-flight-writes).

A write counts +1, a remove -1; handling it subtracts that again.  A count of 0 that is still present means that a write and a
remove cancel each other: both are skipped.  Any other count is an error of the caller.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from ..errors import StoreBroken

if not cython.compiled:
    from storebytes._bytes_cy import I64, Bool


class InFlight:
    """Counts by message id."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        """Create it with nothing in flight."""
        self.counts: dict[bytes, int] = {}

    def __len__(self) -> int:
        """Return the number of ids in the mailbox."""
        return len(self.counts)

    def started(self, msg_id: bytes, difference: I64) -> None:
        """Count a write (+1) or a remove (-1) of an id that is already in flight; the caller counts the first one."""
        counts = self.counts
        known = counts[msg_id]
        if known + difference not in (0, difference):
            raise StoreBroken(f"message {msg_id.hex()}: a second {'write' if difference > 0 else 'remove'} in flight")
        counts[msg_id] = known + difference

    def arrived(self, msg_id: bytes, difference: I64) -> Bool:
        """Handle a write (+1) or a remove (-1); return whether it takes effect."""
        counts = self.counts
        known = counts.get(msg_id)
        if known == difference:
            del counts[msg_id]
            return True
        if known == 0:
            del counts[msg_id]
        return False
