"""Plan and execute the recovery of a store folder that no process has open.

`apply` works in this order: copy what will be cut or overwritten into `brokerstore/`; repair the log; rebuild queues and index
that disagree with it; clamp consumer offsets that lie behind the end of their queue; open and close the store once, which
writes the checkpoint and removes the abort file. The abort file exists from the first change on, and tells whether the stop
before was clean, so an interrupted recovery can be repeated with the same result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from commitlog import CommitLog, LogPaths
from commitlog.layout import FILE_SIZE_DEFAULT, FOREVER_MS
from commitlog.walk import LogFiles, Piece
from storageio import REAL_DISK, Disk, DiskError, Kind, StoreCorrupt, StoreError, UnsupportedFormat, process_id, replace_file
from storageio.settings import settings_or_default
from storebytes.finding import Finding

from ..checkpoint import TIMES, Checkpoint, checkpoint_ahead
from ..compaction import compaction_findings
from ..config import StoreConfig
from ..folder import FolderFacts
from ..paths import OWN_FOLDER
from ..recovery.clamp_offsets import clamp_offsets
from ..recovery.log_end import clean_stop_ms, cut_tail, keep
from ..recovery.witnesses import UnplacedClaim, claims, is_cut_tail, unplaced_claims
from ..write.ring import RING_NAME, restore
from .backups import keep_file
from .batch_cross_check import NO_NUMBERS
from .comparison import Comparison
from .cross_check import NO_FOLDER, OF_THE_LOG
from .damage import MISSING_END, Hole, Survey, survey
from .excluded_topics import excluded_topics, with_batch_queues
from .fillers import fill
from .misplaced_sidecars import move_sidecars, plan_sidecars, strange_sidecars
from .named_messages import NamedMessages, reach_of
from .rebuild import INDEX, QUEUES
from .rebuild_batch import batch_disagreements, cut_batch, rebuild_batch
from .rebuild_timers import has_timers, plan_timers, rebuild_timers
from .repair_config import add_topics, plan_config, restore_config, unknown_topics
from .repair_files import make_files, plan_files, repair_files
from .store_queues import queues_kind
from .symlinks import refuse_links

BATCH = "batchconsumequeue"


FILLERS_SEEN = " (consumers with a client of RocketMQ 5 get nothing for them, others an empty message)"

_ADVICE = {  # kinds of problems that no step repairs, and what a person can do about them
    OF_THE_LOG: (
        "if a log file is one of another store, put the right one in its place, or move it away: recover then shows what is "
        "lost; if not, the store can be used as it is"
    ),
    NO_FOLDER: "only the log has these messages, in no queue: brokerstore export reads them; the store can be used as it is",
    NO_NUMBERS: "consumers get this record only if its queue has its unit, which recover keeps; the store can be used as it is",
}
_RESTORE = "put copies of the files of this queue in their place: the messages of a compacted topic may be nowhere else"


class Choice(Enum):
    """What to do about damage to safely stored data."""

    REFUSE = "refuse"  # make a plan, change nothing
    SKIP = "skip-bad"  # close holes with filler records and keep all later records
    TRUNCATE = "truncate"  # end the log at the first hole, as RocketMQ does


class Cost(NamedTuple):
    """What one choice loses."""

    messages_lost: int
    lost_by_queue: dict[str, int]  # by `topic/queue`; a message in several queues counts in each
    bytes_lost: int  # bytes of the log that are cut, or replaced by filler records
    offsets_set_back: int  # consumer offsets beyond the new end of their queue


@dataclass
class Plan:
    """What recovery would do or has done. Offsets are physical."""

    root: str
    was_clean: bool
    is_damaged: bool
    choice: str
    valid_end: int = 0
    records_kept: int = 0
    records_dropped: int = 0
    bytes_cut: int = 0
    actions: list[str] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)
    force_reasons: list[str] = field(default_factory=list)  # files that may point behind the cut and are not changed
    is_forced: bool = False
    costs: dict[str, Cost] = field(default_factory=dict)  # by choice, where there is one
    unrepaired: list[str] = field(default_factory=list)  # what no step repairs, and what a person can do about it

    @property
    def needs_force(self) -> bool:
        """Return whether `apply` changes nothing without `force`."""
        return bool(self.force_reasons) and not self.is_forced

    @property
    def needs_choice(self) -> bool:
        """Return whether `apply` needs a choice other than `REFUSE` before it changes anything."""
        return self.is_damaged and self.choice == Choice.REFUSE.value

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a dictionary for JSON."""
        costs = {choice: cost._asdict() for choice, cost in self.costs.items()}
        facts = {name: value for name, value in asdict(self).items() if name != "unrepaired"}  # it is among `problems`
        return facts | {"costs": costs, "needs_choice": self.needs_choice, "needs_force": self.needs_force}


class Compared(NamedTuple):
    """How queues and index differ from the log."""

    wrong: dict[str, list[dict[str, Any]]]  # what a rebuild repairs, by kind of file
    unrepaired: list[Finding]  # of the kinds of `_ADVICE`
    unknown_topics: dict[str, int]  # numbers of queues, of topics that the table lacks
    lost_by_queue: dict[str, int]  # messages that queues name where the log has others


class Seen(NamedTuple):
    """The result of inspecting a folder, for the repair that follows."""

    plan: Plan
    found: Survey
    compared: Compared
    has_sound_files: bool  # no log file is missing, a stray or of a wrong size
    has_sound_log: bool  # sound files, and neither a hole nor a tail
    rebuilds_timers: bool


def _repaired(findings: list[Finding]) -> list[dict[str, Any]]:
    return [finding.as_dict() for finding in findings if finding.kind not in _ADVICE]


def _unrepaired(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.kind in _ADVICE]


def _plan_derived(wrong: dict[str, list[dict[str, Any]]], plan: Plan) -> None:
    """Add the derived files that disagree with the log to the plan."""
    for name, problems in wrong.items():
        if problems:
            plan.actions.append(f"rebuild {name}: {len(problems)} disagreements with the log")
            plan.problems += problems[:100]


class Recovery:
    """Inspects one store folder and, with `apply`, repairs it."""

    def __init__(
        self, root: str, choice: Choice = Choice.REFUSE, config: StoreConfig | None = None, disk: Disk = REAL_DISK, *,
        keep_backup: bool = True, follow_links: bool = False, force: bool = False,
        progress: Callable[[int], None] | None = None, facts: FolderFacts | None = None,
    ) -> None:  # fmt: skip
        """Open the folder read-only.

        `force` truncates the log even where compacted topics or pop consumers' state, which are not changed, may point behind
        the cut. It also treats a record of an unknown version as damage if everything but its magic number is a whole record of
        a known version. Raises `UnsupportedFormat` for a folder that is not fully understood, for the plan as for `apply`.
        """
        self._given = settings_or_default(config, StoreConfig, "config")
        facts = self.facts = FolderFacts(root, disk, self._given.store_path_commit_log) if facts is None else facts
        facts.refuse_unsupported(looks_at_log=False, has_rocksdb=facts.is_rocksdb)
        self.root = root
        self.choice = choice
        self.disk = disk
        self.keep_backup = keep_backup
        self.force = force
        self.follow_links = follow_links  # whether to write to a log that is a symlink out of the store
        self.progress = progress
        self.report_path: str | None = None  # path of the report that `apply` wrote
        self.config = facts.with_sizes(self._given, guesses=True)
        self.places = facts.paths
        self.queues = queues_kind(facts)(facts, self.config, progress, keeps=keep_backup)
        self.was_clean = facts.was_clean

    # Planning

    def plan(self) -> Plan:
        """Scan the whole log, compare queues and index with it, and return the plan."""
        return self._look().plan

    def _look(self) -> Seen:
        found, compared = self._inspect()
        wrong = compared.wrong
        plan = Plan(self.root, self.was_clean, found.is_damaged, self.choice.value, is_forced=self.force)
        plan.problems = [finding.as_dict() for finding in found.findings]
        plan.problems += [hole.finding.as_dict() for hole in found.holes]
        plan_files(self._files(), plan.actions)
        has_sound_files = not plan.actions
        paths = LogPaths.parse(self.disk, self.places.commit_log)
        present = paths.present
        plan.actions += [
            f"make the missing folder {os.path.basename(folder)}" for folder in paths.folders if folder not in present
        ]
        self._plan_log(found, plan)
        has_sound_log = has_sound_files and not found.holes and found.tail is None
        if has_sound_log:
            self._plan_unplaced(found, compared.lost_by_queue, plan)
        plan_sidecars(self.disk, self.places.own, plan.actions)
        plan.problems += [finding.as_dict() for finding in strange_sidecars(self.disk, self.places.own)]
        _plan_derived(wrong, plan)
        timers = self._plan_timers(plan.valid_end, found)
        if timers is not None:
            plan.actions.append(f"rebuild the timer files: {timers}")
        last_ms = found.last_store_timestamp_ms
        if has_sound_log:
            last_ms = max(last_ms, self._files().latest_ms())
        elif found.times and self._cut_at(found) == found.holes[0].start:
            last_ms = found.times[0]
        if checkpoint_ahead(self.disk, self.root, last_ms):
            plan.actions.append(f"set the checkpoint back to the last record's time, {last_ms}")
        if self.facts.checkpoint.is_damaged:
            plan.actions.append("write the checkpoint anew")
        plan_config(self.disk, self.root, plan.actions)
        if compared.unknown_topics:
            count, names = len(compared.unknown_topics), ", ".join(compared.unknown_topics)
            topics = "topic" if count == 1 else "topics"
            plan.actions.append(f"add {count} {topics} to config/topics.json, with default settings: {names}")
        if self._has_ring():
            plan.actions.append("bring the records that are only in the ring to the log")
        if has_sound_log and not wrong[QUEUES] and not wrong[BATCH]:
            plan.actions += [f"set back {line}" for line in self.queues.offsets_beyond()]
        for kind, advice in _ADVICE.items() if has_sound_log else ():
            self._plan_unrepaired([finding for finding in compared.unrepaired if finding.kind == kind], advice, plan)
        compacted = compaction_findings(self.disk, self.root, is_in_use=False)
        self._plan_unrepaired([finding for finding in compacted if finding.is_problem], _RESTORE, plan)
        if not self.was_clean:
            unused = self.queues.unused_files()
            plan.actions += [f"delete queue files without a unit: {', '.join(unused)}"] if unused else []
        if self.facts.abort_file.is_present:
            plan.actions.append("take the abort file away")
        return Seen(plan, found, compared, has_sound_files, has_sound_log, timers is not None)

    def _plan_unrepaired(self, findings: list[Finding], advice: str, plan: Plan) -> None:
        """Add problems that no step repairs."""
        plan.problems += [finding.as_dict() for finding in findings]
        if findings:
            first = findings[0]
            plan.unrepaired.append(f"{first.file}: {first.expected} expected, found {first.found}: {advice}")

    def _has_ring(self) -> bool:
        """Return whether a killed process left records in the ring file that it had not committed to the log files."""
        ring = self.disk.stat(os.path.join(self.places.own, RING_NAME))
        return not self.was_clean and ring is not None and ring.kind is Kind.FILE

    def _restore_ring(self) -> int:
        """Copy the records of the ring file into the log and return their number."""
        if not self._has_ring():
            return 0
        log = self._log(writable=True)
        try:
            return restore(self.disk, self.places.own, log, is_torn=True)
        finally:
            log.close()

    def _files(self) -> LogFiles:
        paths = LogPaths.parse(self.disk, self.places.commit_log)
        return LogFiles(self.disk, paths.present, self.config.mapped_file_size_commit_log)

    def _safe_ms(self) -> int:
        """Return the store time in milliseconds up to which every record was synced; no limit after a clean stop."""
        if self.was_clean:
            return FOREVER_MS
        checkpoint = Checkpoint(self.disk, self.root)
        try:
            stopped_ms = clean_stop_ms(self.facts.clean_stop, self._files().message_at)
            return max(stopped_ms, checkpoint.values.log_timestamp_ms)
        finally:
            checkpoint.close()

    def _inspect(self) -> tuple[Survey, Compared]:
        """Survey the log and compare queues and index with it, in one pass."""
        with Comparison(self.disk, self.places, self.config, self._files()) as comparison:
            comparison.load(every_queue=False)
            found = self._survey(comparison.take)
            return found, self._disagreements(comparison)

    def _survey(self, take: Callable[[Piece], None] | None = None) -> Survey:
        files, safe_ms, clean_stop = self._files(), self._safe_ms(), self.facts.clean_stop
        is_batch = with_batch_queues(self.disk, self.root)

        def reach(found: Survey, named: NamedMessages | None) -> int:
            if self._is_cut_tail(found, named):
                return -1
            told_end = clean_stop.end_offset if clean_stop is not None else -1
            file_size = files.file_size_bytes or FILE_SIZE_DEFAULT
            return reach_of(
                claims(self.root, named, found.last_offset, clean_stop), named, found.log_end.offset, told_end, file_size
            )

        def look(named: NamedMessages | None, progress: Callable[[int], None] | None) -> Survey:
            return survey(
                files, safe_ms, named, progress, self.is_ignored(), is_batch=is_batch, force=self.force,
                take=take if named is not None else None, reach_of=lambda found: reach(found, named),
            )  # fmt: skip

        with self.queues.named() as named:
            try:
                return look(named, self.progress)
            except (DiskError, UnsupportedFormat):
                raise
            except StoreError:  # unreadable queue files: survey the log alone
                return look(None, None)

    def _is_cut_tail(self, found: Survey, named: NamedMessages | None) -> bool:
        """Return whether an earlier recovery cut the tail, so that no message of it was lost since the clean stop."""
        if not self.was_clean or found.tail is None or found.holes or found.findings:
            return False
        with closing(self._log(writable=False)) as log:
            return is_cut_tail(self.facts, named, log, found.log_end)

    def _plan_log(self, found: Survey, plan: Plan) -> None:
        """Add the repair of holes and tail to the plan."""
        cut = self._cut_at(found)
        plan.valid_end = found.end if cut is None else cut
        plan.records_kept = found.records
        if found.holes:
            plan.costs = {Choice.SKIP.value: self._cost_of_filling(found), Choice.TRUNCATE.value: self._cost_of_cutting(found)}
        if found.holes and cut == found.holes[0].start:
            cost = plan.costs[Choice.TRUNCATE.value]
            plan.records_kept, plan.records_dropped = found.records_after[0], cost.messages_lost
            plan.bytes_cut = cost.bytes_lost
            dropped = found.records - found.records_after[0]
            what = f"cut the log at {cut}, dropping {dropped} records behind it"
            if not dropped and not found.is_damaged:
                what = f"cut the crash tail at {cut}: {found.holes[0].finding.kind}"
            plan.actions.append(f"{what}; messages lost: {cost.messages_lost}")
        elif found.holes and self._fills(found):
            plan.records_dropped = sum(found.lost_counts)
            for hole, lost in zip(found.holes, found.lost_counts, strict=True):
                plan.actions.append(
                    f"close the hole {hole.start}..{hole.stop} with filler records for {lost} lost messages{FILLERS_SEEN}"
                )
        if found.tail is not None:
            plan.actions.append(f"cut the crash tail at {found.tail.start}: {found.tail.finding.kind}")
            plan.bytes_cut += found.tail.file_end - found.tail.start
        behind = [os.path.basename(file.path) for file in self._files().files if cut is not None and file.start_offset >= cut]
        if behind:
            plan.actions.append(f"delete the log files behind the cut: {', '.join(behind)}")
        if self.choice is Choice.TRUNCATE and cut is not None:
            plan.force_reasons = self.facts.cut_refusals()

    def _plan_unplaced(self, found: Survey, dangling: dict[str, int], plan: Plan) -> None:
        """Ask for a choice if messages were lost, of which nothing tells where they were in the log.

        `dangling` has the messages that queues name where the log has others.
        """
        lost: list[UnplacedClaim] = []
        if self.was_clean:
            with closing(self._log(writable=False)) as log, self.queues.named() as named:
                lost += unplaced_claims(self.facts, named, log, found.log_end)
        if dangling:  # a crash may leave units behind the end of the log, but not where it has other records
            lost.append(UnplacedClaim(self.places.queues, "the messages that queues name", {}, 0))
        if not lost:
            return
        by_queue: dict[str, int] = {}
        for one in lost:
            by_queue |= {name: max(number, by_queue.get(name, 0)) for name, number in one.lost_by_queue.items()}
        by_queue |= {name: number + by_queue.get(name, 0) for name, number in dangling.items()}
        cost = Cost(sum(by_queue.values()) or 1, by_queue, 0, sum(one.offsets for one in lost))
        plan.is_damaged, plan.costs = True, {Choice.TRUNCATE.value: cost}
        plan.records_dropped = cost.messages_lost if self.choice is not Choice.REFUSE else 0
        plan.problems += [
            Finding(one.file, 0, MISSING_END, one.names, f"the log ends at {found.end}").as_dict() for one in lost
        ]
        plan.actions.append(f"end the log at {found.end}; messages lost: at least {cost.messages_lost}")

    def _cost_of_filling(self, found: Survey) -> Cost:
        size = sum(max(0, min(hole.stop, found.end) - hole.start) for hole in found.holes)
        return Cost(sum(found.lost_counts), found.lost_by_queue, size, 0)

    def _cost_of_cutting(self, found: Survey) -> Cost:
        """Return the cost of ending the log at the first hole."""
        cut = found.holes[0].start
        lost = sum(found.lost_counts) + found.records - found.records_after[0]
        ends = found.ends_if_cut
        beyond = clamp_offsets(
            self.disk, self.places.config, lambda topic, queue_id: ends.get((topic, queue_id), (0, 0))[0], None
        )  # fmt: skip
        torn = [hole.file_end for hole in found.holes if hole.stop > found.end and hole.finding.kind != MISSING_END]
        return Cost(lost, found.cut_by_queue, max(found.end, *torn, cut) - cut, len(beyond))

    def _cut_at(self, found: Survey) -> int | None:
        """Return the offset at which to cut the log, or None if it keeps its end."""
        tail = found.tail.start if found.tail is not None else None
        if not found.holes:
            return tail
        if self._fills(found):
            return tail if found.end_with_holes == found.end else found.end_with_holes
        if self.choice is Choice.SKIP or self.choice is Choice.TRUNCATE or not found.is_damaged:
            return found.holes[0].start
        return None

    def _fills(self, found: Survey) -> bool:
        """Return whether holes are filled; not what only a crash took from the end of the log, as RocketMQ cuts there."""
        if self.choice is not Choice.SKIP or not found.holes:
            return False
        return found.is_damaged or found.holes[0].start < found.end

    def _compared(self) -> Compared:
        """Compare queues and index with a log that was repaired."""
        with Comparison(self.disk, self.places, self.config, self._files()) as comparison:
            comparison.load(every_queue=False)
            comparison.walk(self.progress)
            return self._disagreements(comparison)

    def _disagreements(self, comparison: Comparison) -> Compared:
        """Return the problems of queues and index; an unreadable folder counts as one problem."""
        found = batch_disagreements(self._files(), self.disk, self.places)
        wrong: dict[str, list[dict[str, Any]]] = {QUEUES: [], INDEX: [], BATCH: _repaired(found)}
        try:
            result = comparison.finish()
            for error in result.errors():
                if not isinstance(error, StoreCorrupt):
                    raise error
        except (DiskError, UnsupportedFormat):
            raise
        except StoreError as error:
            problem = {
                "file": self.root,
                "offset": 0,
                "kind": "unreadable",
                "expected": "queues and index",
                "found": str(error),
            }
            unread = wrong | {QUEUES: [problem], INDEX: [problem]}
            return Compared(unread, _unrepaired(found), {}, {})
        found += result.problems
        of_index = [finding for finding in result.problems if finding.file.startswith(self.places.index)]
        of_queues, lost_by_queue = self.queues.disagreements(self._files(), result)
        wrong |= {INDEX: _repaired(of_index), QUEUES: _repaired(of_queues)}
        topics = unknown_topics(self.disk, self.places, result.queue_keys())
        return Compared(wrong, _unrepaired(found), topics, lost_by_queue)

    def is_ignored(self) -> Callable[[str], bool]:
        """Return a predicate for topics that get no ordinary queue (see `excluded_topics`)."""
        return excluded_topics(self.disk, self.root)

    # Repair

    def apply(self) -> Plan:
        """Execute the plan and return it.

        Changes nothing while a choice or `force` is missing, or if there is nothing to do. Raises `StoreLocked` while another
        process has the store open for writing.
        """
        lock = self.disk.lock(self.places.lock)
        try:
            seen = self._look()
            plan = seen.plan
            if plan.needs_choice or plan.needs_force or not plan.actions:
                return plan
            self.facts.refuse_unknown_shape(self._given)
            if not self.follow_links:
                refuse_links(self.disk, self.places)
            self.facts.abort_file.create(process_id(), is_after_clean_stop=self.was_clean)
            move_sidecars(self.disk, self.places.own)
            if not seen.has_sound_files:  # first, because the ring needs a log that can be opened
                repair_files(self._files(), self.disk, self.root, keep_backup=self.keep_backup)
            if self._restore_ring():
                seen = self._look()  # the log has grown since the first inspection
            restore_config(self.disk, self.root, keep_backup=self.keep_backup)
            if seen.has_sound_log:  # nothing that was inspected changed since
                compared, end = seen.compared, seen.found.end
            else:
                self._repair_log(seen.found if seen.has_sound_files else self._survey())
                compared, end = self._compared(), None
            self._rebuild_wrong(compared.wrong, end)
            if seen.rebuilds_timers:
                self._rebuild_timers(plan)
            cut_batch(self.disk, self.places, self._files().end().offset, keeps=self.keep_backup)
            self._set_checkpoint_back()
            if compared.unknown_topics:
                add_topics(self.disk, self.places, compared.unknown_topics)
            self.facts.abort_file.create(process_id())  # the opening checks everything, as after a crash
            set_back = self.queues.settle()
        finally:
            lock.release()
        set_back += self.queues.reopen()
        plan.actions += [f"set back {line}" for line in set_back if f"set back {line}" not in plan.actions]
        self._report(plan)
        return plan

    def _repair_log(self, found: Survey) -> None:
        """Fill the holes, or cut the log at the first of them; then cut the tail."""
        fills = self._fills(found)
        if fills:
            make_files(self._files(), self.disk, self.places.commit_log, [hole.start for hole in found.holes])
        log = self._log(writable=True)
        try:
            cut = self._cut_at(found)
            if fills:
                for number, hole in enumerate(found.holes):
                    self._fill(log, hole, found, found.times[number])
            if cut is not None:
                cut_tail(log, cut, self.disk, self.root, keep_backup=self.keep_backup)
                log.queue.truncate(cut)
        finally:
            log.close()

    def _log(self, *, writable: bool) -> CommitLog:
        paths = LogPaths.parse(self.disk, self.places.commit_log)
        return CommitLog(paths, disk=self.disk, file_size_bytes=self.config.mapped_file_size_commit_log, writable=writable)

    def _fill(self, log: CommitLog, hole: Hole, found: Survey, store_ms: int) -> None:
        """Back up the hole's bytes, write the filler records, and sync."""
        file = log.queue.find(hole.start)
        assert file is not None, "a hole lies in a file"
        at, stop = hole.start - file.start_offset, hole.stop - file.start_offset
        if self.keep_backup:
            keep(self.disk, self.root, hole.start, file.view[at:stop])
        lost = found.lost.get(hole.start, [])
        data, _ = fill(hole.start, hole.stop - hole.start, lost, store_ms or 1, to_file_end=hole.stop == file.end_offset)
        file.write(at, data)
        file.set_positions(file.size_bytes)
        file.flushed = 0
        file.flush()

    def _rebuild_wrong(self, wrong: dict[str, list[dict[str, Any]]], end: int | None) -> None:
        """Rebuild the queues or index that disagree with the log.

        The log is whole by now. `end` is where it ends, or None if that is not known.
        """
        if wrong[BATCH]:
            rebuild_batch(self._files(), self.disk, self.places, keeps=self.keep_backup)
        what = {name for name, problems in wrong.items() if problems} - {BATCH}
        if not what:
            return
        end = self._survey().end if end is None else end
        self.queues.rebuild(what, self._files(), end)

    def _plan_timers(self, end: int, found: Survey) -> str | None:
        """Return why the timer files need a rebuild, None if they do not. Holes may have held copies of delivered timers."""
        queue_end = None
        try:
            with self.queues.timers() as queue:
                queue_end = queue.max_offset if queue is not None else None
        except DiskError:
            raise
        except StoreError:
            pass  # the queue is rebuilt
        reason = plan_timers(self.disk, self.places, self._files(), end, queue_end)
        has_hole = self._fills(found) or any(hole.start < found.end for hole in found.holes)
        if reason is None and has_hole and has_timers(self.disk, self.root):
            return "records of timers may be among those that are lost"
        return reason

    def _rebuild_timers(self, plan: Plan) -> None:
        """Rebuild the timer files from the repaired log and add the result to the plan."""
        with self.queues.timers() as queue:
            made = rebuild_timers(self.disk, self.places, self._files(), queue, keeps=self.keep_backup)
        plan.actions.append(f"timers rebuilt: {made.pending} pending, {made.overdue} of them overdue")

    def _set_checkpoint_back(self) -> None:
        """Lower checkpoint times to the log's last record; rewrite a damaged or short checkpoint completely."""
        last_ms = self._files().latest_ms()
        found = self.facts.checkpoint
        if not found.is_damaged and all(getattr(found.values, name) <= last_ms for name in TIMES):
            return
        if self.keep_backup:
            keep_file(self.disk, self.root, self.facts.checkpoint_path)
        checkpoint = Checkpoint(self.disk, self.root, writable=True)
        try:
            for name in TIMES:
                setattr(checkpoint, name, min(getattr(checkpoint, name), last_ms))
            checkpoint.flush()
        finally:
            checkpoint.close()

    def _report(self, plan: Plan) -> None:
        """Write the executed plan as JSON into the store's `brokerstore/` folder."""
        folder = os.path.join(self.root, OWN_FOLDER)
        self.disk.make_folder(folder)
        self.report_path = os.path.join(folder, f"recover-{self.disk.now_ms()}.json")
        replace_file(self.disk, self.report_path, json.dumps(plan.as_dict(), indent=1).encode())
