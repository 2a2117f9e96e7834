"""`put`, `put_many` and `put_batch` give the same result for the same message, as an error and as a status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storageio import InvalidMessage, PutRejected, StoreError
from tests.messagestore.kit import message, open_small

pytestmark = pytest.mark.both_builds

WRONG: dict[str, dict[str, Any]] = {
    "body": {"size": 2001},
    "properties": {"properties": {"a": "b" * 33_000}},
    "topic": {"topic": "a/b"},
    "long_topic": {"topic": "t" * 200},
    "no_topic": {"topic": ""},
    "queue": {"queue_id": 1 << 30},
    "separator": {"properties": {"a\x01": "b"}},
    "host": {"born_host": "nowhere"},
    "delay": {"properties": {"DELAY": "x"}},
    "many_messages": {"properties": {"INNER_NUM": "3"}},
    "many_messages_by_flag": {"sys_flag": 0x80},
}


def answers(world: Any, store: Any, check: bool, **fields: Any) -> list[tuple[Any, ...]]:
    """Return, for each of the three calls, status and number of written messages, or the type of error and its status."""
    found = []
    for way in ("put", "put_many", "put_batch"):
        made = message(world, 1, **fields)
        try:
            if way == "put":
                result = store.put(made, check=check)
            elif way == "put_many":
                result = store.put_many([made], check=check)
            else:
                result = store.put_batch(made.topic, made.queue_id, [made], check=check)
            found.append((result.status.name, result.message_count))
        except StoreError as error:
            kind = PutRejected if isinstance(error, PutRejected) else type(error)
            found.append((kind, getattr(error, "status", None), getattr(error, "message_count", None)))
    return found


@pytest.mark.parametrize("check", [False, True], ids=["status", "error"])
@pytest.mark.parametrize("wrong", WRONG)
def test_the_three_ways_to_put_refuse_alike(world: Any, tmp_path: Path, wrong: str, check: bool) -> None:
    """None of them writes anything."""
    with open_small(world, tmp_path, max_message_size=2000) as store:
        first, *others = answers(world, store, check, **WRONG[wrong])
        assert first[0] != "PUT_OK"
        assert others == [first, first]
        assert store.log_end == 0


def test_a_batch_too_large_as_a_whole_is_refused_by_its_status(world: Any, tmp_path: Path) -> None:
    """Two bodies fit on their own, but not as a batch."""
    with open_small(world, tmp_path, max_message_size=2000) as store:
        batch = [message(world, number, size=1500) for number in range(2)]
        result = store.put_batch("T", 0, batch, check=False)
        assert (result.status.name, result.message_count) == ("MESSAGE_ILLEGAL", 0)
        assert "batch body of 3044 bytes; at most 2000" in result.reason
        for kind in (PutRejected, InvalidMessage):
            with pytest.raises(kind, match="batch body of 3044 bytes"):
                store.put_batch("T", 0, batch)
        assert store.log_end == 0


@pytest.mark.parametrize("way", ["put_many", "put_batch"])
def test_the_message_that_is_refused_is_named(world: Any, tmp_path: Path, way: str) -> None:
    """The error has its position among the others; it is also an InvalidMessage."""
    with open_small(world, tmp_path, max_message_size=2000) as store:
        batch = [message(world, 0), message(world, 1, size=2001)]

        def put(check: bool) -> Any:
            return store.put_many(batch, check=check) if way == "put_many" else store.put_batch("T", 0, batch, check=check)

        result = put(False)
        assert (result.status.name, result.message_count, result.physical_offset) == ("MESSAGE_ILLEGAL", 0, -1)
        assert "message 1: body of 2001 bytes; at most 2000" in result.reason
        with pytest.raises(InvalidMessage, match="message 1: body of 2001 bytes"):
            put(True)
        assert store.log_end == 0


def test_a_batch_for_batch_queues_takes_no_record_of_many_messages(world: Any, tmp_path: Path) -> None:
    """Its members would get no offsets of their own, and all but one would be in no queue."""
    with open_small(world, tmp_path) as store:
        store.create_topic("T", attributes={"queue.type": "BatchCQ"})
        many = message(world, 1, properties={"INNER_NUM": "3"}, sys_flag=0x80)
        result = store.put_batch("T", 0, [many], check=False)
        assert (result.status.name, store.log_end) == ("MESSAGE_ILLEGAL", 0)
