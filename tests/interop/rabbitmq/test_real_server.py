"""The real server opens folders that brokerstore wrote, and brokerstore opens the server's."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time

import pytest

from rabbitstore import RabbitSettings, RabbitStore, StoreSettings
from rabbitstore.format import tables
from storageio import StoreLocked

from .broker import AMQP_PORT, Broker, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]
QUEUES = ["q.small", "q.large", "q.fan1", "q.fan2", "q.fan3", "q.holes", "q.deep", "q.torn"]
QUIET = RabbitSettings(background=False, index_version=1, store=StoreSettings(file_size_limit=1 << 20))


def connect():
    pika = pytest.importorskip("pika")
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", AMQP_PORT, heartbeat=0))


def body(queue, number, size):
    text = hashlib.sha256(f"{queue}:{number}".encode()).hexdigest().encode()
    return (text * (size // len(text) + 1))[:size]


def drain(names):
    """Return [(message id, sha256, redelivered)] of each queue, as the broker delivers."""
    connection = connect()
    channel = connection.channel()
    found = {}
    for name in names:
        rows = found[name] = []
        while True:
            method, properties, data = channel.basic_get(name, auto_ack=True)
            if method is None:
                break
            rows.append((properties.message_id, hashlib.sha256(data).hexdigest(), method.redelivered))
    connection.close()
    return found


@pytest.fixture
def broker(tmp_path):
    made = Broker(tmp_path / "broker", "queue_index_embed_msgs_below = 4096")
    yield made
    made.end()


def declare(names, **arguments):
    connection = connect()
    channel = connection.channel()
    for name in names:
        channel.queue_declare(name, durable=True, arguments=arguments.get(name.replace(".", "_")))
    connection.close()


def write_ours(path):
    """Write thousands of messages of every kind; return the {queue: [(message id, sha256)]} to be delivered."""
    store = RabbitStore.open(str(path), settings=QUIET)
    expected = {name: [] for name in QUEUES}

    def publish(names, number, size):
        name = names if isinstance(names, str) else names[0]
        data = body(name, number, size)
        properties = {"message_id": f"m{number}", "headers": {"n": number}}
        store.publish(names, data, properties=properties, routing_keys=[name])
        for target in [names] if isinstance(names, str) else names:
            expected[target].append((f"m{number}", hashlib.sha256(data).hexdigest()))

    for name in QUEUES:
        store.declare_queue(name)
    for number in range(3000):
        publish("q.small", number, number % 3000)
    for number in range(40):
        publish("q.large", number, (0, 4095, 4096, 20_000, 131_064, 131_065, 300_000)[number % 7])
    for number in range(200):
        publish(["q.fan1", "q.fan2", "q.fan3"], number, 5000 + number)
    for number in range(1500):
        publish("q.holes", number, 6000 if number % 50 == 0 else 30)
    for number in range(5000):
        publish("q.deep", number, 40)
    _acknowledge(store, expected)
    store.flush_journals()
    for number in range(100):
        publish("q.torn", number, 100)
    store.sync()
    store.abandon()
    _tear(path)
    return expected


def _acknowledge(store, expected):
    held = [store.get("q.holes") for _ in range(1500)]
    for number, delivery in enumerate(held):
        if number % 3 == 1 or number % 50 == 0:
            store.ack(delivery)
    expected["q.holes"] = [row for number, row in enumerate(expected["q.holes"]) if number % 3 != 1 and number % 50]
    for _ in range(2100):
        store.ack(store.get("q.deep"))
    del expected["q.deep"][:2100]
    for _ in range(150):
        store.ack(store.get("q.fan2"))
    del expected["q.fan2"][:150]


def _tear(path):
    """Append the first half of an entry to the journal of q.torn."""
    journal = next(file for file in path.glob("queues/*/journal.jif") if file.stat().st_size)
    data = journal.read_bytes()
    journal.write_bytes(data + data[:33])


def test_the_server_recovers_and_delivers_what_we_wrote(broker):
    """All messages are delivered in order and flagged; holes stay, and the torn tail is dropped."""
    broker.start()
    declare(QUEUES)
    broker.stop()
    shutil.rmtree(broker.vhost)
    expected = write_ours(broker.vhost)
    broker.start()
    found = drain(QUEUES)
    for name in QUEUES:
        assert [row[:2] for row in found[name]] == expected[name], name
        assert all(row[2] for row in found[name])
    broker.stop()


def _publish_many(names, total):
    """Publish persistent messages with confirms; return {queue: [(message id, sha256)]}."""
    pika = pytest.importorskip("pika")
    connection = connect()
    channel = connection.channel()
    channel.exchange_declare("ex.fan", "fanout", durable=True)
    for name in ("q.fan1", "q.fan2", "q.fan3"):
        channel.queue_bind(name, "ex.fan")
    channel.confirm_delivery()
    expected = {name: [] for name in names}
    for number in range(total):
        name = names[number % len(names)]
        is_fan = name.startswith("q.fan")
        data = body(name, number, (10, 200, 3000, 4096, 9000, 150_000)[number // 8 % 6] if number % 97 else 300_000)
        properties = pika.BasicProperties(delivery_mode=2, message_id=f"m{number}", headers={"k": number})
        channel.basic_publish("ex.fan" if is_fan else "", "" if is_fan else name, data, properties)
        for target in ("q.fan1", "q.fan2", "q.fan3") if is_fan else (name,):
            expected[target].append((f"m{number}", hashlib.sha256(data).hexdigest()))
    for name, count in (("q.holes", 60), ("q.deep", 40)):
        held = [channel.basic_get(name)[0] for _ in range(count)]
        for method in held[::2]:
            channel.basic_ack(method.delivery_tag)
        expected[name] = expected[name][1:count:2] + expected[name][count:]
    return connection, expected


def _ours(path):
    store = RabbitStore.open(str(path), "r")
    found = {}
    for message in store.messages():
        row = message.properties["message_id"], hashlib.sha256(message.body).hexdigest()
        found.setdefault(message.queue, []).append(row)
    assert all(message.redelivered for message in store.messages("q.small"))
    return found


def test_we_read_the_servers_folder_after_sigkill(broker, tmp_path):
    """Confirmed, unacknowledged messages are read in order, also after an opening; the restarted server agrees."""
    broker.start()
    declare(QUEUES)
    connection, expected = _publish_many(QUEUES, 1600)
    time.sleep(1)  # acknowledgements of the last 200 ms are not on the disk
    broker.kill()
    with contextlib.suppress(pytest.importorskip("pika").exceptions.AMQPError):
        connection.close()
    copy = tmp_path / "copy"
    shutil.copytree(broker.vhost, copy)
    assert _ours(broker.vhost) == {name: rows for name, rows in expected.items() if rows}
    with RabbitStore.open(str(copy), "r+", settings=QUIET) as store:
        assert store.lost == []
        for name in QUEUES:
            deliveries = iter(lambda n=name: store.get(n, auto_ack=True), None)
            found = [(d.properties["message_id"], hashlib.sha256(d.body).hexdigest()) for d in deliveries]
            assert found == expected[name], name
    broker.start()
    delivered = drain(QUEUES)
    assert {name: [row[:2] for row in rows] for name, rows in delivered.items()} == expected
    broker.stop()


def test_the_server_and_brokerstore_write_one_folder_in_turn(broker):
    """The server and brokerstore write in turn, with consuming and collecting; the order is right at the end."""
    broker.start()
    declare(QUEUES)
    connection, expected = _publish_many(QUEUES, 800)
    connection.close()
    broker.stop()
    settings = RabbitSettings(background=False, store=StoreSettings(file_size_limit=1 << 20, file_garbage_fraction=0.1))
    with RabbitStore.open(str(broker.vhost), "r+", settings=settings) as store:
        for name in QUEUES:
            for number in range(0, 10):
                delivery = store.get(name)
                assert (delivery.properties["message_id"]) == expected[name][number][0]
                if number % 2:
                    store.ack(delivery)
            expected[name] = expected[name][0:10:2] + expected[name][10:]
            for number in range(20):
                data = body("ours" + name, number, 100 if number % 2 else 50_000)
                store.publish(name, data, properties={"message_id": f"ours{number}"})
                expected[name].append((f"ours{number}", hashlib.sha256(data).hexdigest()))
        store.collect()
    broker.start()
    delivered = drain(QUEUES)
    assert {name: [row[:2] for row in rows] for name, rows in delivered.items()} == expected
    broker.stop()


def test_the_server_starts_on_our_clean_stop_without_a_rebuild(broker):
    """Its log shows no rebuild, only delivered messages have the flag, and its next stop is clean."""
    broker.start()
    declare(QUEUES)
    declare(["q.prio"], q_prio={"x-max-priority": 3})
    broker.stop()
    shutil.rmtree(broker.vhost)
    expected = {name: [] for name in [*QUEUES, "q.prio"]}
    with RabbitStore.open(str(broker.vhost), settings=QUIET) as store:
        for name in expected:
            store.declare_queue(name, max_priority=3 if name == "q.prio" else 0)
        _publish_ours(store, expected)
        for name in QUEUES[:-1]:
            for number in range(30):
                delivery = store.get(name)
                if number % 3 == 0:
                    store.ack(delivery)
        store.collect()
    reported_before = len(broker.log())
    assert "rebuilding indices from scratch" in broker.log(), "what it says of a folder without clean-stop files"
    broker.start()
    delivered = drain(expected)
    printed = broker.log()[reported_before:]
    assert "ebuilding" not in printed and "dets" not in printed, printed
    for name in QUEUES[:-1]:
        rows = expected[name]
        held = [(*row, True) for number, row in enumerate(rows[:30]) if number % 3]
        assert delivered[name] == held + [(*row, False) for row in rows[30:]], name
    assert delivered["q.torn"] == [(*row, False) for row in expected["q.torn"]]
    assert delivered["q.prio"] == [(*row, False) for row in expected["q.prio"][::-1]]
    broker.stop()
    with RabbitStore.open(str(broker.vhost), "r") as store:
        folder = store.folder()
        assert folder.is_clean and not list(folder.messages()) and not folder.problems


def test_erlang_reads_tables_of_any_size(tmp_path):
    """The server finds more queues than DETS slots, and `ets:file2tab` counts thousands of locations."""
    rows = [tables.RecoveryRow(f"Q{number}", {0: number}, number, 0, b"r" * 16, 0, 0) for number in range(1500)]
    (tmp_path / "recovery.dets").write_bytes(tables.write_recovery(rows))
    positions = [tables.LocationRow(number.to_bytes(16, "big"), 1, 70_000, number << 20, 99) for number in range(3000)]
    (tmp_path / "index.ets").write_bytes(tables.write_locations(positions))
    program = (
        '{ok, T} = dets:open_file(t, [{file, "recovery.dets"}, {ram_file, true}, {repair, false}]), '
        'All = [dets:lookup(T, "Q" ++ integer_to_list(N)) || N <- lists:seq(0, 1499)], '
        "D = length([N || [{_, [{segments, [{0, N}]}, {next_seq_id, N} | _]}] <- All]), "
        '{ok, E} = ets:file2tab("index.ets", [{verify, true}]), '
        'io:format("~p ~p ~p", [dets:info(T, size), D, ets:info(E, size)]), halt().'
    )
    command = ["erl", "-noshell", "-eval", program]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ERL_CRASH_DUMP": "/dev/null"}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == "1500 1500 3000"


def _publish_ours(store, expected):
    """Publish embedded, stored, shared and transient messages, one of each priority."""
    for number in range(400):
        for name in ("q.small", "q.large", "q.deep", "q.holes"):
            data = body(name, number, (10, 4095, 4096, 9000)[number % 4])
            store.publish(name, data, properties={"message_id": f"m{number}"})
            expected[name].append((f"m{number}", hashlib.sha256(data).hexdigest()))
        store.publish("q.torn", b"gone after a stop", persistent=False)
        data = body("q.torn", number, 500)
        store.publish(["q.torn", "q.fan1", "q.fan2", "q.fan3"], data * 20, properties={"message_id": f"f{number}"})
        for name in ("q.torn", "q.fan1", "q.fan2", "q.fan3"):
            expected[name].append((f"f{number}", hashlib.sha256(data * 20).hexdigest()))
    for priority in range(4):
        data = body("q.prio", priority, 5000)
        store.publish("q.prio", data, properties={"message_id": f"p{priority}", "priority": priority})
        expected["q.prio"].append((f"p{priority}", hashlib.sha256(data).hexdigest()))


def tool(*arguments):
    """Return the exit code and both streams."""
    command = [sys.executable, "-m", "brokerstore", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_running_server_blocks_writes_and_later_delivers_what_the_tool_put(broker):
    """Both would write to one message file.  After a stop `put` and a rebuild work, and the server finds everything."""
    pika = pytest.importorskip("pika")
    broker.start()
    declare(["q.mail"])
    connection = connect()
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(3):
        properties = pika.BasicProperties(delivery_mode=2, message_id=f"m{number}")
        channel.basic_publish("", "q.mail", b"x" * (10 if number else 10_000), properties)
    for command in (["put", "q.mail", "late"], ["rebuild", "--apply"], ["recover", "--apply"]):
        code, reported = tool(command[0], broker.vhost, *command[1:])
        assert "a server runs on this folder (beam.smp" in reported
        assert code == (0 if command[0] == "recover" and "Nothing to repair" in reported else 4)
    with pytest.raises(StoreLocked):
        RabbitStore.open(str(broker.vhost), "r+")
    connection.close()
    broker.control("eval", "mnesia:sync_log().")  # or the kill may come before the queue's declaration is on the disk
    broker.kill()
    assert tool("put", broker.vhost, "q.mail", "late", "--property", "message_id=m3", "--property", "region=eu")[0] == 0
    assert tool("rebuild", "--apply", broker.vhost)[0] == 0
    assert tool("info", "--json", broker.vhost)[1].count('"clean_stop":true') == 1
    reported_before = len(broker.log())
    broker.start()
    found = drain(["q.mail"])["q.mail"]
    assert [row[0] for row in found] == ["m0", "m1", "m2", "m3"]
    assert found[3] == ("m3", hashlib.sha256(b"late").hexdigest(), False)
    assert "rebuilding indices from scratch" not in broker.log()[reported_before:]
    broker.stop()
