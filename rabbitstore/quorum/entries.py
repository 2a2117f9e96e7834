"""The log of a queue by index (docs/formats/rabbitmq-quorum.md#write-ahead-log)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from ..format.terms import Term
from ..format.terms_cy import decode
from .entries_cy import EntryRun

_FIRST = attrgetter("first")


class RaftEntry(NamedTuple):
    """Where the data of a log entry is."""

    term: int
    view: memoryview
    file: str
    at: int
    size: int

    def decode(self) -> Term:
        """Decode the data; raise `StoreCorrupt`."""
        return decode(bytes(self.view[self.at : self.at + self.size]), file=self.file, base=self.at, improper=True)


class EntryTable(Mapping[int, RaftEntry]):
    """The entries in ascending order of their indexes; a million of them take eight megabytes."""

    def __init__(self) -> None:
        """Begin with an empty table."""
        self.runs: list[EntryRun] = []

    @property
    def last(self) -> int | None:
        """The greatest index; None for an empty table."""
        return self.runs[-1].stop - 1 if self.runs else None

    def __len__(self) -> int:
        """Return the number of entries."""
        return sum(run.stop - run.first for run in self.runs)

    def __iter__(self) -> Iterator[int]:
        """Yield the indexes in ascending order."""
        for run in self.runs:
            yield from range(run.first, run.stop)

    def __reversed__(self) -> Iterator[int]:
        """Yield the indexes, the greatest first."""
        for run in reversed(self.runs):
            yield from reversed(range(run.first, run.stop))

    def __contains__(self, index: object) -> bool:
        """Return whether there is an entry."""
        return isinstance(index, int) and self.run_of(index) is not None

    def __getitem__(self, index: int) -> RaftEntry:
        """Return an entry; raise `KeyError`."""
        run = self.run_of(index)
        if run is None:
            raise KeyError(index)
        return RaftEntry(run.term, run.view, run.file, run.position(index), run.size(index))

    def run_of(self, index: int) -> EntryRun | None:
        """Return the run with an entry; None when there is none."""
        found = bisect_right(self.runs, index, key=_FIRST)
        run = self.runs[found - 1] if found else None
        return run if run is not None and index < run.stop else None

    def since(self, first: int) -> Iterator[int]:
        """Yield the indexes from `first` on."""
        for run in self.runs:
            yield from range(max(run.first, first), run.stop)

    def find(self, index: int, guess: EntryRun | None) -> EntryRun | None:
        """Return `run_of`, which is often the run of the entry before."""
        return guess if guess is not None and guess.first <= index < guess.stop else self.run_of(index)

    def count(self, first: int, stop: int) -> int:
        """Return the number of entries in a range of indexes."""
        return sum(max(0, min(run.stop, stop) - max(run.first, first)) for run in self.runs)

    def put(self, index: int, entry: RaftEntry, truncates: bool = False) -> EntryRun:
        """Add an entry and return its run; one that a new leader wrote voids all behind it."""
        old = self.run_of(index)
        if truncates or (old is not None and old.term != entry.term):
            cut_runs(self.runs, index)
        elif old is not None:
            self._remove(old, index)
        position = bisect_right(self.runs, index, key=_FIRST)
        run = self.runs[position - 1] if position else None
        is_next = (
            run is not None and (run.stop, run.term, run.file) == (index, entry.term, entry.file) and run.view is entry.view
        )
        if run is None or not is_next or not run.append(entry.at, entry.size):
            run = EntryRun(index, entry.term, entry.view, entry.file)
            run.append(entry.at, entry.size)
            self.runs.insert(position, run)
        return run

    def add(self, run: EntryRun) -> None:
        """Add the entries of a run, which may grow elsewhere."""
        if not self.runs or self.runs[-1].stop <= run.first:
            self.runs.append(run.part(run.first, run.stop))
            return
        for index in range(run.first, run.stop):
            self.put(index, RaftEntry(run.term, run.view, run.file, run.position(index), run.size(index)))

    def _remove(self, run: EntryRun, index: int) -> None:
        position = bisect_right(self.runs, index, key=_FIRST) - 1
        parts = ((run.first, index), (index + 1, run.stop))
        self.runs[position : position + 1] = [run.part(*part) for part in parts if part[0] < part[1]]


def cut_runs(runs: list[EntryRun], index: int) -> None:
    """Remove the entries from an index on."""
    while runs and runs[-1].first >= index:
        runs.pop()
    if runs and runs[-1].stop > index:
        runs[-1] = runs[-1].part(runs[-1].first, index)
