"""`recover`: the plan of a repair, and its execution."""

from __future__ import annotations

import click

from ..backends import Backend, Repair
from ..options import JSON, QUIET, store_command
from ..output import show


@store_command(
    "recover", "recover orders-store", "recover orders-store --apply --skip-bad", "recover vhost --apply --json", sizes=True
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
    backend: Backend, as_json: bool, quiet: bool, apply: bool, skip_bad: bool, truncate: bool, no_backup: bool,
    follow_links: bool, force: bool,
) -> int:  # fmt: skip
    """Show what would repair the folder; --apply executes it."""
    if skip_bad and truncate:
        raise click.UsageError("give --skip-bad or --truncate, not both")
    choice = "skip-bad" if skip_bad else "truncate" if truncate else "refuse"
    return show(backend.recover(Repair(apply, choice, not no_backup, follow_links, force), quiet), as_json)
