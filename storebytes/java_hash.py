"""Java's `String.hashCode` for Python text."""

from __future__ import annotations


def java_hash_code(text: str) -> int:
    """Return the hash of a text as a signed 32-bit integer.

    >>> java_hash_code("TagA"), java_hash_code("polygenelubricants")
    (2598919, -2147483648)
    """
    from ._primitives_check_cy import java

    data = text.encode("utf-8", "replace")
    return int(java(data, 0, len(data), 0))
