"""Reading the small JSON files in `<store>/brokerstore/`: short cuts, never needed, and perhaps a stranger's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from storageio import Disk, Mode

Note = TypeVar("Note")


def read_own_note(disk: Disk, path: str, size_max: int, parse: Callable[[Any], Note]) -> Note | None:
    """What `parse` makes of the file's document; None when there is none, or none that can be read."""
    found = disk.stat(path)
    if found is None or not 0 < found.size_bytes <= size_max:
        return None
    file = disk.open(path, Mode.READ)
    try:
        return parse(json.loads(file.read(0, found.size_bytes)))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    finally:
        file.close()
