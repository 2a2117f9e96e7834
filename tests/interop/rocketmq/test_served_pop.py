"""Real push consumers in POP mode on a store of ours, and then on a real broker that continues the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from messagestore.repair.verification import verify_store
from tests.brokerstore.tool import run

from .live import CONFIG, LIVE, MARKS, PATIENCE_S, SIZES, Served, deliveries, missing, repeated
from .real_broker import RealBroker, until

pytestmark = MARKS
QUEUES = 8
INVISIBLE_MS = 5000  # the shortest time of the Java client


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Start one server and one JVM of producers."""
    with Served(tmp_path / "served") as found:
        yield found


def prepare(served: Served, topic: str, group: str, share: int) -> None:
    """Create a topic, and let a group pop it."""
    served.invoke("topic", topic=topic, queues=QUEUES)
    served.invoke("request_mode", topic=topic, group=group, mode="POP", share=share)


def taken(served: Served, topic: str) -> int:
    """Return how many messages of a topic are taken and not acknowledged."""
    queues = served.server._requests.leases._queues
    assert any(key[0] == topic for key in queues), "nobody pops it"
    return sum(len(queue.taken) for key, queue in queues.items() if key[0] == topic)


def test_pop_consumers_get_every_message_although_some_are_killed(served: Served, tmp_path: Path) -> None:
    """Each takes from its own queues and those of one other.

    What killed clients had comes again after its time, from the retry topic; nothing else is processed twice.
    """
    file = tmp_path / "file"
    prepare(served, "popped", "G", 1)
    settings = {"group": "G", "topic": "popped", "file": str(file), "server_rebalance": True, "invisible_ms": INVISIBLE_MS}
    stable, killed = served.another(), served.another()
    for name in ("a", "b"):
        stable.invoke("start_consumer", name=name, **settings)
        killed.invoke("start_consumer", name=f"killed-{name}", **settings)
    until(lambda: len(served.members("G")) == 4, "all four are known", PATIENCE_S)
    served.clients.tell("flood", topic="popped", count=LIVE, queues=QUEUES, ahead=200)
    until(lambda: any(one.name.startswith("killed") for one in deliveries(file)), "they have begun", PATIENCE_S)
    killed.end()
    served.clients.answer(PATIENCE_S)
    until(lambda: not missing(file, LIVE), "every message was processed", PATIENCE_S)
    until(lambda: sum(served.store.committed_offsets("popped", "G").values()) == LIVE, "all is committed", PATIENCE_S)
    assert taken(served, "popped") == 0
    for name in ("a", "b"):
        stable.invoke("stop_consumer", name=name)
    found = deliveries(file)
    again = [one for one in found if one.tries]
    print(f"{LIVE} messages, {len(again)} came again, {repeated(found)} processed twice")
    assert repeated(found) <= len(again)


def test_a_real_broker_continues_pop_consumer_groups(served: Served, tmp_path: Path) -> None:
    """Each consumer takes from all queues. Each message fails once here, and comes again after 10 s.

    The group stops in the middle; the broker reads its mode and offsets, and delivers the rest.
    """
    file = tmp_path / "file"
    prepare(served, "moved", "movers", 8)
    settings = {"group": "movers", "topic": "moved", "file": str(file), "server_rebalance": True}
    consumers = served.another()
    consumers.invoke("start_consumer", name="here", failures=1, retry_level=0, **settings)
    served.clients.invoke("flood", topic="moved", count=200, queues=QUEUES, ahead=200)
    until(lambda: len([one for one in deliveries(file) if one.tries == 1]) == 200, "each came twice", PATIENCE_S)
    until(lambda: sum(served.store.committed_offsets("moved", "movers").values()) == 200, "all is committed", PATIENCE_S)
    assert taken(served, "moved") == 0 and len(deliveries(file)) == 400
    consumers.invoke("stop_consumer", name="here")
    served.clients.invoke("flood", topic="moved", count=LIVE, first=200, queues=QUEUES, ahead=200)
    served.end()
    assert not verify_store(str(served.folder), CONFIG).problems
    (lag,) = run("ls", "--json", served.folder).json["pop"]
    assert (lag["topic"], lag["group"], lag["ready"], lag["unacknowledged"]) == ("moved", "movers", LIVE, 0)
    with RealBroker(served.folder, tmp_path / "broker", **SIZES) as broker:
        broker.invoke("start_consumer", name="there", **settings)
        until(lambda: not missing(file, LIVE + 200), "every message was processed", PATIENCE_S)
        broker.invoke("stop_consumer", name="there")
        broker.stop()
    assert min(one.body for one in deliveries(file) if one.name == "there") == 200
