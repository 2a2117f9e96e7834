"""`decode-id`: what a message id holds."""

from __future__ import annotations

import click

from ..options import JSON, plain_command
from ..output import Answer, show


@plain_command("decode-id", "decode-id 7F00000100002A9F0000000000000000")
@click.argument("message_id", metavar="ID")
@JSON
def decode_id(message_id: str, as_json: bool) -> int:
    """Show the broker address and physical offset in a message id."""
    from ..backends.rocketmq import decode_offset_id

    decoded = decode_offset_id(message_id)
    facts = {"message_id": message_id, "store_host": decoded.store_host, "physical_offset": decoded.physical_offset}
    return show(Answer(facts, [{"Broker": decoded.store_host, "Physical offset": decoded.physical_offset}]), as_json)
