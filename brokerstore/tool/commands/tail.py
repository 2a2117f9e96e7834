"""`tail`: the last messages, and those that arrive."""

from __future__ import annotations

import click

from ..backends.opening import Backend
from ..filters import Filters
from ..options import JSON, OFFSET, ROCKETMQ_FILTERS, store_command, with_decoding, with_filters
from ..output import show_messages


@store_command(
    "tail",
    "tail orders-store -n 5",
    "tail orders-store -f --topic orders",
    "tail vhost --queue mail -n 1",
    sizes=True,
    rocketmq_only=(*ROCKETMQ_FILTERS, "follow", "decode"),
)
@JSON
@with_filters
@click.option("-n", "--lines", type=OFFSET, default=10, show_default=True, help="Number of messages to show.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new messages until interrupted.")
@with_decoding
def tail(backend: Backend, as_json: bool, filters: Filters, lines: int, follow: bool) -> int:
    """Print the last messages of the log.

    In a RabbitMQ folder: the last messages of each queue.
    """
    show_messages(backend, backend.tail(filters, lines, follow), as_json)
    return backend.code
