"""`group`: delete a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import APPLY_PLAN, JSON, TEXT, store_command
from ..output import show

if TYPE_CHECKING:
    from ..backends.rocketmq_folder import RocketmqFolder


@click.group(epilog="\b\nExamples:\n  brokerstore group delete --help")
def group() -> None:
    """Delete a group of consumers."""


@store_command(
    "delete", "group delete orders-store billing", "group delete orders-store billing --apply", sizes=True, rocketmq_only=True
)
@click.argument("name", type=TEXT)
@JSON
@APPLY_PLAN
def delete(backend: RocketmqFolder, name: str, as_json: bool, apply: bool) -> int:
    """Delete a group: its offsets, its settings, and the messages that wait for a retry; dead letters stay.

    A group with an open consumer is refused. Works on a store that processes share, too.
    """
    from ..backends.rocketmq_changes import delete_group

    return show(delete_group(backend, name, apply), as_json)


group.add_command(delete)
