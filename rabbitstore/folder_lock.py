"""The lock of a virtual host's folder: one brokerstore process writes to it, and only while no server runs on it.

RabbitMQ locks nothing.  But a running server has the current file of both message stores open for writing.  Linux shows that
to a process on the same machine that may see the server's process; a container beside it may not.
"""

from __future__ import annotations

from collections.abc import Callable

from storageio import Disk, FolderLock, StoreLocked, Writer

from .format.layout import LOCK_NAME, SIDECAR_FOLDER

_ERLANG = "beam"


def running_server(disk: Disk, path: str) -> Writer | None:
    """Return the server's process, or None when no server is visible."""
    return next((writer for writer in disk.writers(path) if writer.name.startswith(_ERLANG)), None)


def lock_folder(disk: Disk, path: str, check: Callable[[], None] = lambda: None) -> FolderLock:
    """Lock the folder.  Raise `StoreLocked`, with nothing changed, when a server or another process has it.

    `check` may reject the folder with an error.  It runs under the lock; in a folder that was never locked it runs before
    the lock's file is created, so that a rejected folder stays unchanged.
    """
    server = running_server(disk, path)
    if server is not None:
        holder = f"{server.name}, process {server.process_id}"
        error = StoreLocked(f"{path}: a server runs on this folder ({holder}); nothing was changed")
        error.add_note("run: rabbitmqctl stop  (then this again)")
        raise error
    file = f"{path}/{SIDECAR_FOLDER}/{LOCK_NAME}"
    is_new = disk.stat(file) is None
    if is_new:
        check()
    disk.make_folder(f"{path}/{SIDECAR_FOLDER}")
    lock = disk.lock(file)
    try:
        if not is_new:
            check()
    except BaseException:
        lock.release()
        raise
    return lock
