"""Read and write the files of `ets:tab2file` (docs/formats/rabbitmq-clean-stop.md).

    01 02 03 04 "cXM" 0b       a closed disk_log
    length:32 "bWLA" term      the table's properties, then one chunk a row, then ['$end_of_table', [{count, N}]]

A chunk of at least 65528 bytes has 16 bytes of MD5 after the magic, which its length does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any

from storageio import StoreCorrupt

from .md5 import md5
from .terms import FALSE, NONE, Atom, Term, encode
from .terms_cy import decode

HEAD = b"\x01\x02\x03\x04cXM\x0b"
CHUNK = Struct(">I4s")
MAGIC = b"bWLA"
MD5_FROM = 65528
_END, _COUNT = Atom("$end_of_table"), Atom("count")


def read_ets(
    data: bytes,
    file: str,
    take: Callable[[bytes, int, list[Any]], int] | None = None,
    make: Callable[[tuple[Term, ...]], Any] | None = None,
) -> list[Any]:
    """Return the rows; raise `StoreCorrupt` when the file is torn or its count is wrong.

    `take(data, at, rows)` may read rows in bulk from a chunk on and return where it stopped; `make(row)` converts the others
    to the rows that it makes.
    """
    if data[: len(HEAD)] != HEAD:
        raise StoreCorrupt("not an ets file", file=file, offset=0, expected=HEAD, found=data[: len(HEAD)])
    rows: list[Any] = []
    at = len(HEAD)
    is_first = True
    while at < len(data):
        if take is not None and not is_first:
            at = take(data, at, rows)
        term, at = _read_chunk(data, at, file)
        if isinstance(term, list):
            return _checked_count(rows, term, file, at)
        if not isinstance(term, tuple):
            raise StoreCorrupt("not a row", file=file, offset=at, expected="a tuple", found=type(term).__name__)
        if not is_first:
            rows.append(term if make is None else make(term))
        is_first = False
    raise StoreCorrupt("ets file without an end", file=file, offset=at, expected=str(_END), found="end of file")


def _read_chunk(data: bytes, at: int, file: str) -> tuple[Term, int]:
    if len(data) - at < CHUNK.size:
        raise StoreCorrupt("torn chunk", file=file, offset=at, expected=f"{CHUNK.size} bytes", found=f"{len(data) - at} bytes")
    length, magic = CHUNK.unpack_from(data, at)
    start = at + CHUNK.size + (16 if length >= MD5_FROM else 0)
    if magic != MAGIC or length > len(data) - start:
        raise StoreCorrupt("torn chunk", file=file, offset=at, expected=MAGIC, found=f"{magic!r}, {length} bytes")
    chunk = data[start : start + length]
    if length >= MD5_FROM and md5(chunk) != data[start - 16 : start]:
        expected = data[start - 16 : start].hex()
        raise StoreCorrupt("chunk fails its MD5", file=file, offset=at, expected=expected, found="another")
    return decode(chunk, file=file, base=start), start + length


def _checked_count(rows: list[Any], end: list[Term], file: str, at: int) -> list[Any]:
    options = end[1] if len(end) == 2 and end[0] == _END else None
    counts = [pair[1] for pair in options if isinstance(pair, tuple) and len(pair) == 2] if isinstance(options, list) else []
    if counts and counts[0] != len(rows):
        raise StoreCorrupt("ets file lost rows", file=file, offset=at, expected=counts[0], found=len(rows))
    return rows


def write_ets(name: str, table_type: str, key_position: int, rows: Iterable[bytes]) -> bytes:
    """Return the file of a public table with rows that are encoded terms.

    `table_type` is Erlang's (`set`, `ordered_set`).  It has the properties that `ets:file2tab` reads; the others of
    `ets:tab2file`, such as the owner, belong to a table in memory.
    """
    encoded = list(rows)
    extended: list[Term] = [Atom("object_count")]
    properties: tuple[Term, ...] = (
        (Atom("compressed"), FALSE),
        (Atom("heir"), NONE),
        (Atom("name"), Atom(name)),
        (Atom("size"), len(encoded)),
        (Atom("named_table"), FALSE),
        (Atom("type"), Atom(table_type)),
        (Atom("keypos"), key_position),
        (Atom("protection"), Atom("public")),
        (Atom("major_version"), 1),
        (Atom("minor_version"), 0),
        (Atom("extended_info"), extended),
    )
    end: Term = [_END, [(_COUNT, len(encoded))]]
    parts = [HEAD]
    for term in (encode(properties), *encoded, encode(end)):
        assert len(term) < MD5_FROM, "rows of the tables written here are small"
        parts += [CHUNK.pack(len(term), MAGIC), term]
    return b"".join(parts)
