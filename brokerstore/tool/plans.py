"""The answer of `recover` for a plan of either engine: verdict, what is lost, problems, steps, and what stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from storebytes.finding import UNSUPPORTED, Finding
from storebytes.plan import Cost, Plan, Unrepaired

from .codes import CLEAN, NO_STORE, PROBLEM, REPAIRED_DROPPED, REPAIRED_KEPT
from .output import Answer, Table, count_text, problem_text

QUEUES_SHOWN = 5
_Text = list[str | dict[str, object] | Table]


def plan_answer(
    plan: Plan,
    *,
    applied: bool,
    old_keys: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    needs_choice: bool = False,
    report: str | None = None,
    about: str = "",
    next_steps: Sequence[str] = (),
) -> Answer:
    """Return a plan that was shown or, with `applied`, executed.

    `old_keys` are the keys of earlier versions beside those of the plan, `facts` more keys of the answer.  `needs_choice` tells
    that nothing runs before the user chooses among `plan.choices`.  `report` is the path of the report that was written, and
    `about` a line of the engine, such as where the log ends.
    """
    damage = [one for one in plan.unrepaired if one.finding.kind != UNSUPPORTED]
    text: _Text = [_verdict(plan, applied, needs_choice, damage, report), _kept_text(plan), *([about] if about else [])]
    text += [f"queue {queue}: {count_text(count, 'message')} lost" for queue, count in plan.lost_by_queue.items()]
    text += [f"problem: {problem_text(_shortened(one, plan.path))}" for one in plan.findings]
    if needs_choice:
        text.append(_choices(plan))
    if plan.steps:
        text.append(_steps(plan, applied))
    text += [_unrepaired_text(one, plan.path) for one in plan.unrepaired]
    facts = {"plan": {**plan.as_dict(), **(old_keys or {})}, "applied": applied, **(facts or {})}
    return Answer(facts, text, _code(plan, applied, needs_choice, damage), next_steps)


def _verdict(plan: Plan, applied: bool, needs_choice: bool, damage: list[Unrepaired], report: str | None) -> str:
    lost = _losses(plan.cost._replace(bytes_lost=0))
    result = f"lost: {', '.join(lost)}" if lost else "nothing is lost"
    stays = f"; {count_text(len(damage), 'problem')} left to a person" if damage else ""
    if applied:
        return f"Repaired; {result}{stays}." + (f" Report: {report}" if report is not None else "")
    if needs_choice:
        return "The repair needs a choice. Nothing was changed."
    if plan.steps:
        steps = "1 step repairs" if len(plan.steps) == 1 else f"{len(plan.steps)} steps repair"
        return f"{steps} the folder; {result}{stays}. Nothing was changed; --apply executes the plan."
    return "Nothing can be repaired; a person has to decide." if damage else "Nothing to repair."


def _losses(cost: Cost) -> list[str]:
    entries = "log entry" if cost.log_entries_lost == 1 else "log entries"
    set_back = "consumer offset set back" if cost.offsets_set_back == 1 else "consumer offsets set back"
    parts = (
        (cost.messages_lost, count_text(cost.messages_lost, "message")),
        (cost.log_entries_lost, f"{cost.log_entries_lost} {entries}"),
        (cost.stream_offsets_lost, count_text(cost.stream_offsets_lost, "stream offset")),
        (cost.offsets_set_back, f"{cost.offsets_set_back} {set_back}"),
        (cost.bytes_lost, count_text(cost.bytes_lost, "byte")),
    )
    return [text for count, text in parts if count]


def _kept_text(plan: Plan) -> str:
    kept = f"{count_text(plan.messages_kept, 'message')} kept"
    lost = _losses(plan.cost._replace(bytes_lost=0))
    return f"{kept}; lost: {', '.join(lost)}" if lost else f"{kept}, none lost"


def _choices(plan: Plan) -> Table:
    """Return what each choice loses, in the same units."""
    rows = [
        [f"--{name}", cost.messages_lost, _queues_text(cost.lost_by_queue), cost.bytes_lost, cost.offsets_set_back]
        for name, cost in plan.choices.items()
    ]
    return Table(["choice", "messages lost", "of queues", "bytes lost", "offsets set back"], rows)


def _queues_text(counts: dict[str, int]) -> str:
    """Return the queues that lose the most messages, with their numbers."""
    most = sorted(counts.items(), key=lambda one: -one[1])
    more = [f"{len(most) - QUEUES_SHOWN} more"] if len(most) > QUEUES_SHOWN else []
    return ", ".join([*(f"{name}: {number}" for name, number in most[:QUEUES_SHOWN]), *more])


def _steps(plan: Plan, applied: bool) -> Table:
    """Return the steps in the order in which they run; where a step knew more when it ran, with its result."""
    headers = ["done" if applied else "step", "file", "because of", "loses"]
    rows = [[step.kind, _short(step.file, plan.path), step.reason, ", ".join(_losses(step.cost))] for step in plan.steps]
    if any(plan.outcomes):
        return Table([*headers, "result"], [[*row, outcome] for row, outcome in zip(rows, plan.outcomes, strict=True)])
    return Table(headers, rows)


def _unrepaired_text(one: Unrepaired, path: str) -> str:
    stays = "left as it is" if one.finding.kind == UNSUPPORTED else "not repaired"
    return f"{stays}: {problem_text(_shortened(one.finding, path))}" + (f"; {one.advice}" if one.advice else "")


def _shortened(finding: Finding, path: str) -> Finding:
    return finding._replace(file=_short(finding.file, path))


def _short(file: str, path: str) -> str:
    """Return a path within the folder, which fits into a line."""
    return file.removeprefix(path.rstrip("/") + "/")


def _code(plan: Plan, applied: bool, needs_choice: bool, damage: list[Unrepaired]) -> int:
    """Return 6 or 7 for what was done, else 1 for what is to be done or decided, and 3 for an unsupported format alone."""
    if applied:
        return REPAIRED_DROPPED if _losses(plan.cost._replace(bytes_lost=0, offsets_set_back=0)) else REPAIRED_KEPT
    if plan.steps or needs_choice or damage:
        return PROBLEM
    return NO_STORE if plan.unrepaired else CLEAN


def change_answer(plan: Plan, *, applied: bool) -> Answer:
    """Return the plan of a change that an operator asked for: its steps, before or after they ran."""
    lost = _losses(plan.cost)
    loses = f"Lost: {', '.join(lost)}." if lost else "No message is lost."
    if not plan.steps:
        verdict = "Nothing to do."
    else:
        verdict = f"Done. {loses}" if applied else f"Nothing was changed; --apply executes the plan. {loses}"
    text: _Text = [verdict, *([_steps(plan, applied)] if plan.steps else [])]
    return Answer({"plan": plan.as_dict(), "applied": applied}, text)
