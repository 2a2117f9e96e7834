"""Scan and encode the records of `N.rdq` (docs/formats/rabbitmq-rdq.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from storageio import StoreCorrupt
from storebytes.finding import Finding

from .container import START as CONTAINER_START
from .layout import MSG_ID_SIZE, RECORD_END_MARK, RECORD_HEAD, RECORD_MIN, RECORD_OVERHEAD, RECORD_SIZE_BYTES
from .rdq_scan_cy import frame
from .terms import VERSION as TERM_VERSION
from .terms import Atom, Term
from .terms_cy import decode_at

TERM_AT = RECORD_HEAD.size  # offset in a record
_ID = Atom("id")
_FAILURES_MAX, _SEARCHED_MAX = 1000, 16 << 30
_NOT_ZERO = re.compile(rb"[^\0]")
RECORD_END = bytes((RECORD_END_MARK,))


class StoreRecord(NamedTuple):
    """The location of a record; `total_size` includes the size field and the end mark."""

    msg_id: bytes
    offset: int
    total_size: int


class RdqScan(NamedTuple):
    """The records of a file.

    `valid_end` is where the last whole record ends, `stopped_at` where no further record could be framed, and
    `unframed_from` where the first bytes outside of whole records begin: a wrong size hides the records that it spans.
    """

    records: list[StoreRecord]
    valid_end: int
    stopped_at: int
    unframed_from: int = 0


def encode_record(msg_id: bytes, term: bytes) -> bytes:
    """Encode a whole record."""
    return RECORD_HEAD.pack(MSG_ID_SIZE + len(term), msg_id) + term + RECORD_END


def scan_records(data: bytes | memoryview, file: str, problems: list[Finding] | None = None) -> RdqScan:
    """Return every record with an end mark, up to a size of 0 or a record that does not fit.

    A record without the mark is skipped; `valid_end` passes it only when a whole record follows, as in RabbitMQ 3.10.
    The compaction of RabbitMQ 3.13 and later leaves zeros between records; a scan of its files continues after them.
    """
    view = memoryview(data)
    rows, unmarked, valid_end, at = frame_records(view)
    if problems is not None:
        problems += (Finding(file, mark, "record_without_end_mark", "255", str(view[mark])) for mark in unmarked)
        if at < len(view):
            problems.append(Finding(file, at, "torn_record", "a record", f"{len(view) - at} other bytes"))
    return RdqScan(list(map(StoreRecord._make, rows)), valid_end, at, first_unframed(rows, unmarked, at))


def frame_records(view: memoryview) -> tuple[list[tuple[bytes, int, int]], list[int], int, int]:
    """Return (id, offset, total size) of every record, the offsets of wrong end marks, and the ends as `frame` returns them."""
    rows: list[tuple[bytes, int, int]] = []
    unmarked: list[int] = []
    valid_end, at = frame(view, rows, unmarked)
    if (at < len(view) or unmarked) and CONTAINER_START in (whole := bytes(view)):
        rows, unmarked = [], []
        valid_end, at = _frame_across_holes(whole, rows, unmarked)
    return rows, unmarked, valid_end, at


def _frame_across_holes(data: bytes, rows: list[tuple[bytes, int, int]], unmarked: list[int]) -> tuple[int, int]:
    """Do the work of `frame`, but skip runs of zeros, at the end of the file too."""
    valid_end = at = 0
    while len(data) - at >= RECORD_MIN:
        size, msg_id = RECORD_HEAD.unpack_from(data, at)
        total = size + RECORD_OVERHEAD
        fits = size >= MSG_ID_SIZE and total <= len(data) - at
        if fits and data[at + total - 1] == RECORD_END_MARK:
            rows.append((msg_id, at, total))
            valid_end = at = at + total
        elif (after := _after_hole(data, at)) > at:
            at = after
        elif fits:
            unmarked.append(at + total - 1)
            at += total
        else:
            break
    return valid_end, at if data[at:].strip(b"\0") else len(data)


def _after_hole(data: bytes, at: int) -> int:
    """Return where the record after the zeros at `at` begins, or the file's end; `at` when neither follows.

    The size field of a record begins with zeros too, so up to eight offsets are tried.
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


def first_unframed(rows: list[tuple[bytes, int, int]], unmarked: list[int], stopped_at: int) -> int:
    """Return where the first bytes outside of whole records begin: before a wrong end mark, or where framing stopped."""
    if not unmarked:
        return stopped_at
    return max((offset + total for _, offset, total in rows if offset < unmarked[0]), default=0)


def find_record(data: bytes, msg_id: bytes, start: int) -> StoreRecord | None:
    """Find a whole record of this id at or after `start`, past damage that stops a scan.

    Use it only for an id that an index entry refers to: any bytes may look like a record.
    """
    at = data.find(msg_id, start + RECORD_SIZE_BYTES)
    while at >= 0:
        offset = at - RECORD_SIZE_BYTES
        size = RECORD_HEAD.unpack_from(data, offset)[0] if offset + RECORD_MIN <= len(data) else 0
        total = size + RECORD_OVERHEAD
        is_whole = size > MSG_ID_SIZE and total <= len(data) - offset and data[offset + total - 1] == RECORD_END_MARK
        if is_whole and data[offset + TERM_AT] == TERM_VERSION:
            return StoreRecord(msg_id, offset, total)
        at = data.find(msg_id, at + 1)
    return None


def find_containers(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield (id, offset of its record, term) of every message container, whatever the bytes around it are.

    A container has the id of its message, so that it proves itself where the record's size, id or end mark is damaged.  The
    search ends after too many beginnings of containers that are none.
    """
    at = data.find(CONTAINER_START)
    failures = 0
    while at >= 0 and failures < _FAILURES_MAX and failures * len(data) < _SEARCHED_MAX:
        try:
            term, end = decode_at(data, at)
        except StoreCorrupt:
            end, failures = at + 1, failures + 1
        else:
            msg_id = _id_of(term)
            if msg_id is not None and at >= TERM_AT:
                yield msg_id, at - TERM_AT, data[at:end]
        at = data.find(CONTAINER_START, end)


def _id_of(term: Term) -> bytes | None:
    """Return the id in the annotations of a message container."""
    annotations = term[3] if isinstance(term, tuple) and len(term) == 4 else None
    msg_id = annotations.get(_ID) if isinstance(annotations, dict) else None
    return msg_id if isinstance(msg_id, bytes) and len(msg_id) == MSG_ID_SIZE else None


FEW_IDS = 64


def find_any_record(data: bytes, msg_ids: Set[bytes]) -> bytes | None:
    """Return an id that has a whole record in `data`, or None.  Many ids are searched in one pass over the data."""
    requested: Iterable[bytes] = msg_ids
    if len(msg_ids) > FEW_IDS:
        size = MSG_ID_SIZE
        requested = (part for at in range(len(data) - size) if (part := data[at : at + size]) in msg_ids)
    return next((msg_id for msg_id in requested if find_record(data, msg_id, 0)), None)


def check_record(data: bytes, msg_id: bytes, total_size: int) -> bool:
    """Return whether these are exactly the bytes of that record."""
    if len(data) != total_size or total_size < RECORD_MIN:
        return False
    return RECORD_HEAD.unpack_from(data) == (total_size - RECORD_OVERHEAD, msg_id) and data[-1] == RECORD_END_MARK
