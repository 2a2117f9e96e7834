"""The finding for a file that cannot be read."""

from __future__ import annotations

import errno

from storageio import DiskError, StoreCorrupt, StoreError
from storebytes.finding import Finding

OF_THE_PROCESS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}


def unreadable(error: StoreError, location: str) -> Finding:
    """Return the finding for a file that could not be read; `location` is its folder.

    Raises the error again if it is none of the file, for example because the process is out of descriptors.
    """
    if isinstance(error, StoreCorrupt):
        return Finding(error.file, error.offset, "unreadable", str(error.expected), f"{error.reason}: {error.found}")
    if not isinstance(error, DiskError) or error.errno in OF_THE_PROCESS:
        raise error
    return Finding(error.file or location, 0, "unreadable", "a readable file", str(error))
