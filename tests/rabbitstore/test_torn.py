"""Index entries whose numbers lost their low bytes with a sector that never reached the disk."""

from __future__ import annotations

import pytest

from rabbitstore.format.journal import read_journal
from rabbitstore.format.layout import JOURNAL_ACKNOWLEDGED, JOURNAL_PUBLISH_TRANSIENT
from rabbitstore.format.segment_cy import read_segment
from rabbitstore.format.torn import SECTOR_SIZE

IDENT = b"0123456789abcdef"
BODY = IDENT + bytes(8) + (7).to_bytes(4, "big")


def journal_publish(seq_id: int, embedded: bytes) -> bytes:
    return seq_id.to_bytes(8, "big") + BODY + len(embedded).to_bytes(4, "big") + embedded


def journal_head(kind: int, seq_id: int) -> bytes:
    return (kind << 62 | seq_id).to_bytes(8, "big")


def with_a_lost_sector(data: bytes, more: bytes) -> bytes:
    """Return the data with zeros after the first sector, followed by `more`."""
    return data[:SECTOR_SIZE].ljust(2 * SECTOR_SIZE, b"\0") + more


@pytest.mark.parametrize("kept", range(1, 8))
@pytest.mark.parametrize("more", [b"", b"what a later sector has"], ids=["at the end", "before others"])
@pytest.mark.parametrize("kind", [JOURNAL_ACKNOWLEDGED, JOURNAL_PUBLISH_TRANSIENT])
def test_a_torn_journal_entry_is_not_read_as_one_of_another_message(kind: int, more: bytes, kept: int) -> None:
    """Read as 0, an acknowledgement or transient message of number 5 used to remove message 0."""
    first = journal_publish(0, b"")
    filler = journal_publish(1, bytes(b"x" * (SECTOR_SIZE - kept - 2 * len(first))))
    last = journal_head(kind, 5) + BODY + bytes(4)
    data = first + filler + last
    assert len(first + filler) == SECTOR_SIZE - kept
    assert set(read_journal(data, "f", [])[0]) == {0, 1, 5}
    problems = []
    found, end = read_journal(with_a_lost_sector(data, more), "f", problems)
    assert (set(found), found[0].acked, end) == ({0, 1}, False, SECTOR_SIZE - kept)
    assert found[0].publish.persistent
    assert [problem.kind for problem in problems] == ["torn_journal"]


def test_an_acknowledgement_across_sectors_counts_only_if_both_were_written() -> None:
    """Its low bytes are not zero, or an entry follows."""
    first = journal_publish(0, b"")
    filler = journal_publish(1, bytes(b"x" * (SECTOR_SIZE - 4 - 2 * len(first))))
    acknowledged = first + filler + journal_head(JOURNAL_ACKNOWLEDGED, 1)
    assert read_journal(acknowledged, "f", [])[0][1].acked
    acknowledged = first + filler + journal_head(JOURNAL_ACKNOWLEDGED, 0)
    assert read_journal(acknowledged + journal_publish(2, b""), "f", [])[0][0].acked


def test_a_torn_segment_mark_is_not_read_as_one_of_another_message() -> None:
    """Without its second byte the mark `40 05` would acknowledge message 0."""

    def publish(relative: int, embedded: bytes = b"") -> bytes:
        return (0xC000 | relative).to_bytes(2, "big") + BODY + len(embedded).to_bytes(4, "big") + embedded

    first = publish(0) + bytes.fromhex("4000")
    filler = bytes(b"x" * (SECTOR_SIZE - 1 - len(first) - len(publish(5))))
    data = first + publish(5, filler) + bytes.fromhex("4005")
    assert len(data) == SECTOR_SIZE + 1
    assert read_segment(data, 0, 16, "f", [])[0][5].delivered
    problems = []
    found, end = read_segment(with_a_lost_sector(data, b""), 0, 16, "f", problems)
    assert (found[0].delivered, found[0].acked, found[5].delivered, end) == (True, False, False, SECTOR_SIZE - 1)
    assert [problem.kind for problem in problems] == ["torn_segment"]
