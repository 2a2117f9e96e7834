"""Java's `String.hashCode`, written from its definition: the checker may not ask the code that it checks."""

from __future__ import annotations


def java_hash(text: str) -> int:
    """Signed, 32 bits; over UTF-16 units."""
    code = 0
    data = text.encode("utf-16-be")
    for at in range(0, len(data), 2):
        code = (31 * code + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


def key_hash(topic: str, key: str) -> int:
    """What an index item keeps (format page `docs/formats/indexfile.md`)."""
    code = java_hash(f"{topic}#{key}")
    return 0 if code == -(1 << 31) else abs(code)
