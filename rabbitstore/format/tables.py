"""Read and write the clean-stop files: `clean.dot`, `*.ets`, `recovery.dets` (docs/formats/rabbitmq-clean-stop.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from storageio import StoreCorrupt, UnsupportedFormat

from .dets_table import read_dets, write_dets
from .ets_rows_cy import take_locations
from .ets_table import read_ets, write_ets
from .index_versions import VERSIONS
from .layout import JOURNAL_SEQ, MSG_ID_SIZE
from .terms import FALSE, TRUE, UNDEFINED, Atom, CharList, Term, encode, is_damaged_name

_REFS = re.compile(rb"\{client_refs,\[((?:<<[0-9,\s]*>>[,\s]*)*)\]\}\.")
_REF = re.compile(rb"<<([0-9,\s]*)>>")
_INDEX_MODULE = "rabbit_msg_store_ets_index"
_SUMMARY, _SUMMARY_TABLE = Atom("file_summary"), "rabbit_msg_store_file_summary"
_LOCATION = Atom("msg_location")
_LOCATION_START = encode((_LOCATION, bytes(MSG_ID_SIZE), 0, 0, 0, 0))[: -MSG_ID_SIZE - 4 * 2]  # up to the id
_MODULE = re.compile(rb"\{index_module,([a-z_]+)\}\.")
_MARK_TERMS = "client_refs", "index_module"
_OTHER_TERM = re.compile(rb"\{\s*([a-z][a-z0-9_]*)\s*,.*\}\s*\.\Z", re.DOTALL)


class CleanMark(NamedTuple):
    """The terms of `clean.dot`; RabbitMQ 3.13 and later write no `index_module`."""

    client_refs: tuple[bytes, ...]
    index_module: str


class SummaryRow(NamedTuple):
    """A row of `file_summary.ets`; `left` and `right` are file numbers or None."""

    file: int
    valid_total_size: int
    left: int | None
    right: int | None
    file_size: int
    locked: bool
    readers: int


class LocationRow(NamedTuple):
    """A row of `msg_store_index.ets`; `offset` and `total_size` are those of the whole record."""

    msg_id: bytes
    ref_count: int
    file: int
    offset: int
    total_size: int


class RecoveryRow(NamedTuple):
    """A row of `recovery.dets`; `segments` maps a segment to its number of unacknowledged entries.

    `folder` is empty for a purged queue of 4.0 (`shares_a_row`).  `delivered` are the messages that 4.3 lists as delivered.
    The two sequence numbers are None before 3.10: there the marks in the index tell which messages were delivered.
    """

    folder: str
    segments: dict[int, int]
    next_seq_id: int | None
    next_deliver_seq_id: int | None
    persistent_ref: bytes | None
    persistent_count: int
    persistent_bytes: int
    delivered: frozenset[int] = frozenset()


def read_clean_mark(data: bytes, file: str) -> CleanMark:
    """Read `clean.dot`; raise `UnsupportedFormat` for a term of another name."""
    refs, module = _REFS.search(data), _MODULE.search(data)
    rest = _MODULE.sub(b"", _REFS.sub(b"", data)).strip()
    other = _OTHER_TERM.match(rest)
    name = other[1].decode() if other else ""
    if name and name not in _MARK_TERMS and not any(is_damaged_name(name, known) for known in _MARK_TERMS):
        raise UnsupportedFormat("term", file=file, offset=0, found=name, supported=", ".join(_MARK_TERMS))
    if refs is None or (module is None and rest):
        raise StoreCorrupt("not a clean mark", file=file, offset=0, expected="client_refs and index_module", found=data[:60])
    try:
        found = tuple(bytes(int(octet) for octet in ref.split(b",") if octet.strip()) for ref in _REF.findall(refs[1]))
    except ValueError as error:
        raise StoreCorrupt("not a clean mark", file=file, offset=0, expected="bytes", found=refs[1][:60]) from error
    return CleanMark(found, module[1].decode() if module else "")


def write_clean_mark(client_refs: Iterable[bytes], version: int = 1) -> bytes:
    """Return the text of `clean.dot` beside queue indexes of this version."""
    module = f"{{index_module,{_INDEX_MODULE}}}.\n" if not VERSIONS[version].is_later else ""
    refs = ",".join("<<" + ",".join(map(str, ref)) + ">>" for ref in sorted(client_refs))
    return f"{{client_refs,[{refs}]}}.\n{module}".encode()


def read_summary(data: bytes, file: str) -> list[SummaryRow]:
    """Read `file_summary.ets`, by file number."""
    return sorted(_rows(read_ets(data, file), file, _summary_row, _SUMMARY))


def read_locations(data: bytes, file: str) -> list[LocationRow]:
    """Read `msg_store_index.ets`, by message id; rows with reference count 0 are included."""
    return sorted(map(LocationRow._make, read_location_rows(data, file)))


def read_location_rows(data: bytes, file: str) -> list[tuple[bytes, int, int, int, int]]:
    """Read `msg_store_index.ets` in file order as plain tuples, since a store may have millions of rows."""
    return read_ets(data, file, take_locations, lambda row: tuple(*_rows([row], file, _location_row, _LOCATION)))


def _rows(rows: list[tuple[Term, ...]], file: str, make: Any, record: str) -> Any:
    """Convert rows with `make`; raise `UnsupportedFormat` for a row of another name than `record`."""
    for row in rows:
        name = str(row[0]) if row and isinstance(row[0], Atom) else ""
        if name not in ("", record) and not is_damaged_name(name, record):
            raise UnsupportedFormat("row", file=file, offset=8, found=name, supported=record)
    try:
        return [make(*row) for row in rows]
    except (TypeError, ValueError) as error:
        raise StoreCorrupt("a row of another table", file=file, offset=8, expected=make.__name__, found=str(error)) from error


def write_summary(rows: Iterable[SummaryRow], version: int = 1) -> bytes:
    """Return the file `file_summary.ets` beside queue indexes of this version."""
    return write_ets(_SUMMARY_TABLE, "ordered_set", 2, [encode(_summary_term(row, version)) for row in sorted(rows)])


def _summary_term(row: SummaryRow, version: int) -> Term:
    if VERSIONS[version].is_later:
        return _SUMMARY, row.file, row.valid_total_size, UNDEFINED, UNDEFINED, row.file_size, FALSE, UNDEFINED
    left, right = (UNDEFINED if number is None else number for number in (row.left, row.right))
    locked = TRUE if row.locked else FALSE
    return _SUMMARY, row.file, row.valid_total_size, left, right, row.file_size, locked, row.readers


def write_locations(rows: Iterable[LocationRow]) -> bytes:
    """Return the file `msg_store_index.ets`."""
    return write_ets(_INDEX_MODULE, "set", 2, map(_location_term, rows))


def _location_term(row: LocationRow) -> bytes:
    """Encode a row with the bytes that `encode` returns, but faster."""
    return b"".join((_LOCATION_START, row.msg_id, *(encode(number)[1:] for number in row[1:])))


def _optional(value: Any) -> int | None:
    return None if value == UNDEFINED else _number(value)


def _number(value: Any) -> int:
    """Convert a count, a size or a sequence number; raise `ValueError` outside of the range that files have."""
    number = int(value)
    if not 0 <= number <= JOURNAL_SEQ:
        raise ValueError(f"{number} is out of range")
    return number


def _summary_row(name: Any, number: Any, valid: Any, left: Any, right: Any, size: Any, locked: Any, readers: Any) -> SummaryRow:
    if name != _SUMMARY:
        raise ValueError(name)
    return SummaryRow(
        _number(number),
        _number(valid),
        _optional(left),
        _optional(right),
        _number(size),
        locked == "true",
        _optional(readers) or 0,  # undefined since 3.13
    )


def _location_row(name: Any, msg_id: Any, ref_count: Any, number: Any, offset: Any, total_size: Any) -> LocationRow:
    if name != _LOCATION or len(msg_id) != MSG_ID_SIZE:
        raise ValueError(name)
    return LocationRow(msg_id, *map(_number, (ref_count, number, offset, total_size)))


def read_recovery(data: bytes, file: str) -> dict[str, RecoveryRow]:
    """Read `recovery.dets`: the terms of every queue by folder name."""
    found = {}
    for row in read_dets(data, file):
        try:
            folder, terms = cast(Any, row)
            made = _recovery_row(folder, terms, file)
        except (TypeError, ValueError, KeyError) as error:
            expected = "terms of a queue"
            raise StoreCorrupt("a row of another table", file=file, offset=32, expected=expected, found=error) from error
        found[made.folder] = made
    return found


def shares_a_row(rows: dict[str, RecoveryRow]) -> bool:
    """Return whether queues may lack a row: those that 4.0 purged share one without a name."""
    return "" in rows


_ROW_TERMS = (
    "segments",
    "v2_index_state",
    "next_seq_id",
    "next_deliver_seq_id",
    "redeliver_seq_id",  # 4.3
    "delivery_count",  # 4.3
    "persistent_ref",
    "persistent_count",
    "persistent_bytes",
)


def _refuse_unknown_terms(known: dict[str, Any], file: str) -> None:
    """Raise `UnsupportedFormat` for a term of another name and for the state of another index version."""
    for name in known.keys() - _ROW_TERMS:
        if not any(is_damaged_name(name, one) for one in _ROW_TERMS):
            raise UnsupportedFormat("recovery term", file=file, offset=0, found=name, supported=", ".join(_ROW_TERMS))
        raise ValueError(f"term {name}")
    state = known.get("v2_index_state")
    later = [number for number, version in VERSIONS.items() if version.is_later]
    if state is not None and state[0] not in later:
        raise UnsupportedFormat("index version", file=file, offset=0, found=state[0], supported=", ".join(map(str, later)))


def _recovery_row(folder: Any, terms: Any, file: str) -> RecoveryRow:
    if not isinstance(folder, bytes) and folder != []:
        raise ValueError("the key is not text")
    known = {str(name): value for name, value in terms}
    _refuse_unknown_terms(known, file)
    rows = dict(known["v2_index_state"][1] if "v2_index_state" in known else known.get("segments", []))
    next_deliver = known.get("redeliver_seq_id", known.get("next_deliver_seq_id"))
    if (next_deliver is None) != ("next_seq_id" not in known):
        raise ValueError("one of two sequence numbers")
    segments = {_number(segment): _number(unacked) for segment, unacked in rows.items()}
    ref = known.get("persistent_ref", UNDEFINED)
    return RecoveryRow(
        folder.decode("latin-1") if folder else "",
        segments,
        None if next_deliver is None else _number(known["next_seq_id"]),
        None if next_deliver is None else _number(next_deliver),
        None if ref == UNDEFINED else ref,
        _number(known["persistent_count"]),
        _number(known["persistent_bytes"]),
        frozenset(known.get("delivery_count", ())),
    )


def write_recovery(rows: Iterable[RecoveryRow], version: int = 1) -> bytes:
    """Return the file `recovery.dets` for queues of this index version."""
    return write_dets([(CharList(row.folder.encode("latin-1")), _recovery_terms(row, version)) for row in rows])


def _recovery_terms(row: RecoveryRow, version: int) -> Term:
    """Return the terms of a queue in the order of RabbitMQ; those of version 2 also have the terms of 4.3."""
    segments: list[Term] = [*sorted(row.segments.items(), reverse=True)]
    state: dict[Term, Term] = dict[Term, Term](sorted(row.segments.items()))
    is_later = VERSIONS[version].is_later
    terms: list[Term] = [(Atom("v2_index_state"), (version, state)) if is_later else (Atom("segments"), segments)]
    if row.next_seq_id is not None and row.next_deliver_seq_id is not None:
        terms += [(Atom("next_seq_id"), row.next_seq_id), (Atom("next_deliver_seq_id"), row.next_deliver_seq_id)]
    terms += [
        (Atom("persistent_ref"), UNDEFINED if row.persistent_ref is None else row.persistent_ref),
        (Atom("persistent_count"), row.persistent_count),
        (Atom("persistent_bytes"), row.persistent_bytes),
    ]
    if is_later and row.next_deliver_seq_id is not None:
        terms += [(Atom("redeliver_seq_id"), row.next_deliver_seq_id), (Atom("delivery_count"), {})]
    return terms
