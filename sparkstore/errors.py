"""The errors of this package, all of them subclasses of `StoreError`."""

from __future__ import annotations

from storageio import StoreCorrupt, StoreError


class BadOption(StoreError, ValueError):
    """An option is unknown or has an invalid value."""


class UnknownColumn(StoreError, ValueError):
    """A schema names a column, or a column type, that the source or sink does not support."""


class MissingColumn(StoreError, ValueError):
    """A data frame lacks a column that every message needs."""


class DataLost(StoreCorrupt):
    """Retention deleted requested messages.  With the option `failOnDataLoss` false they are skipped."""

    def __init__(self, file: str, offset: int, expected: object, found: object) -> None:
        """Describe the loss; `offset` is a byte position in `file`."""
        super().__init__("data lost", file=file, offset=offset, expected=expected, found=found)

    def __reduce__(self) -> tuple[type[DataLost], tuple[str, int, object, object]]:
        """Support pickling: errors cross processes."""
        return DataLost, (self.file, self.offset, self.expected, self.found)
