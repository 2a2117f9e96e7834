"""`verify` and `recover` of a RabbitMQ folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from rabbitstore import RabbitStore
from rabbitstore.node_folder import CheckedNode
from rabbitstore.read.metadata import metadata_problems
from rabbitstore.repair.check import size_bytes, verify
from rabbitstore.repair.node_recover import NodePlan, apply_node_recovery, plan_node_recovery
from rabbitstore.repair.recover import Action, Plan, apply_recovery, plan_recovery
from storageio import UnsupportedFormat
from storebytes.finding import UNSUPPORTED

from ..codes import CLEAN, PROBLEM, REPAIRED_DROPPED, REPAIRED_KEPT
from ..escapes import quote
from ..output import Answer, Table, check_answer, count_text, problem_text, progress, say
from . import Repair
from .rabbitmq_folder import RabbitmqFolder, open_node, outcome

_NOTHING_LEFT = "Nothing can be repaired; a person has to decide."


def check(backend: RabbitmqFolder, quiet: bool) -> Answer:
    """Check every file and entry."""
    path = backend.path
    with progress("verify", size_bytes(path), quiet=quiet) as advance:
        found = verify(path, progress=advance)
        node = _check_node(backend)
    problems = found.problems + node.problems + metadata_problems(backend.target.path)
    notes = found.notes + node.notes
    unsupported = [note for note in notes if note.kind == UNSUPPORTED]
    verdict = "OK: the folder is intact."
    if problems:
        verdict = f"{count_text(len(problems), 'problem')}."
    elif unsupported:
        verdict = f"Not checked in full: {count_text(len(unsupported), 'file')} of an unsupported format."
    counts = {name: getattr(found, name) + getattr(node, name) for name in ("queues", "messages", "records", "files")}
    details = ", ".join(count_text(count, name.removesuffix("s")) for name, count in counts.items())
    code = outcome(problems + unsupported)
    return check_answer(verdict, problems, notes, counts, details, {}, code, found.ok and not problems)


def _check_node(backend: RabbitmqFolder) -> CheckedNode:
    """Check the quorum queues and streams of a node's folder, and the logs that a server needs without any of them too."""
    with RabbitStore.open(backend.target.path, "r", vhost=backend.target.vhost) as store:
        folder = store.folder()
        node = open_node(backend.facts, folder.vhost, even_empty=True)
        folder.close()
    if node is None:
        return CheckedNode(0, 0, 0, 0, [], [])
    with contextlib.closing(node):
        found = node.check()
    if found.queues:
        return found
    return found._replace(notes=[note for note in found.notes if note.kind == UNSUPPORTED])  # 3.8 fills a new log with zeros


def recover(backend: RabbitmqFolder, repair: Repair, quiet: bool) -> Answer:
    """Plan a recovery, and execute it with `repair.apply`: of the classic queues, then of the node's other queues."""
    path = backend.path
    survey_of_node = backend.facts.node
    has_others = survey_of_node is not None and bool(survey_of_node.not_read())
    with progress("recover", size_bytes(path) * (1 + repair.apply), quiet=quiet) as advance:
        plan = _classic(path, repair, advance, is_needed=not has_others)
        node = plan_node_recovery(backend.target.path) if survey_of_node is not None else None
        if node is not None and not (has_others or node.actions or node.unrepaired):
            node = None
        if node is not None and repair.apply and node.actions:
            apply_node_recovery(node, keep_backup=repair.keep_backup)
    code = max(
        _code(plan.actions, plan.applied, plan.records_dropped) or outcome(plan.unrepaired + plan.unsupported),
        0 if node is None else _code_of_node(node),
    )
    facts = plan.to_json()
    if node is not None:
        facts = {**facts, "applied": plan.applied or node.applied, "node": node.to_json()}
    text = _text(plan) if node is None else _text_of_both(plan, node)
    return Answer(facts, text, code, _steps_after(plan, node, quote(backend.target.path)))


def _steps_after(plan: Plan, node: NodePlan | None, place: str) -> Sequence[str]:
    """Return what is left to a person, where a recovery leaves damage and has no step of its own."""
    unrepaired = plan.unrepaired + (node.unrepaired if node is not None else [])
    if not unrepaired or plan.actions or (node is not None and node.actions):
        return ()
    return (f"a person has to decide: brokerstore export {place} --out FILE saves what is still readable",)


def _classic(path: str, repair: Repair, advance: Callable[[int], None], *, is_needed: bool) -> Plan:
    """Recover the classic queues; with other queues in the node, a format that cannot be repaired is only reported."""
    try:
        plan = plan_recovery(path, progress=advance)
        if repair.apply and plan.actions:
            apply_recovery(plan, keep_backup=repair.keep_backup, progress=advance)
        return plan
    except UnsupportedFormat as error:
        if is_needed:
            raise
        say(f"brokerstore: classic queues are left as they are: {error}")
        return Plan(path)


def _code(actions: list[Action], applied: bool, dropped: int) -> int:
    if applied:
        return REPAIRED_DROPPED if dropped else REPAIRED_KEPT
    return PROBLEM if actions else CLEAN


def _code_of_node(node: NodePlan) -> int:
    if node.unrepaired:
        return PROBLEM if not node.applied else REPAIRED_DROPPED
    return _code(node.actions, node.applied, node.lost_entries + node.lost_offsets)


def _text_of_both(plan: Plan, node: NodePlan) -> list[str | dict[str, object] | Table]:
    """Describe the repair of a node with quorum queues or streams."""
    if plan.applied or node.applied:
        verdict = "Repaired."
    else:
        is_damaged = plan.actions or node.actions
        nothing = _NOTHING_LEFT if plan.unrepaired or node.unrepaired else "Nothing to repair."
        verdict = "Nothing was changed; --apply executes the plan." if is_damaged else nothing
    counts = f"{count_text(node.messages_kept, 'message')} of quorum queues and streams kept"
    if node.lost_entries or node.lost_offsets:
        entries = "entry" if node.lost_entries == 1 else "entries"
        counts += f"; lost: {node.lost_entries} log {entries}, {count_text(node.lost_offsets, 'stream offset')}"
    text: list[str | dict[str, object] | Table] = [verdict, counts]
    if plan.actions:
        text.append(f"classic queues: {count_text(plan.records_kept, 'message')} kept, {plan.records_dropped} dropped")
        text += [f"queue {queue}: {count} dropped" for queue, count in plan.dropped_by_queue.items()]
    text += [f"problem: {problem_text(problem)}" for problem in [*plan.problems, *node.problems]]
    text += [f"not repaired: {problem_text(problem)}" for problem in [*plan.unrepaired, *node.unrepaired]]
    text += [f"left as it is: {problem_text(problem)}" for problem in plan.unsupported]
    actions = [*plan.actions, *node.actions]
    if actions:
        text.append(Table(["step", "file", "because of"], [list(action) for action in actions]))
    return text


def _text(plan: Plan) -> list[str | dict[str, object] | Table]:
    counts = f"{count_text(plan.records_kept, 'message')} kept, {plan.records_dropped} dropped"
    if plan.applied:
        verdict = "Repaired."
    else:
        nothing = _NOTHING_LEFT if plan.unrepaired else "Nothing to repair."
        verdict = "Nothing was changed; --apply executes the plan." if plan.actions else nothing
    text: list[str | dict[str, object] | Table] = [verdict, counts]
    text += [f"queue {queue}: {count} dropped" for queue, count in plan.dropped_by_queue.items()]
    text += [f"problem: {problem_text(problem)}" for problem in plan.problems]
    text += [f"not repaired: {problem_text(problem)}" for problem in plan.unrepaired]
    text += [f"left as it is: {problem_text(problem)}" for problem in plan.unsupported]
    if plan.actions:
        text.append(Table(["step", "file", "because of"], [list(action) for action in plan.actions]))
    return text
