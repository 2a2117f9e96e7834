"""LMQs (light message queues): offsets at the put, units by the dispatcher, and the limit on their number."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from messagestore.repair.rebuild_store import rebuild_store
from storageio import PutRejected
from tests.helpers import contents
from tests.messagestore.kit import Clock, crash_copy, hold_dispatch, open_small, put_numbers, read_all, small
from tests.messagestore.test_delays import deliver

NAMES, NUMBERS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"


def open_lmq(world: Any, folder: Path, mode: str = "a", **changes: Any) -> Any:
    return open_small(world, folder, mode, **({"enable_lmq": True} | changes))


def put_lmq(world: Any, store: Any, number: int, *names: str, **fields: Any) -> Any:
    properties = {NAMES: ",".join(f"%LMQ%{name}" for name in names)} if names else None
    message = world.commitlog.Message("T", b"%d" % number, queue_id=0, tags="paid", properties=properties, **fields)
    return store.put(message)


def bodies(store: Any, name: str) -> list[int]:
    return [int(message.body) for message in store.read(f"%LMQ%{name}", 0)]


def test_each_named_queue_holds_the_message_once(world: Any, tmp_path: Path) -> None:
    """The record's numbers and the queues themselves show it; the topic's own queue has it too."""
    with open_lmq(world, tmp_path / "s") as store:
        for number in range(300):
            names = [name for name, step in (("a", 1), ("b", 2), ("c", 7)) if number % step == 0]
            result = put_lmq(world, store, number, *names)
            expected = ",".join(str(number // step) for step in (1, 2, 7) if number % step == 0)
            assert store.message_at(result.physical_offset).all_properties[NUMBERS] == expected
        assert bodies(store, "a") == list(range(300))
        assert bodies(store, "b") == list(range(0, 300, 2))
        assert bodies(store, "c") == list(range(0, 300, 7))
        assert len(read_all(store, "T")) == 300
        assert [message.body for message in store.get("%LMQ%c", 0, 0, tags={"paid"}).messages][:2] == [b"0", b"7"]


def test_lmq_offsets_are_the_last_property(world: Any, tmp_path: Path) -> None:
    """It is as in a real store's records (fixture lmq); an old value is replaced."""
    with open_lmq(world, tmp_path / "s", enabled_append_prop_crc=False) as store:
        message = world.commitlog.Message("T", b"1", properties={NUMBERS: "99", NAMES: "%LMQ%a", "z": "y"}, queue_id=0)
        result = store.put(message)
        raw = store.message_at(result.physical_offset).properties_raw
        assert raw.endswith(f"{NUMBERS}\x010\x02".encode())
        assert raw.count(NUMBERS.encode()) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_lmq_offsets_continue_after_a_restart(world: Any, tmp_path: Path, is_killed: bool) -> None:
    """They follow from the queues' lengths; after a kill missing units are built again."""
    folder = tmp_path / "s"
    for part in range(3):
        with open_lmq(world, folder) as store:
            for number in range(100 * part, 100 * part + 100):
                put_lmq(world, store, number, "a")
            assert bodies(store, "a") == list(range(100 * part + 100))
            if is_killed:
                folder = crash_copy(folder, tmp_path / f"killed-{part}")
                shutil.rmtree(folder / "consumequeue" / "%LMQ%a" / "0") if part == 1 else None
    with open_lmq(world, folder, "r") as store:
        assert bodies(store, "a") == list(range(300))


def test_lmqs_lost_in_a_crash_are_rebuilt_without_lmq_settings(world: Any, tmp_path: Path) -> None:
    """The folder's list of queues has them, so a store opened without LMQ settings rebuilds them too."""
    with open_lmq(world, tmp_path / "s") as store:
        for number in range(50):
            put_lmq(world, store, number, "a", "b")
    before = contents(tmp_path / "s" / "consumequeue")
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    (tmp_path / "s" / "abort").touch()
    with open_small(world, tmp_path / "s"):
        pass
    assert contents(tmp_path / "s" / "consumequeue") == before


def killed_before_dispatch(world: Any, folder: Path, target: Path) -> Path:
    """Copy a store whose first LMQ messages are in the log and in no queue."""
    with open_lmq(world, folder) as store:
        resume = hold_dispatch(store)
        for number in range(5):
            put_lmq(world, store, number, "a", "b")
        copied = crash_copy(folder, target)
        resume()
        store.engine.settle()
    return copied


@pytest.mark.parametrize("changes", [{}, {"enable_multi_dispatch": False}])
def test_lmq_messages_not_dispatched_before_a_kill_reach_their_queues(world: Any, tmp_path: Path, changes: Any) -> None:
    """The log decides, not the configuration of the next open: no number is given twice."""
    folder = killed_before_dispatch(world, tmp_path / "s", tmp_path / "killed")
    assert not (folder / "consumequeue" / "%LMQ%a").exists()
    with open_small(world, folder, **changes) as store:
        put_numbers(world, store, range(1))
        assert bodies(store, "a") == bodies(store, "b") == list(range(5))
    assert verified(world, folder) == []
    with open_lmq(world, folder) as store:
        result = put_lmq(world, store, 5, "a")
        assert store.message_at(result.physical_offset).all_properties[NUMBERS] == "5"
        assert bodies(store, "a") == list(range(6))


def verified(world: Any, folder: Path) -> list[str]:
    report = world.module("messagestore.repair.verification").verify_store(str(folder))
    return [problem.kind for problem in report.problems]


def test_verify_reports_lmqs_that_never_existed_in_the_folder(world: Any, tmp_path: Path) -> None:
    """`verify` checks what the log names and `rebuild` creates it, even if the folder has no LMQ."""
    folder = tmp_path / "s"
    with open_lmq(world, folder) as store:
        for number in range(5):
            put_lmq(world, store, number, "a")
    before = contents(folder / "consumequeue")
    shutil.rmtree(folder / "consumequeue" / "%LMQ%a")
    assert verified(world, folder) == ["missing_queue"]
    rebuild_store(str(folder))
    assert contents(folder / "consumequeue") == before


def test_lmq_beyond_the_limit_is_rejected(world: Any, tmp_path: Path) -> None:
    """The status is LMQ_CONSUME_QUEUE_NUM_EXCEEDED and nothing is written; known queues work, also after a restart."""
    status = world.commitlog.PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
    for part in range(2):
        with open_lmq(world, tmp_path / "s", max_lmq_consume_queue_num=3) as store:
            put_lmq(world, store, 0, "a", "b")
            put_lmq(world, store, 1, "c")
            end = store.log_end
            for names in (("d",), ("a", "d"), ("d", "e")):
                with pytest.raises(PutRejected) as error:
                    put_lmq(world, store, 2, *names)
                assert error.value.status == status
            assert (
                store.put(world.commitlog.Message("T", b"x", queue_id=0, properties={NAMES: "%LMQ%d"}), check=False).status
                is status
            )
            assert store.log_end == end
            put_lmq(world, store, 3, "a", "b", "c")
            assert bodies(store, "c") == [1, 3] * (part + 1)


def test_duplicate_lmq_name_is_counted_as_by_a_broker(world: Any, tmp_path: Path) -> None:
    """As in a broker, it has the number twice, counts two further and has one unit; a restart counts again."""
    with open_lmq(world, tmp_path / "s") as store:
        numbers = []
        for number, names in enumerate((["a"], ["a", "a"], ["a"])):
            result = put_lmq(world, store, number, *names)
            numbers.append(store.message_at(result.physical_offset).all_properties[NUMBERS])
        assert numbers == ["0", "1,1", "3"]
        assert bodies(store, "a") == [0, 1, 2]
    with open_lmq(world, tmp_path / "s") as store:
        result = put_lmq(world, store, 3, "a")
        assert store.message_at(result.physical_offset).all_properties[NUMBERS] == "3"
        assert bodies(store, "a") == [0, 1, 2, 3]


def test_invalid_lmq_name_is_rejected(world: Any, tmp_path: Path) -> None:
    """A name without the prefix blocks a broker's dispatch and is refused; one with a slash has a number and no queue."""
    with open_lmq(world, tmp_path / "s") as store:
        for names in ("plain", "%LMQ%a,plain", "%LMQ%a,,%LMQ%b", "%LMQ%" + "x" * 260):
            with pytest.raises(PutRejected) as error:
                store.put(world.commitlog.Message("T", b"1", queue_id=0, properties={NAMES: names}))
            assert error.value.status == world.commitlog.PutStatus.MESSAGE_ILLEGAL
        put_lmq(world, store, 1, "a/b", "c")
        assert bodies(store, "c") == [1]
        assert not any("/" in topic for topic in store.topics())


def test_message_lost_from_all_but_an_lmq_keeps_its_offset_there(world: Any, tmp_path: Path) -> None:
    """Its own topic's queue is missing too, so the filler is in the LMQ; later numbers stay in any recovery."""
    recover = world.module("messagestore.repair.recover")
    folder = tmp_path / "s"
    with open_lmq(world, folder) as store:
        positions = [put_lmq(world, store, number, "a") for number in range(5)]
    with min((folder / "commitlog").iterdir()).open("r+b") as file:
        file.seek(positions[2].physical_offset)
        file.write(b"\xee" * positions[2].size_bytes)
    for gone in ("consumequeue/T", "consumequeue"):
        shutil.rmtree(folder / gone)
        recover.Recovery(str(folder), recover.Choice.SKIP, small(world)).apply()
        plan = recover.Recovery(str(folder)).plan()
        assert plan.steps == [] and len(plan.unrepaired) == len(plan.findings) == 1, "the number that T lacks stays"
        with open_lmq(world, folder, "r") as store:
            units = [store.engine.queues.get("%LMQ%a", 0).unit(position) for position in range(5)]
            found = [store.message_at(unit.physical_offset) for unit in units]
        assert [message.body for message in found if message.topic == "T"] == [b"0", b"1", b"3", b"4"]
        assert (found[2].topic, found[2].queue_offset) == ("%LMQ%a", 2)


LONG = "%LMQ%" + "x" * 300
UNUSUAL_LISTS = [
    (LONG, "0"), ("%LMQ%a\\b", "0"), ("%LMQ%a\0b", "0"), ("%LMQ%a/b", "0"),  # not possible as folder names
    ("%LMQ%a", "0,1"), ("%LMQ%a,%LMQ%b", "0"),  # lists of different lengths
    ("%LMQ%a", "x"), ("%LMQ%a", "9" * 4000), ("plain", "0"), (" ", "0"),
]  # fmt: skip


@pytest.mark.parametrize(("names", "numbers"), UNUSUAL_LISTS)
@pytest.mark.parametrize("is_killed", [False, True])
def test_record_with_an_invalid_lmq_list_does_not_stop_dispatch(
    world: Any, tmp_path: Path, names: str, numbers: str, is_killed: bool
) -> None:
    """Another program may have written it: it is in its own queue and in no LMQ, and the rest is dispatched.

    A name too long for a folder must not end dispatch.
    """
    folder = tmp_path / "s"
    differing = world.commitlog.Message("T", b"0", queue_id=0, properties={NAMES: names, NUMBERS: numbers})
    with open_lmq(world, folder, enable_lmq=False, enable_multi_dispatch=True) as store:
        store.put(differing)
        put_lmq(world, store, 1)
        assert [message.body for message in read_all(store, "T")] == [b"0", b"1"]
        copied = crash_copy(folder, tmp_path / "copy")
    if is_killed:
        folder = copied
        shutil.rmtree(folder / "consumequeue")
    with open_lmq(world, folder) as store:
        put_lmq(world, store, 2, "a")
        assert [message.body for message in read_all(store, "T")] == [b"0", b"1", b"2"]
        assert bodies(store, "a") == [2]
        assert store.topics() == ["%LMQ%a", "T"]
    assert world.module("messagestore.repair.recover").Recovery(str(folder)).plan().findings == []


def test_topics_that_are_not_eligible(world: Any, tmp_path: Path) -> None:
    """Messages of retry topics, and in stores with LMQ disabled, are ordinary messages."""
    message = world.commitlog.Message("%RETRY%g", b"1", queue_id=0, properties={NAMES: "%LMQ%a"})
    with open_lmq(world, tmp_path / "s") as store:
        result = store.put(message)
        assert NUMBERS not in store.message_at(result.physical_offset).all_properties
        assert "%LMQ%a" not in store.topics()
    with open_small(world, tmp_path / "off") as store:
        result = put_lmq(world, store, 1, "a")
        assert NUMBERS not in store.message_at(result.physical_offset).all_properties


def test_delayed_message_is_in_no_lmq_before_its_delivery(world: Any, tmp_path: Path) -> None:
    """A delayed message gets its number at its delivery; one that was sent back is in an LMQ once, as it was."""
    clock = Clock()
    with open_lmq(world, tmp_path / "s", clock=clock, deliver_delayed=False) as store:
        properties = {NAMES: "%LMQ%a", "DELAY": "1"}
        store.put(world.commitlog.Message("T", b"1", queue_id=0, properties=properties))
        put_lmq(world, store, 2, "a")
        assert bodies(store, "a") == [2]
        with store.consumer("T", group="g") as consumer:
            consumer.nack(consumer.poll()[0], delay_level=1)
        clock.now_ms += 1000
        deliver(store)
        assert bodies(store, "a") == [2, 1]
        assert store.max_offset("%RETRY%g", 0) == 1
    before = contents(tmp_path / "s" / "consumequeue")
    shutil.rmtree(tmp_path / "s" / "consumequeue")
    (tmp_path / "s" / "abort").touch()
    with open_lmq(world, tmp_path / "s", clock=clock, deliver_delayed=False):
        pass
    assert contents(tmp_path / "s" / "consumequeue") == before


def test_threads_get_dense_numbers(world: Any, tmp_path: Path) -> None:
    """The log has the numbers of each queue in order."""
    import threading

    with open_lmq(world, tmp_path / "s") as store:

        def put_some() -> None:
            for number in range(100):
                put_lmq(world, store, number, "a", f"b{number % 3}")

        threads = [threading.Thread(target=put_some) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [message.all_properties[NUMBERS].split(",")[0] for message in store.read("%LMQ%a", 0)]
        assert found == [str(number) for number in range(400)]


def test_lmqs_of_a_real_store_continue(world: Any, fixture_store: Any) -> None:
    """The next number is the queue's length, as in the real store after a restart."""
    fixture = fixture_store("lmq", own=True)
    lengths = {
        queue["topic"]: queue["maxOffset"] for queue in fixture.expected()["queues"] if queue["topic"].startswith("%LMQ%")
    }
    with open_lmq(world, fixture.store, "r+") as store:
        for topic, length in lengths.items():
            result = put_lmq(world, store, 0, topic.removeprefix("%LMQ%"))
            assert store.message_at(result.physical_offset).all_properties[NUMBERS] == str(length)
        store.engine.settle()
        assert {topic: store.max_offset(topic, 0) - 1 for topic in lengths} == lengths


def test_copy_keeps_group_offsets_in_the_lmq_offset_file(world: Any, tmp_path: Path) -> None:
    """Such a broker never reads consumerOffset.json: with that file every group would start from 0."""
    with open_small(world, tmp_path / "s", enable_lmq=True) as store:
        for _ in range(5):
            store.put(world.commitlog.Message("T", b"x", queue_id=0, properties={"INNER_MULTI_DISPATCH": "%LMQ%a"}))
    table = b'{"offsetTable":{"T@g":{0:3},"%LMQ%a@g":{0:2}},"lmqOffsetTable":{"%LMQ%a@%LMQ%a":4}}'
    (tmp_path / "s" / "config" / "lmqConsumerOffset.json").write_bytes(table)
    with open_small(world, tmp_path / "s", "r", enable_lmq=True) as store:
        assert store.copy_topics(tmp_path / "copy", ["T", "%LMQ%a"]).groups == ["%LMQ%a", "g"]
    config = tmp_path / "copy" / "config"
    assert not (config / "consumerOffset.json").exists()
    with open_small(world, tmp_path / "copy", "r", enable_lmq=True) as copy:
        assert copy.committed_offsets("T", "g") == {0: 3}
        assert copy.committed_offsets("%LMQ%a", "g") == {0: 2} and copy.committed_offsets("%LMQ%a", "%LMQ%a") == {0: 4}
