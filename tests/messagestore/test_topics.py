"""topics.json: read as from a broker, changed, and written for a broker."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from messagestore.broker.config.config_files import Source
from messagestore.broker.config.fast_json import loads
from messagestore.broker.config.topics import TopicConfig, Topics, is_system_topic
from storageio import REAL_DISK, DiskError, InvalidMessage, StoreCorrupt
from storageio.testing import FailingDisk

from .support import BROKERS, failures, folder_with


def as_the_broker_reports(config: TopicConfig) -> dict[str, Any]:
    """Return a topic with the field names of the admin tool."""
    return {
        "attributes": config.attributes,
        "order": config.is_ordered,
        "perm": config.perm,
        "readQueueNums": config.read_queues,
        "topicFilterType": config.filter_type,
        "topicName": config.name,
        "topicSysFlag": config.sys_flag,
        "writeQueueNums": config.write_queues,
    }


@pytest.mark.parametrize("broker", BROKERS)
def test_the_topics_of_a_real_broker(fixture_store: Any, broker: str) -> None:
    """All topics have every field as the admin tool listed it."""
    fixture = fixture_store(broker)
    topics = Topics(REAL_DISK, str(fixture.store / "config"))
    expected = fixture.expected()["admin"]["topics"]
    assert {name: as_the_broker_reports(topics.get(name)) for name in expected} == expected
    assert topics.names() == sorted(fixture.expected()["configFiles"]["topics.json"]["topicConfigTable"])
    assert (topics.source, topics.damage, topics.is_dirty) == (Source.FILE, None, False)
    assert not topics.get("LiveWriteOnly").is_readable
    assert not topics.get("LiveReadOnly").is_writable
    assert topics.get("NoSuchTopic") is None
    assert "LiveNormal" in topics


@pytest.mark.parametrize("broker", BROKERS)
def test_a_topic_made_and_deleted_leaves_the_file_as_it_was(fixture_store: Any, broker: str) -> None:
    """Only dataVersion differs, because it counts both changes."""
    config = fixture_store(broker, own=True).store / "config"
    before = (config / "topics.json").read_bytes()
    topics = Topics(REAL_DISK, str(config))
    version = topics.version
    topics.create("Mine", 3)
    assert topics.delete("Mine")
    assert not topics.delete("Mine")
    assert topics.version == version + 2
    assert topics.persist()
    after = (config / "topics.json").read_bytes()
    assert after.partition(b"topicConfigTable")[2] == before.partition(b"topicConfigTable")[2]
    assert after != before
    assert (config / "topics.json.bak").read_bytes() == before


def test_a_new_topic_is_written_in_the_brokers_form(tmp_path: Path, fixture_store: Any) -> None:
    """The bytes are those of the broker's own entry for a topic with the same settings."""
    text = (fixture_store("broker-live").store / "config" / "topics.json").read_bytes()
    start = text.index(b'\t\t"LiveOrder":{')
    entry = text[start : text.index(b"\n\t\t}", start) + 4]
    topics = Topics(REAL_DISK, str(tmp_path / "config"))
    topics.create("LiveOrder", 8, is_ordered=True, attributes={"message.type": "FIFO"})
    topics.persist()
    assert entry in (tmp_path / "config" / "topics.json").read_bytes()


def test_create_and_change(tmp_path: Path) -> None:
    """The number of queues has a default; a second call changes only what it gives, and only if that is new."""
    topics = Topics(REAL_DISK, str(tmp_path), default_queues=5)
    assert topics.create("t") == TopicConfig(name="t", read_queues=5, write_queues=5)
    assert topics.version == 1
    assert topics.create("t") == topics.create("t", 5)
    assert topics.version == 1
    assert topics.create("t", 7, perm=4).write_queues == 7
    assert topics.create("t", is_ordered=True).perm == 4
    assert topics.version == 3
    topics.persist()
    assert Topics(REAL_DISK, str(tmp_path)).get("t") == topics.get("t")
    assert topics.create("b", attributes={"queue.type": "BatchCQ"}).is_batch


def test_unknown_fields_are_written_back(tmp_path: Path) -> None:
    """They are kept at the top, in a topic that changes and in one that does not."""
    raw = b'{"zz":{"y":[1]},"topicConfigTable":{"t":{"perm":6,"later":{1:2}},"u":{"more":"x"}},"dataVersion":{"new":7}}'
    folder = folder_with(tmp_path, topics_json=raw)
    topics = Topics(REAL_DISK, folder)
    topics.create("t", 3)
    topics.persist()
    found = loads((tmp_path / "topics.json").read_bytes(), file="")
    assert found["zz"] == {"y": [1]}
    assert found["dataVersion"]["new"] == 7
    assert found["topicConfigTable"]["t"]["later"] == {1: 2}
    assert found["topicConfigTable"]["t"]["readQueueNums"] == 3
    assert found["topicConfigTable"]["u"] == {"more": "x"}
    assert list(found) == sorted(found)
    assert list(found["topicConfigTable"]["t"]) == sorted(found["topicConfigTable"]["t"])


def test_fields_that_are_left_out_have_the_brokers_defaults(tmp_path: Path) -> None:
    """The default is 16 queues, not the number for topics created here; quoted numbers are accepted."""
    topics = Topics(REAL_DISK, folder_with(tmp_path, topics_json=b'{"topicConfigTable":{"t":{"perm":"4"}}}'))
    assert topics.get("t") == TopicConfig(name="t", read_queues=16, write_queues=16, perm=4)


@pytest.mark.parametrize(
    "table",
    [
        b"7",
        b'{"t":1}',
        b'{"t":null}',
        b'{"t":{"readQueueNums":"many"}}',
        b'{"t":{"readQueueNums":-1}}',
        b'{"t":{"writeQueueNums":9999999999}}',
        b'{"t":{"perm":true}}',
        b'{"t":{"perm":1.5}}',
        b'{"t":{"order":1}}',
        b'{"t":{"topicFilterType":3}}',
        b'{"t":{"attributes":[1]}}',
        b'{"t":{"attributes":{"a":1}}}',
    ],
)
def test_a_field_of_the_wrong_kind_is_named(tmp_path: Path, table: bytes) -> None:
    """The file is unchanged."""
    data = b'{"topicConfigTable":' + table + b"}"
    folder = folder_with(tmp_path, topics_json=data)
    with pytest.raises(StoreCorrupt) as caught:
        Topics(REAL_DISK, folder)
    assert caught.value.file == str(tmp_path / "topics.json")
    assert (tmp_path / "topics.json").read_bytes() == data


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a\0b", "x" * 256])
def test_a_topic_without_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Its name would lead out of the store."""
    topics = Topics(REAL_DISK, str(tmp_path))
    with pytest.raises(InvalidMessage):
        topics.create(name)
    assert not topics.is_dirty


@pytest.mark.parametrize("wrong", [{"queues": -1}, {"queues": 1 << 30}, {"perm": 8}, {"attributes": {"a": 1}}])
def test_wrong_settings_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """They are refused before anything is stored."""
    topics = Topics(REAL_DISK, str(tmp_path))
    with pytest.raises(InvalidMessage):
        topics.create("t", **wrong)
    assert topics.get("t") is None


@pytest.mark.parametrize("how", [{}, {"for_ever": True}])
def test_persist_that_fails_at_any_call_leaves_old_or_new_and_stays_dirty(tmp_path: Path, how: dict[str, Any]) -> None:
    """The change is not lost: the next persist writes it."""
    runs = iter(range(1000))
    folder = ""

    def persist(disk: FailingDisk) -> None:
        nonlocal folder
        folder = folder_with(tmp_path / str(next(runs)))
        topics = Topics(REAL_DISK, folder)
        topics.create("old")
        topics.persist()
        topics.create("new")
        topics._disk = topics._file._disk = disk
        try:
            topics.persist()
        except DiskError:
            assert topics.is_dirty
            raise

    seen = {tuple(Topics(REAL_DISK, folder).names()) for _ in failures(persist, **how)}
    assert seen == {("old",), ("new", "old")}


def test_persist_writes_only_what_changed(tmp_path: Path) -> None:
    """It returns False and makes no call of the disk if nothing changed."""
    topics = Topics(REAL_DISK, str(tmp_path / "config"))
    assert not topics.persist()
    assert not (tmp_path / "config").exists()
    topics.create("t")
    assert topics.is_dirty
    assert topics.persist()
    assert not topics.is_dirty
    assert not topics.persist()


def test_many_threads_make_topics_while_one_persists(tmp_path: Path) -> None:
    """No topic is lost."""
    topics = Topics(REAL_DISK, str(tmp_path))

    def make(number: int) -> None:
        for k in range(50):
            topics.create(f"t{number}-{k}")
            if k % 10 == 0:
                topics.persist()

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    topics.persist()
    again = Topics(REAL_DISK, str(tmp_path))
    assert len(again.names()) == 200
    assert again.version == 200


def test_the_brokers_own_topics_are_known() -> None:
    """They are known by name or by prefix."""
    assert is_system_topic("SCHEDULE_TOPIC_XXXX")
    assert is_system_topic("rmq_sys_wheel_timer")
    assert not is_system_topic("%RETRY%group")
    assert not is_system_topic("orders")


@pytest.mark.parametrize("sys_flag", [1 << 31, -(1 << 40)])
def test_a_system_flag_that_the_file_could_not_be_read_with_is_refused(tmp_path: Path, sys_flag: int) -> None:
    """In the file, it would make every other topic unreadable."""
    topics = Topics(REAL_DISK, folder_with(tmp_path))
    with pytest.raises(InvalidMessage, match="system flag"):
        topics.put(TopicConfig(name="t", sys_flag=sys_flag))
    assert not topics.is_dirty
