"""`dump`: every message of a folder."""

from __future__ import annotations

import click

from ..backends.opening import Backend
from ..escapes import quote
from ..filters import Filters
from ..options import JSON, LIMIT, ROCKETMQ_FILTERS, store_command, with_decoding, with_filters
from ..output import emit_block, print_line, show_messages


@store_command(
    "dump",
    "dump orders-store --limit 20",
    "dump orders-store --json --topic orders --tag paid --begin 2020-01-01",
    "dump vhost --queue mail --from-offset 3 --to-offset 5",
    "dump a@localhost c@localhost",
    rocketmq_only=(*ROCKETMQ_FILTERS, "decode"),
)
@click.argument("others", metavar="[DIR]...", nargs=-1, type=click.Path())
@JSON
@with_filters
@LIMIT
@with_decoding
def dump(backend: Backend, others: tuple[str, ...], as_json: bool, filters: Filters, limit: int | None) -> int:
    """Print every message, in the order of the log or queues.

    Damage is reported and skipped. Of several nodes of a RabbitMQ cluster, each queue is that of its newest copy.
    """
    sides = [backend]
    if others:
        from ..backends.rabbitmq_cluster import newest_sides

        sides = list(newest_sides(backend, others))
    count = 0
    for side in sides:
        left = None if limit is None else max(0, limit - count)
        if as_json:
            for block in side.dump_json(filters, left):
                count += bytes(block).count(b"\n") if limit is not None else 1
                emit_block(block)
        else:
            count += show_messages(side, side.dump(filters, left), as_json, heading=limit != 0 and side is backend)
    if not count and limit != 0 and filters != Filters():  # a name may be mistyped
        print_line(f"brokerstore: no message matches; run: brokerstore ls {quote(backend.target.path)}  (lists the queues)")
    return max(side.code for side in sides)
