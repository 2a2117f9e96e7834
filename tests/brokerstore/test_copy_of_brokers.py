"""`copy --all` of brokers' folders: everything by which a broker on the copy knows what was delivered and read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from commitlog.topic_names import HALF_TOPIC, OP_TOPIC
from messagestore import MessageStore
from messagestore.broker.config.config_files import ConfigFile
from messagestore.broker.config.consumer_offsets import ConsumerOffsets
from messagestore.broker.config.delay_offsets import DelayOffsets
from messagestore.broker.config.subscription_groups import SubscriptionGroups
from messagestore.rocksdb.database import can_read
from messagestore.timers.layout import TIMER_TOPIC
from storageio import REAL_DISK
from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.processes import running
from tests.storageio.test_lock_probe import HOLDER
from tests.stores import small_config

YEARS = Path(__file__).parents[1] / "data" / "years"


def table(store: Path, name: str) -> dict[Any, Any]:
    """Return a file of `config/` without its version."""
    document = ConfigFile(REAL_DISK, str(store / "config" / name)).load().document
    return {key: value for key, value in document.items() if key != "dataVersion"}


@pytest.mark.skipif(not can_read(), reason="rocksdict is not installed")
@pytest.mark.parametrize("name", ["rocksqueues551", "rocksqueues533-lmq"])
@pytest.mark.parametrize("is_log_elsewhere", [False, True], ids=["with-its-log", "log-elsewhere"])
def test_a_store_with_queues_in_rocksdb_is_copied_with_its_progress(
    tmp_path: Path, name: str, is_log_elsewhere: bool
) -> None:  # fmt: skip
    """Queues, timers, topics and offsets of the copy are those that the source lists from RocksDB."""
    unpack(YEARS / f"{name}.tar.xz", tmp_path)
    old, new = tmp_path / name / "store", tmp_path / "new"
    options: list[Any] = []
    if is_log_elsewhere:
        (old / "commitlog").rename(tmp_path / "log")
        options = ["--commitlog", tmp_path / "log"]
    assert run("copy", old, "--to", new, "--all", *options).code == 0
    assert (run("verify", new).code, run("verify", old, *options).code) == (0, 0)
    for command in (("ls", "--json"), ("offsets", "show", "--json")):
        before, after = run(*command, old, *options).json, run(*command, new).json
        for key in ("queues", "timers", "offsets"):
            assert (after.get(key) or []) == (before.get(key) or [])
    with MessageStore.open(new, "r+") as store:
        assert store.put(Message("MixPlain", b"x", queue_id=0)).queue_offset > 0


def test_compacted_files_are_copied_with_their_topic(fixture_store: Any, tmp_path: Path) -> None:
    """Consumers get these files alone, which may have messages whose records have left the log."""
    old = fixture_store("broker-compaction").store
    for options, is_copied in ((["--all"], True), (["--topic", "Compacted"], True), (["--topic", "Plain"], False)):
        new = tmp_path / options[-1]
        assert run("copy", old, "--to", new, *options).code == 0
        for name in ("compactionLog/Compacted/0", "compactionCq/Compacted/0"):
            files = {path.name: path.read_bytes() for path in (old / "compaction" / name).iterdir() if path.is_file()}
            found = {path.name: path.read_bytes() for path in (new / "compaction" / name).glob("*")}
            assert files and found == (files if is_copied else {})
        position = new / "compaction" / "position-checkpoint"
        before = json.loads((old / "compaction" / "position-checkpoint").read_text())["queueOffsetMap"]
        assert not position.exists() if not is_copied else json.loads(position.read_text())["queueOffsetMap"] == before
        assert run("verify", new).code == 0


def test_compacted_files_of_a_running_broker_are_reported_as_not_copied(fixture_store: Any, tmp_path: Path) -> None:
    """It replaces them at any time; on the copy, a broker makes them again from the log."""
    old, new = fixture_store("broker-compaction", own=True).store, tmp_path / "new"
    with running([sys.executable, "-c", HOLDER, old / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None and broker.stdout.readline() == b"held\n"
        ran = run("copy", old, "--to", new, "--all")
        assert (ran.code, "not copied: compacted files" in ran.talk) == (0, True)
    assert not (new / "compaction" / "compactionLog").exists()


def test_the_copied_timer_log_has_the_size_that_the_broker_is_configured_with(tmp_path: Path) -> None:
    """A broker does not start on timer log files of another size."""
    unpack(YEARS / "rocket551.tar.xz", tmp_path)
    old = tmp_path / "rocket551" / "store"
    assert run("copy", old, "--to", tmp_path / "new", "--all").code == 0
    sizes = [{path.stat().st_size for path in (store / "timerlog").iterdir()} for store in (old, tmp_path / "new")]
    assert sizes == [{52_000}, {52_000}]


def test_tables_of_consumers_are_copied_with_all(fixture_store: Any, tmp_path: Path) -> None:
    """Offsets of broadcasting groups, SQL filters, modes, ordered POP state, and groups that never read."""
    for name in ("broker-live", "broker-pop"):
        old, new = fixture_store(name, own=True).store, tmp_path / name
        order = {"table": {"LiveOrder@G_order": {"0": {"o": [3], "i": 60000}}, "Gone@G_order": {"0": {"o": [1]}}}}
        (old / "config" / "consumerOrderInfo.json").write_text(json.dumps(order))
        groups = SubscriptionGroups(REAL_DISK, str(old / "config"))
        document = groups.document()
        groups.replace(document | {"forbiddenTable": {"G_part": {"LiveNormal": 1}}})
        groups.create("G_never")
        groups.persist()
        assert run("copy", old, "--to", new, "--all").code == 0
        assert table(new, "consumerOffset.json") == table(old, "consumerOffset.json")
        assert table(new, "subscriptionGroup.json").keys() == table(old, "subscriptionGroup.json").keys()
        for member, value in table(old, "subscriptionGroup.json").items():
            kept = {key: one for key, one in value.items() if member != "forbiddenTable" or name == "broker-live"}
            assert table(new, "subscriptionGroup.json")[member] == kept
        for file in ("consumerFilter.json", "messageRequestMode.json"):
            assert [one for one in table(new, file).values() if one] == [one for one in table(old, file).values() if one]
        kept = {key: one for key, one in order["table"].items() if name == "broker-live" and key.startswith("Live")}
        assert table(new, "consumerOrderInfo.json").get("table", {}) == kept
        assert run("verify", new).code == 0


WAITING = {  # by option of what lies where, and in the manifest's own queues
    "MixDelay": ("delayed", "SCHEDULE_TOPIC_XXXX", 4),  # of its 8, those of level 16 waited when the broker ended
    "MixTimer": ("timers", TIMER_TOPIC, 4),  # of its 8, those that were due after the end
    "MixTran": ("transactions", HALF_TOPIC, 3),  # every third of its 9 was never decided
}


@pytest.mark.parametrize("name", ["rocket551", "rocksdbstore551", "rocksqueues551"])
def test_what_waits_in_topics_of_the_broker_is_counted_as_not_copied(tmp_path: Path, name: str) -> None:
    """By the topic that it is for, of queues and timers in files or in RocksDB; a copy of all leaves nothing behind."""
    if name != "rocket551" and not can_read():
        pytest.skip("rocksdict is not installed")
    unpack(YEARS / f"{name}.tar.xz", tmp_path)
    old = tmp_path / name / "store"
    nothing = dict.fromkeys(("delayed", "timers", "transactions", "unacknowledged"), 0)
    for topic, (what, own, count) in WAITING.items():
        ran = run("copy", old, "--to", tmp_path / topic, "--topic", topic, "--json")
        assert (ran.code, ran.json["not_copied"]) == (0, nothing | {what: count})
        assert ran.talk == (f"brokerstore: run: brokerstore copy {old} --to OTHER_DIR --all  (copies that as well)\n")
        with_own = run("copy", old, "--to", tmp_path / f"own-{topic}", "--topic", topic, "--topic", own, "--json")
        assert (with_own.json["not_copied"], with_own.talk) == (nothing, "")
    every = run("copy", old, "--to", tmp_path / "all", "--all", "--json")
    assert (every.json["not_copied"], every.talk) == (nothing, "")
    assert run("copy", tmp_path / "all", "--to", tmp_path / "again", "--topic", "MixDelay", "--json").json["not_copied"] == (
        nothing | {"delayed": 4}
    )


def test_a_delivery_that_a_killed_writer_did_not_count_does_not_wait(tmp_path: Path) -> None:
    """It is in the log, behind the progress in the file."""
    old = tmp_path / "old"
    clock = [1_000_000]
    with MessageStore.open(old, config=small_config(deliver_delayed=False), clock=lambda: clock[0]) as store:
        for number in range(3):
            store.put(Message("T", b"%d" % number, queue_id=0, properties={"DELAY": "1"}))
    for number in (1, 2):
        ran = run("copy", old, "--to", tmp_path / str(number), "--topic", "T", "--json")
        assert ran.json["not_copied"]["delayed"] == (3 if number == 1 else 0)
        clock[0] += 5_000
        with MessageStore.open(old, "r+", config=small_config(), clock=lambda: clock[0]) as store:
            store.engine.deliver_due()
        (old / "config" / "delayOffset.json").unlink(missing_ok=True)
        (old / "config" / "delayOffset.json.bak").unlink(missing_ok=True)


def test_messages_in_the_hands_of_pop_consumers_are_counted_as_not_copied(fixture_store: Any, tmp_path: Path) -> None:
    """They are in topics that the command does not name."""
    old = fixture_store("broker-pop").store
    listed = run("ls", old, "--json").json
    row = max(listed["pop"], key=lambda row: row["unacknowledged"])
    own = {row["topic"] for row in listed["queues"] if row["topic"].startswith("rmq_sys_REVIVE")} | {TIMER_TOPIC}
    with_own = ["--all"], [part for topic in (row["topic"], *own) for part in ("--topic", topic)]
    for number, options in enumerate((["--topic", row["topic"]], *with_own)):
        ran = run("copy", old, "--to", tmp_path / str(number), *options)
        text = f"Not copied: {row['unacknowledged']} unacknowledged message"
        assert (text in ran.out, "copy" in ran.talk) == (number == 0, number == 0), ran


def test_timers_of_topics_that_are_not_copied_stay_delivered(fixture_store: Any, tmp_path: Path) -> None:
    """Their deliveries are not in the copied log; a topic may have been deleted since."""
    old, new = fixture_store("broker-live").store, tmp_path / "new"
    assert run("copy", old, "--to", new, "--topic", TIMER_TOPIC).code == 0
    timers = [run("verify", folder, "--json").json["timers"][0]["timers"] for folder in (old, new)]
    assert timers[1] == timers[0]


def test_a_committed_message_names_its_half_message_in_the_copy(tmp_path: Path) -> None:
    """Records move if others are left out; a killed program is recognised as having committed by this offset."""
    old, new = tmp_path / "old", tmp_path / "new"
    with MessageStore.open(old, config=small_config()) as store:
        store.put(Message("other", b"not copied"))
        store.begin_transaction(Message("T", b"open"))
        store.begin_transaction(Message("T", b"done")).commit()
    copied = [part for topic in ("T", HALF_TOPIC, OP_TOPIC) for part in ("--topic", topic)]
    assert run("copy", old, "--to", new, *copied).code == 0
    with MessageStore.open(new, "r") as store:
        [committed] = [one for queue in store.queue_ids("T") for one in store.read("T", queue)]
        half = store.message_at(committed.prepared_transaction_offset)
        assert half is not None and (half.topic, half.body) == (HALF_TOPIC, b"done")


def test_progress_is_that_of_the_moment_when_the_copy_begins(tmp_path: Path) -> None:
    """What a writer delivers, reads and counts during the copy is behind the end of the copied log: it would be lost."""
    old, new = tmp_path / "old", tmp_path / "new"
    with MessageStore.open(old, config=small_config(deliver_delayed=False)) as store:
        for number in range(3):
            store.put(Message("T", b"%d" % number, queue_id=0, properties={"DELAY": "1"}))
        store.put(Message("T", b"now", queue_id=0))

        def deliver(_count: int) -> None:
            offsets = DelayOffsets(REAL_DISK, str(old / "config"))
            offsets.set(1, 3)
            offsets.persist()
            store.engine.consumer_offsets().commit("T", "g", 0, 1)

        store.copy_topics(new, progress=deliver)
    assert DelayOffsets(REAL_DISK, str(new / "config")).levels() == {}
    assert ConsumerOffsets(REAL_DISK, str(new / "config")).groups() == []
