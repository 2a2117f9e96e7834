"""Java clients from 3.2.6 to 5.5.0 and the Go client, whose server is killed again and again: nothing acknowledged is lost.

The programs are those of `test_killed_server.py`, on the port of the remoting protocol.
"""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagestore import MessageStore
from tests.helpers import until
from tests.serving import Server

from .jvm import OPTIONS, SMALL_JVM
from .live import MARKS, NIGHT
from .test_go_client import go_program
from .test_killed_server import (
    COUNT,
    DELIVERING_S,
    FAILS,
    KILLS,
    LATER_S,
    Lines,
    allow_retries,
    assert_dead_letters,
    delivered,
    number_of,
    run_with_kills,
    send_with_kills,
    test_delayed_messages_never_come_before_their_time,
    test_transactions_keep_their_decision,
)
from .test_old_java_clients import class_path
from .test_python_client import Run, programs, server

__all__ = ["server", "test_delayed_messages_never_come_before_their_time", "test_transactions_keep_their_decision"]
pytestmark = [
    pytest.mark.timeout(3600),  # of two, the first counts
    *MARKS,
    pytest.mark.skipif(importlib.util.find_spec("rocketmq") is None, reason="the extra grpc is not installed"),
]
NOT_OF_3 = (
    "test_batches_are_delivered_at_least_once", "test_each_request_gets_its_reply", "test_transactions_keep_their_decision",
)  # fmt: skip


@pytest.fixture(params=["Java 3.2.6", "Java 4.9.7", "Java 5.3.3", "Java 5.5.0", "Go"])
def client(request: pytest.FixtureRequest) -> str:
    """Return the name of a client."""
    return str(request.param)


@pytest.fixture
def start(server: Server, tmp_path: Path, client: str, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Return a function that starts a scenario of a client and returns its process."""
    version = client.removeprefix("Java ")
    if version == "Go":
        if shutil.which("go") is None:
            pytest.skip("go is not installed")
        command = [go_program()]
    else:
        if version == "3.2.6" and request.node.originalname in NOT_OF_3:
            pytest.skip("clients of RocketMQ 3 have no batches, no replies, and no checks of transactions")
        names = ("Common", "Scenarios") if version == "3.2.6" else ("Common", "Scenarios", "Newer")
        path = class_path(tmp_path, version, *names)
        command = ["java", *SMALL_JVM, *OPTIONS, "-Xmx256m", f"-Duser.home={tmp_path}", "-cp", path, "Scenarios"]
    with programs(command, f"127.0.0.1:{server.ports[0]}", tmp_path) as run:
        yield run


def test_consumers_of_each_kind_get_what_was_acknowledged(server: Server, start: Run, client: str) -> None:
    """All, what a filter matches, all in broadcasting mode; what always fails is a dead letter after the group's attempts."""
    allow_retries(server, "failing", 1)
    producer, everything, even = Lines(start("produce", "orders", "normal", COUNT)), set(range(COUNT)), set(range(0, COUNT, 2))
    kinds = [
        ("consume", "g", "*", "-", everything), ("consume", "tagged", "even", "-", even),
        ("consume", "all", "*", "-", everything), ("consume", "all", "*", "-", everything),
        ("consume", "failing", "*", FAILS, everything),
    ]  # fmt: skip
    if client != "Java 3.2.6":
        kinds.append(("consume", "selecting", "sql:TAGS = 'even'", "-", even))
    if client == "Go":
        kinds.append(("consume_pulling", "pulling", "*", "-", everything))
    consumers = [(expected, Lines(start(kind, "orders", *arguments))) for kind, *arguments, expected in kinds]
    send_with_kills(server, producer)
    assert [one["sent"] for one in producer.all()] == list(range(COUNT))
    until(lambda: all(one.numbers >= expected for expected, one in consumers), DELIVERING_S, "all are delivered", 1.0)
    assert_dead_letters(server, "failing")
    for expected, consumer in consumers:
        delivered("normal", expected, consumer)


def test_batches_are_delivered_at_least_once(server: Server, start: Run) -> None:
    """Each of their messages."""
    run_with_kills(server, start, "orders", "batch", set(range(COUNT)))


@NIGHT
def test_each_request_gets_its_reply(server: Server, start: Run) -> None:
    """Those whose reply was lost are sent again by their program; no request gets the reply of another."""
    consumer, producer = Lines(start("consume", "orders", "answers", "*", "-")), Lines(start("produce", "orders", "ask", COUNT))
    send_with_kills(server, producer)
    assert [one["sent"] for one in producer.all()] == list(range(COUNT))
    delivered("ask", set(range(COUNT)), consumer)


def test_asynchronous_messages_are_delivered_at_least_once(server: Server, start: Run, client: str) -> None:
    """Send with the Go client; `test_killed_server_of_java.py` sends in this way."""
    if client != "Go":
        pytest.skip("the Java clients have tests of their own")
    run_with_kills(server, start, "orders", "async", set(range(COUNT)))


@NIGHT
def test_one_way_messages_are_stored_once(server: Server, start: Run, client: str) -> None:
    """Nobody acknowledges them: what a kill takes is lost, but nothing that a consumer saw, and only repetitions repeat."""
    if client != "Go":
        pytest.skip("the Java clients have tests of their own")
    producer, consumer = Lines(start("produce", "orders", "oneway", COUNT)), Lines(start("consume", "orders", "g", "*", "-"))
    send_with_kills(server, producer)
    again = Counter(one["again"] for one in producer.all() if "again" in one)
    until(lambda: COUNT in consumer.numbers, DELIVERING_S, "the server takes messages")
    time.sleep(LATER_S)
    server.stop()
    with MessageStore.open(server.folder, "r") as store:
        stored = Counter(int(one.body) for queue_id in store.queue_ids("orders") for one in store.read("orders", queue_id))
    print(f"oneway: {len(stored)} of {COUNT} stored, {again.total()} sent again, {KILLS} kills")
    assert {number_of(one) for one in consumer.all() if "body" in one} == set(stored) <= set(range(COUNT + 1))
    assert all(times <= 1 + again[number] for number, times in stored.items())
    assert len(stored) > COUNT // 2


def test_messages_of_a_group_stay_in_order(server: Server, start: Run) -> None:
    """No message is consumed before an earlier one of its group; repetitions may follow."""
    producer, consumer = Lines(start("produce", "orders", "fifo", COUNT)), Lines(start("consume", "orders", "fifo", "*", "-"))
    send_with_kills(server, producer)
    found = delivered("fifo", set(range(COUNT)), consumer)
    for group in range(5):
        firsts = dict.fromkeys(int(one["body"]) for one in found if one["group"] == f"group-{group}")
        assert list(firsts) == list(range(group, COUNT, 5))
    producer.all()
