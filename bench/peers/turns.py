"""Rounds in turn, and their results."""

from __future__ import annotations

import gc
import os
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from .pages import touch_free_memory

if TYPE_CHECKING:
    from .bounds import Bound

Side = Callable[[], float]  # returns a rate or a time
Steps = Callable[[], dict[str, float]]


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
    row: Row, ours: Side, theirs: Side, rounds: int, bound: Bound | None = None,
    *, is_of_memory: bool = True, plain_rounds: int = 0,
) -> Row:  # fmt: skip
    """Measure both sides in turn: see `take_turns_in_steps`; after each round the bound, if there is one."""
    after = None if bound is None else partial(_measure_bound, row, bound)
    sides: tuple[Steps, Steps] = (lambda: {"": ours()}), (lambda: {"": theirs()})
    take_turns_in_steps({"": row}, *sides, rounds, after, is_of_memory=is_of_memory, plain_rounds=plain_rounds)
    return row


def _measure_bound(row: Row, bound: Bound) -> None:
    _make_even()
    row.bound = bound.name
    row.bound_rates.append(bound.rate())


def take_turns_in_steps(
    rows: dict[str, Row], ours: Steps, theirs: Steps, rounds: int, after: Callable[[], None] | None = None,
    *, is_of_memory: bool = True, plain_rounds: int = 0,
) -> None:  # fmt: skip
    """Measure several rows at a time: each side returns what it measured, by step.

    Both sides start from the same state of the machine, and the side that starts alternates.  The plain rounds come first, as
    processes meet the machine; before the others free memory is touched, and `after` runs after each of them.
    With `is_of_memory=False` dirty pages and free memory do not matter, and stay as they are.
    """
    sides = [(ours, "ours"), (theirs, "theirs")]
    for number in range(-plain_rounds, rounds):
        is_plain = number < 0
        for side, name in sides if number % 2 else reversed(sides):
            if is_of_memory or is_plain:
                _make_even(is_prepared=not is_plain)
            for step, value in side().items():
                getattr(rows[step], f"plain_{name}" if is_plain else name).append(value)
        if after is not None and not is_plain:
            after()


def line(row: Row) -> str:
    """Return the row as a line of text."""
    measured = row.measured()
    target_text = "" if row.target is None else f"  >= {row.target:g}{'' if measured['holds'] else '  MISSED'}"
    return (
        f"{row.name:52} {row.peer:10} {measured['ours_median']:>14,.1f} {measured['theirs_median']:>14,.1f} {row.unit:11}"
        f" {measured['ratio']:>7.2f} ({measured['ratio_min']:.2f}-{measured['ratio_max']:.2f}){target_text}"
    )
