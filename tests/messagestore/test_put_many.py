"""If one of many messages is invalid, none of the others is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storageio import InvalidMessage, PutRejected
from tests.messagestore.kit import open_small

pytestmark = pytest.mark.both_builds

WRONG = {
    "delay": ({"properties": {"DELAY": "abc"}}, InvalidMessage),
    "separator": ({"properties": {"DELAY": "1", "a\x01": "b"}}, InvalidMessage),
    "host": ({"born_host": "nowhere", "properties": {"DELAY": "1"}}, InvalidMessage),
    "queue": ({"queue_id": 1 << 20, "properties": {"DELAY": "1"}}, InvalidMessage),
    "size": ({"properties": {"DELAY": "0", "a": "b" * 40_000}}, InvalidMessage),
    "count": ({"topic": "B", "sys_flag": 0x80, "properties": {"INNER_NUM": "0"}}, PutRejected),
    "flag": ({"topic": "B", "properties": {"INNER_NUM": "2"}}, PutRejected),
    "no batch queues": ({"sys_flag": 0x80, "properties": {"INNER_NUM": "2"}}, PutRejected),
    "light queue": ({"properties": {"INNER_MULTI_DISPATCH": "%LMQ%a,b"}}, PutRejected),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("is_delayed", [False, True])
def test_put_many_rejects_an_invalid_later_message_before_writing_the_first(
    world: Any, tmp_path: Path, name: str, is_delayed: bool
) -> None:
    """Otherwise a caller that repeats the failed call would put the first one twice."""
    fields, error = WRONG[name]
    with open_small(world, tmp_path / "s", enable_lmq=True, deliver_delayed=False) as store:
        store.create_topic("B", 1, attributes={"queue.type": "BatchCQ"})
        store.create_topic("T", 1)
        first = world.commitlog.Message("T", b"1", queue_id=0, properties={"DELAY": "1"} if is_delayed else {"a": "b"})
        second = world.commitlog.Message(**{"topic": "T", "body": b"2", "queue_id": 0} | fields)
        end = store.log_end
        with pytest.raises(error):
            store.put_many([first, second])
        assert store.log_end == end
        assert store.put_many([first]).message_count == 1
