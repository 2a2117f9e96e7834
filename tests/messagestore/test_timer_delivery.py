"""Timers: messages with a delivery time wait in the timer files, and each is delivered once, at its time."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from commitlog.walk import LogFiles
from consumequeue import Unit
from messagestore.repair.verification import verify_store
from messagestore.timers.new_files import new_units, slot_of
from messagestore.timers.rebuild_timers import rebuild_timers
from messagestore.timers.undelivered import TimerMessage
from storageio import DiskFull, InvalidMessage, OutOfRange, PutRejected
from tests.messagestore.kit import Clock, crash_copy, delivered_numbers, open_small

TIMER_TOPIC = "rmq_sys_wheel_timer"
START_MS = 1_700_000_000_000  # a whole second, as in `Clock`
WINDOW_MS = 172_800_000  # `timerRollWindowSlot`
UNIT = struct.Struct(">iqiqiqiiq")
SEEDS, STEPS = int(os.environ.get("BROKERSTORE_SEEDS", "3")), 120
WAITS_MS = [0, 1, 999, 1000, 5000, 30_000, 200_000, WINDOW_MS + 1000, 2 * WINDOW_MS]


def open_idle(world: Any, folder: Path, clock: Any = None, **changes: Any) -> Any:
    """Open a store whose housekeeper does nothing by itself."""
    store = open_small(world, folder, clock=clock, mapped_file_size_timer_log=1000, **changes)
    store.engine.housekeeper.thread.stop()
    return store


def deliver(store: Any) -> None:
    """Deliver everything that is due, as the housekeeper does."""
    for _ in range(10_000):
        store.engine.settle()
        with store.engine.housekeeper.guard:
            pause_s = store.engine.deliver_due()
        if pause_s:
            break
    else:
        raise AssertionError("always something to do")
    store.engine.settle()


def persist(store: Any) -> None:
    with store.engine.housekeeper.guard:
        store.engine.timers.persist()


def timer(world: Any, number: int, due_ms: int, **more: str) -> Any:
    properties = {"TIMER_DELIVER_MS": str(due_ms)} | more
    return world.commitlog.Message("T", b"%d" % number, queue_id=number % 2, keys=[f"k{number}"], properties=properties)


@pytest.mark.parametrize(
    ("properties", "out_ms"),
    [
        ({"TIMER_DELIVER_MS": str(START_MS + 5000)}, START_MS + 4000),
        ({"TIMER_DELIVER_MS": str(START_MS + 5001)}, START_MS + 5000),
        ({"TIMER_DELAY_MS": "7500"}, START_MS + 7000),
        ({"TIMER_DELAY_SEC": "7"}, START_MS + 6000),
        ({"TIMER_DELAY_SEC": "7", "TIMER_DELIVER_MS": "x"}, START_MS + 6000),
    ],
)
def test_a_timer_waits_as_a_real_broker_has_it(world: Any, tmp_path: Path, properties: dict[str, str], out_ms: int) -> None:
    """Topic, queue and properties are those of `HookUtils.transformTimerMessage`; TIMER_OUT_MS is the second before."""
    with open_idle(world, tmp_path / "s", Clock()) as store:
        message = world.commitlog.Message("T", b"7", queue_id=1, tags="paid", properties=properties)
        result = store.put(message)
        stored = store.message_at(result.physical_offset)
        assert (stored.topic, stored.queue_id) == (TIMER_TOPIC, 0)
        expected = {"TAGS": "paid", "REAL_TOPIC": "T", "REAL_QID": "1", "TIMER_OUT_MS": str(out_ms)}
        assert stored.properties == properties | expected


def test_a_timer_comes_when_its_second_is_over(world: Any, tmp_path: Path) -> None:
    """Not one millisecond before; the copy has the broker's properties, and lacks those of the waiting record."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        store.put(timer(world, 7, START_MS + 300_500))
        deliver(store)
        clock.now_ms = START_MS + 300_999
        deliver(store)
        assert delivered_numbers(store) == []
        clock.now_ms += 1
        deliver(store)
        deliver(store)
        (found,) = store.read("T", 1)
        assert found.properties == {
            "KEYS": "k7", "TIMER_DELIVER_MS": str(START_MS + 300_500), "TIMER_OUT_MS": str(START_MS + 300_000),
            "TIMER_ENQUEUE_MS": str(START_MS), "TIMER_DEQUEUE_MS": str(clock.now_ms),
        }  # fmt: skip
        assert (found.body, found.store_timestamp_ms) == (b"7", clock.now_ms)
        assert [message.body for message in store.query("T", "k7")] == [b"7"]


def test_delays_of_any_length_and_times_can_be_given(world: Any, tmp_path: Path) -> None:
    """A delay that is a level's goes there; any other, and `deliver_at`, is a timer. What is due already is not delayed."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        level = store.put("T", b"1", delay=timedelta(seconds=5))
        differing = store.put("T", b"2", queue_id=0, delay=timedelta(seconds=5.25))
        at = store.put("T", b"3", queue_id=0, deliver_at=datetime.fromtimestamp(START_MS / 1000 + 90 * 86400, UTC))
        assert store.put("T", b"4", queue_id=0, deliver_at=datetime(2001, 1, 1, tzinfo=UTC)).queue_offset == 0
        topics = [store.message_at(result.physical_offset).topic for result in (level, differing, at)]
        assert topics == ["SCHEDULE_TOPIC_XXXX", TIMER_TOPIC, TIMER_TOPIC]
        assert "DELAY" not in store.message_at(differing.physical_offset).properties
        clock.now_ms += 5999
        deliver(store)
        assert delivered_numbers(store) == [1, 4]
        clock.now_ms += 1
        deliver(store)
        assert delivered_numbers(store) == [1, 2, 4]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"properties": {"TIMER_DELAY_MS": "x"}}, InvalidMessage),
        ({"properties": {"TIMER_DELIVER_MS": str(1 << 63)}}, InvalidMessage),
        ({"properties": {"TIMER_DELAY_MS": str((1 << 63) - 1)}}, InvalidMessage),
        ({"properties": {"TIMER_DELIVER_MS": "5", "TIMER_DEL_UNIQKEY": "T+x"}}, InvalidMessage),
        ({"delay": timedelta(1), "deliver_at": datetime.now(UTC)}, InvalidMessage),
        ({"properties": {"TIMER_DELIVER_MS": "5"}, "delay_level": 1}, InvalidMessage),
        ({"deliver_at": 5}, TypeError),
        ({"deliver_at": datetime(1969, 1, 1, tzinfo=UTC)}, OutOfRange),
        ({"queue_id": 1 << 30, "delay": timedelta(days=9)}, InvalidMessage),
    ],
)
def test_a_time_that_has_no_meaning_is_refused(world: Any, tmp_path: Path, fields: dict[str, Any], error: type) -> None:
    """The error is a named one, and nothing is written."""
    with open_idle(world, tmp_path / "s", Clock()) as store:
        with pytest.raises(error):
            store.put("T", b"", **fields)
        assert store.log_end == 0


def test_transactions_and_batches_take_no_timers(world: Any, tmp_path: Path) -> None:
    """A timer in them would be delivered without its delay."""
    with open_idle(world, tmp_path / "s", Clock()) as store:
        with pytest.raises(InvalidMessage, match="no delay"):
            store.begin_transaction(timer(world, 1, START_MS + 9000))
        with pytest.raises(PutRejected, match="no delayed messages"):
            store.put_batch("T", 0, [timer(world, 0, START_MS + 9000)])
        assert store.log_end == 0


def test_a_delivered_timer_is_not_delayed_when_it_is_put_again(world: Any, tmp_path: Path) -> None:
    """It has TIMER_OUT_MS, as for `HookUtils.checkIfTimerMessage`."""
    with open_idle(world, tmp_path / "s", Clock()) as store:
        store.put(timer(world, 0, START_MS + 60_000, TIMER_OUT_MS="5"))
        assert delivered_numbers(store) == [0]


def test_a_far_timer_is_rolled(world: Any, tmp_path: Path) -> None:
    """After the window of two days it is stored again, with the same time; so retention does not lose it."""
    clock = Clock()
    day_ms = 86_400_000
    with open_idle(world, tmp_path / "s", clock) as store:
        store.put(timer(world, 0, START_MS + 9 * day_ms + 1))
        deliver(store)
        for day in range(1, 10):
            clock.now_ms = START_MS + day * day_ms + 999
            deliver(store)
            assert delivered_numbers(store) == []
        records = list(store.read(TIMER_TOPIC, 0))
        assert [one.properties.get("TIMER_ROLL_TIMES") for one in records] == [None, "1", "2", "3"]
        assert {one.properties["TIMER_OUT_MS"] for one in records} == {str(START_MS + 9 * day_ms)}
        clock.now_ms += 1
        deliver(store)
        assert delivered_numbers(store) == [0]


def rolls(store: Any) -> list[str | None]:
    return [one.properties.get("TIMER_ROLL_TIMES") for one in store.read(TIMER_TOPIC, 0)]


@pytest.mark.parametrize(
    ("wait_ms", "slot_ms", "magic"),
    [
        (WINDOW_MS - 1, WINDOW_MS - 1, 1), (WINDOW_MS, WINDOW_MS // 2, 3), (WINDOW_MS * 4 // 3 - 1, WINDOW_MS // 2, 3),
        (WINDOW_MS * 4 // 3, WINDOW_MS, 3), (9 * WINDOW_MS, WINDOW_MS, 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("deletes", ["", "U0"])
def test_a_timer_is_rolled_after_the_window_or_half_of_it(wait_ms: int, slot_ms: int, magic: int, deletes: str) -> None:
    """As `docs/formats/rocketmq-timer.md` has it: after half if less than a third would be left. A deletion has 4 more."""
    waiting = TimerMessage("T", "U1", START_MS + wait_ms, 0, 0, 100, START_MS, deletes)
    assert slot_of(waiting, START_MS) == (START_MS + slot_ms, magic + 4 * bool(deletes))


def test_a_rolled_record_has_the_brokers_properties(world: Any, tmp_path: Path) -> None:
    """Those of `TimerMessageStore.convert`; a number of rolls that is none counts as none."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        store.put(timer(world, 0, START_MS + WINDOW_MS + 1, TIMER_ROLL_TIMES="x"))
        deliver(store)
        clock.now_ms += WINDOW_MS // 2 + 1500
        deliver(store)
        first, second = store.read(TIMER_TOPIC, 0)
        more = {"TIMER_ENQUEUE_MS": START_MS, "TIMER_DEQUEUE_MS": clock.now_ms, "TIMER_ROLL_TIMES": 1}
        assert second.properties == first.properties | {name: str(value) for name, value in more.items()}
        assert (second.body, second.born_timestamp_ms) == (first.body, first.born_timestamp_ms)


def test_a_roll_is_not_repeated_after_a_kill(world: Any, tmp_path: Path) -> None:
    """The killed process had rolled one of two timers and delivered a third; no checkpoint says so."""
    clock = Clock()
    first, folder = tmp_path / "first", tmp_path / "s"
    with open_idle(world, first, clock) as store:
        store.put(timer(world, 0, START_MS + WINDOW_MS + 1))
        store.put(timer(world, 1, START_MS + WINDOW_MS // 2 + 1))
        deliver(store)
        clock.now_ms += 1000
        store.put(timer(world, 2, START_MS + WINDOW_MS + 1001))
        deliver(store)
        persist(store)
        clock.now_ms = START_MS + WINDOW_MS // 2 + 1000
        deliver(store)
        assert (rolls(store), delivered_numbers(store)) == ([None, None, None, "1"], [1])
        crash_copy(first, folder)
    clock.now_ms += 1000
    with open_idle(world, folder, clock) as store:
        deliver(store)
        assert (rolls(store), delivered_numbers(store)) == ([None, None, None, "1", "1"], [1])
        clock.now_ms = START_MS + WINDOW_MS + 2000
        deliver(store)
        assert delivered_numbers(store) == [0, 1, 2]


def test_a_far_deletion_is_rolled_with_its_timer(world: Any, tmp_path: Path) -> None:
    """Its first slot is not that of its time, so it deletes nothing there, and waits on."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        for number in (0, 1):
            store.put(timer(world, number, START_MS + WINDOW_MS + 1, UNIQ_KEY=f"U{number}"))
        store.put(timer(world, 2, START_MS + WINDOW_MS + 1, UNIQ_KEY="U2", TIMER_DEL_UNIQKEY="T+U1"))
        deliver(store)
        clock.now_ms += WINDOW_MS // 2 + 1000
        deliver(store)
        assert (rolls(store), delivered_numbers(store)) == ([None] * 3 + ["1"] * 3, [])
        clock.now_ms = START_MS + WINDOW_MS + 1000
        deliver(store)
        assert delivered_numbers(store) == [0]


@pytest.mark.parametrize(("wait_ms", "delay_ms", "magic"), [(3_600_000, 3_600_000, 1), (9 * WINDOW_MS, WINDOW_MS, 3)])
def test_rebuild_assigns_a_new_slot_to_a_timer_with_an_expired_slot(wait_ms: int, delay_ms: int, magic: int) -> None:
    """A timer that was to be rolled yesterday waits from now on; one that is due soon is not rolled again."""
    day_ms = WINDOW_MS // 2
    waiting = TimerMessage("T", "U1", START_MS + wait_ms, 0, 0, 100, START_MS - 2 * WINDOW_MS - day_ms, "")
    (unit,), _ = new_units([waiting], None, START_MS, 1000)
    assert (unit.write_ms, unit.delay_ms, unit.magic) == (START_MS, delay_ms, magic)


@pytest.mark.parametrize("ages_s", [[0, 1, 5, 5, 700_000, 2], [3], [9_000_000, 9_000_001]])
def test_overdue_seconds_keep_their_order_in_the_slots_before_now(ages_s: list[int]) -> None:
    """A broker delivers a slot in any order, and none that is older than seven days."""
    queue = [TimerMessage("T", "", START_MS - 1000 * age, 0, at, 100, START_MS - 10**10, "") for at, age in enumerate(ages_s)]
    last = Unit(1000, 100, 0)
    *units, marker = new_units(queue, last, START_MS, 10_000)[0]
    ranks = sorted(set(ages_s))
    assert [unit.due_ms for unit in units] == [START_MS - 1000 * ranks.index(age) for age in ages_s]
    assert {unit.delay_ms for unit in units} == {0}
    first_ms = new_units(queue, last, START_MS, 10_000)[1]
    assert first_ms == min(unit.due_ms for unit in units) and marker.due_ms == first_ms - 1000


def test_more_overdue_seconds_than_a_window_share_its_first_slot() -> None:
    """Their slots stay within the seven days that a broker reads."""
    count = WINDOW_MS // 1000 + 3
    queue = [TimerMessage("T", "", START_MS - 1000 * age, 0, age, 100, START_MS, "") for age in range(count)]
    units, first_ms = new_units(queue, None, START_MS, 1 << 24)
    assert first_ms == START_MS - WINDOW_MS
    assert [unit.due_ms for unit in units[-4:]] == [first_ms + 1000, first_ms, first_ms, first_ms]


@pytest.mark.parametrize("text", ["T+U1", "U1"])
def test_a_message_with_a_key_deletes_a_timer(world: Any, tmp_path: Path, text: str) -> None:
    """It deletes a timer of the same due second, with the topic or without. The message itself is never delivered."""
    clock = Clock()
    with open_idle(world, tmp_path / "s", clock) as store:
        for number in (0, 1):
            store.put(timer(world, number, START_MS + 9000, UNIQ_KEY=f"U{number}"))
        store.put(timer(world, 2, START_MS + 9000, UNIQ_KEY="U2", TIMER_DEL_UNIQKEY=text))
        clock.now_ms += 9000
        deliver(store)
        assert delivered_numbers(store) == [0]


def test_the_files_are_a_brokers(world: Any, tmp_path: Path) -> None:
    """`verify` finds nothing wrong, and a rebuild from the log makes the same units and slots."""
    clock = Clock()
    folder = tmp_path / "s"
    with open_idle(world, folder, clock) as store:
        for number in range(60):
            store.put(timer(world, number, START_MS + 1000 * (number % 7) + 500_000))
        deliver(store)
    assert [one for one in verify_store(str(folder)).problems if "timer" in one.kind] == []
    log = b"".join(path.read_bytes() for path in sorted((folder / "timerlog").iterdir()))
    found = [UNIT.unpack_from(log, at + inner) for at in range(0, len(log), 1000) for inner in range(0, 52 * 18, 52)]
    units = [unit for unit in found if unit[0] == 52]
    assert len(units) == 60
    assert {len(path.read_bytes()) for path in (folder / "timerlog").iterdir()} == {1000}
    assert {(unit[2], unit[3]) for unit in units} == {(1, START_MS)}
    assert sorted(unit[4] for unit in units) == sorted(499_000 + 1000 * (number % 7) for number in range(60))
    check = struct.unpack_from(">7q", (folder / "config" / "timercheck").read_bytes())
    assert (check[0], check[2], check[3]) == (START_MS, 60, 60)
    before = {path.name: path.read_bytes() for path in (folder / "timerlog").iterdir()}, (folder / "timerwheel").read_bytes()
    with open_idle(world, folder, clock, deliver_delayed=False) as store:
        files = LogFiles(store.engine.disk, [store.engine.paths.commit_log])
        queue = store.engine.queues.get(TIMER_TOPIC, 0)
        rebuild_timers(store.engine.disk, store.engine.paths, files, queue, keeps=False, now_ms=START_MS)
    after = {path.name: path.read_bytes() for path in (folder / "timerlog").iterdir()}, (folder / "timerwheel").read_bytes()
    assert after == before


def test_pending_timer_is_delivered_after_a_clean_stop(world: Any, tmp_path: Path) -> None:
    """Also what no unit was made for, and what became due meanwhile."""
    clock = Clock()
    folder = tmp_path / "s"
    with open_idle(world, folder, clock) as store:
        for number in range(40):
            store.put(timer(world, number, START_MS + 1000 * (number + 1)))
        clock.now_ms += 10_000
        deliver(store)
        assert delivered_numbers(store) == list(range(10))
        store.put(timer(world, 40, START_MS + 12_000))
    clock.now_ms += 10_000
    with open_idle(world, folder, clock) as store:
        deliver(store)
        assert delivered_numbers(store) == [*range(20), 40]
        clock.now_ms += 100_000
        deliver(store)
        assert delivered_numbers(store) == list(range(41))
        assert len(list((folder / "timerlog").iterdir())) == 3
        persist(store)
        assert len(list((folder / "timerlog").iterdir())) == 1, "files without a pending timer are deleted"


def test_without_timer_files_they_are_made_from_the_log(world: Any, tmp_path: Path) -> None:
    """As in the folder of a slave that becomes the master, and in one whose timers nobody delivered."""
    clock = Clock()
    folder = tmp_path / "s"
    with open_idle(world, folder, clock, deliver_delayed=False) as store:
        for number in range(10):
            store.put(timer(world, number, START_MS + 1000 * (number + 1)))
    assert not (folder / "timerlog").exists()
    with open_idle(world, folder, clock) as store:
        clock.now_ms += 5000
        deliver(store)
    shutil.rmtree(folder / "timerlog")
    (folder / "timerwheel").unlink()
    (folder / "config" / "timercheck").unlink()
    clock.now_ms += 50_000
    with open_idle(world, folder, clock) as store:
        clock.now_ms += 1000  # what is overdue gets the slot of the rebuild's second
        deliver(store)
        assert delivered_numbers(store) == list(range(10))


def test_a_failed_delivery_is_repeated(world: Any, tmp_path: Path) -> None:
    """A full disk stops a slot in the middle; afterwards only the rest is delivered, also by the next process."""
    clock = Clock()
    folder = tmp_path / "s"
    with open_idle(world, folder, clock) as store:
        for number in range(4):
            store.put(timer(world, number, START_MS + 2000))
        clock.now_ms += 2000
        appends = iter([None, None, DiskFull("write", "log", 28, "no space")])
        put = store.engine.internal_puts.put

        def failing(*given: Any, **named: Any) -> Any:
            error = next(appends, None)
            if error is not None:
                raise error
            return put(*given, **named)

        store.engine.internal_puts.put = failing
        with pytest.raises(DiskFull):
            deliver(store)
        assert delivered_numbers(store) == [0, 1]
        deliver(store)
        assert delivered_numbers(store) == [0, 1, 2, 3]


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_timer_is_delivered_once_over_random_kills(world: Any, tmp_path: Path, seed: int) -> None:
    """Puts, deliveries, checkpoints, clean stops and kills in random order; the time of each delivery is right."""
    rng = random.Random(seed)
    clock = Clock()
    folder = tmp_path / "s"
    store = open_idle(world, folder, clock)
    due: dict[int, int] = {}
    for step in range(STEPS):
        action = rng.choice(["put", "put", "time", "deliver", "persist", "kill", "close"])
        if action == "put":
            for _ in range(rng.randrange(1, 12)):
                number = len(due)
                due[number] = clock.now_ms + rng.choice(
                    [0, 1, 999, 1000, 5000, 30_000, 200_000, WINDOW_MS + 1000, 2 * WINDOW_MS]
                )
                key = {} if rng.random() < 0.5 else {"UNIQ_KEY": f"U{number}"}
                store.put(timer(world, number, due[number], **key))
        elif action == "time":
            clock.now_ms += rng.choice([1, 500, 1000, 40_000, WINDOW_MS // 2])
        elif action == "deliver":
            store.engine.settle()
            for _ in range(rng.randrange(1, 4)):
                store.engine.deliver_due()
        elif action == "persist":
            persist(store)
        elif action == "close":
            store.close()
            store = open_idle(world, folder, clock)
        else:
            target = tmp_path / f"k{step}"
            crash_copy(folder, target)
            store.close()
            folder = target
            store = open_idle(world, folder, clock)
    for _ in range(5):  # a timer is rolled twice at most
        clock.now_ms += WINDOW_MS // 2 + 1000
        deliver(store)
    found = [message for queue_id in store.queue_ids("T") for message in store.read("T", queue_id)]
    assert Counter(int(one.body) for one in found) == Counter(due.keys())
    assert all(one.store_timestamp_ms >= due[int(one.body)] for one in found)
    store.close()
    assert [one for one in verify_store(str(folder)).problems if "timer" in one.kind] == []
