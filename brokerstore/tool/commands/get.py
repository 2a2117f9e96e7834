"""`get`: one message, or several of one queue."""

from __future__ import annotations

import click

from ..backends import MessageLookup
from ..backends.opening import Backend
from ..options import JSON, OFFSET, POSITIVE, QUEUE, TOPIC, store_command, with_decoding
from ..output import show_messages


@store_command(
    "get",
    "get orders-store --at 0",
    "get orders-store --topic orders --queue 0 --offset 0 --count 2",
    "get vhost --queue mail --offset 0",
    sizes=True,
    rocketmq_only=("at", "topic", "decode"),
)
@JSON
@click.option("--at", type=OFFSET, help="Physical offset of the message.")
@click.option("--id", "message_id", help="Id of the message.")
@TOPIC
@QUEUE
@click.option("--offset", type=OFFSET, help="First queue offset (RabbitMQ: sequence number).")
@click.option("--count", type=POSITIVE, default=1, show_default=True, help="Number of messages from there on.")
@with_decoding
def get(
    backend: Backend, as_json: bool, at: int | None, message_id: str | None, topic: str | None, queue: str | None,
    offset: int | None, count: int,
) -> int:  # fmt: skip
    """Print one message, or several of one queue."""
    by_queue = topic is not None or queue is not None or offset is not None
    if (at is not None) + (message_id is not None) + by_queue != 1:
        raise click.UsageError("give one of --at, --id, or a queue with --offset")
    found = backend.get(MessageLookup(at, message_id, topic, queue, offset, count))
    is_short = by_queue and count > 1 and not backend.details_of_many
    show_messages(backend, found, as_json, details=not is_short, heading=False)
    return backend.code
