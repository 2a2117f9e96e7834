"""What a queue asks of its index, whichever version it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from storageio import Disk
from storebytes.finding import Finding

from ..format.entry_cy import IndexEntry
from ..read.entry_copies import HasMessage
from ..settings import IndexSettings


class Index(Protocol):
    """The index of one queue: `QueueIndex` is version 1, `QueueIndexV2` version 2."""

    disk: Disk
    folder: str
    settings: IndexSettings
    before_flush: Callable[[], None] | None
    next_seq_id: int
    read_count: int
    miscounted: int
    problems: list[Finding]

    def publish(self, seq_id: int, msg_id: bytes, expiry_us: int, size: int, persistent: bool, term: bytes | None) -> None:
        """Add a message; `term` embeds it."""

    def acknowledge(self, seq_ids: Iterable[int]) -> None:
        """Acknowledge messages; each must be unacknowledged."""

    @property
    def needs_sync(self) -> bool:
        """Whether a change is not yet on disk."""

    def position(self) -> tuple[int, int]:
        """Return where the changes so far end, for a later `sync` up to here."""

    def sync(self, position: tuple[int, int] | None = None) -> None:
        """Make all changes durable, or those up to `position`."""

    def flush(self) -> None:
        """Write everything to the segments."""

    def segment_end(self, seq_id: int) -> int:
        """Return the first sequence number of the next segment."""

    def read(self, start: int, stop: int) -> list[IndexEntry]:
        """Return the unacknowledged entries of start..stop, a range within one segment, by sequence number."""

    def bounds(self) -> tuple[int, int]:
        """Return the first sequence number of the oldest segment with entries, and the next sequence number."""

    @property
    def unacked(self) -> int:
        """The number of unacknowledged entries."""

    def unacked_by_segment(self) -> dict[int, int]:
        """Return the numbers of unacknowledged entries by segment, without zeros."""

    def load(
        self, keep: Callable[[IndexEntry], bool], is_whole: Callable[[IndexEntry], bool], has_message: HasMessage
    ) -> Iterator[IndexEntry]:
        """Read everything; yield each unacknowledged entry for which `keep` is true, and acknowledge the others."""

    def resume(
        self, unacked: dict[int, int], next_seq_id: int, keep: Callable[[IndexEntry], bool], has_message: HasMessage
    ) -> bool:
        """Continue from a clean stop with `unacked` entries by segment; return false when the files differ."""

    def check(self) -> None:
        """Assert the invariants of the index."""

    def close(self) -> None:
        """Write everything and close the files."""

    def abandon(self) -> None:
        """Close the files without writing anything."""

    def delete(self) -> None:
        """Delete the queue's folder durably."""
