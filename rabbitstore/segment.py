"""`N.idx`: what is in one segment of a version-1 queue index (format page, section 3)."""

from __future__ import annotations

from .index_entry import IndexEntry
from .layout import (
    PUBLISH_BODY,
    SEGMENT_HEAD,
    SEGMENT_MARK,
    SEGMENT_PERSISTENT,
    SEGMENT_PUBLISH,
    SEGMENT_RELATIVE,
)
from .problems import Problem

_BODY_AT = SEGMENT_HEAD.size
_TERM_AT = _BODY_AT + PUBLISH_BODY.size


def read_segment(
    data: bytes, first_seq_id: int, entries: int, file: str, problems: list[Problem]
) -> tuple[dict[int, IndexEntry], int]:
    """The entries by relative number, and where the good bytes end.

    Order in the file is free but for publish, delivered, acknowledged of one number.  Reading stops at the first bytes
    that are no entry; what is odd goes to `problems`.
    """
    found: dict[int, IndexEntry] = {}
    at, stop = 0, len(data)
    while stop - at >= SEGMENT_HEAD.size:
        head = SEGMENT_HEAD.unpack_from(data, at)[0]
        relative = head & SEGMENT_RELATIVE
        if head & SEGMENT_PUBLISH:
            taken = _read_publish(data, at, first_seq_id + relative, bool(head & SEGMENT_PERSISTENT), file)
            if taken is None or relative >= entries:
                break
            entry, size = taken
            if relative in found:
                problems.append(Problem(file, at, "published_twice", "one entry", f"relative number {relative}"))
            else:
                found[relative] = entry
            at += size
        elif head & SEGMENT_MARK:
            _read_mark(found, relative, at, file, problems)
            at += SEGMENT_HEAD.size
        else:
            break
    if at < stop and data.count(0, at) < stop - at:
        problems.append(Problem(file, at, "torn_segment", "an entry", f"{stop - at} bytes that are none"))
    return found, at


def _read_publish(data: bytes, at: int, seq_id: int, persistent: bool, file: str) -> tuple[IndexEntry, int] | None:
    """The entry and its size in the file; None when it does not fit."""
    if len(data) - at < _TERM_AT:
        return None
    msg_id, expiry_us, size, embedded = PUBLISH_BODY.unpack_from(data, at + _BODY_AT)
    stop = at + _TERM_AT + embedded
    if stop > len(data):
        return None
    term = data[at + _TERM_AT : stop] if embedded else None
    return IndexEntry(seq_id, msg_id, expiry_us, size, persistent, term, file, at), _TERM_AT + embedded


def _read_mark(found: dict[int, IndexEntry], relative: int, at: int, file: str, problems: list[Problem]) -> None:
    """The first mark of a number is delivered, the second acknowledged."""
    entry = found.get(relative)
    if entry is None:
        problems.append(Problem(file, at, "mark_without_publish", "a publish before", f"relative number {relative}"))
    elif not entry.delivered:
        entry.delivered = True
    elif not entry.acked:
        entry.acked = True
    else:
        problems.append(Problem(file, at, "mark_too_many", "two marks", f"relative number {relative}"))


def write_segment(entries: dict[int, IndexEntry]) -> bytes:
    """The bytes of these entries by relative number: each publish, then its marks."""
    parts = []
    for relative, entry in sorted(entries.items()):
        term = entry.term or b""
        flags = SEGMENT_PUBLISH | (SEGMENT_PERSISTENT if entry.persistent else 0)
        parts.append(SEGMENT_HEAD.pack(flags | relative))
        parts.append(PUBLISH_BODY.pack(entry.msg_id, entry.expiry_us, entry.size, len(term)) + term)
        parts.append(SEGMENT_HEAD.pack(SEGMENT_MARK | relative) * (1 + entry.acked))
    return b"".join(parts)
