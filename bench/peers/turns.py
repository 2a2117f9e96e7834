"""Rounds in turn, and their results."""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .pages import touch_free_memory

if TYPE_CHECKING:
    from .bounds import Bound

Side = Callable[[], float]  # returns a rate or a time


@dataclass
class Row:
    """One line of the table."""

    name: str
    peer: str
    unit: str
    target: float | None
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    note: str = ""
    less_is_better: bool = False
    bound: str = ""  # see `bounds.py`
    bound_rates: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Return ours divided by the peer's for each round; above 1 ours is better."""
        if self.less_is_better:
            return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    def measured(self) -> dict[str, Any]:
        """Return the row for the JSON file."""
        ratios = self.ratios
        return asdict(self) | {
            "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
            "ours_median": statistics.median(self.ours), "theirs_median": statistics.median(self.theirs),
            "bound_median": statistics.median(self.bound_rates) if self.bound_rates else None,
            "holds": None if self.target is None else statistics.median(ratios) >= self.target,
        }  # fmt: skip


def _make_even() -> None:
    """Sync what one side left in the page cache, and touch free memory, before the next side starts."""
    gc.collect()
    os.sync()
    touch_free_memory()


def take_turns(
    row: Row, ours: Side, theirs: Side, rounds: int, bound: Bound | None = None, *, is_of_memory: bool = True
) -> Row:  # fmt: skip
    """Measure both sides in turn, each from the same state of the machine; the side that starts alternates.

    With `is_of_memory=False` dirty pages and free memory do not matter, and stay as they are.
    """
    for number in range(rounds):
        sides = [(ours, row.ours), (theirs, row.theirs)]
        for side, found in sides if number % 2 else reversed(sides):
            if is_of_memory:
                _make_even()
            found.append(side())
        if bound is not None:
            _make_even()
            row.bound = bound.name
            row.bound_rates.append(bound.rate())
    return row


def line(row: Row) -> str:
    """Return the row as a line of text."""
    measured = row.measured()
    target_text = "" if row.target is None else f"  >= {row.target:g}{'' if measured['holds'] else '  MISSED'}"
    return (
        f"{row.name:52} {row.peer:10} {measured['ours_median']:>14,.1f} {measured['theirs_median']:>14,.1f} {row.unit:11}"
        f" {measured['ratio']:>7.2f} ({measured['ratio_min']:.2f}-{measured['ratio_max']:.2f}){target_text}"
    )
