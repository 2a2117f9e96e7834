"""A real Java producer that sends to a served store and to a real broker, in turn.

Both servers are processes of their own and stay for all rounds, and so do both clients, so that the Java compiler is done.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from messagestore import MessageStore
from tests.interop.rocketmq.jvm import Jvm, why_not
from tests.interop.rocketmq.real_broker import CLUSTER, NAME, RealBroker, client
from tests.serving import free_ports

from .turns import Row, take_turns

JVM = {"heap": "2g", "options": ["-XX:+UseG1GC"]}
QUEUES = 4
PATIENCE_S = 600
SERVER = """
import sys
from messagestore import MessageStore
from rocketlink import BrokerServer
folder, port, name, cluster = sys.argv[1:]
with MessageStore.open(folder) as store, BrokerServer(store, port=int(port), name=name, cluster=cluster):
    print("ready", flush=True)
    sys.stdin.read()
"""
MEASURES: tuple[tuple[str, int, float | None, dict[str, int]], ...] = (
    ("live: batches of 50, 100 B", 1_000_000, 0.5, {"size": 100, "batch": 50, "ahead": 20}),
    ("live: batches of 50, 1024 B", 500_000, 0.5, {"size": 1024, "batch": 50, "ahead": 20}),
    ("live: single sends, 500 unanswered, 100 B", 200_000, None, {"size": 100, "ahead": 500}),
    ("live: single sends, one after another, 100 B", 20_000, None, {"size": 100, "ahead": 1}),
)


class Served:
    """A store that a process of ours serves, and a JVM of clients."""

    def __init__(self, folder: Path) -> None:
        MessageStore.open(folder / "store").close()  # RocketMQ's sizes
        port = free_ports(1)[0]
        command = [sys.executable, "-c", SERVER, str(folder / "store"), str(port), NAME, CLUSTER]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self.clients: Jvm = client(f"127.0.0.1:{port}", f"127.0.0.1:{port}", folder, **JVM)
        self.clients.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clients.end()
        self._process.communicate()


def rate(clients: Jvm, count: int, what: dict[str, int]) -> float:
    """Return how many messages a second are acknowledged."""
    clients.tell("flood", topic="flood", count=count, queues=QUEUES, **what)
    return count / float(clients.answer(PATIENCE_S)["seconds"])


def rows(folder: Path, rounds: int, scale: float, is_selected: Callable[[str], bool]) -> Iterator[Row]:
    """Yield a row for each way to send."""
    reason = why_not()
    if reason:
        print(f"no live rows: {reason}")
        return
    (folder / "ours").mkdir()
    settings: dict[str, Any] = {"flushDiskType": "ASYNC_FLUSH"}
    with Served(folder / "ours") as ours, RealBroker(folder / "theirs", folder / "broker", jvm=JVM, **settings) as theirs:
        for clients in (ours.clients, theirs.clients):
            clients.invoke("topic", topic="flood", queues=QUEUES)
        for name, messages, target, what in MEASURES:
            if is_selected(name):
                count = max(100, int(messages * scale))
                for clients in (ours.clients, theirs.clients):
                    rate(clients, count // 2, what)  # for the compiler
                yield take_turns(
                    Row(name, "broker", "msg/s", target),
                    lambda count=count, what=what: rate(ours.clients, count, what),  # type: ignore[misc]
                    lambda count=count, what=what: rate(theirs.clients, count, what),  # type: ignore[misc]
                    rounds,
                )
