"""A substitute for the names of `cython` that the kernels use: decorators return the function, blocks do nothing."""

from contextlib import nullcontext
from typing import Any

compiled = False


def cfunc(function: Any) -> Any:
    """Return the function; compiled, it becomes a C function."""
    return function


def cclass(kind: Any) -> Any:
    """Return the class; compiled, it gets a C layout."""
    return kind


def cast(_kind: type, value: Any) -> Any:
    """Return the value; compiled code casts it without a check."""
    return value


no_gc = cclass  # compiled, the cycle collector skips the objects


def freelist(_count: int) -> Any:
    """Return a decorator without effect; compiled, the class keeps this many freed objects for reuse."""
    return cclass


def annotation_typing(_is_on: bool) -> Any:
    """Return a decorator without effect; compiled, annotations of the function are not C types if it is off."""
    return cfunc


def exceptval(*_values: Any, **_options: Any) -> Any:
    """Return a decorator without effect; compiled, it sets how a C function reports an exception."""
    return cfunc


class _NoGil(nullcontext[None]):
    """Decorator and context manager: `@cython.nogil` and `with cython.nogil:`."""

    def __call__(self, function: Any) -> Any:
        return function


nogil = _NoGil()


def critical_section(_owner: Any) -> Any:
    """Return a block without effect; compiled for a Python without GIL, one thread at a time runs it for an object."""
    return nullcontext()
