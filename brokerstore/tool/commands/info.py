"""`info`: what a folder holds."""

from __future__ import annotations

from ..backends import Folder, is_rabbitmq
from ..options import JSON, store_command
from ..output import show


@store_command("info", "info orders-store", "info vhost", "info orders-store --config broker.conf")
@JSON
def info(folder: Folder, as_json: bool) -> int:
    """Show what a folder holds: files, sizes, times, index.

    Only names, sizes and headers are read: files, first and last message, queues, index, checkpoint and config.
    """

    if is_rabbitmq(folder):
        from ..backends.rabbitmq_tables import info as of_rabbitmq

        return show(of_rabbitmq(folder), as_json)
    from ..backends.rocketmq_info import info as of_rocketmq

    return show(of_rocketmq(folder), as_json)
