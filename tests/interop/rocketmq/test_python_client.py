"""The unmodified official Python client (`rocketmq-python-client`, gRPC) on a server of ours in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore
from messagestore.repair.verification import verify_store
from tests.serving import SECRET, Server

pytestmark = [
    pytest.mark.interop,
    pytest.mark.deep,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("rocketmq") is None, reason="the extra grpc is not installed"),
]
DRIVER = Path(__file__).with_name("python_client_driver.py")
PATIENCE_S = 120
SENT = 400  # around a kill
MANY = 1500
IN_HAND_S = 10


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Serve a folder with topics of each kind."""
    with MessageStore.open(str(tmp_path / "s")) as store:
        store.create_topic("orders", 4)
        store.create_topic("fifo", 4, attributes={"message.type": "FIFO"})
    found = Server(tmp_path / "s")
    yield found
    if found.process.returncode is None:
        found.stop()
    report = verify_store(tmp_path / "s")
    assert report.problems == [], report.problems


Run = Callable[..., Any]


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts a scenario and returns its process."""
    with programs([sys.executable, str(DRIVER)], server.address, tmp_path) as run:
        yield run


@contextlib.contextmanager
def programs(program: list[str], address: str, home: Path) -> Iterator[Run]:
    """Give a function that starts scenarios of a program at an address, and end those that still run."""
    begun: list[subprocess.Popen[str]] = []

    def run(scenario: str, *arguments: object, key: str = "") -> subprocess.Popen[str]:
        command = [*program, scenario, key + address, *map(str, arguments)]
        environment = {**os.environ, "HOME": str(home)}  # clients write their logs there
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment)
        begun.append(process)
        return process

    yield run
    for process in begun:
        with process:  # closes its pipes
            if process.poll() is None:
                process.kill()


@pytest.fixture
def lines(start: Run) -> Run:
    """Return a function that runs a scenario and returns what it prints."""

    def run(scenario: str, *arguments: object, **options: Any) -> list[dict[str, Any]]:
        return finish(start(scenario, *arguments, **options))

    return run


def finish(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    output = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0, output[-2000:]
    return [json.loads(line) for line in output.splitlines()]


def bodies(found: list[dict[str, Any]]) -> list[str]:
    return [one["body"] for one in found if "body" in one]


def test_message_keeps_its_fields(lines: Run) -> None:
    """Topic, body, tag, keys, properties and id."""
    (found,) = lines("dump", "orders")
    expected = {
        "body": "körper", "keys": ["key-1"], "same_id": True, "topic": "orders", "tag": "t", "properties": {"colour": "grün"},
        "message_type": 1, "delivery_attempt": 1, "corrupted": False,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_simple_consumer_gets_each_message_once(lines: Run) -> None:
    """Those of its tag; what was acknowledged does not come again."""
    lines("send", "orders", 0, 100)
    assert sorted(map(int, bodies(lines("receive", "orders", "even", "even")))) == list(range(0, 100, 2))
    assert sorted(map(int, bodies(lines("receive", "orders", "all")))) == list(range(100))
    assert lines("receive", "orders", "all") == []


def test_held_message_comes_again_after_its_time(lines: Run) -> None:
    """It does not arrive before."""
    lines("send", "orders", 0, 1)
    first, second = lines("hold", "orders", "g", 3)
    assert (first["attempts"], second["attempts"]) == ([1], [2])
    assert second["after_s"] > 2.9


def test_push_consumers_share_a_topic(start: Run, lines: Run) -> None:
    """Each message is consumed; a failed one again after a second."""
    consumers = [start("push", "orders", "g", 12, "7") for _ in range(2)]
    lines("send", "orders", 0, 60)
    found = [one for consumer in consumers for one in finish(consumer)]
    counts = Counter(bodies(found))
    assert set(counts) == {str(number) for number in range(60)}
    assert {body for body, count in counts.items() if count > 1} == {"7"}
    assert sorted(one["attempt"] for one in found if one["body"] == "7")[:2] == [1, 2]


def test_messages_of_a_group_are_consumed_in_order(start: Run, lines: Run) -> None:
    """By a push consumer; groups are independent."""
    consumer = start("push", "fifo", "g", 10)
    lines("fifo", "fifo", "a,b,c", 20)
    found = finish(consumer)
    for group in "abc":
        assert [one["body"] for one in found if one["group"] == group] == [f"{group}-{number}" for number in range(20)]


def test_delayed_message_arrives_at_its_time(lines: Run) -> None:
    """It does not arrive before."""
    (found,) = lines("delay", "orders", "g", 3)
    assert found["body"] == "later" and found["late_s"] > -1.1


@pytest.mark.timeout(200)
def test_transactions_are_decided_by_their_producer(lines: Run) -> None:
    """Undecided ones when the server checks them, after at most 36 s."""
    found = lines("transact", "orders", 45)
    assert sorted({one["checked"] for one in found}) == ["checked", "rolled back"]
    assert sorted(bodies(lines("receive", "orders", "g"))) == ["checked", "commit"]


def test_message_that_always_fails_becomes_a_dead_letter(server: Server, start: Run, lines: Run) -> None:
    """After the attempts of the group; the folder has it under its usual name."""
    server.stop()
    with MessageStore.open(str(server.folder)) as store:
        store.engine.retries.groups.create("g", retry_max_times=1)
        store.engine.retries.groups.persist()
    server.start()
    consumer = start("push", "orders", "g", 12, "0")
    lines("send", "orders", 0, 2)
    assert sorted(bodies(finish(consumer))) == ["0", "0", "1"]
    server.stop()
    with MessageStore.open(str(server.folder)) as store:
        assert [one.body for one in store.read("%DLQ%g", 0)] == [b"0"]


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(server: Server, start: Run, lines: Run) -> None:
    """Neither a send that was answered nor a message in hand; what was consumed may come again."""
    producer = start("send", "orders", 0, SENT)
    consumer = start("receive", "orders", "g", "*", IN_HAND_S)
    assert producer.stdout is not None
    sent = 0
    while sent < SENT // 2:
        line = json.loads(producer.stdout.readline())
        sent = line.get("sent", sent)
    server.kill()
    server.start()
    finish(producer)
    first = finish(consumer)
    time.sleep(IN_HAND_S)  # messages whose answer the kill took stay in hand for their time, as with RocketMQ
    rest = lines("receive", "orders", "g")
    assert {int(body) for body in bodies(first + rest)} == set(range(SENT))
    assert any("failed" in one for one in first) or len(first) >= SENT
    server.stop()
    with MessageStore.open(str(server.folder)) as store:
        stored = Counter(int(one.body) for queue_id in store.queue_ids("orders") for one in store.read("orders", queue_id))
    assert set(stored) == set(range(SENT)), "an answered send is in the log"


def test_client_signs_its_requests(server: Server, lines: Run) -> None:
    """With the key and the secret of the server, and with no others."""
    server.stop()
    server.options = ("--access-key", "key")
    server.start()
    lines("send", "orders", 0, 3, key=f"key/{SECRET}@")
    assert sorted(bodies(lines("receive", "orders", "g", key=f"key/{SECRET}@"))) == ["0", "1", "2"]
    with pytest.raises(AssertionError):
        lines("dump", "orders", key="key/other@")


def test_sends_that_do_not_wait_for_each_other_are_received_once(lines: Run) -> None:
    """256 are unanswered at a time; how many a second is on the performance page."""
    lines("send_many", "orders", MANY)
    assert sorted(bodies(lines("receive", "orders", "g"))) == sorted(["first", *map(str, range(MANY))])
