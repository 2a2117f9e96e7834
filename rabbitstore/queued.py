"""One message of a queue in memory, and a range of messages that are not."""

from __future__ import annotations


class Queued:
    """A message whose place in the queue is in memory.

    `term` is None when the message lies in a store only.  `embedded` says that it belongs into the index instead of a store.
    """

    __slots__ = ("embedded", "expiry_us", "in_index", "in_store", "msg_id", "persistent", "seq_id", "size", "term")

    def __init__(
        self, seq_id: int, msg_id: bytes, term: bytes | None, size: int, expiry_us: int, persistent: bool, embedded: bool
    ) -> None:
        """On no disk yet.  `size` counts the body's bytes; `persistent` is true in durable queues only."""
        self.seq_id = seq_id
        self.msg_id = msg_id
        self.term = term
        self.size = size
        self.expiry_us = expiry_us
        self.persistent = persistent
        self.embedded = embedded
        self.in_store = False
        self.in_index = False

    def __repr__(self) -> str:
        """For test failures."""
        marks = (("term", self.term is not None), ("store", self.in_store), ("index", self.in_index))
        return f"<{self.seq_id} {' '.join(name for name, is_on in marks if is_on)}>"


class Delta:
    """Messages of which only a range of sequence numbers is in memory: `count` of those in start..stop."""

    __slots__ = ("count", "start", "stop")

    def __init__(self, start: int = 0, count: int = 0, stop: int = 0) -> None:
        """Empty unless told otherwise."""
        self.start = start
        self.count = count
        self.stop = stop

    def expand(self, seq_id: int) -> None:
        """One more message."""
        if self.count == 0:
            self.start, self.stop = seq_id, seq_id + 1
        else:
            self.start, self.stop = min(self.start, seq_id), max(self.stop, seq_id + 1)
        self.count += 1

    def clear(self) -> None:
        """Empty."""
        self.start = self.count = self.stop = 0
