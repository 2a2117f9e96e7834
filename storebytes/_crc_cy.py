"""CRC-32 without the GIL.

Where the processor has carry-less multiplication, ranges of 64 bytes and more are folded (`_crc_fold.pxd`) instead of sliced,
provided that the fold agreed with the tables on every length up to 300 and on longer ones.  The plain build takes its table
from `crcmod` and calls `zlib.crc32`.  The compiled build does not import `crcmod`, whose C extension turns the GIL on in a
free-threaded Python; the tests compare both builds with it.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from . import no_cython as cython  # type: ignore[no-redef]
if not cython.compiled:
    from array import array
    from zlib import crc32 as _zlib_crc32

    import crcmod.predefined  # type: ignore[import-untyped]

    from ._bytes_cy import I32, U32, Bool, Size, Source, get_u32_little, source_of_bytes

    _TABLES = array("I", bytes(4 * 4096))

    def can_fold() -> bool:
        """Return True: `zlib.crc32` stands in for the fold in the plain build."""
        return True

    def fold(crc: U32, source: Source, at: Size, size: Size) -> U32:
        """Return the CRC register after these bytes."""
        return _zlib_crc32(source[at : at + size], crc ^ ALL_ONES) ^ ALL_ONES


ALL_ONES: U32 = 0xFFFFFFFF
LOW_31: U32 = 0x7FFFFFFF
FOLD_SIZE_MIN = 64 if cython.compiled else 0
POLYNOMIAL = 0xEDB88320  # with its bits reversed
_TABLE: list[int] = [] if cython.compiled else [int(entry) for entry in crcmod.predefined.PredefinedCrc("crc-32").table]


def _fill_tables() -> None:
    """Fill the slicing tables: table k advances one byte followed by k zero bytes."""
    for index in range(256 if cython.compiled else 0):
        value = index
        for _bit in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        _TABLE.append(value)
    for index in range(256):
        value = _TABLE[index]
        for table in range(16):
            _TABLES[table * 256 + index] = value
            value = (value >> 8) ^ _TABLE[value & 255]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sliced(crc: U32, source: Source, at: Size, size: Size) -> U32:
    """Slice by 16 on the inverted register: sixteen bytes a step through sixteen tables, then four, then one."""
    a: U32
    b: U32
    c: U32
    d: U32
    stop: Size = at + size
    while stop - at >= 16:
        a = get_u32_little(source, at) ^ crc
        b = get_u32_little(source, at + 4)
        c = get_u32_little(source, at + 8)
        d = get_u32_little(source, at + 12)
        crc = (
            _TABLES[d >> 24] ^ _TABLES[256 + (d >> 16 & 255)] ^ _TABLES[512 + (d >> 8 & 255)] ^ _TABLES[768 + (d & 255)]
            ^ _TABLES[1024 + (c >> 24)] ^ _TABLES[1280 + (c >> 16 & 255)]
            ^ _TABLES[1536 + (c >> 8 & 255)] ^ _TABLES[1792 + (c & 255)]
            ^ _TABLES[2048 + (b >> 24)] ^ _TABLES[2304 + (b >> 16 & 255)]
            ^ _TABLES[2560 + (b >> 8 & 255)] ^ _TABLES[2816 + (b & 255)]
            ^ _TABLES[3072 + (a >> 24)] ^ _TABLES[3328 + (a >> 16 & 255)]
            ^ _TABLES[3584 + (a >> 8 & 255)] ^ _TABLES[3840 + (a & 255)]
        )  # fmt: skip
        at += 16
    while stop - at >= 4:
        a = get_u32_little(source, at) ^ crc
        crc = _TABLES[a >> 24] ^ _TABLES[256 + (a >> 16 & 255)] ^ _TABLES[512 + (a >> 8 & 255)] ^ _TABLES[768 + (a & 255)]
        at += 4
    while at < stop:
        crc = (crc >> 8) ^ _TABLES[(crc ^ source[at]) & 255]
        at += 1
    return crc


def crc32_more(crc: U32, source: Source, at: Size, size: Size) -> U32:
    """Return all 32 bits of the CRC-32 of the preceding bytes (`crc`, 0 if none) and this range."""
    crc = crc ^ ALL_ONES
    if _FOLDS and size >= FOLD_SIZE_MIN:
        return fold(crc, source, at, size) ^ ALL_ONES
    return _sliced(crc, source, at, size) ^ ALL_ONES


def crc32(source: Source, at: Size, size: Size) -> I32:
    """Return the CRC-32 without its top bit, as RocketMQ stores it (docs/formats/commitlog.md#body-checksum)."""
    return crc32_more(0, source, at, size) & LOW_31


def checksum(data: bytes, crc: int = 0) -> int:
    """Return `crc32_more` of a bytes object."""
    seed: U32 = crc
    return crc32_more(seed, source_of_bytes(data), 0, len(data))


def sliced(data: bytes) -> int:
    """Return the CRC-32 by the tables alone, for tests and for the check of the fold."""
    return _sliced(ALL_ONES, source_of_bytes(data), 0, len(data)) ^ ALL_ONES


def use_fold(requested: bool) -> bool:
    """Use the fold if the processor supports it and its results are correct; return whether it is used."""
    global _FOLDS
    _FOLDS = False
    if not requested or not can_fold():
        return False
    data = bytes(range(256)) * 8
    _FOLDS = True
    for size in (*range(300), *range(380, 2048, 43)):
        if checksum(data[:size]) != sliced(data[:size]):
            _FOLDS = False
            break
    return bool(_FOLDS)


_fill_tables()
_FOLDS: Bool = False
use_fold(True)
