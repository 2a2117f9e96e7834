"""The part of Erlang's external term format that RabbitMQ's files use (docs/formats/rabbitmq-terms.md).

    97 98 110 111 integers    100 115 118 119 atoms    104 105 tuples    106 nil    107 108 lists    109 binaries
    70 floats    116 maps    88 103 processes    90 114 references (the last four only in table properties; kept opaque)

Erlang's binary is `bytes`, its atom `Atom`, its tuple `tuple`, its list `list`, its list of small integers `CharList`.
The encoder writes the bytes that OTP 25 writes: atoms with tag 100.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Any, NamedTuple

VERSION = 131
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


class TermKey(bytes):
    """A map's key that Python cannot hash, because it has a list or a map in it, as its text; `term` is the key."""

    term: Any


def map_key(term: Any) -> Any:
    """Return what stands for a term as a key of a dict."""
    try:
        hash(term)
    except TypeError:
        key = TermKey(repr(term).encode("utf-8", "surrogatepass"))
        key.term = term
        return key
    return term


def key_term(key: Any) -> Any:
    """Return the term that `map_key` was given."""
    return key.term if isinstance(key, TermKey) else key


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
