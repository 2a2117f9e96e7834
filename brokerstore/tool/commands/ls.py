"""`ls`: the queues of a folder."""

from __future__ import annotations

from ..backends import Folder, is_rabbitmq
from ..options import JSON, store_command
from ..output import Answer, show


@store_command("ls", "ls orders-store", "ls vhost --json", sizes=True)
@JSON
def ls(folder: Folder, as_json: bool) -> int:
    """List topics and queues with their offsets and counts."""
    return show(list_queues(folder), as_json)


def list_queues(folder: Folder, topic: str | None = None) -> Answer:
    """List the queues, or those of one topic."""

    if is_rabbitmq(folder):
        from ..backends.rabbitmq_tables import ls as of_rabbitmq

        return of_rabbitmq(folder)
    from ..backends.rocketmq_tables import ls as of_rocketmq

    return of_rocketmq(folder, topic)
