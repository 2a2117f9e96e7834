"""`N.rdq`: records back to back (format page, section 2).  Scan and encode; nothing here opens a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from typing import NamedTuple

from .container import START as CONTAINER_START
from .layout import (
    MSG_ID_SIZE,
    RECORD_END_MARK,
    RECORD_HEAD,
    RECORD_MIN,
    RECORD_OVERHEAD,
    RECORD_SIZE_BYTES,
)
from .problems import Problem
from .scan_cy import frame
from .terms import VERSION as TERM_VERSION

TERM_AT = RECORD_HEAD.size  # in a record
_NOT_ZERO = re.compile(rb"[^\0]")
RECORD_END = bytes((RECORD_END_MARK,))


class Record(NamedTuple):
    """Where a record lies; `total_size` counts the length field and the end mark."""

    msg_id: bytes
    offset: int
    total_size: int


class Scan(NamedTuple):
    """What a file holds; `valid_end` is where the last framed record ends, `stopped_at` where no record could be framed.

    `doubtful_from` is where the first bytes begin that no whole record has: a wrong size hides the records that it goes over.
    """

    records: list[Record]
    valid_end: int
    stopped_at: int
    doubtful_from: int = 0


def encode_record(msg_id: bytes, term: bytes) -> bytes:
    """The whole record."""
    return RECORD_HEAD.pack(MSG_ID_SIZE + len(term), msg_id) + term + RECORD_END


def scan_records(data: bytes | memoryview, file: str, problems: list[Problem] | None = None) -> Scan:
    """Return every record whose last byte is the mark, up to a size of 0 or a record that does not fit.

    A record without the mark is skipped; `valid_end` goes on behind it only when a good record follows, as in RabbitMQ 3.10.
    Zeroes between records are no damage in a file of RabbitMQ 3.13 or later, whose compaction leaves them: reading goes on
    at the record behind them.
    """
    rows: list[tuple[bytes, int, int]] = []
    unmarked: list[int] = []
    view = memoryview(data)
    valid_end, at = frame(view, rows, unmarked)
    if (at < len(view) or unmarked) and CONTAINER_START in (whole := bytes(view)):
        rows, unmarked = [], []
        valid_end, at = _frame_past_holes(whole, rows, unmarked)
    if problems is not None:
        problems += (Problem(file, mark, "record_without_end_mark", "255", str(view[mark])) for mark in unmarked)
        if at < len(view):
            problems.append(Problem(file, at, "torn_record", "a record", f"{len(view) - at} bytes that are none"))
    return Scan(list(map(Record._make, rows)), valid_end, at, first_doubt(rows, unmarked, at))


def _frame_past_holes(data: bytes, rows: list[tuple[bytes, int, int]], unmarked: list[int]) -> tuple[int, int]:
    """Frame as `scan_cy.frame` does, but go on behind zeroes; in a file that ends with zeroes nothing is left."""
    valid_end = at = 0
    while len(data) - at >= RECORD_MIN:
        size, msg_id = RECORD_HEAD.unpack_from(data, at)
        total = size + RECORD_OVERHEAD
        fits = size >= MSG_ID_SIZE and total <= len(data) - at
        if fits and data[at + total - 1] == RECORD_END_MARK:
            rows.append((msg_id, at, total))
            valid_end = at = at + total
        elif (behind := _behind_hole(data, at)) > at:
            at = behind
        elif fits:
            unmarked.append(at + total - 1)
            at += total
        else:
            break
    return valid_end, at if data[at:].strip(b"\0") else len(data)


def _behind_hole(data: bytes, at: int) -> int:
    """Return where the record behind the zeroes at `at` begins, or where the file ends; `at` when neither is there.

    The size field of a record begins with zeroes too, so that up to eight places come into question.
    """
    found = _NOT_ZERO.search(data, at)
    if found is None:
        return len(data)
    for start in range(max(at + 1, found.start() - RECORD_SIZE_BYTES + 1), found.start() + 1):
        total = RECORD_HEAD.unpack_from(data, start)[0] + RECORD_OVERHEAD if start + RECORD_MIN < len(data) else 0
        is_framed = RECORD_MIN < total <= len(data) - start and data[start + total - 1] == RECORD_END_MARK
        if is_framed and data[start + TERM_AT] == TERM_VERSION:
            return start
    return at


def first_doubt(rows: list[tuple[bytes, int, int]], unmarked: list[int], stopped_at: int) -> int:
    """Where the first bytes begin that no whole record has: those without an end mark, or where framing stopped."""
    if not unmarked:
        return stopped_at
    return max((offset + total for _, offset, total in rows if offset < unmarked[0]), default=0)


def find_record(data: bytes, msg_id: bytes, start: int) -> Record | None:
    """A whole record of this id behind damage that a scan cannot pass; from `start` on.

    Only for an id that somebody refers to: bytes that look like a record are believed for that id alone.
    """
    at = data.find(msg_id, start + RECORD_SIZE_BYTES)
    while at >= 0:
        offset = at - RECORD_SIZE_BYTES
        size = RECORD_HEAD.unpack_from(data, offset)[0] if offset + RECORD_MIN <= len(data) else 0
        total = size + RECORD_OVERHEAD
        is_whole = size > MSG_ID_SIZE and total <= len(data) - offset and data[offset + total - 1] == RECORD_END_MARK
        if is_whole and data[offset + TERM_AT] == TERM_VERSION:
            return Record(msg_id, offset, total)
        at = data.find(msg_id, at + 1)
    return None


FEW_IDS = 64


def find_any_record(data: bytes, msg_ids: Set[bytes]) -> bytes | None:
    """An id of which a whole record lies in `data`; None without one.  One pass for many ids, so that damage to one file and
    a million missing messages do not multiply.
    """
    wanted: Iterable[bytes] = msg_ids
    if len(msg_ids) > FEW_IDS:
        size = MSG_ID_SIZE
        wanted = (part for at in range(len(data) - size) if (part := data[at : at + size]) in msg_ids)
    return next((msg_id for msg_id in wanted if find_record(data, msg_id, 0)), None)


def check_record(data: bytes, msg_id: bytes, total_size: int) -> bool:
    """Whether these are the whole bytes of that record."""
    if len(data) != total_size or total_size < RECORD_MIN:
        return False
    return RECORD_HEAD.unpack_from(data) == (total_size - RECORD_OVERHEAD, msg_id) and data[-1] == RECORD_END_MARK
