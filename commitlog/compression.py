"""Decompress bodies that a client compressed.

The store keeps bodies unchanged and never decodes them; `sys_flag` has bit 0x1 for compressed bodies, and the type in bits 8
to 10 (docs/formats/commitlog.md#system-flag).  The size of the output is limited during decompression, not afterwards.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from importlib import import_module
from typing import Any

from storageio import StoreCorrupt, needs_extra

from .layout import COMPRESSED, COMPRESSION_MASK, COMPRESSION_SHIFT

LIMIT_BYTES = 64 << 20
PIECE_SIZE = 1024  # input bytes per call, which limits the output to about 40 MiB


class Compression(IntEnum):
    """The compression types, by their number in `sys_flag`."""

    NONE = -1
    UNKNOWN = 0  # from old clients; means ZLIB
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


class _TooLong(Exception):
    """The output exceeds the limit."""


class _NotWhole(Exception):
    """The compressed bytes are not one whole frame."""


def compression_of(sys_flag: int) -> Compression | int:
    """Return the type in a record's `sys_flag`; a plain integer for an unknown type.

    >>> compression_of(0x301), compression_of(0x300)
    (<Compression.ZLIB: 3>, <Compression.NONE: -1>)
    """
    if not sys_flag & COMPRESSED:
        return Compression.NONE
    number = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    return Compression(number) if number in _UNPACKERS else number


def decompress(body: bytes, sys_flag: int, *, limit: int = LIMIT_BYTES, file: str = "message body", offset: int = 0) -> bytes:
    """Return the body as its producer passed it; the same object if it is not compressed.

    Raises `StoreCorrupt` with `file` and `offset` if the bytes are not one whole frame of the type, or contain more than
    `limit` bytes; raises `MissingExtra` if the library for LZ4 or ZSTD is not installed.
    """
    kind = compression_of(sys_flag)
    if kind is Compression.NONE:
        return body
    unpack = _UNPACKERS.get(kind)
    if unpack is None:
        raise StoreCorrupt("unknown compression", file=file, offset=offset, expected="type 0 to 3", found=int(kind))
    try:
        return unpack(body, limit)
    except _TooLong as error:
        reason, expected, found = "body too long when unpacked", f"at most {limit} bytes", f"more, from {len(body)}"
        raise StoreCorrupt(reason, file=file, offset=offset, expected=expected, found=found) from error
    except _NotWhole as error:
        expected = f"one whole {Compression(kind or Compression.ZLIB).name} frame"
        raise StoreCorrupt("body cannot be unpacked", file=file, offset=offset, expected=expected, found=str(error)) from error


def _unpack_zlib(body: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise _NotWhole(str(error)) from error
    return _checked(unpacked, limit, unpacker.eof)


def _unpack_lz4(body: bytes, limit: int) -> bytes:
    """Decompress the LZ4 frame format, which clients write, rather than the bare block format."""
    frame = _extra("lz4.frame")
    unpacker = frame.LZ4FrameDecompressor()
    try:
        unpacked: bytes = unpacker.decompress(body, max_length=limit + 1)
    except (RuntimeError, EOFError) as error:
        raise _NotWhole(str(error)) from error
    return _checked(unpacked, limit, unpacker.eof)


def _unpack_zstd(body: bytes, limit: int) -> bytes:
    """Decompress ZSTD in small pieces, because the library does not limit its output.

    It refuses windows above 128 MiB itself.
    """
    zstandard = _extra("zstandard")
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size = 0
    try:
        for at in range(0, len(body), PIECE_SIZE):
            if unpacker.eof or size > limit:
                break
            parts.append(unpacker.decompress(body[at : at + PIECE_SIZE]))
            size += len(parts[-1])
    except zstandard.ZstdError as error:
        raise _NotWhole(str(error)) from error
    if size > limit:
        raise _TooLong
    return _checked(b"".join(parts), limit, unpacker.eof)


def _checked(unpacked: bytes, limit: int, is_whole: bool) -> bytes:
    if len(unpacked) > limit:
        raise _TooLong
    if not is_whole:
        raise _NotWhole(f"an end after {len(unpacked)} unpacked bytes")
    return unpacked


def _extra(module: str) -> Any:
    """Import an optional library on first use, because most stores hold no compressed body."""
    with needs_extra("compression"):
        return import_module(module)


_UNPACKERS: dict[int, Callable[[bytes, int], bytes]] = {
    Compression.UNKNOWN: _unpack_zlib,
    Compression.LZ4: _unpack_lz4,
    Compression.ZSTD: _unpack_zstd,
    Compression.ZLIB: _unpack_zlib,
}
