"""Where a store may be created or continued: nothing is written into a folder that holds something else."""

from __future__ import annotations

import os

from messagestore.folder import FolderFacts
from messagestore.folder_contents import is_folder
from storageio import REAL_DISK, UnknownStore

from .identify import FolderKind, identify

NO_STORE_YET = {"lock", "abort", "brokerstore", "lost+found"}  # the folder of a new disk, or of an open that was killed early


def check_write_target(path: str | os.PathLike[str], kind: FolderKind) -> None:
    """Raise `UnknownStore` for anything but a store of this kind, an empty folder, or none."""
    folder = os.fspath(path)
    expected = f"expected a {kind.value} store, an empty folder or none"
    if not is_folder(REAL_DISK, folder):
        if REAL_DISK.stat(folder) is not None:
            raise UnknownStore(f"{folder}: {expected}; found a file already there")
        return
    names = {entry.name for entry in REAL_DISK.list(folder)}
    if names <= NO_STORE_YET:
        return
    try:
        found = identify(folder)
    except UnknownStore:
        shown = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
        raise UnknownStore(f"{folder}: {expected}; found other files already there: {shown}") from None
    if found.kind is not kind:
        found.refuse_unread()
        if isinstance(found, FolderFacts):
            found.refuse_dledger()
        raise UnknownStore(f"{folder}: {expected}; found a {found.kind.value} folder already there")
