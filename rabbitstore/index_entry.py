"""One entry of a queue's index, of either version."""

from __future__ import annotations


class IndexEntry:
    """A message's place in its queue.

    `term` is the embedded message, None when it lies in a store.  `file` and `offset` say where the entry was found (for
    version 2 and an embedded message, where its term is), `expiry_us` is absolute, 0 for none.
    """

    __slots__ = ("acked", "delivered", "expiry_us", "file", "msg_id", "offset", "persistent", "seq_id", "size", "term")

    def __init__(
        self,
        seq_id: int,
        msg_id: bytes,
        expiry_us: int,
        size: int,
        persistent: bool,
        term: bytes | None,
        file: str = "",
        offset: int = 0,
    ) -> None:
        """Published, not yet delivered or acknowledged."""
        self.seq_id = seq_id
        self.msg_id = msg_id
        self.expiry_us = expiry_us
        self.size = size
        self.persistent = persistent
        self.term = term
        self.file = file
        self.offset = offset
        self.delivered = False
        self.acked = False

    def __repr__(self) -> str:
        """For test failures."""
        marks = "".join(letter for letter, is_on in (("P", self.persistent), ("D", self.delivered), ("A", self.acked)) if is_on)
        return f"<{self.seq_id} {self.msg_id.hex()} {marks}>"
