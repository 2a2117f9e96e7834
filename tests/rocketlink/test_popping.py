"""POP requests as a Java consumer sends them: messages for a time, handles, expiry, and the offsets that remain."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from messagestore.broker.config.topics import BATCH_QUEUES, QUEUE_TYPE
from rocketlink import BrokerServer, RemoteError
from rocketlink.remoting.client import RemotingClient
from rocketlink.remoting.frames import Command, encode
from rocketlink.server import leases
from tests.helpers import until
from tests.rocketlink.test_server import Served, answer_of, heartbeat, records

LONG_MS = 60_000
FOUND, NO_MESSAGE, FULL, NOTHING = 0, 208, 209, 210


class Popped(NamedTuple):
    """A message with the fields of its acknowledgement."""

    queue_id: int
    offset: int
    body: bytes
    tries: int
    handle: str

    def fields(self, topic: str = "T", **more: object) -> dict[str, str]:
        given = {
            "consumerGroup": "g",
            "topic": topic,
            "queueId": self.queue_id,
            "offset": self.offset,
            "extraInfo": self.handle,
        }
        return {name: str(value) for name, value in (given | more).items()}


def pop_fields(topic: str = "T", **fields: object) -> dict[str, str]:
    given = {
        "consumerGroup": "g", "topic": topic, "queueId": -1, "maxMsgNums": 32, "invisibleTime": LONG_MS, "pollTime": 0,
        "bornTime": 0, "initMode": 0, "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip
    return {name: str(value) for name, value in (given | fields).items()}


def pop(served: Served, topic: str = "T", **fields: object) -> list[Popped]:
    """Take messages, and build their handles as the Java client does."""
    answer = served.invoke_raw(200050, pop_fields(topic, **fields))
    assert answer.code in (FOUND, NOTHING), answer.remark
    assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= answer.fields.keys()
    return popped(answer) if answer.code == FOUND else []


def popped(answer: Command) -> list[Popped]:
    starts, offsets = (
        {
            int(queue_id): text
            for mark, queue_id, text in (one.split(" ") for one in answer.fields[name].split(";"))
            if mark == "0"
        }
        for name in ("startOffsetInfo", "msgOffsetInfo")
    )
    found = [(message.queue_id, message) for message in records(answer.body)]
    listed = {queue_id: [message.queue_offset for at, message in found if at == queue_id] for queue_id in starts}
    assert {queue_id: list(map(int, text.split(","))) for queue_id, text in offsets.items()} == listed
    times = f"{answer.fields['popTime']} {answer.fields['invisibleTime']} {answer.fields['reviveQid']}"
    return [
        Popped(
            queue_id, message.queue_offset, message.body, message.reconsume_times,
            f"{starts[queue_id]} {times} 0 brokerstore {queue_id} {message.queue_offset}",
        )
        for queue_id, message in found
    ]  # fmt: skip


def acknowledge(served: Served, one: Popped) -> int:
    return served.invoke_raw(200051, one.fields()).code


def committed(served: Served, topic: str = "T") -> dict[int, int]:
    return served.store.committed_offsets(topic, "g")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve a store with two queues; the group has one client."""
    found = Served(tmp_path / "s")
    found.store.create_topic("T", 2)
    found.client.invoke(34, {}, heartbeat("c", "g"))
    yield found
    found.close()


def put(served: Served, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        served.store.put("T", b"%d" % number, queue_id=number % 2, tags=f"t{number % 3}")
    served.store.engine.settle()


def test_messages_of_all_queues_are_popped_once(served: Served) -> None:
    """The answer says how many are left; the group's offset stays at the first message that is not acknowledged."""
    put(served, 10)
    answer = served.invoke_raw(200050, pop_fields(maxMsgNums=7))
    first = popped(answer)
    assert (len(first), answer.fields["restNum"]) == (7, "3")
    rest = pop(served)
    assert sorted(int(one.body) for one in first + rest) == list(range(10)) and pop(served) == []
    mine = sorted((one for one in first + rest if one.queue_id == 1), key=lambda one: one.offset)
    for one in mine[1:]:
        assert acknowledge(served, one) == FOUND
    assert committed(served).get(1, 0) == 0
    assert acknowledge(served, mine[0]) == FOUND and committed(served)[1] == 5
    assert acknowledge(served, mine[0]) == NO_MESSAGE


def test_a_topic_with_priorities_is_popped_from_its_highest_queue(served: Served) -> None:
    """RocketMQ 5.4 tests it with one message for each request, and begins again at the highest queue each time."""
    served.store.create_topic("P", 4, attributes={"message.type": "PRIORITY"})
    for priority in (0, 3, 1, 3, 9, 0):
        served.store.put("P", b"%d" % priority, priority=priority)
    served.store.engine.settle()
    first = [one.body for _ in range(4) for one in pop(served, "P", maxMsgNums=1)]
    served.store.put("P", b"2", priority=2)
    served.store.engine.settle()
    assert first + [one.body for one in pop(served, "P")] == [b"3", b"3", b"9", b"1", b"2", b"0", b"0"]


def test_a_pop_request_can_name_one_queue(served: Served) -> None:
    """And a group may begin behind the last message."""
    put(served, 4)
    assert {one.queue_id for one in pop(served, queueId=1)} == {1}
    assert pop(served, queueId=0, initMode=1) == []
    put(served, 2, 4)
    assert [one.body for one in pop(served, queueId=0)] == [b"4"]


@pytest.mark.deep
def test_an_unacknowledged_message_is_redelivered_from_the_retry_topic(served: Served) -> None:
    """Consumers pull from that topic. The offset moves on when the message is there."""
    put(served, 1)
    (one,) = pop(served, invisibleTime=100)
    until(lambda: served.store.max_offset("%RETRY%g", 0) == 1)
    (again,) = served.store.get("%RETRY%g", 0, 0).messages
    assert (again.body, again.reconsume_times, again.properties["RETRY_TOPIC"]) == (one.body, 1, "T")
    assert acknowledge(served, one) == NO_MESSAGE and committed(served)[0] == 1
    assert pop(served) == []


def test_the_invisible_time_of_a_message_can_be_changed(served: Served) -> None:
    """The handle changes with it."""
    put(served, 1)
    (one,) = pop(served, invisibleTime=300)
    answer = served.invoke_raw(200053, one.fields(invisibleTime=LONG_MS))
    assert answer.code == FOUND
    time.sleep(1.2)  # the server looks every second
    assert acknowledge(served, one) == NO_MESSAGE
    parts = one.handle.split(" ")
    parts[1:4] = (answer.fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
    assert acknowledge(served, one._replace(handle=" ".join(parts))) == FOUND
    assert served.store.max_offset("%RETRY%g", 0) == 0
    assert served.invoke_raw(200053, one.fields(invisibleTime=LONG_MS)).code == NO_MESSAGE


def test_a_request_waits_for_a_message(served: Served) -> None:
    """Or until its time is over; one of a client that left takes nothing."""
    with socket.create_connection(("127.0.0.1", served.server.port)) as gone:
        gone.sendall(encode(Command(200050, pop_fields(pollTime=20_000), b"", 1)))
        until(lambda: served.server._requests._popping._waiting)
    until(lambda: not served.server._requests._popping._waiting)
    with socket.create_connection(("127.0.0.1", served.server.port)) as link:
        link.sendall(encode(Command(200050, pop_fields(pollTime=20_000), b"", 1)))
        until(lambda: served.server._requests._popping._waiting)
        put(served, 1)
        assert [one.body for one in popped(answer_of(link))] == [b"0"]
    assert served.invoke_raw(200050, pop_fields(pollTime=100)).code == NOTHING


def test_messages_without_a_matching_tag_are_skipped(served: Served) -> None:
    """With the filter of the request or of the group's heartbeat; the offset moves past them."""
    put(served, 12)
    found = pop(served, exp="t1||t2")
    assert sorted(int(one.body) for one in found) == [number for number in range(12) if number % 3]
    for one in found:
        assert acknowledge(served, one) == FOUND
    assert committed(served) == {0: 6, 1: 6}
    put(served, 3)  # all t0 to t2
    assert pop(served, exp="none") == [] and committed(served) == {0: 8, 1: 7}


def test_messages_in_hand_keep_their_handle_after_a_restart(served: Served) -> None:
    """They do not come again before their time, and are acknowledged with it; those without a time left come again."""
    put(served, 6)
    found = sorted(pop(served), key=lambda one: (one.queue_id, one.offset))
    for one in found[:2] + found[3:4]:
        acknowledge(served, one)
    served.server.close()
    served.server = BrokerServer(served.store)
    with RemotingClient("127.0.0.1", served.server.port) as client:
        client.invoke(34, {}, heartbeat("c", "g"))
        assert pop(served) == []
        assert acknowledge(served, found[0]) == NO_MESSAGE
        assert acknowledge(served, found[2]) == FOUND
        assert committed(served) == {0: 3, 1: 1}
        served.store.reset_offsets("T", "g", 0)
        assert {(one.queue_id, one.offset) for one in pop(served)} == {(queue, at) for queue in (0, 1) for at in range(3)}


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_against_a_plain_model(served: Served, seed: int) -> None:
    """No message is taken twice, and each queue's offset is that of its first unacknowledged one."""
    chance = random.Random(seed)
    waiting: list[Popped] = []
    seen: dict[int, set[int]] = {0: set(), 1: set()}
    done: dict[int, set[int]] = {0: set(), 1: set()}
    count = 0
    for _ in range(120):
        what = chance.randrange(3)
        if what == 0:
            put(served, more := chance.randrange(6), count)
            count += more
        elif what == 1:
            for one in pop(served, maxMsgNums=chance.randrange(1, 6), queueId=chance.choice((-1, 0, 1))):
                assert one.offset not in seen[one.queue_id]
                seen[one.queue_id].add(one.offset)
                waiting.append(one)
        elif waiting:
            one = waiting.pop(chance.randrange(len(waiting)))
            assert acknowledge(served, one) == FOUND
            done[one.queue_id].add(one.offset)
            assert committed(served)[one.queue_id] == min(
                seen[one.queue_id] - done[one.queue_id], default=max(seen[one.queue_id]) + 1
            )
    for queue_id in (0, 1):
        assert seen[queue_id] == set(range(len(seen[queue_id])))


def refused(served: Served, code: int, **fields: object) -> None:
    with pytest.raises(RemoteError) as caught:
        served.client.invoke(200050, pop_fields(**fields))
    assert caught.value.code == code


def test_invalid_pop_requests_are_refused(served: Served) -> None:
    """By name: order, filters, topics whose consumers pull, queues and groups that are unknown, handles that are none."""
    served.store.create_topic("B", 1, attributes={QUEUE_TYPE: BATCH_QUEUES})
    put(served, 1)
    refused(served, 3, order="true")
    refused(served, 3, topic="B")
    refused(served, 3, topic="%RETRY%g")
    refused(served, 17, topic="none")
    refused(served, 24, consumerGroup="other")
    refused(served, 1, expType="CLASS", exp="a = 1")
    refused(served, 23, expType="SQL92", exp="a = ")
    refused(served, 1, queueId=2)
    refused(served, 1, invisibleTime="soon")
    (one,) = pop(served)
    for handle in ("", "0 1 2", "0 x 1 1 0 b 0"):
        assert served.invoke_raw(200051, one.fields(extraInfo=handle)).code == 1
    assert served.invoke_raw(200051, one.fields(topic="other")).code == NO_MESSAGE
    assert acknowledge(served, one) == FOUND


def test_the_number_of_popped_unacknowledged_messages_is_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait when it is reached, until some are acknowledged."""
    monkeypatch.setattr(leases, "TAKEN_MAX", 4)
    put(served, 8)
    found = pop(served, maxMsgNums=4)
    assert served.invoke_raw(200050, pop_fields()).code == FULL
    acknowledge(served, found[0])
    assert len(pop(served, maxMsgNums=1)) == 1


def test_queues_of_groups_without_clients_are_forgotten(served: Served) -> None:
    """Once nothing of them is taken."""
    put(served, 1)
    (one,) = pop(served)
    state = served.server._requests.leases
    served.client.invoke(35, {"clientID": "c", "consumerGroup": "g"})
    assert acknowledge(served, one) == FOUND
    until(lambda: not state._queues)  # when the next connection ends


def test_a_group_consumes_in_the_configured_pop_or_pull_mode(served: Served) -> None:
    """The mode is in the broker's file, and consumers that ask are told."""

    def assigned(**changes: Any) -> list[tuple[str, int]]:
        body = {"topic": "T", "consumerGroup": "g", "clientId": "c", **changes}
        found = json.loads(served.client.invoke(400, body=json.dumps(body).encode()).body)["messageQueueAssignments"]
        return [(one["mode"], one["messageQueue"]["queueId"]) for one in found]

    def set_mode(mode: str, topic: str = "T", share: Any = 0) -> None:
        body = {"topic": topic, "consumerGroup": "g", "mode": mode, "popShareQueueNum": share}
        served.client.invoke(401, {}, json.dumps(body).encode())

    assert assigned() == [("PULL", 0), ("PULL", 1)]
    set_mode("POP", share=8)
    assert assigned() == [("POP", -1)]
    assert assigned(topic="%RETRY%g") == [("PULL", 0)]
    entry = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 8, "topic": "T"}
    expected = {"messageRequestModeMap": {"T": {"g": entry}}}
    assert json.loads(served.client.invoke(402).body) == expected
    assert json.loads(Path(served.store.path, "config", "messageRequestMode.json").read_text()) == expected
    set_mode("PULL")
    assert assigned() == [("PULL", 0), ("PULL", 1)]
    for wrong in (
        {"mode": "PUSH"},
        {"mode": "POP", "topic": "%RETRY%g"},
        {"mode": "POP", "topic": "none"},
        {"mode": "POP", "share": "1"},
    ):
        with pytest.raises(RemoteError):
            set_mode(**wrong)


def test_a_popped_message_is_not_committed_before_its_acknowledgement(served: Served) -> None:
    """The group's offset moves with the acknowledgement, so that a restart does not lose the message."""
    served.client.invoke(34, {}, heartbeat("c", "g"))
    for body in (b"0", b"1"):
        served.send("T", body)
    until(lambda: served.store.max_offset("T", 0) == 2)
    (first,) = pop(served, maxMsgNums=1)
    assert served.store.committed_offsets("T", "g").get(0, 0) == 0
    (second,) = pop(served, maxMsgNums=1)
    assert served.invoke_raw(200051, second.fields()).code == 0
    assert served.store.committed_offsets("T", "g").get(0, 0) == 0
    assert served.invoke_raw(200051, first.fields()).code == 0
    assert served.store.committed_offsets("T", "g")[0] == 2


def test_every_member_pops_from_all_queues_unless_a_share_count_is_set(served: Served) -> None:
    """As RocketMQ's broker assigns them: with 0 and with as many as there are other members, -1 for any queue."""
    for client in ("c", "d"):
        served.client.invoke(34, {}, heartbeat(client, "g"))
    for share in (0, 1):
        body = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": share}
        served.client.invoke(401, {}, json.dumps(body).encode())
        for client in ("c", "d"):
            requested = json.dumps({"topic": "T", "consumerGroup": "g", "clientId": client}).encode()
            found = json.loads(served.client.invoke(400, body=requested).body)["messageQueueAssignments"]
            assert [(one["mode"], one["messageQueue"]["queueId"]) for one in found] == [("POP", -1)]


def test_a_group_with_an_offset_beyond_the_queue_end_gets_the_next_message(served: Served) -> None:
    """Its position is the end of the queue, also of one without a message."""
    put(served, 1)
    for queue_id in (0, 1):
        served.client.invoke(15, {"consumerGroup": "g", "topic": "T", "queueId": str(queue_id), "commitOffset": "5"})
    assert pop(served) == []
    put(served, 2, 1)
    assert sorted(one.body for one in pop(served)) == [b"1", b"2"]
