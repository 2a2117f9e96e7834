"""A message of a queue: an index entry of either version, and the state that a queue keeps of it in memory."""

from __future__ import annotations


class IndexEntry:
    """A message of a queue.

    `term` is the message in memory or embedded in the index, None when only a message store has it.  `embedded` messages
    belong into the index instead of a store.  `file` and `offset` locate the entry (an embedded message of version 2: its
    term).  `size` is the body's in bytes, `expiry_us` absolute, 0 for none.
    """

    __slots__ = (
        "acked", "delivered", "embedded", "expiry_us", "file", "in_index", "in_store", "msg_id", "offset", "persistent",
        "seq_id", "size", "term",
    )  # fmt: skip

    def __init__(
        self,
        seq_id: int,
        msg_id: bytes,
        expiry_us: int,
        size: int,
        persistent: bool,
        term: bytes | None,
        embedded: bool,
        file: str = "",
        offset: int = 0,
    ) -> None:
        """Create it published, not delivered, not acknowledged, in no file."""
        self.seq_id = seq_id
        self.msg_id = msg_id
        self.expiry_us = expiry_us
        self.size = size
        self.persistent = persistent
        self.term = term
        self.embedded = embedded
        self.file = file
        self.offset = offset
        self.delivered = False
        self.acked = False
        self.in_store = False
        self.in_index = False

    def __repr__(self) -> str:
        """Return the number, id and marks (persistent, delivered, acknowledged)."""
        marks = "".join(letter for letter, is_on in (("P", self.persistent), ("D", self.delivered), ("A", self.acked)) if is_on)
        return f"<{self.seq_id} {self.msg_id.hex()} {marks}>"
