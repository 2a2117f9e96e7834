"""Read a queue's folder: its name, and index entries of any version by sequence number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from storageio import Disk, read_head
from storageio.ahead import in_turn
from storebytes.finding import Finding

from ..files import SMALL_SIZE_MAX, numbers_in
from ..format import layout
from ..format.entry_cy import IndexEntry
from ..format.index_versions import VERSIONS, IndexVersion
from ..format.names import index_version, queue_folder_name, read_queue_name, split_part_name
from .entry_copies import HasMessage, no_message
from .index_reader import Finish, IndexFolder, SharedStores
from .index_v1 import IndexV1
from .index_v2 import IndexV2
from .intact_segment_cy import IntactSegment

READERS: dict[int, type[IndexV1] | type[IndexV2]] = {1: IndexV1, 2: IndexV2}


class QueueFolder(IndexFolder):
    """The name and the index entries of a queue's folder.

    `name` is the whole name, `queue` and `priority` its parts.  Without a valid `.queue_name`, `is_named` is false; the name
    is the one that the node's metadata has for the folder, or the folder's own.
    """

    def __init__(
        self,
        disk: Disk,
        vhost_path: str,
        folder: str,
        segment_entries: int,
        problems: list[Finding],
        has_message: HasMessage = no_message,
        stores: SharedStores | None = None,
    ) -> None:
        """Read the name.  `has_message` decides where journal and segment disagree about an entry.

        `stores` correct damaged entries of version 2.
        """
        super().__init__(
            disk, f"{vhost_path}/{layout.QUEUES_FOLDER}/{folder}", f"{layout.QUEUES_FOLDER}/{folder}", has_message, stores
        )
        self.folder = folder
        text = read_head(disk, f"{self.path}/{layout.QUEUE_NAME_FILE}", SMALL_SIZE_MAX)
        named = read_queue_name(text, folder) if text is not None else None
        self.is_named = named is not None and queue_folder_name(*named) == folder
        self.vhost, self.name = named if named is not None and self.is_named else self._declared(stores)
        self.queue, self.priority = split_part_name(self.name)
        self.unknown_version = index_version(text) if self.is_named and index_version(text) not in VERSIONS else None
        self.format = self._format(text or b"")
        self.version = self.format.number
        self.segment_entries = self.format.segment_entries or segment_entries
        self.index: IndexV1 | IndexV2 = READERS[self.version](self)
        if not self.is_named and (text or not self.is_half_made):
            where = f"{self.relative}/{layout.QUEUE_NAME_FILE}"
            problems.append(Finding(where, 0, "bad_queue_name", "the name that the folder is named after", str(text)[:200]))

    def _declared(self, stores: SharedStores | None) -> tuple[str, bytes]:
        """Return virtual host and name as a server has them that starts with the folder, else the folder's own name."""
        found = None if stores is None else stores.declared_part(self.folder)
        return ("", os.fsencode(self.folder)) if stores is None or found is None else (stores.vhost, found)

    def _format(self, text: bytes) -> IndexVersion:
        """Return the highest version that has files here, or that `text`, the bytes of `.queue_name`, names."""
        found = (one for one in reversed(VERSIONS.values()) if numbers_in(self.disk, self.path, one.endings[0]))
        return next(found, None) or VERSIONS.get(index_version(text), VERSIONS[1])

    def size_bytes(self) -> int:
        """Return the size of all files."""
        return sum(entry.size_bytes for entry in self.disk.list(self.path))

    @property
    def has_index(self) -> bool:
        """Whether the folder has files of an index of its version; an empty queue of version 2 has none."""
        return bool(self.segment_numbers()) or self.disk.stat(f"{self.path}/{layout.JOURNAL_NAME}") is not None

    @property
    def is_half_made(self) -> bool:
        """Whether a kill interrupted a declaration or deletion: there is no name, and every index file is empty."""
        endings = "jif", *(ending for one in VERSIONS.values() for ending in one.endings)
        files = (entry for entry in self.disk.list(self.path) if entry.name.rpartition(".")[2] in endings)
        return not self.is_named and not any(entry.size_bytes for entry in files)

    def entries(self, problems: list[Finding], start: int = 0) -> Iterator[IndexEntry]:
        """Yield all entries by sequence number, including acknowledged ones that are still in the files.

        Segments before the one of the number `start` are not read.
        """
        for part in self.index.segments(problems, map, IntactSegment.entries, start // self.segment_entries):
            yield from part

    def segments(self, problems: list[Finding], work: Finish = lambda segment: segment) -> Iterator[Any]:
        """Yield the same segment by segment: what `work` makes of an `IntactSegment`, and a list of the entries of any other.

        Two threads read, and work, ahead of the caller.
        """
        return self.index.segments(problems, in_turn, work)

    def counted(self, problems: list[Finding]) -> Iterator[IntactSegment | list[IndexEntry]]:
        """Yield the same; an `IntactSegment` has only whole messages, and has counted them."""
        return self.segments(problems, _counted)


def _counted(segment: IntactSegment) -> IntactSegment | list[IndexEntry]:
    return segment if segment.count_messages() else segment.entries()
