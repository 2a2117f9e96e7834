"""The AMQP 0-9-1 property block: 16 flag bits, then the present properties (docs/formats/rabbitmq-terms.md#the-property-block).

Values are plain Python: `str` for short strings, `int` for octets and times, a dict for the headers.  A header value of
another AMQP type is `Typed(code, value)`, so that encoding what was decoded returns the same bytes.
"""

from __future__ import annotations

import base64
from struct import Struct, error
from typing import Any, NamedTuple

from storageio import InvalidMessage, StoreCorrupt

_U16, _U32 = Struct(">H"), Struct(">I")
FIELDS = (
    ("content_type", "s"),
    ("content_encoding", "s"),
    ("headers", "F"),
    ("delivery_mode", "o"),
    ("priority", "o"),
    ("correlation_id", "s"),
    ("reply_to", "s"),
    ("expiration", "s"),
    ("message_id", "s"),
    ("timestamp", "T"),
    ("type", "s"),
    ("user_id", "s"),
    ("app_id", "s"),
    ("cluster_id", "s"),
)
NAMES = tuple(name for name, _ in FIELDS)
_DEPTH_MAX = 32
_NUMBERS = {
    "b": Struct(">b"),
    "B": Struct(">B"),
    "s": Struct(">h"),
    "u": Struct(">H"),
    "I": Struct(">i"),
    "i": Struct(">I"),
    "l": Struct(">q"),
    "f": Struct(">f"),
    "d": Struct(">d"),
    "T": Struct(">Q"),
}


class Typed(NamedTuple):
    """A header value with its AMQP type code, for types that Python does not have."""

    code: str
    value: Any


class _Block:
    """The bytes of a property block and a position in them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def bad(self, reason: str, expected: object, found: object) -> StoreCorrupt:
        return StoreCorrupt(reason, file="property block", offset=self.at, expected=expected, found=found)

    def take(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        if len(found) < size:
            raise self.bad("property block is too short", f"{size} bytes", f"{len(found)} bytes")
        self.at += size
        return found

    def number(self, layout: Struct) -> Any:
        return layout.unpack(self.take(layout.size))[0]

    def short_text(self) -> str:
        return self.take(self.take(1)[0]).decode("utf-8", "surrogateescape")

    def long_bytes(self) -> bytes:
        return self.take(self.number(_U32))

    def table(self, depth: int = 0) -> dict[str, Any]:
        inner = _Block(self.long_bytes())
        found = {}
        while inner.at < len(inner.data):
            name = inner.short_text()
            found[name] = inner.value(depth + 1)
        return found

    def array(self, depth: int) -> list[Any]:
        inner = _Block(self.long_bytes())
        found = []
        while inner.at < len(inner.data):
            found.append(inner.value(depth + 1))
        return found

    def value(self, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise self.bad("headers are nested too deep", f"at most {_DEPTH_MAX} levels", "more")
        code = chr(self.take(1)[0])
        if code in _NUMBERS:
            found = self.number(_NUMBERS[code])
            return found if _code_of(found) == code else Typed(code, found)
        if code == "S":
            return _text_or_bytes(self.long_bytes())
        return self._rare_value(code, depth)

    def _rare_value(self, code: str, depth: int) -> Any:
        match code:
            case "F":
                return self.table(depth)
            case "A":
                return self.array(depth)
            case "t":
                octet = self.take(1)[0]
                return bool(octet) if octet < 2 else Typed("t", octet)
            case "V":
                return None
            case "x":
                return Typed("x", self.long_bytes())
            case "D":
                scale = self.take(1)[0]
                return Typed("D", (scale, self.number(_NUMBERS["I"])))
        self.at -= 1
        raise self.bad("unknown type of a header value", "an AMQP 0-9-1 type code", code)


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def decode(block: bytes) -> dict[str, Any]:
    """Return the properties that are set, by name; raise `StoreCorrupt` for a damaged block."""
    reader = _Block(block)
    flags = reader.number(_U16)
    more = flags
    while more & 1:
        more = reader.number(_U16)
    found: dict[str, Any] = {}
    for index, (name, kind) in enumerate(FIELDS):
        if flags & 0x8000 >> index:
            found[name] = _read_field(reader, kind)
    if reader.at != len(block):
        raise reader.bad("bytes after the properties", f"{reader.at} bytes", f"{len(block)} bytes")
    return found


def _read_field(reader: _Block, kind: str) -> Any:
    if kind == "s":
        return reader.short_text()
    if kind == "F":
        return reader.table()
    return reader.take(1)[0] if kind == "o" else reader.number(_NUMBERS["T"])


def encode(properties: dict[str, Any]) -> bytes:
    """Encode a block; a value of None counts as absent.  Raise `InvalidMessage` for properties that no block can hold."""
    unknown = properties.keys() - set(NAMES)
    if unknown:
        raise InvalidMessage(f"no AMQP property is called {sorted(unknown)[0]!r}")
    flags = 0
    out = bytearray(2)
    try:
        for index, (name, kind) in enumerate(FIELDS):
            value = properties.get(name)
            if value is not None:
                flags |= 0x8000 >> index
                _put_field(out, kind, value)
    except (error, ValueError, TypeError, AttributeError, RecursionError) as problem:
        raise InvalidMessage(f"property {name!r} cannot be written: {problem}") from problem
    _U16.pack_into(out, 0, flags)
    return bytes(out)


def _put_field(out: bytearray, kind: str, value: Any) -> None:
    if kind == "s":
        _put_short(out, value)
    elif kind == "F":
        _put_table(out, value)
    elif kind == "o":
        out.append(value)
    else:
        out += _NUMBERS["T"].pack(value)


def _put_short(out: bytearray, value: str) -> None:
    data = value.encode("utf-8", "surrogateescape")
    out.append(len(data))  # ValueError above 255
    out += data


def _put_long(out: bytearray, data: bytes | bytearray) -> None:
    out += _U32.pack(len(data)) + data


def _put_table(out: bytearray, table: Any) -> None:
    inner = bytearray()
    for name, value in table.items():
        _put_short(inner, name)
        _put_value(inner, value)
    _put_long(out, inner)


def _code_of(value: Any) -> str:
    """Return the type code of a plain Python number."""
    if isinstance(value, float):
        return "d"
    return "I" if -(1 << 31) <= value < 1 << 31 else "l"


def _put_value(out: bytearray, value: Any) -> None:
    if isinstance(value, Typed):
        _put_typed(out, value)
    elif value is None:
        out += b"V"
    elif isinstance(value, bool):
        out += b"t" + bytes((value,))
    elif isinstance(value, int | float):
        code = _code_of(value)
        out += code.encode() + _NUMBERS[code].pack(value)
    elif isinstance(value, str | bytes):
        out += b"S"
        _put_long(out, value.encode() if isinstance(value, str) else value)
    elif isinstance(value, dict):
        out += b"F"
        _put_table(out, value)
    elif isinstance(value, list):
        inner = bytearray()
        for part in value:
            _put_value(inner, part)
        out += b"A"
        _put_long(out, inner)
    else:
        raise TypeError(f"a header of type {type(value).__name__}")


def _put_typed(out: bytearray, value: Typed) -> None:
    out += value.code.encode("ascii")
    if value.code == "x":
        _put_long(out, value.value)
    elif value.code == "D":
        scale, number = value.value
        out += bytes((scale,)) + _NUMBERS["I"].pack(number)
    elif value.code == "t":
        out.append(value.value)
    elif value.code == "F":  # a table with the same name twice
        _put_table(out, value.value)
    else:
        out += _NUMBERS[value.code].pack(value.value)


def to_json(value: Any) -> Any:
    """Convert for JSON: bytes that are not text become `{"base64": ...}`, decimals a string."""
    if isinstance(value, Typed):
        return _typed_json(value)
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(value, str) else value


def _typed_json(value: Typed) -> Any:
    if value.code != "D":
        return to_json(value.value)
    from decimal import Decimal  # 1.5 ms, and the type is rare

    scale, number = value.value
    return str(Decimal(number).scaleb(-scale))
