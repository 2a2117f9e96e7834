"""`verify` on a RocketMQ folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerstore.identify import FolderKind
from commitlog.growing import verify_growing_log
from commitlog.verify import LogReport, verify_log

from .codes import CLEAN, PROBLEM
from .output import emit, emit_json, finding_text, in_use_keys, progress, size_text
from .target import Target

if TYPE_CHECKING:
    from messagestore.repair.verification import StoreReport

BESIDE_THE_LOG = ("consumequeue", "index", "checkpoint", "abort")


def verify_target(target: Target, as_json: bool, quiet: bool, log_only: bool) -> int:
    """The whole store; the log alone where that is asked for, or where nothing that belongs to a store lies beside it."""
    report = check_target(target, quiet, log_only)
    _show(report, as_json)
    return CLEAN if report.is_ok else PROBLEM


def check_target(target: Target, quiet: bool, log_only: bool) -> LogReport | StoreReport:
    """What `verify` finds."""
    files = target.files()
    total = sum(file.size_bytes for file in files.files)
    is_store = target.kind is FolderKind.ROCKETMQ and any(target.has(name) for name in BESIDE_THE_LOG)
    if log_only or not is_store:
        with progress("verify", total, wanted=not quiet) as advance:
            size = target.settings.get("mapped_file_size_commit_log")
            check = verify_growing_log if target.is_in_use else verify_log
            return check(target.log_folders, file_size_bytes=size, progress=advance)
    from messagestore.repair.verification import PASSES, verify_store

    target.need_shape()
    with progress("verify", PASSES * total, wanted=not quiet) as advance:
        return verify_store(target.path, target.config(), progress=advance)


def _show(report: LogReport | StoreReport, as_json: bool) -> None:
    counts = report.counts()
    if as_json:
        findings = {"problems": report.problems, "notes": report.notes}
        lists = {name: [finding.as_dict() for finding in found] for name, found in findings.items()}
        emit_json({"ok": report.is_ok, **lists, "counts": counts} | in_use_keys(report.checked_to))
        return
    for problem in report.problems:
        emit(f"problem: {finding_text(problem)}")
    for found in report.notes:
        emit(f"note: {finding_text(found)}")
    beside = "the log alone"
    if "queues" in counts:
        beside = f"{counts['queues']} queues, {counts['units']} units and {counts['items']} index items looked for"
    emit(
        f"{'OK' if report.is_ok else f'{len(report.problems)} problems'}: {counts['records']} messages "
        f"({counts['protected_records']} with a checksum over the whole record), {counts['files']} files, "
        f"{size_text(counts['size_bytes'])}; {beside}"
    )
    if report.checked_to is not None:
        emit(f"checked up to offset {report.checked_to}; the store is in use")
