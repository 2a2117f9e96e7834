"""`put`: one message into a folder."""

from __future__ import annotations

import click

from ..backends import Folder, Outgoing, is_rabbitmq
from ..options import DROP_TRANSIENT, JSON, QUEUE_ID, TEXT, named_values, store_command
from ..output import show


@store_command(
    "put",
    'put orders-store orders "two books" --key order-17 --tag paid --property region=eu',
    "put orders-store orders --body-file letter.txt --queue 0",
    'put vhost mail "two letters" --property message_id=letter-2 --property priority=1',
    sizes=True,
    rocketmq_only=("tag", "queue_id"),
    rabbitmq_only=("drop_transient",),
)
@click.argument("topic", type=TEXT)
@click.argument("body", required=False)
@JSON
@click.option("--body-file", metavar="FILE", type=click.Path(), help="File with the body, '-' for stdin; stdin without a body.")
@click.option("--key", "keys", type=TEXT, multiple=True, help="A key; may be repeated.")
@click.option("--tag", type=TEXT, help="The tag.")
@click.option("--property", "properties", type=TEXT, metavar="NAME=VALUE", multiple=True, help="A property; may be repeated.")
@click.option("--queue", "queue_id", type=QUEUE_ID, help="The queue id; by default from the key, or in turn.")
@DROP_TRANSIENT
def put(
    folder: Folder, topic: str, body: str | None, as_json: bool, body_file: str | None, keys: tuple[str, ...],
    tag: str | None, properties: tuple[str, ...], queue_id: int | None, drop_transient: bool,
) -> int:  # fmt: skip
    """Put one message; it is on the disk when the command ends.

    In a RabbitMQ folder TOPIC is the queue, --key a routing key, and --property one of AMQP's, or a header.
    """
    if body is not None and body_file is not None:
        raise click.UsageError("give a body or --body-file, not both")
    outgoing = Outgoing(topic, body, body_file, keys, tag, named_values(properties), queue_id)

    if is_rabbitmq(folder):
        from ..backends.rabbitmq_write import put as of_rabbitmq

        return show(of_rabbitmq(folder, outgoing, drop_transient), as_json)
    from ..backends.rocketmq_write import put as of_rocketmq

    return show(of_rocketmq(folder, outgoing), as_json)
