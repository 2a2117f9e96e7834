"""Read message containers, the term `{mc, Protocol, Data, Annotations}` of RabbitMQ 3.13 and later.

    mc_amqpl   {content, 60, none, PropertiesBin, rabbit_framing_amqp_0_9_1, Fragments}, as in basic_message

See docs/formats/rabbitmq-4.md#the-message-term.  Messages of AMQP 1.0 (`mc_amqp`) and MQTT (`mc_mqtt`) are not read.
"""

from __future__ import annotations

from typing import Any

from storageio import UnsupportedFormat

from .content_cy import CLASS_ID, Fields
from .layout import MSG_ID_SIZE
from .terms import FALSE, Atom

CONTAINER = Atom("mc")
START = b"\x83h\x04w\x02mc"  # of every container as RabbitMQ writes it
_AMQP_0_9_1 = "mc_amqpl"


def read_container(term: Any, file: str, base: int, *, needs_id: bool = True) -> Fields:
    """Return the fields of `content.Content`; the name of the virtual host is empty, since the term does not have it.
    Messages of quorum queues have no id; without `needs_id` it is zero.

    Raise `UnsupportedFormat` for another protocol, and `ValueError`, `TypeError`, `KeyError` or `AttributeError` for damage.
    """
    _name, protocol, data, annotations = term
    if protocol != _AMQP_0_9_1:
        raise UnsupportedFormat("message protocol", file=file, offset=base, found=protocol, supported=_AMQP_0_9_1)
    properties_bin, body = _amqp_0_9_1(data)
    keys, exchange = annotations[Atom("rk")], annotations[Atom("x")]
    msg_id = annotations[Atom("id")] if needs_id else bytes(MSG_ID_SIZE)
    if not isinstance(msg_id, bytes) or len(msg_id) != MSG_ID_SIZE:
        raise ValueError("wrong length of the id")
    routing_keys = tuple(key.decode("utf-8", "surrogateescape") for key in keys)
    persistent = annotations.get(Atom("d")) != FALSE
    return "", exchange.decode("utf-8", "replace"), routing_keys, properties_bin, body, msg_id, persistent


def _amqp_0_9_1(data: Any) -> tuple[bytes, bytes]:
    """Return the property block and the body, whose fragments are in reverse order."""
    _name, class_id, _decoded, properties_bin, _protocol, fragments = data
    if class_id != CLASS_ID or not isinstance(properties_bin, bytes):
        raise ValueError("not a content of AMQP 0-9-1")
    return properties_bin, b"".join(reversed(fragments))
