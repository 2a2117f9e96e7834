"""Folders that servers of several releases wrote one after the other, judged at the end by the last server.

Each server goes on with the folder of the one before, adds queues of its own, and is stopped or killed at work.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rabbitstore.node_folder import NodeFolder
from tests.brokerstore.tool import run

from . import many
from .judge import Judge
from .server import home_of
from .years import SUITES, Row

KHEPRI = "khepri_db"  # a step: the server of the step before moves its metadata from Mnesia to Khepri
RENAMED = "renamed"  # a step: the same server with another name, by `rabbitmqctl` if it can and else by the folder's name
NAMES, WITH_RENAME = ("many", "other"), ("bullseye", "bookworm")
ENDS = (signal.SIGKILL, signal.SIGTERM)
EACH, LIFE_S = 60, 6.0  # programs of a chain, and how long they run in each life
VHOST_DOWN = "vhost '/' is down"  # what 3.8.9 makes of some folders of its own after a kill
NOT_STARTED = "does not start"
# Of marks of 3.8 and 3.10 that a flush brought into a segment and not into the journal: the server does not start the queue.
CUT_SHORT = {"mark_too_many", "published_twice"}
# Of messages without a confirm; a segment of 3.8 and 3.10 that was just opened; the folder of an empty queue of 4.3.6, and one
# that a purge had begun to delete.
KILLED = {"message_lost", "lost_index", "missing_queue", "bad_queue_name"}
# What 3.10.8 writes for messages that 3.8.9 left undelivered: it does not start all of these queues before `recover`.
UPGRADED = {"ack_without_delivery", "bad_recovery_terms", "bad_ref_count"}
# Of queues that a renamed node refuses: their logs are those of its former name.
FORMER = {"undeclared_queue", "unregistered_stream"}
# Of the metadata that 4.0.5 begins anew for another name, before it refuses the folder.
BEGUN = {"missing_vhost", "missing_user", "missing_permission"}
PERSON = FORMER | {"missing_queue"}  # what `recover` leaves to a person
NOT_REPAIRED = "recover ends with 1"
UPGRADE = ("bullseye", "bookworm")
REFUSED = ("bookworm", "trixie")  # 4.0.5 needs feature flags that 3.10.8 does not know, and leaves the folder to that
CHAINS = (
    *(UPGRADE, REFUSED, ("trixie", "sid"), ("trixie", KHEPRI), ("trixie", KHEPRI, "sid")),
    *((suite, RENAMED) for suite in SUITES),
)


class Outcome(NamedTuple):
    """What became of one chain: `wrong` is what must not be; `server` is what the last server made of the folder at first."""

    chain: tuple[str, ...]
    ends: tuple[str, ...]
    seed: int
    queues: int
    steps: int
    messages: dict[str, int]
    findings: list[str]
    server: str
    is_changed: bool
    wrong: list[str]


def name_of(chain: tuple[str, ...]) -> str:
    """Return the releases of a chain as a text."""
    return " to ".join(SUITES.get(step, {KHEPRI: "Khepri", RENAMED: "another name"}.get(step, "")) for step in chain)


def run_chain(chain: tuple[str, ...], life: int, seed: int, above: Path) -> Outcome:
    """Make a folder by the servers of a chain, each ended as the bits of `life` tell, and judge it.

    A server that refuses the folder ends the chain: the one before judges it then.
    """
    made = _Folder(chain, [], seed, {}, 0, above / "node", chain[0])
    for step, name in enumerate(chain):
        suite = name if name in SUITES else made.suite
        if why := _live(made, name, suite, ENDS[(life >> step) % 2]):
            return _judged(made)._replace(server=why)
        made.suite = suite
    return _judged(made)


@dataclass
class _Folder:
    """A folder while servers work on it: how each was ended, the queues, and the server that came last."""

    chain: tuple[str, ...]
    ends: list[signal.Signals]
    seed: int
    queues: many.Arguments
    steps: int
    node: Path
    suite: str
    name: str = NAMES[0]


@contextlib.contextmanager
def _judge(suite: str, name: str) -> Iterator[Judge]:
    judge = Judge(f"many-{os.getpid()}", 60, node_name=name, home=home_of(suite))
    try:
        yield judge
    finally:
        judge.server.close()
        gc.collect()  # connections to the ended server


def _live(made: _Folder, name: str, suite: str, how: signal.Signals) -> str:
    """Have a server go on with the folder and end; return why it does not start."""
    step = len(made.ends)
    node_name = NAMES[name == RENAMED]
    with _judge(suite, node_name) as judge:
        if step:
            judge.put_back(made.node)
        if name == RENAMED and suite in WITH_RENAME:
            assert judge.server.control("rename_cluster_node", *(f"{each}@localhost" for each in NAMES)) == ""
        if why := judge.start():
            assert step, why
            made.node = judge.save(made.node.with_name("refused"))
            reason = re.search(r"failed_to_\w+|$", why)
            return f"{SUITES[suite]} {NOT_STARTED}: {reason[0] if reason and reason[0] else why[-300:]}"
        if name == RENAMED and suite not in WITH_RENAME:
            made.queues = {}  # with Khepri the server begins as a new one
        elif step and name != RENAMED:
            flags = ("--opt-in", KHEPRI) if name == KHEPRI else ("all",)
            assert judge.server.control("enable_feature_flag", *flags) == ""
        seed = made.seed * 10 + step
        names = many.names_of(suite, seed, EACH // len(made.chain))
        made.queues |= many.declare(judge, suite, names, random.Random(made.seed))
        programs = [queue for queue in made.queues if queue[0] in "cqs" and "." in queue]
        steps = many.run_and_end(judge, programs, seed, LIFE_S, how)
        made.ends.append(how if steps else signal.SIGKILL)
        made.steps += steps
        made.node, made.name = judge.save(made.node.with_name(f"node{step}")), node_name
    return ""


def _judged(made: _Folder) -> Outcome:
    """Compare what is listed with what the last server delivers, before and after `recover`."""
    time.sleep(1)  # what expires immediately has expired
    node, queues = made.node, made.queues
    problems = run("verify", "--json", node).json["problems"]
    findings = sorted({one["kind"] for one in problems})
    wrong = [f"verify finds {kind}" for kind in findings if kind not in _allowed(made)]
    expected = many.expected(node, queues)
    with _judge(made.suite, made.name) as judge:
        raw = served(judge, node, queues, expected, unserved := _unserved(node, problems))
        needs_recover = VHOST_DOWN in str(raw) or bool((UPGRADED | CUT_SHORT) & set(findings)) or _has_deleted(problems)
        wrong += [] if needs_recover else raw
        is_flagged = bool(set(findings) - FORMER - BEGUN) and made.ends[-1] is signal.SIGTERM
        recovered, is_changed, more = _recovered(node, queues, _flagged(expected) if is_flagged else expected)
        wrong += [text for text in more if text != NOT_REPAIRED or not PERSON & set(findings)]
        if is_changed or raw:
            after = served(judge, recovered, queues, many.expected(recovered, queues), unserved)
            wrong += [f"after recover: {text}" for text in after]
    served_text = "refuses the named queues, delivers the others as listed" if unserved else "delivers what is listed"
    server = served_text if not raw else "needs `recover` first" if needs_recover else "differs"
    counts = dict(Counter(name[0] for name, rows in expected.items() for _row in rows))
    ends = tuple(how.name for how in made.ends)
    return Outcome(made.chain, ends, made.seed, len(queues), made.steps, counts, findings, server, is_changed, wrong)


def _allowed(made: _Folder) -> set[str]:
    """Return the findings that servers leave, ended as these were."""
    found = UPGRADED if made.chain == UPGRADE else FORMER | BEGUN if RENAMED in made.chain else set()
    return found | (KILLED | CUT_SHORT if signal.SIGKILL in made.ends else set())


def _has_deleted(problems: list[dict[str, Any]]) -> bool:
    """Return whether a kill may have come between the deletions of `N.qi` and `N.qs`, whose messages are all acknowledged.

    A lost `N.qi` leaves the same, so they are listed again (docs/formats/rabbitmq-damage.md#notes).
    """
    return any(one["kind"] == "lost_index" and one["file"].endswith(".qi") for one in problems)


def _unserved(node: Path, problems: list[dict[str, Any]]) -> set[str]:
    """Return the queues of which `verify` reports that a server delivers nothing."""
    with contextlib.closing(NodeFolder(str(node), "/")) as folder:
        streams = {f"stream/{one.folder}": one.queue for one in folder.streams}
    named = [(one["file"], one["expected"].removeprefix("a declaration for ")) for one in problems if one["kind"] in FORMER]
    return {streams[file] if file in streams else ast.literal_eval(name) for file, name in named}


def _flagged(expected: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Return rows as after a repair of a clean stop: classic queues flag all (docs/formats/rabbitmq-damage.md#repair)."""
    others = {name for name in expected if name[0] in "qs" and name not in many.SIDES}
    return {
        name: rows if name in others else [row._replace(redelivered=True) for row in rows] for name, rows in expected.items()
    }


def _recovered(node: Path, queues: many.Arguments, expected: dict[str, list[Row]]) -> tuple[Path, bool, list[str]]:
    """Recover a copy of a folder; return it, whether it is another one now, and what it lists otherwise.

    The start of the server drops a stream's last chunk without its index record, so a stream may list more.
    """
    target = node.with_name("recovered")
    shutil.copytree(node, target)
    shutil.copy(f"{node}-feature_flags", f"{target}-feature_flags")
    code = run("recover", "--apply", target).code
    wrong = [] if code in (0, 6, 7) else [NOT_REPAIRED if code == 1 else f"recover ends with {code}"]
    found = many.expected(target, queues)
    for name, rows in expected.items():
        after = found.get(name, [])
        if after[: len(rows)] != rows or (name[0] != "s" and len(after) != len(rows)):
            wrong.append(f"recover changes {name}: {len(rows)} before, {len(after)} after")
    return target, _contents(target) != _contents(node), wrong


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def served(
    judge: Judge, node: Path, queues: many.Arguments, expected: dict[str, list[Row]], unserved: Collection[str] = ()
) -> list[str]:
    """Start the server on a copy of a folder, and describe how what it delivers differs from the expected.

    It must refuse the queues of `unserved`; if there are any, the node may have forgotten others that are empty.
    """
    from pika.exceptions import AMQPError

    judge.put_back(node)
    if why := judge.start():
        return [f"the server {NOT_STARTED}: {why[-300:]}"]
    kept = {name: arguments for name, arguments in queues.items() if name not in unserved}
    try:
        with contextlib.closing(judge.connect()):
            counts = {name: len(expected.get(name, [])) for name in kept}
        found: dict[str, Any] = many.differences(
            kept, {name: rows for name, rows in expected.items() if name not in unserved}, many.delivered(judge, kept, counts)
        )
        if unserved:
            found = {name: one for name, one in found.items() if one[0] or not isinstance(one[1], str)}
        with ThreadPoolExecutor(many.CONNECTIONS) as pool:
            kinds = ("stream" if name[0] == "s" else "queue" for name in unserved)
            answers = pool.map(lambda name, kind: judge.drain(name, kind, 0), unserved, kinds)
            found |= {name: got for name, got in zip(unserved, answers, strict=True) if not isinstance(got, str)}
        return [f"{name}: {difference}" for name, difference in found.items()]
    except AMQPError as error:
        return [repr(error)]
    finally:
        judge.kill()
