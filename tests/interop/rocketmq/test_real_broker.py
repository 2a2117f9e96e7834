"""The real name server, broker and clients use our folder: it is served, extended, killed, repaired and served again.

Two fixtures go through the folder's life, and the tests check what must hold at each step.  A fixture asserts nothing, so one
error fails one test.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from consumequeue import Boundary
from messagestore import FlushMode, MessageStore, StoreConfig
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from messagestore.write import retention
from tests.helpers import bodies
from tests.serving import free_ports

from .answers import from_java, our_messages, our_queues, questions
from .folders import JAVA_NAMES, LONG_TOPIC, START_MS, Ticking, write_mixed
from .jvm import prepare_or_skip, why_not
from .real_broker import RealBroker, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
LOG_SIZE, QUEUE_SIZE, SLOTS, ITEMS = 128 << 10, 20_000, 5_000, 20_000
SIZES = dict(zip(JAVA_NAMES, (LOG_SIZE, QUEUE_SIZE, SLOTS, ITEMS), strict=True))
CONFIG = StoreConfig(
    mapped_file_size_commit_log=LOG_SIZE,
    mapped_file_size_consume_queue=QUEUE_SIZE,
    max_hash_slot_num=SLOTS,
    max_index_num=ITEMS,
)
TOPICS = [*(f"topic-{number}" for number in range(5)), LONG_TOPIC, "Тема-é", "batches", "here", "decided"]
FLOOD, FLOOD_QUEUES = 100_000, 4
STREAMED, STREAM_QUEUES = 2_000, 3
BOUNDARIES = (Boundary.LOWER, Boundary.UPPER)


@dataclass
class Station:
    """What was observed while a broker ran, and the folder that it left."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=dict)


def text(body: bytes) -> str:
    return base64.b64encode(body).decode()


def write_ours(folder: Path, port: int) -> None:
    """Write all kinds of records in several log files, with and without whole-record checksums; delete the first files."""
    host = f"127.0.0.1:{port}"
    config = CONFIG.but(flush_disk_type=FlushMode.SYNC, store_host=host)
    with MessageStore.open(folder, config=config, clock=Ticking(START_MS)) as store:
        write_mixed(store, range(0, 400))
    config = CONFIG.but(enabled_append_prop_crc=False, store_host=host)
    with MessageStore.open(folder, config=config, clock=Ticking(START_MS + 10**6)) as store:
        write_mixed(store, range(400, 900))
        for number in range(40):
            store.put(Message("here", b"here %d" % number, queue_id=0, tags="h", keys=[f"here-{number}"]))
    with MessageStore.open(folder, config=config) as store:
        assert store.delete_before(2 * LOG_SIZE) == 2


def received(broker: RealBroker, topics: list[str]) -> list[dict[str, Any]]:
    """Return what a real consumer receives of the topics, in log order."""
    found = [from_java(message) for topic in topics for message in broker.invoke("read", topic=topic)]
    return sorted(found, key=lambda message: message["physical_offset"])  # type: ignore[no-any-return]


def id_of(port: int, physical_offset: int) -> str:
    """Return the id by which a broker on 127.0.0.1 finds a record, whatever its store host is."""
    return f"7F000001{port:08X}{physical_offset:016X}"


# The broker starts on our folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """Let a real broker serve our folder, answer queries, take messages of real producers, and stop cleanly."""
    prepare_or_skip()
    root = tmp_path_factory.mktemp("served")
    (port,) = free_ports(1)
    station = Station(root / "store", {"port": port})
    write_ours(station.folder, port)
    with MessageStore.open(station.folder, "r", CONFIG) as store:
        station.facts["queues"] = our_queues(store)
        station.facts["due"] = len(list(store.read("SCHEDULE_TOPIC_XXXX", 17)))
        times, keys = questions(our_messages(station.folder, TOPICS), station.facts["queues"])
        station.facts |= {"ours": our_messages(station.folder, TOPICS), "times": times, "keys": keys}
        station.facts["our times"] = [[store.offset_by_time(*one, boundary) for boundary in BOUNDARIES] for one in times]
        station.facts["our hits"] = [[found.physical_offset for found in store.query(*one, max_count=64)] for one in keys]
    with RealBroker(station.folder, root / "broker", port=port, **SIZES) as broker:
        request_own(broker, station)
        add_to_it(broker, station)
        broker.stop()
    yield station
    shutil.rmtree(root)


def request_own(broker: RealBroker, station: Station) -> None:
    facts = station.facts
    facts["received"] = received(broker, TOPICS)
    facts["tagged"] = broker.invoke("read", topic="topic-1", tags="A || тег")
    facts["times answered"] = broker.invoke("times", requested=facts["times"])
    facts["hits"] = broker.invoke("query", requested=[key for key in facts["keys"] if key[0] in TOPICS])
    facts["viewed"] = broker.invoke(
        "view", requested=[[one["topic"], id_of(facts["port"], one["physical_offset"])] for one in facts["ours"][::7]]
    )
    facts["by our id"] = broker.invoke(
        "view", requested=[["here", one["message_id"]] for one in facts["ours"] if one["topic"] == "here"]
    )


def sent(topic: str, number: int, **more: Any) -> dict[str, Any]:
    """Return a message for the real producer."""
    return {"topic": topic, "body": text(b"%s %d" % (topic.encode(), number)), "keys": [f"{topic}-{number}"]} | more


def add_to_it(broker: RealBroker, station: Station) -> None:
    """Send every kind of message through real producers, and record the results."""
    for topic in ("added", "delayed", "agreed"):
        broker.invoke("topic", topic=topic, queues=2)
    plain = [sent("added", number, queue_id=number % 2, tags="t", properties={"n": f"№{number}"}) for number in range(60)]
    plain += [sent("topic-1", number, queue_id=number % 3) for number in range(30)]
    station.facts["sent"] = list(zip(plain, broker.invoke("send", messages=plain), strict=True))
    batches = [[sent("added", 100 * batch + number, queue_id=1) for number in range(1, 9)] for batch in range(1, 5)]
    station.facts["batches"] = [(batch, broker.invoke("send_batch", messages=batch)) for batch in batches]
    delayed = [sent("delayed", number, queue_id=0, delay=1) for number in range(5)]
    broker.invoke("send", messages=[*delayed, sent("delayed", 99, queue_id=1, delay=18)])
    decisions = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
    broker.invoke("send_transaction", messages=[sent("agreed", number, decision=decisions[number % 3]) for number in range(9)])
    until(lambda: len(broker.invoke("read", topic="delayed")) >= 5, "delayed messages are delivered")
    until(lambda: len(broker.invoke("read", topic="later")) >= station.facts["due"], "what was due in our store is delivered")
    until(lambda: len(broker.invoke("read", topic="agreed")) >= 3, "transactions are committed")


def test_a_real_consumer_receives_every_message_of_ours(served: Station) -> None:
    """All fields are equal, with a version-2 topic, IPv6 hosts and batches among them."""
    assert len(served.facts["ours"]) > 300
    assert served.facts["received"] == served.facts["ours"]
    consumed = {(one["topic"], one["queue_id"], one["queue_offset"]) for one in served.facts["received"]}
    in_queues = sum(len(queue["consumed"]) for queue in served.facts["queues"] if queue["topic"] in TOPICS)
    assert len(consumed) == len(served.facts["ours"]) == in_queues


def test_a_real_consumer_receives_only_the_tags_that_it_subscribes_to(served: Station) -> None:
    """The broker filters by the hash in our units, the client by the text."""
    expected = [
        one for one in served.facts["ours"] if one["topic"] == "topic-1" and one["properties"].get("TAGS") in ("A", "тег")
    ]
    found = sorted(from_java(one)["physical_offset"] for one in served.facts["tagged"])
    assert found == [one["physical_offset"] for one in expected] and expected


def test_a_real_broker_finds_the_same_offset_by_time(served: Station) -> None:
    """Both boundaries are equal at, before and after store times of every queue."""
    facts = served.facts
    assert list(zip(facts["times"], facts["times answered"], strict=True)) == list(
        zip(facts["times"], facts["our times"], strict=True)
    )


def test_a_real_query_by_key_finds_ours(served: Station) -> None:
    """It finds the same records as our query, for keys of one message and of many."""
    facts = served.facts
    pairs = [(key, hits) for key, hits in zip(facts["keys"], facts["our hits"], strict=True) if key[0] in TOPICS]
    assert len(pairs) > 50 and all(hits for _, hits in pairs)
    assert list(zip([key for key, _ in pairs], facts["hits"], strict=True)) == pairs


def test_a_real_query_by_id_finds_ours(served: Station) -> None:
    """Ids that our puts return and ids made from physical offsets both work."""
    facts = served.facts
    assert [from_java(one) for one in facts["viewed"]] == facts["ours"][::7]
    here = [one for one in facts["ours"] if one["topic"] == "here"]
    assert [from_java(one) for one in facts["by our id"]] == here and len(here) == 40


def test_messages_of_real_producers_are_read_after_a_clean_stop(served: Station) -> None:
    """Messages are found by offset and key, ours are unchanged, and nothing needs repair."""
    facts = served.facts
    assert our_messages(served.folder, TOPICS)[: len(facts["ours"])] == facts["ours"]
    with MessageStore.open(served.folder, "r", CONFIG) as store:
        for message, (status, client_id, message_id, queue_id, queue_offset) in facts["sent"]:
            (found,) = store.get(message["topic"], queue_id, queue_offset, 1).messages
            assert (status, found.message_id, text(found.body)) == ("SEND_OK", message_id, message["body"])
            for key in (*message["keys"], client_id):
                assert found.physical_offset in [hit.physical_offset for hit in store.query(message["topic"], key)]
        for batch, (status, _, message_ids, queue_id, queue_offset) in facts["batches"]:
            page = store.get("added", queue_id, queue_offset, len(batch))
            assert status == "SEND_OK" and ",".join(found.message_id for found in page.messages) == message_ids
            assert [text(found.body) for found in page.messages] == [message["body"] for message in batch]
    assert_sound(served.folder)


def test_delayed_and_committed_messages_of_a_real_broker_are_read(served: Station) -> None:
    """Due and committed messages are there once, rolled back and undecided ones not; undue ones wait."""
    with MessageStore.open(served.folder, "r", CONFIG) as store:
        delivered = sorted(message.body for message in store.read("delayed", 0))
        assert delivered == [b"delayed %d" % number for number in range(5)]
        agreed = sorted(message.body for queue_id in store.queue_ids("agreed") for message in store.read("agreed", queue_id))
        assert agreed == [b"agreed 0", b"agreed 3", b"agreed 6"]
        *due, pending = [message.body for message in store.read("SCHEDULE_TOPIC_XXXX", 17)]
        assert (set(due), len(due), pending) == ({b"later"}, served.facts["due"], b"delayed 99")
        assert [message.body for message in store.read("later", 0)] == [b"later"] * served.facts["due"]


def assert_sound(folder: Path) -> None:
    report = verify_store(str(folder), CONFIG)
    assert not report.problems
    plan = Recovery(str(folder), Choice.REFUSE, CONFIG).plan()
    assert not plan.findings and not plan.is_damaged


# A follower beside the running broker, and a kill


@pytest.fixture(scope="module")
def killed(served: Station, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """Continue the folder, serve it again, follow it while a producer writes, and kill the broker during sends."""
    root = tmp_path_factory.mktemp("killed")
    station = Station(root / "store")
    shutil.copytree(served.folder, station.folder)
    with MessageStore.open(station.folder, "r+", CONFIG) as store:
        for number in range(50):
            store.put(Message("here", b"again %d" % number, queue_id=0, keys=[f"again-{number}"]))
    everything = [*TOPICS, "added", "delayed", "agreed", "later"]
    station.facts["before"] = our_messages(station.folder, everything)
    with RealBroker(station.folder, root / "broker", **SIZES) as broker:
        station.facts["received"] = received(broker, everything)
        for topic, queues in (("flood", FLOOD_QUEUES), ("streamed", STREAM_QUEUES)):
            broker.invoke("topic", topic=topic, queues=queues)
        station.facts["followed"] = follow_flood(broker)
        station.facts["acknowledged"] = stream_and_kill(broker)
    yield station
    shutil.rmtree(root)


def follow_flood(broker: RealBroker) -> list[tuple[int, int, int, int]]:
    """Return (physical offset, queue, queue offset, number) of each message that our follower yields beside the broker."""
    seen = []
    with MessageStore.open(broker.store, "r", CONFIG) as store, store.follow(timeout_s=60) as follower:
        broker.clients.tell("flood", topic="flood", count=FLOOD, queues=FLOOD_QUEUES, ahead=2000)
        for message in follower:
            if message.topic == "flood":
                seen.append((message.physical_offset, message.queue_id, message.queue_offset, int(message.body)))
                if len(seen) == FLOOD:
                    break
        broker.clients.answer()
        while more := follower.poll():
            seen += [(one.physical_offset, one.queue_id, one.queue_offset, -1) for one in more if one.topic == "flood"]
    return seen


def stream_and_kill(broker: RealBroker) -> list[list[Any]]:
    """Return [number, queue, queue offset, id] of every message that the broker acknowledged."""
    broker.clients.tell("stream", topic="streamed", first=0, count=1 << 20, queues=STREAM_QUEUES)
    acknowledged = [broker.clients.answer() for _ in range(STREAMED)]
    broker.kill()
    while isinstance(answer := broker.clients.answer(), list):
        acknowledged.append(answer)
    return acknowledged


def test_a_broker_serves_a_folder_that_both_stores_wrote(killed: Station) -> None:
    """A real consumer receives our messages, the broker's, and ours again."""
    received = [one for one in killed.facts["received"] if "TRAN_MSG" not in one["properties"]]
    before = [one for one in killed.facts["before"] if "TRAN_MSG" not in one["properties"]]
    assert received == before
    assert [one["body"] for one in killed.facts["received"]] == [one["body"] for one in killed.facts["before"]]
    assert len([one for one in before if one["topic"] == "here"]) == 90


def test_a_follower_of_a_live_broker_reads_a_hundred_thousand_messages_in_order_and_once(killed: Station) -> None:
    """All offsets are complete and in order while the broker writes, rolls files, and dispatches behind the log."""
    seen = killed.facts["followed"]
    assert len(seen) == FLOOD
    assert [one[0] for one in seen] == sorted({one[0] for one in seen})
    for queue_id in range(FLOOD_QUEUES):
        assert [offset for _, queue, offset, _ in seen if queue == queue_id] == list(range(FLOOD // FLOOD_QUEUES))
    assert sorted(number for _, _, _, number in seen) == list(range(FLOOD))


@pytest.mark.parametrize("way", ["opened by us", "recovered", "rebuilt"])
def test_messages_acknowledged_by_a_killed_broker_survive_and_are_served_again(
    killed: Station, tmp_path: Path, way: str
) -> None:
    """Opened, recovered or rebuilt, the folder has every acknowledged message, and a broker starts on it."""
    folder = tmp_path / "store"
    shutil.copytree(killed.folder, folder)
    assert (folder / "abort").exists()
    served_once = len([one for one in killed.facts["before"] if one["topic"] == "later"])
    WAYS[way](folder)
    with MessageStore.open(folder, "r", CONFIG) as store:
        for number, queue_id, queue_offset, message_id in killed.facts["acknowledged"]:
            (found,) = store.get("streamed", queue_id, queue_offset, 1).messages
            assert (found.message_id, found.body) == (message_id, b"%d" % number)
        flooded = {
            (found.physical_offset, queue_id, found.queue_offset, int(found.body))
            for queue_id in range(FLOOD_QUEUES)
            for found in store.read("flood", queue_id)
        }
    assert flooded == set(killed.facts["followed"])
    if way != "rebuilt":  # a rebuild leaves the log as the crash left it
        assert not verify_store(str(folder), CONFIG).problems
    expected = our_messages(folder, [*TOPICS, "added", "later", "streamed"])
    assert len([one for one in expected if one["topic"] == "later"]) == served_once
    with RealBroker(folder, tmp_path / "broker", **SIZES) as broker:
        assert received(broker, [*TOPICS, "added", "later", "streamed"]) == expected
        reported = broker.invoke("read", topic="flood", brief=True)
        assert {(at, queue, offset, int(base64.b64decode(body))) for queue, offset, at, body in reported} == flooded
        assert len(reported) == FLOOD
        keys = [["flood", f"flood-{number}"] for number in range(0, FLOOD, FLOOD // 50)] if way != "rebuilt" else []
        assert all(len(found) == 1 for found in broker.invoke("query", requested=keys))


def open_and_go_on(folder: Path) -> None:
    with MessageStore.open(folder, "r+", CONFIG) as store:
        store.put(Message("here", b"after the crash", queue_id=0))


WAYS: dict[str, Callable[[Path], Any]] = {
    "opened by us": open_and_go_on,
    "recovered": lambda folder: Recovery(str(folder), Choice.REFUSE, CONFIG).apply(),
    "rebuilt": lambda folder: rebuild_store(str(folder), config=CONFIG),
}


# A log whose last file was ended early


@pytest.mark.parametrize("is_deleted", [False, True], ids=["both files", "only the new one"])
def test_a_real_broker_continues_a_log_after_a_file_that_was_ended_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """It boots, also after a kill and without queues, numbers go on, and it adds messages that we read."""
    prepare_or_skip()
    monkeypatch.setattr(retention, "FREED_MIN", LOG_SIZE // 4)
    (port,) = free_ports(1)
    folder, old = tmp_path / "store", LOG_SIZE // 3 // 600
    config = CONFIG.but(retention="consumed", store_host=f"127.0.0.1:{port}")
    with MessageStore.open(folder, config=config) as store:
        store.create_topic("t", 1)
        store.put_many("t", [bytes(500)] * old)
        with store.consumer("t", group="g", timeout_s=0) as consumer:
            for message in consumer:
                consumer.ack(message)
        for _ in range(1 + is_deleted):
            store.flush()
            store.engine.settle()
            store.engine.retention.check()
        assert store.engine.log.min_offset == (LOG_SIZE if is_deleted else 0)
        store.put("t", b"new")
    kept = 1 if is_deleted else old + 1
    with RealBroker(folder, tmp_path / "broker", port=port, **SIZES) as broker:
        assert len(broker.invoke("read", topic="t")) == kept
        ((status, *_, queue_offset),) = broker.invoke("send", messages=[sent("t", 7, queue_id=0)])
        assert (status, queue_offset) == ("SEND_OK", old + 1)
        broker.kill()
        shutil.rmtree(folder / "consumequeue")
        broker.restart()
        assert [one["queue_offset"] for one in broker.invoke("read", topic="t")] == [*range(old + 2)][-kept - 1 :]
        broker.stop()
    with MessageStore.open(folder, "r", CONFIG) as store:
        assert bodies(store.read("t", 0))[-2:] == [b"new", b"t 7"]
