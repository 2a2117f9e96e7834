"""Folders of a 5.5.1 broker with POP consumers, compacted topics or a controller: verified, copied, continued by a broker."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from messagestore.rocksdb.database import can_read
from storageio import UnsupportedFormat
from tests.brokerstore.tool import run
from tests.serving import free_ports

from .jvm import Jvm, prepare_or_skip, why_not
from .live import deliveries
from .programs import OURS
from .real_broker import RealBroker, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]
VERSION = "5.5.1"
SIZES = OURS | {"mappedFileSizeTimerLog": 52_000}
COMPACTING = SIZES | {
    "enableCompaction": True, "maxOffsetMapSize": 1_000_000, "compactionScheduleInternal": 2000,
    "compactionMappedFileSize": 65536, "compactionCqMappedFileSize": 2000,
}  # fmt: skip
IN_ROCKSDB = {"popConsumerKVServiceInit": True, "popConsumerKVServiceEnable": True}
MESSAGES, KEYS = 200, 20
LATER_MS = 5000  # after the first message of a test is revived, the last one is as well


@pytest.fixture(autouse=True, scope="module")
def _jars() -> None:
    prepare_or_skip(VERSION)


def sent(topic: str, queues: int, size: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic, "queue_id": number % queues, "keys": [f"k{number % KEYS}"],
            "body": base64.b64encode(b"%d" % number + b" " * (size * number % 300)).decode(),
        }
        for number in range(MESSAGES)
    ]  # fmt: skip


def rows(broker: RealBroker, topic: str) -> list[Any]:
    """Return queue id, queue offset and body of what consumers get."""
    return sorted([row[0], row[1], row[3]] for row in broker.invoke("read", topic=topic, brief=True))


def copy_of(store: Path) -> Path:
    """Verify a store, copy everything, and verify the copy."""
    copy = store.with_name("copy")
    assert run("verify", store).code == 0
    assert run("copy", store, "--to", copy, "--all").code == 0
    assert run("verify", copy).code == 0
    return copy


def test_consumers_of_a_compacted_topic_get_the_same_from_a_copy(tmp_path: Path) -> None:
    """From the first moment: a broker without these files has nothing for them until it has compacted the log again."""
    with RealBroker(tmp_path / "store", tmp_path / "broker", version=VERSION, **COMPACTING) as broker:
        broker.invoke("topic", topic="compacted", queues=1, attributes={"+cleanup.policy": "COMPACTION"})
        sends = 0

        def is_compacted() -> bool:
            nonlocal sends
            broker.invoke("send", messages=sent("compacted", 1, 1))
            sends += 1
            time.sleep(3)
            return len(rows(broker, "compacted")) < sends * MESSAGES

        until(is_compacted, "older messages of the keys are gone")
        broker.stop()
    copy = copy_of(tmp_path / "store")
    found = []
    for folder in (tmp_path / "store", copy):
        with RealBroker(folder, tmp_path / f"on-{folder.name}", version=VERSION, **COMPACTING) as broker:
            found.append(rows(broker, "compacted"))
            broker.kill()
    assert KEYS <= len(found[0]) < sends * MESSAGES and found[1] == found[0]


@pytest.mark.parametrize("ends", ["stop", "kill"])
@pytest.mark.parametrize(("version", "more"), [("5.3.3", {}), (VERSION, {}), (VERSION, IN_ROCKSDB)])
def test_messages_in_the_hands_of_pop_consumers_come_once_again_from_a_copy(
    tmp_path: Path, version: str, more: dict[str, Any], ends: str
) -> None:  # fmt: skip
    """All have failed once when the broker ends; their checkpoints and acknowledgements are overdue when the copy is made."""
    prepare_or_skip(version)
    if more and not can_read():
        pytest.skip("rocksdict is not installed")
    settings = {"group": "G", "topic": "popped", "server_rebalance": True, "invisible_ms": 30_000}
    first, again = tmp_path / "first", tmp_path / "again"
    with RealBroker(tmp_path / "store", tmp_path / "broker", version=version, **SIZES, **more) as broker:
        broker.invoke("topic", topic="popped", queues=4)
        broker.invoke("request_mode", topic="popped", group="G", mode="POP", share=4)
        broker.invoke("start_consumer", name="a", file=str(first), failures=1, retry_level=2, **settings)
        broker.invoke("send", messages=sent("popped", 4))
        until(lambda: len({one.body for one in deliveries(first)}) == MESSAGES, "each was taken")
        # until its group's offsets are in their file, a broker that ends delivers messages again by itself, also after a stop
        until(lambda: run("ls", tmp_path / "store", "--json").json["pop"][0]["ready"] == 0, "offsets are flushed")
        broker.stop() if ends == "stop" else broker.kill()
    listed = run("ls", tmp_path / "store", "--json").json
    due_ms = [row["last_due_ms"] for row in listed["timers"]] or [listed["pop"][0]["next_revive_ms"] + LATER_MS]
    until(lambda: max(due_ms) < time.time() * 1000, "all are overdue", 120)
    copy = tmp_path / "copy"
    assert run("copy", tmp_path / "store", "--to", copy, "--all").code == 0
    assert run("verify", copy).code == 0
    assert run("ls", copy, "--json").json["pop"] == listed["pop"]
    assert listed["pop"][0]["unacknowledged"] == MESSAGES or not more
    with RealBroker(copy, tmp_path / "on-copy", version=version, **SIZES, **more) as broker:
        broker.invoke("start_consumer", name="b", file=str(again), **settings)
        until(lambda: len({one.body for one in deliveries(again)}) == MESSAGES, "each comes again", 240)
        time.sleep(10)  # for what must not come
        broker.kill()
    assert sorted(one.body for one in deliveries(again)) == list(range(MESSAGES))
    assert {one.tries for one in deliveries(again)} == {1}


def test_a_copy_is_the_way_out_of_a_controllers_group(tmp_path: Path) -> None:
    """The epochs are named and not read; nothing is written there, and an ordinary broker delivers a copy."""
    (port,) = free_ports(1)
    conf = tmp_path / "controller.conf"
    conf.write_text(
        f"controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerDLegerSelfId=n0\n"
        f"controllerStorePath={tmp_path}/controller\n"
    )
    scratch = tmp_path / "controller-jvm"
    scratch.mkdir()
    main = "org.apache.rocketmq.controller.ControllerStartup"
    controller = Jvm(main, ["-c", str(conf)], scratch / "stderr", version=VERSION)
    try:
        ruled = {"enableControllerMode": True, "controllerAddr": f"127.0.0.1:{port}", "brokerRole": "SLAVE"}
        with RealBroker(tmp_path / "store", tmp_path / "broker", version=VERSION, **SIZES, **ruled) as broker:
            until((tmp_path / "store" / "epochFileCheckpoint").exists, "it is elected")
            broker.invoke("topic", topic="T", queues=2)
            assert {result[0] for result in broker.invoke("send", messages=sent("T", 2, 1))} == {"SEND_OK"}
            delivered = rows(broker, "T")
            broker.stop()
    finally:
        controller.end()
    assert "epochFileCheckpoint" in run("verify", tmp_path / "store").out
    refused = run("put", tmp_path / "store", "T", "body")
    assert refused.code == 3 and UnsupportedFormat.__name__ in refused.talk
    copy = copy_of(tmp_path / "store")
    with RealBroker(copy, tmp_path / "on-copy", version=VERSION, **SIZES) as broker:
        assert rows(broker, "T") == delivered and len(delivered) == MESSAGES
        broker.kill()
