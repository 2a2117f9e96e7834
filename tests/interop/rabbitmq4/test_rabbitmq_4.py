"""A real RabbitMQ 4.0: its confirmed messages are read after a kill and a stop, and no command harms them."""

from __future__ import annotations

import signal

import pytest

from tests.brokerstore.tool import run

from .server import AMQP_PORT, Server, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]
COUNT, QUEUE = 200, "c.orders"


def connect():
    pika = pytest.importorskip("pika")
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", AMQP_PORT, heartbeat=0))


def body(number):
    """Return a body; every third one is large enough for the shared store."""
    return b"%d:" % number * (1 if number % 3 else 2000)


def declare():
    connection = connect()
    connection.channel().queue_declare(QUEUE, durable=True)
    connection.close()


def publish():
    import pika

    connection = connect()
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(COUNT):
        properties = pika.BasicProperties(delivery_mode=2, message_id=f"m{number}")
        channel.basic_publish("", QUEUE, body(number), properties, mandatory=True)
    connection.close()


def drain():
    connection = connect()
    channel = connection.channel()
    rows = []
    while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
        rows.append((got[1].message_id, got[2]))
    connection.close()
    return rows


@pytest.fixture
def server():
    made = Server("interop")
    yield made
    made.close()


def read_and_written(node):
    """All messages are read in order without problems; writing commands keep them."""
    shown = run("dump", "--json", node)
    assert [row["properties"]["message_id"] for row in shown.lines] == [f"m{number}" for number in range(COUNT)]
    assert [row["size"] for row in shown.lines] == [len(body(number)) for number in range(COUNT)]
    checked = run("verify", "--json", node)
    assert (checked.code, checked.json["ok"], checked.json["counts"]["messages"]) == (0, True, COUNT)
    [vhost] = (node / "msg_stores/vhosts").iterdir()
    for command in (["recover", "--apply"], ["rebuild", "--drop-transient", "--apply"]):
        assert run(*command, vhost).code == 0, command
    assert run("dump", "--json", node).lines == shown.lines


def test_two_hundred_confirmed_messages_survive_every_command(server):
    """Messages are read after a kill and after a stop; the server started again delivers all in order."""
    # A declaration is logged only seconds after it was answered: a server killed before that starts without the queue.
    server.start()
    declare()
    server.end(signal.SIGTERM)
    server.start()
    publish()
    server.end(signal.SIGKILL)
    read_and_written(server.node)
    server.start()
    server.end(signal.SIGTERM)
    read_and_written(server.node)
    server.start()
    assert drain() == [(f"m{number}", body(number)) for number in range(COUNT)]
