"""Which living processes have consumers: each locks a file of its own in `brokerstore/consumers/` as long as it lives.

A process that takes over the store waits for these before it divides the queues of a group.
"""

from __future__ import annotations

import os
import threading

from storageio import REAL_DISK, FolderLock

FOLDER = "consumers"


class Presence:
    """The file of one process."""

    def __init__(self, own: str, client_id: str) -> None:
        """Create nothing; `own` is the brokerstore folder."""
        self._folder = os.path.join(own, FOLDER)
        self._path = os.path.join(self._folder, client_id)
        self._lock: FolderLock | None = None
        self._guard = threading.Lock()  # consumers may be opened by many threads

    def announce(self) -> None:
        """Create and lock the file, unless that was done."""
        with self._guard:
            while self._lock is None or REAL_DISK.stat(self._path) is None:  # an owner may delete it before it is locked
                self._withdraw()
                REAL_DISK.make_folder(self._folder)
                self._lock = REAL_DISK.lock(self._path)

    def withdraw(self) -> None:
        """Delete and unlock the file."""
        with self._guard:
            self._withdraw()

    def _withdraw(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            if REAL_DISK.stat(self._path) is not None:
                REAL_DISK.delete(self._path)
            lock.release()


def is_present(own: str, client_id: str) -> bool:
    """Return whether a process lives and has consumers."""
    return REAL_DISK.is_locked(os.path.join(own, FOLDER, client_id))


def present(own: str) -> set[str]:
    """Return the ids of the living processes that have consumers, and delete the files of others."""
    folder = os.path.join(own, FOLDER)
    if REAL_DISK.stat(folder) is None:
        return set()
    names = {entry.name for entry in REAL_DISK.list(folder)}
    living = {name for name in names if is_present(own, name)}
    for name in names - living:
        REAL_DISK.delete(os.path.join(folder, name))
    return living
