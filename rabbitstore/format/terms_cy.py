"""Decode Erlang's external term format (docs/formats/rabbitmq-terms.md); `terms` has the values and the encoder.

Every message of RabbitMQ 4 is a term of about twenty parts, so this loop bounds every command on its folders.
"""

from __future__ import annotations

from struct import Struct

try:
    import cython
except ModuleNotFoundError:
    from storebytes import no_cython as cython  # type: ignore[no-redef]
from storageio import StoreCorrupt

from .terms import VERSION, Atom, CharList, Improper, Opaque, Term, map_key

if not cython.compiled:
    from storebytes._bytes_cy import I64, Bool, Size, get_i16, get_i32, source_of_bytes, take_bytes

DEPTH_MAX: Size = 64
NIL: Size = 106
ATOMS_MAX: Size = 1000
_F64 = Struct(">d")
_latin_1_atoms: dict[bytes, Atom] = {}  # names repeat in every message
_utf_8_atoms: dict[bytes, Atom] = {}


class _TermReader:
    """The bytes of one term and a position in them.  Every length is checked before it is used."""

    __slots__ = ("at", "base", "data", "file", "improper", "source", "stop")

    def __init__(self, data: bytes, at: Size, file: str, base: I64, improper: Bool) -> None:
        """Start at an offset in `data`; errors name the file and add `base` to the offset."""
        self.data = data
        self.source = source_of_bytes(data)
        self.stop = len(data)
        self.at = at
        self.file = file
        self.base = base
        self.improper = improper

    def bad(self, reason: str, expected: object, found: object) -> StoreCorrupt:
        return StoreCorrupt(reason, file=self.file, offset=self.base + self.at, expected=expected, found=found)

    def skip(self, size: Size) -> Size:
        """Move past `size` bytes and return where they begin."""
        at: Size = self.at
        if size > self.stop - at:
            raise self.bad("term runs past its end", f"{size} bytes", f"{self.stop - at} bytes")
        self.at = at + size
        return at

    def take(self, size: Size) -> bytes:
        at: Size = self.skip(size)
        return take_bytes(self.source, at, size)

    def byte(self) -> Size:
        at: Size = self.skip(1)
        found: Size = self.source[at]
        return found

    def u16(self) -> Size:
        at: Size = self.skip(2)
        return get_i16(self.source, at) & 0xFFFF

    def u32(self) -> Size:
        at: Size = self.skip(4)
        return get_i32(self.source, at) & 0xFFFFFFFF

    def count(self, number: Size) -> Size:
        """Check a number of elements: each takes at least one byte."""
        if number > self.stop - self.at:
            raise self.bad("term runs past its end", f"{number} elements", f"{self.stop - self.at} bytes")
        return number

    def term(self, depth: Size) -> Term:
        """Read the next term of any kind."""
        if depth > DEPTH_MAX:
            raise self.bad("term is nested too deep", f"at most {DEPTH_MAX} levels", "more")
        tag: Size = self.byte()
        if tag == 109:
            return self.take(self.u32())
        if tag == 100 or tag == 115:
            return self.atom(self.u16() if tag == 100 else self.byte(), True)
        if tag == 118 or tag == 119:
            return self.atom(self.u16() if tag == 118 else self.byte(), False)
        if tag == 104 or tag == 105:
            return tuple(self.terms(self.byte() if tag == 104 else self.u32(), depth))
        if tag == 108:
            return self.list_term(depth)
        if tag == NIL:
            return []
        if tag == 116:
            return self.map_term(depth)
        return self.number(tag) if 97 <= tag <= 98 or 110 <= tag <= 111 else self.rare_term(tag)

    def terms(self, number: Size, depth: Size) -> list[Term]:
        """Read so many terms."""
        return [self.term(depth + 1) for _ in range(self.count(number))]

    def list_term(self, depth: Size) -> Term:
        found: list[Term] = self.terms(self.u32(), depth)
        if self.byte() != NIL:
            self.at -= 1
            if self.improper:
                return Improper(tuple(found), self.term(depth + 1))
            raise self.bad("list without an end", NIL, self.data[self.at])
        return found

    def map_term(self, depth: Size) -> Term:
        found: dict[Term, Term] = {}
        for _ in range(self.count(self.u32())):
            key = map_key(self.term(depth + 1))
            found[key] = self.term(depth + 1)
        return found

    def atom(self, size: Size, is_latin_1: Bool) -> Atom:
        name: bytes = self.take(size)
        known = _latin_1_atoms if is_latin_1 else _utf_8_atoms
        found = known.get(name)
        if found is None:
            found = Atom(name.decode("latin-1" if is_latin_1 else "utf-8", "replace"))
            if len(known) < ATOMS_MAX:
                known[name] = found
        return found

    def number(self, tag: Size) -> Term:
        """Read an integer of 8 or 32 bits, or of any number of bytes."""
        if tag == 97:
            return self.byte()
        if tag == 98:
            return get_i32(self.source, self.skip(4))
        size: Size = self.byte() if tag == 110 else self.u32()
        sign: Size = self.byte()
        value = int.from_bytes(self.take(size), "little")
        return -value if sign else value

    def rare_term(self, tag: Size) -> Term:
        """Read a float, a short list of numbers, or what is kept opaque."""
        if tag == 70:
            return _F64.unpack(self.take(8))[0]  # type: ignore[no-any-return]
        if tag == 107:
            return CharList(self.take(self.u16()))
        if tag == 88:
            return self.opaque(tag, 12)
        if tag == 103:
            return self.opaque(tag, 9)
        if tag == 90 or tag == 114:
            return self.opaque(tag, 4 if tag == 90 else 1)
        if tag == 113 and self.improper:
            start: Size = self.at
            self.terms(3, DEPTH_MAX - 1)
            return Opaque(tag, self.data[start : self.at])
        self.at -= 1
        raise self.bad("unknown tag of a term", "one of the tags listed in rabbitmq-terms.md", tag)

    def opaque(self, tag: Size, tail: Size) -> Opaque:
        """Keep a process or reference: perhaps a number of words, the term of a node, and `tail` bytes or more."""
        start: Size = self.at
        words: Size = self.u16() if tag == 90 or tag == 114 else 0
        self.term(DEPTH_MAX)
        self.skip(tail + 4 * words)
        return Opaque(tag, self.data[start : self.at])


def decode(data: bytes, *, file: str = "", base: int = 0, improper: bool = False) -> Term:
    """Decode `data`: a version byte, one term, and nothing after it.

    Only the states of quorum queues have `improper` lists; elsewhere they are damage.  Raise `StoreCorrupt`,
    with `file` and the offset from `base` on, for anything else.
    """
    reader: _TermReader = _TermReader(data, 0, file, base, improper)
    if reader.byte() != VERSION:
        reader.at = 0
        raise reader.bad("not an external term", VERSION, data[0])
    found = reader.term(0)
    if reader.at != reader.stop:
        raise reader.bad("bytes after the term", f"{reader.at} bytes", f"{reader.stop} bytes")
    return found


def decode_at(data: bytes, at: int) -> tuple[Term, int]:
    """Decode the term that begins at `at` and return it and where it ends; raise `StoreCorrupt` for other bytes."""
    reader: _TermReader = _TermReader(data, at, "", 0, False)
    if reader.byte() != VERSION:
        raise reader.bad("not a term", VERSION, data[at])
    found = reader.term(0)
    return found, reader.at


def read_parts(data: bytes, at: int, file: str) -> list[tuple[int, int]]:
    """Return start and end of each element of the tuple at `at`, or of each key and value of the map there.

    The parts stay as they were encoded: a term that is decoded and encoded again may get other bytes.
    """
    reader: _TermReader = _TermReader(data, at, file, 0, True)
    tag: Size = reader.byte()
    count: Size
    start: Size
    if tag != 104 and tag != 105 and tag != 116:
        raise reader.bad("not a tuple or map", "104, 105 or 116", tag)
    count = reader.count(reader.byte() if tag == 104 else reader.u32())
    found = []
    for _ in range(2 * count if tag == 116 else count):
        start = reader.at
        reader.term(0)
        found.append((start, reader.at))
    return found
