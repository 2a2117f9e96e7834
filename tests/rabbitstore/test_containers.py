"""Message containers of every protocol: terms that RabbitMQ 4.0.5 stored, and what its AMQP 0-9-1 client received."""

from __future__ import annotations

import pytest

from rabbitstore.format.content import decode_content
from rabbitstore.format.properties import Typed, decode, encode
from rabbitstore.format.server_headers import with_server_headers
from rabbitstore.format.terms import UNDEFINED, Atom
from storageio import StoreCorrupt, UnsupportedFormat

from .test_rabbitmq_4 import container

MQTT_3 = """
83680477026d6377076d635f6d717474680977086d7174745f6d7367770566616c736561016d00000005612f622f63770566616c736561016d00000028666f
7572666f7572666f7572666f7572666f7572666f7572666f7572666f7572666f7572666f757274000000007709756e646566696e6564740000000577026964
6d000000108226d8507689fa134db36a7e066dd05a7701647704747275657701786d00000009616d712e746f7069637702726b6c000000016d00000005612e
622e636a77037274736e0600f817490ea201
"""
MQTT_QOS_0 = """
83680477026d6377076d635f6d717474680977086d7174745f6d7367770566616c736561006d00000004612f7130770566616c73657709756e646566696e65
646d000000097472616e7369656e7474000000007709756e646566696e65647400000005770269646d0000001017202aa22c1abacf67c400eb61a9d0b17701
64770566616c73657701786d00000009616d712e746f7069637702726b6c000000016d00000004612e71306a77037274736e0600f917490ea201
"""
MQTT_5 = """
83680477026d6377076d635f6d717474680977086d7174745f6d7367770566616c736561016d00000006612f66697665770566616c736561026d0000000466
6976657400000006770c436f6e74656e742d547970656d0000000a746578742f706c61696e77174d6573736167652d4578706972792d496e74657276616c62
000186a07710436f7272656c6174696f6e2d446174616d00000006636f72722d31770e526573706f6e73652d546f7069636d000000087265706c792f746f77
0d557365722d50726f70657274796c0000000368026d00000006782d757365726d00000002763168026d000000036b65796d00000002763268026d00000003
6b65796d0000000276336a77185061796c6f61642d466f726d61742d496e64696361746f7261017709756e646566696e65647400000008770269646d000000
1065c28c55132e5f42cdeab42643af404e770374746c6205f5e1007701647704747275657701786d00000009616d712e746f7069637702726b6c000000016d
00000006612e666976656a770274736e06002919490ea201770e636f7272656c6174696f6e5f69646d00000006636f72722d3177037274736e06002919490e
a201
"""
MQTT_BINARY = """
83680477026d6377076d635f6d717474680977086d7174745f6d7367770566616c736561016d00000007612f6669766532770566616c736561036d00000005
356669766574000000017710436f7272656c6174696f6e2d446174616d00000014fffefffefffefffefffefffefffefffefffefffe7709756e646566696e65
647400000005770269646d00000010ad51a49773954ff3fdd0bb9bbe7ffbd57701647704747275657701786d00000009616d712e746f7069637702726b6c00
0000016d00000007612e66697665326a77037274736e06002d19490ea201
"""
DELIVERED = {  # route, body and properties as a client of AMQP 0-9-1 received them
    MQTT_3: ("a.b.c", b"four" * 10, {"delivery_mode": 2}),
    MQTT_5: (
        "a.five",
        b"five",
        {
            "content_type": "text/plain",
            "headers": {"key": b"v2", "x-reply-to-topic": "reply.to", "x-user": b"v1"},
            "delivery_mode": 2,
            "correlation_id": "corr-1",
            "expiration": "100000000",
            "timestamp": 1795536001,
        },
    ),
    MQTT_BINARY: ("a.five2", b"5five", {"headers": {"x-correlation-id": b"\xff\xfe" * 10}, "delivery_mode": 2}),
}


@pytest.mark.parametrize("text", DELIVERED)
def test_messages_of_mqtt_are_what_the_client_received(text: str) -> None:
    """Messages of MQTT 3.1.1 and 5 have the route, body and properties that the server delivered."""
    key, body, properties = DELIVERED[text]
    found = decode_content(bytes.fromhex(text))
    assert (found.exchange, found.routing_keys, found.body, found.persistent) == ("amq.topic", (key,), body, True)
    assert decode(found.properties_bin) == decode(encode(properties))


def test_a_message_of_mqtt_without_confirmation_is_transient() -> None:
    """Quality of service 0 makes a transient message, which a restart drops."""
    found = decode_content(bytes.fromhex(MQTT_QOS_0))
    assert (found.body, found.persistent, decode(found.properties_bin)) == (b"transient", False, {"delivery_mode": 1})


def test_damaged_messages_of_mqtt_are_damage() -> None:
    """A cut term raises `StoreCorrupt`; a whole one with a quality of service that MQTT does not have is not understood."""
    whole = bytes.fromhex(MQTT_3)
    with pytest.raises(StoreCorrupt):
        decode_content(whole[:-1])
    with pytest.raises(UnsupportedFormat):
        decode_content(whole.replace(b"w\x05falsea\x01m", b"w\x05falsea\x07m", 1))


def test_another_protocol_is_not_read() -> None:
    """A container of an unknown protocol is rejected by name."""
    with pytest.raises(UnsupportedFormat, match="mc_stomp"):
        decode_content(container(b"body", "mc_stomp"))


def test_headers_of_a_dead_lettered_message_come_from_its_annotations() -> None:
    """`x-death` lists every death, newest first; the time to live of an expired message goes."""
    sent = encode({"expiration": "7000", "headers": {"own": 1}, "delivery_mode": 2})
    key, record = (b"q", Atom("expired")), (Atom("death"), b"ex", [b"rk", b"cc"], 2)
    times = {Atom("first_time"): 1700000000999, Atom("last_time"): 1700000005000, Atom("ttl"): 7000}
    annotations = {Atom("ttl"): UNDEFINED, Atom("deaths"): [(key, (*record, times))], b"x-last-death-queue": b"q", b"x-n": 5}
    death = {
        "original-expiration": "7000",
        "count": Typed("l", 2),
        "reason": "expired",
        "queue": "q",
        "time": Typed("T", 1700000000),
        "exchange": "ex",
        "routing-keys": ["rk", "cc"],
    }
    headers = {"own": 1, "x-death": [death], "x-last-death-queue": "q", "x-n": Typed("l", 5)}
    assert decode(with_server_headers(sent, annotations)) == {"headers": headers, "delivery_mode": 2}
    assert with_server_headers(sent, {Atom("p"): 3}) is sent


def test_the_death_record_of_earlier_releases_is_read() -> None:
    """Before 4.0 the annotation was a record with a map, and had the first death in it."""
    key = (b"q", Atom("maxlen"))
    record = (Atom("death"), b"", [b"q"], 1, {Atom("first_time"): 5000, Atom("last_time"): 5000})
    found = decode(with_server_headers(encode({}), {Atom("deaths"): (Atom("deaths"), key, key, {key: record})}))
    assert found["headers"]["x-first-death-reason"] == "maxlen" and found["headers"]["x-first-death-queue"] == "q"
    assert [death["queue"] for death in found["headers"]["x-death"]] == ["q"]
