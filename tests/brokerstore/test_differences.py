"""Differences between a broker's own file and its folder, each reported by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from messagestore.broker.config.broker_properties import parse_broker_properties
from messagestore.differences import config_differences
from storageio import REAL_DISK
from tests.brokerstore.tool import run

FITTING = """mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=500
maxIndexNum=2000
enabledAppendPropCRC=false
storeType=default
enableDLegerCommitLog=false
"""


def names(folder: Path, text: str) -> set[str]:
    settings = parse_broker_properties(text.encode(), file="broker.conf")
    return {one.name for one in config_differences(str(folder), settings, REAL_DISK)}


@pytest.mark.parametrize("name", ["plain", "propcrc", "broker-live", "broker-ext", "lmq", "batchcq", "cqext"])
def test_a_real_store_and_its_own_configuration_fit(fixture_store: Any, name: str) -> None:
    """No difference is reported, whatever kinds of queues the store has."""
    text = FITTING.replace("CRC=false", "CRC=true") if name == "propcrc" else FITTING
    assert names(fixture_store(name).store, text) == set()
    assert names(fixture_store(name).store, "") == set()


@pytest.mark.parametrize(
    ("store", "text", "name"),
    [
        ("plain", "mappedFileSizeCommitLog=1073741824", "mapped_file_size_commit_log"),
        ("plain", "mappedFileSizeConsumeQueue=6000000", "mapped_file_size_consume_queue"),
        ("plain", "maxHashSlotNum=5000000", "max_hash_slot_num"),
        ("plain", "maxIndexNum=20000000", "max_index_num"),
        ("plain", "enabledAppendPropCRC=true", "enabled_append_prop_crc"),
        ("propcrc", "enabledAppendPropCRC=false", "enabled_append_prop_crc"),
        ("plain", "storeType=defaultRocksDB", "store_type"),
        ("plain", "enableDLegerCommitLog=true", "enable_dledger_commit_log"),
        ("lmq", "enableLmq=false", "enable_lmq"),
        ("lmq", "enableMultiDispatch=false", "enable_multi_dispatch"),
        ("cqext", "enableConsumeQueueExt=false", "enable_consume_queue_ext"),
        ("cqext", "mappedFileSizeConsumeQueueExt=50331648", "mapped_file_size_consume_queue_ext"),
        ("batchcq", "mapperFileSizeBatchConsumeQueue=13800000", "mapper_file_size_batch_consume_queue"),
        ("broker-live", "messageDelayLevel=1s 5s", "message_delay_level"),
        ("broker-live", "messageDelayLevel=soon", "message_delay_level"),
    ],
)  # fmt: skip
def test_each_difference_is_reported_by_its_name(fixture_store: Any, tmp_path: Path, store: str, text: str, name: str) -> None:
    """The library and `info --config` report it, and `info` exits with 1."""
    fixture = fixture_store(store)
    assert names(fixture.store, text) == {name}
    file = tmp_path / "broker.conf"
    file.write_text(text)
    ran = run("info", "--json", "--config", file, fixture.store)
    assert ran.code == 1
    assert [one["name"] for one in ran.json["differences"]] == [name]
    assert name in ran.talk


def test_a_matching_config_file_does_not_change_the_output_of_info(fixture_store: Any, tmp_path: Path) -> None:
    """The exit code is 0 and the list is empty; without a file there is no list."""
    file = tmp_path / "broker.conf"
    file.write_text(FITTING)
    ran = run("info", "--json", "--config", file, fixture_store("plain").store)
    assert (ran.code, ran.json["differences"]) == (0, [])
    assert "differences" not in run("info", "--json", fixture_store("plain").store).json


def test_queues_in_rocksdb_and_a_raft_log_are_seen(tmp_path: Path) -> None:
    """They are recognised by the names of their files."""
    (tmp_path / "consumequeue_rocksdb").mkdir()
    (tmp_path / "consumequeue_rocksdb" / "CURRENT").write_text("MANIFEST-000004\n")
    (tmp_path / "dledger-n0").mkdir()
    assert names(tmp_path, "storeType=default\nenableDLegerCommitLog=false") == {"store_type", "enable_dledger_commit_log"}
    assert names(tmp_path, "storeType=defaultRocksDB\nenableDLegerCommitLog=true") == set()


def test_an_empty_folder_contradicts_nothing(tmp_path: Path) -> None:
    """Neither does a missing folder."""
    assert names(tmp_path, FITTING) == set()
    assert names(tmp_path / "none", FITTING) == set()


def test_a_brokerstore_store_differs_from_rocketmq_defaults(tmp_path: Path) -> None:
    """The checksum and the small file sizes differ from RocketMQ's defaults."""
    with MessageStore.open(tmp_path / "s", config=StoreConfig.small(mapped_file_size_commit_log=1 << 20)) as store:
        store.put(Message("T", b"x", keys=["k"]))
    text = "mappedFileSizeCommitLog=1073741824\nmaxHashSlotNum=5000000\nmaxIndexNum=20000000\nenabledAppendPropCRC=false"
    expected = {"mapped_file_size_commit_log", "max_hash_slot_num", "max_index_num", "enabled_append_prop_crc"}
    assert names(tmp_path / "s", text) == expected
