"""Messages copied from a RabbitMQ folder into a RocketMQ store and back: none is lost, none is copied twice."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from brokerstore.migrate import export_to_rabbit, import_rabbit, topic_of
from commitlog import Message
from messagestore import MessageStore
from messagestore.write.admission import topic_problem
from rabbitstore import RabbitMessage, RabbitStore
from tests.brokerstore.tool import run
from tests.helpers import contents
from tests.stores import small_config

SMALL = small_config(
    mapped_file_size_commit_log=4 << 20, mapped_file_size_consume_queue=60000, max_hash_slot_num=5000, max_index_num=20000
)


@pytest.fixture
def vhost(fixture_store: Any) -> str:
    """Return the virtual host of the real server's fixture."""
    above = fixture_store("rabbitmq-clean").folder.parent
    return str(next(path.parent for path in sorted(above.rglob(".vhost"))))


def all_messages(folder: str) -> list[RabbitMessage]:
    with RabbitStore.open(folder, "r") as store:
        return list(store.messages())


def what_matters(message: RabbitMessage) -> tuple[Any, ...]:
    content = message.content
    return message.queue, message.msg_id, content.exchange, content.routing_keys, content.properties_bin, content.body


def test_every_message_is_migrated_in_order(vhost: str, tmp_path: Path) -> None:
    """Exchange, routing keys, properties and expiry are kept."""
    moved = import_rabbit(vhost, str(tmp_path / "store"), config=SMALL)
    expected = all_messages(vhost)
    assert (moved.messages, moved.skipped, moved.failed) == (len(expected), 0, [])
    with MessageStore.open(tmp_path / "store", "r") as store:
        for queue in {message.queue for message in expected}:
            mine = [message for message in expected if message.queue == queue]
            found = list(store.read(topic_of(queue), 0))
            assert [one.body for one in found] == [one.body for one in mine]
            for one, requested in zip(found, mine, strict=True):
                properties = one.properties
                assert json.loads(properties["AMQP_QUEUE"]) == queue
                assert json.loads(properties["AMQP_EXCHANGE"]) == requested.exchange
                assert tuple(json.loads(properties["AMQP_ROUTING_KEYS"])) == requested.routing_keys
                assert b64decode(properties["AMQP_BLOCK"]) == requested.content.properties_bin
                assert int(properties.get("AMQP_EXPIRY_US", 0)) == requested.expiry_us
                assert one.keys == [requested.msg_id.hex()]
    assert run("verify", tmp_path / "store").code == 0


def test_a_second_run_copies_nothing_and_an_interrupted_run_is_completed(vhost: str, tmp_path: Path) -> None:
    """The index key and the number in the queue identify a message."""
    store = str(tmp_path / "store")

    class StoppedError(Exception):
        pass

    seen = 0

    def stop(_count: int) -> None:
        nonlocal seen
        seen += 1
        if seen == 1000:
            raise StoppedError

    with pytest.raises(StoppedError):
        import_rabbit(vhost, store, config=SMALL, progress=stop)
    expected = all_messages(vhost)
    moved = import_rabbit(vhost, store)
    assert moved.skipped > 0
    assert moved.messages + moved.skipped == len(expected)
    again = import_rabbit(vhost, store)
    assert (again.messages, again.skipped) == (0, len(expected))
    assert len(run("dump", "--json", store).lines) == len(expected)


def test_a_round_trip_restores_the_same_messages(vhost: str, tmp_path: Path) -> None:
    """The same messages are in the same queues byte for byte; a second run copies nothing."""
    import_rabbit(vhost, str(tmp_path / "store"), config=SMALL)
    back = str(tmp_path / "back")
    moved = export_to_rabbit(str(tmp_path / "store"), back)
    expected = all_messages(vhost)
    assert (moved.messages, moved.failed) == (len(expected), [])
    found = all_messages(back)
    assert Counter(map(what_matters, found)) == Counter(map(what_matters, expected))
    for queue in {message.queue for message in expected}:
        assert [one.msg_id for one in found if one.queue == queue] == [one.msg_id for one in expected if one.queue == queue]
    again = export_to_rabbit(str(tmp_path / "store"), back)
    assert (again.messages, again.skipped) == (0, len(expected))
    assert run("verify", back).code == 0


def test_messages_that_came_from_no_queue(tmp_path: Path) -> None:
    """A topic becomes a queue and properties become headers; the broker's own topics are skipped."""
    with MessageStore.open(tmp_path / "store", "a", SMALL) as store:
        for number in range(6):
            store.put(
                Message("orders", str(number).encode(), keys=[f"k{number}"], properties={"n": str(number)}, queue_id=number % 3)
            )
        store.put(Message("orders", b"no", delay_level=18))
    moved = export_to_rabbit(str(tmp_path / "store"), str(tmp_path / "back"))
    assert (moved.messages, moved.queues) == (6, 1)
    found = all_messages(str(tmp_path / "back"))
    assert {one.body for one in found} == {str(number).encode() for number in range(6)}
    assert {one.queue for one in found} == {"orders"}
    assert {one.properties["headers"]["n"] for one in found} == {str(number) for number in range(6)}


NAMES = ["plain", "with space", "a/b", "a%2Fb", ".", "..", "Ünïcode", "日本" * 40, "x" * 255, "TBW102", "SCHEDULE_TOPIC_XXXX",
         "%RETRY%x", "rmq_sys_x", "\x01\x02", "a.b"]  # fmt: skip


def test_queue_names_become_different_topics() -> None:
    """A broker accepts each topic, and none occurs twice."""
    topics = [topic_of(name) for name in NAMES]
    assert len(set(topics)) == len(NAMES)
    assert [topic_problem(topic) for topic in topics] == [None] * len(NAMES)
    assert topic_of("plain-Name_1") == "plain-Name_1"


def test_unusual_names_and_properties_survive_a_round_trip(tmp_path: Path) -> None:
    """Control characters, long names, several routing keys and headers of every kind survive."""
    source, back = str(tmp_path / "source"), str(tmp_path / "back")
    with RabbitStore.open(source, "a") as store:
        for number, name in enumerate(NAMES):
            store.declare_queue(name)
            headers = {"n": number, "bytes": b"\xff\x00", "nested": {"list": [1, None, True, "\x01"]}}
            store.publish(name, bytes(number), exchange="ex\x01", routing_keys=("r1", "\x02"), properties={"headers": headers})
        store.sync()
    expected = Counter(map(what_matters, all_messages(source)))
    assert len(expected) == len(NAMES)
    assert import_rabbit(source, str(tmp_path / "store"), config=SMALL).failed == []
    assert export_to_rabbit(str(tmp_path / "store"), back).failed == []
    assert Counter(map(what_matters, all_messages(back))) == expected


def test_headers_that_no_record_can_hold_are_named(tmp_path: Path) -> None:
    """The other messages are copied."""
    source = str(tmp_path / "source")
    with RabbitStore.open(source, "a") as store:
        store.declare_queue("q")
        for size in (10, 60_000, 20):
            store.publish("q", str(size).encode(), properties={"headers": {"long": "x" * size}})
        store.sync()
    moved = import_rabbit(source, str(tmp_path / "store"), config=SMALL)
    assert moved.messages == 2
    assert len(moved.failed) == 1
    assert moved.failed[0].startswith('"q" 1')
    with MessageStore.open(tmp_path / "store", "r") as reader:
        assert [one.body for one in reader.read("q", 0)] == [b"10", b"20"]


def test_the_command_migrates_in_both_directions(vhost: str, tmp_path: Path) -> None:
    """The counts are printed as JSON; the source is not changed."""
    before = contents(Path(vhost))
    ran = run("import", vhost, "--to", tmp_path / "store", "--small", "--json")
    assert (ran.code, ran.json["messages"], ran.json["failed"]) == (0, len(all_messages(vhost)), [])
    assert contents(Path(vhost)) == before
    ran = run("import", tmp_path / "store", "--to-rabbit", tmp_path / "back")
    assert ran.code == 0
    assert "0 not imported" in ran.out
