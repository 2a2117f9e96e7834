"""`stats`: counts of messages and bytes."""

from __future__ import annotations

import click

from ..backends import Folder, is_rabbitmq
from ..options import JSON, QUIET, store_command
from ..output import show


@store_command("stats", "stats orders-store", "stats orders-store --by hour", "stats vhost --json", rocketmq_only=("by",))
@JSON
@click.option(
    "--by",
    type=click.Choice(["queue", "hour"]),
    default="queue",
    show_default=True,
    help="What a row counts.",
)
@QUIET
def stats(folder: Folder, as_json: bool, by: str, quiet: bool) -> int:
    """Count messages and bytes of each queue or hour.

    Each row has the times of the first and the last message.
    """

    if is_rabbitmq(folder):
        from ..backends.rabbitmq_tables import stats as of_rabbitmq

        return show(of_rabbitmq(folder, quiet), as_json)
    from ..backends.rocketmq_tables import stats as of_rocketmq

    return show(of_rocketmq(folder, by, quiet), as_json)
