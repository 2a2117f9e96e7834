"""Reading the small JSON files in `<store>/brokerstore/`: short cuts, never needed, and perhaps a stranger's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from storageio import Disk, Kind, Mode

Note = TypeVar("Note")
OWN_FILES: dict[
    str, Kind | None
] = {  # paths below `<store>/brokerstore`; what is something else there, `verify` reports and `recover` moves aside
    "clean.json": Kind.FILE,
    "index.json": Kind.FILE,
    "queues.json": Kind.FILE,
    "settings.json": Kind.FILE,
    "doubt.json": Kind.FILE,
    "delays.json": Kind.FILE,
    "ring": Kind.FILE,
    "*.new": Kind.FILE,  # on its way to its name
    "cut-*": Kind.FILE,
    "kept-*": None,  # whatever lay where something else was put
    "recover-*.json": Kind.FILE,
    "strays": Kind.FOLDER,
    "rebuild": Kind.FOLDER,
    "rebuild-*": Kind.FOLDER,
    "replaced-*": Kind.FOLDER,
    "sink": Kind.FOLDER,  # `sparkstore`'s
    "sink/*": Kind.FOLDER,
    "sink/*/*": Kind.FILE,
    "sink-queries": Kind.FOLDER,
    "sink-queries/*": Kind.FILE,
}


def read_own_note(disk: Disk, path: str, size_max: int, parse: Callable[[Any], Note]) -> Note | None:
    """What `parse` makes of the file's document; None when there is none, or none that can be read."""
    found = disk.stat(path)
    if found is None or found.kind is not Kind.FILE or not 0 < found.size_bytes <= size_max:
        return None
    file = disk.open(path, Mode.READ)
    try:
        return parse(json.loads(file.read(0, found.size_bytes)))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    finally:
        file.close()
