"""A Python function for each primitive, so that the tests can compare the plain and the compiled half."""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from . import no_cython as cython  # type: ignore[no-redef]
if not cython.compiled:
    from ._bytes_cy import (
        I32,
        I64,
        Size,
        count_byte,
        encode_keys_and_tags,
        encode_pairs,
        find_byte,
        get_i16,
        get_i32,
        get_i64,
        get_u32_little,
        has_bytes,
        i32s_of,
        i64s_of,
        is_same,
        is_same_at,
        java_hash,
        now_ms,
        prefetch,
        publish_i32,
        put_base64,
        put_bytes,
        put_decimal,
        put_hex,
        put_i16,
        put_i32,
        put_i64,
        put_json_text,
        put_text,
        source_of,
        source_of_bytes,
        take_bytes,
        take_text,
        take_text_again,
        take_view,
        target_of,
        window,
    )


def gets(data: bytes, at: int) -> tuple[int, ...]:
    """Return every integer type at `at`."""
    return (
        get_i16(source_of_bytes(data), at),
        get_i32(source_of_bytes(data), at),
        get_i64(source_of_bytes(data), at),
        get_u32_little(source_of_bytes(data), at),
    )


def texts(text: str, capacity: int) -> tuple[int, bytes]:
    """Return the result of `put_text`, and the buffer with a guard byte on each side."""
    held: memoryview = memoryview(bytearray(b"\xff" * (capacity + 2)))
    size: Size = put_text(target_of(held), 1, capacity, text)
    return size, bytes(held)


def puts(value16: I32, value32: I32, value64: I64) -> bytes:
    """Write every integer type into one buffer."""
    held: memoryview = memoryview(bytearray(24))
    put_i16(target_of(held), 1, value16)
    put_i32(target_of(held), 4, value32)
    put_i64(target_of(held), 9, value64)
    publish_i32(target_of(held), 18, value32)
    return bytes(held)


def copy(data: bytes, start: int, size: int) -> bytes:
    """Copy by `put_bytes` into a buffer with a guard byte on each side."""
    held: memoryview = memoryview(bytearray(size + 2))
    put_bytes(target_of(held), 1, source_of_bytes(data), start, size)
    return bytes(held)


def take(data: bytes, at: int, size: int) -> tuple[bytes, str, str]:
    """Return the range as bytes and as text, cached and not."""
    held: memoryview = memoryview(data)
    source = source_of(held)
    return take_bytes(source, at, size), take_text(source, at, size), take_text_again(source, at, size)


def view(data: bytes, at: int, size: int) -> memoryview:
    """Return a slice of a view, prefetched before."""
    held: memoryview = memoryview(data)
    prefetch(source_of(held), at, size)
    return take_view(held, at, size)


def find(data: bytes, start: int, stop: int, byte: int) -> tuple[int, int]:
    """Return the first position and the count of a byte."""
    return find_byte(source_of_bytes(data), start, stop, byte), count_byte(source_of_bytes(data), stop, byte)


def has(data: bytes, size: int, needle: bytes) -> bool:
    """Return whether the first bytes contain others."""
    return bool(has_bytes(source_of_bytes(data), size, source_of_bytes(needle), len(needle)))


def same(data: bytes, at: int, size: int, other: bytes) -> tuple[bool, bool]:
    """Return the results of both comparisons."""
    return (
        bool(is_same(source_of_bytes(data), at, size, source_of_bytes(other), len(other))),
        bool(is_same_at(window(source_of_bytes(data), at, size), 0, size, source_of_bytes(data), at)),
    )


def java(data: bytes, at: int, size: int, seed: int) -> int:
    """Return Java's hash, continued from `seed`."""
    return java_hash(source_of_bytes(data), at, size, seed)


def pairs(texts: list[str]) -> bytes:
    """Encode names and values."""
    return encode_pairs(texts)


def keys_and_tags(keys: str | None, tags: str | None) -> bytes:
    """Encode the two most common properties."""
    return encode_keys_and_tags(keys, tags)


def columns(ints: bytes, longs: bytes) -> tuple[int, int]:
    """Return the second entry of two native columns."""
    held_ints: memoryview = memoryview(ints).cast("i")
    held_longs: memoryview = memoryview(longs).cast("q")
    return i32s_of(held_ints)[1], i64s_of(held_longs)[1]


def encoded(data: bytes, start: int, size: int, value: I64) -> list[bytes]:
    """Encode as decimal, hex of both cases, base64 and inside of a JSON string, with one guard byte on each side."""
    held: memoryview = memoryview(bytearray(6 * size + 24))
    out: list[bytes] = []
    out.append(bytes(held[: put_decimal(target_of(held), 1, value) + 1]))
    held[:] = bytes(len(held))
    out.append(bytes(held[: put_hex(target_of(held), 1, source_of_bytes(data), start, size, False) + 1]))
    held[:] = bytes(len(held))
    out.append(bytes(held[: put_hex(target_of(held), 1, source_of_bytes(data), start, size, True) + 1]))
    held[:] = bytes(len(held))
    out.append(bytes(held[: put_base64(target_of(held), 1, source_of_bytes(data), start, size) + 1]))
    held[:] = bytes(len(held))
    out.append(bytes(held[: put_json_text(target_of(held), 1, source_of_bytes(data), start, size) + 1]))
    return out


def clock() -> int:
    """Return the wall clock time."""
    return now_ms()
