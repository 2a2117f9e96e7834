"""Decode values of AMQP 1.0 (docs/formats/rabbitmq-streams.md#messages).

A string becomes `str`, a symbol `Symbol`, a binary `bytes`, an array or list `list`, a map `dict`.  A value of a type that
Python does not have becomes `Special(name, value)`.
"""

from __future__ import annotations

import uuid
from struct import Struct
from typing import Any, NamedTuple

from storageio import StoreCorrupt

_DEPTH_MAX = 32
_U8, _U32, _F32 = Struct(">B"), Struct(">I"), Struct(">f")


class Symbol(str):
    """A symbol: text from a set that both sides know."""

    __slots__ = ()


class Special(NamedTuple):
    """A value with the name of its type."""

    name: str
    value: Any


class Described(NamedTuple):
    """A value with its descriptor, a number or a symbol."""

    descriptor: Any
    value: Any


_NUMBERS = {
    0x50: Struct(">B"),
    0x51: Struct(">b"),
    0x52: Struct(">B"),
    0x53: Struct(">B"),
    0x54: Struct(">b"),
    0x55: Struct(">b"),
    0x60: Struct(">H"),
    0x61: Struct(">h"),
    0x70: Struct(">I"),
    0x71: Struct(">i"),
    0x80: Struct(">Q"),
    0x81: Struct(">q"),
    0x82: Struct(">d"),
}
_CONSTANTS: dict[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}
_LENGTHS = {0xA: _U8, 0xB: _U32}
_COMPOUND = {0xC: _U8, 0xD: _U32, 0xE: _U8, 0xF: _U32}  # the size of list, map and array
_SPECIAL = {0x73: ("char", 4), 0x74: ("decimal32", 4), 0x84: ("decimal64", 8), 0x94: ("decimal128", 16)}


class Amqp10Reader:
    """Bytes and a position in them.  Every length is checked before it is used."""

    def __init__(self, data: bytes, file: str = "AMQP 1.0 message", base: int = 0) -> None:
        """Start at the first byte; errors name `file` and the offset from `base` on."""
        self.data = data
        self.at = 0
        self.file = file
        self.base = base

    def bad(self, reason: str, expected: object, found: object) -> StoreCorrupt:
        """Return the error for the current position."""
        return StoreCorrupt(reason, file=self.file, offset=self.base + self.at, expected=expected, found=found)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        left = len(self.data) - self.at
        if size > left:
            raise self.bad("value runs past its end", f"{size} bytes", f"{left} bytes")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, layout: Struct) -> Any:
        """Return the next number."""
        return layout.unpack(self.take(layout.size))[0]

    def value(self, depth: int = 0) -> Any:
        """Decode the next value."""
        if depth > _DEPTH_MAX:
            raise self.bad("value is nested too deep", f"at most {_DEPTH_MAX} levels", "more")
        code = self.take(1)[0]
        if code == 0:
            descriptor = self.value(depth + 1)
            return Described(descriptor, self.value(depth + 1))
        return self._of(code, depth)

    def _of(self, code: int, depth: int) -> Any:
        if code in _CONSTANTS:
            return [] if code == 0x45 else _CONSTANTS[code]
        if code in _NUMBERS:
            return self.number(_NUMBERS[code])
        kind = code >> 4
        if kind in _LENGTHS:
            return self._sized(code, self.take(self.number(_LENGTHS[kind])))
        if kind in _COMPOUND:
            return self._compound(code, _COMPOUND[kind], depth)
        return self._rare(code)

    def _sized(self, code: int, data: bytes) -> Any:
        match code & 0xF:
            case 0:
                return data
            case 1:
                return data.decode("utf-8", "surrogateescape")
            case 3:
                return Symbol(data.decode("ascii", "replace"))
        raise self.bad("unknown type of a value", "a type of AMQP 1.0", hex(code))

    def _rare(self, code: int) -> Any:
        if code == 0x56:
            return self.take(1)[0] != 0
        if code == 0x72:
            return Special("float", self.number(_F32))
        if code == 0x83:
            return Special("timestamp", int.from_bytes(self.take(8), "big", signed=True))
        if code == 0x98:
            return Special("uuid", str(uuid.UUID(bytes=self.take(16))))
        if code in _SPECIAL:
            name, size = _SPECIAL[code]
            return Special(name, self.take(size))
        self.at -= 1
        raise self.bad("unknown type of a value", "a type of AMQP 1.0", hex(code))

    def _compound(self, code: int, layout: Struct, depth: int) -> Any:
        inner = Amqp10Reader(self.take(self.number(layout)), self.file, self.base + self.at)
        inner.base -= len(inner.data)
        count = inner.number(layout)
        kind = code & 0xF
        if code >> 4 in (0xE, 0xF):
            return inner._array(count, depth) if kind == 0 else inner._unknown(code)
        if kind > 1:
            return inner._unknown(code)
        if count > len(inner.data) - inner.at:
            raise inner.bad("value runs past its end", f"{count} elements", f"{len(inner.data) - inner.at} bytes")
        values = [inner.value(depth + 1) for _ in range(count)]
        if inner.at != len(inner.data) or (kind == 1 and count % 2):
            raise inner.bad("wrong size of a list or map", f"{len(inner.data)} bytes", f"{inner.at} bytes, {count} elements")
        return values if kind == 0 else _map(values)

    def _array(self, count: int, depth: int) -> list[Any]:
        """Decode elements that share one constructor; their number is limited by the bytes that are left."""
        code = self.take(1)[0]
        descriptor = self.value(depth + 1) if code == 0 else None
        code = self.take(1)[0] if code == 0 else code
        if count > max(len(self.data) - self.at, 1):
            raise self.bad("value runs past its end", f"{count} elements", f"{len(self.data) - self.at} bytes")
        if depth >= _DEPTH_MAX:
            raise self.bad("value is nested too deep", f"at most {_DEPTH_MAX} levels", "more")
        values = [self._of(code, depth + 1) for _ in range(count)]
        return values if descriptor is None else [Described(descriptor, value) for value in values]

    def _unknown(self, code: int) -> Any:
        raise self.bad("unknown type of a value", "a type of AMQP 1.0", hex(code))


def _map(values: list[Any]) -> dict[Any, Any]:
    """Pair keys and values; a key that Python cannot hash becomes its text."""
    return {_key(key): value for key, value in zip(values[::2], values[1::2], strict=True)}


def _key(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key
