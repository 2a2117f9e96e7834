"""`put` and `rebuild` of a RabbitMQ folder; both leave what a server leaves that starts on the folder and stops again.

Opening for writing does what a server does when it starts: it replays journals and drops transient messages, which the command
has to allow.  Queues must exist, because new ones are declared in the server's own database.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from rabbitstore import QueueInfo, RabbitStore
from rabbitstore.format.layout import CLEAN_FILES
from rabbitstore.format.properties import FIELDS, encode
from rabbitstore.read.unsupported import refuse_unsupported
from storageio import REAL_DISK, StoreError

from ..codes import CLEAN, REPAIRED_DROPPED
from ..escapes import quote
from ..hints import NoSuchMessage
from ..output import Answer, count_text, print_line, problem_text
from . import Outgoing
from .rabbitmq_folder import RabbitmqFolder

_KINDS = dict(FIELDS)


class TransientMessages(StoreError):
    """Opening for writing would drop transient messages."""

    def __init__(self, path: str, count: int) -> None:
        """Name the command that saves them first."""
        dropped = f"{count_text(count, 'transient message')}, as a server does when it starts"
        super().__init__(f"{path}: opening for writing would drop {dropped}; nothing was changed")
        step = f"run: brokerstore export {quote(path)} --out FILE  (saves the messages; then add --drop-transient)"
        self.add_note(step)


def put(backend: RabbitmqFolder, outgoing: Outgoing, drop_transient: bool) -> Answer:
    """Publish to an existing queue and stop cleanly."""
    properties = _properties(outgoing)
    encode(properties)
    body = outgoing.read_body()
    with _open_for_writing(backend.path, drop_transient, outgoing.topic) as (store, _dropped):
        msg_id = store.publish(outgoing.topic, body, routing_keys=outgoing.keys or None, properties=properties)
    facts = {"queue": outgoing.topic, "msg_id": msg_id.hex(), "size": len(body), "properties": properties}
    return Answer(facts, [{**facts, "properties": " ".join(f"{name}={value}" for name, value in properties.items())}])


def _need_queue(path: str, rows: list[QueueInfo], name: str) -> None:
    """Raise `NoSuchMessage` for a missing queue, before anything is opened for writing."""
    if all(row.queue != name for row in rows):
        step = f"run: brokerstore ls {quote(path)}  (lists its queues; only a server can declare a new one)"
        raise NoSuchMessage(f"{path}: there is no queue {name!r}", step)


def _properties(outgoing: Outgoing) -> dict[str, Any]:
    """Return the properties that AMQP names, numbers as numbers, and every other one as a header."""
    found: dict[str, Any] = {}
    headers: dict[str, str] = {}
    for name, value in dict(outgoing.properties).items():
        kind = _KINDS.get(name, "F")
        if kind == "F":
            headers[name] = value
        else:
            found[name] = value if kind == "s" else _number(name, value)
    if found.get("delivery_mode", 2) != 2:
        raise click.BadParameter("delivery_mode must be 2, so that the message survives", param_hint="--property")
    return {**found, "headers": headers} if headers else found


def _number(name: str, text: str) -> int:
    size_max = (1 << 64) - 1 if name == "timestamp" else 255
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > size_max:
        raise click.BadParameter(f"{name}={text!r} is not a number from 0 to {size_max}", param_hint="--property")
    return int(text)


def rebuild(backend: RabbitmqFolder, drop_transient: bool, apply: bool) -> Answer:
    """Write the files of a clean stop, from queues and messages."""
    path = backend.path
    if not apply:
        return _rebuild_plan(path)
    with _open_for_writing(path, drop_transient) as (store, dropped):
        counts = {"queues": len(store.queue_names()), "messages": _count(store), "dropped": dropped}
    made = [name for name in CLEAN_FILES if REAL_DISK.stat(f"{path}/{name}") is not None]
    text = f"Rebuilt {', '.join(made)}: {count_text(counts['queues'], 'queue')}, {count_text(counts['messages'], 'message')}"
    return Answer({"rebuilt": made, "applied": True, **counts}, [text], REPAIRED_DROPPED if dropped else CLEAN)


def _rebuild_plan(path: str) -> Answer:
    refuse_unsupported(path)
    rows = RabbitStore.open(path, "r").queues()
    messages, transient = sum(row.messages for row in rows), _transient(rows)
    counts = {"queues": len(rows), "messages": messages, "transient": transient}
    step = f"Write the files of a clean stop: {count_text(len(rows), 'queue')}, {count_text(messages, 'message')}"
    text = ["Nothing was changed; --apply executes the plan.", step]
    if transient:
        text.append(f"{count_text(transient, 'transient message')} would be dropped; --drop-transient allows it")
    return Answer({"plan": ["write the files of a clean stop"], "applied": False, **counts}, text)


def _transient(rows: list[QueueInfo]) -> int:
    return sum(row.messages - row.persistent for row in rows)


@contextlib.contextmanager
def _open_for_writing(path: str, drop_transient: bool, queue: str | None = None) -> Iterator[tuple[RabbitStore, int]]:
    """Open the store and stop it cleanly; yield it with the number of messages that opening dropped, which is reported."""
    refuse_unsupported(path)
    rows = RabbitStore.open(path, "r").queues()
    if queue is not None:
        _need_queue(path, rows, queue)
    before = sum(row.messages for row in rows)
    transient = _transient(rows)
    if transient and not drop_transient:
        raise TransientMessages(path, transient)
    with RabbitStore.open(path, "r+") as store:
        for problem in store.lost:
            print_line(f"brokerstore: {problem_text(problem)}")
        dropped = before - _count(store)
        if dropped:
            what = "transient ones, or ones that no file has"
            print_line(f"brokerstore: {count_text(dropped, 'message')} dropped, as a server does when it starts: {what}")
        yield store, dropped


def _count(store: RabbitStore) -> int:
    return sum(row.messages for row in store.queues())
