"""Sidecars: the small files in `<store>/brokerstore/`.  They only save work, and other programs may have changed them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from storageio import Disk, Kind, Mode, replace_file

Content = TypeVar("Content")
SIZE_MAX = 64 << 20
OWN_FILES: dict[
    str, Kind | None
] = {  # paths below `<store>/brokerstore` with their kind; `verify` reports another kind, `recover` moves it aside
    "clean.json": Kind.FILE,
    "index.json": Kind.FILE,
    "queues.json": Kind.FILE,
    "settings.json": Kind.FILE,
    "deleted.json": Kind.FILE,
    "doubt.json": Kind.FILE,
    "delays.json": Kind.FILE,
    "timers.json": Kind.FILE,
    "ring": Kind.FILE,
    "acks": Kind.FILE,
    "owner.socket": None,  # of a shared store; a killed owner leaves it
    "consumers": Kind.FOLDER,
    "consumers/*": Kind.FILE,
    "*.new": Kind.FILE,  # a new file before its rename
    "cut-*": Kind.FILE,
    "kept-*": None,  # replaced files and folders
    "recover-*.json": Kind.FILE,
    "strays": Kind.FOLDER,
    "rebuild": Kind.FOLDER,
    "rebuild-*": Kind.FOLDER,
    "replaced-*": Kind.FOLDER,
    "keys": Kind.FOLDER,  # filters of the key index
    "keys/*": Kind.FILE,
    "sink": Kind.FOLDER,  # of `sparkstore`
    "sink/*": Kind.FOLDER,
    "sink/*/*": Kind.FILE,
    "sink-queries": Kind.FOLDER,
    "sink-queries/*": Kind.FILE,
}


def write_sidecar(disk: Disk, path: str, document: object) -> None:
    """Replace the file durably by a JSON document; its folder need not exist."""
    disk.make_folder(os.path.dirname(path))
    replace_file(disk, path, json.dumps(document).encode())


def read_sidecar(disk: Disk, path: str, parse: Callable[[Any], Content]) -> Content | None:
    """Parse the file's JSON document with `parse`; return None if there is no readable one."""
    found = disk.stat(path)
    if found is None or found.kind is not Kind.FILE or not 0 < found.size_bytes <= SIZE_MAX:
        return None
    with disk.open(path, Mode.READ) as file:
        data = file.read(0, found.size_bytes)
    try:
        return parse(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
