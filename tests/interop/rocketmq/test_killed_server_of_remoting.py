"""Java clients from 3.2.6 to 5.5.0 and the Go client, whose server is killed again and again: nothing acknowledged is lost.

The programs are those of `test_killed_server.py`, on the port of the remoting protocol.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import until
from tests.serving import Server

from .jvm import OPTIONS, SMALL_JVM
from .live import MARKS
from .test_go_client import go_program
from .test_killed_server import (
    COUNT,
    DELIVERING_S,
    FAILS,
    Lines,
    allow_retries,
    assert_dead_letters,
    delivered,
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
NOT_OF_3 = ("test_batches_are_delivered_at_least_once", "test_transactions_keep_their_decision")


@pytest.fixture(params=["Java 3.2.6", "Java 4.9.7", "Java 5.3.3", "Java 5.5.0", "Go"])
def start(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Return a function that starts a scenario of a client and returns its process."""
    version = request.param.removeprefix("Java ")
    if version == "Go":
        if shutil.which("go") is None:
            pytest.skip("go is not installed")
        command = [go_program()]
    else:
        if version == "3.2.6" and request.node.originalname in NOT_OF_3:
            pytest.skip("clients of RocketMQ 3 have no batches, and no checks of transactions")
        names = ("Common", "Scenarios") if version == "3.2.6" else ("Common", "Scenarios", "Newer")
        path = class_path(tmp_path, version, *names)
        command = ["java", *SMALL_JVM, *OPTIONS, "-Xmx256m", f"-Duser.home={tmp_path}", "-cp", path, "Scenarios"]
    with programs(command, f"127.0.0.1:{server.ports[0]}", tmp_path) as run:
        yield run


def test_consumers_of_each_kind_get_what_was_acknowledged(server: Server, start: Run) -> None:
    """All, those of a tag, all in broadcasting mode; what always fails is a dead letter after the attempts of the group."""
    allow_retries(server, "failing", 1)
    producer, everything = Lines(start("produce", "orders", "normal", COUNT)), set(range(COUNT))
    consumers = [
        (expected, Lines(start("consume", "orders", group, tag, fails)))
        for group, tag, fails, expected in (
            ("g", "*", "-", everything), ("tagged", "even", "-", set(range(0, COUNT, 2))), ("all", "*", "-", everything),
            ("all", "*", "-", everything), ("failing", "*", FAILS, everything),
        )
    ]  # fmt: skip
    send_with_kills(server, producer)
    assert [one["sent"] for one in producer.all()] == list(range(COUNT))
    until(lambda: all(one.numbers >= expected for expected, one in consumers), DELIVERING_S, "all are delivered", 1.0)
    assert_dead_letters(server, "failing")
    for expected, consumer in consumers:
        delivered("normal", expected, consumer)


def test_batches_are_delivered_at_least_once(server: Server, start: Run) -> None:
    """Each of their messages."""
    run_with_kills(server, start, "orders", "batch", set(range(COUNT)))


def test_messages_of_a_group_stay_in_order(server: Server, start: Run) -> None:
    """No message is consumed before an earlier one of its group; repetitions may follow."""
    producer, consumer = Lines(start("produce", "orders", "fifo", COUNT)), Lines(start("consume", "orders", "fifo", "*", "-"))
    send_with_kills(server, producer)
    found = delivered("fifo", set(range(COUNT)), consumer)
    for group in range(5):
        firsts = dict.fromkeys(int(one["body"]) for one in found if one["group"] == f"group-{group}")
        assert list(firsts) == list(range(group, COUNT, 5))
    producer.all()
