"""What the kernels use of `cython`, for the type checker (Cython 3.3 brings no stubs)."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

compiled: bool

class _NoGil:
    def __call__(self, function: F) -> F: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

nogil: _NoGil

def cfunc(function: F) -> F: ...
def exceptval(value: int = ..., *, check: bool = ...) -> Callable[[F], F]: ...
