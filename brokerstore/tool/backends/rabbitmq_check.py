"""`verify` and `recover` of a RabbitMQ folder."""

from __future__ import annotations

import contextlib

from rabbitstore import RabbitStore
from rabbitstore.format.problems import UNSUPPORTED
from rabbitstore.node_folder import CheckedNode
from rabbitstore.repair.check import size_bytes, verify
from rabbitstore.repair.recover import Plan, apply_recovery, plan_recovery

from ..codes import CLEAN, PROBLEM, REPAIRED_DROPPED, REPAIRED_KEPT
from ..output import Answer, Table, check_answer, count_text, problem_text, progress
from . import Repair
from .rabbitmq import RabbitmqBackend, open_node, outcome


def check(backend: RabbitmqBackend, quiet: bool) -> Answer:
    """Check every file and entry."""
    path = backend.path
    with progress("verify", size_bytes(path), quiet=quiet) as advance:
        found = verify(path, progress=advance)
        node = _check_node(backend)
    problems, notes = found.problems + node.problems, found.notes + node.notes
    unsupported = [note for note in notes if note.kind == UNSUPPORTED]
    verdict = "OK: the folder is intact."
    if problems:
        verdict = f"{count_text(len(problems), 'problem')}."
    elif unsupported:
        verdict = f"Not checked in full: {count_text(len(unsupported), 'file')} of an unsupported format."
    counts = {name: getattr(found, name) + getattr(node, name) for name in ("queues", "messages", "records", "files")}
    details = ", ".join(count_text(count, name.removesuffix("s")) for name, count in counts.items())
    code = outcome(problems + unsupported)
    return check_answer(verdict, problems, notes, counts, details, {}, code, found.ok and not node.problems)


def _check_node(backend: RabbitmqBackend) -> CheckedNode:
    """Check the quorum queues and streams of a node's folder; there are none in any other folder."""
    with RabbitStore.open(backend.target.path, "r", vhost=backend.target.vhost) as store:
        folder = store.folder()
        node = open_node(backend.target.path, folder.vhost)
        folder.close()
    if node is None:
        return CheckedNode(0, 0, 0, 0, [], [])
    with contextlib.closing(node):
        return node.check()


def recover(backend: RabbitmqBackend, repair: Repair, quiet: bool) -> Answer:
    """Plan a recovery, and execute it with `repair.apply`."""
    path = backend.path
    with progress("recover", size_bytes(path) * (1 + repair.apply), quiet=quiet) as advance:
        plan = plan_recovery(path, progress=advance)
        if repair.apply and plan.actions:
            apply_recovery(plan, keep_backup=repair.keep_backup, progress=advance)
    code = PROBLEM if plan.actions else CLEAN
    if plan.applied:
        code = REPAIRED_DROPPED if plan.records_dropped else REPAIRED_KEPT
    return Answer(plan.to_json(), _text(plan), code)


def _text(plan: Plan) -> list[str | dict[str, object] | Table]:
    counts = f"{count_text(plan.records_kept, 'message')} kept, {plan.records_dropped} dropped"
    if plan.applied:
        verdict = "Repaired."
    else:
        verdict = "Nothing was changed; --apply executes the plan." if plan.actions else "Nothing to repair."
    text: list[str | dict[str, object] | Table] = [verdict, counts]
    text += [f"problem: {problem_text(problem)}" for problem in plan.problems]
    if plan.actions:
        text.append(Table(["step", "file", "because of"], [list(action) for action in plan.actions]))
    return text
