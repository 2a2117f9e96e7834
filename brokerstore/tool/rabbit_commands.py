"""The commands on a RabbitMQ folder, through `rabbitstore`.  Only `recover_folder` with `apply` changes anything."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from rabbitstore import Problem, RabbitStore, StoredMessage, VhostFolder
from rabbitstore.format.problems import UNSUPPORTED
from rabbitstore.read.node import Node, survey
from rabbitstore.repair.check import size_bytes, verify
from rabbitstore.repair.recover import apply_recovery, plan_recovery
from storageio import StoreCorrupt

from .absent import NoSuchMessage
from .codes import CLEAN, NO_STORE, PROBLEM, REPAIRED_DROPPED, REPAIRED_KEPT
from .escapes import quote
from .log_commands import say_none_fits
from .output import body_text, emit, emit_json, fields, progress, say, size_text, table, time_text
from .target import Target
from .wanted import RabbitWanted

BODY_SHOWN = 60
BODY_SHOWN_ALONE = 1024
KEYS = ("queue", "vhost", "messages", "unacked", "persistent", "segments")


@contextlib.contextmanager
def open_folder(target: Target, told: list[Problem]) -> Iterator[VhostFolder]:
    """The virtual host's folder; in the end what was wrong is said."""
    with RabbitStore.open(target.path, "r", vhost=target.vhost) as store:
        folder = store.folder()
        try:
            yield folder
        finally:
            folder.close()
            told += dict.fromkeys(folder.problems)
            for problem in told:
                say(f"brokerstore: {problem_text(problem)}")
            _say_notes(len(dict.fromkeys(folder.notes)))
            say_not_read(target.path)


def say_not_read(path: str) -> None:
    """Report on stderr the queues of a node's folder that no command reads."""
    node = survey(path)
    if node is not None and node.not_read():
        say(f"brokerstore: not read: {node.not_read()}; the answer is about classic queues alone")


def not_read_keys(path: str) -> dict[str, Any]:
    """Return the same for JSON; empty where there are none."""
    node = survey(path)
    if node is None or not node.not_read():
        return {}
    return {"not_read": {"quorum_queues": node.quorum_queues, "streams": node.streams}}


def _say_notes(count: int) -> None:
    if count:
        were, them = ("message was", "it") if count == 1 else ("messages were", "them")
        say(f"brokerstore: note: {count} transient {were} only in the server's memory; it drops {them} at its next start")


def vhost_path(target: Target) -> str:
    """Of the virtual host."""
    return RabbitStore.open(target.path, "r", vhost=target.vhost).path


def outcome(told: list[Problem]) -> int:
    """Return the exit code of a command that found these: an unsupported format is no damage, but the answer is incomplete."""
    if any(problem.kind != UNSUPPORTED for problem in told):
        return PROBLEM
    return NO_STORE if told else CLEAN


def unsupported(notes: list[Problem]) -> list[Problem]:
    """Return those notes that mean that something was not checked."""
    return [note for note in notes if note.kind == UNSUPPORTED]


def problem_text(problem: Problem) -> str:
    """In a line."""
    if problem.kind == UNSUPPORTED:
        return f"{problem.file} at byte {problem.offset}: unsupported format: {problem.found} (supported: {problem.expected})"
    what = problem.kind.replace("_", " ")
    return f"{problem.file} at byte {problem.offset}: {what}: expected {problem.expected}, found {problem.found}"


def show_info(target: Target, as_json: bool) -> int:
    """From names, sizes and indexes."""
    told: list[Problem] = []
    with open_folder(target, told) as folder:
        queues = folder.queues()
        facts: dict[str, Any] = {
            "kind": target.kind.value,
            "path": folder.path,
            "vhost": folder.vhost,
            "clean_stop": folder.is_clean,
            "segment_entries": folder.segment_entries,
            "index_versions": sorted({queue.version for queue in queues}),
            "queues": len(queues),
            "messages": sum(queue.messages for queue in queues),
            "persistent": sum(queue.persistent for queue in queues),
            "stores": _store_rows(folder),
            "classic_queues": _by_version(folder),
        }
    node = survey(target.path)
    if node is not None:
        facts |= node.to_json() | {"reads": READS}
    facts["problems"] = [problem._asdict() for problem in told]
    if as_json:
        emit_json(facts)
    else:
        stores = [f"{row['store']}: {row['files']} files, {size_text(row['size_bytes'])}" for row in facts.pop("stores")]
        versions = ", ".join(f"{count} of {name.replace('_', ' ')}" for name, count in facts["classic_queues"].items() if count)
        texts = {"stores": "; ".join(stores), "classic_queues": versions or "none", "problems": len(told) or NOT_CHECKED}
        fields({**facts, **texts, **({} if node is None else _node_texts(node))})
    return outcome(told)


READS = ["classic queues of index version 1 (read and written)", "classic queues of index version 2 (read)"]
NOT_CHECKED = "not checked (verify does)"


def _by_version(folder: VhostFolder) -> dict[str, int]:
    """How many queues have an index of each version."""
    versions = [queue.version for queue in folder.queues()]
    return {f"index_version_{version}": versions.count(version) for version in (1, 2)}


def _node_texts(node: Node) -> dict[str, object]:
    return {
        "quorum_queues": f"{len(node.quorum_queues)}, not read" if node.quorum_queues else "none",
        "streams": f"{len(node.streams)}, not read" if node.streams else "none",
        "metadata": f"{', '.join(node.metadata)}, not read" if node.metadata else "none",
        "server_version": f"{node.server_version} ({node.version_from})",
        "version_from": node.version_from,
        "reads": "; ".join(READS),
    }


def _store_rows(folder: VhostFolder) -> list[dict[str, Any]]:
    """Files and bytes of the message stores."""
    rows = []
    for name, store in folder.stores.items():
        sizes = [store.size_of(number) or 0 for number in store.file_numbers()]
        rows.append({"store": name, "files": len(sizes), "size_bytes": sum(sizes)})
    return rows


def list_queues(target: Target, as_json: bool) -> int:
    """One row a queue."""
    told: list[Problem] = []
    with open_folder(target, told) as folder:
        rows = [{key: getattr(queue, key) for key in KEYS} for queue in folder.queues()]
    if as_json:
        emit_json({"queues": rows, **not_read_keys(target.path)})
    else:
        table(KEYS, [["unknown" if cell is None else cell for cell in row.values()] for row in rows])
    return outcome(told)


def dump_messages(target: Target, as_json: bool, wanted: RabbitWanted, limit: int | None) -> int:
    """One line a message, in the order a broker would deliver them."""
    told: list[Problem] = []
    shown = 0
    with open_folder(target, told) as folder:
        for message in islice(filter(wanted.takes, folder.messages(wanted.queue)), limit):
            _show_row(message, as_json, told)
            shown += 1
    if not shown and limit != 0 and wanted != RabbitWanted():
        say_none_fits(target)
    return outcome(told)


def show_tail(target: Target, as_json: bool, wanted: RabbitWanted, lines: int) -> int:
    """The last `lines` wanted messages of each queue: between queues there is no order."""
    told: list[Problem] = []
    with open_folder(target, told) as folder:
        for _queue, found in groupby(folder.messages(wanted.queue), attrgetter("queue")):
            for message in deque(filter(wanted.takes, found), maxlen=lines):
                _show_row(message, as_json, told)
    return outcome(told)


def query_messages(target: Target, as_json: bool, queue: str, key: str, max_count: int) -> int:
    """Every message of a queue is looked at: there is no index of keys.  None found is an answer too."""
    told: list[Problem] = []
    with open_folder(target, told) as folder:
        found = (message for message in folder.messages(queue) if _has_key(message, key, told))
        shown = 0
        for message in islice(found, max_count):
            _show_row(message, as_json, told)
            shown += 1
        is_known = any(row.queue == queue for row in folder.queues())
    if not is_known:
        say(f"brokerstore: there is no queue {queue!r}; run: brokerstore ls {quote(target.path)}")
    elif not shown:
        say(f"brokerstore: no message of queue {queue!r} has the key {key!r}; run: brokerstore dump {quote(target.path)}")
    return outcome(told)


def _has_key(message: StoredMessage, key: str, told: list[Problem]) -> bool:
    """Whether it is a routing key of the message, its id in the store, or what its publisher called it."""
    if key in message.routing_keys or key.lower() == message.msg_id.hex():
        return True
    try:
        named = message.properties
    except StoreCorrupt as error:
        told.append(_bad_properties(message, error))
        return False
    return key in [named.get(name) for name in ("message_id", "correlation_id")]


def _show_row(message: StoredMessage, as_json: bool, told: list[Problem]) -> None:
    if as_json:
        made = shown_json(message, told)
        if made is not None:
            emit_json(made)
        return
    flags = "".join(
        letter for letter, is_set in (("P", message.persistent), ("R", message.redelivered), ("E", message.embedded)) if is_set
    )
    route = f"{message.exchange}/{','.join(message.routing_keys)}"
    emit(f"{message.queue:<24}  {message.seq_id:>8}  {flags:<3}  {route}  {body_text(message.body, BODY_SHOWN)}")


def shown_json(message: StoredMessage, told: list[Problem]) -> dict[str, Any] | None:
    """None, with the problem told, for one whose property block is damaged."""
    try:
        return message.to_json()
    except StoreCorrupt as error:
        told.append(_bad_properties(message, error))
        return None


def _bad_properties(message: StoredMessage, error: StoreCorrupt) -> Problem:
    return Problem(message.file, message.offset, "bad_properties", f"{error.reason}: {error.expected}", str(error.found))


def get_messages(
    target: Target, as_json: bool, message_id: str | None, queue: str | None, seq_id: int | None, count: int
) -> int:  # fmt: skip
    """By message id (32 hex digits, in every queue that has it), or of one queue from a sequence number on."""
    told: list[Problem] = []
    shown = 0
    with open_folder(target, told) as folder:
        for message in folder.messages(queue):
            is_wanted = message.seq_id >= seq_id if seq_id is not None else message.msg_id.hex() == str(message_id).lower()
            if is_wanted:
                _show_row(message, True, told) if as_json else _show_whole(message, told)
                shown += 1
                if seq_id is not None and shown == count:
                    break
    if not shown and not told:
        raise NoSuchMessage(
            f"no such message in {target.path}", f"run: brokerstore ls {quote(target.path)}  (the queues and their messages)"
        )
    return outcome(told) if told or shown else PROBLEM


def _show_whole(message: StoredMessage, told: list[Problem]) -> None:
    """Every field, one a line."""
    shown = shown_json(message, told)
    if shown is None:
        return
    del shown["body_base64"]
    if message.expiry_us:
        shown["expiry_us"] = f"{message.expiry_us} ({time_text(message.expiry_us // 1000)})"
    shown["routing_keys"] = " ".join(shown["routing_keys"])
    shown["body"] = f"{len(message.body)} bytes: {body_text(message.body, BODY_SHOWN_ALONE)}"
    fields(shown)


def verify_folder(target: Target, as_json: bool, quiet: bool = False) -> int:
    """Every file and entry; each problem named."""
    path = vhost_path(target)
    with progress("verify", size_bytes(path), wanted=not quiet) as advance:
        found = verify(path, progress=advance)
    say_not_read(target.path)
    counts = {"queues": found.queues, "messages": found.messages, "records": found.records, "files": found.files}
    if as_json:
        problems = [problem._asdict() for problem in found.problems]
        notes = [note._asdict() for note in found.notes]
        emit_json({"ok": found.ok, "problems": problems, "notes": notes, "counts": counts, **not_read_keys(target.path)})
        return outcome(found.problems + unsupported(found.notes))
    for problem in found.problems:
        emit(f"problem: {problem_text(problem)}")
    for note in found.notes:
        emit(f"note: {problem_text(note)}")
    unread = f"not checked in full: {len(unsupported(found.notes))} of an unsupported format"
    verdict = "OK" if found.ok else f"{len(found.problems)} problems" if found.problems else unread
    emit(f"{verdict}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return outcome(found.problems + unsupported(found.notes))


def recover_folder(
    target: Target, as_json: bool, *, apply: bool, keep_backup: bool, quiet: bool = False
) -> int:  # fmt: skip
    """The plan, and with `apply` its execution."""
    path = vhost_path(target)
    with progress("recover", size_bytes(path) * (1 + apply), wanted=not quiet) as advance:
        plan = plan_recovery(path, progress=advance)
        if apply and plan.actions:
            apply_recovery(plan, keep_backup=keep_backup, progress=advance)
    if as_json:
        emit_json(plan.to_json())
    else:
        emit(f"{plan.records_kept} messages kept, {plan.records_dropped} dropped")
        for problem in plan.problems:
            emit(f"problem: {problem_text(problem)}")
        if plan.actions:
            table(["step", "file", "because of"], [list(action) for action in plan.actions])
        emit("Done" if plan.applied else "Nothing was changed; --apply does it" if plan.actions else "Nothing to do")
    if plan.applied:
        return REPAIRED_DROPPED if plan.records_dropped else REPAIRED_KEPT
    return PROBLEM if plan.actions else CLEAN


def show_stats(target: Target, as_json: bool, quiet: bool = False) -> int:
    """Of every queue: messages, bytes of bodies, how many are persistent, embedded, redelivered, with an expiry."""
    told: list[Problem] = []
    names = ("queue", "messages", "size_bytes", "persistent", "embedded", "redelivered", "expiring")
    with open_folder(target, told) as folder:
        rows = _rows(folder, len(names) - 1, quiet)
        stores = _store_rows(folder)
    found = [dict(zip(names, (queue, *row), strict=True)) for queue, row in sorted(rows.items())]
    total = {"messages": sum(row[0] for row in rows.values()), "size_bytes": sum(row[1] for row in rows.values())}
    if as_json:
        emit_json({"queues": found, "total": total, "stores": stores, **not_read_keys(target.path)})
    else:
        table(names, [list(row.values()) for row in found])
    return outcome(told)


def _rows(folder: VhostFolder, width: int, quiet: bool) -> dict[str, list[int]]:
    """By queue name, those without messages too."""
    queues = folder.queues()
    rows = {queue.queue: [0] * width for queue in queues}
    with progress("stats", sum(queue.messages for queue in queues), wanted=not quiet, is_bytes=False) as advance:
        for message in folder.messages():
            row = rows[message.queue]
            flags = (message.persistent, message.embedded, message.redelivered, message.expiry_us > 0)
            for place, amount in enumerate((1, message.size, *flags)):
                row[place] += amount
            advance(1)
    return rows
