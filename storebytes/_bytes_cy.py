"""Reads and writes of integers and text in a buffer: the only code that is written twice.

This is the Python half.  The compiled half is `_bytes_cy.pxd`: the same names, arguments and results as inline C functions.
They exist only inside the kernels that cimport them, so this module itself is never compiled.  A `Source` or `Target` is a
buffer here and a bare pointer there: the caller must bound every offset before.  Integers are big-endian.
`tests/storebytes/test_primitives.py` compares the halves on random arguments.
"""

from __future__ import annotations

import threading
import time
from binascii import b2a_base64
from json import dumps
from operator import mul
from struct import Struct
from typing import Any, TypeAlias

I32: TypeAlias = int
I64: TypeAlias = int
U32: TypeAlias = int
Size: TypeAlias = int
Bool: TypeAlias = bool
Nothing: TypeAlias = None  # a C function without a result (`-> None` would be a Python object there)
Source: TypeAlias = Any  # bytes, memoryview or map; const unsigned char * when compiled
Target: TypeAlias = Any  # a writable buffer; unsigned char * when compiled
I32s: TypeAlias = Any  # a column of native integers; int * when compiled
I64s: TypeAlias = Any
RawLock: TypeAlias = Any  # a lock of the interpreter's thread library, without an object around it

_I16, _I32, _I64, _U32_LITTLE = Struct(">h"), Struct(">i"), Struct(">q"), Struct("<I")
put_i16 = _I16.pack_into  # put_i16(target, at, value)
put_i32 = _I32.pack_into
put_i64 = _I64.pack_into
publish_i32 = _I32.pack_into  # the last store of a record: all earlier stores become visible before it
_get_i16, _get_i32, _get_i64 = _I16.unpack_from, _I32.unpack_from, _I64.unpack_from
_get_u32_little = _U32_LITTLE.unpack_from


def get_i16(source: Source, at: Size) -> I32:
    """Return the signed 16-bit integer at `at`."""
    return _get_i16(source, at)[0]  # type: ignore[no-any-return]


def get_i32(source: Source, at: Size) -> I32:
    """Return the signed 32-bit integer at `at`."""
    return _get_i32(source, at)[0]  # type: ignore[no-any-return]


def get_i64(source: Source, at: Size) -> I64:
    """Return the signed 64-bit integer at `at`."""
    return _get_i64(source, at)[0]  # type: ignore[no-any-return]


def get_u32_little(source: Source, at: Size) -> U32:
    """Return the unsigned little-endian 32-bit integer at `at` (for the checksum)."""
    return _get_u32_little(source, at)[0]  # type: ignore[no-any-return]


def put_bytes(target: Target, at: Size, source: Source, start: Size, size: Size) -> None:
    """Copy `size` bytes of `source` from `start` to `target` at `at`."""
    target[at : at + size] = source[start : start + size]


def take_bytes(source: Source, at: Size, size: Size) -> bytes:
    """Return a copy as a bytes object."""
    return bytes(source[at : at + size])


def take_text(source: Source, at: Size, size: Size) -> str:
    """Decode UTF-8 into a new str; invalid bytes become U+FFFD, as in Java."""
    return str(source[at : at + size], "utf-8", "replace")


def window(source: Source, at: Size, size: Size) -> Source:
    """Return a short range to search in: no copy when compiled, a bytes object here (a memoryview cannot search)."""
    return bytes(source[at : at + size])


def prefetch(source: Source, at: Size, size: Size) -> None:
    """Hint the processor that these bytes will be read soon; does nothing here."""


def take_text_again(source: Source, at: Size, size: Size) -> str:
    """Return `take_text` of a text that is often repeated; compiled, short ASCII texts are cached."""
    return take_text(source, at, size)


def take_view(view: memoryview, at: Size, size: Size) -> memoryview:
    """Return a slice of a view of bytes, which keeps the view's buffer alive."""
    return view[at : at + size]


def find_byte(source: Source, start: Size, stop: Size, byte: int) -> Size:
    """Return the first position of `byte` in start..stop, `stop` if there is none."""
    at = source.find(byte, start, stop)
    return stop if at < 0 else at


def count_byte(source: Source, size: Size, byte: int) -> Size:
    """Count `byte` in the first `size` bytes."""
    return source.count(byte, 0, size)  # type: ignore[no-any-return]


def has_bytes(source: Source, size: Size, needle: Source, expected_size: Size) -> Bool:
    """Return whether the first `size` bytes contain `needle`."""
    return source.find(needle, 0, size) >= 0  # type: ignore[no-any-return]


def encode_pairs(texts: list[str]) -> bytes:
    """Encode [name, value, name, value, ...] as `name 1 value 2 name 1 value 2` in UTF-8."""
    pieces = ["", "\x01", "", "\x02"] * (len(texts) // 2)
    pieces[::2] = texts
    return "".join(pieces).encode()


def encode_keys_and_tags(keys: str | None, tags: str | None) -> bytes:
    """Encode `KEYS 1 keys 2 TAGS 1 tags 2` in UTF-8, without a part that is None."""
    if not isinstance(keys, str | None) or not isinstance(tags, str | None):
        raise TypeError("text wanted")
    encoded = b"" if keys is None else b"KEYS\x01" + keys.encode() + b"\x02"
    return encoded if tags is None else encoded + b"TAGS\x01" + tags.encode() + b"\x02"


def put_text(target: Target, at: Size, capacity: Size, text: str) -> Size:
    """Write a text in UTF-8 at `at`; return its size, -1 if it cannot be encoded or exceeds `capacity` bytes."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return -1
    if len(encoded) > capacity:
        return -1
    target[at : at + len(encoded)] = encoded
    return len(encoded)


def is_same(source: Source, at: Size, size: Size, other: Source, other_size: Size) -> Bool:
    """Return whether the range equals the whole of `other`."""
    return size == other_size and bool(source[at : at + size] == other)


def is_same_at(source: Source, at: Size, size: Size, other: Source, other_at: Size) -> Bool:
    """Return whether two ranges of one size are equal."""
    return source[at : at + size] == other[other_at : other_at + size]  # type: ignore[no-any-return]


def target_of(view: memoryview) -> Target:
    """Return the writable bytes of a contiguous view that the caller keeps alive."""
    return view


def source_of(view: memoryview) -> Source:
    """Return the read-only bytes of a contiguous view that the caller keeps alive."""
    return view


def source_of_bytes(data: bytes) -> Source:
    """Return the bytes of a bytes object that the caller keeps alive."""
    return data


def i32s_of(view: memoryview) -> I32s:
    """Return a column of native 32-bit integers."""
    return view


def i64s_of(view: memoryview) -> I64s:
    """Return a column of native 64-bit integers."""
    return view


new_raw_lock = threading.Lock


def free_raw_lock(lock: RawLock) -> None:
    """Free the lock; does nothing here, where it is an object."""


def take_raw_lock_now(lock: RawLock) -> Bool:
    """Take the lock if it is free; return whether the caller has it."""
    return lock.acquire(blocking=False)  # type: ignore[no-any-return]


def take_raw_lock_soon(_lock: RawLock) -> Bool:
    """Try for a moment to take the lock, where threads run without a GIL; return whether the caller has it."""
    return False


def order_stores() -> Nothing:
    """Let no other thread see a store after this call before one that precedes it."""


def order_loads() -> Nothing:
    """Make no load after this call before one that precedes it."""


def order_all() -> Nothing:
    """Make no load after this call before other threads can see the stores that precede it."""


def take_raw_lock(lock: RawLock, timeout_us: I64) -> Bool:
    """Wait for the lock without the GIL; return whether the caller has it.  A negative time waits without a limit."""
    return lock.acquire(timeout=-1 if timeout_us < 0 else timeout_us / 1e6)  # type: ignore[no-any-return]


def address_of_lock(_lock: RawLock) -> int:
    """Return the address of the lock for `give_raw_locks`; compiled build only."""
    return 0


def give_raw_locks(_positions: I64s, _count: Size) -> None:
    """Release all these locks without the GIL; compiled build only."""


def give_raw_lock(lock: RawLock) -> None:
    """Release a lock that is held."""
    lock.release()


def now_ms() -> I64:
    """Return the wall clock time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


_POWERS: list[list[int]] = [[]]  # _POWERS[n] = 31**(n-1) .. 1, mod 2**32
_POWERS_MAX = 1024


def _powers(count: int) -> list[int]:
    """Return the weights of `count` units; short lists are cached."""
    if count > _POWERS_MAX:
        return [pow(31, count - 1 - index, 1 << 32) for index in range(count)]
    while len(_POWERS) <= count:
        _POWERS.append([31 * power & 0xFFFFFFFF for power in _POWERS[-1]] + [1])
    return _POWERS[count]


def _put(target: Target, at: Size, made: bytes) -> Size:
    target[at : at + len(made)] = made
    return at + len(made)


def put_decimal(target: Target, at: Size, value: I64) -> Size:
    """Write the number in decimal, up to 20 characters with a sign; return the position after it."""
    return _put(target, at, b"%d" % value)


def put_hex(target: Target, at: Size, source: Source, start: Size, size: Size, upper: Bool) -> Size:
    """Write two digits a byte; return the position after them."""
    digits = bytes(source[start : start + size]).hex()
    return _put(target, at, (digits.upper() if upper else digits).encode())


def put_base64(target: Target, at: Size, source: Source, start: Size, size: Size) -> Size:
    """Write four characters for three bytes, padded; return the position after them."""
    return _put(target, at, b2a_base64(source[start : start + size], newline=False))


def put_json_text(target: Target, at: Size, source: Source, start: Size, size: Size) -> Size:
    """Write UTF-8 as the inside of an ASCII JSON string, at most six characters a byte; return the position after it.

    Invalid bytes become U+FFFD, as in `take_text`.
    """
    return _put(target, at, dumps(take_text(source, start, size))[1:-1].replace("\x7f", "\\u007f").encode())


def java_hash_of_text(text: str, seed: I32) -> I32:
    """Return `java_hash` of a text in UTF-8; a lone surrogate counts as a question mark."""
    encoded = text.encode("utf-8", "replace")
    return java_hash(encoded, 0, len(encoded), seed)


def java_hash(source: Source, at: Size, size: Size, seed: I32) -> I32:
    """Return Java's String.hashCode of UTF-8 text, continued from `seed`."""
    units: Any = bytes(source[at : at + size])
    if not units.isascii():
        units = memoryview(units.decode("utf-8", "replace").encode("utf-16-le")).cast("H")
    count = len(units)
    code = (seed * pow(31, count, 1 << 32) + sum(map(mul, units, _powers(count)))) & 0xFFFFFFFF
    return code - (code >> 31 << 32)  # type: ignore[no-any-return]
