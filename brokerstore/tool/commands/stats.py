"""`stats`: counts of messages and bytes."""

from __future__ import annotations

import click

from ..backends import Backend
from ..options import JSON, QUIET, store_command
from ..output import show


@store_command("stats", "stats orders-store", "stats orders-store --by hour", "stats vhost --json")
@JSON
@click.option(
    "--by",
    type=click.Choice(["queue", "hour"]),
    default="queue",
    show_default=True,
    help="What a row counts.",
)
@QUIET
def stats(backend: Backend, as_json: bool, by: str, quiet: bool) -> int:
    """Count messages and bytes of each queue or hour.

    Each row has the times of the first and the last message.
    """
    return show(backend.stats(by, quiet), as_json)
