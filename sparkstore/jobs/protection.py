"""Find records that lost their checksum property: `commitlog.verify.Protection` applied to splits.

The verdict about a record without the property depends on its two neighbours.  A split judges the records whose neighbours
it has.  Its result contains its first two and last two records, so that the merge can judge records at split boundaries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from commitlog import Protection
from commitlog.walk import Piece
from storebytes.finding import Finding

Edge = tuple[int, int]  # offset in the file; the state of the record's checksum property (`Protection.look`)


class SplitProtection:
    """Checks one split; findings and edges have offsets in the file."""

    def __init__(self, file: str, file_start: int) -> None:
        """Start before the first record."""
        self._file = file
        self._file_start = file_start
        self._protection = Protection()
        self._records = 0
        self._first: list[Edge] = []
        self._last: list[Edge] = []

    def take(self, piece: Piece) -> Iterator[Finding]:
        """Check the next records in log order."""
        shift = piece.base - self._file_start
        yield from self._protection.take(piece, piece.protected, shift)
        self._records += len(piece.positions)
        self._first = (self._first + [self._edge(piece, at, shift) for at in piece.positions[:2]])[:2]
        self._last = (self._last + [self._edge(piece, at, shift) for at in piece.positions[-2:]])[-2:]

    def edges_text(self) -> str:
        """Return the first two records and, if there are more, the last two, as JSON."""
        return json.dumps([self._first, self._last if self._records > 2 else []])

    def _edge(self, piece: Piece, at: int, shift: int) -> Edge:
        return at + shift, Protection.examine(piece.view, at)


def at_seams(ranges: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Finding]]:
    """Yield suspect records at split boundaries; the rows come sorted by store and log order."""
    for _, rows in groupby(ranges, key=lambda row: row["store"]):
        protection = Protection()
        for row in rows:
            first, last = json.loads(row["found"] or "[[], []]")
            for number, (at, state) in enumerate(first):
                yield from ((row, found) for found in protection.next(row["file"], at, state))
                if number == 1 and last:
                    protection = Protection()  # the split judged the records between
            for at, state in last:
                yield from ((row, found) for found in protection.next(row["file"], at, state))
