"""Errors of this engine; all are `StoreError`."""

from __future__ import annotations

from storageio import StoreError


class StoreBroken(StoreError):
    """A count that cannot be: the caller removed what it never wrote, or wrote or removed twice what is in flight."""


class UnknownQueue(StoreError, KeyError):
    """No queue has this name."""

    def __str__(self) -> str:
        """Without the quotes of `KeyError`."""
        return str(self.args[0])


class UnknownDelivery(StoreError, KeyError):
    """No unacknowledged delivery has this tag."""

    def __str__(self) -> str:
        """Without the quotes of `KeyError`."""
        return str(self.args[0])
