"""The `config/` folder of a real broker: read completely, changed, and read by the broker again."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore, StoreConfig
from messagestore.broker.config.config_files import ConfigFile
from messagestore.broker.config.consumer_offsets import ConsumerOffsets
from messagestore.broker.config.delay_offsets import DelayOffsets
from messagestore.broker.config.subscription_groups import SubscriptionGroups
from messagestore.broker.config.topics import Topics
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK

from .folders import SIZES
from .jvm import prepare_or_skip, why_not
from .real_broker import RealBroker, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
QUICK_LEVELS = "1s 1s 1s 1s 1s 1s 10m 10m 10m 10m 10m 10m 10m 10m 10m 20m 1h 2h"  # the first retry has level 3, normally 10 s
SETTINGS: dict[str, Any] = SIZES | {"enablePropertyFilter": True, "messageDelayLevel": QUICK_LEVELS}
CONFIG = StoreConfig(max_hash_slot_num=SIZES["maxHashSlotNum"], message_delay_level=QUICK_LEVELS)
QUEUES, EACH = 4, 12
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


def bodies(found: list[dict[str, Any]]) -> list[str]:
    return [base64.b64decode(one["body"]).decode() for one in found]


def text(topic: str, number: int, queue_id: int, **more: Any) -> dict[str, Any]:
    body = base64.b64encode(b"%s %d" % (topic.encode(), number)).decode()
    return {"topic": topic, "queue_id": queue_id, "body": body, "properties": {"n": str(number)}} | more


class Configured:
    """A folder from a broker with every kind of configuration, and what that broker reported before it stopped."""

    def __init__(self, folder: Path) -> None:
        self.store = folder
        self.config = str(folder / "config")
        self.topics: dict[str, Any] = {}
        self.groups: dict[str, Any] = {}
        self.offsets: dict[tuple[str, str], dict[str, int]] = {}


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configured]:
    prepare_or_skip()
    root = tmp_path_factory.mktemp("configured")
    made = Configured(root / "store")
    with RealBroker(made.store, root / "broker", **SETTINGS) as broker:
        make_topics_and_groups(broker)
        consume(broker)
        for topic, group in (("wide", "G_part"), ("wide", "G_sql"), ("failing", "G_fail"), ("%RETRY%G_fail", "G_fail")):
            made.offsets[topic, group] = broker.invoke("offsets", topic=topic, group=group)
        made.topics, made.groups = broker.invoke("topics"), broker.invoke("groups")
        broker.stop()
    yield made
    shutil.rmtree(root)


def make_topics_and_groups(broker: RealBroker) -> None:
    broker.invoke("topic", topic="wide", queues=QUEUES, attributes={"+message.type": "NORMAL"})
    broker.invoke("topic", topic="read-only", queues=1, perm=4)
    for topic in ("failing", "later", "gone"):
        broker.invoke("topic", topic=topic, queues=1)
    broker.invoke(
        "group", group={"groupName": "G_part", "retryMaxTimes": 7, "retryQueueNums": 2, "consumeMessageOrderly": True}
    )
    broker.invoke("group", group={"groupName": "G_off", "consumeEnable": False, "attributes": {}})
    messages = [text("wide", number, number % QUEUES, tags="t") for number in range(QUEUES * EACH)]
    messages += [text("failing", number, 0) for number in range(2)] + [text("gone", number, 0) for number in range(3)]
    messages += [text("later", number, 0, delay=1 if number < 3 else 18) for number in range(5)]
    broker.invoke("send", messages=messages)
    broker.invoke("delete_topic", topic="gone")


def consume(broker: RealBroker) -> None:
    """Consume with one group partly, with one filtered by property, and with one that fails until its messages are dead."""
    for queue_id, offset in ((0, 5), (2, EACH)):
        broker.invoke("commit", topic="wide", group="G_part", queue_id=queue_id, offset=offset)
    found = broker.invoke("subscribe", topic="wide", group="G_sql", sql="n > 5", count=QUEUES * EACH - 6, patience_ms=60_000)
    assert len(found) == QUEUES * EACH - 6
    tries = broker.invoke(
        "subscribe", topic="failing", group="G_fail", count=6, patience_ms=60_000, failures=99, count_failures=True, max_tries=2
    )
    assert sorted((one["reconsume_times"], body) for one, body in zip(tries, bodies(tries), strict=True)) == [
        (number, f"failing {message}") for number in range(3) for message in range(2)
    ]
    until(lambda: len(broker.invoke("read", topic="later")) == 3, "delayed messages are delivered")
    until(lambda: len(broker.invoke("read", topic="%DLQ%G_fail")) == 2, "dead letters are there")


def test_topics_of_a_real_broker_are_read_whole(configured: Configured) -> None:
    """Queues, permissions and attributes equal the broker's report; a deleted topic is gone."""
    ours = Topics(REAL_DISK, configured.config)
    assert ours.names() == sorted(configured.topics) and "gone" not in ours and "%DLQ%G_fail" in ours
    for name, reported in configured.topics.items():
        topic = ours.get(name)
        assert topic is not None
        assert (topic.read_queues, topic.write_queues, topic.perm) == (
            reported["readQueueNums"],
            reported["writeQueueNums"],
            reported["perm"],
        )
        assert (topic.is_ordered, topic.sys_flag, topic.attributes) == (
            reported["order"],
            reported["topicSysFlag"],
            reported["attributes"],
        )
    wide = ours.get("wide")
    assert wide is not None and (wide.read_queues, wide.attributes) == (QUEUES, {"message.type": "NORMAL"})


def test_groups_of_a_real_broker_are_read_whole(configured: Configured) -> None:
    """Groups of an admin, with every setting, and groups that clients created are the same."""
    ours = SubscriptionGroups(REAL_DISK, configured.config)
    assert ours.names() == sorted(configured.groups)
    for name, reported in configured.groups.items():
        group = ours.get(name)
        assert group is not None
        assert (group.is_enabled, group.is_ordered) == (reported["consumeEnable"], reported["consumeMessageOrderly"])
        assert (group.retry_max_times, group.retry_queues) == (reported["retryMaxTimes"], reported["retryQueueNums"])
        assert group.retry_policy == {key: value for key, value in reported["groupRetryPolicy"].items() if value is not None}
    part, off = ours.get("G_part"), ours.get("G_off")
    assert part is not None and (part.retry_max_times, part.retry_queues, part.is_ordered) == (7, 2, True)
    assert off is not None and not off.is_enabled


def test_offsets_of_a_real_broker_are_read_whole(configured: Configured) -> None:
    """Consumer offsets and delay offsets equal the broker's; a queue without a commit has none."""
    ours = ConsumerOffsets(REAL_DISK, configured.config)
    assert ours.offsets_of("wide", "G_part") == {0: 5, 2: EACH}
    assert ours.offsets_of("wide", "G_sql") == dict.fromkeys(range(QUEUES), EACH)
    for (topic, group), reported in configured.offsets.items():
        found = ours.offsets_of(topic, group)
        assert {int(queue_id): max(0, offset) for queue_id, offset in reported.items()} == dict.fromkeys(
            map(int, reported), 0
        ) | found
    levels = DelayOffsets(REAL_DISK, configured.config)
    with MessageStore.open(configured.store, "r", CONFIG) as store:
        for level in (1, 3, 4):  # level 1 has delayed messages; levels 3 and 4 have retries
            assert levels.get(level) == store.max_offset(SCHEDULE, level - 1) > 0
        assert (levels.get(18), store.max_offset(SCHEDULE, 17)) == (0, 2)


def test_filters_of_a_real_broker_are_read_whole(configured: Configured) -> None:
    """The document keeps parts that no table of ours knows."""
    file = ConfigFile(REAL_DISK, configured.config + "/consumerFilter.json")
    data = file.load().document["filterDataByTopic"]["wide"]["groupFilterData"]["G_sql"]
    assert (data["expression"], data["expressionType"], data["consumerGroup"]) == ("n > 5", "SQL92", "G_sql")


def test_a_real_broker_folder_is_intact_and_a_rebuild_does_not_restore_a_deleted_topic(
    configured: Configured, tmp_path: Path
) -> None:
    """The log still has its records, but topics.json does not name it."""
    assert not verify_store(str(configured.store), CONFIG).problems
    folder = tmp_path / "store"
    shutil.copytree(configured.store, folder)
    rebuild_store(str(folder), config=CONFIG)
    with MessageStore.open(configured.store, "r", CONFIG) as before, MessageStore.open(folder, "r", CONFIG) as after:
        assert after.topics() == before.topics() and "gone" not in after.topics()
        for topic in after.topics():
            for queue_id in before.queue_ids(topic):
                units = [[one.physical_offset for one in store.read(topic, queue_id)] for store in (before, after)]
                assert units[0] == units[1], topic


@pytest.fixture(scope="module")
def changed(configured: Configured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBroker]:
    """Run a broker on a copy of the folder in which every table was changed."""
    root = tmp_path_factory.mktemp("changed")
    shutil.copytree(configured.store, root / "store")
    config = str(root / "store" / "config")
    topics = Topics(REAL_DISK, config)
    wide = topics.get("wide")
    assert wide is not None
    topics.put(wide.but(read_queues=QUEUES + 2, write_queues=QUEUES + 2, attributes={}))
    topics.create("made-by-us", 3)
    topics.delete("read-only")
    topics.persist()
    groups = SubscriptionGroups(REAL_DISK, config)
    groups.create("G_part", retry_max_times=2, is_ordered=False)
    groups.create("G_new", consume_timeout_minutes=3)
    groups.delete("G_off")
    groups.persist()
    offsets = ConsumerOffsets(REAL_DISK, config)
    offsets.commit("wide", "G_part", 0, 9)
    offsets.commit("wide", "G_new", 1, 4)
    offsets.delete_group("G_fail")
    offsets.persist()
    levels = DelayOffsets(REAL_DISK, config)
    levels.set(1, levels.get(1) - 1)
    levels.persist()
    filters = ConfigFile(REAL_DISK, config + "/consumerFilter.json")
    document = filters.load().document
    document["filterDataByTopic"]["wide"]["groupFilterData"]["G_sql"]["expression"] = "n > 7"
    filters.save(document)
    with RealBroker(root / "store", root / "broker", **SETTINGS) as broker:
        yield broker
    shutil.rmtree(root)


def test_a_real_broker_has_the_topics_that_we_changed(changed: RealBroker) -> None:
    """One topic has more queues, one is new, one is gone; a real producer uses the new queues."""
    topics = changed.invoke("topics")
    assert (topics["wide"]["readQueueNums"], topics["wide"]["attributes"]) == (QUEUES + 2, {})
    assert topics["made-by-us"]["writeQueueNums"] == 3 and "read-only" not in topics
    messages = [text("wide", 1000, QUEUES + 1), text("made-by-us", 0, 2)]
    assert [(status, queue) for status, _, _, queue, _ in changed.invoke("send", messages=messages)] == [
        ("SEND_OK", QUEUES + 1),
        ("SEND_OK", 2),
    ]
    assert bodies(changed.invoke("read", topic="made-by-us")) == ["made-by-us 0"]


def test_a_real_broker_has_the_groups_that_we_changed(changed: RealBroker) -> None:
    """Changed and unchanged settings, a new group and a deleted one are as written."""
    groups = changed.invoke("groups")
    assert (groups["G_part"]["retryMaxTimes"], groups["G_part"]["retryQueueNums"]) == (2, 2)
    assert not groups["G_part"]["consumeMessageOrderly"]
    assert groups["G_new"]["consumeTimeoutMinute"] == 3 and "G_off" not in groups


def test_a_real_consumer_continues_at_the_committed_offset(changed: RealBroker) -> None:
    """It uses our offset, the broker's earlier one, and 0 for queues without one."""
    offsets = changed.invoke("offsets", topic="wide", group="G_part")
    assert (offsets["0"], offsets["2"]) == (9, EACH)
    assert changed.invoke("offsets", topic="wide", group="G_new")["1"] == 4
    changed.invoke("commit", topic="wide", group="G_part", queue_id=QUEUES + 1, offset=0)
    expected = {(0, offset) for offset in range(9, EACH)} | {(queue, offset) for queue in (1, 3) for offset in range(EACH)}
    expected |= {
        (one["queue_id"], one["queue_offset"]) for one in changed.invoke("read", topic="wide") if one["queue_id"] >= QUEUES
    }
    found = changed.invoke("subscribe", topic="wide", group="G_part", count=len(expected), patience_ms=60_000)
    assert {(one["queue_id"], one["queue_offset"]) for one in found} == expected


def test_a_real_broker_delivers_again_from_the_delay_offset_that_we_set(changed: RealBroker) -> None:
    """One step back delivers one message again."""
    until(lambda: len(changed.invoke("read", topic="later")) >= 4, "the last delayed message is delivered again")
    found = bodies(changed.invoke("read", topic="later"))
    assert found[:3] == ["later 0", "later 1", "later 2"] and found[3:] == ["later 2"]


def test_a_real_broker_keeps_the_filter_that_we_changed(changed: RealBroker) -> None:
    """The broker reads the filter at its start and writes it again."""
    path = changed.store / "config" / "consumerFilter.json"
    since = changed.conf.stat().st_mtime_ns
    until(lambda: path.exists() and path.stat().st_mtime_ns > since, "the broker writes its filters down")
    until(lambda: bool(ConfigFile(REAL_DISK, str(path)).load().document), "the file is whole")
    data = ConfigFile(REAL_DISK, str(path)).load().document["filterDataByTopic"]["wide"]["groupFilterData"]["G_sql"]
    assert data["expression"] == "n > 7"
