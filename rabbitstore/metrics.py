"""What a RabbitMQ-style store counts, as plain objects."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from storageio import Disk

from .engine.live_queue import LiveQueue
from .engine.vhost import Vhost
from .read.vhost_folder import VhostFolder


@dataclass(frozen=True)
class RabbitQueueMetrics:
    """The messages of a queue that wait, and those that a consumer holds; None where the files do not tell."""

    queue: str
    ready: int
    unacked: int | None


@dataclass(frozen=True)
class RabbitMetrics:
    """What a store counted at `time_ms`. A store that is opened for reading counts what is in the files."""

    time_ms: int
    is_writing: bool  # whether this process writes
    persistent_bytes: int  # sizes of the files of each message store
    transient_bytes: int
    free_bytes: int
    syncs: int | None  # since the opening
    queues: tuple[RabbitQueueMetrics, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return dataclasses.asdict(self)


def collect(disk: Disk, folder: VhostFolder, vhost: Vhost | None) -> RabbitMetrics:
    """Return the metrics of an open store; `vhost` is its engine if it is open for writing."""
    sizes = {name: sum(store.size_of(number) or 0 for number in store.file_numbers()) for name, store in folder.stores.items()}
    return RabbitMetrics(
        time_ms=disk.now_ms(),
        is_writing=vhost is not None,
        persistent_bytes=sizes.get("msg_store_persistent", 0),
        transient_bytes=sizes.get("msg_store_transient", 0),
        free_bytes=disk.space(folder.path).free_bytes,
        syncs=None if vhost is None else vhost.sync_count,
        queues=_from_files(folder) if vhost is None else tuple(_live(vhost.queue(name)) for name in vhost.queue_names()),
    )


def _from_files(folder: VhostFolder) -> tuple[RabbitQueueMetrics, ...]:
    return tuple(RabbitQueueMetrics(one.queue, one.messages - (one.unacked or 0), one.unacked) for one in folder.queues())


def _live(queue: LiveQueue) -> RabbitQueueMetrics:
    with queue.lock:
        return RabbitQueueMetrics(queue.name, len(queue), len(queue.unacked))
