"""Which node's folder of a cluster has the newest copy of each queue (docs/formats/rabbitmq-quorum.md#several-folders).

The members of a quorum queue, or of a stream, have copies of one log.  The copy with the last entry of the highest term, and of
those the longest, has every entry that the servers confirmed, if a majority of the copies is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

from storageio import REAL_DISK, Disk, UnsupportedFormat

from .declared import declared_members
from .node_folder import QUORUM, STREAM, NodeFolder
from .quorum.folder import QuorumQueue
from .read.vhost_folder import VhostFolder, find_vhost
from .stream.folder import StreamFolder
from .stream.scan import StreamScan

CLASSIC = "classic"


class QueueCopy(NamedTuple):
    """A copy of a queue in a folder, with term and index of its last entry; of a stream epoch and offset."""

    folder: str
    last_term: int
    last_index: int


class ClusterQueue(NamedTuple):
    """A queue with its copies, the newest first; `members` is the number of copies that the cluster has of it."""

    queue: str
    vhost: str
    type: str
    members: int
    copies: list[QueueCopy]

    @property
    def has_majority(self) -> bool:
        """Return whether enough copies are here for what was confirmed to be among them."""
        return len(self.copies) > self.members // 2

    @property
    def agreed(self) -> int | None:
        """Return the last index that a majority of the members has; None without a majority, and for a classic queue."""
        indexes = sorted((copy.last_index for copy in self.copies), reverse=True)
        return indexes[self.members // 2] if self.has_majority and self.type != CLASSIC else None

    @property
    def alone(self) -> int | None:
        """Return how many of the last entries only the newest copy has; None for a classic queue."""
        if self.type == CLASSIC:
            return None
        others = [copy.last_index for copy in self.copies[1:]]
        return self.copies[0].last_index - max(others, default=-1)

    def to_json(self) -> dict[str, Any]:
        """Return the object that the tool prints."""
        found = {"newest": self.copies[0].folder, "agreed": self.agreed, "alone": self.alone, "has_majority": self.has_majority}
        return self._asdict() | {"copies": [copy._asdict() for copy in self.copies]} | found


def cluster_queues(paths: Sequence[str], vhost: str | None = None, disk: Disk = REAL_DISK) -> list[ClusterQueue]:
    """Return the queues of a virtual host with their copies in the folders of some nodes, by type and name.

    A classic queue is on one node.  An older server may mirror it: then the first of the folders that have it is the newest.
    """
    copies: dict[tuple[str, str], list[QueueCopy]] = {}
    members: dict[tuple[str, str], int] = {}
    name = ""
    for path in dict.fromkeys(paths):
        with closing(VhostFolder(find_vhost(path, vhost, disk), disk)) as classic:
            name = classic.vhost
            for queue in dict.fromkeys(one.queue for one in classic.queue_folders()):
                copies.setdefault((CLASSIC, queue), []).append(QueueCopy(path, 0, 0))
        declared = declared_members(path, name, disk)
        with closing(NodeFolder(path, name, disk)) as node:
            for quorum in node.quorum_queues:
                copies.setdefault((QUORUM, quorum.queue), []).append(QueueCopy(path, *_end_of_log(quorum)))
                members[QUORUM, quorum.queue] = max(quorum.members, members.get((QUORUM, quorum.queue), 1))
            for stream in node.streams:
                copies.setdefault((STREAM, stream.queue), []).append(QueueCopy(path, *_end_of_stream(stream)))
            for key in copies.keys() - {key for key in copies if key[0] == CLASSIC}:
                members[key] = max(members.get(key, 1), declared.get(key[1], 1))
    return [
        ClusterQueue(
            queue, name, kind, max(members.get((kind, queue), 1), len(found) if kind != CLASSIC else 1), _sorted(found)
        )
        for (kind, queue), found in sorted(copies.items())
    ]


def _sorted(copies: list[QueueCopy]) -> list[QueueCopy]:
    return sorted(copies, key=lambda copy: (copy.last_term, copy.last_index), reverse=True)


def _end_of_log(queue: QuorumQueue) -> tuple[int, int]:
    """Return term and index of the last entry, or of a newer snapshot."""
    entries, states = queue.entries(), queue.snapshots()[:1]
    last = entries.last
    found = [(state.term, state.index) for state in states] + ([(entries[last].term, last)] if last is not None else [])
    return max(found, key=lambda pair: pair[1], default=(0, 0))


def _end_of_stream(stream: StreamFolder) -> tuple[int, int]:
    """Return the epoch of the last chunk, and the offset of its last record."""
    for number in reversed(stream.segments()):
        try:
            with stream.open_segment(number, []) as segment:
                chunks = list(StreamScan(segment.view, segment.file, [], chunk_id=number).chunks())
        except UnsupportedFormat:
            continue
        if chunks:
            return chunks[-1].epoch, chunks[-1].chunk_id + chunks[-1].records - 1
    return 0, -1
