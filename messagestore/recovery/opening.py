"""Recovery of a store that is opened for writing: `prepare`, then the steps of a plan.

`Opening.plan` decides and changes nothing.  It raises `StoreCorrupt` for damage to safely stored data, and the folder stays as
it is.  The steps cut the log's crash tail, and then queues and index at the end of the log; they build the units and items that
are missing, and a broker's timer files if timers point behind the end of the log.  ARCHITECTURE.md, "Recovery", has the rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from commitlog import LogPaths
from commitlog.topic_names import SCHEDULE_TOPIC
from commitlog.walk import LogFiles
from storageio import DiskError, StoreCorrupt, StoreError
from storageio.invariants import check_invariants
from storebytes.plan import Plan

from .. import index_hint
from ..broker.config.delay_offsets import DelayOffsets
from ..clean_stop import CleanStop, clean_path
from ..derive.queues import QueueGap
from ..index_hint import IndexHint, delete_hint, read_hint
from ..parts import StoreParts
from ..paths import OWN_FOLDER
from ..read.index_coverage import is_of_log
from ..read.unindexed import Unindexed
from ..store_settings import FileSettings, read_settings, write_settings
from ..timers.layout import TIMER_TOPIC
from ..timers.pending import timers_behind
from ..timers.rebuild_timers import has_timers, rebuild_timers
from ..timers.timer_log import TimerLog
from ..write.pool import PooledFiles
from ..write.ring import restore
from ..write.sync_failure import rewrite_after_sync_failure
from .clamp_offsets import OFFSET_TABLES, clamp_offsets
from .log_end import LogEnd, cut_tail, end_after_clean_stop, end_after_crash, torn_end
from .named_messages import FileMessages
from .witnesses import is_cut_tail, refuse_lost_end

LOG = logging.getLogger(f"brokerstore.{__name__}")


class OpeningFacts(NamedTuple):
    """What an opening found, and what it has to check."""

    end: LogEnd
    was_clean: bool
    clean_stop: CleanStop | None  # what the last clean stop recorded
    drops_index: bool  # its files do not have the configured size
    checks_queues: bool  # queues are cut at the log's end and filled; consumer offsets beyond their end are clamped
    checks_index: bool  # the index may lack items


def prepare(parts: StoreParts) -> None:
    """Write to the log what an earlier process acknowledged but could not write there."""
    paths = parts.paths
    derived = [paths.queues, paths.ext, paths.batch, paths.index]
    rewrite_after_sync_failure(parts.disk, paths.own, parts.log.queue.files, derived)
    restore(parts.disk, paths.own, parts.log, is_torn=not parts.was_clean)


class Opening:
    """What opening a store does to its folder before the first put."""

    def __init__(self, parts: StoreParts, unindexed: Unindexed, make_services: Callable[[int, LogEnd], None]) -> None:
        """`make_services` makes what dispatches from a physical offset on; the log has its end by then."""
        self.parts = parts
        self.found = _examine(parts, unindexed)
        self.start = self.found.end.offset  # where dispatch begins
        self.clamped: list[str] = []  # a line for each offset that was set back
        self._make_services = make_services

    def plan(self) -> Plan:
        """Return the steps, in the order in which they have to run."""
        found, paths = self.found, self.parts.paths
        plan, end = Plan(paths.root), found.end
        if end.has_tail:
            plan.add("cut_tail", "commitlog", f"a crash left it, behind {end.offset}", self._cut_tail)
        plan.add("continue_log", "commitlog", f"it ends at {end.offset}", self._continue_log)
        if found.drops_index:
            plan.add("drop_index", "index", "its files have another size", self._drop_index)
        if found.checks_index:
            reason = "the stop was not clean" if not found.was_clean else "something is missing"
            plan.add("cut_derived", "consumequeue and index", reason, self._cut_derived)
        parts = self.parts
        if parts.deleted.leftovers(parts.queues):
            plan.add("delete_queues", "consumequeue", "their topics were deleted", self._delete_queues)
        plan.add("write_settings", f"{OWN_FOLDER}/settings.json", "files do not show them", self._keep_settings)
        plan.add("dispatch", "consumequeue and index", "records have no units or items yet", self._dispatch)
        if found.checks_queues and has_timers(self.parts.disk, paths.root):
            plan.add("rebuild_timers", "timerlog", "timers may point behind the end of the log", self._repair_timers)
        plan.add("clamp_offsets", "config", "offsets may be behind the end of their queue", self._clamp_offsets)
        if self.parts.acked:
            plan.add("restore_acks", f"{OWN_FOLDER}/acks", "the last writer saved less", self._restore_acks)
        if found.clean_stop is not None:
            plan.add("delete_clean_stop", f"{OWN_FOLDER}/clean.json", "the log goes on", self._delete_clean_stop)
        return plan

    def _cut_tail(self) -> None:
        parts = self.parts
        cut_tail(parts.log, self.found.end.offset, parts.disk, parts.paths.root)

    def _continue_log(self) -> None:
        """Let the next record follow the last one; what an unclean stop left unsynced is synced, or marked for the flusher."""
        parts, end = self.parts, self.found.end
        config, log = parts.config, parts.log
        parts.checkpoint.open()
        if config.uses_ring:
            log.buffers = PooledFiles(
                log,
                parts.disk,
                parts.paths.own,
                config.transient_store_ring_size,
                zeroes_ahead=config.is_sync_flush,
                reader_offset=None if config.is_sync_flush else lambda: parts.dispatcher.reads_from(),
            )
        log.attach(end.offset, end.store_timestamp_ms)
        if parts.checkpoint.is_beyond(end.last_offset):
            parts.checkpoint.lower_to(end.last_offset)
            parts.checkpoint.flush()
        for file in log.queue.files[:-1]:
            file.set_positions(file.size_bytes)
        if not self.found.was_clean:
            log.mark_unsynced(end.dispatch_from)
            if config.is_sync_flush or config.uses_ring:
                log.flush()  # else the flusher does it while the store is in use: no put was promised that it is on the disk

    def _drop_index(self) -> None:
        parts = self.parts
        if parts.index is not None:
            LOG.warning("%s: files of another size: the index is rebuilt from the log", parts.index.folder)
            delete_hint(parts.disk, parts.paths.own)
            parts.index.destroy()

    def _cut_derived(self) -> str:
        """Cut what points behind the end of the log; dispatch begins where something may be missing."""
        parts = self.parts
        self.start = _cut_derived(parts, self.found.end)
        if not self.found.was_clean:
            parts.queues.mark_unsynced()
            parts.derived.batch.mark_unsynced()
            if parts.index is not None:
                parts.index.mark_unsynced()
        return f"complete up to {self.start}"

    def _delete_queues(self) -> None:
        """Finish deletions that a killed process began."""
        queues = self.parts.queues
        for topic, queue_id in self.parts.deleted.leftovers(queues):
            queues.remove(topic, queue_id)

    def _keep_settings(self) -> None:
        self.parts.deleted.end_at(self.found.end.offset)
        _keep_settings(self.parts, self.found.end)
        check_invariants(_check_applied, self.parts, self.found, self.start)

    def _dispatch(self) -> None:
        """Dispatch up to the end of the log; from its beginning, if a queue lacks units of records before that."""
        parts, start = self.parts, self.start
        self._make_services(start, self.found.end)
        if start < self.found.end.offset:
            low = parts.low_offset
            try:
                parts.dispatcher.catch_up(refuses_gaps=start > low)
            except QueueGap as gap:
                LOG.warning("queues are filled from the whole log: %s", gap)
                parts.dispatcher.begin_again(low)
                parts.dispatcher.catch_up()
        _count_queues(parts, self.found)
        check_invariants(_check_dispatched, parts)

    def _repair_timers(self) -> None:
        _repair_timers(self.parts, self.found.end.offset)

    def _clamp_offsets(self) -> str:
        """Clamp offsets that are behind the end of their queue.

        After a clean stop those of delay levels alone are clamped, as a broker does whenever it starts: a level whose offset is
        ahead would never deliver again. Offsets of consumers show that more was there, so `recover` clamps them.
        """
        parts = self.parts
        self.clamped = clamp_offsets(
            parts.disk, parts.paths.config, parts.lookup.end_of, lambda table, _changed: table.persist(),
            OFFSET_TABLES if self.found.checks_queues else (DelayOffsets,),
        )  # fmt: skip
        return ", ".join(self.clamped)

    def _restore_acks(self) -> None:
        self.parts.consumer_offsets()

    def _delete_clean_stop(self) -> None:
        self.parts.disk.delete(clean_path(self.parts.paths.root))


def _examine(parts: StoreParts, unindexed: Unindexed) -> OpeningFacts:
    """Find the end of the log and decide what has to be checked, without changing anything.

    Raises `StoreCorrupt` for damage to safely stored data, `UnsupportedFormat` for a record of an unknown version.
    """
    clean_stop = parts.facts.clean_stop
    if parts.was_clean:
        end = _end_after_clean_stop(parts, clean_stop)
    else:
        end = end_after_crash(parts.log, parts.checkpoint, clean_stop)
    is_known = parts.was_clean and (end.has_tail or clean_stop == (end.offset, end.last_offset))
    if not is_known:
        was_clean = parts.abort_file.was_clean
        refuse_lost_end(parts.facts, _named(parts), parts.log, end, was_clean=was_clean)
    index = parts.index
    drops_index = parts.was_clean and index is not None and index.has_other_sizes
    checks_queues = not parts.was_clean or end.has_tail or _lacks_queues(parts, end)
    lacks_index = (
        end.last_offset >= 0
        and index is not None
        and (drops_index or not index.files or (parts.was_clean and unindexed.lacks_tail(end.offset)))
    )
    return OpeningFacts(end, parts.was_clean, clean_stop, drops_index, checks_queues, checks_queues or lacks_index)


def _named(parts: StoreParts) -> FileMessages:
    return FileMessages(parts.queues, parts.derived.batch, parts.index, TimerLog(parts.disk, parts.paths.root))


def _end_after_clean_stop(parts: StoreParts, clean_stop: CleanStop | None) -> LogEnd:
    """Return the end; behind it may be what a recovery cut before the stop, as RocketMQ does."""
    try:
        return end_after_clean_stop(parts.log, clean_stop)
    except StoreCorrupt:
        end = torn_end(parts.log)
        if end is None or not is_cut_tail(parts.facts, _named(parts), parts.log, end):
            raise
        return end


def _lacks_queues(parts: StoreParts, end: LogEnd) -> bool:
    """Return whether queues are missing although the log has records.

    A queue whose records all left the log would begin again at 0.
    """
    if end.last_offset < 0:
        return False
    return len(parts.lookup) == 0 or parts.derived.lacks_batch_queues() or parts.lacks_listed_queues()


def _check_applied(parts: StoreParts, decided: OpeningFacts, start: int) -> None:
    """Assert what holds between `apply` and dispatch."""
    end = decided.end.offset
    assert start <= end, "dispatch begins inside the log"
    assert parts.log.written_offset == end, "the log goes on at its end"
    if decided.checks_queues:
        assert parts.queues.max_physical_offset() <= end, "no queue points behind the log"


def _cut_derived(parts: StoreParts, end: LogEnd) -> int:
    """Cut what points behind the end of the log; return where dispatch has to begin so that nothing is missing."""
    hint = read_hint(parts.disk, parts.paths.own)
    if hint is not None and not index_hint.still_holds(parts.log, hint):
        hint = None
    safe_offset, lost_from = _cut_queues(parts, end, hint)
    parts.derived.recover(end.offset)
    low = parts.low_offset
    parts.queues.correct_min_offsets(low)
    lacks_any = parts.lacks_listed_queues() or parts.derived.lacks_batch_queues()
    is_counted = safe_offset > end.dispatch_from
    is_whole = (is_counted or parts.queues.max_physical_offset() >= end.dispatch_from) and not lacks_any
    lost_in = parts.log.queue.find(lost_from)
    start = min(safe_offset, lost_in.start_offset if lost_in else lost_from) if is_whole else low
    return min(start, _cut_index(parts, end, low, hint))


def _cut_queues(parts: StoreParts, end: LogEnd, hint: IndexHint | None) -> tuple[int, int]:
    """Cut each queue at its first wrong unit.

    Returns the physical offset before which no queue lacks a unit, and the one from which some queue lost its units.
    """
    queues = parts.queues
    if hint is None or not _may_be_whole(parts, hint, end):
        return end.dispatch_from, queues.recover(end.dispatch_from, end.offset)
    lost_from = queues.recover(hint.end_offset, end.offset)
    if queues.count(hint.end_offset) == hint.next_total:
        return hint.end_offset, lost_from
    return end.dispatch_from, min(lost_from, queues.recover(end.dispatch_from, end.offset))


def _may_be_whole(parts: StoreParts, hint: IndexHint, end: LogEnd) -> bool:
    """Return whether the hint covers more of the queues than the checkpoint does."""
    return hint.next_total >= 0 and end.dispatch_from < hint.end_offset <= end.offset and not parts.derived.are_kept


def _cut_index(parts: StoreParts, end: LogEnd, low: int, hint: IndexHint | None) -> int:
    """Keep the part of the index that the hint covers, or the sound files; return where the missing keys begin."""
    index, checkpoint, own = parts.index, parts.checkpoint, parts.paths.own
    if index is None:
        return end.offset
    if index.changes_safe_files(checkpoint.min_index_timestamp_ms, end.offset):
        checkpoint.index_msg_timestamp_ms = 0
        checkpoint.flush()
    if hint is not None:
        start = min(hint.end_offset, end.offset)
        if index.keep_until(hint.name, hint.next_item, start):
            if end.offset < hint.end_offset:  # the next records lie where the hint covers other items
                delete_hint(parts.disk, own)
            return max(low, start)
    if not is_of_log(parts.log, index, end.offset):
        index.destroy()
    index.keep_sound(checkpoint.min_index_timestamp_ms, end.offset)
    delete_hint(parts.disk, own)
    last = index.last_header()
    return max(low, last.end_physical_offset) if last is not None else low


def _keep_settings(parts: StoreParts, end: LogEnd) -> None:
    """Write the settings that a later open cannot detect from the files."""
    before = parts.levels
    parts.levels = parts.derived.levels = before.opened_at(end.offset, is_empty=end.last_offset < 0)
    *older, newest = parts.levels.entries
    if older and newest not in before.entries and parts.queues.queue_ids(SCHEDULE_TOPIC):
        LOG.warning(
            "%s: delay levels are %s; before: %s.  Waiting messages keep their delivery times",
            parts.paths.root, parts.levels.current, older[-1].levels or "not known",
        )  # fmt: skip
    kept = read_settings(parts.disk, parts.paths.own)
    if parts.index is not None:
        kept = FileSettings(parts.index.slots, parts.index.items)
    policy = parts.config.retention
    assert policy is not None, "known once the parts are loaded"
    kept = kept._replace(
        delay_levels=tuple(parts.levels.entries), retention=policy.value, broker_version=parts.broker_version.name
    )  # fmt: skip
    write_settings(parts.disk, parts.paths.own, kept)


def _repair_timers(parts: StoreParts, end_offset: int) -> None:
    """Rebuild a broker's timer files if timers point behind the end of the log, where other records will be."""
    paths = parts.paths
    try:
        behind = timers_behind(parts.disk, paths.root, end_offset)
    except DiskError:
        raise
    except StoreError as error:
        LOG.warning("%s: the timer files were not compared with the log: %s", paths.root, error)
        return
    if behind.units:
        LOG.warning("%s: %d timers point behind the end of the log: the timer files are rebuilt", paths.root, behind.units)
        files = LogFiles(parts.disk, LogPaths.parse(parts.disk, paths.commit_log).folders)
        rebuild_timers(parts.disk, paths, files, parts.queues.get(TIMER_TOPIC, 0), keeps=True)


def _check_dispatched(parts: StoreParts) -> None:
    """Assert what holds at the end of recovery."""
    limit = parts.dispatch_limit()
    assert parts.dispatcher.position >= limit or not parts.log.queue.files, "everything is dispatched"
    assert parts.queues.max_physical_offset() <= max(limit, parts.log.written_offset), "no queue points behind the log"


def _count_queues(parts: StoreParts, decided: OpeningFacts) -> None:
    """Set the sum of next offsets that later hints contain.

    After a clean stop the last hint has it, and a million queues need not be opened.
    """
    queues, end = parts.queues, decided.end
    if decided.checks_queues or len(queues) == 0:
        queues.next_total = queues.count()
    else:
        hint = read_hint(parts.disk, parts.paths.own)
        if hint and hint.next_total >= 0 and (hint.last_offset, hint.end_offset) == (end.last_offset, end.offset):
            queues.next_total = hint.next_total
    parts.dispatcher.report_reached()
