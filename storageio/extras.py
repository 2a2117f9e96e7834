"""Imports of optional packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import MissingExtra


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Raise `MissingExtra` with the command that installs an extra if a package that the block imports is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{error.name} is not installed: pip install 'brokerstore[{extra}]'", name=error.name) from error
