"""`<vhost>/brokerstore/`: what RabbitMQ does not know.  Losing it loses no message, and RabbitMQ ignores it.

- `queues.json`: how queues were declared (RabbitMQ keeps that in its own database, outside this folder);
- `clean_stop.json`: the checksums of the files of a clean stop (`clean_stop`);
- `lock`: held by the process that writes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from storageio import Disk, Kind, replace_file

from . import layout
from .paths import read_head

_QUEUES, LOCK_NAME = "queues.json", "lock"
OWN_SIZE_MAX = 64 << 20  # of our own JSON
OWN_FILES: dict[str, Kind | None] = {  # what is something else there, `verify` reports and `recover` moves aside
    _QUEUES: Kind.FILE,
    "clean_stop.json": Kind.FILE,
    LOCK_NAME: Kind.FILE,
    "*.new": Kind.FILE,  # on its way to its name
    "cut": Kind.FOLDER,
}


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
    found = read_json(disk, f"{path}/{layout.OWN_FOLDER}/{_QUEUES}")
    try:
        made = {name: QueueOptions(**options) for name, options in found.items()}
        return {name: options for name, options in made.items() if options.is_sound}
    except (TypeError, AttributeError):
        return {}


def write_options(disk: Disk, path: str, options: dict[str, QueueOptions]) -> None:
    """All new or all old."""
    text = json.dumps({name: asdict(declared) for name, declared in sorted(options.items())}, indent=1)
    replace_file(disk, f"{path}/{layout.OWN_FOLDER}/{_QUEUES}", text.encode())


def read_json(disk: Disk, path: str) -> dict[str, Any]:
    """An object; an empty one where the file is missing or unusable."""
    entry = disk.stat(path)
    data = read_head(disk, path, OWN_SIZE_MAX) if entry is not None and entry.kind is Kind.FILE else None
    try:
        found = json.loads(data) if data is not None else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
