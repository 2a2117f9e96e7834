"""Reading and writing subscriptionGroup.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from messagestore.broker.config.fast_json import loads
from messagestore.broker.config.subscription_groups import SubscriptionGroup, SubscriptionGroups
from storageio import REAL_DISK, InvalidMessage, StoreCorrupt

from .support import BROKERS, folder_with


@pytest.mark.parametrize("broker", BROKERS)
def test_the_groups_of_a_real_broker(fixture_store: Any, broker: str) -> None:
    """All groups are read, including the one that fails a message once, and the ordered one."""
    fixture = fixture_store(broker)
    groups = SubscriptionGroups(REAL_DISK, str(fixture.store / "config"))
    expected = fixture.expected()["configFiles"]["subscriptionGroup.json"]["subscriptionGroupTable"]
    assert groups.names() == sorted(expected)
    for name, target in expected.items():
        group = groups.get(name)
        assert (group.retry_max_times, group.retry_queues) == (target["retryMaxTimes"], target["retryQueueNums"])
        assert (group.is_ordered, group.is_enabled) == (target["consumeMessageOrderly"], target["consumeEnable"])
        assert (group.attributes, group.retry_policy) == (target["attributes"], target["groupRetryPolicy"])
    assert (groups.get("G_fail").retry_max_times, groups.get("G_fail").retry_queues) == (1, 2)
    assert groups.get("nobody") is None
    assert "G_fail" in groups


def test_writing_a_group_again_gives_the_brokers_bytes(fixture_store: Any) -> None:
    """If every entry is put again, only dataVersion differs."""
    config = fixture_store("broker-live", own=True).store / "config"
    before = (config / "subscriptionGroup.json").read_bytes()
    groups = SubscriptionGroups(REAL_DISK, str(config))
    for name in groups.names():
        groups.put(groups.get(name))
    groups.persist()
    after = (config / "subscriptionGroup.json").read_bytes()
    assert after.partition(b"forbiddenTable")[2] == before.partition(b"forbiddenTable")[2]


def test_a_new_group_has_the_brokers_defaults(fixture_store: Any, tmp_path: Path) -> None:
    """The bytes are those of a group that the broker created itself."""
    text = (fixture_store("broker-live").store / "config" / "subscriptionGroup.json").read_bytes()
    start = text.index(b'\t\t"CID_ONSAPI_OWNER":{')
    entry = text[start : text.index(b"\n\t\t}", start) + 4]
    groups = SubscriptionGroups(REAL_DISK, str(tmp_path))
    groups.create("CID_ONSAPI_OWNER")
    groups.persist()
    assert entry in (tmp_path / "subscriptionGroup.json").read_bytes()
    assert b'"forbiddenTable":{}' in (tmp_path / "subscriptionGroup.json").read_bytes()


def test_create_change_delete(tmp_path: Path) -> None:
    """Only changed fields count; unknown ones are kept."""
    raw = b'{"subscriptionGroupTable":{"g":{"later":[1],"retryMaxTimes":3}},"forbiddenTable":{"g":{"t":1}}}'
    groups = SubscriptionGroups(REAL_DISK, folder_with(tmp_path, subscriptionGroup_json=raw))
    assert groups.get("g") == SubscriptionGroup(name="g", retry_max_times=3)
    groups.create("g")
    assert not groups.is_dirty
    groups.create("g", retry_max_times=5)
    groups.create("h", is_ordered=True)
    assert groups.delete("h")
    assert not groups.delete("h")
    groups.persist()
    found = loads((tmp_path / "subscriptionGroup.json").read_bytes(), file="")
    assert found["subscriptionGroupTable"]["g"]["later"] == [1]
    assert found["forbiddenTable"] == {"g": {"t": 1}}
    assert SubscriptionGroups(REAL_DISK, str(tmp_path)).get("g") == groups.get("g")


@pytest.mark.parametrize("name", ["", "a@b", "a/b", "a\0"])
def test_a_name_that_breaks_other_files_is_refused(tmp_path: Path, name: str) -> None:
    """The separator of offset keys, and characters that the retry topic's folder cannot have, are refused."""
    groups = SubscriptionGroups(REAL_DISK, str(tmp_path))
    with pytest.raises(InvalidMessage):
        groups.create(name)
    assert not groups.is_dirty


@pytest.mark.parametrize(
    "raw", [b'{"g":1}', b'{"g":{"retryMaxTimes":"x"}}', b'{"g":{"consumeEnable":"yes"}}', b'{"g":{"groupRetryPolicy":1}}']
)
def test_a_field_of_the_wrong_kind_is_named(tmp_path: Path, raw: bytes) -> None:
    """It is not guessed."""
    with pytest.raises(StoreCorrupt):
        SubscriptionGroups(REAL_DISK, folder_with(tmp_path, subscriptionGroup_json=b'{"subscriptionGroupTable":' + raw + b"}"))


@pytest.mark.parametrize(
    "what",
    [
        {"retry_queues": -2}, {"retry_max_times": 1 << 31}, {"broker_id": 1 << 31}, {"sys_flag": -(1 << 40)},
        {"consume_timeout_minutes": 1 << 31}, {"broker_when_slow": 1 << 63},
    ],
    ids=str,
)  # fmt: skip
def test_a_number_that_the_file_could_not_be_read_with_is_refused(tmp_path: Path, what: dict[str, int]) -> None:
    """In the file, it would make every other group unreadable."""
    groups = SubscriptionGroups(REAL_DISK, str(tmp_path))
    with pytest.raises(InvalidMessage, match="group g"):
        groups.create("g", **what)
    assert not groups.is_dirty and groups.names() == []
