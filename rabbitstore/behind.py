"""What lies behind damage in an index file: where reading can go on.

A segment and a journal have neither checksums nor borders: behind a wrong length or number nothing can be framed, and one bit
would cost every message that follows.  So reading goes on at the next *proven* entry: a publish whose embedded message is whole
and has the id that the entry names, or a publish of a stored message right before its own delivered mark, as all of 3.10 are.
Marks between the damage and that entry are not believed: what they acknowledged comes again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from storageio import StoreCorrupt

from .content import is_message
from .entry_cy import IndexEntry
from .journal import JournalEntry, read_journal
from .layout import (
    JOURNAL_DELIVERED,
    JOURNAL_HEAD,
    JOURNAL_PUBLISH_SIZE,
    PUBLISH_BODY,
    SEGMENT_HEAD,
    SEGMENT_MARK,
    SEGMENT_RELATIVE,
)
from .problems import Problem
from .segment_cy import read_segment

# A publish whose numbers are no larger than any that is written: nothing embedded, or a term below 128 KiB.
_TERM = rb"(?:\0{4}|\0[\0\1]..\x83)"
_TERM_MAX = 128 << 10
_PIECES_MAX = 64  # of one file: what lies behind more damage than that is left out
_SEARCHED_MAX = 128 << 20  # bytes of terms looked at for one place, in files made so that there are many
_SEGMENT_PUBLISH = re.compile(rb"(?s)[\x80-\xff](?=.{29}" + _TERM + rb")")
_JOURNAL_PUBLISH = re.compile(rb"(?s)[\0\x40](?=\0\0.{33}" + _TERM + rb")")


class Pieces(NamedTuple):
    """The parts of a file that can be read, joined; `stop` is where the first one ends."""

    data: bytes
    starts: list[int]  # of each part, in `data`
    offsets: list[int]  # of each part, in the file
    stop: int

    def offset_of(self, at: int) -> int:
        """Where a byte of `data` lies in the file."""
        number = bisect_right(self.starts, at) - 1
        return at - self.starts[number] + self.offsets[number]


Reach = Callable[[bytes], tuple[int, int]]  # where bytes cease to be entries, and where the first begins that may be none
Find = Callable[[bytes, int], int]  # where the next proven entry begins, -1 for nowhere


def _pieces(data: bytes, reach: Reach, find: Find) -> Pieces:
    """What may be no entry is left out only where something is proven behind it: alone it is a damaged message."""
    parts: list[bytes] = []
    starts, offsets, size, at = [], [], 0, 0
    while at >= 0 and len(parts) < _PIECES_MAX:
        end, doubt = reach(data[at:])
        behind = find(data, at + doubt + 1)
        parts.append(data[at : at + (end if behind < 0 else doubt)])
        starts.append(size)
        offsets.append(at)
        size += len(parts[-1])
        at = behind
    return Pieces(b"".join(parts), starts, offsets, len(parts[0]))


def read_segment_past(
    data: bytes, first_seq_id: int, entries: int, file: str, problems: list[Problem]
) -> tuple[dict[int, IndexEntry], int]:
    """As `read_segment`, and what is proven behind the damage that it names."""
    named: list[Problem] = []
    found, end = read_segment(data, first_seq_id, entries, file, named)
    problems += named
    if not named:
        return found, end
    pieces = segment_pieces(data, entries)
    found = read_segment(pieces.data, first_seq_id, entries, file, [])[0]
    for entry in found.values():
        entry.offset = pieces.offset_of(entry.offset)
    return found, pieces.stop


def refuse_lost_entries(data: bytes, first_seq_id: int, entries: int, file: str, journal: Container[int]) -> None:
    """`StoreCorrupt` when a segment has good entries behind damage: opening would lose them.

    What a crash tore while it was written stands in the journal still, and is no damage.
    """
    usual, stop = read_segment(data, first_seq_id, entries, file, [])
    for relative, entry in read_segment_past(data, first_seq_id, entries, file, [])[0].items():
        if relative not in usual and not entry.acked and entry.seq_id not in journal:
            found = f"none, but message {entry.seq_id} behind it: run recover"
            raise StoreCorrupt("damage before good entries", file=file, offset=stop, expected="an entry", found=found)


def segment_pieces(data: bytes, entries: int) -> Pieces:
    """The parts of a segment."""

    def reach(part: bytes) -> tuple[int, int]:
        problems: list[Problem] = []
        found, end = read_segment(part, 0, entries, "", problems)
        twice = (problem.offset for problem in problems if problem.kind == "published_twice")
        return end, min(_first_untrue(found.values(), end), next(twice, end))

    def find(whole: bytes, at: int) -> int:
        return _first_proven(whole, at, _SEGMENT_PUBLISH, lambda start: _is_proven(whole, start, entries))

    return _pieces(data, reach, find)


def _first_untrue(found: Iterable[IndexEntry], end: int) -> int:
    """Where the first entry begins whose message is not the one that it names: its length, or all before it, may be wrong."""
    untrue = (entry.offset for entry in found if entry.term is not None and not is_message(entry.term, entry.msg_id))
    return min(untrue, default=end)


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
    """Whether a publish body is one, by its message or by the mark behind it."""
    msg_id, _expiry_us, _size, embedded = PUBLISH_BODY.unpack_from(data, body)
    start = body + PUBLISH_BODY.size
    if embedded:
        return embedded <= len(data) - start and is_message(data[start : start + embedded], msg_id)
    return data.startswith(mark, start)


def read_journal_past(
    data: bytes, file: str, problems: list[Problem], is_whole: Callable[[IndexEntry], bool] = lambda _entry: True
) -> tuple[dict[int, JournalEntry], int]:
    """As `read_journal`, and what is proven behind the damage that it names."""
    named: list[Problem] = []
    found, end = read_journal(data, file, named, is_whole)
    problems += named
    if not named:
        return found, end
    pieces = journal_pieces(data)
    found = read_journal(pieces.data, file, [], is_whole)[0]
    for late in found.values():
        late.offset = pieces.offset_of(late.offset)
        if late.publish is not None:
            late.publish.offset = pieces.offset_of(late.publish.offset)
    return found, pieces.stop


def journal_pieces(data: bytes) -> Pieces:
    """The parts of a journal."""

    def reach(part: bytes) -> tuple[int, int]:
        found, end = read_journal(part, "", [])
        return end, _first_untrue([late.publish for late in found.values() if late.publish is not None], end)

    def find(whole: bytes, at: int) -> int:
        return _first_proven(whole, at, _JOURNAL_PUBLISH, lambda start: _is_proven_late(whole, start))

    return _pieces(data, reach, find)


def _is_proven_late(data: bytes, at: int) -> bool:
    number = JOURNAL_HEAD.unpack_from(data, at)[0] & (1 << 62) - 1
    mark = JOURNAL_HEAD.pack(JOURNAL_DELIVERED << 62 | number)
    return len(data) - at >= JOURNAL_PUBLISH_SIZE and _is_publish(data, at + JOURNAL_HEAD.size, mark)
