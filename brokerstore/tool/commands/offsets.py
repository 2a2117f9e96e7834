"""`offsets`: the progress of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..escapes import quote
from ..options import APPLY, I64_MAX, JSON, QUEUE_ID, TEXT, TIME, TIME_HELP, store_command
from ..output import print_line, show

if TYPE_CHECKING:
    from ..backends.rocketmq_folder import RocketmqFolder


@click.group(epilog="\b\nExamples:\n  brokerstore offsets show orders-store")
def offsets() -> None:
    """Show and set the offsets of consumer groups."""


@store_command(
    "show",
    "offsets show orders-store",
    "offsets show orders-store --group billing --topic orders --json",
    sizes=True,
    rocketmq_only=True,
)
@JSON
@click.option("--group", type=TEXT, help="Only this group.")
@click.option("--topic", type=TEXT, help="Only this topic.")
def show_offsets(backend: RocketmqFolder, as_json: bool, group: str | None, topic: str | None) -> int:
    """Show offset and lag of every group and queue."""
    from ..backends.rocketmq_offsets import show as list_offsets

    answer = list_offsets(backend, group, topic)
    given = [f"{name} {value!r}" for name, value in (("group", group), ("topic", topic)) if value is not None]
    if given and not answer.facts["offsets"]:
        path = quote(backend.target.path)
        print_line(
            f"brokerstore: no offsets of {' and '.join(given)}; run: brokerstore offsets show {path}  (lists all offsets)"
        )
    return show(answer, as_json)


@store_command(
    "reset",
    "offsets reset orders-store --group billing --topic orders --to earliest --plan",
    "offsets reset orders-store --group billing --topic orders --queue 0 --to-time 2020-01-01T00:00:00Z --apply",
    sizes=True,
    rocketmq_only=True,
)
@JSON
@click.option("--group", type=TEXT, required=True, help="The group.")
@click.option("--topic", type=TEXT, required=True, help="The topic.")
@click.option("--queue", "queue_id", type=QUEUE_ID, help="Only this queue id.")
@click.option("--to", "where", help="earliest, latest, or a queue offset.")
@click.option("--to-time", "time_ms", type=TIME, metavar="TIME", help=f"First message stored at or after TIME: {TIME_HELP}")
@APPLY
def reset(
    backend: RocketmqFolder, as_json: bool, group: str, topic: str, queue_id: int | None, where: str | None,
    time_ms: int | None, apply: bool,
) -> int:  # fmt: skip
    """Set the next offset to read; no broker may run.

    Processes may share the store.
    """
    is_location = where in ("earliest", "latest") or _is_offset(where)
    if (where is None) == (time_ms is None) or (where is not None and not is_location):
        raise click.UsageError("give one of --to earliest|latest|OFFSET and --to-time TIME")
    from ..backends.rocketmq_offsets import reset as set_offsets

    return show(set_offsets(backend, (group, topic, queue_id), where, time_ms, apply), as_json)


def _is_offset(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= I64_MAX


offsets.add_command(show_offsets)
offsets.add_command(reset)
