"""Conditions on timestamps: as conditions on milliseconds, and as the range of time that a plan has to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from commitlog.row_filter import IN, Condition

from ..options import EPOCH, OFFSET_MAX, ReadOptions
from ..schema import TIMES

STORE_TIME = TIMES["store_time"]
_US_A_MS = 1000


def by_milliseconds(condition: Condition) -> Condition:
    """Convert a comparison with timestamps to one with whole milliseconds; return any other unchanged.

    >>> by_milliseconds(Condition("store_time", "gt", datetime(1970, 1, 1, 0, 0, 0, 1500, tzinfo=UTC)))
    Condition(column='store_timestamp_ms', operator='gt', value=1)
    """
    column, name, value = condition
    values = value if name == IN else (value,)
    if column not in (*TIMES, *TIMES.values()) or not values or not all(isinstance(one, datetime) for one in values):
        return condition
    times = [_microseconds(one) for one in values]
    column = TIMES.get(column, column)
    if name in ("eq", IN):
        return Condition(column, IN, tuple(us // _US_A_MS for us in times if us % _US_A_MS == 0))
    rounded_up = name in ("ge", "lt")  # the first millisecond that is not before the timestamp
    return Condition(column, name, -(-times[0] // _US_A_MS) if rounded_up else times[0] // _US_A_MS)


def _microseconds(time: datetime) -> int:
    """Return the microseconds since 1970; Spark passes times in UTC."""
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


def narrowed(options: ReadOptions, conditions: Sequence[Condition]) -> ReadOptions:
    """Return the options limited to the store times that the conditions allow."""
    first, after = options.begin_ms, options.end_ms
    for column, name, value in conditions:
        if column != STORE_TIME:
            continue
        least, most = _range(name, value)
        first = least if first is None else max(first, least)
        after = most + 1 if after is None else min(after, most + 1)
    return replace(options, begin_ms=first, end_ms=after)


def _range(name: str, value: Any) -> tuple[int, int]:
    """Return the least and the greatest number that fulfil a comparison."""
    if name == IN:
        return min(value, default=OFFSET_MAX), max(value, default=0)
    return {
        "eq": (value, value),
        "gt": (value + 1, OFFSET_MAX),
        "ge": (value, OFFSET_MAX),
        "lt": (0, value - 1),
        "le": (0, value),
    }[name]
