"""The official Java client of RocketMQ 5 (`rocketmq-client-java`, gRPC) on a server of ours in a process of its own."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagestore import MessageStore

from .jvm import SMALL_JVM, prepared
from .live import MARKS
from .test_killed_server import (
    test_delayed_messages_never_come_before_their_time,
    test_messages_are_delivered_at_least_once,
    test_messages_of_a_group_stay_in_order,
    test_messages_that_always_fail_become_dead_letters,
    test_transactions_keep_their_decision,
)
from .test_python_client import Run, Server, bodies, finish, programs, server

__all__ = [
    "server", "test_delayed_messages_never_come_before_their_time", "test_messages_are_delivered_at_least_once",
    "test_messages_of_a_group_stay_in_order", "test_messages_that_always_fail_become_dead_letters",
    "test_transactions_keep_their_decision",
]  # fmt: skip
pytestmark = [
    *MARKS,
    pytest.mark.skipif(importlib.util.find_spec("rocketmq") is None, reason="the extra grpc is not installed"),
]
FOLDER = Path(__file__).with_name("java5")


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Run]:
    """Return a function that starts a scenario and returns its process."""
    try:
        path = prepared(FOLDER / "pom.xml", FOLDER)
    except RuntimeError as error:
        pytest.skip(str(error))
    command = ["java", *SMALL_JVM, "-Xmx256m", "-Dfile.encoding=UTF-8", f"-Duser.home={tmp_path}", "-cp", path, "GrpcClient"]
    with programs(command, server.address, tmp_path) as run:
        yield run


def test_simple_consumer_gets_each_message_once(start: Run) -> None:
    """With tag and properties."""
    finish(start("send", "orders", 30))
    found = finish(start("receive", "orders", "g"))
    assert sorted(map(int, bodies(found))) == list(range(30))
    assert {(one["tag"], one["colour"], one["attempt"]) for one in found} == {("t", "grün", 1)}


def test_push_consumer_retries_and_gives_up(server: Server, start: Run) -> None:
    """The message that always fails becomes a dead letter after the attempts of the group."""
    server.stop()
    with MessageStore.open(str(server.folder)) as store:
        store.engine.retries.groups.create("g", retry_max_times=1)
        store.engine.retries.groups.persist()
    server.start()
    finish(start("send", "orders", 5))
    counts = Counter(bodies(finish(start("push", "orders", "g", 10_000, "3"))))
    assert counts == {"0": 1, "1": 1, "2": 1, "3": 2, "4": 1}
    server.stop()
    with MessageStore.open(str(server.folder)) as store:
        assert [one.body for one in store.read("%DLQ%g", 0)] == [b"3"]


def test_messages_of_a_group_are_consumed_in_order(start: Run) -> None:
    """By a push consumer; groups are independent."""
    consumer = start("push", "fifo", "g", 12_000, "")
    finish(start("fifo", "fifo", "a,b", 10))
    found = finish(consumer)
    for group in "ab":
        assert [one["body"] for one in found if one["group"] == group] == [f"{group}-{number}" for number in range(10)]


def test_delayed_message_arrives_at_its_time(start: Run) -> None:
    """It does not arrive before."""
    (found,) = finish(start("delay", "orders", "g", 3))
    assert found["body"] == "later" and found["late_s"] > -1.1


def test_transactions_are_decided_by_their_producer(start: Run) -> None:
    """The undecided one when the server checks it, after at most 36 s."""
    finish(start("transact", "orders", 45_000))
    assert sorted(bodies(finish(start("receive", "orders", "g")))) == ["checked", "commit"]
