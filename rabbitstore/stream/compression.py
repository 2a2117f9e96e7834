"""Unpack compressed sub-batches (docs/formats/rabbitmq-streams.md#sub-batches)."""

from __future__ import annotations

import zlib
from typing import Any

from storageio import StoreCorrupt, UnsupportedFormat, needs_extra

from .layout import UNPACKED_MAX

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_GZIP_WINDOW = 31
_RATIO_MAX = 64 << 10  # no known encoding exceeds it, except zeros in zstd
_SNAPPY_STREAM = b"\xff\x06\x00\x00sNaPpY"  # as stream clients write it; others write one raw block


def unpack(compression: int, body: bytes, size: int, *, file: str, base: int) -> bytes:
    """Return the `size` uncompressed bytes.

    Raises `UnsupportedFormat` for an encoding that is not known here, and `MissingExtra` without the library for snappy,
    lz4 and zstd.
    """
    if compression >= len(NAMES):
        raise UnsupportedFormat("compression", file=file, offset=base, found=compression, supported=", ".join(NAMES))
    limit = min(UNPACKED_MAX, len(body) * _RATIO_MAX)
    if size > limit:
        raise StoreCorrupt("sub-batch too large", file=file, offset=base, expected=f"at most {limit} bytes", found=size)
    try:
        found = body if compression == 0 else _gunzip(body, size) if compression == 1 else _unpack(compression, body, size)
    except (zlib.error, ValueError) as error:
        raise StoreCorrupt(
            "damaged sub-batch", file=file, offset=base, expected=NAMES[compression], found=str(error)
        ) from error
    if len(found) != size:
        raise StoreCorrupt("sub-batch of another size", file=file, offset=base, expected=size, found=len(found))
    return found


def _gunzip(body: bytes, size: int) -> bytes:
    reader = zlib.decompressobj(_GZIP_WINDOW)
    found = reader.decompress(body, size + 1)
    if not reader.eof or reader.unused_data:
        raise ValueError("not one whole gzip stream of this size")
    return found


def _unpack(compression: int, body: bytes, size: int) -> bytes:
    """Unpack into `size` bytes, so that a frame that grows without end fails instead of filling the memory."""
    with needs_extra("compression"):
        import cramjam
    module: Any = getattr(cramjam, NAMES[compression])
    is_raw = module is cramjam.snappy and not body.startswith(_SNAPPY_STREAM)
    target = bytearray(size)
    try:
        written = (module.decompress_raw_into if is_raw else module.decompress_into)(body, target)
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from error
    return bytes(memoryview(target)[:written])
