"""The kombu transport does what kombu promises of its transports, on a folder.

kombu's own tests of transports (`t/integration/common.py`) pass except for two of priority, which expect several messages of
one `drain_events`; the tests here have the same cases, one message at a time, and what only a store has.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pytest

kombu = pytest.importorskip("kombu", reason="kombu is not installed (extra kombu)")

from brokerstore.kombu import Channel  # noqa: E402
from brokerstore.kombu import bindings as bindings_module  # noqa: E402
from brokerstore.kombu import transport as transport_module  # noqa: E402
from brokerstore.kombu.queues import topic_of_queue, topic_of_step  # noqa: E402
from commitlog import PutStatus  # noqa: E402
from messagestore import MessageStore, StoreConfig  # noqa: E402
from messagestore.write.admission import client_problem, topic_problem  # noqa: E402
from storageio import StoreFull, StoreLocked  # noqa: E402
from tests.helpers import until  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def connect(folder: Path, **options: Any) -> Any:
    return kombu.Connection(f"brokerstore://{folder}", transport_options={"parts": 1} | options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tasks"


@pytest.fixture
def connection(folder: Path) -> Iterator[Any]:
    with connect(folder) as made:
        yield made


def bodies(connection: Any, *queues: Any, most: int = 100, acks: bool = True) -> list[Any]:
    """Return what a consumer of some queues gets before nothing comes for a moment."""
    found: list[Any] = []

    def callback(body: Any, message: Any) -> None:
        found.append(body)
        if acks:
            message.ack()

    with kombu.Consumer(connection.channel(), list(queues), callbacks=[callback]):
        while len(found) < most:
            try:
                connection.drain_events(timeout=0.2)
            except TimeoutError:
                break
    return found


def publish(connection: Any, body: Any, exchange: Any, routing_key: str = "", declare: Any = (), **options: Any) -> None:
    kombu.Producer(connection.default_channel).publish(
        body, exchange=exchange, routing_key=routing_key, declare=[exchange, *declare], **options
    )


@pytest.mark.parametrize("name", ["plain", "odd name/ä%", "x" * 300, "SCHEDULE_TOPIC_XXXX", "."])
def test_a_simple_queue_keeps_order_and_counts(connection: Any, name: str) -> None:
    """A queue may have any name."""
    queue = connection.SimpleQueue(name)
    for number in range(5):
        queue.put({"n": number}, headers={"h": number})
    assert queue.qsize() == 5
    for number in range(5):
        message = queue.get(timeout=5)
        assert (message.payload, message.headers, message.content_type) == ({"n": number}, {"h": number}, "application/json")
        assert queue.qsize() == 4 - number
        message.ack()
    with pytest.raises(queue.Empty):
        queue.get_nowait()


def test_unacknowledged_messages_survive_a_closed_connection(folder: Path) -> None:
    """A connection that is closed leaves a store in order, and what was not acknowledged comes again."""
    with connect(folder) as first:
        queue = first.SimpleQueue("q")
        for number in range(3):
            queue.put(number)
        queue.get(timeout=5).ack()
        queue.get(timeout=5)
    with MessageStore.open(folder, "r") as store:
        assert store.engine.was_clean
    with connect(folder) as second:
        queue = second.SimpleQueue("q")
        found = [queue.get(timeout=5) for _ in range(2)]
        assert sorted(message.payload for message in found) == [1, 2]
        assert {message.payload: bool(message.delivery_info.get("redelivered")) for message in found} == {1: True, 2: False}
        for message in found:
            message.ack()
        assert queue.qsize() == 0


@pytest.mark.parametrize("way", ["reject", "requeue", "reject and requeue"])
def test_a_rejected_message_is_dropped_or_redelivered(connection: Any, way: str) -> None:
    """One that comes again is marked."""
    queue = connection.SimpleQueue("q")
    queue.put("a")
    message = queue.get(timeout=5)
    message.requeue() if way == "requeue" else message.reject(requeue="requeue" in way)
    if way == "reject":
        with pytest.raises(queue.Empty):
            queue.get_nowait()
        return
    again = queue.get(timeout=5)
    assert again.payload == "a" and again.delivery_info["redelivered"] is True
    again.ack()
    assert queue.qsize() == 0


def test_exchanges_route_to_the_queues_of_every_process(folder: Path, connection: Any) -> None:
    """Bindings are in the store: the publisher here declares only the exchange."""
    direct, topic, fanout = (kombu.Exchange(kind, kind) for kind in ("direct", "topic", "fanout"))
    queues = {
        "d1": kombu.Queue("d1", direct, routing_key="d1"), "d2": kombu.Queue("d2", direct, routing_key="d2"),
        "t1": kombu.Queue("t1", topic, routing_key="a.*"), "t2": kombu.Queue("t2", topic, routing_key="#"),
        "f1": kombu.Queue("f1", fanout), "f2": kombu.Queue("f2", fanout, auto_delete=True),
    }  # fmt: skip
    with connect(folder) as other:
        for queue in queues.values():
            queue(other.default_channel).declare()
        publish(connection, "to d1", direct, "d1")
        publish(connection, "to nobody", direct, "d3")
        publish(connection, "to a.b", topic, "a.b")
        publish(connection, "to c", topic, "c")
        publish(connection, "to all", fanout)
        found = {name: bodies(other, queue) for name, queue in queues.items()}
    assert found == {
        "d1": ["to d1"], "d2": [], "t1": ["to a.b"], "t2": ["to a.b", "to c"], "f1": ["to all"], "f2": ["to all"],
    }  # fmt: skip


def test_a_queue_that_is_unbound_or_deleted_gets_nothing_more(folder: Path, connection: Any) -> None:
    """Its messages are gone too."""
    exchange = kombu.Exchange("e", "direct")
    first, second = (kombu.Queue(name, exchange, routing_key="k") for name in ("first", "second"))
    publish(connection, 1, exchange, "k", declare=[first, second])
    bound = first(connection.default_channel)
    assert bound.get().payload == 1  # it has one message, not acknowledged
    bound.delete()
    publish(connection, 2, exchange, "k")
    with connect(folder) as other:
        assert bodies(other, second) == [1, 2]
        bound.declare()
        assert bound.get() is None
        second(other.default_channel).unbind_from(exchange, routing_key="k")
        publish(connection, 3, exchange, "k")
        assert bodies(other, second) == []
        assert bodies(other, first) == [3]


def test_higher_priorities_come_first(connection: Any) -> None:
    """Equal steps of priority keep their order; a queue of a process has all ten."""
    queue = connection.SimpleQueue("q")
    for number, priority in enumerate([0, 9, 3, 4, 7, 0]):
        queue.put(number, priority=priority)
    assert [queue.get(timeout=5).payload for _ in range(6)] == [1, 4, 2, 3, 0, 5]
    buffer = connection.SimpleBuffer("b")
    for number, priority in enumerate([0, 9, 3, 4]):
        buffer.put(number, priority=priority)
    assert [buffer.get(timeout=5).payload for _ in range(4)] == [1, 3, 2, 0]


def test_a_queue_with_a_maximum_has_each_priority(folder: Path, connection: Any) -> None:
    """Neighbours are distinct up to `x-max-priority`, higher ones count as the maximum, as in RabbitMQ."""
    queue = kombu.Queue("q", kombu.Exchange("q"), "q", max_priority=4)
    for number, priority in enumerate([1, 2, 9, 4, 3, 0]):
        publish(connection, number, queue.exchange, queue.routing_key, [queue], priority=priority)
    assert bodies(connection, queue) == [2, 3, 4, 1, 0, 5]
    with pytest.raises(ValueError, match="x-max-priority is 0, a number from 1 to 255 wanted"):
        kombu.Queue("r", queue_arguments={"x-max-priority": 0})(connection.default_channel).declare()


def test_processes_that_declare_a_queue_otherwise_get_each_message(folder: Path, connection: Any) -> None:
    """Only one of them knows the maximum; whatever step a message was put to, both consume it."""
    plain, ranked = kombu.Queue("q", kombu.Exchange("q"), "q"), kombu.Queue("q", kombu.Exchange("q"), "q", max_priority=5)
    for number in range(10):
        publish(connection, number, plain.exchange, "q", [plain], priority=number)
    with connect(folder) as other:
        for number in range(10):
            publish(other, 10 + number, ranked.exchange, "q", [ranked], priority=number)
        found = bodies(other, ranked)
        publish(other, 20, ranked.exchange, "q", [ranked], priority=5)
    assert sorted(found) == list(range(20))
    assert found[:2] == [9, 6]  # steps 9 and 6 of the first process
    assert bodies(connection, plain) == [20]


def test_a_message_expires(connection: Any) -> None:
    """An expired message is not delivered, and the next one is."""
    queue = connection.SimpleQueue("q")
    queue.put("late", expiration=0.001)
    queue.put("in time", expiration=60)
    with pytest.raises(queue.Empty):
        connection.SimpleQueue("pause").get(timeout=0.05)
    assert queue.get(timeout=5).payload == "in time"


def test_prefetching_is_limited(connection: Any) -> None:
    """A consumer that may take no more ends the wait early, so that acknowledgements that were deferred can be made."""
    queue = connection.SimpleQueue("q")
    for number in range(5):
        queue.put(number)
    channel = connection.channel()
    channel.basic_qos(0, 2, False)
    taken: list[Any] = []
    with kombu.Consumer(channel, [queue.queue], callbacks=[lambda _body, message: taken.append(message)]):
        connection.drain_events(timeout=5)
        connection.drain_events(timeout=5)
        began = time.monotonic()
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=60)
        assert time.monotonic() - began < 30
        taken[0].ack()
        connection.drain_events(timeout=5)
    assert [message.payload for message in taken] == [0, 1, 2]


def test_no_ack_and_purge(connection: Any) -> None:
    """Without acknowledgements a message is settled when it is delivered."""
    queue = connection.SimpleQueue("q", no_ack=True)
    for number in range(4):
        queue.put(number)
    assert queue.get(timeout=5).payload == 0
    assert connection.transport.held == {}
    assert queue.clear() == 3
    assert queue.qsize() == 0


@pytest.mark.parametrize("joined", [("control", "tasks"), ("tasks", "control")])
def test_what_every_process_gets_comes_before_later_tasks(connection: Any, folder: Path, joined: tuple[str, ...]) -> None:
    """A revocation is sent to every worker; the task that it names may follow right behind it."""
    queues = {
        "tasks": kombu.Queue("tasks", kombu.Exchange("direct", "direct"), "tasks"),
        "control": kombu.Queue("control", kombu.Exchange("control", "fanout"), auto_delete=True),
    }
    found: list[str] = []
    for name in joined:  # each has a channel of its own, as in Celery's worker
        channel = connection.channel()
        consumer = kombu.Consumer(channel, queues[name], on_message=lambda message: found.append(message.payload), no_ack=True)
        consumer.consume()
    with connect(folder) as other:
        for turn in range(20):
            publish(other, f"revoke {turn}", queues["control"].exchange)
            publish(other, f"task {turn}", queues["tasks"].exchange, "tasks")
            for _ in range(2):
                connection.drain_events(timeout=5)
    assert found == [f"{what} {turn}" for turn in range(20) for what in ("revoke", "task")]


def test_bindings_are_repeated_before_retention_deletes_them(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process repeats its own; the transient queues of a process that ended are forgotten."""
    exchange = kombu.Exchange("e", "fanout")
    for name, transient in (("kept", False), ("gone", True)):
        kombu.Queue(name, exchange, auto_delete=transient)(connection.default_channel).declare()
    shared = connection.transport.opened.bindings
    assert {one.queue for one in shared.table("e")} == {"kept", "gone"}
    end = connection.transport.opened.store.max_offset(bindings_module.TOPIC, 0)
    monkeypatch.setattr(bindings_module, "REPEAT_MS", -1)
    shared.repeat()
    assert connection.transport.opened.store.max_offset(bindings_module.TOPIC, 0) == 2 * end
    monkeypatch.setattr(bindings_module, "FORGET_MS", -60_000)
    assert {one.queue for one in shared.table("e")} == {"kept"}


def test_consumed_tasks_leave_the_folder_and_bindings_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that joins later has the bindings of earlier ones, whose messages are deleted."""
    monkeypatch.setattr(bindings_module, "TABLE_MS", -1)
    config = StoreConfig.small(mapped_file_size_commit_log=1 << 16, max_hash_slot_num=100, max_index_num=400)
    exchange = kombu.Exchange("e", "direct")
    with connect(folder, config=config) as one:
        queue = kombu.Queue("tasks", exchange, "key")
        kombu.Queue("unbound", exchange, "other")(one.default_channel).declare()
        one.default_channel.queue_unbind("unbound", "e", "other")
        channel = one.channel()
        kombu.Queue("reply", kombu.Exchange("f", "fanout"), auto_delete=True)(channel).declare()
        producer = kombu.Producer(channel)
        for _ in range(200):
            producer.publish("x" * 1000, exchange=exchange, routing_key="key", declare=[queue])
            producer.publish("x" * 1000, exchange="f")
        assert len(bodies(one, queue, most=200)) == 200
        store = one.transport.opened.store
        producer.publish("last", exchange=exchange, routing_key="key")
        until(lambda: store.min_offset(bindings_module.TOPIC, 0) > 0 and len(list((folder / "commitlog").iterdir())) <= 2)
        with connect(folder, config=config) as two:
            monkeypatch.setattr(transport_module, "_open_stores", {})
            shared = two.transport.opened.bindings
            assert shared is not one.transport.opened.bindings
            assert [found.queue for found in shared.table("e")] == ["tasks"]
            assert [found.queue for found in shared.table("f")] == ["reply"]
            assert shared.is_transient("reply") and not shared.is_transient("tasks")
            assert bodies(two, queue) == ["last"]


def test_a_table_does_not_undo_what_another_process_did_meanwhile(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal between the offset of a table and the table itself is applied after it."""
    monkeypatch.setattr(bindings_module, "TABLE_MS", -1)
    kombu.Queue("q", kombu.Exchange("e", "fanout"))(connection.default_channel).declare()
    shared = connection.transport.opened.bindings
    put = shared._put

    def put_after_a_removal(*event: Any) -> None:
        if event[0] == "table":
            put("delete", "q")
        put(*event)

    monkeypatch.setattr(shared, "_put", put_after_a_removal)
    shared.put_bytes = 1
    shared.compact()
    store = connection.transport.opened.store
    assert store.committed_offsets(bindings_module.TOPIC, "kombu") == {0: 2}
    for low in (0, 2):
        monkeypatch.setattr(store, "min_offset", lambda *_, low=low: low)
        fresh = bindings_module.Bindings(store)
        assert fresh.table("e") == []
        assert not fresh.is_declared("q")


def test_headers_may_have_values_without_a_type_in_json(connection: Any) -> None:
    """As with kombu's other transports; a value that kombu cannot write is refused."""
    headers = {"at": datetime(2026, 1, 2, tzinfo=UTC), "id": UUID(int=7), "text": '"__type__"'}
    queue = connection.SimpleQueue("q")
    queue.put("x", headers=headers)
    message = queue.get(timeout=5)
    assert {name: message.headers[name] for name in headers} == headers
    message.ack()
    with pytest.raises(TypeError):
        queue.put("x", headers={"object": object()})


def test_a_full_store_defers_the_table(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that was put before is no error; the table follows when there is space."""
    connection.connect()
    shared = connection.transport.opened.bindings
    shared.put_bytes = bindings_module.TABLE_BYTES

    def refuse(*_event: Any) -> None:
        raise StoreFull(PutStatus.SERVICE_NOT_AVAILABLE)

    with monkeypatch.context() as patch:
        patch.setattr(shared, "_put", refuse)
        shared.compact()
    assert shared.put_bytes
    shared.compact()
    assert not shared.put_bytes


def test_a_declaration_that_a_full_store_refused_is_put_when_there_is_space(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process uses the queue meanwhile, so its worker can empty the store. Messages of transient queues are dropped."""
    connection.connect()
    opened = connection.transport.opened

    def refuse(*_event: Any) -> None:
        raise StoreFull(PutStatus.SERVICE_NOT_AVAILABLE)

    with monkeypatch.context() as patch:
        patch.setattr(opened.store, "put", refuse)
        for name, is_transient in (("tasks", False), ("events", True), ("gone", False)):
            connection.channel().queue_declare(name, auto_delete=is_transient)
        connection.channel().exchange_declare("e", "direct")
        connection.channel().queue_bind("events", "e", "key")
        with pytest.raises(StoreFull):
            opened.bindings.delete("gone")
        producer = connection.Producer()
        producer.publish("dropped", routing_key="events")
        with pytest.raises(StoreFull):
            producer.publish("refused", routing_key="tasks")
        assert [one.queue for one in opened.bindings.table("e")] == ["events"]
        opened.bindings.repeat()
        assert not bindings_module.Bindings(opened.store).is_declared("tasks")
    opened.bindings.repeat()
    other = bindings_module.Bindings(opened.store)
    assert other.is_declared("tasks")
    assert other.is_transient("events")
    assert not other.is_declared("gone")
    assert [one.queue for one in other.table("e")] == ["events"]


def test_a_store_that_cannot_be_opened_is_a_connection_error(tmp_path: Path) -> None:
    """kombu tries again, or takes another store."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(kombu.exceptions.OperationalError):
        connect(tmp_path / "file").ensure_connection(max_retries=1, interval_start=0)
    assert issubclass(StoreLocked, connect(tmp_path / "x").connection_errors)


def test_a_forked_child_does_not_touch_the_messages_of_its_parent(connection: Any) -> None:
    """Its copies of channels put nothing again and acknowledge nothing."""
    queue = connection.SimpleQueue("q")
    queue.put("a")
    message = queue.get(timeout=5)
    child = os.fork()
    if child == 0:
        Channel._restore = lambda *_: os._exit(1)
        connection.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert queue.qsize() == 0
    message.ack()
    queue.put("b")
    assert queue.get(timeout=5).payload == "b"


def test_a_process_that_no_longer_consumes_releases_the_queue(folder: Path, connection: Any) -> None:
    """After a get, a purge or the end of its consumer; until then the messages are its own."""
    queue = kombu.Queue("q")(connection.default_channel)
    queue.declare()
    with connect(folder) as other:
        for way in ("get", "purge", "consume"):
            for number in range(2):
                publish(connection, number, kombu.Exchange(""), "q")
            if way == "get":
                message = queue.get()
                assert bodies(other, kombu.Queue("q")) == []
                message.ack()
            elif way == "purge":
                assert queue.purge() == 2
                publish(connection, 1, kombu.Exchange(""), "q")
            else:
                assert bodies(connection, kombu.Queue("q"), most=1) == [0]
            assert bodies(other, kombu.Queue("q")) == [1]


def test_settings_of_the_store_can_be_given(folder: Path) -> None:
    """All processes give the same."""
    with connect(folder, config=StoreConfig.small(mapped_file_size_commit_log=1 << 20)) as made:
        made.SimpleQueue("q").put(1)
    assert {path.stat().st_size for path in (folder / "commitlog").iterdir()} == {1 << 20}


def test_without_kombu_the_extra_is_named() -> None:
    """The modules import, and the first use tells what to install."""
    program = """
import sys
sys.modules["kombu"] = None
import brokerstore.kombu
from brokerstore import StoreError
try:
    brokerstore.kombu.Transport(None)
except StoreError as error:
    print(type(error).__name__, error)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "MissingExtra kombu is not installed: pip install 'brokerstore[kombu]'"


NAMES = ("plain", "my jobs", "a\nb", "a/b", "a%2Fb", "ünï", "x:3", "x", "kombu_bindings", "kombu_transient", "rmq_sys_x",
         "%RETRY%g", "日本" * 90, "日本" * 90 + ":3", "日本" * 90 + ":9", "t:3:6", "t:3", "t")  # fmt: skip


def test_no_two_queues_or_priorities_share_a_topic() -> None:
    """RocketMQ's clients can use each topic, and a name that is not too long can be read from it."""
    steps = (3, 6, 9)
    topics = [topic_of_queue(name) for name in NAMES] + [topic_of_step(name, step) for name in NAMES for step in steps]
    assert len({*topics, "kombu_bindings", "kombu_transient"}) == len(topics) + 2
    assert [topic_problem(topic) or client_problem(topic) for topic in topics] == [None] * len(topics)
    assert [unquote(topic_of_queue(name)) for name in NAMES if len(name) < 90] == [name for name in NAMES if len(name) < 90]


def test_a_queue_named_as_a_priority_has_its_own_messages(connection: Any) -> None:
    """Those of priority 3 of queue `q` are not those of queue `q:3`."""
    one, other = (kombu.Queue(name, kombu.Exchange(name), name) for name in ("q", "q:3"))
    for number, queue in enumerate((one, other)):
        publish(connection, number, queue.exchange, queue.routing_key, [queue], priority=3 * (1 - number))
    assert bodies(connection, other) == [1]
    assert bodies(connection, one) == [0]


def test_a_fetched_message_is_counted_once_and_returned_on_close(connection: Any) -> None:
    """A wait may fetch a message that nobody has taken; closing the queue forgets it, and another process gets it."""
    connection.SimpleQueue("q").close()
    queue = connection.transport.queue("q")
    for body in (b"0", b"1", b"2"):
        queue.put(body, 0)
    queue.wait(5)
    assert queue.size() == 3
    queue.close()
    assert queue.size() == 3
    found = []
    while (message := queue.get()) is not None:
        found.append(message.body)
    assert found == [b"0", b"1", b"2"]
    queue.close()


def test_a_consumer_waits_for_a_message_that_comes_later(connection: Any, folder: Path) -> None:
    """Until the time-out, looking again and again."""
    queue = kombu.Queue("q", kombu.Exchange("e"), "q")
    taken: list[Any] = []
    with kombu.Consumer(connection.channel(), [queue], callbacks=[lambda body, message: (taken.append(body), message.ack())]):
        for _ in range(2):
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.2)
        timer = threading.Timer(0.3, publish, (connection, "late", queue.exchange, "q", [queue]))
        timer.start()
        connection.drain_events(timeout=20)
        timer.join()
    assert taken == ["late"]


def test_a_rejected_message_is_settled_in_the_store(connection: Any, folder: Path) -> None:
    """The transport holds it no longer, and the next process does not get it."""
    queue = connection.SimpleQueue("q")
    queue.put("a")
    queue.get(timeout=5).reject()
    assert connection.transport.held == {}
    assert queue.qsize() == 0


def test_a_wait_fetches_one_message_so_that_a_higher_priority_is_delivered_next(connection: Any) -> None:
    """It comes while two lower ones are there: only the one that the wait has fetched is before it."""
    connection.SimpleQueue("q").close()
    queue = connection.transport.queue("q")
    for body in (b"first", b"second"):
        queue.put(body, 0)
    queue.wait(5)
    queue.put(b"high", 9)
    assert [queue.get().body for _ in range(3)] == [b"first", b"high", b"second"]
    queue.close()


def test_the_transports_own_topics_have_one_queue(connection: Any) -> None:
    """The order of declarations, and of a transient queue's messages, is that of a queue."""
    local = connection.default_channel.connection.opened.store._member.local
    assert {name: local.engine.topics.get(name).write_queues for name in ("kombu_bindings", "kombu_transient")} == {
        "kombu_bindings": 1, "kombu_transient": 1,
    }  # fmt: skip


def test_a_connection_that_was_not_opened_or_is_closed_already_can_be_closed(folder: Path) -> None:
    """kombu closes a transport whatever its state is."""
    made = connect(folder)
    made.transport.close_connection(made)
    assert not folder.exists()
    made.SimpleQueue("q").put(1)
    transport = made.transport
    for _ in range(2):
        transport.close_connection(made)
    with MessageStore.open(folder, "r") as store:
        assert store.engine.was_clean
