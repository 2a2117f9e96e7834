"""What a Python worker of Spark's does once, however many tasks it gets."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import TypeVar

from pyspark import TaskContext

Item = TypeVar("Item")


def settled(items: Iterator[Item]) -> Iterator[Item]:
    """The items as they are; behind them the worker is settled."""
    yield from items
    if TaskContext.get() is not None:
        settle()


@cache
def settle() -> None:
    """Take what was imported out of the garbage collection.

    Spark collects the whole heap behind every task.  With the libraries that a task needs that takes 40 ms, in which the
    next task waits; they live as long as the process in any case.
    """
    gc.freeze()
