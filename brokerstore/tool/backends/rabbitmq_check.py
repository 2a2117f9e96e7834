"""`verify` and `recover` of a RabbitMQ folder."""

from __future__ import annotations

import contextlib

from rabbitstore import RabbitStore, apply_recovery, plan_recovery, verify
from rabbitstore.node_folder import CheckedNode
from rabbitstore.read.metadata import metadata_problems
from rabbitstore.repair.check import size_bytes
from rabbitstore.repair.classic import ClassicPlan
from rabbitstore.repair.node_recover import NodePlan
from rabbitstore.staging import STAGED
from storebytes.finding import UNSUPPORTED
from storebytes.plan import Step

from ..codes import REPAIRED_DROPPED
from ..escapes import quote
from ..output import Answer, check_answer, count_text, progress
from ..plans import plan_answer
from . import Repair
from .rabbitmq_folder import RabbitmqFolder, open_node, outcome


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
    path, vhost = backend.target.path, backend.target.vhost
    with progress("recover", size_bytes(backend.path) * (1 + repair.apply), quiet=quiet) as advance:
        if repair.apply:
            plan = apply_recovery(path, vhost=vhost, keep_backup=repair.keep_backup, progress=advance)
        else:
            plan = plan_recovery(path, vhost=vhost, progress=advance)
    steps = []
    if plan.unrepaired and not plan.steps:
        steps = [f"a person has to decide: brokerstore export {quote(path)} --out FILE saves what is still readable"]
    of_node = [step for step in plan.steps if step.file == STAGED or (plan.node is not None and step in plan.node.steps)]
    node = {} if plan.node is None else {"node": _old_node(plan.node, of_node)}
    old_keys = _old_keys(plan.classic, [step for step in plan.steps if step not in of_node])
    found = plan_answer(plan, applied=plan.is_applied, old_keys=old_keys, facts=node, next_steps=steps)
    is_left = plan.node is not None and plan.node.steps and plan.node.unrepaired
    return found._replace(code=REPAIRED_DROPPED) if plan.is_applied and is_left else found


def _old_keys(plan: ClassicPlan | None, steps: list[Step]) -> dict[str, object]:
    """Return the keys of `plan` before version 0.2, for classic queues."""
    plan = plan or ClassicPlan("")
    return {
        "valid_end": plan.valid_end,
        "records_kept": plan.messages_kept,
        "records_dropped": plan.messages_lost,
        **({"dropped_by_queue": plan.lost_by_queue} if plan.lost_by_queue else {}),
        "actions": _old_actions(steps),
    }


def _old_node(plan: NodePlan, steps: list[Step]) -> dict[str, object]:
    """Return the key `node` before version 0.2, for quorum queues and streams."""
    return {
        "messages_kept": plan.messages_kept,
        "lost_entries": plan.lost_entries,
        "lost_offsets": plan.lost_offsets,
        "actions": _old_actions(steps),
        "unrepaired": [one.finding.as_dict() for one in plan.unrepaired],
    }


def _old_actions(steps: list[Step]) -> list[dict[str, str]]:
    return [{"kind": step.kind, "file": step.file, "reason": step.reason} for step in steps]
