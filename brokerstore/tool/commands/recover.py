"""`recover`: the plan of a repair, and its execution."""

from __future__ import annotations

import click

from ..backends import Folder, Repair, is_rabbitmq
from ..options import JSON, QUIET, store_command
from ..output import show


@store_command(
    "recover",
    "recover orders-store",
    "recover orders-store --apply --skip-bad",
    "recover vhost --apply --json",
    sizes=True,
    rocketmq_only=("skip_bad", "truncate", "follow_links", "force"),
)
@JSON
@QUIET
@click.option("--apply", is_flag=True, help="Execute the plan; without this nothing is changed.")
@click.option("--skip-bad", is_flag=True, help="Close holes with filler records and keep what follows them.")
@click.option("--truncate", is_flag=True, help="End the log at the first hole, as RocketMQ does.")
@click.option("--no-backup", is_flag=True, help="Do not keep a copy of what is cut.")
@click.option("--follow-links", is_flag=True, help="Also repair a log that is a symbolic link to another disk.")
@click.option("--force", is_flag=True, help="Truncate even before compacted topics; treat an unknown magic number as damage.")
def recover(
    folder: Folder, as_json: bool, quiet: bool, apply: bool, skip_bad: bool, truncate: bool, no_backup: bool,
    follow_links: bool, force: bool,
) -> int:  # fmt: skip
    """Show what would repair the folder; --apply executes it."""
    if skip_bad and truncate:
        raise click.UsageError("give --skip-bad or --truncate, not both")
    choice = "skip-bad" if skip_bad else "truncate" if truncate else "refuse"
    repair = Repair(apply, choice, not no_backup, follow_links, force)

    if is_rabbitmq(folder):
        from ..backends.rabbitmq_check import recover as of_rabbitmq

        return show(of_rabbitmq(folder, repair, quiet), as_json)
    from ..backends.rocketmq_write import recover as of_rocketmq

    return show(of_rocketmq(folder, repair, quiet), as_json)
