"""A replica of ours behind a real master, and a real slave behind a store of ours.  Either side is killed in between."""

from __future__ import annotations

import base64
import time
from datetime import timedelta
from pathlib import Path

import pytest

from messagestore import MessageStore
from messagestore.repair.verification import verify_store
from rocketlink import MasterDiffers, Replica, promote
from tests.sparkstore.conftest import why_not as no_spark

from .jvm import VERSION, prepare_or_skip
from .live import CONFIG, KILLS, MARKS, PATIENCE_S, QUEUES, REPLICATED, SIZES, Putting, Served, Streaming, log_of, start_replica
from .real_broker import RealBroker, until

pytestmark = MARKS
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 120_000, "syncFlushTimeout": 120_000}
SLAVED = REPLICATED // 5
LAGS = 5000


@pytest.fixture(autouse=True, scope="module")
def _jars() -> None:
    prepare_or_skip()


@pytest.fixture(params=["4.9.7", VERSION, "5.5.1"])
def version(request: pytest.FixtureRequest) -> str:
    """The master's version: one of each way to build a store."""
    prepare_or_skip(request.param)
    return str(request.param)


def test_messages_acknowledged_by_a_real_master_are_in_the_replica(
    version: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:  # fmt: skip
    """Both are killed in turn; clients send again what was not acknowledged.  The master waits for the replica.

    In the amounts of a night, a Spark stream reads the replica all the while.
    """
    streaming = None
    with RealBroker(tmp_path / "master", tmp_path / "broker", version=version, **SIZES, **SYNC) as broker:
        broker.invoke("topic", topic="flood", queues=QUEUES)
        child = start_replica(broker.port, tmp_path / "replica")
        if REPLICATED >= 100_000 and not no_spark():
            until((tmp_path / "replica" / "commitlog").exists, "the replica is there")
            streaming = Streaming(tmp_path / "replica")
            request.addfinalizer(streaming.process.kill)
        broker.clients.tell("flood", topic="flood", count=REPLICATED, queues=QUEUES, ahead=500, persistent=True)
        try:
            for _ in range(KILLS):
                time.sleep(2)
                assert child.poll() is None, "the replica ended by itself"
                child.kill()
                child.wait()
                child = start_replica(broker.port, tmp_path / "replica")
                time.sleep(2)
                broker.restart()
            answer = broker.clients.answer(PATIENCE_S)
            assert child.poll() is None, "the replica ended by itself"
        finally:
            child.kill()
            child.wait()
        with Replica("127.0.0.1", broker.port, tmp_path / "replica") as replica:
            until(lambda: replica.status.is_connected, "the replica is connected")
            end = replica.status.master_end
            assert replica.wait(end, 60)
            until(lambda: "flood" in replica.store.engine.topics, "topics are fetched")
        broker.stop()
    assert log_of(tmp_path / "replica", end) == log_of(tmp_path / "master", end)
    with MessageStore.open(tmp_path / "replica", "r", CONFIG) as store:
        stored = [message for queue_id in range(QUEUES) for message in store.read("flood", queue_id)]
    found = [int(message.body) for message in stored]
    if streaming is not None:
        rows = streaming.rows()
        print(f"{len(rows)} rows in the stream, {len(set(rows))} different")
        assert rows == sorted((message.queue_id, message.queue_offset, message.body) for message in stored)
    print(f"{REPLICATED} acknowledged, {len(found)} stored, {KILLS} kills of each, {answer['seconds']:.0f} s")
    assert set(found) == set(range(REPLICATED))
    assert not verify_store(str(tmp_path / "replica"), CONFIG).problems


@pytest.mark.skipif(REPLICATED < 100_000, reason="a measurement; make live-night")
@pytest.mark.parametrize("ahead", [1, 100])
@pytest.mark.parametrize("role", [{}, SYNC], ids=["async", "sync"])
def test_the_lag_of_a_replica_is_measured(tmp_path: Path, role: dict[str, object], ahead: int) -> None:
    """From the time at which the master stored a message until a follower of the replica has it.

    An asynchronous master that was idle looks for new messages every 100 ms.
    """
    with RealBroker(tmp_path / "master", tmp_path / "broker", **SIZES, **role) as broker:
        broker.invoke("topic", topic="T", queues=QUEUES)
        with Replica("127.0.0.1", broker.port, tmp_path / "replica", from_start=True) as replica:
            until(lambda: replica.status.is_connected, "the replica is connected")
            broker.clients.tell("flood", topic="T", count=LAGS, queues=QUEUES, ahead=ahead)
            lags = []
            for message in replica.store.follow(timeout_s=20.0):
                lags.append(time.time() * 1000 - message.store_timestamp_ms)
                if len(lags) == LAGS:
                    break
    lags.sort()
    print(f"{role}, {ahead} ahead: median lag {lags[LAGS // 2]:.1f} ms, 99 of 100 below {lags[LAGS * 99 // 100]:.1f} ms")
    assert len(lags) == LAGS


def test_a_replica_follows_a_restarted_real_master_and_refuses_a_replaced_one(tmp_path: Path) -> None:
    """After its restart the replica goes on; another folder behind the same port is refused."""
    with RealBroker(tmp_path / "master", tmp_path / "broker", **SIZES) as broker:
        broker.invoke("topic", topic="flood", queues=QUEUES)
        port = broker.port
        broker.invoke("flood", topic="flood", count=1000, queues=QUEUES, ahead=100)
        replica = Replica("127.0.0.1", port, tmp_path / "replica", from_start=True)
        with replica:
            until(lambda: replica.status.master_end > 0 and replica.status.lag_bytes == 0, "all is replicated")
            broker.kill()
            broker.end()
            with RealBroker(tmp_path / "master", tmp_path / "again", port=port, **SIZES) as again:
                again.invoke("flood", topic="flood", count=1000, queues=QUEUES, ahead=100)
                until(lambda: replica.status.connections >= 2 and replica.status.lag_bytes == 0, "the replica goes on")
                until(lambda: len(replica.store.query("flood", "flood-999")) == 2, "the second flood has arrived")
    with (
        RealBroker(tmp_path / "other", tmp_path / "broker-2", port=port, **SIZES) as other,
        Replica("127.0.0.1", other.port, tmp_path / "replica") as replica,
        pytest.raises(MasterDiffers),
    ):
        replica.wait(1 << 40, 60)


def test_a_real_broker_continues_a_promoted_replica(version: str, tmp_path: Path) -> None:
    """The master is killed after the last fetch of its tables: a later topic and delayed messages are right."""
    with RealBroker(tmp_path / "master", tmp_path / "broker", version=version, **SIZES) as broker:
        broker.invoke("topic", topic="T", queues=2)
        with Replica("127.0.0.1", broker.port, tmp_path / "replica", from_start=True, metadata_every_s=1000) as replica:
            until(lambda: "T" in replica.store.engine.topics, "topics are fetched")
            broker.invoke("topic", topic="late", queues=QUEUES)
            broker.invoke("flood", topic="late", count=1000, queues=QUEUES, ahead=100)
            broker.invoke("flood", topic="T", count=10, queues=2, ahead=10, delay=1)
            until(lambda: len(broker.invoke("read", topic="T", brief=True)) == 10, "the first are delivered")
            broker.invoke("flood", topic="T", first=10, count=10, queues=2, ahead=10, delay=3)
            end = int(broker.invoke("read", topic="late", brief=True)[-1][2])
            assert replica.wait(end + 1, 60)
            until(lambda: replica.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 10, "all is replicated")
            broker.kill()
            until(lambda: not replica.status.is_connected, "the replica has noticed")
    found = promote(tmp_path / "replica")
    assert found.missing_topics == {"late": QUEUES}
    sizes = {name: value for name, value in found.broker_settings.items() if name in SIZES}
    assert sizes == {name: str(value) for name, value in SIZES.items()}
    with RealBroker(tmp_path / "replica", tmp_path / "again", version=version, **sizes) as broker:
        late = broker.invoke("read", topic="late", brief=True)
        assert sorted(int(base64.b64decode(body)) for *_, body in late) == list(range(1000))
        until(lambda: len(broker.invoke("read", topic="T", brief=True)) >= 20, "the rest is delivered", 120)
        once = broker.invoke("read", topic="T", brief=True)
        assert sorted(int(base64.b64decode(body)) for *_, body in once) == list(range(20))


def test_a_real_slave_has_the_log_of_our_master(tmp_path: Path) -> None:
    """Both are killed in turn while our side puts, and continue; afterwards the logs are equal."""
    slave = {"brokerRole": "SLAVE", "brokerId": 1}
    with RealBroker(tmp_path / "slave", tmp_path / "scratch", **SIZES, **slave) as real:
        putting = Putting(tmp_path / "ours", real.port, SLAVED, 40 * KILLS)
        try:
            for _ in range(KILLS):
                time.sleep(2)
                putting.kill()
                putting.start()
                time.sleep(2)
                real.restart()
            until(lambda: putting.acknowledged == SLAVED, "all is put", PATIENCE_S)
            with MessageStore.open(tmp_path / "ours", "r", CONFIG) as store:
                end = store.log_end
            until(lambda: _log_end(tmp_path / "slave") == end, "the slave has everything", PATIENCE_S)
        finally:
            putting.kill()
        real.kill()
    with MessageStore.open(tmp_path / "ours", "r", CONFIG) as store:
        found = {int(message.body) for queue_id in range(2) for message in store.read("T", queue_id)}
    print(f"{SLAVED} puts returned, {KILLS} kills of each")
    assert found == set(range(SLAVED))
    assert log_of(tmp_path / "slave", end) == log_of(tmp_path / "ours", end)


@pytest.mark.skipif(REPLICATED < 100_000, reason="a minute and a half, mostly asleep: part of make live-night")
def test_a_real_slave_finds_our_server_through_our_name_server(tmp_path: Path) -> None:
    """It is given the name server's address only, and follows: log, topics, offsets, and how far timers were delivered."""
    with Served(tmp_path / "ours") as served:
        names = f"127.0.0.1:{served.server.names_port}"
        settings = {"brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": names, "mappedFileSizeTimerLog": 52_000}
        with RealBroker(tmp_path / "slave", tmp_path / "scratch", **SIZES, **settings) as real:
            served.invoke("topic", topic="followed", queues=2)
            for number in range(500):
                served.store.put("followed", b"%d" % number, queue_id=number % 2)
            for number in range(20):
                served.store.put("followed", b"%d" % (500 + number), queue_id=0, delay=timedelta(seconds=3.5 + number))
            served.store.engine.consumer_offsets().commit("followed", "G", 0, 7)
            until(lambda: served.store.max_offset("followed", 0) > 255, "some timers are delivered")
            until(lambda: _log_end(tmp_path / "slave") == served.store.log_end, "the slave has everything")
            until(lambda: "followed@G" in _text(tmp_path / "slave" / "config" / "consumerOffset.json"), "the offsets are there")
            until(lambda: '"followed"' in _text(tmp_path / "slave" / "config" / "topics.json"), "the topics are there")
            time.sleep(3)  # the slave asks for the timer checkpoint, and flushes it
            real.kill()
        end = _log_end(tmp_path / "slave")
    assert log_of(tmp_path / "slave", end) == log_of(tmp_path / "ours" / "store", end)
    master = {"brokerRole": "ASYNC_MASTER", "mappedFileSizeTimerLog": 52_000}
    with RealBroker(tmp_path / "slave", tmp_path / "again", **SIZES, **master) as real:
        until(
            lambda: len(real.invoke("read", topic="followed", brief=True)) >= 520,
            "the slave delivers the rest as a master",
            120,
        )
        time.sleep(2)  # for what must not come
        found = sorted(int(base64.b64decode(body)) for *_, body in real.invoke("read", topic="followed", brief=True))
        print(f"{len(found)} messages, {len(found) - len(set(found))} of them repeated")
        assert sorted(set(found)) == list(range(520))
        assert len(found) - len(set(found)) <= 8, "a slave repeats what its master delivered since it last asked"


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _log_end(folder: Path) -> int:
    with MessageStore.open(folder, "r", CONFIG) as store:
        return store.log_end
