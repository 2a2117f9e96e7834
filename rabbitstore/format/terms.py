"""The part of Erlang's external term format that RabbitMQ's files use (docs/formats/rabbitmq-terms.md).

    97 98 110 111 integers    100 115 118 119 atoms    104 105 tuples    106 nil    107 108 lists    109 binaries
    70 floats    116 maps    88 103 processes    90 114 references (the last four only in table properties; kept opaque)

Erlang's binary is `bytes`, its atom `Atom`, its tuple `tuple`, its list `list`, its list of small integers `CharList`.
The encoder writes the bytes that OTP 25 writes: atoms with tag 100.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from storageio import StoreCorrupt

VERSION = 131
_DEPTH_MAX = 64
_U16, _U32, _I32, _F64 = Struct(">H"), Struct(">I"), Struct(">i"), Struct(">d")


class Atom(str):
    """An Erlang atom, such as `true`."""

    __slots__ = ()


class CharList(bytes):
    """A list of integers 0..255 in its short form (tag 107)."""

    __slots__ = ()


class Opaque(NamedTuple):
    """A process or a reference, kept as bytes."""

    tag: int
    data: bytes


class Improper(NamedTuple):
    """A list that ends with something else than the empty list."""

    items: tuple[Any, ...]
    tail: Any


def is_damaged_name(found: str, known: str) -> bool:
    """Return whether `found` is `known` with one character changed.  That is damage; other unknown names are another format.

    A changed digit may be another version ("v2_index_state", "v3_index_state") and does not count as damage.
    """
    if len(found) != len(known) or len(known) < 8:
        return False
    changed = [old for new, old in zip(found, known, strict=True) if new != old]
    return len(changed) == 1 and not changed[0].isdigit()


Term = int | float | bytes | Atom | tuple["Term", ...] | list["Term"] | dict["Term", "Term"] | Opaque | Improper
TRUE, FALSE, NONE, UNDEFINED = Atom("true"), Atom("false"), Atom("none"), Atom("undefined")


class _Reader:
    """The bytes of one term and a position in them.  Every length is checked before it is used."""

    def __init__(self, data: bytes, file: str, base: int, *, improper: bool = False) -> None:
        self.data = data
        self.improper = improper
        self.at = 0
        self.file = file
        self.base = base

    def bad(self, reason: str, expected: object, found: object) -> StoreCorrupt:
        return StoreCorrupt(reason, file=self.file, offset=self.base + self.at, expected=expected, found=found)

    def take(self, size: int) -> bytes:
        stop = self.at + size
        if stop > len(self.data):
            raise self.bad("term runs past its end", f"{size} bytes", f"{len(self.data) - self.at} bytes")
        found = self.data[self.at : stop]
        self.at = stop
        return found

    def byte(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def count(self, number: int) -> int:
        """Check a number of elements: each takes at least one byte."""
        if number > len(self.data) - self.at:
            raise self.bad("term runs past its end", f"{number} elements", f"{len(self.data) - self.at} bytes")
        return number

    def term(self, depth: int = 0) -> Term:
        if depth > _DEPTH_MAX:
            raise self.bad("term is nested too deep", f"at most {_DEPTH_MAX} levels", "more")
        tag = self.byte()
        simple = _SIMPLE.get(tag)
        if simple is not None:
            return simple(self)
        if tag in (104, 105):
            count = self.count(self.byte() if tag == 104 else self.u32())
            return tuple(self.term(depth + 1) for _ in range(count))
        if tag == 108:
            return self._list(depth)
        if tag == 116:
            count = self.count(self.u32())
            return {_key(self.term(depth + 1)): self.term(depth + 1) for _ in range(count)}
        self.at -= 1
        raise self.bad("unknown tag of a term", "one of the tags listed in rabbitmq-terms.md", tag)

    def _list(self, depth: int) -> Term:
        found = [self.term(depth + 1) for _ in range(self.count(self.u32()))]
        if self.byte() != 106:
            self.at -= 1
            if self.improper:
                return Improper(tuple(found), self.term(depth + 1))
            raise self.bad("list without an end", 106, self.data[self.at])
        return found

    def atom(self, size: int, encoding: str) -> Atom:
        return Atom(self.take(size).decode(encoding, "replace"))

    def big(self, size: int) -> int:
        sign = self.byte()
        value = int.from_bytes(self.take(size), "little")
        return -value if sign else value

    def opaque(self, tag: int, tail: int) -> Opaque:
        start = self.at
        words = self.u16() if tag in (90, 114) else 0
        self.term(_DEPTH_MAX)
        self.take(tail + 4 * words)
        return Opaque(tag, self.data[start : self.at])


def _key(term: Term) -> Term:
    """Return a key that Python can hash: one with a list or a map in it becomes its text."""
    try:
        hash(term)
    except TypeError:
        return repr(term).encode()
    return term


_SIMPLE: dict[int, Callable[[_Reader], Term]] = {
    97: lambda reader: reader.byte(),
    98: lambda reader: _I32.unpack(reader.take(4))[0],
    70: lambda reader: _F64.unpack(reader.take(8))[0],
    100: lambda reader: reader.atom(reader.u16(), "latin-1"),
    115: lambda reader: reader.atom(reader.byte(), "latin-1"),
    118: lambda reader: reader.atom(reader.u16(), "utf-8"),
    119: lambda reader: reader.atom(reader.byte(), "utf-8"),
    106: lambda reader: [],
    107: lambda reader: CharList(reader.take(reader.u16())),
    109: lambda reader: reader.take(reader.u32()),
    110: lambda reader: reader.big(reader.byte()),
    111: lambda reader: reader.big(reader.u32()),
    88: lambda reader: reader.opaque(88, 12),
    103: lambda reader: reader.opaque(103, 9),
    90: lambda reader: reader.opaque(90, 4),
    114: lambda reader: reader.opaque(114, 1),
}


def decode(data: bytes, *, file: str = "", base: int = 0, improper: bool = False) -> Term:
    """Decode `data`: a version byte, one term, and nothing after it.

    Only the states of quorum queues have `improper` lists; elsewhere they are damage.  Raise `StoreCorrupt`,
    with `file` and the offset from `base` on, for anything else.
    """
    reader = _Reader(data, file, base, improper=improper)
    if reader.byte() != VERSION:
        reader.at = 0
        raise reader.bad("not an external term", VERSION, data[0])
    found = reader.term()
    if reader.at != len(data):
        raise reader.bad("bytes after the term", f"{reader.at} bytes", f"{len(data)} bytes")
    return found


def read_parts(data: bytes, at: int, file: str) -> list[tuple[int, int]]:
    """Return start and end of each element of the tuple at `at`, or of each key and value of the map there.

    The parts stay as they were encoded: a term that is decoded and encoded again may get other bytes.
    """
    reader = _Reader(data, file, 0, improper=True)
    reader.at = at
    tag = reader.byte()
    if tag not in (104, 105, 116):
        raise reader.bad("not a tuple or map", "104, 105 or 116", tag)
    count = reader.count(reader.byte() if tag == 104 else reader.u32())
    found = []
    for _ in range(2 * count if tag == 116 else count):
        start = reader.at
        reader.term()
        found.append((start, reader.at))
    return found


def decode_at(data: bytes, at: int) -> tuple[Term, int]:
    """Decode the term that begins at `at` and return it and where it ends; raise `StoreCorrupt` for other bytes."""
    reader = _Reader(data, "", 0)
    reader.at = at
    if reader.byte() != VERSION:
        raise reader.bad("not a term", VERSION, data[at])
    return reader.term(), reader.at


def encode(term: Term) -> bytes:
    """Encode a term as `term_to_binary` of OTP 25 does."""
    out = bytearray((VERSION,))
    _put(out, term)
    return bytes(out)


def _put(out: bytearray, term: Term) -> None:
    if isinstance(term, Atom):
        _put_atom(out, term)
    elif isinstance(term, CharList):
        out += b"k" + _U16.pack(len(term)) + term
    elif isinstance(term, bytes):
        out += b"m" + _U32.pack(len(term)) + term
    elif isinstance(term, float):
        out += b"F" + _F64.pack(term)
    elif isinstance(term, int):
        _put_int(out, term)
    else:
        _put_many(out, term)


def _put_atom(out: bytearray, term: Atom) -> None:
    """Write tag 100, or 118 for a name with a character that Latin-1 lacks."""
    try:
        tag, text = b"d", term.encode("latin-1")
    except UnicodeEncodeError:
        tag, text = b"v", term.encode()
    out += tag + _U16.pack(len(text)) + text


def _put_int(out: bytearray, value: int) -> None:
    if 0 <= value <= 255:
        out += bytes((97, value))
    elif -(1 << 31) <= value < 1 << 31:
        out += b"b" + _I32.pack(value)
    else:
        size = (abs(value).bit_length() + 7) // 8
        if size > 255:
            raise struct.error("an integer of more than 255 bytes")
        out += bytes((110, size, value < 0)) + abs(value).to_bytes(size, "little")


def _put_many(out: bytearray, term: Term) -> None:
    if isinstance(term, Opaque):
        out += bytes((term.tag,)) + term.data
    elif isinstance(term, tuple):
        out += bytes((104, len(term))) if len(term) < 256 else b"i" + _U32.pack(len(term))
        for part in term:
            _put(out, part)
    elif isinstance(term, dict):
        out += b"t" + _U32.pack(len(term))
        for key, value in term.items():
            _put(out, key)
            _put(out, value)
    elif isinstance(term, list):
        _put_list(out, term)
    else:
        raise TypeError(f"{type(term).__name__} is not a term")


def _put_list(out: bytearray, term: list[Term]) -> None:
    if not term:
        out += b"j"
        return
    out += b"l" + _U32.pack(len(term))
    for part in term:
        _put(out, part)
    out += b"j"
