"""Reading a broker's properties file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from messagestore.broker.config.broker_properties import parse_broker_properties, read_broker_properties
from storageio import REAL_DISK, DiskError, StoreCorrupt

from .support import BROKERS

CONF = rb"""# a broker.conf
! and another comment
brokerClusterName = DefaultCluster
brokerName=broker-a
brokerId=0
deleteWhen=04
fileReservedTime=48
brokerRole=ASYNC_MASTER
flushDiskType : SYNC_FLUSH
mappedFileSizeCommitLog=65536
  mappedFileSizeConsumeQueue 2000
maxHashSlotNum=500
maxIndexNum=2000
enabledAppendPropCRC=true
messageIndexEnable=FALSE
storePathRootDir=/data/store
storePathCommitLog=/disk1/log,\
    /disk2/log
messageDelayLevel=1s 5s 1m
flushIntervalCommitLog=250
namesrvAddr=127.0.0.1\:9876;127.0.0.1\:9877
"""


def test_usual_properties_file_is_parsed() -> None:
    """Known keys have their names in `StoreConfig` and types; others are text."""
    assert parse_broker_properties(CONF, file="broker.conf") == {
        "broker_cluster_name": "DefaultCluster",
        "broker_name": "broker-a",
        "brokerId": "0",
        "delete_when": "04",
        "file_reserved_time_hours": 48,
        "broker_role": "ASYNC_MASTER",
        "flush_disk_type": "SYNC_FLUSH",
        "mapped_file_size_commit_log": 65536,
        "mapped_file_size_consume_queue": 2000,
        "max_hash_slot_num": 500,
        "max_index_num": 2000,
        "enabled_append_prop_crc": True,
        "message_index_enable": False,
        "store_path_root_dir": "/data/store",
        "store_path_commit_log": "/disk1/log,/disk2/log",
        "message_delay_level": "1s 5s 1m",
        "flush_interval_commit_log_ms": 250,
        "namesrvAddr": "127.0.0.1:9876;127.0.0.1:9877",
    }


@pytest.mark.parametrize("broker", BROKERS)
def test_the_settings_of_the_fixtures(fixture_store: Any, tmp_path: Path, broker: str) -> None:
    """The values are those with which the real broker was started."""
    config = fixture_store(broker).expected()["config"]
    lines = [f"{key}={str(value).lower() if isinstance(value, bool) else value}\n" for key, value in config.items()]
    (tmp_path / "broker.conf").write_text("".join(lines))
    found = read_broker_properties(REAL_DISK, str(tmp_path / "broker.conf"))
    assert list(found.values()) == list(config.values())
    assert found["mapped_file_size_commit_log"] == config["mappedFileSizeCommitLog"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"a=b", {"a": "b"}),
        (b"a = b ", {"a": "b"}),
        (b"a\tb", {"a": "b"}),
        (b"a:b=c", {"a": "b=c"}),
        (b"a\\ b=c", {"a b": "c"}),
        (b"a\\=b=c", {"a=b": "c"}),
        (b"a=", {"a": ""}),
        (b"a", {"a": ""}),
        (b"a=\\u4e2d\\tx", {"a": "中\tx"}),
        (b"a=b\\\\", {"a": "b\\"}),
        (b"a=b\\\r\n  c", {"a": "bc"}),
        (b"a=b\\\n# no comment\nc=d", {"a": "b# no comment", "c": "d"}),
        (b"a=b\\", {"a": "b"}),
        (b"a=1\na=2", {"a": "2"}),
        (b"\r\n\r\n \t\n", {}),
        (b"=x", {}),
        (b"a=\xe9", {"a": "é"}),
        (b"a=C:\\\\store\\q", {"a": "C:\\storeq"}),
    ],
)
def test_the_syntax_is_javas(line: bytes, expected: dict[str, str]) -> None:
    """Separators, escapes, continued lines and Latin-1 work as in Java."""
    assert parse_broker_properties(line, file="f") == expected


@pytest.mark.parametrize(
    "line",
    [
        b"maxHashSlotNum=many",
        b"maxHashSlotNum=",
        b"maxHashSlotNum=1e6",
        b"maxHashSlotNum=" + b"9" * 30,
        b"enabledAppendPropCRC=yes",
        b"flushDiskType=SOMETIMES",
        b"brokerRole=MASTER",
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_its_line(line: bytes) -> None:
    """The error names the line; a store opened with guessed sizes would be misread."""
    with pytest.raises(StoreCorrupt) as caught:
        parse_broker_properties(b"# first\nbrokerName=b\n" + line + b"\n", file="broker.conf")
    assert (caught.value.file, caught.value.offset) == ("broker.conf", 21)


def test_missing_or_oversized_properties_file_is_rejected(tmp_path: Path) -> None:
    """A file that is too long or missing is refused."""
    (tmp_path / "big").write_bytes(b"a" * ((1 << 20) + 1))
    with pytest.raises(StoreCorrupt):
        read_broker_properties(REAL_DISK, str(tmp_path / "big"))
    with pytest.raises(DiskError):
        read_broker_properties(REAL_DISK, str(tmp_path / "none"))
