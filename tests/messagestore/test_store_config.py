"""What a configuration refuses before any folder is touched, and its short forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commitlog import Message
from messagestore import MessageStore, StoreConfig
from storageio import InvalidMessage


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"mapped_file_size_commit_log": 0}, "mapped_file_size_commit_log is 0"),
        ({"mapped_file_size_consume_queue": -20}, "mapped_file_size_consume_queue is -20"),
        ({"max_hash_slot_num": -1}, "max_hash_slot_num is -1"),
        ({"max_index_num": 0}, "max_index_num is 0"),
        ({"default_topic_queue_nums": 0}, "default_topic_queue_nums is 0"),
        ({"message_delay_level": "1s 5x"}, "delay level '5x'"),
        ({"message_delay_level": "s"}, "delay level 's'"),
        ({"message_delay_level": "-1s"}, "delay level '-1s'"),
        ({"message_delay_level": "\N{SUPERSCRIPT TWO}s"}, "delay level '.s'"),
    ],
)
def test_invalid_setting_is_rejected_by_name(wrong: dict[str, Any], named: str) -> None:
    """A size of 0, no queue to put to, and an invalid delay are refused when they are set, not at the first put."""
    with pytest.raises(InvalidMessage, match=named):
        StoreConfig(**wrong)
    with pytest.raises(InvalidMessage, match=named):
        StoreConfig.small().but(**wrong)


def test_small_config_creates_small_files(tmp_path: Path) -> None:
    """It has log files of 64 MiB and an index of about 42 MB instead of 1 GiB and 420 MB."""
    config = StoreConfig.small(default_topic_queue_nums=3)
    assert (config.mapped_file_size_commit_log, config.default_topic_queue_nums) == (64 << 20, 3)
    with MessageStore.open(tmp_path, config=config) as store:
        store.put(Message("T", b"x", queue_id=0, keys=["k"]))
        assert len(store.query("T", "k")) == 1
        assert {path.stat().st_size for path in (tmp_path / "commitlog").iterdir()} == {64 << 20}
        assert {path.stat().st_size for path in (tmp_path / "index").iterdir()} == {40 + 4 * 500_000 + 20 * 2_000_000}
        assert {path.stat().st_size for path in (tmp_path / "consumequeue" / "T" / "0").iterdir()} == {6_000_000}
