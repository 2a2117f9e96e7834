"""consumerFilter.json: read, changed, and written as by a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumequeue import ConsumeQueueExt
from messagestore.broker.config.consumer_filters import ConsumerFilter, ConsumerFilters
from storageio import REAL_DISK, InvalidMessage, StoreCorrupt
from tests.messagestore.support import BROKERS, failures, folder_with


@pytest.mark.parametrize("name", BROKERS)
def test_a_brokers_file_read_whole_and_written_back_to_the_byte(fixture_store: Any, tmp_path: Path, name: str) -> None:
    """Every filter is read, and a change that is undone gives the same bytes."""
    path = fixture_store(name).store / "config" / "consumerFilter.json"
    before = path.read_bytes()
    folder = folder_with(tmp_path / "config", consumerFilter_json=before)
    filters = ConsumerFilters(REAL_DISK, folder)
    expected = fixture_store(name).expected()["configFiles"]["consumerFilter.json"]["filterDataByTopic"]
    for one in filters.all():
        raw = expected[one.topic]["groupFilterData"][one.group]
        assert (one.expression, one.expression_type, one.is_dead) == (raw["expression"], raw["expressionType"], raw["dead"])
        assert list(one.bits) == raw["bloomFilterData"]["bitPos"]
        assert (one.bit_count, one.born_time_ms) == (raw["bloomFilterData"]["bitNum"], raw["bornTime"])
        filters.put(one)
    assert len(filters.all()) == sum(len(topic["groupFilterData"]) for topic in expected.values()) > 0
    assert filters.persist()
    assert (tmp_path / "config" / "consumerFilter.json").read_bytes() == before


def test_filters_are_made_changed_and_forgotten(tmp_path: Path) -> None:
    """Unknown fields are kept."""
    folder = folder_with(
        tmp_path / "config",
        consumerFilter_json=b'{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"x":1}},"y":2,"topic":"T"}}}',
    )
    filters = ConsumerFilters(REAL_DISK, folder)
    filters.put(ConsumerFilter(topic="T", group="G", expression="a > 1", bit_count=8, bits=(1, 2)))
    filters.put(ConsumerFilter(topic="U", group="H", expression="b"))
    filters.persist()
    text = (tmp_path / "config" / "consumerFilter.json").read_text()
    assert '"x":1' in text
    assert '"y":2' in text
    assert "dataVersion" not in text
    again = ConsumerFilters(REAL_DISK, folder)
    assert [(one.topic, one.group) for one in again.all()] == [("T", "G"), ("U", "H")]
    assert again.delete_group("G")
    assert not again.delete_group("G")
    again.persist()
    assert [one.group for one in ConsumerFilters(REAL_DISK, folder).all()] == ["H"]
    with pytest.raises(InvalidMessage):
        again.put(ConsumerFilter(topic="T@", group="G", expression=""))


@pytest.mark.parametrize(
    "text",
    [
        '{"filterDataByTopic":[]}', '{"filterDataByTopic":{"T":1}}', '{"filterDataByTopic":{"T":{"groupFilterData":{"G":1}}}}',
        '{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bloomFilterData":{"bitPos":["x"]}}}}}}',
        '{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"dead":7}}}}}',
    ],
)  # fmt: skip
def test_invalid_filter_file_is_reported_by_name(tmp_path: Path, text: str) -> None:
    """The error names the file."""
    folder = folder_with(tmp_path / "config", consumerFilter_json=text.encode())
    with pytest.raises(StoreCorrupt) as error:
        ConsumerFilters(REAL_DISK, folder)
    assert error.value.file.endswith("consumerFilter.json")


def test_a_crash_at_any_call_of_writing_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    """The file is replaced durably, with a backup."""
    old = b'{\n\t"filterDataByTopic":{}\n}'
    number = 0

    def change(disk: Any) -> None:
        nonlocal number
        number += 1
        folder = folder_with(tmp_path / str(number), consumerFilter_json=old)
        filters = ConsumerFilters(disk, folder)
        filters.put(ConsumerFilter(topic="T", group="G", expression="a"))
        filters.persist()

    for _ in failures(change):
        found = ConsumerFilters(REAL_DISK, str(tmp_path / str(number))).all()
        assert [one.group for one in found] in ([], ["G"])


@pytest.mark.parametrize(
    "what",
    [
        {"bit_count": -1}, {"bit_count": (1 << 20) + 1}, {"bits": (3, 1 << 20)}, {"bits": (-1,)}, {"born_time_ms": -1},
        {"born_time_ms": 1 << 63}, {"dead_time_ms": 1 << 63}, {"client_version": -(1 << 64)},
    ],
    ids=str,
)  # fmt: skip
def test_a_filter_that_the_file_could_not_be_read_with_is_refused(tmp_path: Path, what: dict[str, Any]) -> None:
    """In the file, it would make every other group's filter unreadable."""
    folder = folder_with(tmp_path / "config")
    filters = ConsumerFilters(REAL_DISK, folder)
    with pytest.raises(InvalidMessage, match="filter of G"):
        filters.put(ConsumerFilter(topic="T", group="G", expression="a", **what))
    assert not filters.is_dirty
