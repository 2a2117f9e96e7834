"""`query`: the messages that have a key or a tag."""

from __future__ import annotations

import click

from ..backends.opening import Backend
from ..options import BEGIN, END, JSON, POSITIVE, TEXT, refuse_reversed, store_command, with_decoding
from ..output import show_messages


@store_command(
    "query",
    "query orders-store orders order-17",
    "query orders-store orders order-17 --json --begin 2020-01-01 --max 5",
    "query orders-store orders --tag paid",
    "query vhost mail letter-2",
    sizes=True,
    rocketmq_only=("begin_ms", "end_ms", "tag", "decode"),
)
@click.argument("topic", type=TEXT)
@click.argument("key", type=TEXT, required=False)
@click.option("--tag", type=TEXT, help="Tag of the messages, in place of KEY; the index of RocketMQ 5.4 and later has it.")
@JSON
@BEGIN
@END
@click.option("--max", "max_count", type=POSITIVE, default=32, show_default=True, help="Number of messages at most.")
@with_decoding
def query(
    backend: Backend, topic: str, key: str | None, tag: str | None, as_json: bool, begin_ms: int | None, end_ms: int | None,
    max_count: int,
) -> int:  # fmt: skip
    """Find the messages of a topic that have a key or a tag.

    The index has their places. In a RabbitMQ folder TOPIC is the queue, and KEY a routing key, message id or correlation id.
    """
    refuse_reversed(begin__end=(begin_ms, end_ms))
    if (key is None) == (tag is None):
        raise click.UsageError("give either KEY or --tag")
    found = list(backend.query(topic, tag or key or "", (begin_ms, end_ms), max_count, is_tag=tag is not None))
    show_messages(backend, found, as_json, heading=bool(found))
    return backend.code
