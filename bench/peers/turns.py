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
    plain_ours: list[float] = field(default_factory=list)  # without prepared pages
    plain_theirs: list[float] = field(default_factory=list)
    bound: str = ""  # see `bounds.py`
    bound_rates: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Return ours divided by the peer's for each round; above 1 ours is better."""
        return self._ratios(self.ours, self.theirs)

    def _ratios(self, ours: list[float], theirs: list[float]) -> list[float]:
        pairs = zip(theirs, ours, strict=True) if self.less_is_better else zip(ours, theirs, strict=True)
        return [better / worse for better, worse in pairs]

    def measured(self) -> dict[str, Any]:
        """Return the row for the JSON file."""
        ratios, plain = self.ratios, self._ratios(self.plain_ours, self.plain_theirs)
        return asdict(self) | {
            "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
            "plain_ratio": statistics.median(plain) if plain else None,
            "plain_min": min(plain, default=None), "plain_max": max(plain, default=None),
            "ours_median": statistics.median(self.ours), "theirs_median": statistics.median(self.theirs),
            "bound_median": statistics.median(self.bound_rates) if self.bound_rates else None,
            "holds": None if self.target is None else statistics.median(ratios) >= self.target,
        }  # fmt: skip


def _make_even(*, is_prepared: bool = True) -> None:
    """Sync what one side left in the page cache, and touch free memory, before the next side starts."""
    gc.collect()
    os.sync()
    if is_prepared:
        touch_free_memory()


def take_turns(
    row: Row, ours: Side, theirs: Side, rounds: int, bound: Bound | None = None, *, is_of_memory: bool = True
) -> Row:  # fmt: skip
    """Measure both sides in turn, each from the same state of the machine; the side that starts alternates.

    The first rounds are as plain processes meet the machine, the others with free memory touched before.
    With `is_of_memory=False` dirty pages and free memory do not matter, stay as they are, and there are no plain rounds.
    """
    for number in range(rounds if is_of_memory else 0):
        sides = [(ours, row.plain_ours), (theirs, row.plain_theirs)]
        for side, found in sides if number % 2 else reversed(sides):
            _make_even(is_prepared=False)
            found.append(side())
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
