"""One message's place in a queue: an entry of an index of either version, and what a queue holds of it in memory."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
if not cython.compiled:
    from storebytes._bytes_cy import SOURCE_HASH


class IndexEntry:
    """A message's place.

    `term` is the message where it is in memory or embedded in the index; None when it lies in a store only.  `embedded` says
    that it belongs into the index instead of a store.  `file` and `offset` say where the entry was found (for version 2 and
    an embedded message, where its term is); `size` counts the body's bytes; `expiry_us` is absolute, 0 for none.
    """

    __slots__ = (
        "acked",
        "delivered",
        "embedded",
        "expiry_us",
        "file",
        "in_index",
        "in_store",
        "msg_id",
        "offset",
        "persistent",
        "seq_id",
        "size",
        "term",
    )

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
        """Published, not yet delivered or acknowledged, on no disk."""
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
        """For test failures."""
        marks = "".join(letter for letter, is_on in (("P", self.persistent), ("D", self.delivered), ("A", self.acked)) if is_on)
        return f"<{self.seq_id} {self.msg_id.hex()} {marks}>"


def is_compiled() -> bool:
    """Which build runs."""
    return cython.compiled


def source_hash() -> int:
    """Of the source this was built from; 0 when plain."""
    return SOURCE_HASH
