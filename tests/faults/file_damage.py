"""What happens to whole files and folders of a store, whichever system wrote it: the catalogue of both damage labs.

A damage is a place and one of `HOWS`.  `older` is an earlier snapshot of the same folder, `other` a folder of another store.
Both are optional.  A damage that would change nothing is not made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

PAGE = 4096
NOT_ASCII = ("Тема-é", "журнал", os.fsdecode(b"caf\xe9"))  # the last is not UTF-8
HOWS = ("empty", "cut to the head", "zeros", "zero pages", "missing", "older", "foreign", "folder missing", "other name")
HEADS = {  # sizes by the ending of a file's name; others have no head
    **{".wal": 5, ".segment": 8, ".index": 8, ".dat": 9, ".dets": 56},
    **{".qi": 64, ".qs": 64, ".DCD": 8, ".DCL": 8, ".LOG": 8},
}


class Damage(NamedTuple):
    """One damage: the kind of the file, for tables, its path below the folder, and one of `HOWS`."""

    kind: str
    path: str
    how: str

    def __str__(self) -> str:
        return f"{self.how} {self.path}"


class Damager:
    """Applies damages to copies of one folder."""

    def __init__(self, older: Path | None, other: Path | None, random: Random) -> None:
        self.older = older
        self.other = other
        self.random = random

    def apply(self, folder: Path, damage: Damage) -> bool:
        """Damage a file; return whether anything changed."""
        path = folder / damage.path
        if not path.is_file():
            return False
        change: Callable[[Path, Path], bool] = getattr(self, "_" + damage.how.replace(" ", "_"))
        return change(folder, path)

    def _empty(self, _folder: Path, path: Path) -> bool:
        return _written(path, b"")

    def _cut_to_the_head(self, _folder: Path, path: Path) -> bool:
        """Leave what a kill leaves of a file that was just created."""
        size = HEADS.get(path.suffix)
        return size is not None and _written(path, path.read_bytes()[:size])

    def _zeros(self, _folder: Path, path: Path) -> bool:
        return _written(path, bytes(path.stat().st_size))

    def _zero_pages(self, _folder: Path, path: Path) -> bool:
        """Zero a page among those in use; of a short file its second half."""
        data = bytearray(path.read_bytes())
        used = len(data.rstrip(b"\0"))
        page = PAGE if used > PAGE else max(used // 2, 1)
        start = self.random.randrange(max(used // page, 1)) * page if page == PAGE else used - page
        data[start : start + page] = bytes(len(data[start : start + page]))
        return _written(path, bytes(data))

    def _missing(self, _folder: Path, path: Path) -> bool:
        path.unlink()
        return True

    def _older(self, folder: Path, path: Path) -> bool:
        source = self.older / path.relative_to(folder) if self.older else None
        return source is not None and source.is_file() and _written(path, source.read_bytes())

    def _foreign(self, folder: Path, path: Path) -> bool:
        """Take the same file of another store, or one beside it there."""
        if self.other is None:
            return False
        position = path.relative_to(folder)
        near = sorted(one for one in (self.other / position.parts[0]).rglob("*") if one.is_file() and one.name == path.name)
        source = self.other / position if (self.other / position).is_file() else next(iter(near), None)
        return source is not None and _written(path, source.read_bytes())

    def _folder_missing(self, folder: Path, path: Path) -> bool:
        """Remove one of the folders above the file."""
        above = [one for one in path.parents if folder in one.parents]
        if not above:
            return False
        shutil.rmtree(self.random.choice(above))
        return True

    def _other_name(self, folder: Path, path: Path) -> bool:
        """Put a copy with a name that is not ASCII beside the file or beside one of the folders above it."""
        position = self.random.choice([path, *(one for one in path.parents if folder in one.parents)])
        copy = position.with_name(self.random.choice(NOT_ASCII))
        if copy.exists():
            return False
        shutil.copytree(position, copy) if position.is_dir() else shutil.copy(position, copy)
        return True


def _written(path: Path, data: bytes) -> bool:
    """Replace a file's content; return whether it changed."""
    if path.read_bytes() == data:
        return False
    size = len(data.rstrip(b"\0"))
    path.write_bytes(data[:size])
    os.truncate(path, len(data))  # the zeros stay a hole: timer wheels have 38 MB of them
    return True


def copied(source: Path, target: Path) -> Path:
    """Copy a folder, with holes as holes, and return the copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)
    return target
