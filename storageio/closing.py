"""The base of everything that a `with` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager that closes itself on leaving the block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what it holds; a second call does nothing."""

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it, whatever ended the block."""
        self.close()
