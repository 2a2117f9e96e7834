"""Which client is asked about a half message that nobody decided, also by a server that has not seen its producer before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import until

from .grpc_client import GrpcServed, bodies, d, message, named, producer_settings, s, served

__all__ = ["served"]  # the fixture
OTHER = [("x-mq-client-id", "c2")]


def check(served: GrpcServed) -> None:
    """Let the server ask about each half message."""
    served.server._call_soon(lambda: served.store.check_transactions(served.server._requests.check_producer, older_than_ms=0))


def commit(served: GrpcServed, command: Any) -> None:
    transaction = command.recover_orphaned_transaction_command.transaction_id
    request = s.EndTransactionRequest(topic=named("T"), transaction_id=transaction, resolution=d.COMMIT)
    assert served.call("EndTransaction", request).status.code == d.OK


def test_a_producer_without_a_stream_hides_no_other(served: GrpcServed) -> None:
    """The one that sent the message cannot be asked; each check reaches the one that can."""
    served.send(message(message_type=d.TRANSACTION))
    with served.telemetry(producer_settings("T"), OTHER) as next_command:
        next_command()
        for _ in range(3):
            check(served)
            command = next_command()
            assert command.recover_orphaned_transaction_command.message.body == b"1"
        commit(served, command)
    assert bodies(served.receive(wait_s=20)) == [b"1"]


def test_a_check_that_no_producer_can_get_counts(served: GrpcServed) -> None:
    """A broker puts a half message again before it looks for a producer's channel; the last check gives it up."""
    served.send(message(message_type=d.TRANSACTION))
    limit = served.store.config.transaction_check_max
    for times in range(limit):
        (half,) = served.store.undecided_transactions()
        assert half.check_times == times
        assert "TRANS_CHECK_MAX_TIME_TOPIC" not in served.store.topics()
        check(served)
        until(lambda times=times: served.store.undecided_transactions()[0].check_times == times + 1)  # type: ignore[misc]
    check(served)
    until(lambda: not served.store.undecided_transactions())
    assert [one.body for one in served.store.read("TRANS_CHECK_MAX_TIME_TOPIC", 0)] == [b"1"]


def test_producers_get_checks_in_turn(served: GrpcServed) -> None:
    """Two producers get one of two half messages each."""
    for number in (b"1", b"2"):
        served.send(message(body=number, message_type=d.TRANSACTION))
    with served.telemetry(producer_settings("T")) as first, served.telemetry(producer_settings("T"), OTHER) as second:
        first(), second()
        check(served)
        found = [one().recover_orphaned_transaction_command.message.body for one in (first, second)]
    assert sorted(found) == [b"1", b"2"]


def test_a_client_gets_checks_before_it_sends_its_settings_again(served: GrpcServed) -> None:
    """After a restart, Python's client has a stream, heartbeats and routes, but sends its settings only after minutes."""
    served.send(message(message_type=d.TRANSACTION))
    with served.telemetry(d.Settings(client_type=d.PRODUCER), OTHER) as next_command:
        assert next_command().status.code == d.UNRECOGNIZED_CLIENT_TYPE, "settings that name no topics"
        served.call("Heartbeat", s.HeartbeatRequest(client_type=d.PRODUCER), OTHER)
        served.call("QueryRoute", s.QueryRouteRequest(topic=named("T")), OTHER)
        check(served)
        commit(served, next_command())
    assert bodies(served.receive(wait_s=20)) == [b"1"]


@pytest.mark.parametrize("resolution", [d.COMMIT, d.ROLLBACK])
@pytest.mark.parametrize("checks", [0, 1, 3])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_earlier_id_decides_the_newest_copy(tmp_path: Path, resolution: int, checks: int, is_restarted: bool) -> None:
    """Each check puts a half message again; its producer has the id of the first one, also after a restart."""
    served = GrpcServed(tmp_path / "s")
    (entry,) = served.send(message(message_type=d.TRANSACTION)).entries
    served.send(message(body=b"2", message_id="02ID", message_type=d.TRANSACTION))
    for _ in range(checks):
        served.store.check_transactions(lambda _half: None, older_than_ms=0)
    if is_restarted:
        served.close()
        served = GrpcServed(tmp_path / "s")
    request = s.EndTransactionRequest(topic=named("T"), transaction_id=entry.transaction_id, resolution=resolution)
    assert served.call("EndTransaction", request).status.code == d.OK
    assert [bytes(half.message.body) for half in served.store.undecided_transactions()] == [b"2"]
    assert served.call("EndTransaction", request).status.code == d.INVALID_TRANSACTION_ID, "it is decided"
    assert bodies(served.receive(wait_s=20 if resolution == d.COMMIT else 0)) == [b"1"] * (resolution == d.COMMIT)
    served.close()


def test_a_consumer_never_gets_a_check(served: GrpcServed) -> None:
    """It asks for routes as well."""
    served.send(message(message_type=d.TRANSACTION))
    served.call("Heartbeat", s.HeartbeatRequest(client_type=d.PUSH_CONSUMER), OTHER)
    served.call("QueryRoute", s.QueryRouteRequest(topic=named("T")), OTHER)
    assert set(served.server._requests.clients.producers["T"]) == {"c1"}


def test_commands_that_wait_keep_no_bodies(served: GrpcServed) -> None:
    """A stream that nobody reads holds where half messages are; one that was deleted meanwhile is not asked about."""
    served.send(message(message_type=d.TRANSACTION))
    with served.telemetry(producer_settings("T")) as next_command:
        next_command()
        messaging = served.server._messaging
        assert messaging is not None
        session = messaging.sessions.all["c1"]
        (half,) = served.store.undecided_transactions()
        lost = {"commitLogOffset": "999999", "tranStateTableOffset": "7"}
        kept = {"commitLogOffset": str(half.message.physical_offset), "tranStateTableOffset": str(half.queue_offset)}
        for fields in (lost, kept):
            served.server._call_soon(lambda fields=fields: session.notify(39, fields))
        assert next_command().recover_orphaned_transaction_command.message.body == b"1"
    until(lambda: not session.is_reachable)
