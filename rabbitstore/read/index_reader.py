"""What a queue's folder gives to the reader of its index, and what a reader of each version gives back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from storageio import Disk
from storebytes.finding import Finding

from ..files import numbers_in
from ..format.index_versions import IndexVersion
from .entry_copies import HasMessage
from .index_restore import SharedMessage
from .intact_segment_cy import IntactSegment

Finish = Callable[[IntactSegment], Any]


class SharedStores(Protocol):
    """What a queue's folder asks about its virtual host, `vhost`; `notes` are states that a kill leaves."""

    vhost: str
    notes: list[Finding]

    def similar_id(self, msg_id: bytes) -> bytes | None:
        """Return the id of a stored message that differs in one byte; None when this id itself is stored, or none is."""

    def declared_part(self, folder: str) -> bytes | None:
        """Return the name in the node's metadata that a queue's folder is named after."""

    def without_entry(self, queue: str) -> list[SharedMessage]:
        """Return the messages of the persistent store that were routed to the queue and that no index names."""

    def is_in_persistent_store(self, msg_id: bytes) -> bool:
        """Return whether the persistent store, and not the transient one, has the message."""

    @property
    def has_terms(self) -> bool:
        """Whether the terms of the last clean stop can be read."""

    def was_stopped(self, folder: str) -> bool:
        """Return whether the last stop was clean, and the queue of a folder had not crashed before it."""

    def lacks_entries(self, folder: str, number: int, count: int) -> bool:
        """Return whether the last stop was clean, and left more than `count` entries in a segment of a queue's folder."""


class IndexFolder:
    """The files of one index, and whom to ask about messages that they only name."""

    folder: str
    queue: str
    format: IndexVersion
    segment_entries: int

    def __init__(self, disk: Disk, path: str, relative: str, has_message: HasMessage, stores: SharedStores | None) -> None:
        """`relative` is the folder in a finding.  `has_message` decides where journal and segment disagree about an entry.

        `stores` correct damaged entries of version 2.
        """
        self.disk = disk
        self.path = path
        self.relative = relative
        self.has_message = has_message
        self.stores = stores

    def segment_numbers(self) -> list[int]:
        """Return the numbers of the segments that have a file."""
        return numbers_in(self.disk, self.path, self.format.endings[0])
