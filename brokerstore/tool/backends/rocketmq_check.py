"""`verify` and `report` of a RocketMQ folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

from brokerstore.identify import FolderKind
from commitlog import LogReport, verify_growing_log, verify_log
from commitlog.walk import Piece, Step
from messagestore.folder_contents import NOT_READ
from storageio import REAL_DISK, StoreError, own_view
from storageio.ahead import one_behind

from ..codes import CLEAN, PROBLEM
from ..output import Answer, check_answer, count_text, in_use_keys, print_line, problem_json, progress, report_in_use, size_text
from .rocketmq_folder import RocketmqFolder
from .rocketmq_pop import pop_rows
from .rocketmq_timers import keys_and_tables, pending

if TYPE_CHECKING:
    from brokerstore.report import Facts
    from messagestore.repair.verification import StoreReport

BESIDE_THE_LOG = ("consumequeue", "batchconsumequeue", "index", "timerlog", "config", "checkpoint", "abort", "brokerstore")


def verify(folder: RocketmqFolder, quiet: bool, log_only: bool) -> Answer:
    """Check the whole store; the log alone if that is asked for, or if nothing of a store lies beside it."""
    report = _check(folder, quiet, log_only)
    counts = report.counts()
    messages = f"{count_text(counts['records'], 'message')} ({counts['protected_records']} with a checksum of the whole record)"
    details = f"{messages} in {count_text(counts['files'], 'file')}, {size_text(counts['size_bytes'])}"
    if "queues" in counts:
        queues, units = count_text(counts["queues"], "queue"), count_text(counts["units"], "unit")
        details += f"; compared with {queues}, {units} and {count_text(counts['items'], 'index item')}"
    if report.checked_to is not None:
        details += f"; checked up to offset {report.checked_to}; the store is in use"
    timers, tables = ({}, []) if log_only else keys_and_tables(folder)
    code, more = CLEAN if report.is_ok else PROBLEM, timers | in_use_keys(report.checked_to)
    answer = check_answer(_verdict(report), report.problems, report.notes, counts, details, more, code, report.is_ok)
    return answer._replace(text=[*answer.text, *tables])


def _verdict(report: LogReport | StoreReport) -> str:
    what = "log" if isinstance(report, LogReport) else "store"
    unread = sum(one.kind == NOT_READ for one in report.notes)
    if report.is_ok and unread:
        return (
            f"OK: the {what} is intact; {count_text(unread, 'part')} of the folder {'was' if unread == 1 else 'were'} not read."
        )
    if report.is_ok:
        return f"OK: the {what} is intact."
    problems = count_text(len(report.problems), "problem")
    if isinstance(report, LogReport):
        return f"{problems} in the log."
    if report.log.is_ok:
        return f"{problems}; the log itself is intact."
    return f"{problems}, {len(report.log.problems)} of them in the log."


def _check(
    folder: RocketmqFolder, quiet: bool, log_only: bool, observe: Callable[[Step], None] | None = None
) -> LogReport | StoreReport:
    facts, target, total = folder.facts, folder.target, folder.log_size()
    is_store = facts.is_store and any(facts.has(name) for name in BESIDE_THE_LOG)
    if log_only or not is_store:
        folder.files()  # raises if there is no log
        with progress("verify", total, quiet=quiet) as advance:
            size = target.settings.get("mapped_file_size_commit_log")
            check = verify_growing_log if folder.is_in_use else verify_log
            report = check(facts.log_folders, file_size_bytes=size, progress=advance, observe=observe)
        if target.kind is FolderKind.ROCKSDB and not log_only:
            _beside_log(report, folder)
        return report
    from messagestore.repair.verification import verify_store

    folder.require_index_layout()
    with progress("verify", total, quiet=quiet) as advance:
        return verify_store(target.path, folder.config(), progress=advance, observe=observe)


def _beside_log(report: LogReport, folder: RocketmqFolder) -> None:
    """Add what can be checked of a store with queues in RocksDB: timers, configuration, queues, and parts not read."""
    from messagestore.compaction import compaction_findings
    from messagestore.repair.config_check import config_findings
    from messagestore.repair.rocksdb_check import part_findings, queue_ends
    from messagestore.timers.check import timer_findings

    path = folder.target.path
    ends = queue_ends(REAL_DISK, path)
    for finding in chain(
        timer_findings(REAL_DISK, path, folder.files(), None),
        config_findings(REAL_DISK, path, ends, ()),
        part_findings(REAL_DISK, path, folder.files(), None if folder.is_in_use else ends),
        compaction_findings(REAL_DISK, path, is_in_use=folder.is_in_use),
    ):
        report.add(finding)


def _own(step: Step) -> Step:
    """Return a step for another thread."""
    return step._replace(view=own_view(step.view)) if isinstance(step, Piece) else step


def report(folder: RocketmqFolder, quiet: bool) -> tuple[Facts, dict[str, Any]]:
    """Gather facts of the log while it is checked, then those of everything beside it."""
    from brokerstore.report import StoreFacts

    from .rocketmq_offsets import lag_rows

    target, log = folder.target, StoreFacts(folder.files())
    with one_behind(log.step) as count:
        found = _check(folder, quiet, log_only=False, observe=lambda step: count(_own(step)))
    facts = log.facts(target.path, target.kind.value)
    facts.problems = [problem_json(problem) for problem in found.problems]
    if found.checked_to is not None:
        facts.cards.append(("In use", f"checked up to offset {found.checked_to}"))
    if folder.facts.is_store:
        try:
            facts.lags = lag_rows(folder)
        except StoreError as error:  # the damage is among the problems already
            print_line(f"brokerstore: no lag: {error}")
        if (timers := pending(folder)) is not None:
            facts.timers = [asdict(topic) for topic in timers.topics]
            facts.cards.append(("Pending timers", f"{timers.timers:,}"))
        facts.pop = pop_rows(folder)
    report_in_use(found.checked_to)
    return facts, in_use_keys(found.checked_to)
