"""`journal.jif`: what happened since the last flush, and how it joins a segment (format page, section 3)."""

from __future__ import annotations

from collections.abc import Callable

from .entry_cy import IndexEntry
from .layout import (
    JOURNAL_ACKNOWLEDGED,
    JOURNAL_HEAD,
    JOURNAL_PUBLISH_PERSISTENT,
    JOURNAL_PUBLISH_SIZE,
    JOURNAL_PUBLISH_TRANSIENT,
    JOURNAL_SEQ,
    PUBLISH_BODY,
)
from .problems import Problem
from .torn import is_torn_head

_ZEROS = bytes(JOURNAL_PUBLISH_SIZE)


class JournalEntry:
    """What the journal knows of one sequence number."""

    __slots__ = ("acked", "delivered", "offset", "publish")

    def __init__(self, offset: int) -> None:
        """Nothing yet; `offset` is where the number was first seen."""
        self.offset = offset
        self.publish: IndexEntry | None = None
        self.delivered = False
        self.acked = False


def read_journal(
    data: bytes, file: str, problems: list[Problem], is_whole: Callable[[IndexEntry], bool] = lambda _entry: True
) -> tuple[dict[int, JournalEntry], int]:
    """The entries by sequence number, and where the good bytes end.  A torn tail is dropped and reported.

    It begins at the first entry that does not fit, whose number a lost sector cut short, or that `is_whole` says was never
    written to its end.
    """
    found: dict[int, JournalEntry] = {}
    at, stop = 0, len(data)
    while stop - at >= JOURNAL_HEAD.size:
        if data.startswith(_ZEROS, at) or is_torn_head(data, at, JOURNAL_HEAD.size):
            break
        head = JOURNAL_HEAD.unpack_from(data, at)[0]
        kind, seq_id = head >> 62, head & JOURNAL_SEQ
        entry = found.get(seq_id)
        if entry is None:
            entry = JournalEntry(at)
        if kind in (JOURNAL_PUBLISH_PERSISTENT, JOURNAL_PUBLISH_TRANSIENT):
            size = _read_publish(data, at, seq_id, kind == JOURNAL_PUBLISH_PERSISTENT, entry, file)
            if not size or (entry.publish is not None and entry.publish.offset == at and not is_whole(entry.publish)):
                break
        else:
            size = JOURNAL_HEAD.size
            if kind == JOURNAL_ACKNOWLEDGED:
                entry.acked = True
            else:
                entry.delivered = True
        found[seq_id] = entry
        at += size
    if at < stop and data.count(0, at) < stop - at:
        problems.append(Problem(file, at, "torn_journal", "an entry", f"{stop - at} bytes that are none"))
    return found, at


def _read_publish(data: bytes, at: int, seq_id: int, persistent: bool, entry: JournalEntry, file: str) -> int:
    """The size of the whole entry, 0 when it does not fit.

    A second publish of a number counts for nothing; it is none when it is another message's.
    """
    if len(data) - at < JOURNAL_PUBLISH_SIZE:
        return 0
    msg_id, expiry_us, size, embedded = PUBLISH_BODY.unpack_from(data, at + JOURNAL_HEAD.size)
    stop = at + JOURNAL_PUBLISH_SIZE + embedded
    if stop > len(data) or (entry.publish is not None and entry.publish.msg_id != msg_id):
        return 0
    if entry.publish is None:
        term = data[at + JOURNAL_PUBLISH_SIZE : stop] if embedded else None
        entry.publish = IndexEntry(seq_id, msg_id, expiry_us, size, persistent, term, embedded > 0, file, at)
    return int(stop - at)


def join_journal(segment: dict[int, IndexEntry], journal: dict[int, JournalEntry], first_seq_id: int) -> dict[int, IndexEntry]:
    """The segment as it is after a replay of these journal entries (all of its sequence numbers).

    The journal may repeat the segment: publish and publish are one, a mark already there is dropped, an acknowledgement
    of a number that neither file published is ignored.
    """
    for seq_id, late in journal.items():
        entry = segment.get(seq_id - first_seq_id)
        if entry is None:
            entry = late.publish
            if entry is None:  # a journal that outlived its segment by a crash; nothing is wrong with that
                continue
            segment[seq_id - first_seq_id] = entry
        entry.delivered = entry.delivered or late.delivered
        entry.acked = entry.acked or late.acked
    return segment
