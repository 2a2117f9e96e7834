"""The corpus: small files in `fuzz/corpus/TARGET/`, cut from golden stores or found by coverage, and past finds."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def seeds(target: str) -> list[bytes]:
    """Return the seeds of one target, the last of which is empty."""
    folder = FOLDER / target
    found = [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []
    return [*found, b""]


def keep(target: str, data: bytes) -> Path:
    """Keep data as a seed of later runs."""
    path = FOLDER / target / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
