"""Symbolic links, pipes and folders in place of a sidecar file.

Nothing follows such a link or opens such a pipe.  But a sidecar file that cannot be read or replaced makes a store slow or
impossible to open, and a folder that is a symbolic link leads writes out of the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from .disk import Disk, Kind
from .swap import ASIDE
from .swap import move_aside as move_aside

_TEXTS = {Kind.FILE: "a file", Kind.FOLDER: "a folder", Kind.OTHER: "a link, a pipe or a device"}
Table = Mapping[str, Kind | None]  # paths, with wildcards in each part; None: any kind


class Misplaced(NamedTuple):
    """An entry of an unexpected kind; `expected` is None for a name that is not in the table."""

    path: str
    expected: Kind | None
    found: Kind

    @property
    def expected_text(self) -> str:
        """The expected kind in words."""
        return _TEXTS[self.expected] if self.expected is not None else "a file or a folder"

    @property
    def found_text(self) -> str:
        """The found kind in words."""
        return _TEXTS[self.found]


def find(disk: Disk, folder: str, table: Table) -> Iterator[Misplaced]:
    """Yield entries below `folder` whose kind differs from the one in `table`, and links, pipes and devices of any name.

    A `folder` that is a symbolic link itself is not searched: only the operator knows whether it is intended.
    """
    entry = disk.stat(folder)
    if entry is not None and entry.kind is Kind.FILE:
        yield Misplaced(folder, Kind.FOLDER, Kind.FILE)
    if entry is not None and entry.kind is Kind.FOLDER:
        yield from _below(disk, folder, (), table)


def _below(disk: Disk, folder: str, parts: tuple[str, ...], table: Table) -> Iterator[Misplaced]:
    for entry in disk.list(folder):
        here = (*parts, entry.name)
        pattern, path = pattern_of(here, table), os.path.join(folder, entry.name)
        expected = table[pattern] if pattern is not None else None
        if ASIDE in entry.name or (pattern is not None and expected is None):
            continue
        if entry.kind is Kind.OTHER or expected not in (None, entry.kind):
            yield Misplaced(path, expected, entry.kind)
        elif entry.kind is Kind.FOLDER and any(_matches(here, pattern.split("/")[:-1]) for pattern in table):
            yield from _below(disk, path, here, table)


def pattern_of(parts: tuple[str, ...], table: Table) -> str | None:
    """Return the pattern of a table that matches a path, None if none does."""
    return next((pattern for pattern in table if _matches(parts, pattern.split("/"))), None)


def _matches(parts: tuple[str, ...], pattern: list[str]) -> bool:
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))
