"""Find the records that the key index does not have, for queries.

A writer dispatches records a moment after they are put, and a killed writer leaves some undispatched: a query beside a
writer, or after a kill, walks the log from the last indexed record on.  After a clean stop there is no such part, unless the
index is an older one.  Ranges between the files of an index that lost some are walked as well (`index_coverage.py`), and in a
store opened for writing what a dispatcher that failed left.

A walk ends after `SEARCHED_MAX` bytes.  The rest is not searched: `unsearched_bytes` has its size, and a warning is logged
once.
"""

from __future__ import annotations

import logging
from array import array
from typing import TYPE_CHECKING

from commitlog import CHECK_POSITION, MappedFile
from commitlog._scan_cy import scan
from commitlog.checks import CHECK_READ
from commitlog.cursor import is_file_end
from commitlog.layout import FOREVER_MS, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from storageio import Entry, StoreCorrupt

from ..index_hint import read_hint, still_holds
from .index_coverage import NOTHING, CoveragePart, IndexCoverage, has_tags, is_of_log

if TYPE_CHECKING:
    from indexfile import IndexFile

    from ..parts import StoreParts

LOG = logging.getLogger(f"brokerstore.{__name__}")
SEARCHED_MAX = 64 << 20  # bytes of log outside the index that one query searches
QUEUES_AFTER = 4 << 20  # bytes after which the queues are checked for the dispatcher's progress
BATCH = 4096
END = -1


class Unindexed:
    """The parts of the log that the key index lacks."""

    def __init__(self, parts: StoreParts) -> None:
        """Set the fields without reading anything."""
        self._parts = parts
        self._coverage = IndexCoverage(parts)
        self._dispatched = 0  # an earlier query found that all records before this one are dispatched
        self._is_reported = False
        self._abort: Entry | None = None  # when the files were last listed; every opening for writing changes it
        self._spare: tuple[array[int], array[int]] | None = None  # of `_walk`, taken by one call at a time
        self._complete: list[IndexFile] | None = None  # the index files, if a query found that they lack nothing
        self._tail: CoveragePart | None = None  # of a store without a writer: what follows the index
        self._left = 0  # bytes that the query may still search
        self._first_left = NOTHING  # where the part begins that it did not search
        self.unsearched_bytes = 0
        self.is_whole = False  # whether the last query found that the index lacks nothing

    def offsets(self, topic: bytes, key: bytes) -> list[int]:
        """Return the physical offsets of the records that have the key and may not be in the index, newest first.

        Call this before the query of the index: records indexed in between are then found twice instead of missed.

        Folders are not read in most calls.  A writer that stays open adds records at the end of the log, which the walk reaches
        through the maps, and creates an index file only when the newest one is full.  A writer that was opened and closed since
        the last call leaves at least an item of a record that the known files of the log do not have.
        """
        self.unsearched_bytes = 0
        index = self._parts.index
        if index is None:
            return []
        is_in_use = self._check_writer()
        found = self._search(topic, key, is_in_use) if is_in_use or self._complete is not index.listed else []
        if index.needs_refresh(self._parts.log.queue.end_offset):
            self._parts.refresh()
        return found

    def _search(self, topic: bytes, key: bytes, is_in_use: bool) -> list[int]:
        """Search every part that may hold keys."""
        self._left, self._first_left = SEARCHED_MAX, NOTHING
        found: list[int] = []
        gaps = self._coverage.gaps()
        tail = self._tail_of(is_in_use)
        for part in (*([tail] if tail is not None else []), *reversed(gaps)):
            if not part.is_done:
                self._walk_part(part, topic, key, found)
        self.is_whole = tail is None and all(part.is_done for part in gaps)
        is_done = tail is None or tail.is_done
        self._complete = self._coverage.listed if is_done and not is_in_use and all(part.is_done for part in gaps) else None
        if self.unsearched_bytes:
            self._report()
        return sorted(found, reverse=True)

    def tagged(self, topic: str, tags: str) -> list[int]:
        """Return the offsets of the records with these tags behind the last indexed one; a store in use may have some."""
        index = self._parts.index
        if index is None or not self._check_writer() or self._parts.writable:
            return []
        self._coverage.gaps()
        self._left, self._first_left, self.unsearched_bytes = SEARCHED_MAX, NOTHING, 0
        part, found = CoveragePart(max(self._parts.low_offset, self._coverage.end()), NOTHING, FOREVER_MS), list[int]()
        self._walk_part(part, topic.encode(), b"", found, tags)
        return found

    def exclude(self, files: list[IndexFile]) -> bool:
        """Search the log for what these damaged index files cover; return whether one of them is new."""
        is_new = self._coverage.exclude(files)
        self._complete = None
        if is_new:
            LOG.warning(
                "%s: damaged; queries search the log instead, and `brokerstore rebuild` makes the index new",
                ", ".join(file.path for file in files),
            )  # fmt: skip
        return is_new

    def lacks_tail(self, log_end: int) -> bool:
        """Return whether the index of a store that was closed cleanly lacks keys of its last records, because it is older."""
        parts, newest = self._parts, self._parts.index.last_header() if self._parts.index is not None else None
        if newest is None or parts.index is None:
            return False
        if not is_of_log(parts.log, parts.index, log_end):
            return True
        tail = CoveragePart(max(parts.low_offset, newest.end_physical_offset), newest.end_physical_offset, FOREVER_MS)
        tail.walked = max(tail.start, self._hinted_end())
        self._left, self._tail = SEARCHED_MAX, tail
        self._walk_part(tail, b"", b"", [])
        return tail.first_keyed != NOTHING

    def _check_writer(self) -> bool:
        """Return whether the index may not be complete yet; list the files again if the store was opened or closed since.

        That is so unless the store was closed cleanly, and in a writer whose dispatcher cannot go on.
        """
        if self._parts.view is None:
            return not self._parts.has_settled()
        self._parts.view.refresh_if_due()
        abort = self._parts.abort_file.entry()
        if abort != self._abort:
            self._parts.refresh()
            self._abort = abort
            self._tail = self._complete = None
        return abort is not None

    def _tail_of(self, is_in_use: bool) -> CoveragePart | None:
        """Return the part of the log behind the index; None if a writer covers it."""
        end = self._coverage.end()
        start = max(self._parts.low_offset, end)
        if self._parts.writable:
            return CoveragePart(self._parts.dispatcher.position, NOTHING, FOREVER_MS) if is_in_use else None
        if is_in_use:
            self._forget_cut()
            return CoveragePart(max(start, self._dispatched), end, FOREVER_MS)
        if self._tail is None or self._tail.start != start:
            self._tail = CoveragePart(start, end, FOREVER_MS)
            self._tail.walked = max(start, self._hinted_end())
        return self._tail

    def _forget_cut(self) -> None:
        """Forget what was learnt of a log that a recovery truncated."""
        if self._dispatched and self._parts.log.message_at(self._dispatched, CHECK_POSITION) is None:
            self._dispatched = 0

    def _hinted_end(self) -> int:
        """Return the offset before which a clean stop of brokerstore had every key in the index; 0 if that is unknown."""
        parts = self._parts
        hint = read_hint(parts.disk, parts.paths.own)
        newest = parts.index.listed[-1] if parts.index is not None and parts.index.listed else None
        if hint is None or newest is None or (hint.name, hint.next_item) != (newest.name, newest.header.next_item):
            return 0
        return hint.end_offset if still_holds(parts.log, hint) else 0

    def _walk_part(
        self, part: CoveragePart, topic: bytes, key: bytes, found: list[int], tags: str | None = None
    ) -> None:  # fmt: skip
        """Search a part of the log, from its start if it holds keys, else from where the last query stopped.

        With `tags` the search is for these instead of a key.
        """
        start = at = part.start if part.first_keyed != NOTHING else part.walked
        own: list[int] = []
        while at <= part.stop and (file := self._file_at(at)) is not None:
            if part.stop == FOREVER_MS and at - start >= QUEUES_AFTER and self._learn_dispatched(at, part):
                start = at = self._dispatched
                self._left = SEARCHED_MAX
                own.clear()
                continue
            if self._left <= 0:
                self._leave(part, at)
                break
            before = at
            at = self._walk(file, at, part, topic, key, own, tags)
            self._left -= max(0, at - before)
            if at == END:
                break
            if part.first_keyed == NOTHING:
                part.walked = max(part.walked, at)
        if at > part.stop or (part is self._tail and at == END and part.first_keyed == NOTHING):
            part.walked = max(part.walked, part.stop)
        elif at == END and part.stop != FOREVER_MS:
            self._leave(part, max(part.walked, start))
        found += own

    def _file_at(self, offset: int) -> MappedFile | None:
        """Return the file that holds a physical offset; list the folder again if the files known end before it."""
        found = self._parts.log.queue.find(offset)
        if found is None and not self._parts.writable:
            self._parts.refresh()
            found = self._parts.log.queue.find(offset)
        return found

    def _learn_dispatched(self, at: int, part: CoveragePart) -> bool:
        """Return whether a queue has a record after `at`, beside a writer.

        Messages without keys leave no trace in the index.  But a dispatcher, brokerstore's or a broker's, has indexed all
        records before the one of the last unit, unless the index lacks one with keys that the walk has passed.
        """
        parts = self._parts
        if part is self._tail or parts.writable or parts.index is None or not parts.index.files:
            return False
        parts.queues.discover()
        for queue in parts.queues:
            queue.refresh()
            unit = queue.unit(queue.max_offset - 1)
            self._dispatched = max(self._dispatched, unit.physical_offset if unit is not None else 0)
        if part.first_keyed != NOTHING:
            parts.refresh()
            self._coverage.gaps()
            if self._coverage.end() < part.first_keyed:
                self._dispatched = 0
        return self._dispatched > at

    def _walk(
        self, file: MappedFile, start: int, part: CoveragePart, topic: bytes, key: bytes, found: list[int], tags: str | None
    ) -> int:  # fmt: skip
        """Search some records of a file; return where to continue, or `END` at the end of the log."""
        spare, self._spare = self._spare, None
        positions, sizes = spare or (array("q", bytes(8 * BATCH)), array("i", bytes(4 * BATCH)))
        log, base = self._parts.log, file.start_offset
        view, reader = log.queue.view(file), log.reader(file)
        at, why, rows, _, _ = scan(view, start - base, file.size_bytes, base, CHECK_POSITION, positions, sizes)
        for position in positions[:rows]:
            if base + position > part.stop:
                break
            if tags is None:
                message = reader.decode_keyed(position, topic, key, CHECK_READ)
            else:
                message = reader.decode(position, CHECK_READ)
                if message is not None and not has_tags(message, topic.decode(), tags):
                    continue
            if message is not None and message.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                found.append(base + position)
            if part.first_keyed == NOTHING:
                part.judge(base + position, reader.decode(position, CHECK_POSITION))
        self._spare = (positions, sizes)
        is_done = is_file_end(why, file.size_bytes - at, any_blank=True)  # as the dispatcher
        if is_done:
            return file.end_offset
        return base + at if why == "full" and rows else END

    def _leave(self, part: CoveragePart, at: int) -> None:
        """Count what a query does not search."""
        self.unsearched_bytes += max(0, min(part.stop, self._log_end()) - at)
        self._first_left = at if self._first_left == NOTHING else min(at, self._first_left)

    def _log_end(self) -> int:
        if self._parts.writable:
            return self._parts.log.written_offset
        try:
            return self._parts.log.find_end().offset
        except StoreCorrupt:  # damage in the last file
            return self._parts.log.queue.end_offset

    def _report(self) -> None:
        """Log a warning once."""
        if not self._is_reported:
            self._is_reported = True
            LOG.warning(
                "%s: %d bytes of the log, from offset %d on, are not in the key index and were not searched: "
                "queries may miss messages", self._parts.paths.root, self.unsearched_bytes, self._first_left,
            )  # fmt: skip
