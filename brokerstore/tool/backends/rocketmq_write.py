"""`put`, `recover` and `rebuild` of a RocketMQ store."""

from __future__ import annotations

import logging

from commitlog import Message
from messagestore.repair.rebuild_store import ALL, rebuild_store
from messagestore.repair.recover import Choice, Recovery
from storageio import UnsupportedFormat
from storebytes.plan import Unrepaired

from ..escapes import quote
from ..output import Answer, count_text, print_line, progress, size_text
from ..plans import plan_answer
from . import Outgoing, Repair
from .rocketmq_folder import RocketmqFolder
from .rocketmq_writing import changing

_KEEPS = {
    "skip-bad": "fillers take the positions of lost messages",
    "truncate": "the log ends at the first damage; a copy of what follows is kept",
}
CHOICES = {"skip-bad": " (keeps what follows)", "truncate": ""}
PLAN_PASSES, APPLY_PASSES = 1, 4  # over the log at most: check and compare; repair, compare again, build


def put(folder: RocketmqFolder, outgoing: Outgoing) -> Answer:
    """Put the message and sync it; the store must exist."""
    folder.require_index_layout()
    message = Message(
        outgoing.topic, outgoing.read_body(), tags=outgoing.tag, keys=list(outgoing.keys) or None,
        properties=dict(outgoing.properties) or None, queue_id=-1 if outgoing.queue_id is None else outgoing.queue_id,
    )  # fmt: skip
    with changing(folder) as store:
        result = store.put(message)
    facts = {
        "status": result.status.name,
        "topic": outgoing.topic,
        "queue_id": result.queue_id,
        "queue_offset": result.queue_offset,
        "physical_offset": result.physical_offset,
        "size": result.size_bytes,
        "store_timestamp_ms": result.store_timestamp_ms,
        "message_id": result.message_id,
    }
    return Answer(facts, [facts])


def recover(folder: RocketmqFolder, repair: Repair, quiet: bool) -> Answer:
    """Exit code 1: something is to be done, or a choice is missing.  6 and 7: it was done."""
    folder.require_index_layout(has_rocksdb=True)
    passes = APPLY_PASSES if repair.apply else PLAN_PASSES
    with progress("recover", passes * folder.log_size(), quiet=quiet) as advance:
        recovery = Recovery(
            folder.target.path, Choice(repair.choice), folder.config(), keep_backup=repair.keep_backup,
            follow_links=repair.follow_links, force=repair.force, progress=advance, facts=folder.facts,
        )  # fmt: skip
        try:
            plan = recovery.apply() if repair.apply else recovery.plan()
        except UnsupportedFormat as error:
            if not repair.force and _is_known_but_for_magic(folder, repair):
                error.add_note(_step(folder, "--force --skip-bad", "if no newer program wrote it"))
            raise
    if plan.needs_choice:
        choices = " or ".join(f"--{name}{CHOICES[name]}" for name in plan.choices)
        print_line(f"brokerstore: safely stored data is damaged or missing: choose {choices}")
    for reason in plan.force_reasons:
        print_line(f"brokerstore: {reason}; recover does not change these files")
    if plan.needs_force:
        print_line("brokerstore: a broker may lose such messages: --skip-bad keeps every offset; --force truncates anyway")
    steps: list[str] = []
    if plan.needs_choice:
        steps = [
            _step(
                folder,
                f"--{name}{_force(folder, name)} --apply",
                f"loses {count_text(cost.messages_lost, 'message')}; {_KEEPS[name]}",
            )
            for name, cost in plan.choices.items()
        ]
    elif plan.needs_force:
        steps = [
            _step(folder, "--skip-bad --apply", _KEEPS["skip-bad"]),
            _step(folder, "--truncate --force --apply", _KEEPS["truncate"]),
        ]
    elif plan.unrepaired and not plan.steps:
        steps = [f"a person has to decide: {_left(one)}" for one in plan.unrepaired]
    return plan_answer(
        plan, applied=plan.is_applied, facts={"report": recovery.report_path}, report=recovery.report_path,
        needs_choice=plan.needs_choice or plan.needs_force, about=f"The log ends at {plan.valid_end}.", next_steps=steps,
    )  # fmt: skip


def _step(folder: RocketmqFolder, options: str, why: str) -> str:
    return f"run: brokerstore recover {quote(folder.target.path)} {options}  ({why})"


def _left(one: Unrepaired) -> str:
    found = one.finding
    return f"{found.file}: {found.expected} expected, found {found.found}: {one.advice}"


def _force(folder: RocketmqFolder, choice: str) -> str:
    """Return the option that a choice needs where files may point behind the cut."""
    return " --force" if choice == Choice.TRUNCATE.value and folder.facts.cut_refusals() else ""


def _is_known_but_for_magic(folder: RocketmqFolder, repair: Repair) -> bool:
    """Return whether a recovery with `force` would understand the log."""
    try:
        Recovery(folder.target.path, Choice(repair.choice), folder.config(), force=True).plan()
    except UnsupportedFormat:
        return False
    return True


def rebuild(folder: RocketmqFolder, what: str, quiet: bool, apply: bool) -> Answer:
    """Rebuild from the log; a sound queue or index file gets the same bytes again if its size is unchanged."""
    folder.require_index_layout(has_rocksdb=True)
    names = ALL if what == "all" else frozenset({what})
    subject = " and ".join(sorted(names))
    if not apply:
        size = folder.log_size()
        text = ["Nothing was changed; --apply executes the plan.", f"Rebuild {subject} from {size_text(size)} of log files"]
        return Answer({"plan": sorted(names), "applied": False, "log_bytes": size}, text)
    logging.getLogger("brokerstore.consumequeue").setLevel(logging.ERROR)  # queues of listed messages have gaps here
    with progress("rebuild", folder.log_size(), quiet=quiet) as advance:
        made = rebuild_store(folder.target.path, names, folder.config(), progress=advance)
    text = [f"Rebuilt {subject} from {size_text(made.log_bytes)} of log"]
    text += [f"{count_text(made.queues, 'queue')}, {count_text(made.units, 'unit')}"] if "consumequeue" in names else []
    text += [count_text(made.index_files, "index file")] if "index" in names else []
    text += [count_text(made.timers, "pending timer")] if "timers" in names else []
    facts = {name: value for name, value in made._asdict().items() if name != "timers" or "timers" in names}
    return Answer({"rebuilt": sorted(names), "applied": True, **facts}, text)
