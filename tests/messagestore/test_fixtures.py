"""Stores that RocketMQ wrote, opened for writing with and without their queues and index."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import contents
from tests.messagestore import kit
from tests.messagestore.kit import read_all

HEALTHY = ("plain", "propcrc")
CRASHED = ("crash-torn", "crash-lost-cq")


def open_small(world: Any, folder: Path, mode: str, **changes: Any) -> Any:
    """Open a store without deliveries: the delayed messages in these folders are due, and would be delivered during a test."""
    return kit.open_small(world, folder, mode, deliver_delayed=False, **changes)


def drop_derived(store: Path) -> dict[str, bytes]:
    """Delete queues and index, and return the queue files."""
    queues = contents(store / "consumequeue")
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    return queues


def check_queues(world: Any, store: Any, expected: dict[str, Any]) -> None:
    """Compare bounds, units and messages of every queue with the manifest."""
    assert [(queue["topic"], queue["queueId"]) for queue in expected["queues"]] == sorted(
        (topic, queue_id) for topic in store.topics() for queue_id in store.queue_ids(topic)
    )
    for queue in expected["queues"]:
        name = queue["topic"], queue["queueId"]
        assert (store.min_offset(*name), store.max_offset(*name)) == (queue["minOffset"], queue["maxOffset"])
        units = [tuple(unit) for _, unit in store.engine.queues.get(*name).units()]
        assert units == [tuple(unit) for unit in queue["cq"]]
        got = read_all(store, *name)
        assert [message.physical_offset for message in got] == queue["getMessagePhyOffsets"]
        assert [message.physical_offset for message in store.read(*name)] == queue["getMessagePhyOffsets"]


def check_messages(store: Any, expected: dict[str, Any]) -> None:
    """Compare every record with the manifest, with all of its fields."""
    for requested in expected["messages"]:
        found = store.message_at(requested["physicalOffset"])
        assert found.body == base64.b64decode(requested["body"] or "")
        assert (found.topic, found.queue_id, found.queue_offset) == (
            requested["topic"],
            requested["queueId"],
            requested["queueOffset"],
        )
        assert (found.store_timestamp_ms, found.message_id) == (requested["storeTimestamp"], requested["msgId"])
        assert found.all_properties == requested["properties"]


def check_answers(world: Any, store: Any, expected: dict[str, Any], name: str = "queryMessagePhyOffsets") -> None:
    """Compare every query and every search by time."""
    boundary = world.consumequeue.Boundary
    for query in expected["queries"]:
        found = store.query(query["topic"], query["key"], query["begin"], query["end"], query["maxNum"])
        assert [message.physical_offset for message in found] == query[name], query
    for queue in expected["queues"]:
        for time in queue["offsetByTime"]:
            position = queue["topic"], queue["queueId"], time["timestamp"]
            found = store.offset_by_time(*position), store.offset_by_time(*position, boundary.UPPER)
            assert found == (time["lower"], time["upper"]), position


@pytest.mark.parametrize("name", HEALTHY)
def test_a_real_store_is_opened_for_reading_and_not_a_byte_changes(world: Any, fixture_store: Any, name: str) -> None:
    """With mode "r" all results are those of the manifest."""
    fixture = fixture_store(name, own=True)
    before = contents(fixture.store)
    with open_small(world, fixture.store, "r") as store:
        check_queues(world, store, fixture.expected())
        check_messages(store, fixture.expected())
        check_answers(world, store, fixture.expected())
    assert contents(fixture.store) == before


@pytest.mark.parametrize("name", HEALTHY)
def test_lost_queues_and_index_are_rebuilt_byte_for_byte(world: Any, fixture_store: Any, name: str) -> None:
    """Opening for writing rebuilds both from the log: the queue files byte by byte, the index with the same results."""
    fixture = fixture_store(name, own=True)
    log = contents(fixture.store / "commitlog")
    queues = drop_derived(fixture.store)
    with open_small(world, fixture.store, "r+") as store:
        check_queues(world, store, fixture.expected())
        check_answers(world, store, fixture.expected())
    assert contents(fixture.store / "consumequeue") == queues
    assert contents(fixture.store / "commitlog") == log
    assert not (fixture.store / "abort").exists()


def test_the_index_is_rebuilt_to_the_byte_under_the_same_clock(world: Any, fixture_store: Any) -> None:
    """Items, slots and headers of both index files are equal; only the names show when they were created."""
    fixture = fixture_store("plain", own=True)
    before = list(contents(fixture.store / "index").values())
    drop_derived(fixture.store)
    with open_small(world, fixture.store, "r+"):
        pass
    assert list(contents(fixture.store / "index").values()) == before


@pytest.mark.parametrize("name", HEALTHY)
def test_sizes_are_found_from_a_real_stores_files(world: Any, fixture_store: Any, name: str) -> None:
    """No size is given, and all of them are detected."""
    fixture = fixture_store(name)
    with world.messagestore.MessageStore.open(fixture.store, "r") as store:
        config = store.config
        found = config.mapped_file_size_consume_queue, config.max_hash_slot_num, config.max_index_num
        assert found == (2000, 500, 2000)
        check_answers(world, store, fixture.expected())


def test_real_store_accepts_further_puts(world: Any, fixture_store: Any) -> None:
    """Offsets continue in a broker's folder, and old and new messages exist after another open."""
    fixture = fixture_store("plain", own=True)
    expected = fixture.expected()
    with open_small(world, fixture.store, "r+") as store:
        for number in range(30):
            message = world.commitlog.Message("HotTopic", b"new", keys=[f"new-{number}"], queue_id=0)
            assert store.put(message).queue_offset == 705 + number
        other = store.put(world.commitlog.Message("Fresh", b"new"))
        assert other.queue_offset == 0
    with open_small(world, fixture.store, "r+") as store:
        check_messages(store, expected)
        assert store.max_offset("HotTopic", 0) == 735
        assert [message.keys for message in store.query("HotTopic", "new-7")] == [["new-7"]]
        assert len(read_all(store, "HotTopic")) == 735
        assert set(store.topics()) == {queue["topic"] for queue in expected["queues"]} | {"Fresh"}


def test_putting_to_a_new_topic_never_makes_the_old_ones_count_as_deleted(world: Any, fixture_store: Any) -> None:
    """The first topics.json in an old store has its topics, so a later rebuild from the log restores every queue."""
    fixture = fixture_store("plain", own=True)
    before = contents(fixture.store / "consumequeue")
    with open_small(world, fixture.store, "r+") as store:
        store.create_topic("Fresh", 4)
    drop_derived(fixture.store)
    with open_small(world, fixture.store, "r+"):
        pass
    assert contents(fixture.store / "consumequeue") == before


@pytest.mark.parametrize("name", CRASHED)
def test_after_a_crash_every_message_unit_and_key_is_there(world: Any, fixture_store: Any, name: str) -> None:
    """RocketMQ loses keys after any crash, and units if a queue folder is lost."""
    fixture = fixture_store(name, own=True)
    before, recovered = fixture.expected("before.json"), fixture.expected("recovered.json")
    with open_small(world, fixture.store, "r+") as store:
        check_messages(store, recovered)
        end = recovered["maxPhyOffset"]
        assert store.engine.log.written_offset == end
        for queue in before["queues"]:
            units = [tuple(unit) for unit in queue["cq"] if unit[0] + unit[1] <= end]
            found = store.engine.queues.get(queue["topic"], queue["queueId"]).units()
            assert [tuple(unit) for _, unit in found] == units
        for query in before["queries"]:
            expected = [offset for offset in query["queryMessagePhyOffsets"] if offset < end]
            found = store.query(query["topic"], query["key"], query["begin"], query["end"], query["maxNum"])
            assert [message.physical_offset for message in found] == expected
    assert not (fixture.store / "abort").exists()


def test_the_cut_bytes_of_a_torn_record_are_kept_and_the_log_is_zero_behind_its_end(world: Any, fixture_store: Any) -> None:
    """Stale bytes never follow a new record, and nothing of them is lost."""
    fixture = fixture_store("crash-torn", own=True)
    end = fixture.expected("recovered.json")["maxPhyOffset"]
    path = fixture.store / "commitlog" / f"{end // 65536 * 65536:020d}"
    torn = path.read_bytes()[end % 65536 :].rstrip(b"\0")
    with open_small(world, fixture.store, "r+"):
        assert not path.read_bytes()[end % 65536 :].strip(b"\0")
    kept = [file.read_bytes() for file in (fixture.store / "brokerstore").glob(f"cut-{end:020d}-*")]
    assert kept == [torn]


@pytest.mark.parametrize("name", CRASHED)
def test_a_recovered_store_opened_again_is_clean_and_the_same(world: Any, fixture_store: Any, name: str) -> None:
    """The second open has nothing to do."""
    fixture = fixture_store(name, own=True)
    with open_small(world, fixture.store, "r+") as store:
        first = {(queue.topic, queue.queue_id): list(queue.units()) for queue in store.engine.queues}
    queues = contents(fixture.store / "consumequeue")
    with open_small(world, fixture.store, "r+") as store:
        assert store.engine.was_clean
        assert {(queue.topic, queue.queue_id): list(queue.units()) for queue in store.engine.queues} == first
    assert contents(fixture.store / "consumequeue") == queues
