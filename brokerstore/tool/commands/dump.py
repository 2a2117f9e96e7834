"""`dump`: every message of a folder."""

from __future__ import annotations

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
    rocketmq_only=(*ROCKETMQ_FILTERS, "decode"),
)
@JSON
@with_filters
@LIMIT
@with_decoding
def dump(backend: Backend, as_json: bool, filters: Filters, limit: int | None) -> int:
    """Print every message, in the order of the log or queues.

    Damage is reported and skipped.
    """
    count = 0
    if as_json:
        for block in backend.dump_json(filters, limit):
            emit_block(block)
            count += 1
    else:
        count = show_messages(backend, backend.dump(filters, limit), as_json, heading=limit != 0)
    if not count and limit != 0 and filters != Filters():  # a name may be mistyped
        print_line(f"brokerstore: no message matches; run: brokerstore ls {quote(backend.target.path)}  (lists the queues)")
    return backend.code
