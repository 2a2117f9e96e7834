"""`recover` on a RocketMQ store: the plan, and with --apply its execution."""

from __future__ import annotations

from messagestore.repair.recover import Choice, Plan, Recovery

from .codes import CLEAN, PROBLEM, REPAIRED_DROPPED, REPAIRED_KEPT
from .output import emit, emit_json, progress, say, table
from .target import Target

PLAN_PASSES, APPLY_PASSES = 2, 5  # over the log at most: checked, compared; mended, compared again, built from


def recover_store(
    target: Target, as_json: bool, quiet: bool, choice: str, *, apply: bool, keep_backup: bool, follow_links: bool = False,
    force: bool = False,
) -> int:  # fmt: skip
    """Exit code 1: something is to be done, or a choice is missing.  6 and 7: it was done."""
    target.need_store()
    target.need_shape()
    total = sum(file.size_bytes for file in target.files().files) * (APPLY_PASSES if apply else PLAN_PASSES)
    with progress("recover", total, wanted=not quiet) as advance:
        recovery = Recovery(
            target.path, Choice(choice), target.config(), keep_backup=keep_backup, follow_links=follow_links, force=force,
            progress=advance,
        )  # fmt: skip
        plan = recovery.apply() if apply else recovery.plan()
    applied = recovery.report_path is not None
    if as_json:
        emit_json({"plan": plan.as_dict(), "applied": applied, "report": recovery.report_path})
    else:
        _show(plan, applied, recovery.report_path, target.path)
    if plan.needs_choice:
        say("brokerstore: safely stored data is damaged: choose --skip-bad (keeps what lies behind) or --truncate")
    for reason in plan.force_reasons:
        say(f"brokerstore: {reason}; these files stay as they are")
    if plan.needs_force:
        say("brokerstore: a broker may lose such timers or hang: --skip-bad keeps every offset; --force truncates all the same")
    return _code(plan, applied)


def _code(plan: Plan, applied: bool) -> int:
    if not applied:
        return PROBLEM if plan.actions or plan.needs_choice or plan.needs_force else CLEAN
    return REPAIRED_DROPPED if plan.records_dropped else REPAIRED_KEPT


def _show(plan: Plan, applied: bool, report_path: str | None, folder: str) -> None:
    """For people: figures, problems, steps."""
    emit(f"Log ends at {plan.valid_end}: {plan.records_kept} messages kept, {plan.records_dropped} dropped")
    if plan.problems:
        table(["problem", "file", "offset", "expected", "found"], [_row(problem, folder) for problem in plan.problems])
    if not plan.actions:
        emit("Nothing to do")
        return
    table(["", "done" if applied else "to be done"], list(enumerate(plan.actions, 1)))
    emit(f"Report: {report_path}" if applied else "Nothing was changed; --apply does it")


def _row(problem: dict[str, object], folder: str) -> list[object]:
    """The file as it is called within the store: a table has no room for more."""
    file = str(problem["file"]).removeprefix(folder.rstrip("/") + "/")
    return [problem["kind"], file, *(problem[name] for name in ("offset", "expected", "found"))]
