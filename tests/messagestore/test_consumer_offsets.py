"""consumerOffset.json and the offset file for LMQs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from messagestore.broker.config.consumer_offsets import ClampedOffset, ConsumerOffsets, LmqConsumerOffsets
from messagestore.broker.config.fast_json import loads
from storageio import REAL_DISK, InvalidMessage, StoreCorrupt

from .support import BROKERS, failures, folder_with


@pytest.mark.parametrize("broker", BROKERS)
def test_the_offsets_of_a_real_broker(fixture_store: Any, broker: str) -> None:
    """Every queue for which the admin tool showed an offset has it."""
    fixture = fixture_store(broker)
    offsets = ConsumerOffsets(REAL_DISK, str(fixture.store / "config"))
    table = fixture.expected()["configFiles"]["consumerOffset.json"]["offsetTable"]
    checked = 0
    for key, queues in table.items():
        topic, group, *broadcast = key.split("@")
        if broadcast:
            assert offsets.get(topic, group, 0) is None
            continue
        assert offsets.offsets_of(topic, group) == {int(queue): offset for queue, offset in queues.items()}
        assert group in offsets.groups(topic)
        assert topic in offsets.topics(group)
        checked += 1
    assert checked == 8
    assert offsets.get("LiveNormal", "G_part", 2) is None
    assert offsets.get("LiveNormal", "G_part", 3) == 14
    assert "G_bcast" not in offsets.groups()


@pytest.mark.parametrize("broker", BROKERS)
def test_committing_what_was_committed_changes_no_byte(fixture_store: Any, broker: str) -> None:
    """Three-part keys, the order of maps and the derived table are written unchanged."""
    config = fixture_store(broker, own=True).store / "config"
    before = (config / "consumerOffset.json").read_bytes()
    offsets = ConsumerOffsets(REAL_DISK, str(config))
    offsets.commit("LiveNormal", "G_part", 1, 8)
    assert offsets.persist()
    assert (config / "consumerOffset.json").read_bytes() == before


def test_new_offsets_are_found_by_the_next_open(tmp_path: Path) -> None:
    """The table of topics by group is derived, without broadcast groups."""
    folder = folder_with(tmp_path, consumerOffset_json=b'{"offsetTable":{"t@b@broadcast":{0:7}}}')
    offsets = ConsumerOffsets(REAL_DISK, folder)
    offsets.commit("t", "g", 0, 5)
    offsets.commit("t", "g", 3, 9)
    offsets.commit("u", "g", 0, 1)
    offsets.commit("t", "h", 0, 0)
    offsets.commit("t", "g", 0, 4)
    offsets.persist()
    again = ConsumerOffsets(REAL_DISK, folder)
    assert again.offsets_of("t", "g") == {0: 4, 3: 9}
    assert again.get("t", "h", 0) == 0
    assert (again.groups(), again.groups("t"), again.groups("u")) == (["g", "h"], ["g", "h"], ["g"])
    assert again.topics("g") == ["t", "u"]
    found = loads((tmp_path / "consumerOffset.json").read_bytes(), file="")
    assert found["groupTopicMap"] == {"g": ["t", "u"], "h": ["t"]}
    assert found["offsetTable"]["t@b@broadcast"] == {0: 7}
    assert found["dataVersion"]["counter"] == 0


def test_the_version_counts_every_five_hundredth_commit(tmp_path: Path) -> None:
    """It counts as the broker's does."""
    offsets = ConsumerOffsets(REAL_DISK, str(tmp_path))
    for k in range(1001):
        offsets.commit("t", "g", 0, k)
    assert offsets.version == 2


def test_keys_in_quotes_are_read_and_unknown_fields_kept(tmp_path: Path) -> None:
    """Another tool wrote the file as strict JSON."""
    folder = folder_with(tmp_path, consumerOffset_json=b'{"x":1,"offsetTable":{"t@g":{"0":12,"1":"30"},"odd":{2:3}}}')
    offsets = ConsumerOffsets(REAL_DISK, folder)
    assert offsets.offsets_of("t", "g") == {0: 12, 1: 30}
    offsets.commit("t", "g", 0, 13)
    offsets.persist()
    text = (tmp_path / "consumerOffset.json").read_bytes()
    assert b'"t@g":{0:13,1:30\n\t\t}' in text
    assert b'"odd":{2:3\n\t\t}' in text
    assert b'"x":1' in text


def test_offsets_beyond_a_truncated_queue_are_clamped(tmp_path: Path) -> None:
    """Offsets of all groups, broadcast ones too, are clamped and reported; those within the queue stay."""
    folder = folder_with(tmp_path, consumerOffset_json=b'{"offsetTable":{"t@b@broadcast":{0:70}}}')
    offsets = ConsumerOffsets(REAL_DISK, folder)
    offsets.commit("t", "g", 0, 50)
    offsets.commit("t", "g", 1, 50)
    offsets.commit("u", "g", 0, 10)
    ends = {("t", 0): 40, ("t", 1): 50, ("u", 0): 11}
    changed = offsets.clamp(lambda topic, queue_id: ends[topic, queue_id])
    assert changed == [ClampedOffset("t@b@broadcast", 0, 70, 40), ClampedOffset("t@g", 0, 50, 40)]
    assert offsets.offsets_of("t", "g") == {0: 40, 1: 50}
    assert offsets.get("u", "g", 0) == 10
    offsets.persist()
    assert offsets.clamp(lambda topic, queue_id: ends[topic, queue_id]) == []
    assert not offsets.is_dirty


def test_offsets_of_a_group_and_a_topic_are_removed(tmp_path: Path) -> None:
    """All of their keys are removed, and no others."""
    folder = folder_with(tmp_path, consumerOffset_json=b'{"offsetTable":{"t@g@broadcast":{0:7},"t@gg":{0:1}}}')
    offsets = ConsumerOffsets(REAL_DISK, folder)
    offsets.commit("t", "g", 0, 1)
    offsets.commit("u", "g", 0, 1)
    offsets.commit("u", "h", 0, 1)
    assert offsets.delete_group("g")
    assert not offsets.delete_group("g")
    assert offsets.groups() == ["gg", "h"]
    assert offsets.delete_topic("u")
    offsets.persist()
    found = loads((tmp_path / "consumerOffset.json").read_bytes(), file="")
    assert found["offsetTable"] == {"t@gg": {0: 1}}
    assert found["groupTopicMap"] == {"gg": ["t"]}


@pytest.mark.parametrize(
    ("topic", "group", "queue_id", "offset"),
    [("", "g", 0, 0), ("t", "", 0, 0), ("t@x", "g", 0, 0), ("t", "g@x", 0, 0), ("t", "g", -1, 0), ("t", "g", 0, -1)],
)
def test_a_commit_that_could_not_be_read_back_is_refused(
    tmp_path: Path, topic: str, group: str, queue_id: int, offset: int
) -> None:
    """A name with the separator would become another key."""
    for kind in (ConsumerOffsets, LmqConsumerOffsets):
        offsets = kind(REAL_DISK, str(tmp_path))
        with pytest.raises(InvalidMessage):
            offsets.commit(topic, group, queue_id, offset)
        assert not offsets.is_dirty


@pytest.mark.parametrize(
    "table", [b"[]", b'{"t@g":5}', b'{"t@g":{"x":1}}', b'{"t@g":{0:"far"}}', b'{"t@g":{0:99999999999999999999}}']
)
def test_a_table_of_the_wrong_kind_is_named(tmp_path: Path, table: bytes) -> None:
    """It is not taken for an empty table, which would deliver everything again."""
    folder = folder_with(tmp_path, consumerOffset_json=b'{"offsetTable":' + table + b"}")
    with pytest.raises(StoreCorrupt) as caught:
        ConsumerOffsets(REAL_DISK, folder)
    assert caught.value.file.endswith("consumerOffset.json")


def test_persist_that_fails_at_any_call_leaves_old_or_new(tmp_path: Path) -> None:
    """After any failure the file has an offset that is at least the last persisted one."""
    runs = iter(range(1000))
    folder = ""

    def persist(disk: Any) -> None:
        nonlocal folder
        folder = folder_with(tmp_path / str(next(runs)))
        offsets = ConsumerOffsets(REAL_DISK, folder)
        offsets.commit("t", "g", 0, 1)
        offsets.persist()
        offsets.commit("t", "g", 0, 2)
        offsets._disk = offsets._file._disk = disk
        offsets.persist()

    assert {ConsumerOffsets(REAL_DISK, folder).get("t", "g", 0) for _ in failures(persist)} == {1, 2}


def test_lmq_offsets_have_their_own_table(tmp_path: Path) -> None:
    """LMQ groups are in the other file; ordinary groups are there as usual."""
    offsets = LmqConsumerOffsets(REAL_DISK, str(tmp_path))
    offsets.commit("%LMQ%q", "%LMQ%g", 0, 7)
    offsets.commit("t", "g", 2, 5)
    offsets.persist()
    text = (tmp_path / "lmqConsumerOffset.json").read_bytes()
    found = loads(text, file="")
    assert found["lmqOffsetTable"] == {"%LMQ%q@%LMQ%g": 7}
    assert found["offsetTable"] == {"t@g": {2: 5}}
    assert list(found) == ["dataVersion", "groupTopicMap", "lmqOffsetTable", "offsetTable"]
    again = LmqConsumerOffsets(REAL_DISK, str(tmp_path))
    assert again.get("%LMQ%q", "%LMQ%g", 0) == 7
    assert again.offsets_of("%LMQ%q", "%LMQ%g") == {0: 7}
    assert again.offsets_of("t", "g") == {2: 5} and again.get("t", "g", 2) == 5
    assert again.groups() == ["%LMQ%g", "g"]
    assert again.clamp(lambda topic, queue_id: 6) == [ClampedOffset("%LMQ%q@%LMQ%g", 0, 7, 6)]
    assert again.get("%LMQ%q", "%LMQ%g", 0) == 6
    assert again.delete_group("%LMQ%g")
    assert again.get("%LMQ%q", "%LMQ%g", 0) is None
