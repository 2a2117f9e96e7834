"""The exit codes, which are fixed, and the code of each error."""

from __future__ import annotations

from storageio import DiskError, InvalidMessage, StoreError, StoreLocked, UnknownStore, UnsupportedPlatform

CLEAN = 0
PROBLEM = 1
WRONG_USE = 2
NO_STORE = 3
IN_USE = 4
IO_ERROR = 5
REPAIRED_DROPPED = 6
REPAIRED_KEPT = 7
INTERRUPTED = 130

_CODES: tuple[tuple[type[StoreError], int], ...] = (
    (UnknownStore, NO_STORE),
    (StoreLocked, IN_USE),
    (DiskError, IO_ERROR),
    (InvalidMessage, WRONG_USE),
    (UnsupportedPlatform, WRONG_USE),
)


def exit_code(error: StoreError) -> int:
    """Return the exit code of a command that ended with this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), PROBLEM)
