"""The bytes of a journal, and how its entries join those of a segment."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.builds import World

PUBLISH = struct.Struct(">Q16sQII")  # kind and number, id, expiry, size of the body, size of the embedded message
PERSISTENT, TRANSIENT, ACKNOWLEDGED, DELIVERED = 0, 1, 3, 2
IDS = [bytes([number]) * 16 for number in range(1, 5)]


def head(kind: int, seq_id: int) -> int:
    """Encode a head: two bits of kind and 62 of number."""
    return kind << 62 | seq_id


def publish(seq_id: int, *, kind: int = PERSISTENT, term: bytes = b"") -> bytes:
    return PUBLISH.pack(head(kind, seq_id), IDS[seq_id], 7, 100, len(term)) + term


def mark(kind: int, seq_id: int) -> bytes:
    return head(kind, seq_id).to_bytes(8, "big")


@pytest.fixture
def journal(world: World) -> Any:
    """Return the module on one build."""
    return world.module("rabbitstore.format.journal")


def read(journal: Any, data: bytes) -> Any:
    """Read the whole journal and require that it has no problem."""
    problems: list[Any] = []
    found, end = journal.read_journal(data, "journal.jif", problems)
    assert (end, problems) == (len(data), [])
    return found


def test_entries_have_what_was_published(journal: Any) -> None:
    """Number, id, expiry, size, persistence and the embedded message are read."""
    term = b"\x83" + b"t" * 30
    found = read(journal, publish(0) + publish(1, kind=TRANSIENT) + publish(2, term=term))
    assert [
        (entry.publish.seq_id, entry.publish.msg_id, entry.publish.expiry_us, entry.publish.size, entry.publish.persistent)
        for entry in found.values()
    ] == [(0, IDS[0], 7, 100, True), (1, IDS[1], 7, 100, False), (2, IDS[2], 7, 100, True)]
    assert [(entry.publish.embedded, entry.publish.term) for entry in found.values()] == [
        (False, None), (False, None), (True, term)
    ]  # fmt: skip


def test_a_mark_of_an_unknown_message_does_not_hide_later_entries(journal: Any) -> None:
    """A crash deleted message 0's segment before the journal was emptied, which still acknowledges it."""
    found = read(journal, mark(DELIVERED, 0) + mark(ACKNOWLEDGED, 0) + publish(1) + publish(2) + mark(DELIVERED, 2))
    joined = journal.join_journal({}, found, 0)
    assert {seq_id: (entry.delivered, entry.acked) for seq_id, entry in joined.items()} == {1: (False, False), 2: (True, False)}


def test_marks_of_segment_and_journal_are_combined(journal: Any) -> None:
    """One file delivers and the other acknowledges; relative numbers start at the segment's first."""
    segment = {2: read(journal, publish(2) + mark(DELIVERED, 2))[2].publish}
    segment[2].delivered = True
    joined = journal.join_journal(segment, {12: read(journal, mark(ACKNOWLEDGED, 2))[2]}, 10)
    assert list(joined) == [2]
    assert (joined[2].delivered, joined[2].acked, joined[2].msg_id) == (True, True, IDS[2])
