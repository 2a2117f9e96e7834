"""The official Go client on a store of ours, and on a real broker beside it: the same scenarios with the same answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore
from messagestore.repair.verification import verify_store
from rocketlink import BrokerServer

from .jvm import CACHES, LineProcess, digest, prepare_or_skip, take_name
from .live import CONFIG, KILLS, LIVE, MARKS, PATIENCE_S, QUEUES, SIZES
from .real_broker import CLUSTER, NAME, RealBroker, until

pytestmark = [*MARKS, pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")]
SOURCES = Path(__file__).parent / "go"
BUILD_PATIENCE_S = 240
PATIENCE_MS = PATIENCE_S * 1000
COMMITTED = [number for number in range(LIVE) if number % 10 < 7 or number % 10 == 9]
MANY = 1_000_000  # more than a client sends before the server is killed
SERVER = """
import sys
from messagestore import MessageStore
from rocketlink import BrokerServer
from tests.interop.rocketmq.live import CONFIG
with MessageStore.open(sys.argv[1], "a", CONFIG) as store, BrokerServer(store) as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""
Clients = Callable[..., Any]


def go_program() -> str:
    """Return the path of the compiled driver; skip the test if Go cannot get the client's modules."""
    program = CACHES / f"go-clients-{digest(sorted(SOURCES.iterdir()))}"
    if not program.is_file():
        CACHES.mkdir(parents=True, exist_ok=True)
        made = program.with_name(f"{program.name}-{os.getpid()}")
        command = ["go", "build", "-buildvcs=false", "-o", str(made), "."]
        done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=BUILD_PATIENCE_S, check=False)
        if done.returncode != 0:
            pytest.skip(f"the Go client cannot be built: {done.stderr[-300:]}")
        take_name(made, program)
    return str(program)


class Served:
    """A store that a server of this process offers to the Go client."""

    def __init__(self, folder: Path) -> None:
        """Start the server and one process of clients."""
        program = go_program()
        self.folder = folder / "store"
        self.store = MessageStore.open(self.folder, "a", CONFIG)
        self.server = BrokerServer(self.store, names_port=0, name=NAME, cluster=CLUSTER)
        addresses = [f"127.0.0.1:{self.server.names_port}", self.server.address, NAME]
        self.clients = LineProcess(["env", f"HOME={folder}", program, *addresses], folder / "go.log")  # offsets of broadcasts

    def end(self) -> None:
        """Kill the clients, and close the server and the store."""
        self.clients.end()
        self.server.close()
        self.store.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start one server and one process of clients for all tests."""
    found = Served(tmp_path_factory.mktemp("served"))
    yield found
    found.end()


@pytest.fixture(scope="module")
def clients(served: Served) -> Clients:
    """Return what sends a command to the Go client and waits for the answer."""

    def invoke(do: str, **arguments: Any) -> Any:
        served.clients.tell(do, **arguments)
        return served.clients.answer(PATIENCE_S)

    return invoke


def acknowledged_numbers(log: Path) -> set[int]:
    """Return the numbers of the messages that the client knows as acknowledged."""
    lines = log.read_text().splitlines() if log.exists() else []
    return {int(line.split()[1]) for line in lines if line.startswith("acknowledged ") and line.split()[1:]}


def numbers(received: list[dict[str, Any]]) -> list[int]:
    return sorted(int(one["body"]) for one in received)


@pytest.mark.parametrize("kind", ["sync", "async", "oneway", "batch", "ordered"])
def test_sends_of_each_kind_are_stored_and_pulled_once(served: Served, clients: Clients, kind: str) -> None:
    """One-way messages have no answer; of all others each is acknowledged."""
    topic = f"go-{kind}"
    clients("topic", topic=topic, queues=QUEUES)
    acknowledged = clients("send", topic=topic, count=LIVE, kind=kind, batch=50 if kind == "batch" else 1)
    assert acknowledged == ([] if kind == "oneway" else list(range(LIVE)))
    until(lambda: sum(served.store.max_offset(topic, queue_id) for queue_id in range(QUEUES)) == LIVE, "all are stored")
    found = clients("pull", topic=topic, group=f"{topic}-pullers", queues=QUEUES)
    assert numbers(found) == list(range(LIVE))
    if kind == "ordered":
        for key in range(5):
            of_key = [one for one in found if int(one["body"]) % 5 == key]
            assert len({one["queue_id"] for one in of_key}) == 1
            assert [int(one["body"]) for one in of_key] == list(range(key, LIVE, 5))


def test_a_topic_is_created_by_the_first_send(served: Served, clients: Clients) -> None:
    """The client finds its route by that of the default topic."""
    assert clients("send", topic="go-young", count=3) == [0, 1, 2]
    assert numbers([{"body": found.body} for queue_id in range(4) for found in served.store.read("go-young", queue_id)]) == [
        0,
        1,
        2,
    ]


def test_a_push_consumer_gets_the_messages_of_a_tag(clients: Clients) -> None:
    """The filter is that of the subscription."""
    clients("topic", topic="go-tags", queues=2)
    clients("send", topic="go-tags", count=40, tag="even")
    found = clients("subscribe", topic="go-tags", group="go-taggers", count=20, expression="even0", patience_ms=PATIENCE_MS)
    assert numbers(found) == list(range(0, 40, 2))


def test_broadcast_consumers_get_every_message_each(clients: Clients) -> None:
    """Two clients of one group, one after the other."""
    clients("topic", topic="go-all", queues=2)
    clients("send", topic="go-all", count=10)
    for _ in range(2):
        arguments = {"count": 10, "expression": "*", "broadcast": True, "patience_ms": PATIENCE_MS}
        assert numbers(clients("subscribe", topic="go-all", group="go-everyone", **arguments)) == list(range(10))


def test_an_orderly_consumer_repeats_a_failed_message_before_the_next(clients: Clients) -> None:
    """The first try of each message fails."""
    clients("topic", topic="go-order", queues=1)
    clients("send", topic="go-order", count=5)
    arguments = {"count": 5, "expression": "*", "orderly": True, "failures": 1, "patience_ms": PATIENCE_MS}
    found = clients("subscribe", topic="go-order", group="go-orderly", **arguments)
    assert [int(one["body"]) for one in found] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_failed_message_comes_again_and_ends_as_a_dead_letter(served: Served, clients: Clients) -> None:
    """A retry comes after its delay level with its number of tries; after the last one the message is a dead letter."""
    clients("topic", topic="go-fail", queues=1)
    clients("send", topic="go-fail", count=2)
    arguments = {"expression": "*", "failures": 9, "max_tries": 1, "deliveries": 4, "patience_ms": PATIENCE_MS}
    found = clients("subscribe", topic="go-fail", group="go-failing", **arguments)
    tries = Counter((one["body"], one["reconsume_times"]) for one in found)
    assert tries == {("0", 0): 1, ("1", 0): 1, ("0", 1): 1, ("1", 1): 1}
    dead = "%DLQ%go-failing"
    until(lambda: served.store.max_offset(dead, 0) == 2, "both are dead letters")
    assert sorted(bytes(one.body) for one in served.store.read(dead, 0)) == [b"0", b"1"]


def test_delayed_messages_are_delivered_once_and_not_early(served: Served, clients: Clients) -> None:
    """Delay level 1 is a second."""
    clients("topic", topic="go-later", queues=1)
    clients("send", topic="go-later", count=20, delay=1)
    until(lambda: served.store.max_offset("go-later", 0) == 20, "all are delivered")
    found = list(served.store.read("go-later", 0))
    assert sorted(int(one.body) for one in found) == list(range(20))
    assert all(one.store_timestamp_ms - one.born_timestamp_ms >= 1000 for one in found)


def test_transactions_are_decided_once(served: Served, clients: Clients) -> None:
    """Seven of ten are committed, two are rolled back, and one after the producer was asked."""
    clients("topic", topic="go-sums", queues=1)
    assert clients("transact", topic="go-sums", count=LIVE, patience_ms=PATIENCE_MS) >= LIVE // 10
    until(lambda: served.store.max_offset("go-sums", 0) == len(COMMITTED), "all are decided", PATIENCE_S)
    assert sorted(int(one.body) for one in served.store.read("go-sums", 0)) == COMMITTED


def test_a_request_gets_its_reply(served: Served, clients: Clients) -> None:
    """The replies are stored in the cluster's topic, too, as by a broker."""
    clients("topic", topic="go-requests", queues=2)
    replies = clients("request", topic="go-requests", group="go-repliers", count=20)
    assert replies == [f"reply to {number}" for number in range(20)]
    assert served.store.queue_ids(f"{CLUSTER}_REPLY_TOPIC") == [0]
    assert served.store.max_offset(f"{CLUSTER}_REPLY_TOPIC", 0) == 20


def test_a_trace_is_sent_and_stored(served: Served, clients: Clients) -> None:
    """The producer's interceptor sends it to RocketMQ's trace topic."""
    clients("topic", topic="go-traced", queues=1)
    assert clients("send", topic="go-traced", count=5, trace=True) == list(range(5))
    trace = "RMQ_SYS_TRACE_TOPIC"
    until(lambda: any(served.store.max_offset(trace, queue_id) for queue_id in served.store.queue_ids(trace)), "it is stored")


def test_the_admin_client_creates_lists_and_deletes(served: Served, clients: Clients) -> None:
    """A deleted topic has no queues and no keys; created again, it is empty."""
    clients("topic", topic="go-gone", queues=3)
    assert clients("queues", topic="go-gone") == 3
    clients("send", topic="go-gone", count=9)
    until(lambda: sum(served.store.max_offset("go-gone", queue_id) for queue_id in range(3)) == 9, "all are dispatched")
    assert "go-gone" in clients("topics")
    assert "go-orderly" in clients("groups")
    clients("delete_topic", topic="go-gone")
    assert "go-gone" not in clients("topics")
    assert not served.store.query("go-gone", "go-gone-1")
    clients("topic", topic="go-gone", queues=3)
    assert clients("pull", topic="go-gone", group="go-late", queues=3) == []


def test_a_killed_server_loses_no_acknowledged_message(tmp_path: Path) -> None:
    """The Go client sends until the server is killed; what it was told is in the folder afterwards."""
    folder, log = tmp_path / "killed", tmp_path / "go.log"
    for kill in range(KILLS):
        server = LineProcess([sys.executable, "-c", SERVER, str(folder)], tmp_path / "server.log")
        address = f"127.0.0.1:{server.answer()}"
        clients = LineProcess([go_program(), address, address, NAME], log)
        clients.tell("send", topic="go-kill", first=kill * MANY, count=MANY, tell=True)
        before = len(acknowledged_numbers(log))
        until(lambda: len(acknowledged_numbers(log)) > before + 100, "messages are acknowledged")  # noqa: B023  called here
        server.end()
        clients.end()
    with MessageStore.open(folder, "a", CONFIG) as store:
        found = Counter(int(one.body) for queue_id in store.queue_ids("go-kill") for one in store.read("go-kill", queue_id))
    assert acknowledged_numbers(log) <= set(found)
    assert not verify_store(str(folder), CONFIG).problems


def test_the_real_broker_continues_the_folder(served: Served, tmp_path: Path) -> None:
    """It delivers what the Go client sent."""
    prepare_or_skip()
    served.end()
    assert not verify_store(str(served.folder), CONFIG).problems
    with RealBroker(served.folder, tmp_path / "broker", **SIZES) as broker:
        for kind in ("sync", "async", "oneway", "batch", "ordered"):
            assert len(broker.invoke("read", topic=f"go-{kind}", brief=True)) == LIVE
        assert len(broker.invoke("read", topic="go-sums", brief=True)) == len(COMMITTED)
