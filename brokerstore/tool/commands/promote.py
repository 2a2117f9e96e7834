"""`promote`: a replica's folder becomes a store of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import JSON, store_command
from ..output import show

if TYPE_CHECKING:
    from ..backends.rocketmq_folder import RocketmqFolder


@store_command("promote", "promote orders-store", "promote orders-store --apply --json", sizes=True, rocketmq_only=True)
@JSON
@click.option("--apply", is_flag=True, help="Execute the plan; without this nothing is changed.")
def promote(backend: RocketmqFolder, as_json: bool, apply: bool) -> int:
    """Make a replica's folder a store of its own.

    A real broker or a program can then continue it as the master.

    The master and `replicate` have to be stopped.  The answer has the settings that a broker needs for the folder.
    """
    from ..backends.rocketmq_promote import promote as make_store

    return show(make_store(backend, apply), as_json)
