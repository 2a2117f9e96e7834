"""Check a store folder without changing it: the log, queues and index against the log, the checkpoint, the config files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from commitlog import LogPaths, LogReport, verify_growing_log, verify_log, whole_end
from commitlog.walk import LogFiles, Piece, Step
from consumequeue import BatchQueues, ConsumeQueues, Queue
from indexfile import damaged_filters
from storageio import REAL_DISK, Disk, DiskError, StoreCorrupt, StoreError
from storageio.settings import settings_or_default
from storebytes.finding import Finding, note

from ..broker.config.topics import read_topics
from ..checkpoint import LOGICS_PHYSICAL_OFFSET_AT, TIMES, times_ahead
from ..clean_stop import clean_path
from ..compaction import compaction_findings
from ..config import StoreConfig
from ..derive.cross_check import END_MAX, LogBounds
from ..derive.kinds.batch import batch_problems, batch_topics
from ..dledger import EntryIndex, checkpoint_findings, peer_folder
from ..folder import FolderFacts
from ..timers.check import timer_findings
from ..timers.layout import TIMER_TOPIC
from ..unreadable import unreadable
from .comparison import Comparison
from .config_check import config_findings
from .damage import MISSING_END
from .misplaced_sidecars import strange_sidecars
from .repair_config import batch_keys
from .rocksdb_check import part_findings

Progress = Callable[[int], None]
Observe = Callable[[Step], None]
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 2.0)  # seconds between comparisons of a store in use
SETTLED_S = 1.0  # a problem that lasts this long is not just the writer's lag


@dataclass
class StoreReport:
    """The result of a verification.

    `units` and `items` count what the log requires in queues and index, and what was therefore compared.
    """

    log: LogReport
    units: int = 0
    items: int = 0
    queues: int = 0
    index_files: int = 0
    more_problems: list[Finding] = field(default_factory=list)
    more_notes: list[Finding] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        """Return damage and disagreements, those of the log first."""
        return [*self.log.problems, *self.more_problems]

    @property
    def notes(self) -> list[Finding]:
        """Return findings that are worth knowing but are not damage."""
        return [*self.log.notes, *self.more_notes]

    @property
    def is_ok(self) -> bool:
        """Return whether there is no problem."""
        return not self.problems

    @property
    def checked_to(self) -> int | None:
        """Return the physical offset up to which a store in use was checked.

        None for a store at rest, which is checked completely.
        """
        return self.log.checked_to

    def counts(self) -> dict[str, int]:
        """Return all counts by name."""
        return {name: getattr(self, name) for name in ("queues", "units", "index_files", "items")} | self.log.counts()


def verify_store(
    root: str, config: StoreConfig | None = None, disk: Disk = REAL_DISK, progress: Progress | None = None, *,
    observe: Observe | None = None,
) -> StoreReport:  # fmt: skip
    """Check everything in one pass over the log.

    `progress` is called with the bytes walked since its last call, `observe` with each step of that walk.

    A store that a process, including this one, has open for writing can be checked too. In that case the end of the log is read
    first, and log, queues and index are checked up to it (`StoreReport.checked_to`).
    """
    check = _Verification(root, settings_or_default(config, StoreConfig, "config"), disk)
    if check.facts.is_in_use:
        return _verify_in_use(check, progress, observe)
    report = check.report = StoreReport(LogReport(check.files()))
    check.log_and_derived(progress, observe)
    check.all_beside_log()
    return report


def verify_beside_log(root: str, config: StoreConfig | None = None, disk: Disk = REAL_DISK) -> list[Finding]:
    """Check batch queues, checkpoint and config files; return problems and notes.

    This is the part of `verify_store` that does not read the bodies of log records. It is for callers that check log, queues
    and index in another way.
    """
    check = _Verification(root, settings_or_default(config, StoreConfig, "config"), disk)
    if check.facts.is_in_use:
        check.end_offset = whole_end(disk, check.folders, check.config.mapped_file_size_commit_log)
    report = check.report = StoreReport(LogReport(LogFiles(disk, check.folders, check.config.mapped_file_size_commit_log)))
    check.queue_ends()
    check.all_beside_log()
    return [*report.more_problems, *report.more_notes]


def _verify_in_use(check: _Verification, progress: Progress | None, observe: Observe | None) -> StoreReport:
    """Check a store that is open for writing; report only problems that two consecutive comparisons find.

    Queues and index may lag behind the log for a moment, and files may be deleted during the check.
    """
    size = check.config.mapped_file_size_commit_log
    log = verify_growing_log(check.folders, check.disk, size, progress, observe=observe)
    check.end_offset = log.checked_to
    report = _beside_log(check, log)
    for pause_s in PAUSES_S:
        if not report.more_problems:
            break
        before = {problem[:3] for problem in report.more_problems}
        check.disk.sleep(pause_s)
        report = _beside_log(check, log)
        again = [(problem.file, problem.offset, problem.kind) in before for problem in report.more_problems]
        report.more_problems = [problem for problem, is_known in zip(report.more_problems, again, strict=True) if is_known]
        if pause_s >= SETTLED_S and report.more_problems:
            break
    return report


def _beside_log(check: _Verification, log: LogReport) -> StoreReport:
    """Compare everything except the log of a store in use, once."""
    report = check.report = StoreReport(log)
    check.config = check.requested
    try:
        check.derived()
        check.batch_queues()
        check.checkpoint()
        check.config_files()
        check.timers()
        check.unread_parts()
    except DiskError as error:  # a file was deleted between listing and opening it
        check.problem(error.file, 0, "unreadable", "a readable file", str(error))
    return report


class _Verification:
    """One verification, which collects its findings in `report`."""

    report: StoreReport

    def __init__(self, root: str, config: StoreConfig, disk: Disk) -> None:
        self.disk = disk
        self.facts = FolderFacts(root, disk, config.store_path_commit_log)
        self.paths = self.facts.paths
        paths = LogPaths.parse(disk, self.paths.commit_log)
        self.folders = paths.present
        self.missing = [folder for folder in paths.folders if folder not in self.folders]
        self.requested = config
        self.config = config
        self.end_offset: int | None = None  # end of the checked log of a store in use
        self.ends: dict[tuple[str, int], int] | None = None  # end offset of every queue; None if the queues could not be read
        self.has_ignored = False  # whether the log has a topic without ordinary queues
        self.last_entry: int | None = None  # of a DLedger log that was walked
        self.filled: set[tuple[str, int]] = set()  # queues with records; empty if that is not known

    def problem(self, file: str, offset: int, kind: str, expected: int | str, found: int | str) -> None:
        self.report.more_problems.append(Finding(file, offset, kind, expected, found))

    def log_and_derived(self, progress: Progress | None, observe: Observe | None) -> None:
        """Check the log, and compare queues and index with it on the way."""
        size, comparison, entries = self.requested.mapped_file_size_commit_log, self._comparison(), self._entry_index()

        def all_of(step: Step) -> None:
            if isinstance(step, Piece):
                if comparison is not None:
                    comparison.take(step)
                if entries is not None:
                    entries.take(step)
            if observe is not None:
                observe(step)

        with comparison or nullcontext(), entries or nullcontext():
            self.report.log = verify_log(self.folders, self.disk, size, progress, observe=all_of)
            if comparison is not None:
                self._finish(comparison)
            if entries is not None:
                entries.finish()
                self.report.more_problems += entries.findings
                self.last_entry = entries.last_index

    def _entry_index(self) -> EntryIndex | None:
        """Return the comparison of a DLedger log with the index of its entries, None for any other log."""
        folder = peer_folder(self.facts)
        try:
            return EntryIndex(self.disk, folder) if folder is not None else None
        except StoreCorrupt as error:
            self._unreadable(error)
            return None

    def peer(self) -> None:
        """Compare the checkpoint of a DLedger peer with the end of its log at rest."""
        folder = peer_folder(self.facts)
        if folder is not None and self.last_entry is not None:
            self._add(checkpoint_findings(self.disk, folder, self.last_entry))

    def derived(self) -> None:
        """Compare queues and index of a store in use with the log."""
        comparison = self._comparison()
        if comparison is not None:
            with comparison:
                comparison.walk(None)
                self._finish(comparison)

    def _comparison(self) -> Comparison | None:
        """Return the comparison of queues and index, None if they cannot be read; that is reported as a problem."""
        try:
            self.config = self.facts.with_sizes(self.requested, guesses=True)
            files = self.files()
            if self.end_offset is not None:
                files.hold()
            comparison = Comparison(self.disk, self.paths, self.config, files, self._bounds())
        except StoreCorrupt as error:
            self._unreadable(error)
            return None
        comparison.load(every_queue=True)
        self.report.index_files, self.report.queues = comparison.index_files, comparison.queue_count
        return comparison

    def _finish(self, comparison: Comparison) -> None:
        """Add the result of a comparison to the report."""
        try:
            found = comparison.finish()
            self.report.units, self.report.items = found.units, found.items
            self.report.more_problems += found.problems
            self._keep_ends(comparison.queues)
            self.has_ignored = bool(found.ignored)
            self.filled = {*found.queue_keys(), *batch_keys(self.disk, self.paths)}
        except StoreCorrupt as error:
            self._unreadable(error)

    def _unreadable(self, error: StoreError) -> None:
        self._add([unreadable(error, self.paths.root)])

    def all_beside_log(self) -> None:
        """Check what lies beside log, queues and index. A file that cannot be read ends one check, not the others."""
        for check in (
            self.log_reach,
            self.batch_queues,
            self.checkpoint,
            self.peer,
            self.config_files,
            self.timers,
            self.sidecars,
            self.unread_parts,
        ):
            try:
                check()
            except (StoreCorrupt, DiskError) as error:
                self._unreadable(error)

    def log_reach(self) -> None:
        """Report a log whose folder is missing, or that ends before the end of the last clean stop."""
        for folder in self.missing:
            self.report.log.add(
                Finding(folder, 0, "missing_folder", "the commit log, on a disk that is mounted", "no such folder")
            )
        clean_stop, log = self.facts.clean_stop, self.report.log
        if clean_stop is not None and self.end_offset is None:
            end = max(log.end_offset, self.files().end().offset)  # the latter counts a blank that ends a file
            if end < clean_stop.end_offset:
                self.problem(clean_path(self.paths.root), 0, MISSING_END, f"a log that ends at {clean_stop.end_offset}", end)

    def files(self) -> LogFiles:
        """Return the log files up to the end of the checked range."""
        return LogFiles(self.disk, self.folders, self.config.mapped_file_size_commit_log, end_offset=self.end_offset)

    def _bounds(self) -> LogBounds:
        return LogBounds(END_MAX if self.end_offset is None else self.end_offset, self._min_offset)

    def _min_offset(self) -> int:
        """Return the physical offset where the log begins now."""
        files = self.files().files
        return files[0].start_offset if files else self.end_offset or 0

    def queue_ends(self) -> None:
        """Read where queues end, without a comparison.

        The ends stay unknown if the queues cannot be read; another check reports that.
        """
        with suppress(StoreError):
            self.config = self.facts.with_sizes(self.requested, guesses=True)
            size = self.config.mapped_file_size_consume_queue
            assert size
            with ConsumeQueues(self.disk, self.paths.queues, writable=False, file_size_bytes=size) as queues:
                queues.load()
                self._keep_ends(queues)

    def _keep_ends(self, queues: ConsumeQueues) -> None:
        self.ends = dict(_ends(queues)) | self._batch_ends()

    def batch_queues(self) -> None:
        """Compare batch queues with the log, if there are any."""
        damaged: dict[tuple[str, int], StoreCorrupt] = {}
        with BatchQueues(self.disk, self.paths.batch, writable=False, unreadable=damaged) as batch:
            topics = read_topics(self.disk, self.paths.config)
            is_batch_topic = batch_topics(topics, batch, searches_log=self.has_ignored)
            if is_batch_topic is not None:
                found = batch_problems(self.files(), batch, is_batch_topic, topics)
                bounds = self._bounds()
                self.report.more_problems += [one for one in found if bounds.may_have(one.offset)]
            for error in damaged.values():
                self._unreadable(error)

    def checkpoint(self) -> None:
        """Report a damaged checkpoint, one with times after the log's last record, and a leftover abort file."""
        path, found = self.facts.checkpoint_path, self.facts.checkpoint
        if found.is_damaged:
            self.problem(path, 0, "damaged_checkpoint", "4096 bytes with times and offsets", "others")
        last_ms = self._last_ms()
        if times_ahead(found.values, last_ms):
            last_ms = max(last_ms, self.files().latest_ms())
        for name, time_ms in times_ahead(found.values, last_ms).items():
            expected = f"{name} at most {last_ms}, the last record's"
            self.problem(path, 8 * TIMES.index(name), "checkpoint_ahead", expected, time_ms)
        end = self.files().end().offset if self.end_offset is None else END_MAX  # a writer goes on meanwhile
        if 0 < found.values.logics_physical_offset >= end:
            expected = f"logics_physical_offset below {end}, the end of the log"
            self.problem(path, LOGICS_PHYSICAL_OFFSET_AT, "checkpoint_ahead", expected, found.values.logics_physical_offset)
        if self.facts.abort_file.is_present:
            abort_file = self.facts.abort_file.path
            self._add([note(abort_file, 0, "abort_file", "none after a clean stop", "a writer runs, or crashed")])

    def _last_ms(self) -> int:
        """Return the store time of the log's last record, without another walk if the log was walked and is intact."""
        log = self.report.log
        if log.is_ok and log.records and log.checked_to is None:
            return log.last_store_timestamp_ms
        last = LogFiles(self.disk, self.folders, self.config.mapped_file_size_commit_log).end().last
        return last.store_timestamp_ms if last else 0

    def _batch_ends(self) -> dict[tuple[str, int], int]:
        """Return the end offsets of all batch queues."""
        with BatchQueues(self.disk, self.paths.batch, writable=False, unreadable={}) as batch:
            return dict(_ends(batch))

    def config_files(self) -> None:
        """Report damaged config files, offsets behind the end of their queue, and topics that the table lacks."""
        if self.end_offset is not None:
            self.queue_ends()  # messages may have been put and consumed since
        self._add(config_findings(self.disk, self.paths.root, self.ends, self.filled))

    def timers(self) -> None:
        """Check the timer files against each other, the log and the end of the timers' queue."""
        queue_end = None if self.ends is None else self.ends.get((TIMER_TOPIC, 0), 0)
        queue_end = None if queue_end == END_MAX else queue_end
        self._add(timer_findings(self.disk, self.paths.root, self.files(), queue_end))

    def unread_parts(self) -> None:
        """Read databases of the configuration and compacted topics; add a note for each part of the store that is not read."""
        ends = self.ends if self.end_offset is None else None  # else messages may have been put since
        self._add(part_findings(self.disk, self.paths.root, self.files(), ends))
        self._add(compaction_findings(self.disk, self.paths.root, is_in_use=self.facts.is_in_use))

    def _add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            (self.report.more_problems if finding.is_problem else self.report.more_notes).append(finding)

    def sidecars(self) -> None:
        """Report symlinks and folders in place of our own small files."""
        self.report.more_problems += strange_sidecars(self.disk, self.paths.own)
        for path, damage in damaged_filters(self.disk, self.paths.key_filters):
            self.report.more_notes.append(note(path, 0, "key_filter", "a filter that can be used", damage))


def _ends(queues: Iterable[Queue]) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield the end offset of each queue; one that cannot be read, which is reported, may end anywhere."""
    for queue in queues:
        try:
            yield (queue.topic, queue.queue_id), queue.max_offset
        except StoreError:
            yield (queue.topic, queue.queue_id), END_MAX
