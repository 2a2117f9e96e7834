"""One-time set-up of a Spark Python worker, which runs many tasks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import TypeVar

from pyspark import TaskContext

Item = TypeVar("Item")


def settled(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items, then call `settle` if this is a Spark worker."""
    yield from items
    if TaskContext.get() is not None:
        settle()


@cache
def settle() -> None:
    """Exclude imported modules from garbage collection.

    Spark collects the whole heap after every task.  With the imported libraries that takes 40 ms, and the next task waits.
    The modules live as long as the process anyway.
    """
    gc.freeze()
