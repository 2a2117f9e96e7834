"""The clean-stop files, for reading: `clean.dot`, `*.ets`, `recovery.dets` (format page, section 4)."""

from __future__ import annotations

import hashlib
import re
from struct import Struct
from typing import Any, NamedTuple, cast

from storageio import StoreCorrupt

from .terms import UNDEFINED, VERSION, Atom, CharList, Term, decode

_ETS_HEAD = b"\x01\x02\x03\x04cXM\x0b"
_CHUNK = Struct(">I4s")
_CHUNK_MAGIC = b"bWLA"
_MD5_FROM = 65528  # chunks this long carry 16 bytes of MD5 behind the magic
_DETS_COOKIE = b"\x00\xab\xcd\xef"
_DETS_VERSION = 9
_DETS_OBJECTS_AT = 32
_DETS_ACTIVE = b"\x12\x34\x56\x78"
_U32 = Struct(">I")
_REFS = re.compile(rb"\{client_refs,\[((?:<<[0-9,\s]*>>[,\s]*)*)\]\}\.")
_REF = re.compile(rb"<<([0-9,\s]*)>>")
_MODULE = re.compile(rb"\{index_module,([a-z_]+)\}\.")


class CleanMark(NamedTuple):
    """`clean.dot`."""

    client_refs: tuple[bytes, ...]
    index_module: str


class SummaryRow(NamedTuple):
    """A row of `file_summary.ets`; neighbours are file numbers or None."""

    file: int
    valid_total_size: int
    left: int | None
    right: int | None
    file_size: int
    locked: bool
    readers: int


class LocationRow(NamedTuple):
    """A row of `msg_store_index.ets`; offset and total_size are of the whole record."""

    msg_id: bytes
    ref_count: int
    file: int
    offset: int
    total_size: int


class RecoveryRow(NamedTuple):
    """A row of `recovery.dets`; `segments` maps a segment to its unacknowledged entries (version 1 or 2)."""

    folder: str
    segments: dict[int, int]
    next_seq_id: int
    next_deliver_seq_id: int
    persistent_ref: bytes | None
    persistent_count: int
    persistent_bytes: int


def read_clean_mark(data: bytes, file: str) -> CleanMark:
    """`StoreCorrupt` when either term is missing."""
    refs, module = _REFS.search(data), _MODULE.search(data)
    if refs is None or module is None:
        raise StoreCorrupt("not a clean mark", file=file, offset=0, expected="client_refs and index_module", found=data[:60])
    try:
        found = tuple(bytes(int(octet) for octet in ref.split(b",") if octet.strip()) for ref in _REF.findall(refs[1]))
    except ValueError as error:
        raise StoreCorrupt("not a clean mark", file=file, offset=0, expected="bytes", found=refs[1][:60]) from error
    return CleanMark(found, module[1].decode())


def read_ets(data: bytes, file: str) -> list[tuple[Term, ...]]:
    """The rows of a table written by `ets:tab2file`; `StoreCorrupt` when it is torn or its count is wrong."""
    if data[:8] != _ETS_HEAD:
        raise StoreCorrupt("not an ets file", file=file, offset=0, expected=_ETS_HEAD, found=data[:8])
    rows: list[tuple[Term, ...]] = []
    at = 8
    is_first = True
    while at < len(data):
        term, at = _read_chunk(data, at, file)
        if isinstance(term, list):
            return _checked_count(rows, term, file, at)
        if not isinstance(term, tuple):
            raise StoreCorrupt("not a row", file=file, offset=at, expected="a tuple", found=type(term).__name__)
        if not is_first:
            rows.append(term)
        is_first = False
    raise StoreCorrupt("ets file without an end", file=file, offset=at, expected="$end_of_table", found="end of file")


def _read_chunk(data: bytes, at: int, file: str) -> tuple[Term, int]:
    if len(data) - at < _CHUNK.size:
        raise StoreCorrupt("torn chunk", file=file, offset=at, expected=f"{_CHUNK.size} bytes", found=f"{len(data) - at} bytes")
    length, magic = _CHUNK.unpack_from(data, at)
    start = at + _CHUNK.size + (16 if length >= _MD5_FROM else 0)
    if magic != _CHUNK_MAGIC or length > len(data) - start:
        raise StoreCorrupt("torn chunk", file=file, offset=at, expected=_CHUNK_MAGIC, found=f"{magic!r}, {length} bytes")
    chunk = data[start : start + length]
    if length >= _MD5_FROM and hashlib.md5(chunk, usedforsecurity=False).digest() != data[start - 16 : start]:
        raise StoreCorrupt("chunk fails its MD5", file=file, offset=at, expected=data[start - 16 : start].hex(), found="other")
    return decode(chunk, file=file, base=start), start + length


def _checked_count(rows: list[tuple[Term, ...]], end: list[Term], file: str, at: int) -> list[tuple[Term, ...]]:
    options = end[1] if len(end) == 2 and end[0] == Atom("$end_of_table") else None
    counts = [pair[1] for pair in options if isinstance(pair, tuple) and len(pair) == 2] if isinstance(options, list) else []
    if counts and counts[0] != len(rows):
        raise StoreCorrupt("ets file lost rows", file=file, offset=at, expected=counts[0], found=len(rows))
    return rows


def read_summary(data: bytes, file: str) -> list[SummaryRow]:
    """Rows by file number."""
    return sorted(_rows(read_ets(data, file), file, _summary_row))


def read_locations(data: bytes, file: str) -> list[LocationRow]:
    """Rows by message id, those with reference count 0 included."""
    return sorted(_rows(read_ets(data, file), file, _location_row))


def _rows(rows: list[tuple[Term, ...]], file: str, make: Any) -> Any:
    try:
        return [make(*row) for row in rows]
    except (TypeError, ValueError) as error:
        raise StoreCorrupt("a row of another table", file=file, offset=8, expected=make.__name__, found=str(error)) from error


def _optional(value: Any) -> int | None:
    return None if value == UNDEFINED else int(value)


def _summary_row(name: Any, number: Any, valid: Any, left: Any, right: Any, size: Any, locked: Any, readers: Any) -> SummaryRow:
    if name != "file_summary":
        raise ValueError(name)
    return SummaryRow(int(number), int(valid), _optional(left), _optional(right), int(size), locked == "true", int(readers))


def _location_row(name: Any, msg_id: Any, ref_count: Any, number: Any, offset: Any, total_size: Any) -> LocationRow:
    if name != "msg_location" or len(msg_id) != 16:
        raise ValueError(name)
    return LocationRow(msg_id, int(ref_count), int(number), int(offset), int(total_size))


def read_dets(data: bytes, file: str) -> list[Term]:
    """The objects of a version-9 DETS table in file order; `StoreCorrupt` when it was not closed."""
    head = data[4:8], data[8:12], data[16:20]
    expected = _DETS_COOKIE, _U32.pack(1), _U32.pack(_DETS_VERSION)
    if head != expected:
        raise StoreCorrupt("not a closed dets file", file=file, offset=4, expected=expected, found=head)
    found = []
    at = data.find(_DETS_ACTIVE, _DETS_OBJECTS_AT)
    while at >= 0:
        start = at + 8
        length = _U32.unpack_from(data, at + 4)[0] - 4 if start <= len(data) else -1  # it counts itself
        if 0 < length <= len(data) - start and data[start] == VERSION:
            found.append(decode(data[start : start + length], file=file, base=start))
            at = start + length
        at = data.find(_DETS_ACTIVE, at + 1 if at < start else at)
    return found


def read_recovery(data: bytes, file: str) -> dict[str, RecoveryRow]:
    """The terms of every queue by folder name."""
    found = {}
    for row in read_dets(data, file):
        try:
            folder, terms = cast(Any, row)
            made = _recovery_row(folder, terms)
        except (TypeError, ValueError, KeyError) as error:
            raise StoreCorrupt(
                "a row of another table", file=file, offset=32, expected="terms of a queue", found=error
            ) from error
        found[made.folder] = made
    return found


def _recovery_row(folder: Any, terms: Any) -> RecoveryRow:
    if not isinstance(folder, CharList):
        raise ValueError("the key is no text")
    known = {str(name): value for name, value in terms}
    segments = dict(known["v2_index_state"][1] if "v2_index_state" in known else known.get("segments", []))
    ref = known.get("persistent_ref", UNDEFINED)
    return RecoveryRow(
        folder.decode("latin-1"),
        segments,
        int(known["next_seq_id"]),
        int(known["next_deliver_seq_id"]),
        None if ref == UNDEFINED else ref,
        int(known["persistent_count"]),
        int(known["persistent_bytes"]),
    )
