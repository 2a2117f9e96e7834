"""Plan the recovery of a store folder that no process has open, and apply the plan.

The steps run in the order in which they are shown: copy what will be cut or overwritten into `brokerstore/`; repair the log;
rebuild queues and index that disagree with it; clamp consumer offsets that lie behind the end of their queue; open and close
the store once, which writes the checkpoint and removes the abort file.  The abort file exists from the first change on, and
tells whether the stop before was clean, so an interrupted recovery can be repeated with the same result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from commitlog import CommitLog, LogPaths, MappedFile
from commitlog.layout import FILE_SIZE_DEFAULT, FOREVER_MS
from commitlog.walk import LogFiles, Piece
from storageio import (
    REAL_DISK,
    Disk,
    DiskError,
    FolderLock,
    Kind,
    StoreCorrupt,
    StoreError,
    UnsupportedFormat,
    process_id,
    replace_file,
)
from storageio.settings import settings_or_default
from storebytes.finding import FINDINGS_MAX, Finding
from storebytes.plan import Cost, Plan, Run, Step, count_text

from ..abort_file import FILE_NAME as ABORT
from ..checkpoint import FILE_NAME as CHECKPOINT_NAME
from ..checkpoint import TIMES, Checkpoint
from ..clean_stop import clean_stop_ms
from ..compaction import compaction_findings
from ..config import StoreConfig
from ..derive.cross_check import NO_FOLDER, OF_THE_LOG
from ..derive.kinds.batch import NO_NUMBERS, batch_disagreements, cut_batch, rebuild_batch
from ..derive.rebuild import INDEX, QUEUES
from ..dledger import CHECKPOINT as PEER_CHECKPOINT
from ..dledger import INDEX as ENTRY_INDEX
from ..dledger import EntryIndex, checkpoint_findings, entry_of, peer_folder, read_peer, rewrite_index, write_checkpoint
from ..excluded_topics import excluded_topics, with_batch_queues
from ..folder import DLEDGER_TEXT, FolderFacts
from ..paths import OWN_FOLDER
from ..recovery.clamp_offsets import clamp_offsets
from ..recovery.log_end import cut_tail, keep_cut, put_aside
from ..recovery.named_messages import NamedMessages, reach_of
from ..recovery.witnesses import UnplacedClaim, claims, is_cut_tail, unplaced_claims
from ..swap import keep_file
from ..timers.rebuild_timers import has_timers, plan_timers, rebuild_timers
from ..unreadable import unreadable
from ..write.ring import RING_NAME, restore
from .comparison import Comparison
from .damage import MISSING_END, Survey, survey
from .fillers import fill
from .lost_messages import Hole
from .misplaced_sidecars import sidecar_steps, strange_sidecars
from .repair_config import add_topics, config_steps, unknown_topics
from .repair_files import file_steps, make_files
from .rocksdb_check import pop_findings
from .store_queues import queues_kind
from .symlinks import refuse_links

LOG, BATCH, TIMER_LOG = "commitlog", "batchconsumequeue", "timerlog"


FILLERS_SEEN = " (consumers with a client of RocketMQ 5 get nothing for them, others an empty message)"

_ADVICE = {  # kinds of problems that no step repairs, and what a person can do about them
    OF_THE_LOG: (
        "if a log file is one of another store, put the right one in its place, or move it away: recover then shows what is "
        "lost; if not, the store can be used as it is"
    ),
    NO_FOLDER: "only the log has these messages, in no queue: brokerstore export reads them; the store can be used as it is",
    NO_NUMBERS: "consumers get this record only if its queue has its unit, which recover keeps; the store can be used as it is",
}
_LOST_POP = "put a copy in its place; without the folder a broker delivers nothing again that POP consumers had in hand"
_RESTORE = "put copies of the files of this queue in their place: the messages of a compacted topic may be nowhere else"


class Choice(Enum):
    """What to do about damage to safely stored data."""

    REFUSE = "refuse"  # make a plan, change nothing
    SKIP = "skip-bad"  # close holes with filler records and keep all later records
    TRUNCATE = "truncate"  # end the log at the first hole, as RocketMQ does


@dataclass
class StorePlan(Plan):
    """The plan of one store. Offsets are physical."""

    was_clean: bool = True
    is_damaged: bool = False  # safely stored data is lost or unreadable, and a choice is needed
    choice: Choice = Choice.REFUSE
    is_forced: bool = False
    valid_end: int = 0
    bytes_cut: int = 0
    force_reasons: list[str] = field(default_factory=list)  # files that may point behind the cut and are not changed

    @property
    def needs_force(self) -> bool:
        """Return whether `apply` changes nothing without `force`."""
        return bool(self.force_reasons) and not self.is_forced

    @property
    def needs_choice(self) -> bool:
        """Return whether `apply` needs a choice other than `REFUSE` before it changes anything."""
        return self.is_damaged and self.choice is Choice.REFUSE

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON; the keys from `root` on are those of version 1."""
        plan = super().as_dict() | {
            "was_clean": self.was_clean,
            "is_damaged": self.is_damaged,
            "choice": self.choice.value,
            "valid_end": self.valid_end,
            "bytes_cut": self.bytes_cut,
            "force_reasons": self.force_reasons,
            "is_forced": self.is_forced,
            "needs_choice": self.needs_choice,
            "needs_force": self.needs_force,
        }
        return plan | {
            "root": self.path,
            "records_kept": self.messages_kept,
            "records_dropped": self.messages_lost,
            "actions": [step.text for step in self.steps],
            "problems": plan["findings"],
            "costs": plan["choices"],
        }


class Compared(NamedTuple):
    """How queues and index differ from the log."""

    wrong: dict[str, list[Finding]]  # what a rebuild repairs, by kind of file
    unrepaired: list[Finding]  # of the kinds of `_ADVICE`
    unknown_topics: dict[str, int]  # numbers of queues, of topics that the table lacks
    lost_by_queue: dict[str, int]  # messages that queues name where the log has others


def _repaired(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.kind not in _ADVICE]


def _take_both(comparison: Comparison, entries: EntryIndex, piece: Piece) -> None:
    comparison.take(piece)
    entries.take(piece)


def _unrepaired(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.kind in _ADVICE]


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
        facts.refuse_unsupported(reads_log=False, has_rocksdb=facts.is_rocksdb, has_dledger=True)
        if choice is Choice.SKIP and facts.contents.has_dledger_log:
            supported = "--truncate; another peer has the rest, and `brokerstore copy` reads it here"
            raise UnsupportedFormat("holes in", file=root, found=DLEDGER_TEXT, supported=supported)
        self.root = root
        self.choice = choice
        self.disk = disk
        self.keep_backup = keep_backup
        self.force = force
        self.follow_links = follow_links  # whether to write to a log that is a symlink out of the store
        self.progress = progress
        self.report_path: str | None = None  # path of the report that `apply` wrote
        self.config = facts.with_sizes(self._given, guesses=True)
        self.paths = facts.paths
        self.queues = queues_kind(facts)(facts, self.config, progress, keeps=keep_backup)
        self.was_clean = facts.was_clean
        self._found = Survey()  # what the plan was made from
        self._log_changed = False  # by a step since then
        self._lock: FolderLock | None = None

    # Planning

    def plan(self) -> StorePlan:
        """Scan the whole log, compare queues and index with it, and return the plan; without a needed choice it has no step."""
        found, compared, entries = self._inspect()
        self._found, self._log_changed = found, False
        plan = StorePlan(
            self.root, was_clean=self.was_clean, is_damaged=found.is_damaged, choice=self.choice, is_forced=self.force
        )  # fmt: skip
        plan.findings = [*found.findings, *(hole.finding for hole in found.holes)]
        sidecars = strange_sidecars(self.disk, self.paths.own)
        plan.steps += sidecar_steps(self.disk, self.paths.own, sidecars)
        plan.findings += sidecars
        files = list(file_steps(self._files(), self.disk, self.root, keep_backup=self.keep_backup))
        self._plan_files(files, plan)
        plan.steps += config_steps(self.disk, self.root, keep_backup=self.keep_backup)
        is_sound = not files and not found.holes and found.tail is None
        self._plan_log(found, plan)
        self._plan_entries(entries, plan)
        if is_sound:
            self._plan_unplaced(found, compared.lost_by_queue, plan)
            self._plan_unrepaired(compared, plan)
        self._plan_derived(compared, plan, is_sound=is_sound and not self._has_ring())
        self._plan_timers(found, plan)
        self._plan_checkpoint(found, plan, is_sound=is_sound)
        self._plan_offsets(plan, is_known=is_sound and not compared.wrong[QUEUES] and not compared.wrong[BATCH])
        compacted = compaction_findings(self.disk, self.root, is_in_use=False)
        self._leave([finding for finding in compacted if finding.is_problem], _RESTORE, plan)
        self._leave(list(pop_findings(self.disk, self.root)), _LOST_POP, plan)
        is_open = self.facts.abort_file.is_present
        if plan.needs_choice:
            plan.steps.clear()
        elif plan.steps or is_open:
            if plan.steps:
                # the abort file tells a second recovery whether the stop before this one was clean
                mark = partial(self.facts.abort_file.create, process_id(), is_after_clean_stop=self.was_clean)
                plan.steps.insert(0, Step("mark_unclean", ABORT, "a killed recovery is then repeated", mark))
            reason = "the store was not closed" if is_open else "the next start is one after a clean stop"
            plan.add("close_store", ABORT, reason, self._close_store)
        return plan

    def _plan_files(self, files: list[Step], plan: StorePlan) -> None:
        """Add the repair of log files and of the log's folders, and the records that only the ring has."""
        plan.steps += [step._replace(run=partial(self._change_log, step.run)) for step in files]
        paths = LogPaths.parse(self.disk, self.paths.commit_log)
        missing = set(paths.folders) - set(paths.present)
        for folder in (folder for folder in paths.folders if folder in missing):
            plan.add("create_folder", os.path.basename(folder), "it is missing", partial(self.disk.make_folder, folder))
        if self._has_ring():
            reason = "a killed process left records only there"
            plan.add("restore_ring", f"{OWN_FOLDER}/{RING_NAME}", reason, partial(self._change_log, self._restore_ring))

    def _plan_derived(self, compared: Compared, plan: StorePlan, *, is_sound: bool) -> None:
        """Add the rebuild of what disagrees with the log; a repaired log has to be compared once more."""
        wrong = {name: findings for name, findings in compared.wrong.items() if findings}
        for findings in wrong.values():
            plan.findings += findings[:FINDINGS_MAX]
        differences = {name: f"{count_text(len(found), 'disagreement')} with the log" for name, found in wrong.items()}
        if not is_sound:
            reason = ", ".join(f"{name}: {text}" for name, text in differences.items())
            file = f"{QUEUES} and {INDEX}"
            plan.add("rebuild_differing", file, reason or "the log changes", self._rebuild_differing)
            return
        if compared.unknown_topics:  # before the queues exist, which would tell a killed recovery that no topic is missing
            names = ", ".join(compared.unknown_topics)
            reason = f"it lacks {count_text(len(compared.unknown_topics), 'topic')}, which get default settings: {names}"
            plan.add(
                "add_topics", "config/topics.json", reason, partial(add_topics, self.disk, self.paths, compared.unknown_topics)
            )
        if BATCH in wrong:
            plan.add("rebuild", BATCH, differences.pop(BATCH), partial(self._rebuild, {BATCH}, plan.valid_end))
        if differences:  # one pass over the log for both
            run = partial(self._rebuild, set(differences), plan.valid_end)
            plan.add("rebuild", " and ".join(differences), ", ".join(differences.values()), run)

    def _plan_unrepaired(self, compared: Compared, plan: StorePlan) -> None:
        """Add what no step repairs of queues and index."""
        for kind, advice in _ADVICE.items():
            self._leave([finding for finding in compared.unrepaired if finding.kind == kind], advice, plan)

    def _leave(self, findings: list[Finding], advice: str, plan: StorePlan) -> None:
        """Add findings that no step repairs; the first shows where to look."""
        plan.findings += findings
        plan.leave(findings[:1], advice)

    def _plan_checkpoint(self, found: Survey, plan: StorePlan, *, is_sound: bool) -> None:
        last_ms = found.last_store_timestamp_ms
        if is_sound:
            last_ms = max(last_ms, self._files().latest_ms())
        elif found.times and self._cut_at(found) == found.holes[0].start:
            last_ms = found.times[0]
        checkpoint = self.facts.checkpoint
        is_ahead = any(getattr(checkpoint.values, name) > last_ms for name in TIMES)
        is_behind_log = 0 < checkpoint.values.logics_physical_offset >= plan.valid_end
        if checkpoint.is_damaged or is_behind_log or (is_ahead and (last_ms or plan.steps)):  # all may have expired
            reason = "it is damaged" if checkpoint.is_damaged else f"it is later than the last record, of {last_ms}"
            plan.add("write_checkpoint", CHECKPOINT_NAME, reason, self._set_checkpoint_back)

    def _plan_offsets(self, plan: StorePlan, *, is_known: bool) -> None:
        """Add the offsets that are beyond the end of their queue, and queue files behind it.

        `is_known` tells that the queues stay as they are; else the ends are known when they are rebuilt.
        """
        if is_known:
            if lines := self.queues.clamp(saves=False):
                reason = f"beyond the end of the queue: {', '.join(lines)}"
                plan.add("clamp_offsets", "config", reason, self._clamp_offsets, Cost(offsets_set_back=len(lines)))
        else:
            reason = "offsets may be beyond the new end of their queue"
            plan.add("clamp_offsets", "config", reason, self._clamp_offsets)
        unused = [] if self.was_clean else self.queues.unused_files()
        if unused:
            reason = f"{count_text(len(unused), 'file')} without a unit: {', '.join(unused)}"
            plan.add("delete_unused", QUEUES, reason, self.queues.delete_unused)

    def _has_ring(self) -> bool:
        """Return whether a killed process left records in the ring file that it had not committed to the log files."""
        ring = self.disk.stat(os.path.join(self.paths.own, RING_NAME))
        return not self.was_clean and ring is not None and ring.kind is Kind.FILE

    def _restore_ring(self) -> str:
        """Copy the records of the ring file into the log."""
        with closing(self._log(writable=True)) as log:
            return count_text(restore(self.disk, self.paths.own, log, is_torn=True), "record")

    def _files(self) -> LogFiles:
        paths = LogPaths.parse(self.disk, self.paths.commit_log)
        return LogFiles(self.disk, paths.present, self.config.mapped_file_size_commit_log)

    def _safe_ms(self) -> int:
        """Return the store time in milliseconds up to which every record was synced; no limit after a clean stop."""
        if self.was_clean:
            return FOREVER_MS
        stopped_ms = clean_stop_ms(self.facts.clean_stop, self._files().message_at)
        return max(stopped_ms, self.facts.checkpoint.values.log_timestamp_ms)

    def _inspect(self) -> tuple[Survey, Compared, EntryIndex | StoreCorrupt | None]:
        """Survey the log and compare queues, index and the index of a DLedger log with it, in one pass."""
        entries = self._entry_index()
        with Comparison(self.disk, self.paths, self.config, self._files()) as comparison:
            comparison.load(every_queue=False)
            if not isinstance(entries, EntryIndex):
                return self._survey(comparison.take), self._disagreements(comparison), entries
            with entries:
                found = self._survey(partial(_take_both, comparison, entries))
                entries.finish()
            return found, self._disagreements(comparison), entries

    def _entry_index(self) -> EntryIndex | StoreCorrupt | None:
        """Open the index of a DLedger log; None for any other log."""
        folder = peer_folder(self.facts)
        try:
            return EntryIndex(self.disk, folder) if folder is not None else None
        except StoreCorrupt as error:
            return error

    def _survey(self, take: Callable[[Piece], None] | None = None) -> Survey:
        files, safe_ms, clean_stop = self._files(), self._safe_ms(), self.facts.clean_stop
        is_batch = with_batch_queues(self.disk, self.root)

        def reach(found: Survey, named: NamedMessages | None) -> int:
            if self._is_cut_tail(found, named):
                return -1
            named_end = clean_stop.end_offset if clean_stop is not None else -1
            file_size = files.file_size_bytes or FILE_SIZE_DEFAULT
            return reach_of(
                claims(self.root, named, found.last_offset, clean_stop), named, found.log_end.offset, named_end, file_size
            )

        def examine(named: NamedMessages | None, progress: Callable[[int], None] | None) -> Survey:
            return survey(
                files, safe_ms, named, progress, self.is_ignored(), is_batch=is_batch, force=self.force,
                take=take if named is not None else None, reach_of=lambda found: reach(found, named),
            )  # fmt: skip

        with self.queues.named() as named:
            try:
                return examine(named, self.progress)
            except (DiskError, UnsupportedFormat):
                raise
            except StoreError:  # unreadable queue files: survey the log alone
                return examine(None, None)

    def _is_cut_tail(self, found: Survey, named: NamedMessages | None) -> bool:
        """Return whether an earlier recovery cut the tail, so that no message of it was lost since the clean stop."""
        if not self.was_clean or found.tail is None or found.holes or found.findings:
            return False
        with closing(self._log(writable=False)) as log:
            return is_cut_tail(self.facts, named, log, found.log_end)

    def _plan_log(self, found: Survey, plan: StorePlan) -> None:
        """Add the repair of holes and tail to the plan."""
        cut, tail = self._cut_at(found), found.tail
        plan.valid_end = found.end if cut is None else cut
        plan.messages_kept = found.records
        if found.holes:
            filled, cut_cost = self._cost_of_filling(found), self._cost_of_cutting(found)
            plan.choices = {Choice.SKIP.value: filled, Choice.TRUNCATE.value: cut_cost}
            if self.facts.contents.has_dledger_log:
                del plan.choices[Choice.SKIP.value]
            if cut == found.holes[0].start:
                plan.messages_kept, plan.messages_lost = found.records_after[0], cut_cost.messages_lost
                plan.bytes_cut, plan.lost_by_queue = cut_cost.bytes_lost, cut_cost.lost_by_queue
                reason = f"at {cut}: {found.holes[0].finding.kind}"
                plan.add("cut_log", LOG, reason + self._files_behind(cut), self._cut_log, cut_cost)
            elif self._fills(found):
                plan.messages_lost, plan.lost_by_queue = filled.messages_lost, filled.lost_by_queue
                holes = zip(found.holes, found.lost_counts, strict=True)
                ranges = ", ".join(
                    f"{hole.start} to {hole.stop} for {count_text(lost, 'lost message')}" for hole, lost in holes
                )
                plan.add("fill_holes", LOG, f"{ranges}{FILLERS_SEEN}", self._fill_holes, filled)
        if tail is not None:
            size = tail.file_end - tail.start
            plan.bytes_cut += size
            reason = f"at {tail.start}: {tail.finding.kind}"
            plan.add("cut_tail", LOG, reason + self._files_behind(cut), self._cut_log, Cost(bytes_lost=size))
        if self.choice is Choice.TRUNCATE and cut is not None:
            plan.force_reasons = self.facts.cut_refusals()

    def _plan_entries(self, entries: EntryIndex | StoreCorrupt | None, plan: StorePlan) -> None:
        """Add the index and the checkpoint of a DLedger peer that do not agree with its log, as it will be."""
        folder = peer_folder(self.facts)
        if folder is None or entries is None:
            return
        if isinstance(entries, StoreCorrupt):
            self._leave([unreadable(entries, folder)], "move this file away", plan)
            return
        name, changes_log = os.path.basename(folder), bool(plan.steps)
        plan.findings += entries.findings[:FINDINGS_MAX]
        if entries.findings or changes_log:
            differences = f"{count_text(len(entries.findings), 'disagreement')} with the log"
            reason = differences if entries.findings else "the log changes"
            path = os.path.join(name, ENTRY_INDEX)
            plan.add("rebuild_entry_index", path, reason, lambda: rewrite_index(self.disk, folder, self._files()))
        try:
            ahead = [one for one in checkpoint_findings(self.disk, folder, entries.last_index) if one.is_problem]
        except StoreCorrupt as error:
            ahead = [unreadable(error, folder)]
        plan.findings += ahead
        if ahead or changes_log:
            reason = "it names entries that the log lacks" if ahead else "the log changes"
            run = partial(self._set_peer_back, folder)
            plan.add("write_entry_checkpoint", os.path.join(name, PEER_CHECKPOINT), reason, run)

    def _set_peer_back(self, folder: str) -> str:
        """Lower the entries that the peer's checkpoint names to the last one of the repaired log."""
        last = self._files().end().last
        entry = None if last is None else entry_of(self.disk, self._files(), last.physical_offset)
        index = -1 if entry is None else entry[0]
        try:
            peer = read_peer(self.disk, folder)
            if all(one is None or one <= index for one in (peer.committed_index, peer.end_index)):
                return ""
        except StoreCorrupt:
            pass  # it is replaced
        if self.keep_backup:
            keep_file(self.disk, self.root, os.path.join(folder, PEER_CHECKPOINT))
        write_checkpoint(self.disk, folder, index)
        return f"{index}"

    def _files_behind(self, cut: int | None) -> str:
        """Return the words for the log files that a cut deletes."""
        behind = [os.path.basename(file.path) for file in self._files().files if cut is not None and file.start_offset >= cut]
        return f", and the files behind it: {', '.join(behind)}" if behind else ""

    def _plan_unplaced(self, found: Survey, dangling: dict[str, int], plan: StorePlan) -> None:
        """Ask for a choice if messages were lost, of which nothing tells where they were in the log.

        `dangling` has the messages that queues name where the log has others.
        """
        lost: list[UnplacedClaim] = []
        if self.was_clean:
            with closing(self._log(writable=False)) as log, self.queues.named() as named:
                lost += unplaced_claims(self.facts, named, log, found.log_end)
        if dangling:  # a crash may leave units behind the end of the log, but not where it has other records
            lost.append(UnplacedClaim(self.paths.queues, "the messages that queues name", {}, 0))
        if not lost:
            return
        by_queue: dict[str, int] = {}
        for one in lost:
            by_queue |= {name: max(number, by_queue.get(name, 0)) for name, number in one.lost_by_queue.items()}
        by_queue |= {name: number + by_queue.get(name, 0) for name, number in dangling.items()}
        cost = Cost(sum(by_queue.values()) or 1, by_queue, 0, sum(one.offsets for one in lost))
        plan.is_damaged, plan.choices = True, {Choice.TRUNCATE.value: cost}
        plan.messages_lost, plan.lost_by_queue = cost.messages_lost, cost.lost_by_queue
        plan.findings += [Finding(one.file, 0, MISSING_END, one.names, f"the log ends at {found.end}") for one in lost]
        run = partial(
            self.facts.abort_file.create, process_id()
        )  # drops what the last clean stop says about the end of the log
        plan.add("accept_end", LOG, f"it ends at {found.end}, and at least this is lost", run, cost)

    def _cost_of_filling(self, found: Survey) -> Cost:
        size = sum(max(0, min(hole.stop, found.end) - hole.start) for hole in found.holes)
        return Cost(sum(found.lost_counts), found.lost_by_queue, size, 0)

    def _cost_of_cutting(self, found: Survey) -> Cost:
        """Return the cost of ending the log at the first hole."""
        cut = found.holes[0].start
        lost = sum(found.lost_counts) + found.records - found.records_after[0]
        ends = found.ends_if_cut
        beyond = clamp_offsets(
            self.disk, self.paths.config, lambda topic, queue_id: ends.get((topic, queue_id), (0, 0))[0], None
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

    def _compare_again(self) -> Compared:
        """Compare queues and index with a log that was repaired."""
        with Comparison(self.disk, self.paths, self.config, self._files()) as comparison:
            comparison.load(every_queue=False)
            comparison.walk(self.progress)
            return self._disagreements(comparison)

    def _disagreements(self, comparison: Comparison) -> Compared:
        """Return the problems of queues and index; an unreadable folder counts as one problem."""
        found = batch_disagreements(self._files(), self.disk, self.paths)
        wrong: dict[str, list[Finding]] = {QUEUES: [], INDEX: [], BATCH: _repaired(found)}
        try:
            result = comparison.finish()
            for error in result.errors():
                if not isinstance(error, StoreCorrupt):
                    raise error
        except (DiskError, UnsupportedFormat):
            raise
        except StoreError as error:
            problem = Finding(self.root, 0, "unreadable", "queues and index", str(error))
            unread = wrong | {QUEUES: [problem], INDEX: [problem]}
            return Compared(unread, _unrepaired(found), {}, {})
        found += result.problems
        of_index = [finding for finding in result.problems if finding.file.startswith(self.paths.index)]
        of_queues, lost_by_queue = self.queues.disagreements(self._files(), result)
        wrong |= {INDEX: _repaired(of_index), QUEUES: _repaired(of_queues)}
        topics = unknown_topics(self.disk, self.paths, result.queue_keys())
        return Compared(wrong, _unrepaired(found), topics, lost_by_queue)

    def is_ignored(self) -> Callable[[str], bool]:
        """Return a predicate for topics that get no ordinary queue (see `excluded_topics`)."""
        return excluded_topics(self.disk, self.root)

    # Repair

    def apply(self) -> StorePlan:
        """Plan under the store's lock, apply the plan, and return it.

        Changes nothing while a choice or `force` is missing, or if there is nothing to do. Raises `StoreLocked` while another
        process has the store open for writing.
        """
        self._lock = self.disk.lock(self.paths.lock)
        try:
            plan = self.plan()
            if plan.needs_choice or plan.needs_force or not plan.steps:
                return plan
            self.facts.refuse_unknown_shape(self._given)
            if not self.follow_links:
                refuse_links(self.disk, self.paths)
            plan.apply()
        finally:
            self._lock.release()
        self._report(plan)
        return plan

    def _change_log(self, run: Run) -> str | None:
        """Run a step after which the log is not as it was when the plan was made."""
        self._log_changed = True
        return run()

    def _log_now(self) -> Survey:
        """Return the survey of the log as it is before its repair. A loss that the plan does not show is refused."""
        if not self._log_changed:
            return self._found
        found, self._log_changed = self._survey(), False
        lost, shown = sum(found.lost_counts), sum(self._found.lost_counts)
        if lost > shown:
            raise StoreCorrupt(
                "the log is not as it was when the repair was planned", file=self.paths.commit_log, offset=found.end,
                expected=count_text(shown, "lost message"), found=lost,
            )  # fmt: skip
        self._found = found
        return found

    def _fill_holes(self) -> None:
        """Fill the holes, and cut what would follow the last of them."""
        found = self._log_now()
        make_files(self._files(), self.disk, self.paths.commit_log, [hole.start for hole in found.holes])
        with closing(self._log(writable=True)) as log:
            for number, hole in enumerate(found.holes):
                self._fill(log, hole, found, found.times[number])
            if found.tail is None:
                self._cut(log, self._cut_at(found))

    def _cut_log(self) -> str:
        """Cut the log where the plan says; the ring may have brought what was missing there."""
        cut = self._cut_at(self._log_now())
        with closing(self._log(writable=True)) as log:
            self._cut(log, cut)
        return "" if cut is not None else "it is whole by now"

    def _cut(self, log: CommitLog, cut: int | None) -> None:
        if cut is not None:
            keep = partial(put_aside, disk=self.disk, root=self.root)
            log.queue.truncate(cut, keep if self.keep_backup else MappedFile.delete)
            cut_tail(log, cut, self.disk, self.root, keep_backup=self.keep_backup)

    def _log(self, *, writable: bool) -> CommitLog:
        paths = LogPaths.parse(self.disk, self.paths.commit_log)
        return CommitLog(paths, disk=self.disk, file_size_bytes=self.config.mapped_file_size_commit_log, writable=writable)

    def _fill(self, log: CommitLog, hole: Hole, found: Survey, store_ms: int) -> None:
        """Back up the hole's bytes, write the filler records, and sync."""
        file = log.queue.find(hole.start)
        assert file is not None, "a hole lies in a file"
        at, stop = hole.start - file.start_offset, hole.stop - file.start_offset
        if self.keep_backup:
            keep_cut(self.disk, self.root, hole.start, file.view[at:stop])
        lost = found.lost.get(hole.start, [])
        data, _ = fill(hole.start, hole.stop - hole.start, lost, store_ms or 1, to_file_end=hole.stop == file.end_offset)
        file.write(at, data)
        file.set_positions(file.size_bytes)
        file.flushed = 0
        file.flush()

    def _rebuild_differing(self) -> str:
        """Compare what is derived from the log with the repaired log, and rebuild what differs."""
        found = self._compare_again()
        names = {name for name, findings in found.wrong.items() if findings}
        if found.unknown_topics:
            add_topics(self.disk, self.paths, found.unknown_topics)
        self._rebuild(names)
        cut_batch(self.disk, self.paths, self._files().end().offset, keeps=self.keep_backup)
        return f"rebuilt: {', '.join(sorted(names))}" if names else "nothing differs"

    def _rebuild(self, names: set[str], end: int | None = None) -> None:
        """Rebuild queues, batch queues or index from a log that is whole; without `end` its end is looked for."""
        if BATCH in names:
            rebuild_batch(self._files(), self.disk, self.paths, keeps=self.keep_backup)
        if names - {BATCH}:
            self.queues.rebuild(names - {BATCH}, self._files(), self._survey().end if end is None else end)

    def _clamp_offsets(self) -> str:
        return ", ".join(self.queues.clamp(saves=True))

    def _close_store(self) -> None:
        """Open and close the store as after a crash, which checks everything; in RocksDB only a broker opens it."""
        self.facts.abort_file.create(process_id())
        self.queues.close_store(self._lock)

    def _plan_timers(self, found: Survey, plan: StorePlan) -> None:
        """Add the rebuild of the timer files. Holes may have held copies of delivered timers."""
        queue_end = None
        try:
            with self.queues.timers() as queue:
                queue_end = queue.max_offset if queue is not None else None
        except DiskError:
            raise
        except StoreError:
            pass  # the queue is rebuilt
        reason = plan_timers(self.disk, self.paths, self._files(), plan.valid_end, queue_end)
        has_hole = self._fills(found) or any(hole.start < found.end for hole in found.holes)
        if reason is None and has_hole and has_timers(self.disk, self.root):
            reason = "records of timers may be among those that are lost"
        if reason is not None:
            plan.add("rebuild_timers", TIMER_LOG, reason, self._rebuild_timers)

    def _rebuild_timers(self) -> str:
        """Rebuild the timer files from the repaired log."""
        with self.queues.timers() as queue:
            made = rebuild_timers(self.disk, self.paths, self._files(), queue, keeps=self.keep_backup)
        return f"{made.pending} pending, {made.overdue} of them overdue"

    def _set_checkpoint_back(self) -> None:
        """Lower checkpoint times and the queues' log offset to the log's last record; rewrite a damaged one."""
        last_ms = self._files().latest_ms()
        found = self.facts.checkpoint
        last = self._files().end().last
        last_offset = last.physical_offset if last is not None else -1
        is_behind = found.values.logics_physical_offset > max(last_offset, 0)
        if not found.is_damaged and not is_behind and all(getattr(found.values, name) <= last_ms for name in TIMES):
            return
        if self.keep_backup:
            keep_file(self.disk, self.root, self.facts.checkpoint_path)
        with Checkpoint(self.disk, self.root, writable=True) as checkpoint:
            for name in TIMES:
                setattr(checkpoint, name, min(getattr(checkpoint, name), last_ms))
            checkpoint.lower_to(last_offset)
            checkpoint.flush()

    def _report(self, plan: StorePlan) -> None:
        """Write the executed plan as JSON into the store's `brokerstore/` folder."""
        folder = os.path.join(self.root, OWN_FOLDER)
        self.disk.make_folder(folder)
        self.report_path = os.path.join(folder, f"recover-{self.disk.now_ms()}.json")
        replace_file(self.disk, self.report_path, json.dumps(plan.as_dict(), indent=1).encode())
