"""Every error that a user of the library can meet.  All of them are `StoreError`."""

from __future__ import annotations

from enum import IntEnum


class StoreError(Exception):
    """The base of all errors of this library."""


class UnsupportedPlatform(StoreError):
    """This operating system cannot do what was asked (for example open a store for writing on Windows)."""


class MissingExtra(StoreError, ImportError):
    """A library that this needs is not installed; the text names the extra to install."""


class UnknownStore(StoreError):
    """The folder is no store, or one of a kind that is named but not read here."""


class UnsupportedFormat(UnknownStore):
    """A version, magic, term, file kind or feature flag that this library does not know.

    It is neither damage nor absence: nothing is changed, dropped or repaired in a folder that has one.
    """

    def __init__(self, what: str, *, file: str, found: object, supported: str, offset: int | None = None) -> None:
        """`what` names the thing ("index version"), `offset` is a byte in `file`, `supported` names what is known."""
        place = file if offset is None else f"{file} at byte {offset}"
        super().__init__(f"{place}: unsupported {what} {found} (supported: {supported}); nothing was changed")
        self.what = what
        self.file = file
        self.offset = offset
        self.found = found
        self.supported = supported


class StoreLocked(StoreError):
    """Another process, or this one, has the store open for writing."""


class StoreClosed(StoreError):
    """The store was closed, or belongs to the process that this one was forked from."""


class StoreReadOnly(StoreError):
    """The store was opened for reading, or turned read-only after a failed sync."""


class StoreRewound(StoreError):
    """The record that a follower stood on is gone: the writer was recovered to less."""


class InvalidMessage(StoreError, ValueError):
    """A message that no store could hold and give back."""


class InvalidSetting(InvalidMessage, TypeError):
    """A setting that is unknown, of the wrong type or out of range.

    It is a `ValueError` and a `TypeError`, so that whoever expects either catches it.
    """


class PutRejected(StoreError):
    """A put whose outcome is not PUT_OK; of it the first `message_count` messages are in the store, mostly none."""

    def __init__(self, status: IntEnum, reason: str = "", message_count: int = 0) -> None:
        """`status` is a `commitlog.PutStatus`."""
        super().__init__(f"{status.name}: {reason}" if reason else status.name)
        self.status = status
        self.reason = reason
        self.message_count = message_count


class RefusedMessage(PutRejected, InvalidMessage):
    """One message of several can never be put, so none of them was.  Its status is the one that a put of it alone gives."""


class FlushTimeout(StoreError):
    """A put that was written but not seen to reach the disk in time: it may be there after a crash, or not."""


class StoreCorrupt(StoreError):
    """Bytes that are not what the format says.  Nothing was changed."""

    def __init__(self, reason: str, *, file: str, offset: int, expected: object, found: object) -> None:
        """`offset` is a byte in `file`."""
        super().__init__(f"{file} at byte {offset}: {reason}: expected {expected}, found {found}")
        self.reason = reason
        self.file = file
        self.offset = offset
        self.expected = expected
        self.found = found


class DiskError(StoreError):
    """The operating system refused."""

    def __init__(self, operation: str, file: str, errno: int, text: str) -> None:
        """`operation` is the call of `Disk`, `File` or `Map`; `errno` as in the standard library."""
        super().__init__(f"{file}: {operation} failed: {text} (errno {errno})")
        self.operation = operation
        self.file = file
        self.errno = errno


class DiskFull(DiskError):
    """No space, or no quota, left."""
