"""The fields of a stored message, whatever its protocol and its term."""

from __future__ import annotations

from typing import NamedTuple


class Content(NamedTuple):
    """A message without its position in a queue.

    `properties_bin` is the AMQP 0-9-1 property block that a consumer gets (`rabbitstore.format.properties` decodes it).
    """

    vhost: str
    exchange: str
    routing_keys: tuple[str, ...]
    properties_bin: bytes
    body: bytes
    msg_id: bytes
    persistent: bool
