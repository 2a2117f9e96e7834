"""`verify`: every check of a folder."""

from __future__ import annotations

import click

from ..backends import Backend
from ..options import JSON, QUIET, store_command
from ..output import show


@store_command(
    "verify", "verify orders-store", "verify orders-store --log-only --quiet --json", "verify vhost", sizes=True
)  # fmt: skip
@JSON
@QUIET
@click.option("--log-only", is_flag=True, help="Check the log alone, without queues, index, checkpoint and config.")
def verify(backend: Backend, as_json: bool, quiet: bool, log_only: bool) -> int:
    """Check every file and record; report each problem.

    Queues and index are compared with the log in both directions.
    """
    return show(backend.verify(quiet, log_only), as_json)
