"""Encode the record `P_basic`, the decoded form of a property block (docs/formats/rabbitmq-terms.md#decoded-properties).

RabbitMQ stores it where it changed the headers of a message itself, and no block was encoded since: dead letters and messages
with BCC.  A header is `{Name, Type, Value}`, an element of an array `{Type, Value}`, and a missing property `undefined`.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Any

from storageio import UnsupportedFormat

from .properties import FIELDS
from .terms import FALSE, TRUE, UNDEFINED, Atom, CharList

RECORD = "P_basic"
_U16, _U32, _U64 = Struct(">H"), Struct(">I"), Struct(">Q")
_NUMBERS = {
    "signedint": (b"I", Struct(">i")),
    "unsignedint": (b"i", _U32),
    "timestamp": (b"T", _U64),
    "byte": (b"b", Struct(">b")),
    "unsignedbyte": (b"B", Struct(">B")),
    "short": (b"s", Struct(">h")),
    "unsignedshort": (b"u", _U16),
    "long": (b"l", Struct(">q")),
    "float": (b"f", Struct(">f")),
    "double": (b"d", Struct(">d")),
}
_BYTES = {"longstr": b"S", "binary": b"x"}
_DEPTH_MAX = 32


def encode_decoded(record: Any, file: str = "", base: int = 0) -> bytes:
    """Return the property block of a `P_basic`, as the server encodes it for a consumer.

    Raise `UnsupportedFormat` for a record that no known server stores: it is whole, and not understood.
    """
    is_known = isinstance(record, tuple) and len(record) == len(FIELDS) + 1 and record[0] == RECORD
    try:
        if is_known:
            return _block(record[1:])
        found = repr(record)[:60]
    except (error, ValueError, TypeError, KeyError) as problem:
        found = str(problem)[:60]
    raise UnsupportedFormat("decoded properties", file=file, offset=base, found=found, supported=f"{RECORD} of AMQP 0-9-1")


def _block(values: tuple[Any, ...]) -> bytes:
    flags = 0
    out = bytearray(2)
    for index, ((_name, kind), value) in enumerate(zip(FIELDS, values, strict=True)):
        if not _is_atom(value, UNDEFINED):
            flags |= 0x8000 >> index
            out += _field(kind, value)
    _U16.pack_into(out, 0, flags)
    return bytes(out)


def _field(kind: str, value: Any) -> bytes:
    if kind == "s":
        return _short(value)
    if kind == "F":
        return _long(_table(value, 0))
    return bytes((value,)) if kind == "o" else _U64.pack(value)


def _is_atom(value: Any, atom: Atom) -> bool:
    return isinstance(value, Atom) and value == atom


def _octets(value: Any) -> bytes:
    """Return a binary, or a string that Erlang code made: a list of small integers, which is `CharList` or empty."""
    if isinstance(value, bytes):
        return value
    if value == [] and isinstance(value, list):
        return b""
    raise TypeError(f"{type(value).__name__} in place of bytes")


def _short(value: Any) -> bytes:
    data = _octets(value)
    return bytes((len(data),)) + data  # ValueError above 255


def _long(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def _table(rows: Any, depth: int) -> bytes:
    if not isinstance(rows, list):
        raise TypeError(f"{type(rows).__name__} in place of a table")
    return b"".join([_short(name) + _value(kind, value, depth) for name, kind, value in rows])


def _value(kind: Any, value: Any, depth: int) -> bytes:
    """Return the type code and the bytes of a value."""
    if depth > _DEPTH_MAX:
        raise ValueError(f"headers of more than {_DEPTH_MAX} levels")
    if kind in _BYTES:
        return _BYTES[kind] + _long(_octets(value))
    if kind in _NUMBERS:
        code, layout = _NUMBERS[kind]
        return code + layout.pack(value)
    return _rare_value(kind, value, depth)


def _rare_value(kind: Any, value: Any, depth: int) -> bytes:
    match kind:
        case "table":
            return b"F" + _long(_table(value, depth + 1))
        case "array":
            items = list(value) if isinstance(value, list | CharList) else None
            if items is None:
                raise TypeError(f"{type(value).__name__} in place of an array")
            return b"A" + _long(b"".join([_value(inner, one, depth + 1) for inner, one in items]))
        case "bool" if value in (TRUE, FALSE) and isinstance(value, Atom):
            return b"t" + bytes((value == TRUE,))
        case "void":
            return b"V"
        case "decimal":
            scale, number = value
            return b"D" + bytes((scale,)) + _U32.pack(number)
    raise ValueError(f"header type {kind!s}")
