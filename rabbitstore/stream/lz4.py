"""Unpack LZ4 frames.  Checksums of blocks and content are skipped: the chunk's CRC covers them."""

from __future__ import annotations

_MAGIC = b"\x04\x22\x4d\x18"
_STORED = 1 << 31
_BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM, _DICTIONARY = 0x10, 0x08, 0x04, 0x01
_MATCH_MIN = 4


def unpack_lz4(data: bytes, size_max: int) -> bytes:
    """Return the content of all frames; raise `ValueError` or `IndexError` for damage or more than `size_max` bytes."""
    out = bytearray()
    at = 0
    while at < len(data):
        at = _frame(data, at, out, size_max)
    return bytes(out)


def _frame(data: bytes, at: int, out: bytearray, size_max: int) -> int:
    flags = data[at + 4]
    if data[at : at + 4] != _MAGIC or flags >> 6 != 1 or flags & _DICTIONARY:
        raise ValueError("not an lz4 frame")
    at += 7 + (8 if flags & _CONTENT_SIZE else 0)
    while True:
        size = _u32(data, at)
        at += 4
        if size == 0:
            return at + (4 if flags & _CONTENT_CHECKSUM else 0)
        length = size & ~_STORED
        block = data[at : at + length]
        if len(block) != length:
            raise ValueError("block runs past its end")
        if size & _STORED:
            _append(out, block, size_max)
        else:
            _block(block, out, size_max)
        at += length + (4 if flags & _BLOCK_CHECKSUM else 0)


def _u32(data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise ValueError("frame without an end")
    return int.from_bytes(data[at : at + 4], "little")


def _append(out: bytearray, data: bytes, size_max: int) -> None:
    if len(out) + len(data) > size_max:
        raise ValueError(f"more than {size_max} bytes")
    out += data


def _block(block: bytes, out: bytearray, size_max: int) -> None:
    at = 0
    while at < len(block):
        token = block[at]
        literals, at = _length(block, at + 1, token >> 4)
        if at + literals > len(block):
            raise ValueError("literals run past their end")
        _append(out, block[at : at + literals], size_max)
        at += literals
        if at == len(block):
            return
        distance = block[at] | block[at + 1] << 8
        length, at = _length(block, at + 2, token & 15)
        copy_back(out, distance, length + _MATCH_MIN, size_max)


def _length(block: bytes, at: int, length: int) -> tuple[int, int]:
    if length < 15:
        return length, at
    while True:
        length += block[at]
        at += 1
        if block[at - 1] != 255:
            return length, at


def copy_back(out: bytearray, distance: int, length: int, size_max: int) -> None:
    """Append `length` bytes from `distance` bytes before the end; the ranges may overlap."""
    start = len(out) - distance
    if distance == 0 or start < 0 or len(out) + length > size_max:
        raise ValueError(f"copy of {length} bytes from {distance} bytes before {len(out)}")
    whole = bytes(out[start : start + min(length, distance)])
    out += (whole * (length // len(whole) + 1))[:length]
