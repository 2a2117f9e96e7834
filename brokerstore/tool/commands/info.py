"""`info`: what a folder holds."""

from __future__ import annotations

import click

from ..backends import Folder, is_rabbitmq
from ..options import JSON, store_command
from ..output import show


@store_command(
    "info", "info orders-store", "info vhost", "info orders-store --config broker.conf", "info a@localhost c@localhost"
)
@click.argument("others", metavar="[DIR]...", nargs=-1, type=click.Path())
@JSON
def info(folder: Folder, others: tuple[str, ...], as_json: bool) -> int:
    """Show what a folder holds: files, sizes, times, index.

    Only names, sizes and headers are read: files, first and last message, queues, index, checkpoint and config.
    Of several nodes of a RabbitMQ cluster, show which folder has the newest copy of each queue, and what only one has.
    """
    if others:
        from ..backends.rabbitmq_cluster import info as of_cluster

        return show(of_cluster(folder, others), as_json)
    if is_rabbitmq(folder):
        from ..backends.rabbitmq_tables import info as of_rabbitmq

        return show(of_rabbitmq(folder), as_json)
    from ..backends.rocketmq_info import info as of_rocketmq

    return show(of_rocketmq(folder), as_json)
