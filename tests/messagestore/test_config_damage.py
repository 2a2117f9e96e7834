"""Damaged and missing files of `config/`: what `verify` names, `recover` ends it, and an opening for writing logs it."""

from __future__ import annotations

import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from messagestore import MessageStore
from messagestore.broker.config.consumer_offsets import ConsumerOffsets
from messagestore.broker.config.delay_offsets import DelayOffsets
from messagestore.broker.config.topics import Topics
from messagestore.repair.recover import Recovery
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK
from tests.cases import unpack_case
from tests.stores import problem_kinds

from .support import labels

FILES = (
    "topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json", "consumerFilter.json",
    "consumerOrderInfo.json", "timermetrics", "transactionMetrics",
)  # fmt: skip
DAMAGES = {
    "zeros": lambda data: bytes(len(data)),
    "empty": lambda _data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "of another form": lambda _data: b"[1, 2]",
}


CASES = [
    pytest.param(name, damage, marks=() if number % len(DAMAGES) == position else pytest.mark.deep)
    for number, name in enumerate(FILES)
    for position, damage in enumerate(DAMAGES)
]


@pytest.fixture
def broker_store(fixture_store: Any) -> Path:
    """Return a real broker's folder, which a test may change."""
    path: Path = fixture_store("broker-live", own=True).store
    return path


def delay_offsets(store: Path) -> dict[int, int]:
    return DelayOffsets(REAL_DISK, str(store / "config")).levels()


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_recover_ends_the_damage_of_a_config_file_and_its_backup(broker_store: Path, name: str, damage: str) -> None:
    """A broker does not start on both: they are kept beside, and the table begins anew."""
    config = broker_store / "config"
    for path in (config / name, config / f"{name}.bak"):
        path.write_bytes(DAMAGES[damage]((config / name).read_bytes() or b"{"))
    damaged = (config / name).read_bytes()
    assert problem_kinds(broker_store) >= {"damaged_config"}
    plan = Recovery(str(broker_store)).apply()
    assert f"remove_config config/{name}" in labels(plan)
    assert problem_kinds(broker_store) == set() and Recovery(str(broker_store)).plan().steps == []
    assert (broker_store / "brokerstore" / f"kept-config-{name}-0").read_bytes() == damaged
    assert (broker_store / "brokerstore" / f"kept-config-{name}.bak-0").exists()


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_recover_takes_a_damaged_config_file_from_its_backup(broker_store: Path, name: str, damage: str) -> None:
    """The backup stays, and is copied byte for byte."""
    config = broker_store / "config"
    shutil.copy(config / name, config / f"{name}.bak")
    good = (config / name).read_bytes()
    (config / name).write_bytes(DAMAGES[damage](good))
    assert problem_kinds(broker_store) == {"damaged_config"}
    Recovery(str(broker_store)).apply()
    assert (config / f"{name}.bak").read_bytes() == good and problem_kinds(broker_store) == set()
    assert json.loads(json.dumps((config / name).read_text())) == good.decode()


def test_topics_are_made_again_from_the_log(broker_store: Path) -> None:
    """A broker serves no topic that its table lacks."""
    config = broker_store / "config"
    before = Topics(REAL_DISK, str(config))
    with MessageStore.open(broker_store, "r") as store:
        filled = {topic for topic in store.topics() if topic.startswith("Live") and store.max_offset(topic, 0)}
    for path in (config / "topics.json", config / "topics.json.bak"):
        path.unlink()
    assert problem_kinds(broker_store) >= {"unknown_topic"}  # and the queues of a topic that nothing shows as deleted
    Recovery(str(broker_store)).apply()
    assert problem_kinds(broker_store) == set()
    after = Topics(REAL_DISK, str(config))
    assert filled and filled <= set(after.names()) <= set(before.names()) | filled | {"LiveGone"}


def test_an_older_table_lacks_a_topic_that_has_messages(broker_store: Path) -> None:
    """Consumers get nothing of it from a broker; a topic without queues was deleted, and is not missed."""
    config = broker_store / "config"
    topics = Topics(REAL_DISK, str(config))
    assert "LiveGone" not in topics and problem_kinds(broker_store) == set()
    assert topics.delete("LiveOrder")
    topics.persist()
    assert [(one.kind, one.expected) for one in verify_store(str(broker_store)).problems] == [
        ("unknown_topic", "an entry for LiveOrder with 8 queues")
    ]
    plan = Recovery(str(broker_store)).apply()
    assert "add_topics config/topics.json" in labels(plan) and any("1 topic, " in step.reason for step in plan.steps)
    assert problem_kinds(broker_store) == set() and "LiveGone" not in Topics(REAL_DISK, str(config))


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("{1:25477423,2:2,12:33283118}", {1: 6, 2: 2, 12: 1}),
        ("{1:-5,2:2}", {2: 2}),  # the search of the log for deliveries may go further than 0
        ("{9:3,1:6}", {9: 0, 1: 6}),  # a level without a queue
    ],
)
@pytest.mark.parametrize("way", ["open", "recover"])
def test_delay_offsets_outside_their_queue_are_corrected(
    broker_store: Path, way: str, text: str, corrected: dict[int, int], caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """A level whose offset is ahead never delivers again; RocketMQ corrects it when it starts."""
    (broker_store / "config" / "delayOffset.json").write_text('{"offsetTable":' + text + "}")
    assert problem_kinds(broker_store) <= {"offset_ahead", "offset_negative"} and problem_kinds(broker_store)
    caplog.set_level(logging.WARNING, logger="brokerstore.messagestore")
    if way == "recover":
        assert any("delayOffset" in step.reason for step in Recovery(str(broker_store)).plan().steps)
        Recovery(str(broker_store)).apply()
    else:
        MessageStore.open(broker_store, "r+").close()
    assert "set back delayOffset.json" in caplog.text
    assert {level: delay_offsets(broker_store)[level] for level in corrected} == corrected
    assert problem_kinds(broker_store) == set()


def test_a_delayed_message_is_delivered_after_its_offset_was_corrected(tmp_path: Path) -> None:
    """It is put into the store of the report."""
    store = unpack_case("delay-offset-ahead", tmp_path).folder
    with MessageStore.open(store, "r+") as opened:
        before = opened.max_offset("LiveNormal", 0)
        opened.put("LiveNormal", b"late", delay_level=1, queue_id=0)
        end = time.monotonic() + 30
        while opened.max_offset("LiveNormal", 0) == before and time.monotonic() < end:
            time.sleep(0.05)
        assert [message.body for message in opened.read("LiveNormal", 0, before)] == [b"late"]


@pytest.mark.parametrize("key", ["LiveNormal@G_part", "%RETRY%G_fail@G_fail", "Deleted@G_part", "LiveNormal@G_part@client-1"])
def test_recover_clamps_consumer_offsets_after_a_clean_stop(broker_store: Path, key: str) -> None:
    """An opening leaves them: they show that more messages were there."""
    path = broker_store / "config" / "consumerOffset.json"
    table = ConsumerOffsets(REAL_DISK, str(path.parent))
    table._table.setdefault(key, {})[0] = 999_999
    table._change()
    table.persist()
    assert problem_kinds(broker_store) == {"offset_ahead"}
    MessageStore.open(broker_store, "r+").close()
    assert problem_kinds(broker_store) == {"offset_ahead"}
    Recovery(str(broker_store)).apply()
    assert problem_kinds(broker_store) == set()
    assert any(file.name.startswith("kept-config-consumerOffset") for file in (broker_store / "brokerstore").iterdir())


def test_open_logs_that_groups_start_without_offsets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The offsets and their backup are zeros, as after a power failure."""
    store = unpack_case("offsets-and-backup-zero", tmp_path).folder
    caplog.set_level(logging.WARNING, logger="brokerstore.messagestore")
    MessageStore.open(store, "r+").close()
    assert "every group starts anew" in caplog.text


def test_recover_from_the_log_alone_knows_topics_and_deliveries(tmp_path: Path) -> None:
    """The result knows the topics, and no delayed message that was delivered is delivered again."""
    case = unpack_case("only-the-commitlog", tmp_path)
    Recovery(str(case.folder)).apply()
    topics = set(Topics(REAL_DISK, str(case.folder / "config")).names())
    assert {topic for topic in case.expected["topics"] if topic.startswith(("Live", "%"))} <= topics
    assert delay_offsets(case.folder)[1] == 6 and problem_kinds(case.folder) == set()
