"""What the kernels name of `cython`, for a machine without it: decorators give back their function, blocks do nothing."""

from contextlib import nullcontext
from typing import Any

compiled = False


def cfunc(function: Any) -> Any:
    """A C function when compiled; the function itself here."""
    return function


def cclass(kind: Any) -> Any:
    """A class with a C layout when compiled; the class itself here."""
    return kind


def cast(_kind: type, value: Any) -> Any:
    """A value as of that kind, which compiled code does not look at; the value itself here."""
    return value


no_gc = cclass  # the cycle collector does not visit its objects


def freelist(_count: int) -> Any:
    """So many freed objects of a class are kept for the next ones; nothing here."""
    return cclass


def exceptval(*_values: Any, **_options: Any) -> Any:
    """How a C function reports an exception; nothing here."""
    return cfunc


class _NoGil(nullcontext[None]):
    """Both `@cython.nogil` and `with cython.nogil:`."""

    def __call__(self, function: Any) -> Any:
        """The decorator."""
        return function


nogil = _NoGil()
