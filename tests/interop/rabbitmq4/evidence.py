"""Write docs/evidence/rabbitmq4-damage.md: what a real server does with each damage, what `verify` says, what `recover` saves.

    BROKERSTORE_INTEROP=1 python -m tests.interop.rabbitmq4.evidence [PART OF A NAME ...]

Each damage is one change in a copy of one folder.  The server is started on the damaged copy, and on another one that was
recovered before.  Results are kept in a file of JSON lines, so that an interrupted run continues.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.brokerstore.tool import run

from .damages import AFTER_A_RESTART, DAMAGES, Node
from .judge import Delivered, Judge, listed
from .programs import body, declare, run_and_kill
from .server import why_not

PAGE = Path(__file__).parents[3] / "docs/evidence/rabbitmq4-damage.md"
QUEUES = ["q.one", "q.two", "q.three", "s.one", "s.two"]
CLASSIC = "c.one"
SEED, DURATION_S, CLASSIC_COUNT = 7, 3.0, 120
BASE_TRIES, WAL_SIZE_MIN = 8, 1000
UNSUPPORTED = 3
UNSEEN = """
## Damage that no file contradicts

- A wrong byte in a body of the shared store: its records have no checksum.
- Zeros in place of a whole entry of `N.qi`: an acknowledgement leaves them. If only the status is zero, `verify` adds a note.
- A cut `N.qi` whose lost entries are those of messages in the shared store: a record without an entry looks acknowledged.
- The loss of the newest write-ahead log, if segments and older logs have all entries before it: nothing counts its own.
- A smaller block size in a list of free blocks of `names.dets` or `meta.dets`: bytes are in no block, and no row is lost.
"""
Contents = dict[str, tuple[str, list[Delivered]]]


def make_base(judge: Judge, target: Path) -> None:
    """Save the folder of a node that was killed when it had two write-ahead logs with records."""
    for _ in range(BASE_TRIES):
        _fill_and_kill(judge)
        if len([file for file in judge.node.glob("quorum/*/*.wal") if file.stat().st_size > WAL_SIZE_MIN]) > 1:
            judge.save(target)
            return
        shutil.rmtree(judge.node.parent)
        judge.node.parent.mkdir()
    raise AssertionError("no folder has two write-ahead logs")


def _fill_and_kill(judge: Judge) -> None:
    """Fill a node by random programs, and a classic queue, and kill it."""
    import pika

    assert not judge.start()
    declare(judge, QUEUES, random.Random(SEED))
    connection = judge.connect()
    channel = connection.channel()
    channel.queue_declare(CLASSIC, durable=True)
    channel.confirm_delivery()
    for number in range(CLASSIC_COUNT):
        size = 200 if number % 3 else 30_000
        properties = pika.BasicProperties(message_id=f"{CLASSIC}-{number}", delivery_mode=2)
        channel.basic_publish("", CLASSIC, body(CLASSIC, number, size), properties)
    run_and_kill(judge, QUEUES, SEED, DURATION_S)


def _restart(judge: Judge, folder: Path) -> None:
    """Save the folder after another start, which elects the writers of the streams anew, and a kill."""
    judge.put_back(folder / "base")
    assert not judge.start(), judge.log()[-2000:]
    judge.kill()
    judge.save(folder / "restarted")


def expected(base: Path) -> Contents:
    """Return what the undamaged folder has."""
    rows = [Delivered(f"{CLASSIC}-{n}", body(CLASSIC, n, 200 if n % 3 else 30_000), 0) for n in range(CLASSIC_COUNT)]
    return listed(base) | {CLASSIC: ("classic", rows)}


def served(judge: Judge, folder: Path, whole: Contents) -> str:
    """Start the server on a folder and describe how what it delivers differs from what the undamaged folder has."""
    judge.put_back(folder)
    before = _segments(judge.node)
    if judge.start():
        return "does not start"
    try:
        found = [text for queue in whole if (text := _difference(judge, queue, whole))]
        deleted = len(before - _segments(judge.node))
    finally:
        judge.kill()
    if deleted and any("loses" in text or "unusable" in text for text in found):
        found.append(f"deletes {deleted} stream segment{'' if deleted == 1 else 's'}")
    return "; ".join(found) or "delivers everything"


def _segments(node: Path) -> set[Path]:
    return set((node / "stream").glob("*/*.segment"))


def _difference(judge: Judge, queue: str, whole: Contents) -> str:
    kind, rows = whole[queue]
    got = judge.drain(queue, kind, len(rows))
    if isinstance(got, str):
        return f"{kind} queue unusable" if kind != "stream" else "stream unusable"
    requested, found = (Counter((row.message_id, row.body) for row in part) for part in (rows, got))
    ids = {row.message_id for row in got}
    wrong = sum(count for (name, _body), count in (found - requested).items() if any(name == row.message_id for row in rows))
    lost = sum(row.message_id not in ids for row in rows)
    parts = [f"loses {lost} of {len(rows)}"] if lost else []
    parts += [f"delivers {wrong} wrong or twice"] if wrong else []
    return f"{kind}: {', '.join(parts)}" if parts else ""


def judged(judge: Judge, name: str, base: Path, whole: Contents, work: Path) -> dict[str, Any]:
    """Let the server judge one damage."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work)
    shutil.copy(f"{base}-feature_flags", f"{work}-feature_flags")
    DAMAGES[name](Node(work, SEED))
    row: dict[str, Any] = {"damage": name, "folder": contents_of(whole), "verify": _verified(work)}
    row["server"] = served(judge, work, whole)
    ran = run("recover", "--apply", "--json", work)
    if ran.code == UNSUPPORTED or (name.startswith("classic") and not ran.json["applied"]):
        return row | {"recover": "", "after": ""}
    node = ran.json.get("node", {})
    row["recover"] = (
        ", ".join(dict.fromkeys(action["kind"] for action in [*ran.json["plan"]["actions"], *node["actions"]])) or "nothing"
    )
    if node.get("unrepaired"):
        row["recover"] = f"{row['recover']}; leaves {node['unrepaired'][0]['kind']}"
    return row | {"after": served(judge, work, whole)}


def _verified(work: Path) -> str:
    found = run("verify", "--json", work).json
    kinds = dict.fromkeys([one["kind"] for one in found["problems"]])
    notes = dict.fromkeys(f"{one['kind']} (note)" for one in found["notes"] if one["kind"] != "unsupported_format")
    return ", ".join([*kinds, *notes]) or "nothing"


def contents_of(whole: Contents) -> str:
    """Return what a folder has, as text."""
    counts = Counter[str]()
    for kind, part in whole.values():
        counts[kind] += len(part)
    quorum, streams, classic = (counts[kind] for kind in ("quorum", "stream", "classic"))
    return f"{quorum} messages in quorum queues, {streams} in streams and {classic} in a classic queue"


def page_of(rows: list[dict[str, Any]]) -> str:
    """Return the text of the page."""
    lines = [
        "# Damage to a RabbitMQ 4 node",
        "",
        "Written by `python -m tests.interop.rabbitmq4.evidence`. For each damage RabbitMQ 4.0.5 was started on a copy of one",
        "folder, and on another copy after `brokerstore recover --apply`. The folder is that of a node killed at work.",
        *(f"It has {folder}." for folder in list(dict.fromkeys(row["folder"] for row in rows))[:1]),
        *(f"That of the rows from `{first}` on has {folder}." for folder, first in _others(rows)),
        "",
        f"{len(rows)} damages. Empty cells: `recover` changes nothing.",
        "",
        "| Damage | RabbitMQ 4.0.5 | `verify` | `recover` | RabbitMQ after `recover` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append("| " + " | ".join((row["damage"], row["server"], row["verify"], row["recover"], row["after"])) + " |")
    return "\n".join(lines) + "\n" + UNSEEN


def _others(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return each later folder of an interrupted run with its first damage."""
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(row["folder"], row["damage"])
    return list(first.items())[1:]


def main(parts: list[str]) -> None:
    """Judge the damages that the results do not have yet, and write the page."""
    assert not why_not(), why_not()
    folder = Path(os.environ.get("BROKERSTORE_EVIDENCE") or Path(tempfile.gettempdir()) / "brokerstore-evidence")
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.jsonl"
    rows = {row["damage"]: row for row in map(json.loads, results.read_text().splitlines())} if results.exists() else {}
    judge = Judge("evidence", 30, is_patient=False)
    try:
        if not (folder / "base").exists():
            make_base(judge, folder / "base")
        if not (folder / "restarted").exists():
            _restart(judge, folder)
        for name in DAMAGES:
            if name not in rows and (not parts or any(part in name for part in parts)):
                base = folder / ("restarted" if name in AFTER_A_RESTART else "base")
                rows[name] = judged(judge, name, base, expected(base), folder / "work")
                with results.open("a") as file:
                    file.write(json.dumps(rows[name]) + "\n")
                print(rows[name], flush=True)
    finally:
        judge.server.close()
    PAGE.write_text(page_of([rows[name] for name in DAMAGES if name in rows]))


if __name__ == "__main__":
    main(sys.argv[1:])
