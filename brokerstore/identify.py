"""Detection of the kind of store in a folder, from the names in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from messagestore.folder_contents import FolderContents, is_folder
from storageio import REAL_DISK, Disk, UnknownStore
from storebytes.folder_kind import FolderKind

if TYPE_CHECKING:
    from messagestore.folder import FolderFacts
    from rabbitstore.folder import RabbitmqFacts

__all__ = ["FolderKind", "identify"]

_SEARCHED_FOR = (
    "a commitlog folder (RocketMQ store), files named by twenty digits (its commit log), "
    ".vhost or msg_store_persistent (RabbitMQ virtual host), a dledger-* folder (DLedger)"
)


def identify(
    path: str | os.PathLike[str], disk: Disk = REAL_DISK, commit_log: str | None = None
) -> FolderFacts | RabbitmqFacts:  # fmt: skip
    """Describe a folder; raise `UnknownStore`, listing what was looked for, if it holds no known store.

    `commit_log` names the folders of a log that is not in the folder, separated by commas.  The engine of the other kind is not
    imported.
    """
    folder = os.fspath(path)
    contents = FolderContents(disk, folder)
    if not contents.is_folder:
        found = "not a folder" if disk.stat(folder) is not None else "no such folder"
        raise UnknownStore(f"{folder}: {found}")
    if not commit_log and contents.kind in (None, FolderKind.LOG) and _is_rabbitmq(contents):
        from rabbitstore.folder import RabbitmqFacts

        return RabbitmqFacts(folder, disk)
    if not commit_log and contents.kind is None:
        raise UnknownStore(f"{folder}: no store found; looked for {_SEARCHED_FOR}{_hint(contents)}")
    from messagestore.folder import FolderFacts

    facts = FolderFacts(folder, disk, commit_log, contents)
    for one in facts.log_folders if commit_log else ():
        if not is_folder(disk, one):
            raise UnknownStore(f"{one}: there is no such folder for a commit log")
    return facts


def _is_rabbitmq(contents: FolderContents) -> bool:
    """Return whether the folder is a virtual host's, or a node's with virtual hosts."""
    names = contents.entries.keys()
    vhosts = os.path.join(contents.root, "msg_stores", "vhosts")
    return not names.isdisjoint((".vhost", "msg_store_persistent")) or is_folder(contents.disk, vhosts)


def _hint(contents: FolderContents) -> str:
    """Return where the store may be, if the folder is one level above or below it."""
    for inner in ("store", "vhosts"):
        if contents.has_folder(inner):
            return f"; did you mean {os.path.join(contents.root, inner)}?"
    if not contents.entries.keys().isdisjoint(("index", "checkpoint")):
        return "; this looks like a RocketMQ store whose log is elsewhere (--commitlog)"
    return ""
