"""A real broker on a copy, and on folders whose damaged configuration `recover` repaired."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from commitlog.topic_names import SCHEDULE_TOPIC
from messagestore import MessageStore
from messagestore.broker.config.delay_offsets import DelayOffsets
from messagestore.repair.recover import Recovery
from messagestore.repair.verification import verify_store
from messagestore.timers.layout import LOG_FILE_SIZE
from messagestore.timers.timer_log import TimerLog
from storageio import REAL_DISK
from tests.archives import unpack
from tests.brokerstore.tool import run
from tests.cases import unpack_case

from .jvm import prepare_or_skip
from .real_broker import RealBroker, until

YEARS = Path(__file__).parents[2] / "data" / "years"
BOTH = ("topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json", "consumerFilter.json")


def depths(store: Path) -> dict[str, int]:
    """Return the number of messages by topic of users."""
    with MessageStore.open(store, "r") as opened:
        return {
            topic: sum(opened.max_offset(topic, queue_id) for queue_id in opened.queue_ids(topic))
            for topic in opened.topics()
            if topic.startswith(("Live", "Mix"))
        }


def settings(store: Path) -> dict[str, Any]:
    """Return the settings of a broker that has the sizes of the folder."""
    with MessageStore.open(store, "r") as opened:
        config = opened.config
        return {
            "mappedFileSizeCommitLog": opened.engine.log.file_size_bytes,
            "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
            "maxHashSlotNum": config.max_hash_slot_num,
            "maxIndexNum": config.max_index_num,
            "mappedFileSizeTimerLog": TimerLog(REAL_DISK, str(store)).file_size_bytes or LOG_FILE_SIZE,
        }


def waiting(store: Path) -> int:
    """Return how many delayed messages and timers the broker of a folder has yet to deliver."""
    levels = DelayOffsets(REAL_DISK, str(store / "config")).levels()
    listed = run("ls", store, "--json").json
    delayed = {row["queue_id"] + 1: row["max_offset"] for row in listed["queues"] if row["topic"] == SCHEDULE_TOPIC}
    timers = sum(row["timers"] for row in listed.get("timers") or [])
    return timers + sum(end - levels.get(level, 0) for level, end in delayed.items())


@pytest.mark.parametrize("name", ["broker-live", "dledger551", "rocksqueues551", "rocksdbstore551"])
def test_a_broker_on_a_copy_delivers_nothing_again(fixture_store: Any, tmp_path: Path, name: str) -> None:
    """Delayed messages and timers that were delivered before stay delivered, wherever the source counts them."""
    prepare_or_skip()
    if name == "broker-live":
        source = fixture_store(name).store
    else:
        unpack(YEARS / f"{name}.tar.xz", tmp_path)
        source = tmp_path / name / "store"
    copy = tmp_path / "copy"
    assert run("copy", source, "--to", copy, "--all").code == 0
    overdue = waiting(source)  # all are due since 2026-11-26
    assert waiting(copy) == overdue
    before = depths(copy)
    with RealBroker(copy, tmp_path / "broker", **settings(copy)) as broker:
        until(lambda: sum(depths(copy).values()) >= sum(before.values()) + overdue, "all are delivered")
        time.sleep(5)  # for what must not come
        broker.kill()
    after = depths(copy)
    assert sum(after.values()) == sum(before.values()) + overdue, {
        topic: (before.get(topic), count) for topic, count in after.items() if before.get(topic) != count
    }


@pytest.mark.parametrize("damage", [lambda data: bytes(len(data)), lambda _data: b"", lambda data: data[: len(data) // 2]])
@pytest.mark.parametrize("name", BOTH)
def test_a_broker_starts_after_recover_repaired_its_config(
    fixture_store: Any, tmp_path: Path, name: str, damage: Any
) -> None:  # fmt: skip
    """Both copies of a file are damaged; it starts, and reads what `dump` lists."""
    prepare_or_skip()
    store = tmp_path / "store"
    shutil.copytree(fixture_store("broker-live").store, store)
    for path in (store / "config" / name, store / "config" / f"{name}.bak"):
        path.write_bytes(damage((store / "config" / name).read_bytes()))
    assert not verify_store(str(store)).is_ok
    Recovery(str(store)).apply()
    assert verify_store(str(store)).is_ok
    expected = depths(store)
    with RealBroker(store, tmp_path / "broker", **settings(store)) as broker:
        assert len(broker.invoke("read", topic="LiveNormal", brief=True)) == expected["LiveNormal"]
        broker.kill()


def test_a_broker_restores_the_topics_from_a_log_alone(tmp_path: Path) -> None:
    """`recover` makes the topic table from the log."""
    prepare_or_skip()
    store = unpack_case("only-the-commitlog", tmp_path).folder
    Recovery(str(store)).apply()
    expected = depths(store)
    with RealBroker(store, tmp_path / "broker", **settings(store)) as broker:
        for topic in ("LiveNormal", "LiveOrder", "LiveTran"):
            assert len(broker.invoke("read", topic=topic, brief=True)) == expected[topic]
        broker.kill()
    assert depths(store)["LiveOrder"] == expected["LiveOrder"]
