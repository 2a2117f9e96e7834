"""Read the version-1 index in a queue's folder: `N.idx`, and `journal.jif` (docs/formats/rabbitmq-index.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from storebytes.finding import Finding

from ..files import map_if_there, read_if_there
from ..format import layout
from ..format.entry_cy import IndexEntry
from ..format.journal import JournalEntry, join_journal
from .entry_copies import drop_worse_copies
from .index_reader import Finish, IndexFolder
from .intact_segment_cy import read_intact
from .salvage import read_journal_past_damage, read_segment_past_damage

_EXPECTED = {  # by kind of contradiction between a journal and a segment
    "ack_without_delivery": "a delivery before each acknowledgement",
    "mark_too_many": "deliveries of messages that are not acknowledged",
    "published_twice": "publishes with the marks that a segment has",
}


class IndexV1:
    """Reads version 1 of an index; `IndexV2` has the same methods."""

    def __init__(self, queue: IndexFolder) -> None:
        """`queue` is the folder; nothing is read yet."""
        self.queue = queue

    def journal(self, problems: list[Finding]) -> dict[int, dict[int, JournalEntry]]:
        """Return the journal's entries by segment, then by sequence number."""
        where = f"{self.queue.relative}/{layout.JOURNAL_NAME}"
        data = read_if_there(self.queue.disk, f"{self.queue.path}/{layout.JOURNAL_NAME}")
        if data and not any(data):  # none at all may be a power failure before the first entry in it was confirmed
            expected = "the entries since the last segment was written"
            problems.append(Finding(where, 0, "lost_journal", expected, f"{len(data)} zeros"))
        entries, _end = read_journal_past_damage(data or b"", where, problems)
        by_segment: dict[int, dict[int, JournalEntry]] = {}
        for seq_id, entry in entries.items():
            by_segment.setdefault(seq_id // self.queue.segment_entries, {})[seq_id] = entry
        return by_segment

    def segment(self, number: int, problems: list[Finding]) -> dict[int, IndexEntry]:
        """Return a segment by relative number, without the journal."""
        where = f"{self.queue.relative}/{number}.idx"
        data = read_if_there(self.queue.disk, f"{self.queue.path}/{number}.idx") or b""
        entries = self.queue.segment_entries
        found, end = read_segment_past_damage(data, number * entries, entries, where, problems)
        if found and end < len(data) and not any(data[end:]):  # a power failure may leave them; 3.8 opens no queue then
            problems.append(Finding(where, end, "torn_segment", "an entry", f"{len(data) - end} zeros"))
        return found

    def segments(self, problems: list[Finding], in_order: Any, finish: Finish, first: int = 0) -> Iterator[Any]:
        """Yield each segment from the number `first` on: what `finish` makes of an intact one, and the entries of any other."""
        journal = self.journal(problems)
        numbers = sorted(number for number in {*self.queue.segment_numbers(), *journal} if number >= first)
        alone = in_order(lambda number: self._intact(number, finish), [one for one in numbers if one not in journal])
        for number in numbers:
            found = next(alone) if number not in journal else None
            if found is None:
                joined = self.joined(number, journal.get(number, {}), problems)
                found = [joined[relative] for relative in sorted(joined)]
            yield found

    def _intact(self, number: int, finish: Finish) -> Any:
        data = map_if_there(self.queue.disk, f"{self.queue.path}/{number}.idx") or b""
        found = read_intact(data, number, self.queue.segment_entries, f"{self.queue.relative}/{number}.idx") if data else None
        return None if found is None else finish(found)

    def joined(self, number: int, journal: dict[int, JournalEntry], problems: list[Finding]) -> dict[int, IndexEntry]:
        """Return a segment by relative number, with the journal's entries of this segment."""
        first = number * self.queue.segment_entries
        in_file = self.segment(number, problems)
        if not in_file and not journal:
            self._report_lost_segment(number, problems)
        problems += (one.problem for one in drop_worse_copies(in_file, journal, first, self.queue.has_message))
        self._report_contradictions(in_file, journal, first, problems)
        return join_journal(in_file, journal, first)

    def _report_contradictions(
        self, in_file: dict[int, IndexEntry], journal: dict[int, JournalEntry], first: int, problems: list[Finding]
    ) -> None:
        """Report what keeps the server from loading the queue (docs/formats/rabbitmq-index.md#order-of-a-flush)."""
        seen: dict[str, list[tuple[int, int]]] = {}
        for seq_id, logged in journal.items():
            kind = contradiction(logged, in_file.get(seq_id - first))
            if kind:
                seen.setdefault(kind, []).append((logged.offset, seq_id))
        for kind, rows in seen.items():
            offset, seq_id = min(rows)
            where = f"{self.queue.relative}/{layout.JOURNAL_NAME}"
            problems.append(Finding(where, offset, kind, _EXPECTED[kind], f"{len(rows)} others, first of message {seq_id}"))

    def _report_lost_segment(self, number: int, problems: list[Finding]) -> None:
        """Report a segment without entries, or of zeros: they are in no file, since a flush empties the journal after them."""
        data = read_if_there(self.queue.disk, f"{self.queue.path}/{number}.idx")
        if data is not None and not any(data):
            where = f"{self.queue.relative}/{number}.idx"
            found = f"{len(data)} zeros" if data else "an empty file"
            problems.append(Finding(where, 0, "lost_index", "the entries of a segment", found))

    def named_ids(self) -> Iterator[bytes]:
        """Yield nothing: messages without an index entry are found by version 2 only."""
        return iter(())

    def unknown_heads(self) -> Iterator[Finding]:
        """Yield nothing: a segment has no head."""
        return iter(())


def contradiction(logged: JournalEntry, entry: IndexEntry | None) -> str:
    """Return the kind of contradiction between the states of a message in the journal and in its segment, or an empty text.

    3.10 acknowledges messages that 3.8 left undelivered without a delivery.  A kill after a flush wrote the segments leaves a
    journal that ends before its last marks: they were not in the file yet.
    """
    if logged.publish is not None:
        if logged.acked and not logged.delivered and (entry is None or not entry.delivered):
            return "ack_without_delivery"
        is_behind = entry is not None and ((entry.delivered and not logged.delivered) or (entry.acked and not logged.acked))
        return "published_twice" if is_behind else ""
    if logged.acked:
        return "ack_without_delivery" if entry is not None and not (logged.delivered or entry.delivered) else ""
    return "mark_too_many" if entry is None or entry.acked else ""
