"""Set-up of a Spark Python worker, which runs many tasks, and the form in which it reports errors."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

from pyspark import TaskContext

from storageio import StoreError

Item = TypeVar("Item")
Class = TypeVar("Class", bound=type)
TRACE = "BROKERSTORE_TRACE"  # the environment variable that `sparkstore.session(trace=True)` sets
HIDE = "SPARK_HIDE_TRACEBACK"  # Spark's own: a worker reports an error by its class and message


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


def one_line_errors(cls: Class) -> Class:
    """Report a `StoreError` of the class's public methods without Python's stack, unless the option `trace` is given.

    The class may have an attribute `shows_trace`.  A decorator, because Spark calls the methods from its own loop.
    """
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and callable(method):
            setattr(cls, name, _reporting(method))
    return cls


def _reporting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            made = method(self, *arguments, **named)
        except StoreError:
            _hide_stack(self)
            raise
        return _iterate(self, made) if isinstance(made, Iterator) else made

    return call


def _iterate(owner: Any, items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except StoreError:
        _hide_stack(owner)
        raise


def _hide_stack(owner: Any) -> None:
    """Tell the worker to send the message alone.  A worker ends after an error, so nothing else is affected."""
    if is_worker() and TRACE not in os.environ and not getattr(owner, "shows_trace", False):
        os.environ[HIDE] = "1"


def is_worker() -> bool:
    """Return whether Spark's Java process started this one."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and str(spec.name).startswith("pyspark.")
