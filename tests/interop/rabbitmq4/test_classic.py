"""Classic queues of a real RabbitMQ 4: folders written by us, damaged and recovered ones, and random programs with kills.

The server restarts on each folder and delivers exactly what was listed before, in order.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import closing
from random import Random

import pytest

from brokerstore.migrate import export_to_rabbit, import_rabbit
from rabbitstore import RabbitSettings, RabbitStore, StoreSettings, apply_recovery, verify
from rabbitstore.format.names import queue_folder_name
from rabbitstore.format.properties import Typed
from tests.rabbitstore.classic_damage import DAMAGES

from .server import Server, why_not
from .workload import SIZES, Program, body_of, connect, drain, forget, publish

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]
VHOST = "msg_stores/vhosts/628WB79CIFDYO9LJI6DKMI09L"
QUEUES = {"c.one": 0, "c.two": 0, "c.priority": 3}
PROGRAMS = int(os.environ.get("BROKERSTORE_PROGRAMS", "20"))
GROUP = 10  # programs in one life of the server
SEED = int(os.environ.get("BROKERSTORE_SEED", "0"))
EVERY = 1 if os.environ.get("BROKERSTORE_JUDGE") == "all" else 6  # each damage takes a start of the server
VERSION_2 = RabbitSettings(background=False, store=StoreSettings(file_size_limit=1 << 20))


@pytest.fixture
def server():
    made = Server("classic", advanced="{rabbit, [{msg_store_file_size_limit, 200000}]}")
    yield made
    made.close()


def declare(server, queues):
    """Start the server, declare durable queues and stop it: a kill within seconds of a declaration loses the queue."""
    server.start()
    connection, channel = connect()
    for name, highest in queues.items():
        channel.queue_declare(name, durable=True, arguments={"x-max-priority": highest} if highest else None)
    connection.close()
    server.end(signal.SIGTERM)


def listed(node, queues):
    """Return what the server will deliver: (message id, body, headers) of the persistent messages of each queue."""
    with RabbitStore.open(str(node), "r") as store:
        return {name: [row(one) for one in store.folder().messages(name) if one.persistent] for name in queues}


def row(message):
    """Return a message as `drain` does."""
    headers = message.properties.get("headers")
    plain = (
        None
        if headers is None
        else {name: value.value if isinstance(value, Typed) else value for name, value in headers.items()}
    )
    return message.properties.get("message_id"), message.body, plain


def delivered(server, queues):
    """Start the server and take everything that its queues deliver."""
    server.start()
    return {name: drain(name) for name in queues}


def log_since(server, start):
    """Return the lines of the server's log after `start` bytes."""
    return (server.outside / "log" / "interop@localhost.log").read_text()[start:]


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_a_folder_written_by_us_is_delivered(server, is_killed):
    """Closed cleanly, the server starts without a rebuild and flags only delivered messages; killed, all are delivered."""
    declare(server, QUEUES)
    vhost = server.node / VHOST
    shutil.rmtree(vhost)
    store = RabbitStore.open(str(vhost), settings=VERSION_2)
    for name, highest in QUEUES.items():
        store.declare_queue(name, max_priority=highest)
        for number in range(5000 if name == "c.one" else 300):
            body = body_of(name, number, SIZES[number % len(SIZES)])
            store.publish(name, body, properties={"message_id": f"m{number}", "headers": {"n": number}, "priority": number % 5})
        store.sync()
        for _ in range(100):
            store.get(name, auto_ack=True)
        for _ in range(20):
            store.get(name)
    store.sync()
    (store.abandon if is_killed else store.close)()
    expected = listed(server.node, QUEUES)
    start = (server.outside / "log" / "interop@localhost.log").stat().st_size
    server.start()
    connection, channel = connect()
    first = channel.basic_get("c.one")[0]
    assert (first.redelivered, channel.basic_get("c.two")[0].redelivered) == (True, True)
    connection.close()
    assert {name: drain(name) for name in QUEUES} == expected
    server.end(signal.SIGTERM)
    log = log_since(server, start)  # the server writes it with a delay
    assert ("rebuilding" in log.lower() or "after unclean shutdown" in log) == is_killed, log
    assert verify(str(vhost)).problems == []


def test_messages_of_another_release_and_of_a_log_go_to_a_queue_of_rabbitmq_4(server, tmp_path):
    """A version-1 folder and a killed server's own queue go through a commit log into new queues, which are delivered."""
    old = tmp_path / "old"
    with RabbitStore.open(str(old), settings=RabbitSettings(index_version=1)) as store:
        store.declare_queue("c.one")
        for number in range(100):
            body = body_of("c.one", number, SIZES[number % len(SIZES)])
            store.publish("c.one", body, properties={"message_id": f"m{number}", "headers": {"n": number}})
    declare(server, QUEUES)
    server.start()
    connection, channel = connect()
    for number in range(60):
        publish(channel, "c.two", number, SIZES[number % len(SIZES)])
        publish(channel, "c.priority", number, SIZES[number % len(SIZES)], priority=number % 4)
    connection.close()
    server.end(signal.SIGKILL)
    expected = listed(server.node, ("c.two", "c.priority")) | listed(old, ("c.one",))
    assert [len(rows) for rows in expected.values()] == [60, 60, 100]
    for source in (server.node, old):
        assert import_rabbit(str(source), str(tmp_path / "log")).failed == []
    shutil.rmtree(server.node / VHOST)
    assert export_to_rabbit(str(tmp_path / "log"), str(server.node / VHOST)).failed == []
    assert listed(server.node, QUEUES) == expected
    assert delivered(server, QUEUES) == expected


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_damaged_queues_are_delivered_as_recovered(server, seed, tmp_path):
    """One queue for each damage, all damaged after a kill, with one shared store: the server delivers what was kept."""
    queues = {f"d{number}": 0 for number in range(len(DAMAGES))}
    declare(server, queues)
    fill(server, queues)
    vhost = server.node / VHOST
    for number, (name, damage) in enumerate(DAMAGES.items()):
        queue = vhost / "queues" / queue_folder_name("/", f"d{number}".encode())
        assert damage(vhost, queue, Random(seed * 1000 + number)), name
    apply_recovery(str(vhost))
    assert verify(str(vhost)).problems == []
    expected = listed(server.node, queues)
    found = delivered(server, queues)
    wrong = {name for number, name in enumerate(DAMAGES) if found[f"d{number}"] != expected[f"d{number}"]}
    assert wrong == set()


def fill(server, queues):
    """Publish to every queue, acknowledge some, and kill the server after everything was written."""
    server.start()
    connection, channel = connect()
    for number in range(20):
        for name in queues:
            publish(channel, name, number, SIZES[number % len(SIZES)])
    for name in queues:
        tags = [channel.basic_get(name)[0].delivery_tag for _ in range(7)]
        for at in (0, 1, 5):
            channel.basic_ack(tags[at])
    for number in range(20, 24):
        for name in queues:
            publish(channel, name, number, SIZES[number % len(SIZES)])
    connection.close()
    time.sleep(0.5)
    server.end(signal.SIGKILL)


@pytest.mark.parametrize("name", list(DAMAGES)[::EVERY])
def test_a_single_damage_is_delivered_as_recovered(one_queue, name):
    """Each damage in a folder of its own."""
    server, pristine = one_queue
    shutil.rmtree(server.node)
    shutil.copytree(pristine, server.node)
    vhost = server.node / VHOST
    assert DAMAGES[name](vhost, vhost / "queues" / queue_folder_name("/", b"c.one"), Random(SEED * 77 + 5))
    apply_recovery(str(vhost))
    assert verify(str(vhost)).problems == []
    expected = listed(server.node, ("c.one", "c.two"))
    assert delivered(server, ("c.one", "c.two")) == expected
    server.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def one_queue(tmp_path_factory):
    """A killed server with two queues, and a copy of its folder."""
    queues = {"c.one": 0, "c.two": 0}
    with closing(Server("classic")) as server:
        declare(server, queues)
        fill(server, queues)
        pristine = tmp_path_factory.mktemp("one") / "node"
        shutil.copytree(server.node, pristine)
        yield server, pristine


def test_random_programs_with_kills_are_listed_as_delivered(server):
    """After a kill or a stop at a random time, the restarted server delivers what was listed, again and again.

    Every life of the server runs `GROUP` programs, a step of each in turn, on queues of their own.
    """
    groups = [{f"{name}.{number}": highest for name, highest in QUEUES.items()} for number in range(GROUP)]
    queues = {name: highest for group in groups for name, highest in group.items()}
    declare(server, queues)
    random = Random(SEED)
    for life in range(-(-PROGRAMS // GROUP)):
        server.start()
        connection, channel = connect()
        programs = [Program(random, group, channel, life * 100_000) for group in groups]
        for _step in range(random.randrange(5, 40)):
            for program in programs:
                program.step()
        if random.random() < 0.5:
            time.sleep(random.random() * 0.5)
        how = signal.SIGTERM if random.random() < 0.2 else signal.SIGKILL
        server.end(how)
        forget(connection)
        expected = listed(server.node, queues)
        assert verify(str(server.node / VHOST)).problems == [], (SEED, life)
        found = delivered(server, queues)
        assert found == expected, (SEED, life, how)
        print(f"life {life}: {GROUP} programs, {sum(map(len, found.values()))} messages, {how.name}", flush=True)
        server.end(signal.SIGTERM if random.random() < 0.5 else signal.SIGKILL)
