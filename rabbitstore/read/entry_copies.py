"""Two copies of one index entry: after a kill in the middle of a flush the journal repeats what a segment has.

A flush syncs the segments before it empties the journal.  So a crash that tore a segment left the whole entry in the journal,
and the journal's copy counts.  Where only the segment's copy has its message in a file, the journal is damaged instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from storebytes.finding import Finding

from ..format.content import is_message
from ..format.entry_cy import IndexEntry
from ..format.journal import JournalEntry

HasMessage = Callable[[bytes], bool]  # whether a message store has this id


def no_message(_msg_id: bytes) -> bool:
    """Return false: for a reader without message stores."""
    return False


class CopyDifference(NamedTuple):
    """An entry whose copies differ; `journal_counts` tells which copy was kept."""

    problem: Finding
    journal_counts: bool


def drop_worse_copies(
    in_file: dict[int, IndexEntry], journal: dict[int, JournalEntry], first_seq_id: int, has_message: HasMessage
) -> list[CopyDifference]:
    """Remove one copy of every entry whose copies differ, and return what differed."""
    found = []
    for seq_id, logged in journal.items():
        entry = in_file.get(seq_id - first_seq_id)
        if entry is None or logged.publish is None or _is_same(logged.publish, entry):
            continue
        journal_counts = _journal_counts(logged.publish, entry, has_message)
        expected, got = f"message {entry.msg_id.hex()}, as in {entry.file}", f"message {logged.publish.msg_id.hex()}"
        problem = Finding(logged.publish.file, logged.publish.offset, "entries_differ", expected, got)
        found.append(CopyDifference(problem, journal_counts))
        if journal_counts:
            del in_file[seq_id - first_seq_id]
        else:
            logged.publish = None
    return found


def _is_same(logged: IndexEntry, entry: IndexEntry) -> bool:
    return (logged.msg_id, logged.term, logged.size, logged.expiry_us) == (
        entry.msg_id,
        entry.term,
        entry.size,
        entry.expiry_us,
    )


def _journal_counts(logged: IndexEntry, entry: IndexEntry, has_message: HasMessage) -> bool:
    """Return whether the segment's copy is the damaged one.

    When both copies have a message but of different ids, the number in the journal is damaged.
    """
    if not _has_message(entry, has_message):
        return True
    return logged.msg_id == entry.msg_id and _has_message(logged, has_message)


def _has_message(entry: IndexEntry, has_message: HasMessage) -> bool:
    return is_message(entry.term, entry.msg_id) if entry.term is not None else has_message(entry.msg_id)
