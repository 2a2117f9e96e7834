"""Small helpers that tests of all packages share.  Nothing here imports the product; `stores.py` has what does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def bodies(messages: Iterable[Any]) -> list[bytes]:
    """Return the bodies of messages, in their order."""
    return [message.body for message in messages]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder, by its path inside the folder."""
    return {name: data for name, data in tree(folder).items() if data is not None}


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return the bytes of every file below a folder, and None for every folder, by the path inside the folder."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def overwrite(path: str | Path, at: int, data: bytes) -> None:
    """Write bytes at a position of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def until(condition: Callable[[], Any], timeout_s: float = 20.0, what: str = "the condition", pause_s: float = 0.002) -> Any:
    """Return the first true result of a condition, or fail after a timeout."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {timeout_s} s in vain for {what}"
        time.sleep(pause_s)
    return found
