"""consumerFilter.json: whether a broker can read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from messagestore.repair.config_check import ConsumerFilters
from storageio import REAL_DISK, StoreCorrupt
from tests.messagestore.support import BROKERS, folder_with


@pytest.mark.parametrize("name", BROKERS)
def test_a_brokers_filters_are_readable(fixture_store: Any, name: str) -> None:
    """No field has a type that is refused, and the table is kept as it is."""
    table = ConsumerFilters(REAL_DISK, str(fixture_store(name).store / "config"))
    assert table.damage is None
    expected = fixture_store(name).expected()["configFiles"]["consumerFilter.json"]["filterDataByTopic"]
    assert table.document()["filterDataByTopic"] == expected != {}


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
