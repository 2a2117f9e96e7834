"""Who may write to a virtual host's folder: one process of ours, and only while no server runs on it.

RabbitMQ locks nothing.  But a running server has the current file of both message stores open for writing all the time, which
Linux tells whoever may see the process: on the same machine, and not from within a container beside it.
"""

from __future__ import annotations

from collections.abc import Callable

from storageio import Disk, FolderLock, StoreLocked, Writer

from . import layout
from .own_files import LOCK_NAME

_ERLANG = "beam"


def running_server(disk: Disk, path: str) -> Writer | None:
    """The server's process, where one can be seen."""
    return next((writer for writer in disk.writers(path) if writer.name.startswith(_ERLANG)), None)


def lock_folder(disk: Disk, path: str, check: Callable[[], None] = lambda: None) -> FolderLock:
    """Raise `StoreLocked`, with nothing changed, where a server runs, or another process of ours has the folder.

    `check` may refuse the folder by an error.  It is called under the lock; where no process of ours has ever locked the
    folder it is called before the lock's file is made, so that a refused folder stays as it was.
    """
    server = running_server(disk, path)
    if server is not None:
        who = f"{server.name}, process {server.process_id}"
        error = StoreLocked(f"{path}: a server runs on this folder ({who}); nothing was changed")
        error.add_note("run: rabbitmqctl stop  (then this again)")
        raise error
    file = f"{path}/{layout.OWN_FOLDER}/{LOCK_NAME}"
    is_new = disk.stat(file) is None
    if is_new:
        check()
    disk.make_folder(f"{path}/{layout.OWN_FOLDER}")
    lock = disk.lock(file)
    try:
        if not is_new:
            check()
    except BaseException:
        lock.release()
        raise
    return lock
