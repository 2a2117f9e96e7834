"""Find the records that the key index does not have yet, for readers.

A writer dispatches records a moment after they are put, and a killed writer leaves some undispatched.  A query beside a
writer, or after a kill, walks the log from the last indexed record on.

The walk ends after `SEARCHED_MAX` bytes.  The rest is not searched: `unsearched_bytes` has its size, and a warning is
logged once.  After a clean stop the index is complete, and there is no walk.
"""

from __future__ import annotations

import logging
from array import array
from typing import TYPE_CHECKING

from commitlog import CHECK_PLACE, MappedFile
from commitlog._scan_cy import scan
from commitlog.checks import CHECK_READ
from commitlog.cursor import is_file_end
from commitlog.layout import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from storageio import Entry, StoreCorrupt

if TYPE_CHECKING:
    from ..parts import StoreParts

LOG = logging.getLogger(f"brokerstore.{__name__}")
SEARCHED_MAX = 64 << 20  # bytes of log behind the index that one query searches
QUEUES_AFTER = 4 << 20  # bytes after which the queues are checked for the dispatcher's progress
BATCH = 4096
END = -1


class Unindexed:
    """The part of the log after the last indexed record, in a store opened for reading."""

    def __init__(self, parts: StoreParts) -> None:
        """Set the fields without reading anything."""
        self._parts = parts
        self._dispatched = 0  # an earlier query found that all records before this one are dispatched
        self._is_told = False
        self._abort: Entry | None = None  # when the files were last listed; every opening for writing changes it
        self._spare: tuple[array[int], array[int]] | None = None  # of `_walk`, taken by one call at a time
        self.unsearched_bytes = 0

    def offsets(self, topic: bytes, key: bytes) -> list[int]:
        """Return the physical offsets of the records that have the key, newest first.

        Call this before the query of the index: records indexed in between are then found twice instead of missed.

        Folders are not read in most calls.  A writer that stays open adds records at the end of the log, which the walk reaches
        through the maps, and creates an index file only when the newest one is full.  A writer that was opened and closed since
        the last call leaves at least an item of a record that the known files of the log do not have.
        """
        self.unsearched_bytes = 0
        index = self._parts.index
        if index is None:
            return []
        found = self._walk_all(topic, key) if self._check_writer() else []
        if index.needs_refresh(self._parts.log.queue.end_offset):
            self._parts.refresh()
        return found[::-1]

    def _check_writer(self) -> bool:
        """Return whether the store was not closed cleanly; list the files again if it was opened or closed since."""
        assert self._parts.view is not None
        self._parts.view.refresh_if_due()
        abort = self._parts.abort_file.entry()
        if abort != self._abort:
            self._parts.refresh()
            self._abort = abort
        return abort is not None

    def _walk_all(self, topic: bytes, key: bytes) -> list[int]:
        """Walk the log from the last indexed record to its end."""
        found: list[int] = []
        start = at = self._start()
        while (file := self._file_at(at)) is not None:
            if at - start >= QUEUES_AFTER and self._learn_dispatched(at):
                start = at = self._dispatched
                found.clear()
                continue
            if at - start >= SEARCHED_MAX:
                self._tell(at)
                break
            at = self._walk(file, at, topic, key, found)
            if at == END:
                break
        return found

    def _file_at(self, offset: int) -> MappedFile | None:
        """Return the file that holds a physical offset; list the folder again if the files known end before it."""
        found = self._parts.log.queue.find(offset)
        if found is None:
            self._parts.refresh()
            found = self._parts.log.queue.find(offset)
        return found

    def _start(self) -> int:
        """Return the offset of a record before which every record is in the index."""
        log, index = self._parts.log, self._parts.index
        header = index.last_header() if index is not None else None
        if header is None:
            self._dispatched = 0
        elif log.message_at(self._dispatched, CHECK_PLACE) is None:
            self._dispatched = 0  # a recovery truncated the log
        return max(log.min_offset, 0, header.end_physical_offset if header is not None else 0, self._dispatched)

    def _learn_dispatched(self, at: int) -> bool:
        """Return whether a queue has a record after `at`.

        Messages without keys leave no trace in the index.  But a dispatcher, brokerstore's or a broker's, has indexed all
        records before the one of the last unit.
        """
        if self._parts.index is None or not self._parts.index.files:
            return False
        self._parts.queues.discover()
        for queue in self._parts.queues:
            queue.refresh()
            unit = queue.unit(queue.max_offset - 1)
            self._dispatched = max(self._dispatched, unit.physical_offset if unit is not None else 0)
        return self._dispatched > at

    def _walk(self, file: MappedFile, start: int, topic: bytes, key: bytes, found: list[int]) -> int:
        """Search some records of a file; return where to continue, or `END` at the end of the log."""
        spare, self._spare = self._spare, None
        positions, sizes = spare or (array("q", bytes(8 * BATCH)), array("i", bytes(4 * BATCH)))
        log, base = self._parts.log, file.start_offset
        view, reader = log.queue.view(file), log.reader(file)
        at, why, rows = scan(view, start - base, file.size_bytes, base, CHECK_PLACE, positions, sizes)
        for position in positions[:rows]:
            message = reader.decode_keyed(position, topic, key, CHECK_READ)
            if message is not None and message.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                found.append(base + position)
        self._spare = (positions, sizes)
        is_done = is_file_end(why, file.size_bytes - at, any_blank=True)  # as the dispatcher
        if is_done:
            return file.end_offset
        return base + at if why == "full" and rows else END

    def _tell(self, at: int) -> None:
        """Set `unsearched_bytes`, and log a warning once."""
        try:
            end = self._parts.log.find_end().offset
        except StoreCorrupt:  # damage in the last file
            end = self._parts.log.queue.end_offset
        self.unsearched_bytes = max(0, end - at)
        if self.unsearched_bytes and not self._is_told:
            self._is_told = True
            LOG.warning(
                "%s: %d bytes of the log, from offset %d on, are behind the key index and were not searched: "
                "queries may miss messages", self._parts.places.root, self.unsearched_bytes, at,
            )  # fmt: skip
