"""`purge`: skip the messages of a topic that were not acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import APPLY_PLAN, JSON, TEXT, store_command
from ..output import show

if TYPE_CHECKING:
    from ..backends.rocketmq_folder import RocketmqFolder


@store_command(
    "purge", "purge orders-store orders", "purge orders-store orders --group billing --apply", sizes=True, rocketmq_only=True
)
@click.argument("topic", type=TEXT)
@JSON
@click.option("--group", type=TEXT, help="Only for this group; by default for every group of the topic.")
@APPLY_PLAN
def purge(backend: RocketmqFolder, topic: str, as_json: bool, group: str | None, apply: bool) -> int:
    """Skip every message of a topic that was not acknowledged.

    Works on a store that processes share, too: their workers go on behind these messages. The messages stay in the store.
    """
    from ..backends.rocketmq_changes import purge as of_topic

    return show(of_topic(backend, topic, group, apply), as_json)
