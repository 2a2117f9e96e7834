"""Topics with batch queues, and batches as clients send them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from storageio import InvalidMessage, PutRejected
from tests.messagestore.kit import Clock, crash_copy, open_small, read_all
from tests.stores import encode_wire_batch

FILE_SIZE = 46 * 20


def open_batch(world: Any, folder: Path, mode: str = "a", **changes: Any) -> Any:
    store = open_small(world, folder, mode, mapper_file_size_batch_consume_queue=FILE_SIZE, **changes)
    if mode != "r":
        store.create_topic("B", 2, attributes={"queue.type": "BatchCQ"})
    return store


def put_inner(world: Any, store: Any, count: int | str, topic: str = "B", sys_flag: int = 0x80) -> Any:
    message = world.commitlog.Message(
        topic,
        b"%s messages" % str(count).encode(),
        queue_id=0,
        sys_flag=sys_flag,
        tags="paid",
        properties={"INNER_NUM": str(count)},
    )
    return store.put(message)


def units(store: Any) -> list[tuple[int, int]]:
    store.engine.settle()
    queue = store.engine.derived.batch.get("B", 0)
    return [(unit.base_offset, unit.batch_size) for unit in queue.units()] if queue is not None else []


def test_batch_record_advances_the_queue_offset_by_its_message_count(world: Any, tmp_path: Path) -> None:
    """Offsets, properties and 46-byte units are those of a real store (fixture batchcq); no ordinary queue is created."""
    clock = Clock()
    with open_batch(world, tmp_path / "s", clock=clock) as store:
        for count, base in ((8, 0), (1, 8), (3, 9)):
            result = put_inner(world, store, count)
            assert result.queue_offset == base
            stored = store.message_at(result.physical_offset)
            assert (stored.properties["INNER_BASE"], stored.properties["INNER_NUM"]) == (str(base), str(count))
        plain = store.put(world.commitlog.Message("B", b"alone", queue_id=0))
        assert plain.queue_offset == 12
        assert units(store) == [(0, 8), (8, 1), (9, 3), (12, 1)]
        last = store.engine.derived.batch.get("B", 0).last_unit
        assert (last.physical_offset, last.size_bytes) == (plain.physical_offset, plain.size_bytes)
        assert (last.store_timestamp_ms, last.compacted_offset, last.reserved) == (clock.now_ms, -1, 0)
        assert (store.min_offset("B", 0), store.max_offset("B", 0)) == (0, 13)
        assert store.engine.queues.get("B", 0) is None
        assert not (tmp_path / "s" / "consumequeue" / "B").exists()


def test_reading_gives_one_record_a_batch(world: Any, tmp_path: Path) -> None:
    """The record is found from any queue offset inside it, by pages, tags and times too."""
    clock = Clock()
    with open_batch(world, tmp_path / "s", clock=clock) as store:
        for count in (4, 2, 5):
            put_inner(world, store, count)
            clock.now_ms += 1000
        assert len(list(store.read("B", 0))) == 3
        assert len(list(store.read("B", 0, start=5))) == 2
        page = store.get("B", 0, 5, tags={"paid"})
        assert (page.status.value, len(page.messages), page.next_offset) == ("FOUND", 2, 11)
        assert store.get("B", 0, 5, tags={"other"}).status.value == "NO_MATCHED_MESSAGE"
        assert store.get("B", 0, 11).status.value == "OFFSET_OVERFLOW_ONE"
        assert store.offset_by_time("B", 0, clock.now_ms - 2000) == 4
        assert len(read_all(store, "B")) == 3


@pytest.mark.parametrize(("start", "stop"), [(0, None), (5, None), (0, 5), (4, 5), (6, 99), (11, None)])
def test_every_read_of_a_range_returns_the_same_records(world: Any, tmp_path: Path, start: int, stop: int | None) -> None:
    """Raw views and Arrow columns of a batch queue must not be empty."""
    pytest.importorskip("pyarrow")
    with open_batch(world, tmp_path / "s") as store:
        held = [(put_inner(world, store, count), first, first + count) for first, count in ((0, 4), (4, 2), (6, 5))]
        end = 11 if stop is None else stop
        expected = [result.physical_offset for result, first, last in held if first < end and last > start]
        assert [message.physical_offset for message in store.read("B", 0, start, stop)] == expected
        views = [view for views in store.read_raw("B", 0, start, stop) for view in views]
        assert [int.from_bytes(view[28:36], "big") for view in views] == expected
        table = store.read_columns("B", 0, start, stop, columns=["physical_offset"]).read_all()
        assert table["physical_offset"].to_pylist() == expected


def test_a_reader_finds_a_batch_queue_that_was_created_after_it_opened(world: Any, tmp_path: Path) -> None:
    """Its folder did not exist at the open, so the reader lists the folder again."""
    with open_batch(world, tmp_path / "s") as store, open_batch(world, tmp_path / "s", "r") as reader:
        assert reader.get("B", 0, 0).messages == []
        assert reader.engine.lookup.queue_ids("B") == []
        put_inner(world, store, 3)
        store.engine.settle()
        assert len(reader.get("B", 0, 0).messages) == 1
        assert (reader.engine.lookup.queue_ids("B"), reader.max_offset("B", 0)) == ([0], 3)


@pytest.mark.parametrize("is_killed", [False, True])
def test_batch_queue_offsets_continue_after_a_restart(world: Any, tmp_path: Path, is_killed: bool) -> None:
    """Offsets continue over several queue files; after a kill, missing units are rebuilt, even without the folder."""
    folder = tmp_path / "s"
    total, expected = 0, []
    for part in range(3):
        with open_batch(world, folder) as store:
            assert units(store) == expected
            for count in range(1, 20):
                assert put_inner(world, store, count).queue_offset == total
                expected.append((total, count))
                total += count
            assert units(store) == expected
            if is_killed:
                folder = crash_copy(folder, tmp_path / f"killed-{part}")
                if part:
                    shutil.rmtree(folder / "batchconsumequeue")
    with open_batch(world, folder, "r+") as store:
        assert units(store) == expected
        assert store.max_offset("B", 0) == total
        assert len(expected) == 57
    assert len(list((folder / "batchconsumequeue" / "B" / "0").iterdir())) == 3


def test_a_broken_batch_queue_is_cut_and_made_again(world: Any, tmp_path: Path) -> None:
    """Half of a unit was lost in a crash of the machine."""
    with open_batch(world, tmp_path / "s") as store:
        for _ in range(30):
            put_inner(world, store, 3)
        expected = units(store)
        copy = crash_copy(tmp_path / "s", tmp_path / "killed")
    last = sorted((copy / "batchconsumequeue" / "B" / "0").iterdir())[-1]
    data = bytearray(last.read_bytes())
    data[46 * 7 + 3 : 46 * 9] = bytes(46 * 2 - 3)
    last.write_bytes(bytes(data))
    with open_batch(world, copy, "r+") as store:
        assert units(store) == expected


def test_put_with_inconsistent_batch_flag_and_count_is_rejected(world: Any, tmp_path: Path) -> None:
    """The flag without a number, a number without the flag, either on an ordinary topic, and no number are refused."""
    with open_batch(world, tmp_path / "s") as store:
        illegal = world.commitlog.PutStatus.MESSAGE_ILLEGAL
        for arguments in ((3, "B", 0), (3, "T", 0x80), (3, "T", 0), ("many", "B", 0x80), (0, "B", 0x80), (40000, "B", 0x80)):
            with pytest.raises(PutRejected) as error:
                put_inner(world, store, *arguments)
            assert error.value.status == illegal, arguments
        with pytest.raises(PutRejected):
            store.put(world.commitlog.Message("B", b"x", queue_id=0, sys_flag=0x80))
        assert store.max_offset("B", 0) == 0
        store.put(world.commitlog.Message("T", b"x", queue_id=0))
        store.engine.settle()
        with pytest.raises(InvalidMessage):
            store.create_topic("T", attributes={"queue.type": "BatchCQ"})


OTHER_TYPES: list[dict[str, str]] = [{"queue.type": "SimpleCQ"}, {"message.type": "NORMAL"}]


@pytest.mark.parametrize("attributes", OTHER_TYPES)
def test_a_batch_topic_with_messages_keeps_its_type(world: Any, tmp_path: Path, attributes: dict[str, str]) -> None:
    """Attributes that would make its queues ordinary are refused; its batches still exist after a restart."""
    with open_batch(world, tmp_path / "s") as store:
        put_inner(world, store, 3)
        with pytest.raises(InvalidMessage, match="BatchCQ"):
            store.create_topic("B", attributes=attributes)
        put_inner(world, store, 2)
        store.create_topic("B", attributes={"queue.type": "BatchCQ", "message.type": "NORMAL"})
    with open_small(world, tmp_path / "s", "r") as store:
        assert [message.body for message in store.read("B", 0)] == [b"3 messages", b"2 messages"]
        assert units(store) == [(0, 3), (3, 2)]


def test_ordinary_topic_with_undispatched_messages_keeps_its_type(world: Any, tmp_path: Path) -> None:
    """The log decides, not the queues dispatched so far."""
    with open_small(world, tmp_path / "s") as store:
        store.engine.dispatcher.thread.stop()
        store.put(world.commitlog.Message("T", b"first", queue_id=0))
        with pytest.raises(InvalidMessage, match="T has messages"):
            store.create_topic("T", attributes={"queue.type": "BatchCQ"})
    with open_small(world, tmp_path / "s") as store:
        store.put(world.commitlog.Message("T", b"second", queue_id=0))
        assert [message.body for message in store.read("T", 0)] == [b"first", b"second"]


@pytest.mark.parametrize("attributes", [*OTHER_TYPES, {}])
def test_a_topic_without_messages_changes_its_type(world: Any, tmp_path: Path, attributes: dict[str, str]) -> None:
    """Both directions are allowed while the topic has no message; later puts go to queues of the new type."""
    with open_batch(world, tmp_path / "s") as store:
        store.create_topic("B", attributes=attributes)
        store.create_topic("T", attributes={"queue.type": "BatchCQ"})
        put_inner(world, store, 2, "T")
        is_batch = not attributes
        store.put(world.commitlog.Message("B", b"one", queue_id=0))
        store.engine.settle()
        assert store.engine.derived.batch.topics() == (["B", "T"] if is_batch else ["T"])
        assert store.engine.queues.topics() == ([] if is_batch else ["B"])


def test_other_ways_to_put_leave_no_gap_in_the_offsets(world: Any, tmp_path: Path) -> None:
    """`put_many`, `put_batch` and columns give each message of a topic with batch queues one offset."""
    with open_batch(world, tmp_path / "s") as store:
        put_inner(world, store, 5)
        store.put_many([world.commitlog.Message("B", b"x", queue_id=0, properties={"a": "b"}) for _ in range(3)])
        store.put_batch("B", 0, [world.commitlog.Message("B", b"x") for _ in range(3)])
        store.append_columns("B", 0, [b"x"] * 3)
        put_inner(world, store, 2)
        assert units(store) == [(0, 5), *((offset, 1) for offset in range(5, 14)), (14, 2)]


class Entered:
    """A guard that counts how often it is taken."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_error: object) -> None:
        pass


def test_every_way_to_put_takes_the_queue_offset_guard(world: Any, tmp_path: Path) -> None:
    """Every way to put takes the guard; without it, another message could get an offset of a batch."""
    with open_batch(world, tmp_path / "s") as store:
        guard = store.engine.routing.batch.guard = Entered()
        plain = world.commitlog.Message("B", b"x", queue_id=0)
        puts = [
            lambda: store.put(plain), lambda: store.put_many([plain]), lambda: store.put_batch("B", 0, [plain]),
            lambda: store.append_columns("B", 0, [b"x"]),
        ]  # fmt: skip
        for number, put in enumerate(puts):
            put()
            assert guard.count == number + 1


def test_a_real_stores_batch_queues_go_on(world: Any, fixture_store: Any) -> None:
    """The queues are found by their folder, because that store has no topics.json."""
    fixture = fixture_store("batchcq", own=True)
    expected = {(queue["topic"], queue["queueId"]): queue for queue in fixture.expected()["queues"] if "batchCq" in queue}
    with open_small(world, fixture.store, "r+") as store:
        for (topic, queue_id), queue in expected.items():
            store.create_topic(topic, attributes={"queue.type": "BatchCQ"})
            message = world.commitlog.Message(topic, b"ours", queue_id=queue_id, sys_flag=0x80, properties={"INNER_NUM": "4"})
            assert store.put(message).queue_offset == queue["maxOffset"]
            assert store.put(world.commitlog.Message(topic, b"ours", queue_id=queue_id)).queue_offset == queue["maxOffset"] + 4
            assert [message.body for message in list(store.read(topic, queue_id))[-2:]] == [b"ours", b"ours"]


def test_what_is_prepared_or_rolled_back_is_in_no_batch_queue(world: Any, tmp_path: Path) -> None:
    """As in a real store, no reader gets uncommitted records, even after the queues are rebuilt."""
    with open_batch(world, tmp_path / "s", clock=Clock()) as store:
        flags = (0x80, 0x84, 0x88, 0x8C, 0x80)
        positions = [put_inner(world, store, 2, sys_flag=flag).physical_offset for flag in flags]
        expected = [positions[0], positions[2], positions[4]]
        assert [message.physical_offset for message in store.read("B", 0)] == expected
        copy = crash_copy(tmp_path / "s", tmp_path / "copy")
    shutil.rmtree(copy / "batchconsumequeue")
    with open_batch(world, copy) as store:
        assert [message.physical_offset for message in store.read("B", 0)] == expected


def test_retention_deletes_batch_and_extended_files_too(world: Any, tmp_path: Path) -> None:
    """Files that only point at deleted records are deleted; the rest is read as before, also after a restart."""
    changes = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 2048}
    with open_batch(world, tmp_path / "s", **changes) as store:
        for _number in range(400):
            put_inner(world, store, 3)
            store.put(world.commitlog.Message("T", b"x" * 300, queue_id=0, tags="paid"))
        store.engine.settle()
        store.flush()
        before = [len(list((tmp_path / "s" / part).rglob("0*0"))) for part in ("batchconsumequeue", "consumequeue_ext")]
        store.delete_before(2 << 16)
        after = [len(list((tmp_path / "s" / part).rglob("0*0"))) for part in ("batchconsumequeue", "consumequeue_ext")]
        assert all(new < old for new, old in zip(after, before, strict=True))
        expected = [message.physical_offset for message in store.read("B", 0)]
        assert expected[0] >= 2 << 16
        tagged = store.get("T", 0, store.min_offset("T", 0), tags={"paid"})
        assert len(tagged.messages) > 0
    with open_batch(world, tmp_path / "s", "r+", **changes) as store:
        assert [message.physical_offset for message in store.read("B", 0)] == expected
        assert put_inner(world, store, 3).queue_offset == 1200
        assert len(store.get("T", 0, store.min_offset("T", 0), tags={"paid"}).messages) == len(tagged.messages)


def test_retention_of_a_queue_with_plain_units_before_extended_ones(world: Any, tmp_path: Path) -> None:
    """Its first units are plain ones: no extended unit is deleted before the first address."""
    with open_batch(world, tmp_path / "s") as store:
        for number in range(300):
            store.put(world.commitlog.Message("T", b"%d" % number + b"x" * 400, queue_id=0, tags="paid"))
    changes = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 2048}
    with open_batch(world, tmp_path / "s", **changes) as store:
        for number in range(300, 700):
            store.put(world.commitlog.Message("T", b"%d" % number + b"x" * 400, queue_id=0, tags="paid"))
        store.engine.settle()
        store.flush()
        folder = tmp_path / "s" / "consumequeue_ext" / "T" / "0"
        before = len(list(folder.iterdir()))
        for end in range(1, 6):
            store.delete_before(end << 16)
            low = store.min_offset("T", 0)
            assert (len(list(folder.iterdir())) == before) is (low < 300 + 2048 // 20)
            assert len(store.get("T", 0, low, tags={"paid"}).messages) > 0
            assert store.get("T", 0, low, tags={"other"}).messages == []
        assert low > 500


# Batches on the wire


def test_wire_batch_members_become_separate_records(world: Any, tmp_path: Path) -> None:
    """Members become separate records; the batch's properties follow each one's, and the later value counts."""
    members = [world.commitlog.Message("T", b"%d" % number, keys=[f"k{number}"], flag=number) for number in range(5)]
    members[0].properties = {"UNIQ_KEY": "own"}
    data = encode_wire_batch(members, world.commitlog.encode_properties)
    with open_small(world, tmp_path / "s") as store:
        result = store.put_wire_batch("T", 1, data, properties=b"UNIQ_KEY\x01batch\x02WAIT\x01true\x02", born_timestamp_ms=7)
        assert result.message_count == 5
        found = list(store.read("T", 1))
        assert [(one.body, one.flag, one.keys, one.born_timestamp_ms) for one in found] == [
            (b"%d" % number, number, [f"k{number}"], 7) for number in range(5)
        ]
        assert {one.all_properties["UNIQ_KEY"] for one in found} == {"batch"}
        assert found[0].properties_raw.count(b"UNIQ_KEY") == 2
        assert len(store.query("T", "batch")) == 5


def test_every_cut_and_many_damaged_batches_are_named_errors(world: Any, tmp_path: Path) -> None:
    """No length is trusted, and nothing of an invalid batch is written."""
    members = [world.commitlog.Message("T", b"body", tags="t") for _ in range(3)]
    data = encode_wire_batch(members, world.commitlog.encode_properties)
    size = len(data) // 3
    with open_small(world, tmp_path / "s") as store:
        for cut in range(len(data)):
            if cut % size or not cut:
                with pytest.raises(InvalidMessage):
                    store.put_wire_batch("T", 0, data[:cut])
        for position in (0, 1, 2, 3, 16, 17, 18, 19, size - 9, size - 8):
            damage = bytearray(data)
            damage[position] ^= 0x81
            with pytest.raises(InvalidMessage):
                store.put_wire_batch("T", 0, bytes(damage))
        assert store.log_end == 0


def test_copy_keeps_a_group_offset_at_the_end_of_a_batch_record(world: Any, tmp_path: Path) -> None:
    """The end of the queue counts all messages of a record; otherwise the group would get the last record again."""
    with open_batch(world, tmp_path / "s") as store:
        for count in (4, 10):
            put_inner(world, store, count)
        store.engine.consumer_offsets().commit("B", "g", 0, 14)
        store.copy_topics(tmp_path / "copy", ["B"])
    with open_batch(world, tmp_path / "copy") as copy:
        assert copy.committed_offsets("B", "g") == {0: 14}
        assert put_inner(world, copy, 3).queue_offset == 14


# Counting


def test_a_page_counts_the_messages_in_a_record(world: Any, tmp_path: Path) -> None:
    """As in RocketMQ's `isTheBatchFull`, it is full if the messages so far and the record's exceed the request."""
    with open_batch(world, tmp_path / "s") as store:
        for _ in range(50):
            put_inner(world, store, 20)
        for requested, records in ((1, 1), (20, 1), (39, 1), (40, 2), (59, 2), (60, 2), (1000, 2)):
            page = store.get("B", 0, 0, requested)  # one answer has at most 32 members: 20 are below that, 40 are not
            assert (len(page.messages), page.next_offset) == (records, 20 * records), requested
        assert [one.queue_offset for one in store.get("B", 0, 33, 39).messages] == [20]
    more = {"max_transfer_count_on_message_in_memory": 1000}
    with open_batch(world, tmp_path / "s", **more) as store:
        for requested, records in ((39, 1), (40, 2), (59, 2), (60, 3), (640, 32), (1000, 50)):
            assert len(store.get("B", 0, 0, requested).messages) == records, requested


def test_every_record_comes_page_by_page(world: Any, tmp_path: Path) -> None:
    """Records of many lengths are read a few at a time: none is skipped, and a large one comes alone."""
    with open_batch(world, tmp_path / "s") as store:
        counts = [1, 5, 40, 2, 1, 33, 32, 31, 1, 1, 100, 3]
        for count in counts:
            put_inner(world, store, count)
        for requested in (1, 7, 32, 64):
            offset, found = 0, []
            while (page := store.get("B", 0, offset, requested)).messages:
                members = [int(one.properties["INNER_NUM"]) for one in page.messages]
                assert len(members) == 1 or sum(members) <= requested
                found += members
                offset = page.next_offset
            assert found == counts


def test_the_minimum_of_a_batch_queue_is_its_first_message_in_the_log(world: Any, tmp_path: Path) -> None:
    """This holds after retention, after opening again, and for a reader."""
    with open_batch(world, tmp_path / "s") as store:
        for _ in range(400):
            fields = {"queue_id": 0, "sys_flag": 0x80, "properties": {"INNER_NUM": "10"}}
            store.put(world.commitlog.Message("B", bytes(500), **fields))
        store.engine.settle()
        store.flush()
        store.delete_before(2 << 16)
        low = store.engine.log.min_offset
        assert low == 2 << 16
        expected = next(
            unit.base_offset for unit in store.engine.derived.batch.get("B", 0).units() if unit.physical_offset >= low
        )
        assert expected % 200, "not the first of a file"
        assert store.min_offset("B", 0) == expected
        page = store.get("B", 0, expected - 10)
        assert (page.status.name, page.next_offset) == ("OFFSET_TOO_SMALL", expected)
        assert store.get("B", 0, expected).messages[0].queue_offset == expected
        with open_batch(world, tmp_path / "s", "r") as reader:
            assert reader.min_offset("B", 0) == expected
    for mode in ("r", "a"):
        with open_batch(world, tmp_path / "s", mode) as store:
            assert store.min_offset("B", 0) == expected
