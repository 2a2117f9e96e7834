"""Requests of the gRPC protocol as an official client sends them: what becomes of them in the store, and what is answered."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import shutil
import socket
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore.property_names import PRIORITY
from rocketlink.server import leases
from storageio import DiskError, InvalidSetting
from tests.helpers import until
from tests.rocketlink import grpc_client as client
from tests.rocketlink.grpc_client import GrpcServed, bodies, contents, d, grpc, limits, message, named, s, served, sessions
from tests.serving import certificate

from fuzz import grpc_requests as fuzzed  # isort: skip  # it needs the extra, too

__all__ = ["served"]  # the fixture
FIFO = {"message.type": "FIFO"}


def test_message_arrives_with_all_its_properties(served: GrpcServed) -> None:
    """In the store it has the properties that a proxy gives it; the consumer gets what the producer sent."""
    sent = message(body=b"body", tag="t", keys=["k1", "k2"], born_host="10.0.0.1", trace_context="trace", message_id="01AB")
    sent.system_properties.born_timestamp.FromMilliseconds(1_700_000_000_123)
    sent.user_properties["colour"] = "grün"
    answer = served.send(sent)
    assert answer.status.code == d.OK
    assert [(entry.status.code, entry.message_id, entry.offset) for entry in answer.entries] == [(d.OK, "01AB", 0)]
    (stored,) = (one for queue_id in served.store.queue_ids("T") for one in served.store.read("T", queue_id))
    expected = {
        "TAGS": "t", "KEYS": "k1 k2", "UNIQ_KEY": "01AB", "PGROUP": "T", "TRACE_CONTEXT": "trace", "__BORNHOST": "10.0.0.1",
        "colour": "grün", "CLUSTER": "DefaultCluster",
    }  # fmt: skip
    assert stored.properties == expected
    assert (stored.born_timestamp_ms, stored.reconsume_times, stored.born_host[:9]) == (1_700_000_000_123, 0, "127.0.0.1")
    (found,) = served.receive()
    system = found.system_properties
    assert (found.topic.name, found.body, dict(found.user_properties)) == ("T", b"body", {"colour": "grün"})
    assert (system.tag, list(system.keys), system.message_id, system.trace_context) == ("t", ["k1", "k2"], "01AB", "trace")
    assert (system.message_type, system.body_encoding, system.delivery_attempt) == (d.NORMAL, d.IDENTITY, 1)
    assert (system.body_digest.type, system.body_digest.checksum) == (d.MD5, hashlib.md5(b"body").hexdigest().upper())
    assert (system.born_timestamp.ToMilliseconds(), system.born_host) == (1_700_000_000_123, "10.0.0.1")
    assert (system.queue_id, system.queue_offset) == (stored.queue_id, 0)


def test_messages_of_one_request_are_answered_one_by_one(served: GrpcServed) -> None:
    """What is wrong with one does not harm the others."""
    answer = served.send(message(body=b"1"), message(body=b"2", message_id=""), message(body=b"3"))
    assert answer.status.code == d.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [d.OK, d.ILLEGAL_MESSAGE_ID, d.OK]
    assert sorted(bodies(served.receive())) == [b"1", b"3"]
    assert served.send(message(), message("U")).status.code == d.MESSAGE_CORRUPTED
    assert served.send().status.code == d.MESSAGE_CORRUPTED


def test_compressed_body_is_stored_plain(served: GrpcServed) -> None:
    """Clients of the remoting protocol could not read gzip; the digest is that of the compressed bytes."""
    packed = zlib.compress(b"x" * 5000, wbits=31)
    digest = d.Digest(type=d.MD5, checksum=hashlib.md5(packed).hexdigest().upper())
    assert served.send(message(body=packed, body_encoding=d.GZIP, body_digest=digest)).status.code == d.OK
    assert bodies(served.receive()) == [b"x" * 5000]


@pytest.mark.parametrize("form", ["X", "08X", "08x", "d"])
def test_crc_of_a_body_is_read_in_the_form_of_each_client(served: GrpcServed, form: str) -> None:
    """Python and Java write it in base 16, Node.js in base 10."""
    digest = d.Digest(type=d.CRC32, checksum=format(zlib.crc32(b"1"), form))
    assert served.send(message(body_digest=digest)).status.code == d.OK


@pytest.mark.parametrize("kind", ["CRC32", "MD5", "SHA1"])
def test_body_that_does_not_fit_its_digest_is_refused(served: GrpcServed, kind: str) -> None:
    """As a broker's client would report it as damaged."""
    digest = d.Digest(type=d.DigestType.Value(kind), checksum="00")
    assert served.send(message(body_digest=digest)).status.code == d.MESSAGE_CORRUPTED


def test_acknowledged_messages_do_not_come_again(served: GrpcServed) -> None:
    """The committed offset is that of the first message in hand."""
    served.store.create_topic("T", 1)
    served.send(*(message(body=b"%d" % number) for number in range(5)))
    found = served.receive()
    assert bodies(found) == [b"0", b"1", b"2", b"3", b"4"]
    assert served.receive() == []
    assert served.acknowledge(found[0], found[2]).status.code == d.OK
    assert served.store.committed_offsets("T", "g") == {0: 1}
    assert served.acknowledge(found[1], found[3], found[4]).status.code == d.OK
    assert served.store.committed_offsets("T", "g") == {0: 5}
    assert served.acknowledge(found[0]).status.code == d.INVALID_RECEIPT_HANDLE
    assert bodies(served.receive(group="other")) == [b"0", b"1", b"2", b"3", b"4"]


def test_message_comes_again_after_its_invisible_time(served: GrpcServed) -> None:
    """Not before, with the next attempt and another handle; the first handle is of no use then."""
    served.send(message())
    began_s = time.monotonic()
    (first,) = served.receive(invisible_s=1.5)
    (again,) = served.receive(wait_s=20)
    assert time.monotonic() - began_s >= 1.5
    assert (again.body, again.topic.name, again.system_properties.delivery_attempt) == (b"1", "T", 2)
    assert served.acknowledge(first).status.code == d.INVALID_RECEIPT_HANDLE
    assert served.acknowledge(again).status.code == d.OK
    assert served.store.topics() == ["%RETRY%g_T", "T"]


def test_changed_invisible_time_counts_from_the_change(served: GrpcServed) -> None:
    """The message has a new handle from then on."""
    served.send(message())
    (first,) = served.receive(invisible_s=600)
    request = s.ChangeInvisibleDurationRequest(
        group=named("g"), topic=named("T"), receipt_handle=first.system_properties.receipt_handle
    )
    request.invisible_duration.FromMilliseconds(500)
    changed = served.call("ChangeInvisibleDuration", request)
    assert changed.status.code == d.OK
    assert served.call("ChangeInvisibleDuration", request).status.code == d.INVALID_RECEIPT_HANDLE
    first.system_properties.receipt_handle = changed.receipt_handle
    (again,) = served.receive(wait_s=20)
    assert served.acknowledge(first).status.code == d.INVALID_RECEIPT_HANDLE
    assert served.acknowledge(again).status.code == d.OK


def test_waiting_request_gets_a_message_as_soon_as_it_is_there(served: GrpcServed) -> None:
    """Several wait; each message goes to one of them."""
    request = client.receive_request(wait_s=25, count=1)
    waiting = [served.method("ReceiveMessage")(request, metadata=served.metadata) for _ in range(3)]
    until(lambda: len(served.server._messaging.receiving._waiting.get(("T", "g"), ())) == 3)
    for number in range(3):
        served.send(message(body=b"%d" % number))
    found = [bodies([one.message for one in answers if one.HasField("message")]) for answers in waiting]
    assert sorted(found) == [[b"0"], [b"1"], [b"2"]]
    assert not served.server._messaging.receiving._waiting


def test_request_that_the_client_gave_up_waits_no_longer(served: GrpcServed) -> None:
    """The message goes to another one."""
    waiting = served.method("ReceiveMessage")(client.receive_request(wait_s=25), metadata=served.metadata)
    until(lambda: served.server._messaging.receiving._waiting)
    waiting.cancel()
    until(lambda: not served.server._messaging.receiving._waiting)
    served.send(message())
    assert bodies(served.receive()) == [b"1"]


@pytest.mark.parametrize("is_killed", [False, True])
def test_messages_in_hand_keep_their_time_and_handle_after_a_restart(tmp_path: Path, is_killed: bool) -> None:
    """As in a proxy. Nothing acknowledged comes again; the copy of the folder of an open store is what a kill leaves."""
    before = GrpcServed(tmp_path / "s")
    before.store.create_topic("T", 1)
    before.send(*(message(body=b"%d" % number) for number in range(6)))
    began_s = time.monotonic()
    found = before.receive(invisible_s=600, count=4)
    (late,) = before.receive(invisible_s=3, count=1)
    before.acknowledge(found[0], found[2])
    if is_killed:
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
    before.close()
    after = GrpcServed(tmp_path / ("copy" if is_killed else "s"))
    assert bodies(after.receive()) == [b"5"], "what was never taken"
    assert after.acknowledge(found[1]).status.code == d.OK
    assert after.acknowledge(found[1]).status.code == d.INVALID_RECEIPT_HANDLE
    assert after.store.committed_offsets("T", "g") == {0: 3}
    (again,) = after.receive(wait_s=20)
    assert time.monotonic() - began_s >= 3
    assert (again.body, again.system_properties.delivery_attempt) == (b"4", 2)
    assert after.acknowledge(late).status.code == d.INVALID_RECEIPT_HANDLE
    after.close()


def test_messages_in_order_stay_in_hand_after_a_restart(tmp_path: Path) -> None:
    """Later ones of their queue wait, and the number of attempts goes on."""
    before = GrpcServed(tmp_path / "s")
    before.store.create_topic("T", 1, attributes=FIFO)
    for number in range(4):
        before.send(message(body=b"%d" % number, message_type=d.FIFO, message_group="a"))
    before.receive(count=2, invisible_s=1)
    until(lambda: before.receive(count=2, invisible_s=3) != [])
    before.close()
    after = GrpcServed(tmp_path / "s")
    assert after.receive() == []
    again = after.receive(wait_s=20, count=2)
    assert [(one.body, one.system_properties.delivery_attempt) for one in again] == [(b"0", 3), (b"1", 3)]
    after.acknowledge(*again)
    assert bodies(after.receive()) == [b"2", b"3"]
    after.close()


def test_message_that_is_renewed_comes_again_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a minute, also if the client is there: the answer may not have reached it before a kill."""
    before = GrpcServed(tmp_path / "s")
    before.send(message())
    assert bodies(before.receive(auto_renew=True)) == [b"1"]
    before.close()
    monkeypatch.setattr(leases, "RENEW_S", 1.0)
    after = GrpcServed(tmp_path / "s")
    with after.telemetry(client.consumer_settings("T")):
        assert after.receive(auto_renew=True) == []
        (again,) = after.receive(wait_s=20, auto_renew=True)
    assert again.system_properties.delivery_attempt == 2
    after.close()


def test_message_of_a_lost_answer_is_not_renewed(served: GrpcServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes again, although the client that has asked for it is there."""
    monkeypatch.setattr(leases, "RENEW_S", 2.0)
    monkeypatch.setattr(limits, "WRITE_S", 0.5)
    served.store.create_topic("R", 1)
    for _ in range(4):
        served.store.put(Message("R", bytes(1 << 19), queue_id=0))
    request = client.receive_request("R", auto_renew=True)
    data = bytes([fuzzed.METHODS.index("ReceiveMessage")]) + request.SerializeToString()
    with served.telemetry(client.consumer_settings("R")):
        with socket.create_connection(("127.0.0.1", served.server.grpc_port)) as slow:
            slow.sendall(fuzzed.opening() + fuzzed.request_frames(1, data))
            until(lambda: served.server._requests.leases._count)
            until(lambda: not served.server._messaging.receiving._unsent._waiting)
        attempts: set[int] = set()
        until(lambda: attempts.update(_attempts(served, "R")) or 2 in attempts)  # type: ignore[func-returns-value]


def _attempts(served: GrpcServed, topic: str) -> list[int]:
    return [one.system_properties.delivery_attempt for one in served.receive(topic, wait_s=1)]


def test_offset_that_was_reset_counts_for_the_next_request(served: GrpcServed) -> None:
    """What was in hand before is forgotten."""
    served.store.create_topic("T", 1)
    served.send(*(message(body=b"%d" % number) for number in range(3)))
    found = served.receive()
    served.acknowledge(*found)
    assert served.receive() == []
    served.store.reset_offsets("T", "g", 1)
    assert bodies(served.receive()) == [b"1", b"2"]


def test_messages_of_a_group_are_delivered_in_order(served: GrpcServed) -> None:
    """One batch of a queue at a time; what is not acknowledged comes before later messages, from the same queue."""
    served.store.create_topic("T", 2, attributes=FIFO)
    for number in range(6):
        answer = served.send(message(body=b"%d" % number, message_type=d.FIFO, message_group="a"))
        assert answer.status.code == d.OK, answer
    found = served.receive(count=3, invisible_s=1)
    assert (bodies(found), found[0].system_properties.message_group) == ([b"0", b"1", b"2"], "a")
    assert served.receive() == []
    served.acknowledge(found[0])
    assert served.receive() == [], "two are in hand"
    again = served.receive(wait_s=20, count=1)
    assert (bodies(again), again[0].system_properties.delivery_attempt) == ([b"1"], 2)
    assert served.receive() == []
    served.acknowledge(*again)
    again = served.receive(wait_s=20)
    assert bodies(again) == [b"2"]
    served.acknowledge(*again)
    assert served.store.committed_offsets("T", "g")[again[0].system_properties.queue_id] == 3
    assert bodies(served.receive()) == [b"3", b"4", b"5"]
    assert served.send(message()).status.code == d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_message_in_order_ends_as_a_dead_letter(served: GrpcServed) -> None:
    """After the last attempt; the next ones follow."""
    served.store.create_topic("T", 1, attributes=FIFO)
    served.store.engine.retries.groups.create("g", retry_max_times=1)
    for body in (b"bad", b"good"):
        served.send(message(body=body, message_type=d.FIFO, message_group="a"))
    for attempt in (1, 2):
        (found,) = served.receive(count=1, invisible_s=0.1, wait_s=20)
        assert (found.body, found.system_properties.delivery_attempt) == (b"bad", attempt)
    assert bodies(served.receive(wait_s=20)) == [b"good"]
    assert [one.body for one in served.store.read("%DLQ%g", 0)] == [b"bad"]


def test_message_ends_as_a_dead_letter_after_the_last_attempt(served: GrpcServed) -> None:
    """The consumers of its topic do not get it any longer."""
    served.store.engine.retries.groups.create("g", retry_max_times=1)
    served.send(message())
    for attempt in (1, 2):
        (found,) = served.receive(invisible_s=0.1, wait_s=20)
        assert found.system_properties.delivery_attempt == attempt
    until(lambda: served.store.max_offset("%DLQ%g", 0) == 1)
    assert served.receive() == []


def test_consumer_moves_a_message_to_the_dead_letters(served: GrpcServed) -> None:
    """The message is acknowledged by that."""
    served.send(message())
    (found,) = served.receive()
    request = s.ForwardMessageToDeadLetterQueueRequest(
        group=named("g"), topic=named("T"), receipt_handle=found.system_properties.receipt_handle, message_id="01ID"
    )
    assert served.call("ForwardMessageToDeadLetterQueue", request).status.code == d.OK
    assert [one.body for one in served.store.read("%DLQ%g", 0)] == [b"1"]
    assert served.acknowledge(found).status.code == d.INVALID_RECEIPT_HANDLE


def test_delayed_message_is_not_delivered_before_its_time(served: GrpcServed) -> None:
    """It is of type DELAY."""
    due_ms = int(time.time() * 1000) + 1500
    sent = message(message_type=d.DELAY)
    sent.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    assert served.send(sent).status.code == d.OK
    assert served.receive() == []
    (found,) = served.receive(wait_s=20)
    assert time.time() * 1000 >= due_ms - 1000, "timers have a precision of a second"
    assert found.system_properties.message_type == d.DELAY


@pytest.mark.parametrize(("resolution", "expected"), [("COMMIT", [b"1"]), ("ROLLBACK", [])])
def test_transaction_is_decided_by_its_producer(served: GrpcServed, resolution: str, expected: list[bytes]) -> None:
    """Nobody sees the message before."""
    (entry,) = served.send(message(message_type=d.TRANSACTION)).entries
    assert entry.transaction_id
    assert served.receive() == []
    request = s.EndTransactionRequest(
        topic=named("T"), message_id="01ID", transaction_id=entry.transaction_id,
        resolution=d.TransactionResolution.Value(resolution), source=d.SOURCE_CLIENT,
    )  # fmt: skip
    assert served.call("EndTransaction", request).status.code == d.OK
    found = served.receive(wait_s=1)
    assert bodies(found) == expected
    assert all(one.system_properties.message_type == d.TRANSACTION for one in found)
    assert served.store.undecided_transactions() == []
    for wrong in ("", "x:1", "999:999", f"{entry.transaction_id}:1", "1" * 30):
        request.transaction_id = wrong
        assert served.call("EndTransaction", request).status.code == d.INVALID_TRANSACTION_ID


def test_producer_gets_a_check_of_an_undecided_transaction(served: GrpcServed) -> None:
    """The command on its stream has the message and an id with which it decides."""
    served.send(message(message_type=d.TRANSACTION))
    with served.telemetry(client.producer_settings("T")) as next_command:
        assert next_command().settings.publishing.max_body_size == served.store.config.max_message_size
        served.server._call_soon(
            lambda: served.store.check_transactions(served.server._requests.check_producer, older_than_ms=0)
        )
        command = next_command().recover_orphaned_transaction_command
        assert (command.message.body, command.message.topic.name) == (b"1", "T")
        request = s.EndTransactionRequest(topic=named("T"), transaction_id=command.transaction_id, resolution=d.COMMIT)
        until(lambda: served.call("EndTransaction", request).status.code == d.OK)
    assert bodies(served.receive(wait_s=20)) == [b"1"]


def test_priorities_choose_queues_of_their_topic(served: GrpcServed) -> None:
    """The highest is received first; other topics refuse a priority."""
    served.store.create_topic("T", 3, attributes={"message.type": "PRIORITY"})
    for priority in (0, 2, 1, 9):
        assert served.send(message(body=b"%d" % priority, message_type=d.PRIORITY, priority=priority)).status.code == d.OK
    found = served.receive()
    assert bodies(found) == [b"2", b"9", b"1", b"0"]
    assert found[0].system_properties.priority == 2
    assert served.send(message("U", message_type=d.PRIORITY, priority=1)).status.code == d.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert PRIORITY not in found[0].user_properties


def test_tags_filter_messages(served: GrpcServed) -> None:
    """A wrong filter is refused."""
    served.send(*(message(body=tag.encode(), tag=tag) for tag in ("a", "b", "c")))
    assert sorted(bodies(served.receive(tags="a || c"))) == [b"a", b"c"]
    assert served.refused(tags="a >", kind=d.SQL) == d.ILLEGAL_FILTER_EXPRESSION
    assert served.refused(tags="a||") == d.ILLEGAL_FILTER_EXPRESSION


def test_sql_filters_select_by_properties(served: GrpcServed) -> None:
    """With RocketMQ's grammar, as for clients of the other protocol."""
    for number in range(4):
        one = message(body=b"%d" % number)
        one.user_properties["n"] = str(number)
        served.send(one)
    assert bodies(served.receive(tags="n > 1 AND n <> 3", kind=d.SQL)) == [b"2"]


def test_namespace_is_a_part_of_the_name(served: GrpcServed) -> None:
    """Topic and group of one namespace are others than those of another."""
    sent = message()
    sent.topic.resource_namespace = "ns"
    assert served.send(sent).status.code == d.OK
    assert served.store.topics() == ["ns%T"]
    request = client.receive_request(group="g")
    request.message_queue.topic.resource_namespace = request.group.resource_namespace = "ns"
    found = [one.message for one in served.call("ReceiveMessage", request) if one.WhichOneof("content") == "message"]
    assert (found[0].topic.name, found[0].topic.resource_namespace) == ("T", "ns")
    assert served.store.queue_ids("ns%T") and served.receive() == []


def test_route_has_the_queues_of_a_topic(served: GrpcServed) -> None:
    """With the address that the client uses, what may be done there, and the types of messages."""
    served.store.create_topic("T", 3, attributes=FIFO)
    request = s.QueryRouteRequest(topic=named("T"))
    request.endpoints.addresses.add(host="proxy", port=1)
    answer = served.call("QueryRoute", request)
    assert answer.status.code == d.OK
    assert [(queue.id, queue.permission, list(queue.accept_message_types)) for queue in answer.message_queues] == [
        (queue_id, d.READ_WRITE, [d.FIFO]) for queue_id in range(3)
    ]
    assert {queue.broker.endpoints.addresses[0].host for queue in answer.message_queues} == {"proxy"}
    answer = served.call("QueryRoute", s.QueryRouteRequest(topic=named("unknown")))
    assert len(answer.message_queues) == 8 and d.TRANSACTION in answer.message_queues[0].accept_message_types
    assert answer.message_queues[0].broker.endpoints.addresses[0].port == served.server.grpc_port
    assert served.store.topics() == ["T"]


def test_assignment_is_any_queue_or_each_one_in_order(served: GrpcServed) -> None:
    """A group in order gets each queue, as does any group of a topic of type FIFO."""
    served.store.create_topic("T", 2)
    served.store.create_topic("F", 2, attributes=FIFO)

    def assigned(topic: str) -> list[int]:
        answer = served.call("QueryAssignment", s.QueryAssignmentRequest(topic=named(topic), group=named("g")))
        assert answer.status.code == d.OK
        return [one.message_queue.id for one in answer.assignments]

    assert (assigned("T"), assigned("F")) == ([-1], [0, 1])
    served.store.engine.retries.groups.create("g", is_ordered=True)
    assert assigned("T") == [0, 1]


def test_settings_are_answered_with_those_of_the_server(served: GrpcServed) -> None:
    """Attempts are those of the group; order is that of its topics."""
    served.store.create_topic("F", 2, attributes=FIFO)
    served.store.engine.retries.groups.create("g", retry_max_times=4)
    for topic, is_fifo in (("T", False), ("F", True)):
        with served.telemetry(client.consumer_settings(topic)) as next_command:
            command = next_command()
            assert (command.status.code, command.settings.subscription.fifo) == (d.OK, is_fifo)
            assert command.settings.backoff_policy.max_attempts == 5
            assert [one.seconds for one in command.settings.backoff_policy.customized_backoff.next][:3] == [1, 5, 10]
    for wrong in (d.Settings(), client.consumer_settings("T", group="g g"), client.producer_settings("a/b")):
        with served.telemetry(wrong) as next_command:
            assert next_command().status.code in (d.UNRECOGNIZED_CLIENT_TYPE, d.ILLEGAL_CONSUMER_GROUP, d.ILLEGAL_TOPIC)


def test_time_is_renewed_while_the_client_is_there(served: GrpcServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is gone, the message comes again."""
    monkeypatch.setattr(leases, "RENEW_S", 0.2)
    monkeypatch.setattr(sessions, "SILENT_S", 0.0)
    served.send(message())
    other = [("x-mq-client-id", "c2")]
    with served.telemetry(client.consumer_settings("T")) as next_command:
        next_command()
        (found,) = served.receive(auto_renew=True)
        assert served.receive(wait_s=2.5, metadata=other) == []
    (again,) = served.receive(wait_s=20, metadata=other)
    assert again.system_properties.delivery_attempt == 2
    assert served.acknowledge(found).status.code == d.INVALID_RECEIPT_HANDLE


def test_heartbeat_and_termination(served: GrpcServed) -> None:
    """A client that leaves is forgotten."""
    assert served.call("Heartbeat", s.HeartbeatRequest(client_type=d.PRODUCER)).status.code == d.OK
    assert served.call("Heartbeat", s.HeartbeatRequest()).status.code == d.UNRECOGNIZED_CLIENT_TYPE
    assert list(served.server._messaging.sessions.all) == ["c1"]
    assert served.call("NotifyClientTermination", s.NotifyClientTerminationRequest()).status.code == d.OK
    assert served.server._messaging.sessions.all == {}


def test_reads_at_an_offset(served: GrpcServed) -> None:
    """Offsets of a group, of a queue and of a time."""
    served.store.create_topic("T", 1)
    served.send(*(message(body=b"%d" % number) for number in range(3)))
    where = d.MessageQueue(topic=named("T"), id=0)
    assert served.call("GetOffset", s.GetOffsetRequest(group=named("g"), message_queue=where)).status.code == d.OFFSET_NOT_FOUND
    request = s.UpdateOffsetRequest(group=named("g"), message_queue=where, offset=2)
    assert served.call("UpdateOffset", request).status.code == d.OK
    assert served.call("GetOffset", s.GetOffsetRequest(group=named("g"), message_queue=where)).offset == 2
    for policy, offset in ((d.BEGINNING, 0), (d.END, 3), (d.TIMESTAMP, 0)):
        answer = served.call("QueryOffset", s.QueryOffsetRequest(message_queue=where, query_offset_policy=policy))
        assert (answer.status.code, answer.offset) == (d.OK, offset)
    answers = list(
        served.call("PullMessage", s.PullMessageRequest(group=named("g"), message_queue=where, offset=1, batch_size=8))
    )
    assert [bytes(one.message.body) for one in answers if one.HasField("message")] == [b"1", b"2"]
    assert answers[-1].next_offset == 3
    where.id = 7
    assert (
        served.call("UpdateOffset", s.UpdateOffsetRequest(group=named("g"), message_queue=where)).status.code == d.BAD_REQUEST
    )


def test_clients_of_both_protocols_share_a_topic(served: GrpcServed) -> None:
    """A message that the store put itself, or a client of the remoting protocol, has an id too."""
    served.store.put("T", b"own", keys="k")
    (found,) = served.receive(wait_s=5)
    assert (found.body, list(found.system_properties.keys), len(found.system_properties.message_id)) == (b"own", ["k"], 32)


def signed(secret: str, key: str = "key", date: str = "20260101T000000Z") -> list[tuple[str, str]]:
    signature = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return [("x-mq-client-id", "c1"), ("x-mq-date-time", date), ("authorization", text)]


def test_requests_without_a_valid_signature_are_refused(tmp_path: Path) -> None:
    """The signature is that of the date with the secret of the key."""
    served = GrpcServed(tmp_path / "s", access_key="key", secret="secret")
    request = s.QueryRouteRequest(topic=named("T"))
    no_date = [pair for pair in signed("secret") if pair[0] != "x-mq-date-time"]
    for metadata in (served.metadata, signed("other"), signed("secret", "other key"), no_date):
        assert served.call("QueryRoute", request, metadata).status.code == d.UNAUTHORIZED
    with served.telemetry(client.producer_settings("T")) as next_command:
        assert next_command().status.code == d.UNAUTHORIZED
    assert served.call("QueryRoute", request, signed("secret")).status.code == d.OK
    served.close()


def test_other_machines_need_a_key(served: GrpcServed) -> None:
    """As for the remoting protocol."""
    from rocketlink import BrokerServer

    with pytest.raises(InvalidSetting, match=r"host '0\.0\.0\.0' can be reached from other machines"):
        BrokerServer(served.store, grpc_port=0, grpc_host="0.0.0.0")
    with pytest.raises(DiskError, match="listen"):
        BrokerServer(served.store, grpc_port=served.server.grpc_port)


def test_tls_port_answers_with_its_certificate(tmp_path: Path) -> None:
    """The client checks it."""
    cert, key = certificate(tmp_path)
    served = GrpcServed(tmp_path / "s", grpc_tls=(cert.read_bytes(), key.read_bytes()))
    served.channel.close()
    credentials = grpc.ssl_channel_credentials(cert.read_bytes())
    served.channel = grpc.secure_channel(f"localhost:{served.server.grpc_port}", credentials)
    assert served.send(message()).status.code == d.OK
    served.close()


@pytest.mark.parametrize("is_tls", [False, True])
def test_client_that_does_not_begin_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_tls: bool) -> None:
    """After the time for a handshake, of TLS or of HTTP/2."""
    monkeypatch.setattr(client.port, "HANDSHAKE_MS", 500)
    tls = tuple(file.read_bytes() for file in certificate(tmp_path)) if is_tls else None
    served = GrpcServed(tmp_path / "s", grpc_tls=tls)
    with socket.create_connection(("127.0.0.1", served.server.grpc_port), client.PATIENCE_S) as silent:
        while silent.recv(1024):  # HTTP/2's settings come first
            continue
    served.close()


def test_deleted_group_has_no_retries_left(served: GrpcServed) -> None:
    """A new group of the name begins with the messages of the topic."""
    served.send(message())
    served.receive(invisible_s=0.1)
    until(lambda: served.store.max_offset("%RETRY%g_T", 0) == 1)
    served.store.delete_group("g")
    (found,) = served.receive(wait_s=5)
    assert found.system_properties.delivery_attempt == 1
    assert served.receive() == []


def test_stop_ends_requests_that_wait(tmp_path: Path) -> None:
    """And does so soon."""
    served = GrpcServed(tmp_path / "s")
    waiting = served.method("ReceiveMessage")(client.receive_request(wait_s=50), metadata=served.metadata)
    until(lambda: served.server._messaging.receiving._waiting)
    served.server.close()
    with pytest.raises(grpc.RpcError):
        list(waiting)
    served.close()


def hostile() -> list[Any]:
    """Return requests that name what there cannot be, and the codes that answer them."""
    long, topic, group = "x" * 300, named("T"), named("g")
    cases: list[tuple[str, Any, str]] = [
        ("QueryAssignment", s.QueryAssignmentRequest(topic=topic, group=named("a b")), "ILLEGAL_CONSUMER_GROUP"),
        ("QueryAssignment", s.QueryAssignmentRequest(topic=topic, group=named(long)), "ILLEGAL_CONSUMER_GROUP"),
        ("AckMessage", s.AckMessageRequest(group=group, topic=topic), "BAD_REQUEST"),
        ("UpdateOffset", s.UpdateOffsetRequest(group=group, message_queue=d.MessageQueue(topic=topic)), "TOPIC_NOT_FOUND"),
        ("RecallMessage", s.RecallMessageRequest(topic=topic), "NOT_IMPLEMENTED"),
        ("SyncLiteSubscription", s.SyncLiteSubscriptionRequest(topic=topic), "NOT_IMPLEMENTED"),
    ]
    for name in ("", long, "../etc", "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%g"):
        cases.append(("QueryRoute", s.QueryRouteRequest(topic=named(name)), "ILLEGAL_TOPIC"))
    for handle in ("", "x", "0 0 0", "0 0 0 0 0", "0 0 0 -1", "0 0 0 \u0663", "0 0 0 " + "9" * 5000):
        entry = s.AckMessageEntry(receipt_handle=handle)
        cases.append(("AckMessage", s.AckMessageRequest(group=group, topic=topic, entries=[entry]), "INVALID_RECEIPT_HANDLE"))
    fields: dict[str, list[dict[str, Any]]] = {
        "ILLEGAL_MESSAGE_TAG": [{"tag": "a|b"}, {"tag": " "}],
        "ILLEGAL_MESSAGE_KEY": [{"keys": ["a b"]}, {"keys": [""]}],
        "ILLEGAL_MESSAGE_PROPERTY_KEY": [{"tag": "a\x01b"}],
        "ILLEGAL_MESSAGE_ID": [{"message_id": ""}],
        "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE": [
            {"lite_topic": "l"}, {"message_type": d.LITE}, {"message_type": 77},
            {"message_type": d.TRANSACTION, "message_group": "a"},
        ],
        "MESSAGE_CORRUPTED": [{"body_encoding": d.GZIP}, {"message_group": "g" * 40_000}],
        "MESSAGE_BODY_EMPTY": [{"body": b""}],
        "MESSAGE_BODY_TOO_LARGE": [
            {"body": zlib.compress(bytes(1 << 27)), "body_encoding": d.GZIP}, {"body": bytes((1 << 22) + 1)},
        ],
    }  # fmt: skip
    for code, several in fields.items():
        cases += [("SendMessage", s.SendMessageRequest(messages=[message(**given)]), code) for given in several]
    marked, late = message(), message(message_type=d.DELAY)
    marked.user_properties["DELAY"] = "3"
    cases.append(("SendMessage", s.SendMessageRequest(messages=[marked]), "ILLEGAL_MESSAGE_PROPERTY_KEY"))
    late.system_properties.delivery_timestamp.seconds = 200_000_000_000
    cases.append(("SendMessage", s.SendMessageRequest(messages=[late]), "MESSAGE_CORRUPTED"))
    return [pytest.param(*case, id=f"{number}-{case[0]}-{case[2]}") for number, case in enumerate(cases)]


@pytest.mark.parametrize(("name", "request_", "code"), hostile())
def test_wrong_request_is_refused_by_name(served: GrpcServed, name: str, request_: Any, code: str) -> None:
    """Nothing is written, and the next request is answered."""
    before = served.store.log_end
    assert d.Code.Name(served.call(name, request_).status.code) == code
    assert served.store.log_end == before
    assert served.send(message()).status.code == d.OK


@pytest.mark.parametrize("invisible_s", [0, -5, 50_000])
def test_invisible_time_is_limited(served: GrpcServed, invisible_s: float) -> None:
    """The limit is twelve hours."""
    assert served.refused(invisible_s=invisible_s) == d.ILLEGAL_INVISIBLE_TIME


def test_client_has_an_id_and_there_are_not_too_many(served: GrpcServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is silent makes place for another one."""
    monkeypatch.setattr(sessions, "CLIENTS_MAX", 2)
    request = s.QueryRouteRequest(topic=named("T"))

    def code(name: str) -> int:
        return int(served.call("QueryRoute", request, [("x-mq-client-id", name)]).status.code)

    assert served.call("QueryRoute", request, [("x", "y")]).status.code == d.CLIENT_ID_REQUIRED
    assert code("i" * 256) == d.CLIENT_ID_REQUIRED
    assert [code(name) for name in ("a", "b", "c", "a")] == [d.OK, d.OK, d.TOO_MANY_REQUESTS, d.OK]
    monkeypatch.setattr(sessions, "SILENT_S", 0.0)
    assert code("c") == d.OK


def test_too_large_request_is_refused(served: GrpcServed) -> None:
    """Before it is in memory."""
    with pytest.raises(grpc.RpcError) as caught:
        served.send(message(body=bytes(5 << 20)))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert served.send(message()).status.code == d.OK


def test_client_that_does_not_read_loses_its_call(served: GrpcServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are served meanwhile, and its messages come again after their time."""
    monkeypatch.setattr(limits, "WRITE_S", 0.5)
    served.store.create_topic("T", 1)
    for _ in range(8):
        assert served.send(message(body=bytes(900_000))).status.code == d.OK
    served.channel.close()
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535)]  # it buffers no more than that
    served.channel = grpc.insecure_channel(served.server.grpc_address, options)
    stuck = served.method("ReceiveMessage")(client.receive_request(invisible_s=1.5), metadata=served.metadata)
    until(lambda: served.server._requests.leases._count)
    assert served.send(message("U", b"other")).status.code == d.OK
    assert bodies(served.receive("U")) == [b"other"]
    time.sleep(0.6)  # the time of the write, while nothing is read
    with pytest.raises(grpc.RpcError) as caught:
        list(stuck)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(served.receive(wait_s=20, count=1)) == 1


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64])
def test_bytes_of_another_protocol_end_their_connection(served: GrpcServed, data: bytes) -> None:
    """The server answers others as before."""
    with socket.create_connection(("127.0.0.1", served.server.grpc_port)) as link:
        link.settimeout(20)
        link.sendall(data)
        while link.recv(4096):
            pass
    assert served.send(message()).status.code == d.OK


def test_many_requests_wait_at_the_same_time(served: GrpcServed) -> None:
    """Each message goes to one of them, and a message costs the others nothing."""
    request = client.receive_request(wait_s=25, count=1)
    waiting = [served.method("ReceiveMessage")(request, metadata=served.metadata) for _ in range(200)]
    until(lambda: len(served.server._messaging.receiving._waiting.get(("T", "g"), ())) == 200)
    served.send(*(message(body=b"%d" % number) for number in range(200)))
    found = [bytes(one.message.body) for answers in waiting for one in answers if one.HasField("message")]
    assert sorted(map(int, found)) == list(range(200))


def test_port_opens_again_after_a_method_with_an_impossible_name(served: GrpcServed) -> None:
    """Such a name, no UTF-8, ends the server of the grpc library, with all connections."""
    data = fuzzed.head(1, "Heart__").replace(b"Heart__", b"Heart\xff\xff")
    for _ in range(3):
        before = served.server._grpc._server
        with socket.create_connection(("127.0.0.1", served.server.grpc_port)) as link:
            link.sendall(fuzzed.opening() + data)
            until(partial(_is_replaced, served, before))
        until(lambda: _is_open(served.server.grpc_port))
    until(lambda: _is_answered(served))


def _is_replaced(served: GrpcServed, before: Any) -> bool:
    return served.server._grpc._server is not before


def _is_answered(served: GrpcServed) -> bool:
    with contextlib.suppress(grpc.RpcError):
        return bool(served.send(message()).status.code == d.OK)
    return False


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_body_that_cannot_be_decompressed_is_delivered_as_it_is(served: GrpcServed) -> None:
    """A client of the remoting protocol may send such a body, or a bomb; messages behind it are delivered too."""
    served.store.create_topic("T", 1)
    bomb = zlib.compress(bytes(8 << 20))
    for body in (b"no zlib", bomb):
        served.store.put(Message("T", body, queue_id=0, sys_flag=1))
    served.store.put(Message("T", zlib.compress(b"plain"), queue_id=0, sys_flag=1))
    assert bodies(served.receive()) == [b"no zlib", bomb, b"plain"]


def test_bombs_of_one_request_take_bounded_time(served: GrpcServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a number of bytes no more bodies of a request are decompressed; what is small is stored."""
    monkeypatch.setattr(contents, "DECOMPRESSED_MAX", 5 << 20)
    bomb = message(body=zlib.compress(bytes(64 << 20)), body_encoding=d.GZIP)
    small = message(body=zlib.compress(b"small"), body_encoding=d.GZIP)
    found = served.send(small, bomb, bomb, small, message(body=b"plain"))
    large = d.MESSAGE_BODY_TOO_LARGE
    assert [entry.status.code for entry in found.entries] == [d.OK, large, large, large, d.OK]
    assert sorted(bodies(served.receive())) == [b"plain", b"small"]


def test_slow_uploads_end_while_others_wait(served: GrpcServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are served, and a slow one is not ended while nobody waits."""
    monkeypatch.setattr(limits, "UPLOADS_MAX", 2)
    half = b"".join(
        fuzzed.head(stream, "SendMessage") + fuzzed.frame(fuzzed.DATA, 0, stream, b"\0\0\1\0\0half") for stream in (1, 3, 5, 7)
    )
    uploads = served.server._messaging.uploads
    assert served.send(message()).status.code == d.OK
    with socket.create_connection(("127.0.0.1", served.server.grpc_port)) as slow:
        slow.sendall(fuzzed.opening() + half[: len(half) // 2])
        until(lambda: uploads._count == 2)
        time.sleep(1.5)
        assert uploads._count == 2
        slow.sendall(half[len(half) // 2 :])
        assert served.send(message()).status.code == d.OK
        until(lambda: not any(uploads._waiting.values()))
    until(lambda: uploads._count == 0)


def test_answers_that_nobody_reads_end(served: GrpcServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait longest, when all of them together are too large."""
    monkeypatch.setattr(limits, "UNSENT_MAX", 3 << 20)
    served.store.create_topic("R", 1)
    for _ in range(20):
        served.store.put(Message("R", bytes(100_000), queue_id=0))
    pull = s.PullMessageRequest(group=named("g"), message_queue=d.MessageQueue(topic=named("R"), id=0), batch_size=32)
    data = bytes([fuzzed.METHODS.index("PullMessage")]) + pull.SerializeToString()
    unsent = served.server._messaging.receiving._unsent
    with socket.create_connection(("127.0.0.1", served.server.grpc_port)) as slow:
        slow.sendall(fuzzed.opening() + b"".join(fuzzed.request_frames(2 * number + 1, data) for number in range(8)))
        until(lambda: unsent._size_bytes)
        answers = list(served.call("PullMessage", pull))
        assert any(one.HasField("message") for one in answers)
        assert unsent._size_bytes <= 3 << 20
    until(lambda: not unsent._size_bytes)
