"""Folders with a configuration other than the one given to us or to the real store: both report it and change nothing."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import brokerstore
from commitlog import Message
from commitlog.walk import LogFiles
from messagestore import MessageStore
from messagestore.derive.kinds.rocksdb import rocksdb_findings
from messagestore.repair.rebuild_store import rebuild_store
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from messagestore.rocksdb.config import read_config
from messagestore.rocksdb.database import can_read
from storageio import REAL_DISK, InvalidMessage, StoreCorrupt, UnknownStore
from tests.faults.test_unknown_formats import records
from tests.helpers import contents

from .answers import our_messages
from .folders import LOG_SIZE, QUEUE_SIZE, SIZES, START_MS, Ticking, ours, write_mixed
from .jvm import Refused, prepare_or_skip, why_not
from .live import deliveries
from .real_broker import RealBroker, until
from .real_store import RealStores

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]


def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "brokerstore", *arguments], capture_output=True, text=True, check=False)


def test_a_real_folder_with_rocksdb_queues_is_refused_unchanged(tmp_path: Path) -> None:
    """RocksDB queues are not taken for an empty or damaged store; `test_dledger.py` has a DLedger log."""
    prepare_or_skip()
    folder = tmp_path / "store"
    with RealBroker(folder, tmp_path / "broker", **SIZES, storeType="defaultRocksDB") as broker:
        broker.invoke("topic", topic="T", queues=1)
        results = broker.invoke(
            "send", messages=[{"topic": "T", "body": "eA==", "queue_id": 0, "keys": ["k"]} for _ in range(5)]
        )
        assert [(result[0], result[4]) for result in results] == [("SEND_OK", number) for number in range(5)]
    before = contents(folder)
    for mode in ("r", "r+", "a"):
        for opening in (MessageStore.open, brokerstore.open):
            with pytest.raises(UnknownStore, match="RocksDB"):
                opening(str(folder), mode)
    reported = tool("info", "--json", str(folder))  # the log itself is readable
    assert json.loads(reported.stdout)["kind"] == "rocketmq-rocksdb" and reported.returncode == 0
    assert len(our_messages(folder, ["T"])) == 5
    assert contents(folder) == before


@pytest.mark.skipif(not can_read(), reason="rocksdict is not installed")
def test_a_broker_delivers_everything_from_rocksdb_queues_that_we_rebuilt(tmp_path: Path) -> None:
    """The broker was killed and its tables are lost. Messages, tags, keys and delays are as before; numbers go on."""
    prepare_or_skip()
    folder = tmp_path / "store"
    settings: dict[str, Any] = {**SIZES, "storeType": "defaultRocksDB"}
    sent = [
        {
            "topic": "T",
            "body": _encoded(f"body {number}"),
            "queue_id": number % 2,
            "keys": [f"k{number}"],
            "tags": f"t{number % 3}",
        }
        for number in range(300)
    ]
    with RealBroker(folder, tmp_path / "first", **settings) as broker:
        broker.invoke("topic", topic="T", queues=2)
        broker.invoke("topic", topic="Late", queues=1)
        assert {result[0] for result in broker.invoke("send", messages=sent)} == {"SEND_OK"}
        late = [{"topic": "Late", "body": _encoded(f"late {number}"), "queue_id": 0, "delay": 4} for number in range(20)]
        broker.invoke("send", messages=late)
        before = broker.invoke("read", topic="T", brief=True), broker.invoke("read", topic="T", brief=True, tags="t1")
        broker.kill()
    assert len(before[0]) == 300 and len(before[1]) == 100
    for path in (folder / "consumequeue").iterdir():
        path.unlink() if path.suffix in (".sst", ".log") else None
    made = rebuild_store(str(folder))
    assert (made.queues, made.units) == (3, 320)
    with RealBroker(folder, tmp_path / "second", **settings) as broker:
        assert before == (broker.invoke("read", topic="T", brief=True), broker.invoke("read", topic="T", brief=True, tags="t1"))
        assert len(broker.invoke("query", requested=[["T", "k299"]])[0]) == 1
        assert [result[4] for result in broker.invoke("send", messages=sent[:2])] == [150, 150]
        until(lambda: len(broker.invoke("read", topic="Late")) == 20, "delayed messages are delivered")
        broker.stop()
    assert not list(rocksdb_findings(str(folder / "consumequeue"), LogFiles(REAL_DISK, [str(folder / "commitlog")])))


@pytest.mark.skipif(not can_read(), reason="rocksdict is not installed")
def test_a_broker_with_rocksdb_queues_continues_after_our_truncation(tmp_path: Path) -> None:
    """Its group had everything, also what was cut, and gets every new message. Timers before the cut come at their time."""
    prepare_or_skip()
    folder, file = tmp_path / "store", tmp_path / "file"
    settings: dict[str, Any] = {**SIZES, "storeType": "defaultRocksDB", "flushConsumerOffsetInterval": 300}
    settings["mappedFileSizeTimerLog"] = 52_000
    sent = [{"topic": "T", "body": _encoded(f"{number}"), "queue_id": number % 2} for number in range(300)]
    with RealBroker(folder, tmp_path / "first", **settings) as broker:
        broker.invoke("topic", topic="T", queues=2)
        broker.invoke("topic", topic="Late", queues=1)
        broker.invoke("group", group={"groupName": "G"})
        broker.invoke("send", messages=sent[:200])
        due_ms = int(time.time() * 1000) + 20_000
        late = {"topic": "Late", "queue_id": 0, "deliver_ms": due_ms}
        broker.invoke("send", messages=[late | {"body": _encoded(f"{number}")} for number in range(20)])
        broker.invoke("send", messages=sent[200:])
        for queue_id in (0, 1):
            broker.invoke("commit", topic="T", group="G", queue_id=queue_id, offset=150)
        until(lambda: _offsets(folder) == {0: 150, 1: 150}, "the offsets are on the disk")
        broker.kill()
    positions = list(records(folder))  # 200, then the timers, then 100
    path, at = positions[-50]
    with path.open("r+b") as stream:
        stream.seek(at + 4)
        stream.write(bytes(32))
    plan = Recovery(str(folder), Choice.TRUNCATE).apply()
    changed = plan.outcomes[[step.kind for step in plan.steps].index("clamp_offsets")].split(", ")
    assert {line for line in changed if "T@G" in line} == {
        f"RocksDB: T@G queue {queue_id} from 150 back to 125" for queue_id in (0, 1)
    }
    assert tool("verify", str(folder)).returncode == 0
    with RealBroker(folder, tmp_path / "second", **settings) as broker:
        new = [{"topic": "T", "body": _encoded(f"{number}"), "queue_id": number % 2} for number in range(1000, 1100)]
        assert [result[4] for result in broker.invoke("send", messages=new)][:2] == [125, 125]
        broker.invoke("start_consumer", name="n", group="G", topic="T", file=str(file))
        until(lambda: sorted(one.body for one in deliveries(file)) == list(range(1000, 1100)), "the group has all new ones")
        until(lambda: len(broker.invoke("read", topic="Late")) == 20, "timers are delivered", 120)
        assert min(one["store_timestamp_ms"] for one in broker.invoke("read", topic="Late")) >= due_ms // 1000 * 1000
        broker.invoke("stop_consumer", name="n")
        broker.stop()
    assert not list(rocksdb_findings(str(folder / "consumequeue"), LogFiles(REAL_DISK, [str(folder / "commitlog")])))


def _offsets(folder: Path) -> dict[int, int] | None:
    with contextlib.suppress(StoreCorrupt):  # the broker is writing
        return read_config(REAL_DISK, str(folder)).offsets.get("T@G")
    return None


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_wrong_file_sizes_are_errors_of_both_stores(tmp_path: Path) -> None:
    """With wrong sizes of log or queue files the real store does not load; our error has the expected and the found size."""
    prepare_or_skip()
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=ours(), clock=Ticking(START_MS)) as store:
        write_mixed(store, range(0, 300))
    before = contents(folder)
    jvm = RealStores(tmp_path / "stderr")
    try:
        for name, java, size in (
            ("mapped_file_size_commit_log", "mappedFileSizeCommitLog", 2 * LOG_SIZE),
            ("mapped_file_size_consume_queue", "mappedFileSizeConsumeQueue", 2 * QUEUE_SIZE),
        ):
            for mode in ("r", "r+"):
                with pytest.raises(StoreCorrupt, match="size") as caught:
                    MessageStore.open(folder, mode, ours(**{name: size}))
                assert (caught.value.expected, caught.value.found) == (f"{size} bytes", f"{size // 2} bytes")
            assert verify_store(str(folder), ours(**{name: size})).problems
            assert {path: data for path, data in contents(folder).items() if not path.endswith("lock")} == {
                path: data for path, data in before.items() if not path.endswith("lock")
            }
            with pytest.raises(Refused, match="refused"):
                jvm.open(folder, **SIZES | {java: size})
    finally:
        jvm.end()


def test_wrong_index_slots_are_an_error(tmp_path: Path) -> None:
    """Several slot counts give the same file size: the real store silently finds no key, ours raises an error."""
    prepare_or_skip()
    folder = tmp_path / "store"
    jvm = RealStores(tmp_path / "stderr")
    try:
        real = jvm.open(folder, **SIZES)
        message = {"topic": "T", "queue_id": 0, "body": "eA==", "born_timestamp_ms": START_MS}
        message |= {"born_host": "127.0.0.1:1", "store_host": "127.0.0.1:1", "properties": "KEYS\x01k\x02"}
        assert {result[0] for result in real.invoke("put", messages=[message] * 50)} == {"PUT_OK"}
        real.close()
        other = SIZES | {"maxHashSlotNum": SIZES["maxHashSlotNum"] + 100, "maxIndexNum": SIZES["maxIndexNum"] - 20}
        for settings, expected in ((SIZES, 50), (other, 0)):
            real = jvm.open(folder, **settings)
            assert len(real.invoke("queries", requested=[["T", "k"]])[0]) == expected
            real.close()
    finally:
        jvm.end()
    for mode in ("r", "r+"):
        with pytest.raises(StoreCorrupt, match="index shape"):
            MessageStore.open(folder, mode, ours(max_hash_slot_num=other["maxHashSlotNum"], max_index_num=other["maxIndexNum"]))
    with MessageStore.open(folder, "r") as store:  # detected from the files
        assert (store.config.max_hash_slot_num, store.config.max_index_num) == (SIZES["maxHashSlotNum"], SIZES["maxIndexNum"])
        assert len(store.query("T", "k", max_count=64)) == 50


UNUSUAL = {"maxHashSlotNum": 100, "maxIndexNum": 1000}  # 240 slots and 972 items make a file of the same length


@pytest.mark.parametrize("made_by", ["the real store", "us"])
def test_keys_in_an_index_that_was_empty_are_found_by_the_real_store(tmp_path: Path, made_by: str) -> None:
    """For an index of the real store the slot count must be given; ours is recorded."""
    prepare_or_skip()
    folder = tmp_path / "store"
    differing = {"max_hash_slot_num": 100, "max_index_num": 1000}
    jvm = RealStores(tmp_path / "stderr")
    try:
        if made_by == "us":
            with MessageStore.open(folder, config=ours(**differing), clock=Ticking(START_MS)) as store:
                store.put(Message("T", b"x", queue_id=0))
            with MessageStore.open(folder, clock=Ticking(START_MS + 1000)) as store:
                store.put(Message("T", b"x", queue_id=0, keys=["k"]))
        else:
            real = jvm.open(folder, START_MS, **SIZES | UNUSUAL)
            message = {"topic": "T", "queue_id": 0, "body": "eA==", "born_timestamp_ms": START_MS, "properties": ""}
            message |= {"born_host": "127.0.0.1:1", "store_host": "127.0.0.1:1"}
            assert {result[0] for result in real.invoke("put", messages=[message])} == {"PUT_OK"}
            real.close()
            with pytest.raises(InvalidMessage, match="--index-slots"):
                MessageStore.open(folder)
            with MessageStore.open(folder, config=ours(**differing), clock=Ticking(START_MS + 1000)) as store:
                store.put(Message("T", b"x", queue_id=0, keys=["k"]))
        real = jvm.open(folder, START_MS + 2000, **SIZES | UNUSUAL)
        assert len(real.invoke("queries", requested=[["T", "k"]])[0]) == 1
        real.close()
    finally:
        jvm.end()


@pytest.mark.parametrize("first", [True, False], ids=["with checksums first", "without first"])
def test_a_log_with_checksums_in_a_part_of_its_records_is_read(tmp_path: Path, first: bool) -> None:
    """`enabledAppendPropCRC` differs between our run and the real store's; both read the whole log."""
    prepare_or_skip()
    folder = tmp_path / "store"
    with MessageStore.open(folder, config=ours(enabled_append_prop_crc=first), clock=Ticking(START_MS)) as store:
        write_mixed(store, range(0, 100))
    before = our_messages(folder)
    jvm = RealStores(tmp_path / "stderr")
    try:
        real = jvm.open(folder, START_MS + 10**8, **SIZES, enabledAppendPropCRC=not first)
        message = {"topic": "T", "queue_id": 0, "body": "eA==", "born_timestamp_ms": START_MS, "properties": ""}
        message |= {"born_host": "127.0.0.1:1", "store_host": "127.0.0.1:1"}
        assert {result[0] for result in real.invoke("put", messages=[message] * 10)} == {"PUT_OK"}
        assert len(real.invoke("messages")["messages"]) == len(before) + 10
        real.close()
    finally:
        jvm.end()
    assert our_messages(folder)[: len(before)] == before
    assert not verify_store(str(folder), ours()).problems
    reported = json.loads(tool("verify", "--json", str(folder)).stdout)
    assert reported["ok"] and (reported["counts"]["protected_records"], reported["counts"]["records"]) == (
        len(before) if first else 10,
        len(before) + 10,
    )
