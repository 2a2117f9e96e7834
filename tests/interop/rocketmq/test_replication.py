"""A replica of ours behind a real master, and a real slave behind a store of ours.  Either side is killed in between."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.repair.verification import verify_store
from rocketlink import HaMaster, MasterDiffers, Replica

from .jvm import prepare_or_skip
from .live import CONFIG, KILLS, MARKS, QUEUES, REPLICATED, SIZES, log_of, start_replica
from .real_broker import RealBroker, until

pytestmark = MARKS
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 120_000, "syncFlushTimeout": 120_000}


@pytest.fixture(autouse=True, scope="module")
def _jars() -> None:
    prepare_or_skip()


def test_what_a_real_master_acknowledged_is_in_the_killed_replica(tmp_path: Path) -> None:
    """The master waits for two replicas in sync.  Ours is killed while clients send; the logs are equal, nothing is missing."""
    with RealBroker(tmp_path / "master", tmp_path / "broker", **SIZES, **SYNC) as broker:
        broker.ask("topic", topic="flood", queues=QUEUES)
        child = start_replica(broker.port, tmp_path / "replica")
        broker.clients.tell("flood", topic="flood", count=REPLICATED, queues=QUEUES, ahead=500)
        try:
            for _ in range(KILLS):
                time.sleep(2)
                child.kill()
                child.wait()
                child = start_replica(broker.port, tmp_path / "replica")
            broker.clients.answer()
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
        found = [int(message.body) for queue_id in range(QUEUES) for message in store.read("flood", queue_id)]
    assert sorted(found) == list(range(REPLICATED))
    assert not verify_store(str(tmp_path / "replica"), CONFIG).problems


def test_a_real_master_that_was_killed_is_followed_again_and_one_that_was_replaced_is_not(tmp_path: Path) -> None:
    """After its restart the replica goes on; another folder behind the same port is refused."""
    with RealBroker(tmp_path / "master", tmp_path / "broker", **SIZES) as broker:
        broker.ask("topic", topic="flood", queues=QUEUES)
        port = broker.port
        broker.ask("flood", topic="flood", count=1000, queues=QUEUES, ahead=100)
        replica = Replica("127.0.0.1", port, tmp_path / "replica", from_start=True)
        with replica:
            until(lambda: replica.status.master_end > 0 and replica.status.lag_bytes == 0, "all is replicated")
            broker.kill()
            broker.end()
            with RealBroker(tmp_path / "master", tmp_path / "again", port=port, **SIZES) as again:
                again.ask("flood", topic="flood", count=1000, queues=QUEUES, ahead=100)
                until(lambda: replica.status.connections >= 2 and replica.status.lag_bytes == 0, "the replica goes on")
                until(lambda: len(replica.store.query("flood", "flood-999")) == 2, "the second flood has arrived")
    with (
        RealBroker(tmp_path / "other", tmp_path / "broker-2", port=port, **SIZES) as other,
        Replica("127.0.0.1", other.port, tmp_path / "replica") as replica,
        pytest.raises(MasterDiffers),
    ):
        replica.wait(1 << 40, 60)


def test_a_real_slave_has_the_log_of_our_master(tmp_path: Path) -> None:
    """It is killed and started again meanwhile, and its own broker serves what it got."""
    slave = {"brokerRole": "SLAVE", "brokerId": 1}
    with MessageStore.open(tmp_path / "ours", "a", CONFIG) as store, HaMaster(store) as master:
        store.create_topic("T", 2)
        for part in range(2):
            with RealBroker(tmp_path / "slave", tmp_path / f"slave-{part}", **SIZES, **slave) as real:
                master.invite("127.0.0.1", real.port)
                for number in range(2000):
                    store.put(Message("T", b"%d" % number, queue_id=number % 2, keys=[f"{part}-{number}"]))
                end = store.log_end
                until(lambda end=end: [one.reported for one in master.slaves] == [end], "the slave has everything")  # type: ignore[misc]
                real.kill()
    assert log_of(tmp_path / "slave", end) == log_of(tmp_path / "ours", end)
