"""`<vhost>/brokerstore/`: what RabbitMQ does not know.  Losing it loses no message, and RabbitMQ ignores it.

- `queues.json`: how queues were declared (RabbitMQ keeps that in its own database, outside this folder);
- `clean.json`: written last at a clean stop, deleted first at the next opening.  It holds what `recovery.dets` holds, and
  the sizes of all files, so that a stop of somebody else in between is noticed;
- `lock`: held by the process that writes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from storageio import Disk, Kind, replace_file

from . import layout
from .paths import read_head
from .tables import RecoveryRow

_CLEAN, _QUEUES, LOCK_NAME = "clean.json", "queues.json", "lock"
OWN_SIZE_MAX = 64 << 20  # of our own JSON
_WATCHED = (".rdq", ".idx", ".jif", ".rdt", ".qi", ".qs")


@dataclass(frozen=True)
class QueueOptions:
    """How a queue was declared.  `max_priority` 0 makes it an ordinary queue; `message_ttl_ms` None sets no expiry."""

    durable: bool = True
    mode: str = "default"
    max_priority: int = 0
    message_ttl_ms: int | None = None

    @property
    def is_sound(self) -> bool:
        """Whether each value is of its kind: the file may be a stranger's."""
        numbers = self.max_priority, self.message_ttl_ms or 0
        are_numbers = all(isinstance(number, int) and 0 <= number < 1 << 53 for number in numbers)
        return isinstance(self.durable, bool) and isinstance(self.mode, str) and are_numbers and self.max_priority < 256


def read_options(disk: Disk, path: str) -> dict[str, QueueOptions]:
    """By queue name; nothing where the file is missing or unusable, so that what the folder shows counts."""
    found = _read_json(disk, f"{path}/{layout.OWN_FOLDER}/{_QUEUES}")
    try:
        made = {name: QueueOptions(**options) for name, options in found.items()}
        return {name: options for name, options in made.items() if options.is_sound}
    except (TypeError, AttributeError):
        return {}


def write_options(disk: Disk, path: str, options: dict[str, QueueOptions]) -> None:
    """All new or all old."""
    text = json.dumps({name: asdict(declared) for name, declared in sorted(options.items())}, indent=1)
    replace_file(disk, f"{path}/{layout.OWN_FOLDER}/{_QUEUES}", text.encode())


def read_clean(disk: Disk, path: str) -> dict[str, RecoveryRow] | None:
    """The terms of our own clean stop; None when there was none, or files have changed since."""
    found = _read_json(disk, f"{path}/{layout.OWN_FOLDER}/{_CLEAN}")
    try:
        if not found or found["files"] != file_sizes(disk, path):
            return None
        return {folder: _row(folder, *numbers) for folder, numbers in found["queues"].items()}
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError):
        return None


def _row(folder: str, next_seq_id: int, next_deliver_seq_id: int) -> RecoveryRow:
    return RecoveryRow(folder, {}, int(next_seq_id), int(next_deliver_seq_id), None, 0, 0)


def write_clean(disk: Disk, path: str, queues: dict[str, tuple[int, int]]) -> None:
    """The last write of a clean stop; `queues` maps a folder to (next_seq_id, next_deliver_seq_id)."""
    text = json.dumps({"files": file_sizes(disk, path), "queues": queues})
    replace_file(disk, f"{path}/{layout.OWN_FOLDER}/{_CLEAN}", text.encode())


def delete_clean(disk: Disk, path: str) -> None:
    """From here on the folder counts as not cleanly stopped."""
    folder = f"{path}/{layout.OWN_FOLDER}"
    if disk.stat(f"{folder}/{_CLEAN}") is not None:
        disk.delete(f"{folder}/{_CLEAN}")
        disk.sync_folder(folder)


def file_sizes(disk: Disk, path: str) -> dict[str, int]:
    """Of every message and index file, by relative path."""
    found = {}
    folders = [layout.PERSISTENT_FOLDER]
    queues = f"{path}/{layout.QUEUES_FOLDER}"
    if disk.stat(queues) is not None:
        folders += [f"{layout.QUEUES_FOLDER}/{entry.name}" for entry in disk.list(queues) if entry.kind is Kind.FOLDER]
    for folder in folders:
        for entry in disk.list(f"{path}/{folder}") if disk.stat(f"{path}/{folder}") is not None else []:
            if entry.name.endswith(_WATCHED):
                found[f"{folder}/{entry.name}"] = entry.size_bytes
    return found


def _read_json(disk: Disk, path: str) -> dict[str, Any]:
    data = read_head(disk, path, OWN_SIZE_MAX)
    try:
        found = json.loads(data) if data is not None else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
