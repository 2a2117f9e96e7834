"""How long something took, as a histogram that one thread at a time fills."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

BOUNDS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class Histogram:
    """How many durations were at most each bound of `BOUNDS_S`; the last count has all."""

    counts: tuple[int, ...]
    sum_s: float

    @property
    def count(self) -> int:
        """The number of durations."""
        return self.counts[-1]


class Durations:
    """Counts durations by size."""

    def __init__(self) -> None:
        """Start with no durations."""
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count one duration, in seconds."""
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self._sum_s += duration_s

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Count the time of a block that ends without an error."""
        began = time.perf_counter()
        yield
        self.add(time.perf_counter() - began)

    @property
    def histogram(self) -> Histogram:
        """The durations so far."""
        counts, total = [], 0
        for count in list(self._counts):
            total += count
            counts.append(total)
        return Histogram(tuple(counts), self._sum_s)
