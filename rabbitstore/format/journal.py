"""Read `journal.jif`, the changes since the last flush, and join it to a segment (docs/formats/rabbitmq-index.md#reading)."""

from __future__ import annotations

from collections.abc import Callable

from storebytes.finding import Finding

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
from .torn import is_torn_head

_ZEROS = bytes(JOURNAL_PUBLISH_SIZE)


class JournalEntry:
    """The journal's state of one sequence number."""

    __slots__ = ("acked", "delivered", "offset", "publish")

    def __init__(self, offset: int) -> None:
        """Start without any change; `offset` is where the number was first seen."""
        self.offset = offset
        self.publish: IndexEntry | None = None
        self.delivered = False
        self.acked = False


def read_journal(
    data: bytes, file: str, problems: list[Finding], is_whole: Callable[[IndexEntry], bool] = lambda _entry: True
) -> tuple[dict[int, JournalEntry], int]:
    """Return the entries by sequence number, and where the valid bytes end.  A torn tail is dropped and reported.

    Marks that contradict each other keep the server from starting and are reported.  An acknowledgement that comes before the
    publish does not count: the message is kept.

    The tail begins at the first entry that does not fit, whose number is torn, or that `is_whole` rejects.
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
            is_second = entry.publish is not None or entry.delivered or entry.acked
            size = _read_publish(data, at, seq_id, kind == JOURNAL_PUBLISH_PERSISTENT, entry, file)
            if not size or (entry.publish is not None and entry.publish.offset == at and not is_whole(entry.publish)):
                break
            if is_second:
                problems.append(Finding(file, at, "published_twice", "a publish before its marks, once", f"message {seq_id}"))
                entry.acked = entry.acked and entry.publish is not None and entry.publish.offset < at
        else:
            size = JOURNAL_HEAD.size
            if entry.acked or (entry.delivered and kind != JOURNAL_ACKNOWLEDGED):
                problems.append(Finding(file, at, "mark_too_many", "delivered, then acknowledged, once", f"message {seq_id}"))
            if kind == JOURNAL_ACKNOWLEDGED:
                entry.acked = True
            else:
                entry.delivered = True
        found[seq_id] = entry
        at += size
    if at < stop and data.count(0, at) < stop - at:
        problems.append(Finding(file, at, "torn_journal", "an entry", f"{stop - at} other bytes"))
    return found, at


def _read_publish(data: bytes, at: int, seq_id: int, persistent: bool, entry: JournalEntry, file: str) -> int:
    """Return the size of the whole entry, 0 when it does not fit.

    A repeated publish is ignored; a publish of another message under the same number is not an entry.
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
    """Replay journal entries of a segment into it.

    The journal may repeat the segment: a second publish and a mark already there are ignored, and so is an acknowledgement
    of a number that neither file published.
    """
    for seq_id, logged in journal.items():
        entry = segment.get(seq_id - first_seq_id)
        if entry is None:
            entry = logged.publish
            if entry is None:  # after a crash a journal may outlive its segment
                continue
            segment[seq_id - first_seq_id] = entry
        entry.delivered = entry.delivered or logged.delivered
        entry.acked = entry.acked or logged.acked
    return segment
