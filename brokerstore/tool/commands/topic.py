"""`topic`: delete a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import APPLY_PLAN, JSON, TEXT, store_command
from ..output import show

if TYPE_CHECKING:
    from ..backends.rocketmq_folder import RocketmqFolder


@click.group(epilog="\b\nExamples:\n  brokerstore topic delete --help")
def topic() -> None:
    """Delete a topic with its queues."""


@store_command(
    "delete", "topic delete orders-store orders", "topic delete orders-store orders --apply", sizes=True, rocketmq_only=True
)
@click.argument("name", type=TEXT)
@JSON
@APPLY_PLAN
def delete(backend: RocketmqFolder, name: str, as_json: bool, apply: bool) -> int:
    """Delete a topic: its queues, its settings, and the offsets of all groups in it.

    A topic that an open consumer uses is refused. Works on a store that processes share, too.
    """
    from ..backends.rocketmq_changes import delete_topic

    return show(delete_topic(backend, name, apply), as_json)


topic.add_command(delete)
