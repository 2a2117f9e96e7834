"""Encode the record `P_basic`, the decoded form of a property block (docs/formats/rabbitmq-terms.md#decoded-properties).

RabbitMQ stores it where it changed the headers of a message itself, and no block was encoded since: dead letters and messages
with BCC.  A header is `{Name, Type, Value}`, an element of an array `{Type, Value}`, and a missing property `undefined`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from storageio import InvalidMessage, UnsupportedFormat

from .properties import FIELDS, Typed, encode
from .terms import FALSE, TRUE, UNDEFINED, Atom, CharList

RECORD = "P_basic"
_CODES = {
    "signedint": "I",
    "unsignedint": "i",
    "timestamp": "T",
    "byte": "b",
    "unsignedbyte": "B",
    "short": "s",
    "unsignedshort": "u",
    "long": "l",
    "float": "f",
    "double": "d",
}
_DEPTH_MAX = 32


class _Table(NamedTuple):
    """The rows of a table: two may have the same name."""

    rows: list[tuple[str, Any]]

    def items(self) -> list[tuple[str, Any]]:
        """Return names and values, as a dict does."""
        return self.rows


def encode_decoded(record: Any, file: str = "", base: int = 0) -> bytes:
    """Return the property block of a `P_basic`, as the server encodes it for a consumer.

    Raise `UnsupportedFormat` for a record that no known server stores: it is whole, and not understood.
    """
    is_known = isinstance(record, tuple) and len(record) == len(FIELDS) + 1 and record[0] == RECORD
    try:
        if is_known:
            fields = zip(FIELDS, record[1:], strict=True)
            return encode({name: _field(kind, value) for (name, kind), value in fields if not _is_atom(value, UNDEFINED)})
        found = repr(record)[:60]
    except (InvalidMessage, ValueError, TypeError) as problem:
        found = str(problem)[:60]
    raise UnsupportedFormat("decoded properties", file=file, offset=base, found=found, supported=f"{RECORD} of AMQP 0-9-1")


def _field(kind: str, value: Any) -> Any:
    if kind == "s":
        return _short(value)
    return _table(value, 0) if kind == "F" else value


def _is_atom(value: Any, atom: Atom) -> bool:
    return isinstance(value, Atom) and value == atom


def _octets(value: Any) -> bytes:
    """Return a binary, or a string that Erlang code made: a list of small integers, which is `CharList` or empty."""
    if isinstance(value, bytes):
        return value
    if value == [] and isinstance(value, list):
        return b""
    raise TypeError(f"{type(value).__name__} in place of bytes")


def _short(value: Any) -> str:
    return _octets(value).decode("utf-8", "surrogateescape")


def _table(rows: Any, depth: int) -> _Table:
    if not isinstance(rows, list):
        raise TypeError(f"{type(rows).__name__} in place of a table")
    return _Table([(_short(name), _value(kind, value, depth)) for name, kind, value in rows])


def _value(kind: Any, value: Any, depth: int) -> Any:
    """Return a header's value as `properties.encode` takes it."""
    if depth > _DEPTH_MAX:
        raise ValueError(f"headers of more than {_DEPTH_MAX} levels")
    if kind in _CODES:
        return Typed(_CODES[kind], value)
    if kind in ("longstr", "binary"):
        return _octets(value) if kind == "longstr" else Typed("x", _octets(value))
    return _rare_value(kind, value, depth)


def _rare_value(kind: Any, value: Any, depth: int) -> Any:
    match kind:
        case "table":
            return Typed("F", _table(value, depth + 1))
        case "array":
            items = list(value) if isinstance(value, list | CharList) else None
            if items is None:
                raise TypeError(f"{type(value).__name__} in place of an array")
            return [_value(inner, one, depth + 1) for inner, one in items]
        case "bool" if value in (TRUE, FALSE) and isinstance(value, Atom):
            return value == TRUE
        case "void":
            return None
        case "decimal":
            scale, number = value
            return Typed("D", (scale, number - (1 << 32) if number >> 31 == 1 else number if number >= 0 else None))
    raise ValueError(f"header type {kind!s}")
