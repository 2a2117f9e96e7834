"""A replica's folder becomes a store of its own: topics, delayed messages and settings."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from brokerstore.tool import main
from commitlog import Message
from messagestore import MessageStore, Role
from messagestore.repair.verification import verify_store
from rocketlink import BrokerServer, Replica, promote
from storageio import StoreLocked
from tests.brokerstore.schema import check_schema
from tests.helpers import until
from tests.rocketlink.test_replica import CONFIG, bodies, put

pytestmark = pytest.mark.deep  # each test starts a master and a replica

DELAYED = 1  # a level: a second


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a replica of a lost master: a topic is newer than its tables, and one of two delayed messages was delivered."""
    with MessageStore.open(tmp_path / "m", "a", CONFIG) as store, BrokerServer(store) as server:
        store.create_topic("T", 4)
        put(store, 5)
        replica = Replica("127.0.0.1", server.port, tmp_path / "s", from_start=True, metadata_every_s=1000)
        until(lambda: "T" in replica.store.engine.topics)
        until(lambda: replica._fetcher._thread is not None and replica.status.is_connected)
        time.sleep(0.3)  # the first round of tables is over
        put(store, 6, "late")
        store.create_topic("sparse", 8)
        store.put(Message("sparse", b"x", queue_id=5))
        store.put(Message("T", b"delayed", queue_id=0, delay_level=DELAYED))
        until(lambda: b"delayed" in bodies(store))
        store.put(Message("T", b"pending", queue_id=0, delay_level=5))
        assert replica.wait(store.log_end, 20)
        replica._is_connected = False  # so that closing fetches nothing
        replica._follower.stop()
        replica.close()
    return tmp_path / "s"


@pytest.mark.deep
def test_a_promoted_store_has_all_topics_and_delivers_nothing_twice(folder: Path) -> None:
    """It continues where the master stopped, by the log alone."""
    with MessageStore.open(folder, "r") as store:
        assert "late" not in store.engine.topics
        end = store.log_end
    found = promote(folder)
    assert (found.log_end, found.missing_topics) == (end, {"late": 2, "sparse": 6})
    assert not (folder / "abort").exists()
    assert not verify_store(str(folder)).problems
    with MessageStore.open(folder, "r") as store:
        assert store.log_end == end  # nothing was delivered by it
        assert store.engine.topics.get("late").write_queues == 2  # type: ignore[union-attr]
    assert f'"offsetTable":{{{DELAYED}:1' in (folder / "config" / "delayOffset.json").read_text()
    with MessageStore.open(folder, "a") as store:
        put(store, 2, "late")
        time.sleep(1.5)
        assert bodies(store).count(b"delayed") == 1
        assert len(bodies(store, "late")) == 8


def test_no_delayed_message_is_delivered_by_a_promotion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is due waits until the store is opened as a master, however long the repair takes."""
    hour_ago_ms = int(time.time() * 1000) - 3_600_000
    with MessageStore.open(tmp_path / "s", "a", CONFIG.but(deliver_delayed=False), clock=lambda: hour_ago_ms) as store:
        store.put(Message("T", b"level", queue_id=0, delay_level=DELAYED))
        store.put(Message("T", b"timer", queue_id=0, properties={"TIMER_DELAY_SEC": "5"}))
        end = store.log_end
    closed = MessageStore.close_cleanly
    rounds = []

    def close_late(store: MessageStore) -> None:
        with store.engine.housekeeper.guard:
            rounds.append(store.engine.housekeeper._step())
        closed(store)

    monkeypatch.setattr(MessageStore, "close_cleanly", close_late)
    promote(tmp_path / "s", CONFIG)
    monkeypatch.undo()
    assert len(rounds) == 2
    with MessageStore.open(tmp_path / "s", "r") as store:
        assert store.log_end == end
    with MessageStore.open(tmp_path / "s", "a", CONFIG) as store:
        until(lambda: sorted(bodies(store)) == [b"level", b"timer"])


def test_a_replica_killed_before_it_dispatched_a_new_topic_serves_that_topic(folder: Path) -> None:
    """Its queues are built from the log, although the table does not name it."""
    with MessageStore.open(folder, "r+", CONFIG.but(broker_role=Role.SLAVE)):
        pass
    for part in ("consumequeue/late/0", "consumequeue/late/1"):
        (folder / part / f"{0:020d}").unlink()
        (folder / part).rmdir()
    (folder / "consumequeue" / "late").rmdir()
    (folder / "abort").touch()
    assert promote(folder).missing_topics == {"late": 2, "sparse": 6}
    with MessageStore.open(folder, "r") as store:
        assert bodies(store, "late") == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_the_command_shows_a_plan_and_executes_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The settings name the sizes of the files, and where the folder is."""
    before = (folder / "config" / "topics.json").read_bytes()
    assert main(["promote", str(folder), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    check_schema("promote", planned)
    assert (folder / "config" / "topics.json").read_bytes() == before
    assert main(["promote", str(folder), "--apply", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done == planned | {"applied": True}
    assert done["missing_topics"] == {"late": 2, "sparse": 6}
    settings = done["broker_settings"]
    assert settings["mappedFileSizeCommitLog"] == "16384"
    assert (settings["maxHashSlotNum"], settings["maxIndexNum"]) == ("100", "400")
    assert settings["storePathRootDir"] == str(folder)
    assert settings["storePathCommitLog"] == str(folder / "commitlog")
    assert (settings["brokerRole"], settings["brokerId"]) == ("ASYNC_MASTER", "0")


def test_a_folder_in_use_is_not_promoted(folder: Path) -> None:
    """The replica has to be stopped."""
    with MessageStore.open(folder, "r+", CONFIG.but(broker_role=Role.SLAVE)), pytest.raises(StoreLocked):
        promote(folder)
