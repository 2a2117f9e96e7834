"""Read an index file past damage.

Segments and journals have neither checksums nor block borders: after a wrong length or number nothing can be framed, and one
bit would cost every later message.  So reading continues at the next *proven* entry: a publish whose embedded message is whole
and has the entry's id, or a publish of a stored message followed by its own delivered mark, as 3.10 writes it.  Marks between
the damage and that entry are ignored; the messages that they acknowledged are delivered again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from storageio import StoreCorrupt
from storebytes.finding import Finding

from ..format.content import is_message
from ..format.entry_cy import IndexEntry
from ..format.journal import JournalEntry, read_journal
from ..format.layout import (
    JOURNAL_DELIVERED,
    JOURNAL_HEAD,
    JOURNAL_PUBLISH_SIZE,
    JOURNAL_SEQ,
    PUBLISH_BODY,
    SEGMENT_HEAD,
    SEGMENT_MARK,
    SEGMENT_RELATIVE,
)
from ..format.segment_cy import read_segment

# A publish with plausible numbers: nothing embedded, or a term below 128 KiB.
_TERM = rb"(?:\0{4}|\0[\0\1]..\x83)"
_TERM_MAX = 128 << 10
_PARTS_MAX = 64  # of one file: entries after more damage than that are not read
_SEARCHED_MAX = 128 << 20  # bytes of terms checked for one proven entry: a malicious file may have many candidates
_SEGMENT_PUBLISH = re.compile(rb"(?s)[\x80-\xff](?=.{29}" + _TERM + rb")")
_JOURNAL_PUBLISH = re.compile(rb"(?s)[\0\x40](?=\0\0.{33}" + _TERM + rb")")


class ReadableParts(NamedTuple):
    """The readable parts of a file, joined; `stop` is where the first one ends."""

    data: bytes
    starts: list[int]  # of each part, in `data`
    offsets: list[int]  # of each part, in the file
    stop: int

    def offset_of(self, at: int) -> int:
        """Return the offset in the file of a byte of `data`."""
        number = bisect_right(self.starts, at) - 1
        return at - self.starts[number] + self.offsets[number]


Measure = Callable[[bytes], tuple[int, int]]  # where the entries end, and where the first suspicious one begins
Find = Callable[[bytes, int], int]  # where the next proven entry begins, or -1


def _readable(data: bytes, measure: Measure, find: Find) -> ReadableParts:
    """Drop suspicious entries only before a proven one: at the end of the file they are damaged messages."""
    parts: list[bytes] = []
    starts, offsets, size, at = [], [], 0, 0
    while at >= 0 and len(parts) < _PARTS_MAX:
        end, suspicious = measure(data[at:])
        proven = find(data, at + suspicious + 1)
        parts.append(data[at : at + (end if proven < 0 else suspicious)])
        starts.append(size)
        offsets.append(at)
        size += len(parts[-1])
        at = proven
    return ReadableParts(b"".join(parts), starts, offsets, len(parts[0]))


def read_segment_past_damage(
    data: bytes, first_seq_id: int, entries: int, file: str, problems: list[Finding]
) -> tuple[dict[int, IndexEntry], int]:
    """Call `read_segment`; after damage, add the entries from the next proven one on."""
    added: list[Finding] = []
    found, end = read_segment(data, first_seq_id, entries, file, added)
    problems += added
    if not added:
        return found, end
    parts = readable_segment(data, entries)
    found = read_segment(parts.data, first_seq_id, entries, file, [])[0]
    for entry in found.values():
        entry.offset = parts.offset_of(entry.offset)
    return found, parts.stop


def refuse_lost_entries(data: bytes, first_seq_id: int, entries: int, file: str, journal: Container[int]) -> None:
    """Raise `StoreCorrupt` when a segment has whole entries after damage: an opening would lose them.

    Entries that a crash tore while they were written are still in the journal; that is not damage.
    """
    usual, stop = read_segment(data, first_seq_id, entries, file, [])
    for relative, entry in read_segment_past_damage(data, first_seq_id, entries, file, [])[0].items():
        if relative not in usual and not entry.acked and entry.seq_id not in journal:
            found = f"damage, and message {entry.seq_id} after it: run recover"
            raise StoreCorrupt("damage before whole entries", file=file, offset=stop, expected="an entry", found=found)


def readable_segment(data: bytes, entries: int) -> ReadableParts:
    """Return the readable parts of a segment."""

    def measure(part: bytes) -> tuple[int, int]:
        problems: list[Finding] = []
        found, end = read_segment(part, 0, entries, "", problems)
        twice = (problem.offset for problem in problems if problem.kind == "published_twice")
        return end, min(_first_mismatch(found.values(), end), next(twice, end))

    def find(whole: bytes, at: int) -> int:
        return _first_proven(whole, at, _SEGMENT_PUBLISH, lambda start: _is_proven(whole, start, entries))

    return _readable(data, measure, find)


def _first_mismatch(found: Iterable[IndexEntry], end: int) -> int:
    """Return where the first entry begins that embeds another message than it names; its length may be wrong."""
    wrong = (entry.offset for entry in found if entry.term is not None and not is_message(entry.term, entry.msg_id))
    return min(wrong, default=end)


def _first_proven(data: bytes, at: int, publish: re.Pattern[bytes], is_proven: Callable[[int], bool]) -> int:
    searched = 0
    for match in publish.finditer(data, at):
        start = match.start()
        if is_proven(start):
            return start
        searched += min(_TERM_MAX, len(data) - start)
        if searched > _SEARCHED_MAX:
            break
    return -1


def _is_proven(data: bytes, at: int, entries: int) -> bool:
    relative = SEGMENT_HEAD.unpack_from(data, at)[0] & SEGMENT_RELATIVE
    mark = SEGMENT_HEAD.pack(SEGMENT_MARK | relative)
    is_inside = len(data) - at >= SEGMENT_HEAD.size + PUBLISH_BODY.size
    return is_inside and relative < entries and _is_publish(data, at + SEGMENT_HEAD.size, mark)


def _is_publish(data: bytes, body: int, mark: bytes) -> bool:
    """Return whether the bytes are a publish body, proven by its message or by the mark after it."""
    msg_id, _expiry_us, _size, embedded = PUBLISH_BODY.unpack_from(data, body)
    start = body + PUBLISH_BODY.size
    if embedded:
        return embedded <= len(data) - start and is_message(data[start : start + embedded], msg_id)
    return data.startswith(mark, start)


def read_journal_past_damage(
    data: bytes, file: str, problems: list[Finding], is_whole: Callable[[IndexEntry], bool] = lambda _entry: True
) -> tuple[dict[int, JournalEntry], int]:
    """Call `read_journal`; after damage, add the entries from the next proven one on."""
    added: list[Finding] = []
    found, end = read_journal(data, file, added, is_whole)
    problems += added
    if not added:
        return found, end
    parts = readable_journal(data)
    found = read_journal(parts.data, file, [], is_whole)[0]
    for logged in found.values():
        logged.offset = parts.offset_of(logged.offset)
        if logged.publish is not None:
            logged.publish.offset = parts.offset_of(logged.publish.offset)
    return found, parts.stop


def readable_journal(data: bytes) -> ReadableParts:
    """Return the readable parts of a journal."""

    def measure(part: bytes) -> tuple[int, int]:
        found, end = read_journal(part, "", [])
        return end, _first_mismatch([logged.publish for logged in found.values() if logged.publish is not None], end)

    def find(whole: bytes, at: int) -> int:
        return _first_proven(whole, at, _JOURNAL_PUBLISH, lambda start: _is_proven_publish(whole, start))

    return _readable(data, measure, find)


def _is_proven_publish(data: bytes, at: int) -> bool:
    number = JOURNAL_HEAD.unpack_from(data, at)[0] & JOURNAL_SEQ
    mark = JOURNAL_HEAD.pack(JOURNAL_DELIVERED << 62 | number)
    return len(data) - at >= JOURNAL_PUBLISH_SIZE and _is_publish(data, at + JOURNAL_HEAD.size, mark)
