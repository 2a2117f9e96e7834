"""`requeue`: dead letters back to their topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..filters import Filters
from ..options import APPLY_PLAN, JSON, TEXT, store_command, with_filters
from ..output import show

if TYPE_CHECKING:
    from ..backends.rocketmq_folder import RocketmqFolder


@store_command(
    "requeue", "requeue orders-store billing", "requeue orders-store billing --key order-17 --apply", sizes=True,
    rocketmq_only=True,
)  # fmt: skip
@click.argument("group", type=TEXT)
@JSON
@with_filters
@APPLY_PLAN
def requeue(backend: RocketmqFolder, group: str, as_json: bool, filters: Filters, apply: bool) -> int:
    """Put dead letters of GROUP to their topics again, each once.

    --topic selects by the topic that a message came from; other filters look at the dead letter. Every group of that topic
    gets the message. Works on a store that processes share, too.
    """
    from ..backends.rocketmq_changes import requeue as of_group

    return show(of_group(backend, group, filters, apply), as_json)
