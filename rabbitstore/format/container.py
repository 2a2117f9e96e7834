"""Read and write message containers, the term `{mc, Protocol, Data, Annotations}` of RabbitMQ 3.13 and later.

    mc_amqpl   {content, 60, none, PropertiesBin, rabbit_framing_amqp_0_9_1, Fragments}, as in basic_message,
               or {content, 60, P_basic, none, none, Fragments}
    mc_amqp    {v1, MessageAnnotations, Sections, Positions ...}: received by AMQP 1.0
    mc_mqtt    {mqtt_msg, Retain, Qos, Topic, Dup, PacketId, Payload, Properties, Timestamp}

A message of any protocol is converted to AMQP 0-9-1 as the server does for a consumer: see
docs/formats/rabbitmq-4.md#the-message-term.
"""

from __future__ import annotations

from typing import Any

from storageio import StoreCorrupt, UnsupportedFormat

from .amqp10 import Special, Symbol
from .amqp10_message import read_sections, to_content
from .content_cy import CLASS_ID
from .decoded_properties import encode_decoded
from .layout import MSG_ID_SIZE
from .message import Content
from .mqtt_message import mqtt_fields
from .server_headers import with_server_headers
from .terms import FALSE, NONE, Atom, is_damaged_name

CONTAINER = Atom("mc")
START = b"\x83h\x04w\x02mc"  # of every container as RabbitMQ writes it
_AMQP_0_9_1, _AMQP_1_0, _MQTT = "mc_amqpl", "mc_amqp", "mc_mqtt"
_STORED_FORM = "v1"  # of a message of AMQP 1.0
_RK, _X, _ID, _DURABLE = Atom("rk"), Atom("x"), Atom("id"), Atom("d")


def read_container(term: Any, file: str, base: int, *, needs_id: bool = True) -> Content:
    """Return the message; the name of its virtual host is empty, since the term does not have it.
    Messages of quorum queues have no id; without `needs_id` it is zero.

    Raise `UnsupportedFormat` for another protocol, and `ValueError`, `TypeError`, `KeyError` or `AttributeError` for damage.
    """
    _name, protocol, data, annotations = term
    match protocol:
        case "mc_amqpl":
            properties_bin, body = read_amqp_0_9_1(data, file, base)
        case "mc_amqp":
            properties_bin, body = _amqp_1_0(data, file, base)
        case "mc_mqtt":
            properties_bin, body = mqtt_fields(data, annotations)
        case str() if is_damaged_name(protocol, _AMQP_0_9_1):
            raise ValueError(f"protocol {protocol}")
        case _:
            known = ", ".join((_AMQP_0_9_1, _AMQP_1_0, _MQTT))
            raise UnsupportedFormat("message protocol", file=file, offset=base, found=protocol, supported=known)
    keys, exchange = annotations[_RK], annotations[_X]
    msg_id = annotations[_ID] if needs_id else bytes(MSG_ID_SIZE)
    if not isinstance(msg_id, bytes) or len(msg_id) != MSG_ID_SIZE:
        raise ValueError("wrong length of the id")
    routing_keys = tuple(key.decode("utf-8", "surrogateescape") for key in keys)
    persistent = annotations.get(_DURABLE) != FALSE
    block = with_server_headers(properties_bin, annotations)
    return Content("", exchange.decode("utf-8", "replace"), routing_keys, block, body, msg_id, persistent)


def read_amqp_0_9_1(content: Any, file: str, base: int) -> tuple[bytes, bytes]:
    """Return the property block and the body, whose fragments are in reverse order, of a record `content`.

    The server leaves out the block, and its protocol, where it has changed the headers itself.
    """
    name, class_id, decoded, properties_bin, framing, fragments = content
    if (name, class_id) != ("content", CLASS_ID):
        raise ValueError("not a content of AMQP 0-9-1")
    if properties_bin == NONE and decoded != NONE:
        properties_bin = encode_decoded(decoded, file, base)
    elif framing != "rabbit_framing_amqp_0_9_1" or not isinstance(properties_bin, bytes):
        raise ValueError("not a content of AMQP 0-9-1")
    return properties_bin, b"".join(reversed(fragments))


def _amqp_1_0(data: Any, file: str, base: int) -> tuple[bytes, bytes]:
    """Return property block and body of a message that was received by AMQP 1.0."""
    if not isinstance(data, tuple) or not data or data[0] != _STORED_FORM or len(data) < 3:
        found = str(data[0]) if isinstance(data, tuple) and data else "no record"
        raise UnsupportedFormat("form of an AMQP 1.0 message", file=file, offset=base, found=found, supported=_STORED_FORM)
    encoded = next((part for part in data[2:] if isinstance(part, bytes)), None)
    if encoded is None:
        raise StoreCorrupt("not a message", file=file, offset=base, expected="sections", found=repr(data)[:60])
    sections = read_sections(encoded, file=file, base=base)
    sections.annotations |= _message_annotations(data[1])
    content = to_content(sections, "")
    return content.properties_bin, content.body


def _message_annotations(term: Any) -> dict[Any, Any]:
    """Return message annotations, which the record has as a list of tagged pairs."""
    found: dict[Any, Any] = {}
    for row in term if isinstance(term, list) else []:
        if isinstance(row, tuple) and len(row) == 2 and isinstance(row[0], tuple) and len(row[0]) == 2:
            kind, value = row[1] if isinstance(row[1], tuple) and len(row[1]) == 2 else ("", row[1])
            if kind == "timestamp":
                value = Special("timestamp", value)
            elif isinstance(value, bytes) and kind in ("utf8", "symbol"):
                value = value.decode("utf-8", "surrogateescape")
            elif isinstance(value, Atom):
                value = {"true": True, "false": False}.get(value)
            name = row[0][1].decode("utf-8", "surrogateescape") if isinstance(row[0][1], bytes) else ""
            found[Symbol(name)] = value
    return found
