"""delayOffset.json: offsets by level, from 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from messagestore.broker.config.consumer_offsets import ClampedOffset
from messagestore.broker.config.delay_offsets import DelayOffsets
from storageio import REAL_DISK, InvalidMessage, StoreCorrupt

from .support import BROKERS, folder_with


@pytest.mark.parametrize("broker", BROKERS)
def test_the_levels_of_a_real_broker(fixture_store: Any, broker: str) -> None:
    """Each is at most the end of queue level - 1, and the levels that delivered everything are present."""
    fixture = fixture_store(broker)
    offsets = DelayOffsets(REAL_DISK, str(fixture.store / "config"))
    ends = {q["queueId"] + 1: q["maxOffset"] for q in fixture.expected()["queues"] if q["topic"] == "SCHEDULE_TOPIC_XXXX"}
    assert set(offsets.levels()) <= set(ends)
    assert all(offset <= ends[level] for level, offset in offsets.levels().items())
    assert offsets.get(1) == ends[1] > 0
    assert offsets.get(17) == 0
    assert offsets.clamp(lambda _topic, queue_id: ends[queue_id + 1]) == []


def test_setting_what_was_set_changes_no_byte(fixture_store: Any) -> None:
    """The file is written in the broker's form."""
    config = fixture_store("broker-live", own=True).store / "config"
    before = (config / "delayOffset.json").read_bytes()
    offsets = DelayOffsets(REAL_DISK, str(config))
    offsets.set(1, offsets.get(1))
    assert offsets.persist()
    assert (config / "delayOffset.json").read_bytes() == before


def test_delay_offsets_beyond_a_truncated_queue_are_clamped(tmp_path: Path) -> None:
    """The report has the queue id, which is one less than the level."""
    offsets = DelayOffsets(REAL_DISK, str(tmp_path))
    offsets.set(1, 10)
    offsets.set(3, 4)
    assert offsets.clamp(lambda _topic, _queue_id: 5) == [ClampedOffset("SCHEDULE_TOPIC_XXXX", 0, 10, 5)]
    offsets.persist()
    assert DelayOffsets(REAL_DISK, str(tmp_path)).levels() == {1: 5, 3: 4}


@pytest.mark.parametrize(("level", "offset"), [(0, 1), (-1, 1), (1, -1), (1, 1 << 63)])
def test_invalid_delay_level_or_offset_is_rejected(tmp_path: Path, level: int, offset: int) -> None:
    """Levels count from 1."""
    offsets = DelayOffsets(REAL_DISK, str(tmp_path))
    with pytest.raises(InvalidMessage):
        offsets.set(level, offset)
    assert offsets.levels() == {}


def test_a_level_that_is_no_number_is_named(tmp_path: Path) -> None:
    """Everything would be delivered again otherwise."""
    with pytest.raises(StoreCorrupt):
        DelayOffsets(REAL_DISK, folder_with(tmp_path, delayOffset_json=b'{"offsetTable":{"one":1}}'))


def test_the_version_counts_every_two_hundredth_step(tmp_path: Path) -> None:
    """It counts as the broker's does."""
    offsets = DelayOffsets(REAL_DISK, str(tmp_path))
    for k in range(401):
        offsets.set(1, k)
    assert offsets.version == 2
