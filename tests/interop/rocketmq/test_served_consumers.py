"""Real push consumers on a store of ours: broadcasting, changing groups, dead letters.  A real broker delivers what is left."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog import Message
from messagestore.repair.verification import verify_store

from .jvm import Refused
from .live import CONFIG, KILLS, LIVE, MARKS, PATIENCE_S, SIZES, Served, deliveries, missing, processed, repeated
from .real_broker import RealBroker, until

pytestmark = MARKS
QUEUES = 8
PART = LIVE // KILLS // 2
DEAD = LIVE if LIVE >= 100_000 else max(20, LIVE // 100)  # each is tried three times


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start one server and one JVM of producers for all tests."""
    with Served(tmp_path_factory.mktemp("consumers")) as found:
        yield found


def flood(served: Served, topic: str, count: int = LIVE, first: int = 0) -> None:
    """Begin to send; `served.clients.answer` waits for the end."""
    served.invoke("topic", topic=topic, queues=QUEUES)
    served.clients.tell("flood", topic=topic, count=count, first=first, queues=QUEUES, ahead=200)


def test_each_broadcast_consumer_gets_every_message_once(served: Served, tmp_path: Path) -> None:
    """Their offsets are their own: the broker has none."""
    consumers = served.another()
    files = [tmp_path / f"file-{number}" for number in range(2)]
    served.invoke("topic", topic="news", queues=QUEUES)
    for number, file in enumerate(files):
        consumers.invoke("start_consumer", name=f"b{number}", group="all", topic="news", file=str(file), broadcast=True)
    flood(served, "news")
    for file in files:
        until(lambda file=file: not missing(file, LIVE), "every message is there", PATIENCE_S)  # type: ignore[misc]
        assert repeated(deliveries(file)) == 0
    served.clients.answer(PATIENCE_S)
    for number in range(2):
        consumers.invoke("stop_consumer", name=f"b{number}")
    assert served.store.committed_offsets("news", "all") == {}


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_no_message_is_lost_while_consumers_of_a_group_start_and_stop(served: Served, tmp_path: Path, *, orderly: bool) -> None:
    """Nothing is lost while they start, stop and are killed; in order, no message overtakes an earlier one of its queue."""
    topic, file = f"shifts-{orderly}", tmp_path / "file"
    group = f"G-{topic}"
    settings = {"group": group, "topic": topic, "file": str(file), "orderly": orderly}
    served.invoke("topic", topic=topic, queues=QUEUES)
    stable = served.another()
    stable.invoke("start_consumer", name="stays", **settings)
    for number in range(KILLS):
        flood(served, topic, PART, number * PART)
        killed = served.another()
        stable.invoke("start_consumer", name=f"leaves-{number}", **settings)
        for name in ("a", "b"):
            killed.invoke("start_consumer", name=f"killed-{number}{name}", **settings)
        until(lambda: len(served.members(group)) == 4, "all four are known", PATIENCE_S)
        served.clients.answer(PATIENCE_S)
        flood(served, topic, PART, (KILLS + number) * PART)
        stable.invoke("stop_consumer", name=f"leaves-{number}")
        killed.end()
        served.clients.answer(PATIENCE_S)
    sent = 2 * KILLS * PART
    committed = functools.partial(served.store.committed_offsets, topic, group)
    until(lambda: sum(committed().values()) == sent, "every message is committed", PATIENCE_S)
    stable.invoke("stop_consumer", name="stays")
    found = deliveries(file)
    print(f"{topic}: {sent} messages, {repeated(found)} processed again")
    assert missing(file, sent) == 0
    if orderly:
        firsts: dict[tuple[int, int], int] = {}
        for position, one in enumerate(found):
            firsts.setdefault((one.queue_id, one.queue_offset), position)
        for queue_id in range(QUEUES):
            positions = [position for key, position in sorted(firsts.items()) if key[0] == queue_id]
            assert positions == sorted(positions)


def test_a_clean_group_processes_each_message_once(served: Served, tmp_path: Path) -> None:
    """Four members that stay divide the queues, and nothing comes twice."""
    file = tmp_path / "file"
    consumers = served.another()
    served.invoke("topic", topic="calm", queues=QUEUES)
    for number in range(4):
        consumers.invoke("start_consumer", name=f"c{number}", group="calm", topic="calm", file=str(file))
    time.sleep(3)  # the queues are divided
    flood(served, "calm")
    until(lambda: not missing(file, LIVE), "every message was processed", PATIENCE_S)
    served.clients.answer(PATIENCE_S)
    assert repeated(deliveries(file)) == 0
    assert len({one.name for one in deliveries(file)}) == 4


def test_messages_that_fail_always_become_dead_letters(served: Served, tmp_path: Path) -> None:
    """After two retries; the group's own topic of dead letters has each once."""
    file, dead = tmp_path / "file", tmp_path / "dead"
    consumers = served.another()
    flood(served, "poison", DEAD)
    served.clients.answer(PATIENCE_S)
    settings = {"group": "sick", "topic": "poison", "file": str(file), "failures": 99, "max_tries": 2}
    consumers.invoke("start_consumer", name="s", **settings)
    until(lambda: processed(file) >= 3 * DEAD, "three tries each", PATIENCE_S)
    until(lambda: served.store.max_offset("%DLQ%sick", 0) == DEAD, "dead letters", PATIENCE_S)
    consumers.invoke("stop_consumer", name="s")
    assert sorted(one.tries for one in deliveries(file)) == [0] * DEAD + [1] * DEAD + [2] * DEAD
    consumers.invoke("start_consumer", name="d", group="doctor", topic="%DLQ%sick", file=str(dead))
    until(lambda: not missing(dead, DEAD), "dead letters are delivered", PATIENCE_S)
    consumers.invoke("stop_consumer", name="d")
    assert repeated(deliveries(dead)) == 0


def test_consumers_with_broker_side_rebalance_get_every_message(served: Served, tmp_path: Path) -> None:
    """They pull, because their group was not told to pop."""
    file = tmp_path / "file"
    consumers = served.another()
    served.invoke("topic", topic="divided", queues=QUEUES)
    for name in ("p", "q"):
        consumers.invoke("start_consumer", name=name, group="G", topic="divided", file=str(file), server_rebalance=True)
    until(lambda: len(served.members("G")) == 2, "both are known", PATIENCE_S)
    flood(served, "divided")
    served.clients.answer(PATIENCE_S)
    until(lambda: not missing(file, LIVE), "every message was processed", PATIENCE_S)
    for name in ("p", "q"):
        consumers.invoke("stop_consumer", name=name)
    assert {one.name for one in deliveries(file)} == {"p", "q"}


def test_the_real_broker_delivers_what_is_left(served: Served, tmp_path: Path) -> None:
    """A group stops in the middle; on the real broker it gets the rest, and dead letters are there."""
    file, dead = tmp_path / "file", tmp_path / "dead"
    settings = {"group": "movers", "topic": "moved", "file": str(file)}
    consumers = served.another()
    flood(served, "moved")
    served.clients.answer(PATIENCE_S)
    consumers.invoke("start_consumer", name="m", **settings)
    until(lambda: processed(file) > 0, "it has begun", PATIENCE_S)
    consumers.invoke("stop_consumer", name="m")
    before = deliveries(file)
    committed = sum(served.store.committed_offsets("moved", "movers").values())
    dead_letters = served.store.max_offset("%DLQ%sick", 0)  # of the test above
    print(f"{len(before)} of {LIVE} processed here, {committed} committed")
    served.end()
    assert not verify_store(str(served.folder), CONFIG).problems
    with RealBroker(served.folder, tmp_path / "broker", **SIZES) as broker:
        broker.invoke("start_consumer", name="n", **settings)
        broker.invoke("start_consumer", name="d", group="surgeon", topic="%DLQ%sick", file=str(dead))
        until(lambda: not missing(file, LIVE), "every message was processed", PATIENCE_S)
        until(lambda: not missing(dead, dead_letters), "dead letters are delivered", PATIENCE_S)
        for name in ("n", "d"):
            broker.invoke("stop_consumer", name=name)
        after = [one for one in deliveries(file) if one.name == "n"]
    assert len(after) == LIVE - committed
    assert repeated(before + after) == len(before) - committed
    assert repeated(deliveries(dead)) == 0


def test_a_consumer_gets_what_its_sql_filter_matches(tmp_path: Path) -> None:
    """A wrong filter is refused before the consumer starts."""
    with Served(tmp_path / "served") as served:
        assert_filter_selects(served, tmp_path)


def assert_filter_selects(served: Served, tmp_path: Path) -> None:
    topic, file = "filtered", tmp_path / "file"
    settings = {"topic": topic, "file": str(file)}
    flood(served, topic, 100)
    served.clients.answer(PATIENCE_S)
    filtered = served.another()
    with pytest.raises(Refused, match="CODE: 23"):
        filtered.invoke("start_consumer", name="wrong", group="wrong", **settings, sql="KEYS = ")
    filtered.invoke(
        "start_consumer", name="f", group="selecting", **settings, sql="KEYS IN ('flood-7', 'flood-93') OR KEYS ENDSWITH '-50'"
    )
    until(lambda: processed(file) >= 3, "what matches is there", PATIENCE_S)
    served.store.put(Message(topic, b"100", keys=["flood-93"]))
    until(lambda: processed(file) >= 4, "the last one is there", PATIENCE_S)
    filtered.invoke("stop_consumer", name="f")
    assert sorted(one.body for one in deliveries(file)) == [7, 50, 93, 100]
