"""Official Java clients on a store of ours; afterwards the real broker continues the folder."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore.repair.verification import verify_store

from .jvm import prepare_or_skip
from .live import CONFIG, LIVE, MARKS, PATIENCE_S, QUEUES, SIZES, Served
from .real_broker import CLUSTER, RealBroker, until

pytestmark = MARKS
KINDS: dict[str, dict[str, Any]] = {
    "async": {"ahead": 500}, "sync": {"ahead": 1, "mode": "sync"}, "oneway": {"ahead": 1, "mode": "oneway"},
    "batch": {"ahead": 50, "batch": 50},
}  # fmt: skip
COMMITTED = [number for number in range(LIVE) if number % 10 < 8]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start one server and one JVM of clients for all tests."""
    found = Served(tmp_path_factory.mktemp("served"))
    yield found
    found.end()


def sent(topic: str, number: int, **changes: Any) -> dict[str, Any]:
    body = base64.b64encode(b"%d" % number).decode()
    return {"topic": topic, "body": body, "tags": "tag", "keys": [f"{topic}-{number}"], "queue_id": number % 2, **changes}


def bodies(found: list[dict[str, Any]]) -> list[int]:
    return sorted(int(base64.b64decode(message["body"])) for message in found)


def numbers(clients: Served | RealBroker, topic: str) -> list[int]:
    """Read a topic with the pull consumer; return the numbers in the bodies, sorted."""
    return sorted(int(base64.b64decode(body)) for *_, body in clients.invoke("read", topic=topic, brief=True))


def ends(world: Served, topic: str) -> int:
    return sum(world.store.max_offset(topic, queue_id) for queue_id in range(QUEUES))


def test_sends_of_all_kinds_are_stored_and_read(world: Served) -> None:
    """Messages with keys and batches; the pull consumer reads what the store has."""
    world.invoke("topic", topic="plain", queues=2)
    world.invoke("topic", topic="batches", queues=2)
    answers = world.invoke("send", messages=[sent("plain", number) for number in range(50)])
    assert len(answers) == 50
    world.invoke("send_batch", messages=[sent("batches", number, queue_id=1) for number in range(20)])
    assert bodies(world.invoke("read", topic="plain")) == list(range(50))
    assert bodies(world.invoke("read", topic="batches")) == list(range(20))


def test_a_client_of_a_newer_version_queries_by_tag(tmp_path: Path) -> None:
    """The admin client of 5.5 asks the index of tags, with the newest 64 messages as its limit."""
    prepare_or_skip("5.5.1")
    with Served(tmp_path, CONFIG.but(broker_version="5.5.1"), version="5.5.1") as served:
        served.invoke("topic", topic="tagged", queues=2)
        served.invoke("send", messages=[sent("tagged", number, tags="ab"[number % 2]) for number in range(200)])
        found = served.invoke("query_tags", cluster=CLUSTER, requested=[["tagged", "a"], ["tagged", "none"]])
        assert found == [[one.physical_offset for one in served.store.query_tag("tagged", "a", max_count=64)], []]
        bodies_found = {served.store.message_at(offset).body for offset in found[0]}  # type: ignore[union-attr]
        assert bodies_found == {b"%d" % number for number in range(72, 200, 2)}


@pytest.mark.parametrize("kind", KINDS)
def test_many_sends_of_each_kind_are_stored_once(world: Served, kind: str) -> None:
    """The pull consumer reads each once, and a query finds them by key."""
    topic = f"flood-{kind}"
    world.invoke("topic", topic=topic, queues=QUEUES)
    world.clients.tell("flood", topic=topic, count=LIVE, queues=QUEUES, **KINDS[kind])
    seconds = world.clients.answer(PATIENCE_S)["seconds"]
    print(f"{kind}: {LIVE / seconds:.0f} messages a second")
    until(lambda: ends(world, topic) == LIVE, "all are stored", PATIENCE_S)
    assert numbers(world, topic) == list(range(LIVE))
    assert all(len(found) == 1 for found in world.invoke("query", requested=[[topic, "flood-7"], [topic, "flood-19"]]))


def test_a_push_consumer_gets_everything_and_retries_what_failed(world: Served) -> None:
    """Each first try fails; the second comes from the retry topic."""
    world.invoke("topic", topic="pushed", queues=2)
    world.invoke("send", messages=[sent("pushed", number) for number in range(20)])
    found = world.invoke("subscribe", topic="pushed", group="pushers", count=20, failures=1, patience_ms=90_000)
    again = [message for message in found if message["reconsume_times"] == 1]
    assert bodies(again) == list(range(20))


def test_messages_put_here_wake_a_waiting_push_consumer(world: Served) -> None:
    """The consumer waits in a long poll when they are put."""
    world.invoke("topic", topic="woken", queues=2)
    world.clients.tell("subscribe", topic="woken", group="wakers", count=20, patience_ms=60_000)
    until(lambda: bool(world.members("wakers")), "the consumer is there")
    time.sleep(1)
    for number in range(20):
        world.store.put(Message("woken", b"%d" % number, queue_id=number % 2))
    assert bodies(world.clients.answer()) == list(range(20))


def test_many_transactions_are_decided_once(world: Served) -> None:
    """Seven of ten are committed, two are rolled back, and the producer is asked about one."""
    world.invoke("topic", topic="sums", queues=QUEUES)
    world.clients.tell("transact", topic="sums", count=LIVE)
    world.clients.answer(PATIENCE_S)
    until(lambda: ends(world, "sums") == len(COMMITTED), "the producer was asked", PATIENCE_S)
    assert numbers(world, "sums") == COMMITTED
    assert not world.store.undecided_transactions()


def test_delayed_messages_are_delivered_once_and_not_early(world: Served) -> None:
    """The store time of each delivery is at least the level's second after its birth."""
    world.invoke("topic", topic="later", queues=QUEUES)
    world.clients.tell("flood", topic="later", count=LIVE, queues=QUEUES, ahead=200, delay=1)
    world.clients.answer(PATIENCE_S)
    until(lambda: ends(world, "later") == LIVE, "all are delivered", PATIENCE_S)
    assert numbers(world, "later") == list(range(LIVE))
    found = (message for queue_id in range(QUEUES) for message in world.store.read("later", queue_id))
    assert all(message.store_timestamp_ms - message.born_timestamp_ms >= 1000 for message in found)


def test_timers_are_delivered_once_and_not_early(world: Served) -> None:
    """Sent with `setDeliverTimeMs` and without the client's own delay levels; the copies have the broker's properties."""
    world.invoke("topic", topic="timed", queues=2)
    now_ms = int(time.time() * 1000)
    due = [now_ms + 1500 + 37 * number for number in range(100)]
    world.invoke("send", messages=[sent("timed", number, deliver_ms=due[number]) for number in range(100)])
    until(lambda: sum(world.store.max_offset("timed", queue_id) for queue_id in (0, 1)) == 100, "all are delivered")
    found = world.invoke("read", topic="timed")
    assert bodies(found) == list(range(100))
    for one in found:
        number = int(base64.b64decode(one["body"]))
        assert int(one["properties"]["TIMER_OUT_MS"]) < due[number] <= one["store_timestamp_ms"]


def test_the_real_broker_continues_the_folder(world: Served, tmp_path: Path) -> None:
    """It delivers what is there, also what is not due yet, and has the offsets of the groups."""
    world.invoke("topic", topic="tomorrow", queues=QUEUES)
    world.invoke("flood", topic="tomorrow", count=100, queues=QUEUES, ahead=10, delay=3)
    world.end()
    assert not verify_store(str(world.folder), CONFIG).problems
    with RealBroker(world.folder, tmp_path / "broker", **SIZES) as broker:
        assert bodies(broker.invoke("read", topic="plain")) == list(range(50))
        for kind in KINDS:
            assert numbers(broker, f"flood-{kind}") == list(range(LIVE))
        assert numbers(broker, "sums") == COMMITTED
        assert numbers(broker, "later") == list(range(LIVE))
        assert sum(int(value) for value in broker.invoke("offsets", topic="pushed", group="pushers").values()) == 20
        until(lambda: len(broker.invoke("read", topic="tomorrow", brief=True)) == 100, "the rest is delivered")
        assert numbers(broker, "tomorrow") == list(range(100))
        broker.invoke("send", messages=[sent("plain", 50)])
        assert bodies(broker.invoke("read", topic="plain")) == list(range(51))
