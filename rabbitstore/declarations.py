"""How queues were declared: `brokerstore/queues.json` (docs/formats/rabbitmq-folder.md#the-brokerstore-folder).

RabbitMQ keeps declarations in its own database, outside the folder.  Losing this file loses no message.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from storageio import Disk, replace_file

from .files import read_json
from .format.layout import DECLARATIONS_NAME, SIDECAR_FOLDER

DEFAULT, LAZY = "default", "lazy"  # queue modes


@dataclass(frozen=True)
class QueueOptions:
    """The declaration of a queue.  `max_priority` 0 makes an ordinary queue; `message_ttl_ms` None sets no expiry."""

    durable: bool = True
    mode: str = DEFAULT
    max_priority: int = 0
    message_ttl_ms: int | None = None

    @property
    def is_valid(self) -> bool:
        """Whether each value has the right type and range: anybody may have edited the file."""
        numbers = self.max_priority, self.message_ttl_ms or 0
        are_numbers = all(isinstance(number, int) and 0 <= number < 1 << 53 for number in numbers)
        return isinstance(self.durable, bool) and isinstance(self.mode, str) and are_numbers and self.max_priority < 256


def read_options(disk: Disk, path: str) -> dict[str, QueueOptions]:
    """Return the declarations by queue name; an empty dict when the file is missing or damaged."""
    found = read_json(disk, f"{path}/{SIDECAR_FOLDER}/{DECLARATIONS_NAME}")
    try:
        made = {name: QueueOptions(**options) for name, options in found.items()}
        return {name: options for name, options in made.items() if options.is_valid}
    except (TypeError, AttributeError):
        return {}


def write_options(disk: Disk, path: str, options: dict[str, QueueOptions]) -> None:
    """Replace the file atomically."""
    text = json.dumps({name: asdict(declared) for name, declared in sorted(options.items())}, indent=1)
    replace_file(disk, f"{path}/{SIDECAR_FOLDER}/{DECLARATIONS_NAME}", text.encode())
