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

_P, _D, _A = 1, 2, 4  # published, delivered, acknowledged
_REFUSED = {  # by the marks of an entry in the journal and those in the segment
    (_P, _P + _D): "published_twice",
    (_P, _P + _D + _A): "published_twice",
    (_P + _D, _P + _D + _A): "published_twice",
    (_D, 0): "mark_without_publish",
    (_D, _P + _D + _A): "mark_too_many",
    (_A, _P): "ack_without_delivery",
    **{(_P + _A, others): "ack_without_delivery" for others in (0, _P, _P + _D, _P + _D + _A)},
}
_EXPECTED = {
    "published_twice": "each mark of the segment after an entry that repeats it",
    "mark_without_publish": "a publish before each delivery",
    "mark_too_many": "an acknowledgement after each delivery that the segment acknowledges",
    "ack_without_delivery": "a delivery before each acknowledgement",
}


def _without_forgotten(journal: dict[int, JournalEntry], in_file: dict[int, IndexEntry], first: int) -> dict[int, JournalEntry]:
    """Return the journal as the server counts it: publish, delivery and acknowledgement of one message are as none.

    So it delivers an acknowledged message again if the segment has that, too, without the acknowledgement.
    """
    return {
        seq_id: logged
        for seq_id, logged in journal.items()
        if seq_id - first not in in_file or not (logged.publish is not None and logged.delivered and logged.acked)
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
        self._report_refused(in_file, journal, first, problems)
        return join_journal(in_file, _without_forgotten(journal, in_file, first), first)

    def _report_refused(
        self, in_file: dict[int, IndexEntry], journal: dict[int, JournalEntry], first: int, problems: list[Finding]
    ) -> None:
        """Report entries of the journal that the server cannot join to those of the segment: it does not start the queue.

        3.10 writes acknowledgements of messages that 3.8 left undelivered, and a kill may leave a segment with more marks.
        """
        refused: dict[str, list[tuple[int, int]]] = {}
        for seq_id, logged in journal.items():
            marks = _P * (logged.publish is not None) + _D * logged.delivered + _A * logged.acked
            entry = in_file.get(seq_id - first)
            others = 0 if entry is None else _P + _D * entry.delivered + _A * entry.acked
            kind = _REFUSED.get((marks, others))
            if kind is not None:
                refused.setdefault(kind, []).append((logged.offset, seq_id))
        where = f"{self.queue.relative}/{layout.JOURNAL_NAME}"
        for kind, found in refused.items():
            offset, seq_id = min(found)
            text = f"{len(found)} without one, first of message {seq_id}"
            problems.append(Finding(where, offset, kind, _EXPECTED[kind], text))

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
