"""`put`: one message into a RocketMQ store."""

from __future__ import annotations

import sys
from typing import NamedTuple

import click

from commitlog import Message
from messagestore import FlushMode, MessageStore

from .codes import CLEAN
from .options import named_values
from .output import emit_json, fields
from .target import Target


class Outgoing(NamedTuple):
    """What the command line says of the message; `properties` as NAME=VALUE; `topic` of a RabbitMQ folder is a queue."""

    topic: str
    body: str | None
    body_file: str | None
    keys: tuple[str, ...]
    tag: str | None
    properties: tuple[str, ...]
    queue_id: int | None


def put_message(target: Target, as_json: bool, outgoing: Outgoing) -> int:
    """Put it and sync; the store must be there."""
    target.need_store()
    target.need_shape()
    message = _message(outgoing)
    config = target.config().but(flush_disk_type=FlushMode.SYNC, deliver_delayed=False)
    with MessageStore.open(target.path, "r+", config) as store:
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
    if as_json:
        emit_json(facts)
    else:
        fields(facts)
    return CLEAN


def _message(outgoing: Outgoing) -> Message:
    properties = dict(named_values(outgoing.properties))
    queue_id = -1 if outgoing.queue_id is None else outgoing.queue_id
    keys = list(outgoing.keys) or None
    return Message(
        outgoing.topic, body_of(outgoing), tags=outgoing.tag, keys=keys, properties=properties or None, queue_id=queue_id
    )


def body_of(outgoing: Outgoing) -> bytes:
    """As it was given, byte for byte."""
    if outgoing.body is not None:
        return outgoing.body.encode("utf-8", "surrogateescape")
    if outgoing.body_file in (None, "-"):
        return sys.stdin.buffer.read()
    try:
        with open(str(outgoing.body_file), "rb") as file:
            return file.read()
    except OSError as error:
        raise click.BadParameter(f"{outgoing.body_file}: {error.strerror}", param_hint="--body-file") from error
