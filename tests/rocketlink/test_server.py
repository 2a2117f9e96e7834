"""A store behind the request protocol: answers of each request, rules of the store, and clients that misbehave."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from commitlog._scan_cy import Reader
from commitlog.checks import CHECK_BODY
from commitlog.layout import TRANSACTION_COMMIT, TRANSACTION_MASK
from messagestore import FlushMode, MessageStore, StoreConfig
from rocketlink import BrokerServer, RemoteError, Replica
from rocketlink.remoting import codes
from rocketlink.remoting.client import RemotingClient
from rocketlink.remoting.frames import Command, RemotingFrameReader, encode
from rocketlink.server import broker, clients, pulling
from rocketlink.server.requests import renamed
from tests.helpers import until
from tests.stores import encode_wire_batch, small_config

# TopicValidator of RocketMQ 4.9.7 to 5.5.1, and the topics of timers and POP
INTERNAL = (
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster",
)  # fmt: skip
WAITING_PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "1", "sysFlag": "6", "subscription": "*",
    "suspendTimeoutMillis": "20000",
}  # fmt: skip
CONFIG = small_config(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000, max_index_num=20_000)


class Served:
    """A store, its server, and one client."""

    def __init__(self, folder: Path, config: StoreConfig = CONFIG, **options: Any) -> None:
        self.store = MessageStore.open(folder, "a", config)
        self.server = BrokerServer(self.store, **options)
        self.client = RemotingClient("127.0.0.1", self.server.port)

    def close(self) -> None:
        self.client.close()
        self.server.close()
        self.store.close()

    def send(self, topic: str, body: bytes, **fields: object) -> dict[str, str]:
        """Send as a Java producer does, and return the fields of the answer."""
        given = {
            "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "i": "",
            "j": 0, "k": "false", "l": 16, "m": "false",
        }  # fmt: skip
        return self.client.invoke(310, {name: str(value) for name, value in (given | fields).items()}, body).fields

    def pull(self, topic: str, offset: int, **fields: object) -> Command:
        """Pull as a Java consumer does, without waiting unless the flags say so."""
        given = {
            "consumerGroup": "g", "topic": topic, "queueId": 0, "queueOffset": offset, "maxMsgNums": 32, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        return self.invoke_raw(11, {name: str(value) for name, value in (given | fields).items()})

    def invoke_raw(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """Return the answer whatever its code is."""
        with socket.create_connection(("127.0.0.1", self.server.port)) as link:
            link.sendall(encode(Command(code, fields, body, 1)))
            return answer_of(link)


def answer_of(link: socket.socket, code: int | None = None) -> Command:
    """Return the next frame, or the next one with a code."""
    link.settimeout(30)
    while True:
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            piece = link.recv(4 - len(data) if len(data) < 4 else 4 + int.from_bytes(data[:4], "big") - len(data))
            assert piece, "the server closed the connection"
            data += piece
        (found,) = RemotingFrameReader().feed(data)
        if code is None or found.code == code:
            return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve an empty store."""
    found = Served(tmp_path / "s")
    yield found
    found.close()


def records(body: bytes) -> list[Any]:
    """Decode records as a client does."""
    found, at = [], 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        message = Reader(body[at : at + size], int.from_bytes(body[at + 28 : at + 36], "big")).decode(0, CHECK_BODY)
        assert message is not None
        found.append(message)
        at += size
    return found


def test_a_message_that_is_sent_is_in_the_store_as_sent(served: Served) -> None:
    """Topic made by the first send, all fields, and the ids and offsets of the answer."""
    fields = served.send("T", b"body", e=2, h=7, i="KEYS\x01k1\x02TAGS\x01a\x02", j=3)
    found = served.store.get("T", 2, 0).messages[0]
    assert (found.body, found.flag, found.reconsume_times, found.keys, found.tags) == (b"body", 7, 3, ["k1"], "a")
    assert found.born_timestamp_ms == 1_700_000_000_000
    assert found.store_host == served.server.address
    assert (fields["queueId"], fields["queueOffset"], fields["msgId"]) == ("2", "0", found.message_id)
    assert served.store.engine.topics.get("T").write_queues == 4  # type: ignore[union-attr]


def test_the_born_host_of_a_message_is_its_client(served: Served) -> None:
    """Address and port of the connection."""
    with socket.create_connection(("127.0.0.1", served.server.port)) as link:
        link.sendall(encode(Command(310, {"a": "p", "b": "T", "c": "TBW102", "d": "1", "e": "0"}, b"x", 1)))
        assert answer_of(link).code == 0
        host, port = link.getsockname()
    assert [message.born_host for message in served.store.get("T", 0, 0).messages] == [f"{host}:{port}"]


def test_a_route_names_this_server_for_every_topic_that_exists(served: Served) -> None:
    """An unknown topic is answered with 17, the topic for automatic creation with permission 7."""
    assert served.invoke_raw(105, {"topic": "T"}).code == 17
    served.store.create_topic("T", 3)
    route = json.loads(served.invoke_raw(105, {"topic": "T"}).body)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": served.server.address}
    assert (route["queueDatas"][0]["writeQueueNums"], route["queueDatas"][0]["perm"]) == (3, 6)
    assert json.loads(served.invoke_raw(105, {"topic": "TBW102"}).body)["queueDatas"][0]["perm"] == 7


def test_a_consumer_gets_its_assigned_queues(served: Served) -> None:
    """In the order of the clients' ids; a client that the group does not have gets none, one that broadcasts all."""
    served.store.create_topic("T", 5)

    def queues(client: str, **changes: str) -> list[int]:
        body = {"topic": "T", "consumerGroup": "g", "clientId": client, "strategyName": "AVG", **changes}
        found = json.loads(served.client.invoke(400, body=json.dumps(body).encode()).body)["messageQueueAssignments"]
        assert {one["mode"] for one in found} <= {"PULL"}
        return [one["messageQueue"]["queueId"] for one in found]

    for client in ("a", "b"):
        data = {"clientID": client, "consumerDataSet": [{"groupName": "g", "messageModel": "CLUSTERING"}]}
        served.client.invoke(codes.HEART_BEAT, body=json.dumps(data).encode())
    assert (queues("a"), queues("b"), queues("c")) == ([0, 1, 2], [3, 4], [])
    assert queues("c", messageModel="BROADCASTING") == [0, 1, 2, 3, 4]
    assert queues("a", topic="none") == []


def test_pulled_records_are_the_bytes_of_the_log(served: Served) -> None:
    """With next offset and bounds; a tag filter moves past what does not match."""
    for number in range(5):
        served.send("T", b"%d" % number, i=f"TAGS\x01t{number % 2}\x02")
    answer = served.pull("T", 0)
    assert answer.code == codes.SUCCESS
    assert {key: answer.fields[key] for key in ("nextBeginOffset", "minOffset", "maxOffset")} == {
        "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5",
    }  # fmt: skip
    assert [message.body for message in records(answer.body)] == [b"0", b"1", b"2", b"3", b"4"]
    assert answer.body == served.store.engine.log.select(0, len(answer.body))
    tagged = served.pull("T", 0, subscription="t1 || other")
    assert [message.body for message in records(tagged.body)] == [b"1", b"3"]
    assert tagged.fields["nextBeginOffset"] == "5"


@pytest.mark.parametrize(
    ("offset", "flags", "code", "next_offset"),
    [(2, 4, 19, 2), (9, 4, 21, 2), (-1, 4, 21, 0)],
)
def test_a_pull_outside_of_the_queue(served: Served, offset: int, flags: int, code: int, next_offset: int) -> None:
    """The codes are those of the format page of page statuses."""
    served.send("T", b"0")
    served.send("T", b"1")
    answer = served.pull("T", offset, sysFlag=flags)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (code, str(next_offset))


@pytest.mark.parametrize(
    ("topic", "fields", "code"), [("none", {}, 17), ("T", {"sysFlag": 0}, 24), ("T", {"expressionType": "SQL92"}, 23)]
)
def test_a_pull_without_topic_subscription_or_known_filter(
    served: Served, topic: str, fields: dict[str, object], code: int
) -> None:
    """Each has its own code, and no message is skipped."""
    served.send("T", b"0")
    assert served.pull(topic, 0, **fields).code == code


def test_a_pull_at_the_end_waits_for_the_next_message(served: Served) -> None:
    """It is answered when the message is put, and with 19 when its time is over."""
    served.send("T", b"0")
    found: list[Command] = []
    waiting = threading.Thread(target=lambda: found.append(served.pull("T", 1, sysFlag=6)))
    waiting.start()
    time.sleep(0.2)
    assert not found
    served.store.put(Message("T", b"1", queue_id=0))
    waiting.join(20)
    assert [message.body for message in records(found[0].body)] == [b"1"]
    assert served.pull("T", 2, sysFlag=6, suspendTimeoutMillis=50).code == codes.PULL_NOT_FOUND


def test_a_pull_commits_the_offset_that_it_carries(served: Served) -> None:
    """Offsets are asked, set and counted as in a broker."""
    served.send("T", b"0")
    requested = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
    assert served.client.invoke(14, requested).fields["offset"] == "0"
    served.pull("T", 0, sysFlag=5, commitOffset=1)
    assert served.client.invoke(14, requested).fields["offset"] == "1"
    served.client.invoke(15, requested | {"commitOffset": "7"})
    assert served.store.committed_offsets("T", "g") == {0: 7}
    assert served.client.invoke(30, requested).fields["offset"] == "1"
    assert served.client.invoke(31, requested).fields["offset"] == "0"
    assert served.client.invoke(29, requested | {"timestamp": "0"}).fields["offset"] == "0"


def test_a_batch_is_stored_whole_and_its_ids_are_listed(served: Served) -> None:
    """Each id names the record of its member."""
    body = encode_wire_batch([Message("B", b"%d" % number, keys=[f"k{number}"]) for number in range(3)])
    given = {
        "a": "p",
        "b": "B",
        "c": "TBW102",
        "d": "4",
        "e": "1",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": "",
        "j": "0",
        "m": "true",
    }
    fields = served.client.invoke(320, given, body).fields
    found = served.store.get("B", 1, 0).messages
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    assert fields["msgId"].split(",") == [message.message_id for message in found]
    assert fields["queueOffset"] == "0"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"c": "other"}, 17),
        ({"e": 4}, 29),
        ({"e": "x"}, 1),
        *(({"b": name}, 29) for name in ("a/b", "a b", "a.b", "ä", "", "a\n", "x" * 128, "%RETRY%" + "g" * 121)),
        *(({"b": name}, 16) for name in INTERNAL),
        ({"b": "%RETRY%g", "m": "true"}, 13),
        ({"i": "TIMER_DELAY_SEC\x01259201\x02"}, 13),
        ({"i": "TIMER_DELAY_MS\x01x\x02"}, 13),
        ({"b": "closed"}, 16),
        ({"g": str(1 << 70)}, 1),
    ],
)
def test_a_send_that_is_refused_writes_nothing(served: Served, fields: dict[str, object], code: int) -> None:
    """The code says why."""
    served.client.invoke(17, {"topic": "closed", "readQueueNums": "1", "writeQueueNums": "1", "perm": "4"})
    before = served.store.log_end
    with pytest.raises(RemoteError) as caught:
        served.send("T", b"x", **fields)
    assert caught.value.code == code
    assert served.store.log_end == before


def test_a_one_way_send_gets_no_answer(served: Served) -> None:
    """The next answer belongs to the next request."""
    with socket.create_connection(("127.0.0.1", served.server.port)) as link:
        fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0"}
        link.sendall(encode(Command(310, fields, b"one", 1, 2)) + encode(Command(30, {"topic": "T", "queueId": "0"}, b"", 2)))
        assert answer_of(link).opaque == 2
    assert [message.body for message in served.store.get("T", 0, 0).messages] == [b"one"]


def test_messages_of_a_synchronous_store_are_acknowledged_when_they_are_synced(tmp_path: Path) -> None:
    """Several are sent before the first answer; each is answered."""
    served = Served(tmp_path / "s", CONFIG.but(flush_disk_type=FlushMode.SYNC))
    try:
        with socket.create_connection(("127.0.0.1", served.server.port)) as link:
            fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0"}
            link.sendall(b"".join(encode(Command(310, fields, b"%d" % number, number)) for number in range(20)))
            reader, found = RemotingFrameReader(), []
            while len(found) < 20:
                found += list(reader.feed(link.recv(1 << 16)))
        assert {answer.code for answer in found} == {0}
        assert sorted(answer.opaque for answer in found) == list(range(20))
        assert served.store.engine.flusher.flushed_offset == served.store.log_end
    finally:
        served.close()


def heartbeat(client: str, group: str, expression: str = "*") -> bytes:
    data = {"topic": "T", "subString": expression, "expressionType": "TAG"}
    consumer = {"groupName": group, "messageModel": "CLUSTERING", "subscriptionDataSet": [data]}
    return json.dumps({"clientID": client, "producerDataSet": [{"groupName": "p"}], "consumerDataSet": [consumer]}).encode()


def test_groups_without_clients_are_forgotten(served: Served) -> None:
    """So that clients with ever new groups do not use up the number that is kept."""
    clients = served.server._requests.clients
    for number in range(3):
        with RemotingClient("127.0.0.1", served.server.port) as client:
            client.invoke(34, {}, heartbeat("c", f"g{number}"))
    until(lambda: not clients.groups and not clients.producers)
    served.client.invoke(34, {}, heartbeat("c", "g"))
    assert list(clients.groups) == ["g"]
    served.client.invoke(35, {"clientID": "c", "consumerGroup": "g", "producerGroup": "p"})
    assert (clients.groups, clients.producers) == ({}, {})


def test_members_of_a_group_are_notified_of_membership_changes(served: Served) -> None:
    """A new member, one that leaves and one whose connection ends: the others are told each time."""
    served.send("T", b"0")
    first = socket.create_connection(("127.0.0.1", served.server.port))
    with first:
        first.sendall(encode(Command(34, {}, heartbeat("c1", "g"), 1)))
        assert {answer_of(first).code, answer_of(first).code} == {0, 40}
        with RemotingClient("127.0.0.1", served.server.port) as second:
            second.invoke(34, {}, heartbeat("c2", "g"))
            assert json.loads(second.invoke(38, {"consumerGroup": "g"}).body) == {"consumerIdList": ["c1", "c2"]}
            reported = answer_of(first)
            assert (reported.code, reported.fields) == (40, {"consumerGroup": "g"})
        until(lambda: len(served.server._requests.clients.groups["g"].members) == 1)
        assert served.pull("T", 0, sysFlag=0).code == codes.SUCCESS  # with the subscription of the heartbeat
    assert served.store.engine.topics.get("%RETRY%g") is not None


def test_a_queue_is_locked_for_one_client(served: Served) -> None:
    """Until it gives the lock back."""
    queues = [{"brokerName": "b", "topic": "T", "queueId": number} for number in range(2)]

    def lock(code: int, client: str) -> list[int]:
        body = json.dumps({"consumerGroup": "g", "clientId": client, "mqSet": queues}).encode()
        answer = served.client.invoke(code, {}, body).body
        return [one["queueId"] for one in json.loads(answer)["lockOKMQSet"]] if answer else []

    assert lock(41, "c1") == [0, 1]
    assert lock(41, "c2") == []
    assert lock(41, "c1") == [0, 1]
    lock(42, "c1")
    assert lock(41, "c2") == [0, 1]


@pytest.mark.parametrize("code", [41, 42])
@pytest.mark.parametrize("queue_id", [0, [], {}, "x", None])
def test_a_lock_of_a_nameless_client_or_of_no_queue_is_answered(
    served: Served, caplog: pytest.LogCaptureFixture, code: int, queue_id: object
) -> None:
    """Such requests are no internal errors."""
    body = json.dumps({"consumerGroup": "g", "clientId": "", "mqSet": [{"topic": "T", "queueId": queue_id}]}).encode()
    if queue_id == 0:
        served.client.invoke(code, {}, body)
    else:
        with pytest.raises(RemoteError, match="queueId"):
            served.client.invoke(code, {}, body)
    assert not caplog.records


def test_locks_of_queues_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all groups together; one that is renewed needs no room."""
    monkeypatch.setattr(clients, "QUEUES_MAX", 6)

    def lock(group: str, count: int) -> None:
        queues = [{"topic": "T", "queueId": number} for number in range(count)]
        served.client.invoke(41, {}, json.dumps({"consumerGroup": group, "clientId": "c", "mqSet": queues}).encode())

    lock("a", 4)
    lock("a", 4)
    lock("b", 2)
    with pytest.raises(RemoteError, match="more than 6"):
        lock("c", 1)
    lock("a", 4)


def test_a_message_sent_back_is_redelivered_or_becomes_a_dead_letter(served: Served) -> None:
    """After its last retry it is in the group's dead letter queue."""
    served.send("T", b"0")
    fields = {"group": "g", "offset": "0", "delayLevel": "0", "originTopic": "T", "maxReconsumeTimes": "16"}
    served.client.invoke(36, fields)
    (waiting,) = served.store.get("SCHEDULE_TOPIC_XXXX", 2, 0).messages
    assert (waiting.body, waiting.reconsume_times) == (b"0", 1)
    served.client.invoke(36, fields | {"maxReconsumeTimes": "0"})
    (dead,) = served.store.get("%DLQ%g", 0, 0).messages
    assert dead.properties["RETRY_TOPIC"] == "T"


def test_a_client_can_set_more_retries_than_its_group_has(served: Served) -> None:
    """The group's setting, 16, is for clients that name no number, as in a broker; those of RocketMQ 3 do not."""
    served.store.put(Message("T", b"0", queue_id=0, reconsume_times=17))
    fields = {"group": "g", "offset": "0", "delayLevel": "3", "originTopic": "T"}
    served.client.invoke(36, fields | {"maxReconsumeTimes": "20"})
    (waiting,) = served.store.get("SCHEDULE_TOPIC_XXXX", 2, 0).messages
    assert waiting.reconsume_times == 18
    assert "%DLQ%g" not in served.store.topics()
    served.client.invoke(36, fields)
    assert [message.body for message in served.store.read("%DLQ%g", 0)] == [b"0"]


@pytest.mark.parametrize(("decision", "count"), [(8, 1), (12, 0), (0, 0)])
def test_a_transaction_is_decided_by_its_producer(served: Served, decision: int, count: int) -> None:
    """Only its own group may; an unknown outcome leaves it open."""
    served.store.create_topic("T", 1)
    fields = served.send("T", b"half", f=4, i="TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01U\x02")
    assert fields["transactionId"] == "U"
    assert served.store.get("T", 0, 0).messages == []
    (half,) = served.store.undecided_transactions()
    end = {
        "producerGroup": "other", "tranStateTableOffset": fields["queueOffset"],
        "commitLogOffset": str(half.message.physical_offset), "commitOrRollback": str(decision),
    }  # fmt: skip
    if decision:
        with pytest.raises(RemoteError):
            served.client.invoke(37, end)
    served.client.invoke(37, end | {"producerGroup": "producers"})
    found = served.store.get("T", 0, 0).messages
    assert [message.body for message in found] == [b"half"] * count
    assert all(message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT for message in found)
    assert len(served.store.undecided_transactions()) == (decision == 0)


def test_a_producer_gets_a_check_request_for_a_pending_half_message(served: Served) -> None:
    """It gets the message under its own topic, and where the half message is."""
    served.store.create_topic("T", 1)
    served.send("T", b"half", f=4, i="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U\x02", a="p")
    (half,) = served.store.undecided_transactions()
    record = served.store.engine.log.select(half.message.physical_offset, half.message.size)
    changed = renamed(bytes(record), half.message, "T", 0)  # type: ignore[arg-type]
    (message,) = records(changed)
    assert (message.topic, message.queue_id, message.body) == ("T", 0, b"half")
    with socket.create_connection(("127.0.0.1", served.server.port)) as producer:
        producer.sendall(encode(Command(34, {}, heartbeat("c", "unused"), 1)))
        answer_of(producer, 0)
        served.server._call_soon(lambda: served.server._requests.check_producer(half))
        requested = answer_of(producer, 39)
    assert (requested.code, requested.is_one_way) == (39, True)
    assert requested.fields["tranStateTableOffset"] == str(half.queue_offset)
    assert requested.body == changed


def test_a_message_with_a_delay_level_waits(served: Served) -> None:
    """It is in the queue of its level, with the topic, key and tag that it is delivered with."""
    served.send("T", b"late", e=1, i="KEYS\x01k\x02DELAY\x015\x02TAGS\x01a\x02")
    served.store.engine.settle()
    assert served.store.max_offset("T", 1) == 0
    (waiting,) = served.store.get("SCHEDULE_TOPIC_XXXX", 4, 0).messages
    pairs = waiting.all_properties
    assert (pairs["REAL_TOPIC"], pairs["REAL_QID"], pairs["KEYS"], pairs["TAGS"]) == ("T", "1", "k", "a")


def test_messages_are_found_by_key_and_by_id(served: Served) -> None:
    """As the same bytes; a key that no message has is answered with 22."""
    served.send("T", b"0", i="KEYS\x01k\x02")
    answer = served.client.invoke(
        12, {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    )
    assert [message.body for message in records(answer.body)] == [b"0"]
    assert served.client.invoke(33, {"offset": "0"}).body == answer.body
    assert served.invoke_raw(12, {"topic": "T", "key": "none"}).code == 22
    assert served.invoke_raw(33, {"offset": "5"}).code == 1


def test_messages_are_found_by_tag_if_the_index_has_tags(tmp_path: Path) -> None:
    """Clients since RocketMQ 5.4 send an index type with the query; a store of an older version says what is needed."""
    times = {"maxNum": "32", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    for version, code in (("5.5.1", 0), ("5.3.3", 1)):
        served = Served(tmp_path / version, CONFIG.but(broker_version=version))
        for number in range(4):
            served.send("T", b"%d" % number, i=f"KEYS\x01a\x02TAGS\x01{'ab'[number % 2]}\x02")
        by_key = served.client.invoke(12, {"topic": "T", "key": "a", "indexType": "K", **times})
        by_tag = served.invoke_raw(12, {"topic": "T", "key": "a", "indexType": "T", **times})
        other = served.invoke_raw(12, {"topic": "T", "key": "c", "indexType": "T", **times})
        served.close()
        assert [message.body for message in records(by_key.body)] == [b"0", b"1", b"2", b"3"]
        assert (by_tag.code, other.code) == (code, 22 if code == 0 else 1)
        assert [message.body for message in records(by_tag.body)] == ([b"0", b"2"] if code == 0 else [])
        assert code == 0 or "5.4.0 is needed" in (by_tag.remark or "")


def test_a_server_can_be_replicated(served: Served, tmp_path: Path) -> None:
    """It answers what a replica asks, and serves the log."""
    served.send("T", b"0")
    served.client.invoke(15, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"})
    with Replica("127.0.0.1", served.server.port, tmp_path / "r", from_start=True, metadata_every_s=0.05) as replica:
        assert replica.wait(served.store.log_end, 20)
        until(lambda: replica.store.committed_offsets("T", "g") == {0: 1})


def test_an_unknown_request_is_answered_with_3(served: Served) -> None:
    """The connection stays open."""
    assert served.invoke_raw(9999, {}).code == 3
    assert served.send("T", b"0")["queueOffset"] == "0"


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 50_000, b'{"consumerDataSet": 5}', b'{"consumerDataSet": [5]}'])
def test_an_invalid_heartbeat_is_an_error(served: Served, body: bytes) -> None:
    """The client gets code 1 and keeps its connection."""
    with pytest.raises(RemoteError) as caught:
        served.client.invoke(34, {}, body)
    assert caught.value.code == 1
    assert served.send("T", b"0")["queueOffset"] == "0"


def test_a_slave_registers_and_gets_the_address_of_its_master(served: Served) -> None:
    """Addresses of requests and of replication; another broker and another master are refused."""
    fields = {"clusterName": "DefaultCluster", "brokerName": "brokerstore", "brokerId": "1", "brokerAddr": "127.0.0.1:1"}
    found = served.client.invoke(103, fields).fields
    assert found["masterAddr"] == served.server.address
    host, port = found["haServerAddr"].rsplit(":", 1)
    assert host == "127.0.0.1"
    with socket.create_connection((host, int(port)), 5):
        pass
    for change in ({"brokerId": "0"}, {"brokerName": "other"}, {"clusterName": "other"}):
        with pytest.raises(RemoteError, match="only slaves of brokerstore"):
            served.client.invoke(103, fields | change)
    served.client.invoke(104, fields)
    assert len(served.client.invoke(60).body) == 56


@pytest.mark.parametrize(("code", "mark"), [(310, "true"), (320, "false")])
def test_a_batch_is_recognized_by_its_request_code_or_flag(served: Served, code: int, mark: str) -> None:
    """Java's client sends the mark, others the code."""
    data = encode_wire_batch([Message("T", b"0"), Message("T", b"1")])
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "m": mark}
    assert served.invoke_raw(code, fields, data).code == 0
    assert [message.body for message in served.store.read("T", 0)] == [b"0", b"1"]


def test_a_message_that_was_retried_often_enough_is_a_dead_letter(served: Served) -> None:
    """A consumer sends it to its retry topic, as one that is retried once more."""
    served.send("%RETRY%g", b"again", j=3, l=16)
    served.send("%RETRY%g", b"dead", j=16, l=16)
    served.store.engine.settle()
    assert [message.body for message in served.store.read("%RETRY%g", 0)] == [b"again"]
    assert [message.body for message in served.store.read("%DLQ%g", 0)] == [b"dead"]
    table = served.store.engine.topics
    assert [table.get(name).write_queues for name in ("%RETRY%g", "%DLQ%g")] == [1, 1]  # type: ignore[union-attr]


def test_a_waiting_pull_ends_without_a_message(served: Served) -> None:
    """When its time is over; the offset is the end of the queue."""
    served.send("T", b"x")
    assert served.pull("T", 1, sysFlag=2 | 4, suspendTimeoutMillis=100).code == codes.PULL_NOT_FOUND


def test_the_number_of_groups_is_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of one that is known goes on."""
    monkeypatch.setattr(clients, "GROUPS_MAX", 1)
    for name in ("g", "g", "other"):
        consumer = {"groupName": name, "subscriptionDataSet": []}
        body = json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()
        with pytest.raises(RemoteError, match="more than 1 groups") if name == "other" else contextlib.nullcontext():
            served.client.invoke(34, {}, body)


def test_a_group_with_an_invalid_name_is_ignored(served: Served) -> None:
    """Neither its retry topic nor a message sent back to it is made."""
    offset = served.store.put("T", b"x").physical_offset
    for name in ("my group", "g" * 256, "a.b", ""):
        consumer = {"groupName": name, "subscriptionDataSet": []}
        body = json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]}).encode()
        assert served.invoke_raw(34, {}, body).code == 0
        assert served.invoke_raw(36, {"group": name, "offset": str(offset), "delayLevel": "0"}).code == 26
    assert served.store.topics() == ["T"]


@pytest.mark.parametrize("name", ["TBW102", "SELF_TEST_TOPIC", "rmq_sys_x", "a b", "x" * 128, ""])
def test_a_topic_with_an_invalid_name_is_not_created(served: Served, name: str) -> None:
    """Code 29, as of RocketMQ 5.3.3."""
    assert served.invoke_raw(17, {"topic": name, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}).code == 29
    assert served.store.topics() == []


def test_a_waiting_pull_is_answered_once(served: Served) -> None:
    """Although its time is not over: the next answer on the connection is that to its next request."""
    served.send("T", b"0")
    with socket.create_connection(("127.0.0.1", served.server.port)) as link:
        link.sendall(encode(Command(11, WAITING_PULL, b"", 1)))
        until(lambda: served.server._requests._pulling._waiting)
        served.store.put("T", b"1", queue_id=0)
        answer = answer_of(link)
        assert (answer.opaque, [message.body for message in records(answer.body)]) == (1, [b"1"])
        served.server._call_soon(served.server._requests.wake)
        link.sendall(encode(Command(30, {"topic": "T", "queueId": "0"}, b"", 2)))
        assert answer_of(link).opaque == 2


def test_transactions_are_checked_at_their_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First when one has passed since the start: producers connect again before that."""
    monkeypatch.setattr(broker, "HOUSEKEEPING_S", 0.01)
    monkeypatch.setattr(broker, "CHECK_TRANSACTIONS_S", 0.3)
    times = [time.monotonic()]
    monkeypatch.setattr(BrokerServer, "_check_transactions", lambda _server: times.append(time.monotonic()))
    found = Served(tmp_path / "s")
    until(lambda: len(times) > 3)
    found.close()
    assert min(later - before for before, later in itertools.pairwise(times)) >= 0.29


def test_a_send_that_waits_for_its_sync_does_not_keep_others_waiting(tmp_path: Path) -> None:
    """Nothing is synced here; another client is answered."""
    found = Served(tmp_path / "s", CONFIG.but(flush_disk_type=FlushMode.SYNC, sync_flush_timeout_ms=60_000))
    try:
        for thread in found.store.engine.flusher.threads:
            thread.stop()
        with socket.create_connection(("127.0.0.1", found.server.port)) as link:
            link.sendall(encode(Command(310, {"a": "p", "b": "T", "c": "TBW102", "d": "1", "e": "0"}, b"x", 1)))
            until(lambda: found.store.log_end > 0)
            assert found.client.invoke(codes.GET_BROKER_RUNTIME_INFO).code == codes.SUCCESS
            link.settimeout(0.05)
            with pytest.raises(TimeoutError):
                link.recv(1)
    finally:
        found.close()


def test_a_waiting_pull_of_a_client_that_left_is_forgotten(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that another one may wait in its place, and no more than that; here two may."""
    monkeypatch.setattr(pulling, "KEPT_MAX", 2000)
    served.send("T", b"0")
    fields = {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "1", "sysFlag": "6", "subscription": "*",
        "suspendTimeoutMillis": "20000",
    }  # fmt: skip
    waiting = served.server._requests._pulling._waiting

    def wait_until(count: int) -> None:
        until(lambda: len(waiting.get(("T", 0), [])) == count)

    def is_full() -> bool:
        late.sendall(encode(Command(11, fields, b"", 1)) + encode(Command(30, {"topic": "T", "queueId": "0"}, b"", 2)))
        answers = answer_of(late), answer_of(late)
        return [answer.code for answer in answers] == [codes.PULL_NOT_FOUND, codes.SUCCESS]

    with contextlib.ExitStack() as stack:
        address = "127.0.0.1", served.server.port
        gone, stays, comes, late = (stack.enter_context(socket.create_connection(address)) for _ in range(4))
        for count, link in enumerate((gone, stays), 1):
            link.sendall(encode(Command(11, fields, b"", 1)))
            wait_until(count)
        assert is_full()
        gone.close()
        wait_until(1)
        comes.sendall(encode(Command(11, fields, b"", 1)))
        wait_until(2)
        assert is_full()
        served.store.put("T", b"1", queue_id=0)
        for link in (stays, comes):
            assert [message.body for message in records(answer_of(link).body)] == [b"1"]
