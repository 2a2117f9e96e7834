"""The part of a queue that is only on disk."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
if not cython.compiled:
    from storebytes._bytes_cy import I64


class Delta:
    """Messages of which memory has only a range of sequence numbers: `count` of those in start..stop."""

    __slots__ = ("count", "start", "stop")

    def __init__(self, start: int = 0, count: int = 0, stop: int = 0) -> None:
        """Create it, empty by default."""
        self.start = start
        self.count = count
        self.stop = stop

    def expand(self, seq_id: I64) -> None:
        """Add the message to the range."""
        if self.count == 0:
            self.start, self.stop = seq_id, seq_id + 1
        else:
            self.start, self.stop = min(self.start, seq_id), max(self.stop, seq_id + 1)
        self.count += 1

    def clear(self) -> None:
        """Remove all messages from it."""
        self.start = self.count = self.stop = 0
