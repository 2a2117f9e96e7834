"""The errors of this package.  All of them are `StoreError`."""

from __future__ import annotations

from storageio import StoreCorrupt, StoreError


class BadOption(StoreError, ValueError):
    """An option that is unknown, or has a value that it cannot have."""


class UnknownColumn(StoreError, ValueError):
    """A schema that names a column, or a type of one, that the source does not have."""


class MissingColumn(StoreError, ValueError):
    """A data frame without a column that every message needs."""


class DataLost(StoreCorrupt):
    """Messages that were asked for and that retention took away.  Option `failOnDataLoss` false passes over them."""

    def __init__(self, file: str, offset: int, expected: object, found: object) -> None:
        """`offset` is a byte in `file`."""
        super().__init__("data lost", file=file, offset=offset, expected=expected, found=found)

    def __reduce__(self) -> tuple[type[DataLost], tuple[str, int, object, object]]:
        """Errors cross processes."""
        return DataLost, (self.file, self.offset, self.expected, self.found)
