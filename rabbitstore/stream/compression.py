"""Unpack compressed sub-batches (docs/formats/rabbitmq-streams.md#sub-batches)."""

from __future__ import annotations

import zlib
from typing import Any

from storageio import StoreCorrupt, UnsupportedFormat

from .layout import UNPACKED_MAX
from .lz4 import unpack_lz4
from .snappy import unpack_snappy

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_GZIP_WINDOW = 31
_RATIO_MAX = 64 << 10  # no known encoding exceeds it, except zeros in zstd


def unpack(compression: int, body: bytes, size: int, *, file: str, base: int) -> bytes:
    """Return the `size` uncompressed bytes; raise `UnsupportedFormat` for an encoding that is not known here."""
    limit = min(UNPACKED_MAX, len(body) * _RATIO_MAX)
    if size > limit:
        raise StoreCorrupt("sub-batch too large", file=file, offset=base, expected=f"at most {limit} bytes", found=size)
    try:
        found = _unpack(compression, body, size, file, base)
    except (zlib.error, ValueError, IndexError) as error:
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


def _zstandard() -> Any:
    """Return the package of the extra `compression`, None where it is not installed: then the encoding is not known here."""
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard


def _unpack_zstd(zstandard: Any, body: bytes, size: int) -> bytes:
    try:
        with zstandard.ZstdDecompressor(max_window_size=UNPACKED_MAX).stream_reader(body) as reader:
            return bytes(reader.read(size + 1))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _unpack(compression: int, body: bytes, size: int, file: str, base: int) -> bytes:
    match compression:
        case 0:
            return body
        case 1:
            return _gunzip(body, size)
        case 2:
            return unpack_snappy(body, size)
        case 3:
            return unpack_lz4(body, size)
        case 4 if (zstandard := _zstandard()) is not None:
            return _unpack_zstd(zstandard, body, size)
    name = NAMES[compression] if compression < len(NAMES) else str(compression)
    raise UnsupportedFormat("compression", file=file, offset=base, found=name, supported="none, gzip, snappy, lz4")
