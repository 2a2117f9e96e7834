"""Statistics of a virtual host's folder, of all its indexes and records."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from storageio import REAL_DISK, Disk

from .intact_segment_cy import SIZE_STEPS, IntactSegment
from .queue_folder import QueueFolder
from .store_folder import StoreFolder, store_names
from .vhost_folder import VhostFolder


@dataclass
class QueueStatistics:
    """Statistics of one queue; `bytes` counts bodies."""

    queue: str
    messages: int = 0
    persistent: int = 0
    embedded: int = 0
    stored: int = 0
    expiring: int = 0
    bytes: int = 0
    largest_bytes: int = 0
    index_bytes: int = 0


@dataclass
class StoreStatistics:
    """Statistics of one message store; `live_bytes` counts records that an index entry refers to."""

    store: str
    files: int = 0
    bytes: int = 0
    records: int = 0
    live_bytes: int = 0
    references: int = 0

    @property
    def garbage_fraction(self) -> float:
        """The fraction of bytes that no entry refers to; 0 for an empty store."""
        return 1 - self.live_bytes / self.bytes if self.bytes else 0.0


@dataclass
class Statistics:
    """Statistics of a virtual host; `sizes` counts messages by body size: each key is an upper bound in bytes, or "more"."""

    vhost: str
    is_clean: bool
    queues: list[QueueStatistics] = field(default_factory=list)
    stores: list[StoreStatistics] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the object that the tool prints."""
        stores = [{**asdict(store), "garbage_fraction": round(store.garbage_fraction, 4)} for store in self.stores]
        queues = [asdict(queue) for queue in self.queues]
        return {"vhost": self.vhost, "is_clean": self.is_clean, "queues": queues, "stores": stores, "sizes": self.sizes}


def statistics(path: str, disk: Disk = REAL_DISK) -> Statistics:
    """Read every index and all records' locations, but no body."""
    folder = VhostFolder(path, disk)
    found = Statistics(folder.vhost, folder.is_clean)
    found.sizes = {str(step): 0 for step in SIZE_STEPS} | {"more": 0}
    by_queue: dict[str, QueueStatistics] = {}
    live: dict[str, set[bytes]] = {name: set() for name in folder.stores}
    references = dict.fromkeys(folder.stores, 0)
    for queue in folder.queue_folders():
        row = by_queue.setdefault(queue.queue, QueueStatistics(queue.queue))
        row.index_bytes += sum(entry.size_bytes for entry in disk.list(queue.path))
        _count_entries(folder, queue, row, found.sizes, live, references)
    found.queues = list(by_queue.values())
    found.stores = [_count_store(store, live[name], references[name]) for name, store in folder.stores.items()]
    folder.close()
    return found


def _count_entries(
    folder: VhostFolder,
    queue: QueueFolder,
    row: QueueStatistics,
    sizes: dict[str, int],
    live: dict[str, set[bytes]],
    references: dict[str, int],
) -> None:
    for part in queue.counted([]):
        if isinstance(part, IntactSegment):
            row.messages += part.messages
            row.persistent += part.persistent
            row.expiring += part.expiring
            row.bytes += part.size_bytes
            row.largest_bytes = max(row.largest_bytes, part.largest)
            row.embedded += part.messages
            for step, count in zip(sizes, part.sizes, strict=True):
                sizes[step] += count
            continue
        for entry in part:
            if entry.acked or folder.was_in_memory(entry):
                continue
            row.messages += 1
            row.persistent += entry.persistent
            row.expiring += entry.expiry_us != 0
            row.bytes += entry.size
            row.largest_bytes = max(row.largest_bytes, entry.size)
            sizes[next((str(step) for step in SIZE_STEPS if entry.size <= step), "more")] += 1
            if entry.term is not None:
                row.embedded += 1
                continue
            row.stored += 1
            for name in store_names(entry.persistent):
                if entry.msg_id in folder.stores[name].locations:
                    live[name].add(entry.msg_id)
                    references[name] += 1
                    break


def _count_store(store: StoreFolder, live: set[bytes], references: int) -> StoreStatistics:
    row = StoreStatistics(store.name, references=references)
    for number in store.file_numbers():
        row.files += 1
        row.bytes += store.size_of(number)
        row.records += len(store.scan(number, []).records)
    row.live_bytes = sum(store.locations[msg_id][1].total_size for msg_id in live)
    return row
