"""The errors that users of the library can meet, all derived from `StoreError`."""

from __future__ import annotations

from enum import IntEnum


class StoreError(Exception):
    """The base of all errors of this library."""


class UnsupportedPlatform(StoreError):
    """This operating system does not support the operation (for example, to open a store for writing on Windows)."""


class MissingExtra(StoreError, ImportError):
    """A required library is not installed; the text names the extra to install."""


class UnknownStore(StoreError):
    """The folder is not a store, or is of a kind that is recognized but not supported."""


class UnsupportedFormat(UnknownStore):
    """A version, magic, term, file kind or feature flag that this library does not know.

    It is neither damage nor absence: nothing is changed, dropped or repaired in a folder that contains one.
    """

    def __init__(self, what: str, *, file: str, found: object, supported: str, offset: int | None = None) -> None:
        """Take `what` ("index version"), the byte `offset` in `file`, and `supported`, the values that are known."""
        location = file if offset is None else f"{file} at byte {offset}"
        super().__init__(f"{location}: unsupported {what} {found} (supported: {supported}); nothing was changed")
        self.what = what
        self.file = file
        self.offset = offset
        self.found = found
        self.supported = supported


class StoreLocked(StoreError):
    """This or another process has the store open for writing."""


class StoreBusy(StoreLocked):
    """The process that owns a shared store does not answer. Whether it carries out the request later is unknown."""


class StoreClosed(StoreError):
    """The store was closed, or belongs to the process that this one was forked from."""


class StoreReadOnly(StoreError):
    """The store was opened for reading, or became read-only after a failed sync."""


class StoreRewound(StoreError):
    """The record at a follower's position is gone: recovery truncated the log before it."""


class InvalidMessage(StoreError, ValueError):
    """A message that no store can hold and return unchanged."""


class OutOfRange(InvalidMessage, OverflowError):
    """A number that does not fit its field."""


class InvalidSetting(InvalidMessage, TypeError):
    """A setting that is unknown, of the wrong type or out of range.

    It derives from `ValueError` and `TypeError`, so that callers can catch either.
    """


class PutRejected(StoreError):
    """A put whose status is not PUT_OK.  The first `message_count` messages of it are in the store, usually 0."""

    def __init__(self, status: IntEnum, reason: str = "", message_count: int = 0) -> None:
        """Take the status, a `commitlog.PutStatus`."""
        super().__init__(f"{status.name}: {reason}" if reason else status.name)
        self.status = status
        self.reason = reason
        self.message_count = message_count


class StoreFull(PutRejected):
    """A put that finds no space: the disk is full, or the log has its maximum size.  Nothing was deleted for it; try again."""


class RefusedMessage(PutRejected, InvalidMessage):
    """One of several messages can never be put, so none was.  The status is that of a put of this message alone."""


class FlushTimeout(StoreError):
    """A put was written, but its sync was not confirmed in time: after a crash it may or may not be there."""


class StoreCorrupt(StoreError):
    """Bytes that violate the format.  Nothing was changed."""

    def __init__(self, reason: str, *, file: str, offset: int, expected: object, found: object) -> None:
        """Take the reason and the byte `offset` in `file`."""
        super().__init__(f"{file} at byte {offset}: {reason}: expected {expected}, found {found}")
        self.reason = reason
        self.file = file
        self.offset = offset
        self.expected = expected
        self.found = found


class DiskError(StoreError):
    """An operation that the operating system rejected."""

    def __init__(self, operation: str, file: str, errno: int, text: str) -> None:
        """Take the `operation`, a call of `Disk`, `File` or `Map`, and `errno` as in the standard library."""
        super().__init__(f"{file}: {operation} failed: {text} (errno {errno})")
        self.operation = operation
        self.file = file
        self.errno = errno


class DiskFull(DiskError):
    """No space or quota is left."""
