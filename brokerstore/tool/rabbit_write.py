"""`put` and `rebuild` on a RabbitMQ folder: what a server that starts on it and stops again would leave, with a message more.

Opening for writing does what a server does at its start: journals are replayed, and transient messages go, which has to be
asked for.  The queues are those that are there: new ones are declared in the server's own database.
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

from .absent import NoSuchMessage
from .codes import CLEAN, REPAIRED_DROPPED
from .escapes import quote
from .options import named_values
from .output import emit, emit_json, fields, say
from .put import Outgoing, body_of
from .rabbit_commands import problem_text, vhost_path
from .target import Target

_KINDS = dict(FIELDS)


class TransientMessages(StoreError):
    """They would go without anybody's wish."""

    def __init__(self, path: str, count: int) -> None:
        """`count` of them."""
        super().__init__(f"{path}: {count} transient messages would go, as at a start of the server; nothing was changed")
        step = f"run: brokerstore export {quote(path)} --out FILE  (takes all messages out; then again with --drop-transient)"
        self.add_note(step)


def put_message(target: Target, as_json: bool, outgoing: Outgoing, *, drop_transient: bool) -> int:
    """Publish to one queue, which must be there, and stop cleanly."""
    if outgoing.tag is not None or outgoing.queue_id is not None:
        raise click.UsageError("--tag and --queue work on a RocketMQ store; of a RabbitMQ folder TOPIC is the queue")
    properties = _properties(outgoing)
    encode(properties)
    body, path = body_of(outgoing), vhost_path(target)
    with _open_for_writing(path, drop_transient, outgoing.topic) as (store, _gone):
        msg_id = store.publish(outgoing.topic, body, routing_keys=outgoing.keys or None, properties=properties)
    facts = {"queue": outgoing.topic, "msg_id": msg_id.hex(), "size": len(body), "properties": properties}
    if as_json:
        emit_json(facts)
    else:
        fields({**facts, "properties": " ".join(f"{name}={value}" for name, value in properties.items())})
    return CLEAN


def _need_queue(path: str, rows: list[QueueInfo], name: str) -> None:
    """Before anything is opened for writing."""
    if all(row.queue != name for row in rows):
        step = f"run: brokerstore ls {quote(path)}  (its queues; a new one is the server's to declare)"
        raise NoSuchMessage(f"{path}: no queue is called {name!r}", step)


def _properties(outgoing: Outgoing) -> dict[str, Any]:
    """AMQP's own by their names, numbers as numbers; every other name is a header."""
    found: dict[str, Any] = {}
    headers: dict[str, str] = {}
    for name, value in dict(named_values(outgoing.properties)).items():
        kind = _KINDS.get(name, "F")
        if kind == "F":
            headers[name] = value
        else:
            found[name] = value if kind == "s" else _number(name, value)
    if found.get("delivery_mode", 2) != 2:
        raise click.BadParameter("delivery_mode: 2 wanted, for what shall be there after this", param_hint="--property")
    return {**found, "headers": headers} if headers else found


def _number(name: str, text: str) -> int:
    size_max = (1 << 64) - 1 if name == "timestamp" else 255
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > size_max:
        raise click.BadParameter(f"{name}={text!r}: 0 to {size_max} wanted", param_hint="--property")
    return int(text)


def rebuild_tables(target: Target, as_json: bool, *, drop_transient: bool) -> int:
    """The files of a clean stop, from queues and messages: a server then starts without reading every message."""
    path = vhost_path(target)
    with _open_for_writing(path, drop_transient) as (store, gone):
        counts = {"queues": len(store.queue_names()), "messages": _count(store), "dropped": gone}
    made = [name for name in CLEAN_FILES if REAL_DISK.stat(f"{path}/{name}") is not None]
    if as_json:
        emit_json({"rebuilt": made, **counts})
    else:
        emit(f"Rebuilt {', '.join(made)}: {counts['queues']} queues, {counts['messages']} messages")
    return REPAIRED_DROPPED if gone else CLEAN


@contextlib.contextmanager
def _open_for_writing(path: str, drop_transient: bool, queue: str | None = None) -> Iterator[tuple[RabbitStore, int]]:
    """The store, and how many messages its opening took away, which is said; a clean stop at the end.  It has the `queue`."""
    refuse_unsupported(path)
    rows = RabbitStore.open(path, "r").queues()
    if queue is not None:
        _need_queue(path, rows, queue)
    before = sum(row.messages for row in rows)
    transient = before - sum(row.persistent for row in rows)
    if transient and not drop_transient:
        raise TransientMessages(path, transient)
    with RabbitStore.open(path, "r+") as store:
        for problem in store.lost:
            say(f"brokerstore: {problem_text(problem)}")
        gone = before - _count(store)
        if gone:
            say(f"brokerstore: {gone} messages went, as at a start of the server: transient ones, or such as no file has")
        yield store, gone


def _count(store: RabbitStore) -> int:
    return sum(row.messages for row in store.queues())
