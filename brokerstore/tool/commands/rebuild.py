"""`rebuild`: derived files from the messages."""

from __future__ import annotations

import click

from ..backends import Folder, is_rabbitmq
from ..options import APPLY, DROP_TRANSIENT, JSON, QUIET, store_command
from ..output import show


@store_command(
    "rebuild",
    "rebuild orders-store --plan",
    "rebuild orders-store index --apply --json",
    "rebuild vhost --apply",
    sizes=True,
    rocketmq_only=("what",),
    rabbitmq_only=("drop_transient",),
)
@click.argument("what", type=click.Choice(["consumequeue", "index", "timers", "all"]), default="all")
@JSON
@QUIET
@DROP_TRANSIENT
@APPLY
def rebuild(folder: Folder, what: str, as_json: bool, quiet: bool, drop_transient: bool, apply: bool) -> int:
    """Rebuild queues, index or timer files from the log.

    "all" means queues and index. In a RabbitMQ folder: the files of a clean stop, so that a server starts without
    reading every message.
    """

    if is_rabbitmq(folder):
        from ..backends.rabbitmq_write import rebuild as of_rabbitmq

        return show(of_rabbitmq(folder, drop_transient, apply), as_json)
    from ..backends.rocketmq_write import rebuild as of_rocketmq

    return show(of_rocketmq(folder, what, quiet, apply), as_json)
