"""`top`: rates, depths and lags of a store, again and again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ..options import JSON, POSITIVE, store_command
from ..output import emit_json, show_live

if TYPE_CHECKING:
    from ..backends.rocketmq_folder import RocketmqFolder


@store_command("top", "top orders-store", "top orders-store --interval 0.2 --count 2 --json", sizes=True, rocketmq_only=True)
@JSON
@click.option(
    "--interval", "interval_s", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="SECONDS",
    help="Time between two views; rates are means over it.",
)  # fmt: skip
@click.option("--count", type=POSITIVE, help="Number of views; without it one, and on a terminal no limit.")
def top(backend: RocketmqFolder, as_json: bool, interval_s: float, count: int | None) -> int:
    """Show rates, depths, lags and what is stuck in a store.

    For each group: its lag, the age of the oldest message that it did not acknowledge, and how often that was delivered before.
    If processes share the store, also how many messages are in hand, and which processes consume. The store is opened for
    reading, which disturbs no writer.
    """
    from ..backends.rocketmq_top import views

    found = views(backend, interval_s, count if count is not None or sys.stdout.isatty() else 1)
    if not as_json:
        show_live(view.text for view in found)
        return backend.code
    for view in found:
        emit_json(view.facts)
        sys.stdout.flush()
    return backend.code
