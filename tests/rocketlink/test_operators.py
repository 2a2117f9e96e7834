"""Requests of an operator's tools: how far topics and groups are, who is connected, and what is changed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketlink import Replica
from rocketlink.remoting import codes
from rocketlink.remoting.frames import IS_ANSWER, Command, Pairs, encode, keyed_body
from tests.helpers import until

from .test_server import Served, answer_of, heartbeat

QUEUE = '{{"brokerName":"brokerstore","queueId":{},"topic":"T"}}'


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve a store with five messages in queue 0 of a topic with two queues, and two offsets of a group."""
    found = Served(tmp_path / "s")
    found.store.create_topic("T", 2)
    for number in range(5):
        found.send("T", b"%d" % number, e=0)
    found.store.engine.retries.group("g")
    found.store.engine.consumer_offsets().commit("T", "g", 0, 3)
    yield found
    found.close()


def time_of(served: Served, offset: int) -> int:
    return served.store.store_time("T", 0, offset)


def joined(served: Served, group: str, client: str = "c") -> socket.socket:
    """Return the connection of a consumer that has sent its heartbeat."""
    link = socket.create_connection(("127.0.0.1", served.server.port))
    link.sendall(encode(Command(codes.HEART_BEAT, {}, heartbeat(client, group), 1)))
    assert answer_of(link, 0).is_answer
    return link


def test_an_object_as_a_key_is_written_without_quotes() -> None:
    """As fastjson writes a map with `MessageQueue` as keys, within lists and maps as well."""
    found = keyed_body({"a": [{"t": Pairs([({"q": 1}, {"n": 2}), ({"q": 2}, 3)])}], "b": None, 3: "ä"})
    assert found == '{"a":[{"t":{{"q":1}:{"n":2},{"q":2}:3}}],"b":null,"3":"ä"}'.encode()


def test_the_offsets_of_a_topic_are_those_of_all_its_queues(served: Served) -> None:
    """Also of the one without messages; an unknown topic is answered with 17."""
    body = served.client.invoke(codes.GET_TOPIC_STATS_INFO, {"topic": "T"}).body.decode()
    first = f'{QUEUE.format(0)}:{{"lastUpdateTimestamp":{time_of(served, 4)},"maxOffset":5,"minOffset":0}}'
    second = f'{QUEUE.format(1)}:{{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}}'
    assert body == f'{{"offsetTable":{{{first},{second}}},"topicPutTps":0.08}}'
    assert served.invoke_raw(codes.GET_TOPIC_STATS_INFO, {"topic": "unknown"}).code == 17


@pytest.mark.parametrize("topics", [{}, {"topic": "T"}, {"topicList": "T;unknown;"}], ids=["all", "one", "list"])
def test_the_offsets_of_a_group_are_those_in_the_requested_topics(served: Served, topics: dict[str, str]) -> None:
    """Without a topic, in all that it has read."""
    body = served.client.invoke(codes.GET_CONSUME_STATS, {"consumerGroup": "g", **topics}).body.decode()
    first = f'{{"brokerOffset":5,"consumerOffset":3,"pullOffset":3,"lastTimestamp":{time_of(served, 2)}}}'
    second = '{"brokerOffset":0,"consumerOffset":0,"pullOffset":0,"lastTimestamp":0}'
    assert body == f'{{"consumeTps":0.0,"offsetTable":{{{QUEUE.format(0)}:{first},{QUEUE.format(1)}:{second}}}}}'


def test_what_all_groups_have_to_read_is_added(served: Served) -> None:
    """Two messages; topics that are not in order are left out if only ordered ones are asked for."""
    body = served.client.invoke(codes.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body.decode()
    assert '"consumeStatsList":[{"g":[{"consumeTps":0.0,"offsetTable":{{' in body
    assert body.endswith('"totalDiff":2,"totalInflightDiff":0}')
    body = served.client.invoke(codes.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}).body.decode()
    assert '"consumeStatsList":[{"g":[]}]' in body


def test_the_delay_of_a_group_is_the_age_of_its_next_message(served: Served) -> None:
    """By the clock of the store; a queue that is read to its end has none."""
    fields = {"topic": "T", "group": "g"}
    body = json.loads(served.client.invoke(codes.QUERY_CONSUME_TIME_SPAN, fields).body)
    first, second = body["consumeTimeSpanSet"]
    assert (first["minTimeStamp"], first["maxTimeStamp"]) == (time_of(served, 0), time_of(served, 4))
    assert first["consumeTimeStamp"] == time_of(served, 2)
    assert 0 <= first["delayTime"] < 60_000
    assert (second["messageQueue"]["queueId"], second["delayTime"]) == (1, 0)


def test_puts_are_counted_by_their_store_times(served: Served) -> None:
    """What consumers read is not counted, and is refused as by a broker that has no such count."""
    body = json.loads(served.client.invoke(codes.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}).body)
    assert [body[name]["sum"] for name in ("statsMinute", "statsHour", "statsDay")] == [5, 5, 5]
    assert served.invoke_raw(codes.VIEW_BROKER_STATS_DATA, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@g"}).code == 1


def test_the_state_of_the_broker_is_numbers_in_texts(served: Served) -> None:
    """`mqadmin` divides some by others and fails for what is missing."""
    table = json.loads(served.client.invoke(codes.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert all(isinstance(value, str) for value in table.values())
    assert (table["msgPutTotalTodayNow"], table["brokerActive"]) == ("5", "true")
    assert int(table["commitLogMaxOffset"]) == served.store.log_end
    assert int(table["earliestMessageTimeStamp"]) == time_of(served, 0)
    assert table["putTps"].split()[1] == "0.08"


def test_units_of_a_queue_are_those_of_its_file(served: Served) -> None:
    """From an index on, at most as many as there are; a queue without messages is refused."""
    fields = {"topic": "T", "queueId": "0", "index": "3", "count": "10", "consumerGroup": "g"}
    body = json.loads(served.client.invoke(codes.QUERY_CONSUME_QUEUE, fields).body)
    expected = [(one.physical_offset, one.size, 0) for one in served.store.get("T", 0, 3).messages]
    assert [tuple(unit.values()) for unit in body["queueData"]] == expected
    assert (body["maxQueueIndex"], body["minQueueIndex"]) == (5, 0)
    for index in ("-1", "5", "99"):
        answer = served.client.invoke(codes.QUERY_CONSUME_QUEUE, {**fields, "index": index})
        assert json.loads(answer.body)["queueData"] == []
    assert served.invoke_raw(codes.QUERY_CONSUME_QUEUE, {**fields, "queueId": "1"}).code == 1


def test_members_of_groups_have_language_and_version(served: Served) -> None:
    """As the last heartbeat states them, with what the group subscribes to."""
    with joined(served, "g") as link:
        host, port = link.getsockname()
        body = json.loads(served.client.invoke(codes.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}).body)
        expected = {"clientId": "c", "clientAddr": f"{host}:{port}", "language": "PYTHON", "version": 479}
        assert body["connectionSet"] == [expected]
        assert body["messageModel"] == "CLUSTERING"
        assert list(body["subscriptionTable"]) == ["T"]
        groups = json.loads(served.client.invoke(codes.QUERY_GROUPS_OF_TOPIC, {"topic": "T"}).body)
        assert groups["groupList"] == ["g"]
    assert served.invoke_raw(codes.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "other"}).code == 206
    assert served.invoke_raw(codes.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "other"}).code == 1


def test_a_request_to_a_consumer_is_passed_on_and_so_is_its_answer(served: Served) -> None:
    """The question has the fields of the request; for a message to process, its record and the broker's name."""
    identity = served.store.get("T", 0, 2).messages[0].message_id
    fields = {"consumerGroup": "g", "clientId": "c", "msgId": identity, "jstackEnable": "true"}
    with joined(served, "g") as link, socket.create_connection(("127.0.0.1", served.server.port)) as operator:
        for code in (codes.GET_CONSUMER_RUNNING_INFO, codes.CONSUME_MESSAGE_DIRECTLY):
            operator.sendall(encode(Command(code, fields, b"", 7)))
            question = answer_of(link, code)
            assert question.fields["jstackEnable"] == "true"
            if code == codes.CONSUME_MESSAGE_DIRECTLY:
                record = served.store.get("T", 0, 2).messages[0]
                assert question.body == bytes(served.store.engine.log.select(record.physical_offset, record.size) or b"")
                assert question.fields["brokerName"] == "brokerstore"
            link.sendall(encode(Command(0, {"x": "y"}, b"state", question.opaque, IS_ANSWER)))
            found = answer_of(operator)
            assert (found.opaque, found.code, found.fields, found.body) == (7, 0, {"x": "y"}, b"state")
            link.sendall(encode(Command(0, {}, b"again", question.opaque, IS_ANSWER)))  # nobody waits for it
        operator.sendall(encode(Command(codes.CONSUME_MESSAGE_DIRECTLY, {**fields, "msgId": "0"}, b"", 8)))
        assert answer_of(operator).code == 1
        operator.sendall(encode(Command(codes.GET_CONSUMER_RUNNING_INFO, {**fields, "clientId": "other"}, b"", 9)))
        assert answer_of(operator).code == 1


def reset(served: Served, **fields: object) -> Command:
    given = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
    return served.invoke_raw(codes.INVOKE_BROKER_TO_RESET_OFFSET, given | {name: str(one) for name, one in fields.items()})


@pytest.mark.parametrize(
    ("fields", "offset"),
    [({}, 0), ({"timestamp": -1}, 5), ({"timestamp": 1 << 60}, 5), ({"queueId": 0, "offset": 4}, 4), ({"isForce": "false"}, 0),
     ({"isForce": "false", "timestamp": -1}, 3), ({"queueId": 0, "offset": 99}, 5)],
    ids=["first", "last", "future", "offset", "back", "not-forward", "outside"],
)  # fmt: skip
def test_a_reset_sets_the_offsets_that_it_answers_with(served: Served, fields: dict[str, object], offset: int) -> None:
    """Without force, none that skips a message; nobody needs to be connected."""
    answer = reset(served, **fields)
    assert f"{QUEUE.format(0)}:{offset}" in answer.body.decode()
    assert served.store.committed_offsets("T", "g") == {0: offset}


def test_a_reset_notifies_the_members_and_begins_pop_again(served: Served) -> None:
    """They get the table; messages that are taken come again, and their handles name none any longer."""
    pop = {"topic": "T", "consumerGroup": "g", "queueId": "0", "maxMsgNums": "2", "invisibleTime": "60000", "pollTime": "0"}
    with joined(served, "g") as link:
        assert "0 0 3,4" in served.client.invoke(codes.POP_MESSAGE, pop).fields["msgOffsetInfo"]
        answer = reset(served)
        question = answer_of(link, codes.RESET_CONSUMER_CLIENT_OFFSET)
        assert (question.body, question.fields["topic"], question.is_one_way) == (answer.body, "T", True)
        assert "0 0 0,1" in served.client.invoke(codes.POP_MESSAGE, pop).fields["msgOffsetInfo"]


def test_a_reset_of_what_does_not_exist_is_refused(served: Served) -> None:
    """Topic, group, and queue."""
    assert reset(served, topic="unknown").code == 17
    assert reset(served, group="unknown").code == 26
    assert reset(served, queueId=2).code == 1


def test_a_group_gets_the_offsets_of_another(served: Served) -> None:
    """In one topic, or in all of them."""
    for target, topic in (("one", "T"), ("all", "")):
        served.client.invoke(codes.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": target, "topic": topic})
        assert served.store.committed_offsets("T", target) == {0: 3}


def test_lists_of_topics_and_groups_are_created_up_to_the_first_wrong_one(served: Served) -> None:
    """With the settings of each."""
    topics = [{"topicName": "A", "readQueueNums": 3, "writeQueueNums": 4, "perm": 4, "order": True}, {"topicName": "a b"}]
    body = json.dumps({"topicConfigList": topics}).encode()
    assert served.invoke_raw(codes.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).code == codes.INVALID_PARAMETER
    found = json.loads(served.client.invoke(codes.GET_TOPIC_CONFIG, {"topic": "A"}).body)
    assert [found[name] for name in ("topicName", "readQueueNums", "writeQueueNums", "perm", "order")] == ["A", 3, 4, 4, True]
    body = json.dumps({"groupConfigList": [{"groupName": "h", "retryMaxTimes": 5}]}).encode()
    served.client.invoke(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body)
    found = json.loads(served.client.invoke(codes.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "h"}).body)
    assert (found["groupName"], found["retryMaxTimes"]) == ("h", 5)
    assert served.invoke_raw(codes.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "unknown"}).code == 26


def test_attributes_of_a_topic_are_kept(served: Served) -> None:
    """What a request does not name stays; a compacted topic could not be put to."""
    fields = {"topic": "A", "readQueueNums": "2", "writeQueueNums": "2"}
    for text in ("+message.type=FIFO,+x=1", "-x", ""):
        served.client.invoke(codes.UPDATE_AND_CREATE_TOPIC, {**fields, "attributes": text})
    assert served.store.engine.topics.get("A").attributes == {"message.type": "FIFO"}  # type: ignore[union-attr]
    for text in ("message.type=FIFO", "+x", "-x=1", "+=1", "+cleanup.policy=COMPACTION"):
        assert served.invoke_raw(codes.UPDATE_AND_CREATE_TOPIC, {**fields, "attributes": text}).code == codes.INVALID_PARAMETER


def test_a_topic_in_order_needs_no_setting(served: Served) -> None:
    """`updateTopic -o true` wants to store where its queues are; any other setting is refused."""
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "brokerstore:2"}
    assert served.invoke_raw(codes.PUT_KV_CONFIG, fields).code == 0
    assert served.client.invoke(codes.GET_KV_CONFIG, fields).fields == {"value": ""}
    topic = {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2", "order": "true"}
    served.client.invoke(codes.UPDATE_AND_CREATE_TOPIC, topic)
    assert served.client.invoke(codes.GET_KV_CONFIG, fields).fields == {"value": "brokerstore:2"}
    assert served.invoke_raw(codes.GET_KV_CONFIG, {**fields, "key": "unknown"}).code == codes.QUERY_NOT_FOUND
    for changed in ({"value": "brokerstore:1"}, {"key": "unknown"}, {"namespace": "other"}):
        assert served.invoke_raw(codes.PUT_KV_CONFIG, fields | changed).code == 3
    assert served.invoke_raw(codes.DELETE_KV_CONFIG, fields).code == 0


@pytest.mark.parametrize("code", [25, 1005, 1011, 2003, 3001, 3010, 354, 513, 902])
def test_what_is_refused_has_its_reason(served: Served, code: int) -> None:
    """Not only the number of the request."""
    answer = served.invoke_raw(code, {})
    assert (answer.code, str(code) in (answer.remark or "")) == (3, False)
    assert "99" in (served.invoke_raw(99, {}).remark or "")


def test_the_retry_topic_of_a_known_group_has_a_route(served: Served) -> None:
    """`mqadmin` finds the broker of a group by it; a group of this process's consumers may have no retries yet."""
    assert json.loads(served.client.invoke(codes.GET_ROUTE_INFO_BY_TOPIC, {"topic": "%RETRY%g"}).body)["queueDatas"]
    assert served.invoke_raw(codes.GET_ROUTE_INFO_BY_TOPIC, {"topic": "%RETRY%unknown"}).code == 17


def test_replicas_are_listed_with_how_far_they_are(served: Served, tmp_path: Path) -> None:
    """One that has all of the log is in sync."""
    answer = served.client.invoke(codes.GET_BROKER_HA_STATUS)
    assert json.loads(answer.body)["haConnectionInfo"] == []
    end = served.store.log_end
    with Replica("127.0.0.1", served.server.port, tmp_path / "replica", config=served.store.config):
        until(lambda: [one.reported for one in served.server._ha.slaves] == [end])
        found = json.loads(served.client.invoke(codes.GET_BROKER_HA_STATUS).body)
    one = {"addr": "127.0.0.1", "slaveAckOffset": end, "diff": 0, "inSync": True, "transferredByteInSecond": 0}
    one["transferFromWhere"] = end
    assert found == {"master": True, "masterCommitLogMaxOffset": end, "inSyncSlaveNums": 1, "haConnectionInfo": [one]}
