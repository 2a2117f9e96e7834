"""MD5, by which RabbitMQ names folders and protects tables."""

from __future__ import annotations

try:
    from _md5 import md5 as _md5  # type: ignore[import-not-found]  # Python's own; `hashlib` loads OpenSSL, which takes 3 ms
except ImportError:  # a Python that was built without it
    from hashlib import md5 as _md5


def md5(data: bytes) -> bytes:
    """Return the digest of 16 bytes."""
    digest: bytes = _md5(data, usedforsecurity=False).digest()
    return digest
