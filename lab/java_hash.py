"""Java's `String.hashCode`, written from its definition, so that the checker does not use the code that it checks."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Return the signed 32-bit hash over UTF-16 code units."""
    code = 0
    data = text.encode("utf-16-be")
    for at in range(0, len(data), 2):
        code = (31 * code + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def key_hash(topic: str, key: str) -> int:
    """Return the hash that an index item keeps (`docs/formats/indexfile.md`)."""
    code = java_hash(f"{topic}#{key}")
    return 0 if code == -(1 << 31) else abs(code)
