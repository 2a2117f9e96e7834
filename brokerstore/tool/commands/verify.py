"""`verify`: every check of a folder."""

from __future__ import annotations

import click

from ..backends import Folder, is_rabbitmq
from ..options import JSON, QUIET, store_command
from ..output import show


@store_command(
    "verify", "verify orders-store", "verify orders-store --log-only --quiet --json", "verify vhost", sizes=True,
    rocketmq_only=("log_only",),
)  # fmt: skip
@JSON
@QUIET
@click.option("--log-only", is_flag=True, help="Check the log alone, without queues, index, checkpoint and config.")
def verify(folder: Folder, as_json: bool, quiet: bool, log_only: bool) -> int:
    """Check every file and record; report each problem.

    Queues and index are compared with the log in both directions.
    """

    if is_rabbitmq(folder):
        from ..backends.rabbitmq_check import check as of_rabbitmq

        return show(of_rabbitmq(folder, quiet), as_json)
    from ..backends.rocketmq_check import verify as of_rocketmq

    return show(of_rocketmq(folder, quiet, log_only), as_json)
