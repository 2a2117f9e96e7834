"""Unpack snappy, framed as the stream clients write it or as one raw block.  Checksums are skipped: the chunk has a CRC."""

from __future__ import annotations

from .lz4 import copy_back

_STREAM = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _PLAIN, _SKIPPABLE = 0x00, 0x01, 0x80
_CRC_SIZE = 4


def unpack_snappy(data: bytes, size_max: int) -> bytes:
    """Return the content; raise `ValueError` or `IndexError` for damage or more than `size_max` bytes."""
    out = bytearray()
    if not data.startswith(_STREAM):
        _block(data, out, size_max)
        return bytes(out)
    at = 0
    while at < len(data):
        kind, size = data[at], int.from_bytes(data[at + 1 : at + 4], "little")
        part = data[at + 4 : at + 4 + size]
        if len(part) != size:
            raise ValueError("frame runs past its end")
        _frame(kind, part, out, size_max)
        at += 4 + size
    return bytes(out)


def _frame(kind: int, part: bytes, out: bytearray, size_max: int) -> None:
    if kind == _COMPRESSED:
        _block(part[_CRC_SIZE:], out, size_max)
    elif kind == _PLAIN:
        if len(out) + len(part) - _CRC_SIZE > size_max:
            raise ValueError(f"more than {size_max} bytes")
        out += part[_CRC_SIZE:]
    elif kind < _SKIPPABLE:
        raise ValueError(f"unknown frame {kind}")


def _block(data: bytes, out: bytearray, size_max: int) -> None:
    size, at = _varint(data)
    before = len(out)
    if before + size > size_max:
        raise ValueError(f"more than {size_max} bytes")
    inner = bytearray()
    while at < len(data):
        at = _element(data, at, inner, size)
    if len(inner) != size:
        raise ValueError(f"block of {len(inner)} bytes instead of {size}")
    out += inner


def _varint(data: bytes) -> tuple[int, int]:
    number = 0
    for at in range(5):
        number |= (data[at] & 127) << 7 * at
        if data[at] < 128:
            return number, at + 1
    raise ValueError("length of more than 5 bytes")


def _element(data: bytes, at: int, out: bytearray, size: int) -> int:
    tag = data[at]
    kind = tag & 3
    if kind == 0:
        return _literal(data, at, out, size)
    if kind == 1:
        copy_back(out, (tag >> 5) << 8 | data[at + 1], (tag >> 2 & 7) + 4, size)
        return at + 2
    width = 2 if kind == 2 else 4
    found = data[at + 1 : at + 1 + width]
    if len(found) != width:
        raise ValueError("copy runs past its end")
    copy_back(out, int.from_bytes(found, "little"), (tag >> 2) + 1, size)
    return at + 1 + width


def _literal(data: bytes, at: int, out: bytearray, size: int) -> int:
    length = data[at] >> 2
    at += 1
    if length >= 60:
        width = length - 59
        length = int.from_bytes(data[at : at + width], "little")
        at += width
    part = data[at : at + length + 1]
    if len(part) != length + 1 or len(out) + len(part) > size:
        raise ValueError("literal runs past its end")
    out += part
    return at + length + 1
