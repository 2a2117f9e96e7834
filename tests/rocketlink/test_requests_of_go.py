"""Requests that the Go client and admin clients send beside those of Java's: replies, deletes, settings of groups."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketlink.remoting import codes
from rocketlink.remoting.frames import Command, encode
from tests.helpers import until

from .test_server import Served, answer_of, heartbeat


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve an empty store."""
    found = Served(tmp_path / "s")
    yield found
    found.close()


@pytest.mark.parametrize("code", [38, 105, 106, 206, 21, 43, 201, 400, 402])
def test_json_answers_have_no_spaces(served: Served, code: int) -> None:
    """The Go client searches the text of a route for the addresses, and dials what is behind the colon."""
    served.send("T", b"0")
    served.client.invoke(34, {}, heartbeat("c", "g"))
    body = json.dumps({"topic": "T", "consumerGroup": "g", "clientId": "c"}).encode()
    answer = served.invoke_raw(code, {"topic": "T", "consumerGroup": "g"}, body)
    assert answer.code == 0
    assert answer.body == json.dumps(json.loads(answer.body), separators=(",", ":"), ensure_ascii=False).encode()


def reply_fields(client: str) -> dict[str, str]:
    properties = f"REPLY_TO_CLIENT\x01{client}\x02CORRELATION_ID\x01c1\x02MSG_TYPE\x01reply\x02"
    names = {"producerGroup": "repliers", "topic": "DefaultCluster_REPLY_TOPIC", "defaultTopic": "TBW102", "queueId": "0"}
    return names | {"defaultTopicQueueNums": "4", "bornTimestamp": "5", "properties": properties}


def test_a_reply_goes_to_the_client_that_sent_the_request(served: Served) -> None:
    """Although it sent no heartbeat yet; the reply is stored, and the request names the cluster of its topic."""
    with socket.create_connection(("127.0.0.1", served.server.port)) as asking:
        properties = "REPLY_TO_CLIENT\x01client-1\x02CORRELATION_ID\x01c1\x02"
        fields = {"a": "askers", "b": "T", "c": "TBW102", "d": "1", "e": "0", "i": properties}
        asking.sendall(encode(Command(310, fields, b"request", 1)))
        assert answer_of(asking).code == 0
        (stored,) = served.store.read("T", 0)
        assert stored.properties["CLUSTER"] == "DefaultCluster"
        assert served.invoke_raw(324, reply_fields("client-1"), b"reply").code == 0
        pushed = answer_of(asking, 326)
    assert (pushed.body, pushed.is_one_way, pushed.fields["topic"]) == (b"reply", True, "DefaultCluster_REPLY_TOPIC")
    assert "CORRELATION_ID\x01c1" in pushed.fields["properties"]
    assert [bytes(message.body) for message in served.store.read("DefaultCluster_REPLY_TOPIC", 0)] == [b"reply"]
    assert served.store.queue_ids("DefaultCluster_REPLY_TOPIC") == [0]


def test_a_reply_to_a_client_that_is_gone_is_stored_and_reported(served: Served) -> None:
    """As by a broker: the consumer learns that nobody waits."""
    answer = served.invoke_raw(324, reply_fields("nobody"), b"reply")
    assert (answer.code, "'nobody'" in str(answer.remark)) == (codes.SYSTEM_ERROR, True)
    until(lambda: served.store.max_offset("DefaultCluster_REPLY_TOPIC", 0) == 1)


def test_a_deleted_topic_is_gone_for_all_clients(served: Served) -> None:
    """Its route, its queues and its keys; to delete it once more is no error."""
    served.send("T", b"0", i="KEYS\x01k\x02")
    until(lambda: bool(served.store.query("T", "k")))
    for _ in range(2):
        assert served.invoke_raw(215, {"topic": "T"}).code == 0
        assert served.invoke_raw(216, {"topic": "T"}).code == 0
    assert served.invoke_raw(105, {"topic": "T"}).code == 17
    assert served.invoke_raw(12, {"topic": "T", "key": "k", "maxNum": "32"}).code == codes.QUERY_NOT_FOUND


def test_a_group_is_set_and_deleted(served: Served) -> None:
    """With the settings of the request's body; a name or a setting that no group can have is refused."""
    assert served.invoke_raw(200, {}, b'{"groupName":"g","retryMaxTimes":3,"consumeEnable":false}').code == 0
    group = served.store.engine.retries.groups.get("g")
    assert group is not None
    assert (group.retry_max_times, group.is_enabled) == (3, False)
    for body in (b'{"groupName":"a/b"}', b'{"groupName":"g","retryMaxTimes":"many"}', b"{}"):
        assert served.invoke_raw(200, {}, body).code != 0
    assert served.store.engine.retries.groups.get("g") == group
    for _ in range(2):
        assert served.invoke_raw(207, {"groupName": "g"}).code == 0
    assert "g" not in served.store.engine.retries.groups
