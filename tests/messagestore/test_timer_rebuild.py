"""Timer files made again from the log: units, slots and checkpoint that a 5.3.3 broker delivers from."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commitlog import Message
from messagestore import MessageStore
from messagestore.repair.recover import Choice, Recovery
from messagestore.repair.verification import verify_store
from messagestore.timers.layout import CHECK_NAME, WHEEL_SIZE, WHEEL_SLOTS
from storageio.testing import WrappedDisk
from tests.brokerstore.tool import run
from tests.faults.test_unknown_formats import records, snapshot
from tests.messagestore.support import put_internally
from tests.messagestore.test_timers import waiting_by_the_log
from tests.stores import small_config

NOW_MS = 1_795_434_240_700  # 38 seconds after the fixture's timers were sent
UNIT = struct.Struct(">iqiqiqiiq")
SLOT = struct.Struct(">qqqii")
CONFIG = small_config(max_hash_slot_num=500, max_index_num=2000)


class AtNow(WrappedDisk):
    """A disk whose clock stands still."""

    def now_ms(self) -> int:
        return NOW_MS


class Unit(NamedTuple):
    """A unit as the format page has it."""

    size: int
    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    log_offset: int
    log_size: int
    topic_hash: int
    reserved: int

    @property
    def due_ms(self) -> int:
        return self.write_ms + self.delay_ms


def units(store: Path) -> dict[int, Unit]:
    """Return the units by position, and check how files end."""
    found = {}
    paths = sorted((store / "timerlog").iterdir())
    for path in paths:
        data = path.read_bytes()
        at = 0
        while data[at : at + 4] == (52).to_bytes(4, "big") and data[at + 12 : at + 16] != b"\xcb\xd4\x31\x94":
            found[int(path.name) + at] = Unit(*UNIT.unpack_from(data, at))
            at += 52
        if path != paths[-1]:
            assert struct.unpack_from(">iqI", data, at) == (len(data) - at, 0, 0xCBD43194)
            assert len(data) - at < 52 + 16
        else:
            assert not any(data[at:])
    return found


def slots(store: Path) -> dict[int, tuple[int, int, int]]:
    """Return first unit, last unit and number by due second, and check that each is in its place."""
    data = (store / "timerwheel").read_bytes()
    assert len(data) == WHEEL_SIZE
    found = {}
    for number, (due_s, first, last, count, zero) in enumerate(SLOT.iter_unpack(data)):
        if due_s:
            assert (due_s % WHEEL_SLOTS, zero) == (number, 0)
            found[due_s] = first, last, count
    return found


def checkpoint(store: Path) -> tuple[int, ...]:
    data = (store / CHECK_NAME).read_bytes()
    assert len(data) == 4096
    return struct.unpack_from(">7q", data)


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at + 4 : at + 36] = b"\xee" * 32
    path.write_bytes(data)


def follow(store: Path) -> dict[int, list[Unit]]:
    """Return the units of each slot in order, as a broker reaches them from the slot's last unit."""
    all_units, found = units(store), {}
    for due_s, (first, last, count) in slots(store).items():
        chain: list[Unit] = []
        at = last
        while at != -1:
            chain.insert(0, all_units[at])
            previous, at = at, all_units[at].previous
            assert at < previous
        assert (previous, sum(-1 if unit.magic & 4 else 1 for unit in chain)) == (first, count)
        found[due_s] = chain
    return found


@pytest.mark.parametrize("name", ["broker-timer", "broker-pop", "broker-live"])
def test_every_timer_without_a_delivered_copy_gets_a_unit(fixture_store: Any, name: str) -> None:
    """The lost timer log and wheel are made again; expected are the timers of the real store's own list of messages."""
    fixture = fixture_store(name, own=True)
    manifest = fixture.expected("manifest.json" if name == "broker-live" else "recovered.json")
    (fixture.store / "timerwheel").unlink()
    for path in (fixture.store / "timerlog").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    Recovery(str(fixture.store), disk=AtNow()).apply()
    now_ms = NOW_MS // 1000 * 1000
    rows = {row["physicalOffset"]: row for row in manifest["messages"] if row["topic"] == "rmq_sys_wheel_timer"}
    real = [unit for due_s, chain in follow(fixture.store).items() if due_s * 1000 >= now_ms for unit in chain]
    expected = sorted(due for dues in waiting_by_the_log(manifest).values() for due in dues)
    assert sorted(int(rows[unit.log_offset]["properties"]["TIMER_OUT_MS"]) for unit in real) == expected
    for unit in real:
        row = rows[unit.log_offset]
        due_ms, stored_ms = int(row["properties"]["TIMER_OUT_MS"]), row["storeTimestamp"] // 1000 * 1000
        rolled_ms = stored_ms + 86_400_000  # half of the window: less than a third of it would be left of 200,000 seconds
        assert unit.log_size == row["storeSize"]
        assert (unit.magic, unit.due_ms) == ((3, rolled_ms) if due_ms - stored_ms >= 172_800_000 else (1, max(due_ms, now_ms)))
    assert sorted(units(fixture.store).values(), key=lambda unit: unit.log_offset) == list(units(fixture.store).values())
    last_read_ms, flushed, queue_offset, master, *_ = checkpoint(fixture.store)
    assert (last_read_ms, flushed) == (now_ms, max(units(fixture.store)) + 52)
    assert queue_offset == master == len(rows)
    assert list(units(fixture.store).values())[-1].log_offset == max(rows), "the broker continues after this message"
    assert not verify_store(str(fixture.store)).problems


@pytest.mark.parametrize("content", [b"", bytes(40), bytes(4096)], ids=["empty", "short", "zeros"])
def test_a_lost_timer_checkpoint_is_made_again(fixture_store: Any, content: bytes) -> None:
    """Without its times a broker would deliver timers again whose copies the log has."""
    fixture = fixture_store("broker-live", own=True)
    (fixture.store / CHECK_NAME).write_bytes(content)
    assert "timer_checkpoint" in {finding.kind for finding in verify_store(str(fixture.store)).problems}
    Recovery(str(fixture.store), disk=AtNow()).apply()
    assert checkpoint(fixture.store)[0] == NOW_MS // 1000 * 1000
    assert not verify_store(str(fixture.store)).problems


def test_truncation_drops_timer_units_and_restores_timers_without_their_copy(fixture_store: Any) -> None:
    """apache/rocketmq#10668: nothing points behind the log's end; timers of a cut copy are due again, as overdue ones."""
    fixture = fixture_store("broker-timer", own=True)
    path, at = records(fixture.store)[40]
    spoil(path, at)
    plan = Recovery(str(fixture.store), Choice.TRUNCATE, disk=AtNow()).apply()
    assert not plan.needs_force
    rows = [row for row in fixture.expected("recovered.json")["messages"] if row["physicalOffset"] < plan.valid_end]
    kept = [row for row in rows if row["topic"] == "rmq_sys_wheel_timer"]
    copies = {row["properties"]["UNIQ_KEY"] for row in rows if row["topic"] == "TimerTopic"}
    expected = [row["physicalOffset"] for row in kept if row["properties"]["UNIQ_KEY"] not in copies]
    assert 0 < len(expected) < 120
    found = list(units(fixture.store).values())
    assert [unit.log_offset for unit in found] == expected
    due_s = {row["physicalOffset"]: int(row["properties"]["TIMER_OUT_MS"]) // 1000 for row in kept}
    overdue = {due_s[unit.log_offset]: unit.due_ms // 1000 for unit in found if due_s[unit.log_offset] <= NOW_MS // 1000}
    assert len(overdue) > 1, "those of two seconds are overdue"
    assert [overdue[second] for second in sorted(overdue)] == list(range(NOW_MS // 1000 - len(overdue) + 1, NOW_MS // 1000 + 1))
    assert checkpoint(fixture.store)[0] == min(unit.due_ms for unit in found)
    assert checkpoint(fixture.store)[2:4] == (len(kept), len(kept))
    assert not verify_store(str(fixture.store)).problems
    assert not Recovery(str(fixture.store), disk=AtNow()).plan().steps


def test_delivered_last_timer_of_the_queue_gets_an_undeliverable_unit(fixture_store: Any) -> None:
    """The broker continues after the last unit's message: that is the queue's last one, in a slot that is read already."""
    fixture = fixture_store("broker-timer", own=True)
    expected = fixture.expected("recovered.json")["messages"]
    assert expected[-1]["topic"] == "TimerTopic", "the copy of a timer of two or 25 seconds"
    timers = [row for row in expected if row["topic"] == "rmq_sys_wheel_timer"]
    forget(fixture.store, timers[-1]["physicalOffset"])  # the queue's last message is no timer any more
    (fixture.store / "timerwheel").unlink()
    Recovery(str(fixture.store), disk=AtNow()).apply()
    last = list(units(fixture.store).values())[-1]
    assert (last.log_offset, last.log_size) == (timers[-1]["physicalOffset"], timers[-1]["storeSize"])
    assert last.due_ms < checkpoint(fixture.store)[0]
    assert checkpoint(fixture.store)[2] == len(timers)


def forget(store: Path, offset: int) -> None:
    """Rename a timer's property in its record, as in a filler, which has none."""
    path = store / "commitlog" / f"{offset // 65536 * 65536:020d}"
    data = bytearray(path.read_bytes())
    at = data.index(b"TIMER_OUT_MS", offset % 65536)
    data[at : at + 12] = b"timer_out_ms"
    path.write_bytes(data)


def timer(name: str, due_ms: int, born_ms: int = 5, **properties: str) -> Message:
    """Return the record of a timer."""
    own = {"REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": name, "TIMER_OUT_MS": str(due_ms)} | properties
    return Message("rmq_sys_wheel_timer", name.encode(), queue_id=0, properties=own, born_timestamp_ms=born_ms)


def copy(name: str, due_ms: int, born_ms: int = 5, topic: str = "T", **properties: str) -> Message:
    """Return the record of a delivered timer."""
    own = {"UNIQ_KEY": name, "TIMER_OUT_MS": str(due_ms), "TIMER_ENQUEUE_MS": "1", "TIMER_DEQUEUE_MS": "2"} | properties
    return Message(topic, name.encode(), queue_id=0, properties=own, born_timestamp_ms=born_ms)


def rebuilt(folder: Path, messages: list[Message], log_file_size: int = 1000) -> list[str]:
    """Write a store of these records with empty timer files, recover it, and return the names of the units' timers."""
    with MessageStore.open(folder, "a", CONFIG, disk=AtNow()) as store:
        names = {put_internally(store, message).physical_offset: message.body.decode() for message in messages}
    (folder / "timerlog").mkdir()
    (folder / "timerlog" / ("0" * 20)).write_bytes(bytes(log_file_size))
    (folder / CHECK_NAME).write_bytes(struct.pack(">7q", 0, 52, 0, 0, 0, 0, 0).ljust(4096, b"\0"))
    Recovery(str(folder), config=CONFIG, disk=AtNow()).apply()
    assert not verify_store(str(folder)).problems
    follow(folder)
    return [names[unit.log_offset] for unit in units(folder).values()]


LATER_MS = NOW_MS // 1000 * 1000 + 60_000


def test_only_a_copy_of_the_same_timer_counts(tmp_path: Path) -> None:
    """Topic, key, due time, birth and number of rolls must agree; one copy is for one timer."""
    found = rebuilt(
        tmp_path,
        [
            *(
                timer(name, LATER_MS)
                for name in ("other topic", "other time", "other birth", "retried", "twice", "twice", "done")
            ),
            copy("other topic", LATER_MS, topic="T2"),
            copy("other time", LATER_MS + 1000),
            copy("other birth", LATER_MS, 6),
            copy("retried", LATER_MS, topic="%RETRY%G"),
            copy("twice", LATER_MS),
            copy("done", LATER_MS),
            timer("last", LATER_MS),
        ],
    )
    assert found == ["other topic", "other time", "other birth", "retried", "twice", "last"]


def test_of_a_rolled_timer_only_the_newest_record_is_pending(tmp_path: Path) -> None:
    """TIMER_ROLL_TIMES counts; the delivered copy has the last number."""
    far = LATER_MS + 400_000_000
    rolls = [timer("far", far), timer("far", far, TIMER_ROLL_TIMES="1"), timer("near", LATER_MS)]
    done = [
        timer("done", LATER_MS),
        timer("done", LATER_MS, TIMER_ROLL_TIMES="1"),
        copy("done", LATER_MS, TIMER_ROLL_TIMES="1"),
    ]
    folder = tmp_path / "store"
    assert rebuilt(folder, [*rolls, *done, timer("last", LATER_MS)]) == ["far", "near", "last"]
    far_unit, *others = units(folder).values()
    assert (far_unit.magic, far_unit.delay_ms) == (3, 172_800_000)
    assert {unit.magic for unit in others} == {1}


def test_a_copy_belongs_to_the_timer_that_was_rolled_as_often(tmp_path: Path) -> None:
    """One of two alike was rolled and delivered; the other is pending, not the rolled record."""
    twice = [timer("twice", LATER_MS), timer("twice", LATER_MS), timer("twice", LATER_MS, TIMER_ROLL_TIMES="1")]
    assert rebuilt(tmp_path, [*twice, copy("twice", LATER_MS, TIMER_ROLL_TIMES="1"), timer("x", LATER_MS)]) == ["twice", "x"]
    with MessageStore.open(tmp_path, "r", CONFIG) as store:
        second = list(store.read("rmq_sys_wheel_timer", 0))[1].physical_offset
    assert next(iter(units(tmp_path).values())).log_offset == second


@pytest.mark.parametrize("text", ["{key}", "{topic}+{key}"])
def test_deletion_is_kept_in_the_slot_of_its_timer(tmp_path: Path, text: str) -> None:
    """Both forms of TIMER_DEL_UNIQKEY are kept in the slot of their timer; one whose timer is delivered is not."""
    deletes = timer("d1", LATER_MS, TIMER_DEL_UNIQKEY=text.format(topic="T", key="kept"))
    useless = timer("d2", LATER_MS, TIMER_DEL_UNIQKEY=text.format(topic="T", key="done"))
    found = rebuilt(
        tmp_path,
        [timer("kept", LATER_MS), timer("done", LATER_MS), copy("done", LATER_MS), deletes, useless, timer("x", LATER_MS)],
    )
    assert found == ["kept", "d1", "x"]
    assert [unit.magic for unit in units(tmp_path).values()] == [1, 5, 1]
    assert slots(tmp_path) == {LATER_MS // 1000: (0, 104, 1)}


@pytest.mark.parametrize("size", [1000, 52 * 10 + 15, 52 * 10 + 16, 52 * 10])
def test_units_go_on_in_the_next_file(tmp_path: Path, size: int) -> None:
    """The size of the existing file is kept; a unit and 16 bytes must fit before its end."""
    names = [f"t{number}" for number in range(45)]
    assert rebuilt(tmp_path, [timer(name, LATER_MS + 1000 * (number % 3)) for number, name in enumerate(names)], size) == names
    assert {path.stat().st_size for path in (tmp_path / "timerlog").iterdir()} == {size}


def test_without_pending_timers_the_timer_log_is_empty(tmp_path: Path) -> None:
    """The broker then continues where the checkpoint says: at the end of the queue."""
    assert rebuilt(tmp_path, [timer("done", LATER_MS), copy("done", LATER_MS)]) == []
    assert not list((tmp_path / "timerlog").iterdir())
    assert checkpoint(tmp_path)[:4] == (NOW_MS // 1000 * 1000, 0, 1, 1)


def test_the_tool_rebuilds_the_timer_files_alone(fixture_store: Any) -> None:
    """Queues and index stay as they are; the answer has the number of pending timers, as `ls` counts them."""
    store = fixture_store("broker-timer", own=True).store
    before = snapshot(store)
    pending = sum(row["timers"] for row in run("ls", "--json", store).json["timers"])
    planned = run("rebuild", store, "timers", "--json", "--plan")
    assert (planned.code, planned.json["plan"], snapshot(store)) == (0, ["timers"], before)
    ran = run("rebuild", store, "timers", "--json", "--apply")
    assert (ran.code, ran.json["rebuilt"], ran.json["timers"]) == (0, ["timers"], pending)
    after = snapshot(store)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed - {"lock", "brokerstore"} == {"timerwheel", CHECK_NAME, f"timerlog/{0:020d}"}


def test_an_open_that_cuts_the_tail_takes_its_timers_along(fixture_store: Any) -> None:
    """A power failure lost the end of the log, but not the timer log: the next messages would be taken for those timers."""
    fixture = fixture_store("broker-timer", own=True)
    manifest = fixture.expected("recovered.json")["messages"]
    cut = [row for row in manifest if row["topic"] == "rmq_sys_wheel_timer"][100]["physicalOffset"]
    for path in sorted((fixture.store / "commitlog").iterdir()):
        data = bytearray(path.read_bytes())
        begin = min(len(data), max(0, cut - int(path.name)))
        data[begin:] = bytes(len(data) - begin)
        path.write_bytes(data)
    with MessageStore.open(fixture.store, "a", CONFIG, disk=AtNow()) as store:
        assert store.put(Message("TimerTopic", b"next", queue_id=0)).physical_offset == cut
    found = list(units(fixture.store).values())
    copies = {row["properties"]["UNIQ_KEY"] for row in manifest if row["topic"] == "TimerTopic" and row["physicalOffset"] < cut}
    timers = [row for row in manifest if row["topic"] == "rmq_sys_wheel_timer" and row["physicalOffset"] < cut]
    expected = [row["physicalOffset"] for row in timers if row["properties"]["UNIQ_KEY"] not in copies]
    assert [unit.log_offset for unit in found] == expected
    assert checkpoint(fixture.store)[2:4] == (100, 100)
    assert not [one for one in verify_store(str(fixture.store)).problems if "timer" in one.kind]


class Killed(Exception):
    """The process ended here."""


class Dies(AtNow):
    """A disk on which the process is killed at the n-th change."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def before(self, operation: str, path: str) -> None:
        if operation in (
            "create",
            "write",
            "truncate",
            "sync",
            "rename",
            "delete",
            "delete folder",
            "make folder",
            "sync folder",
        ):
            self.left -= 1
            if self.left < 0:
                raise Killed


@pytest.mark.deep
def test_a_killed_recovery_is_repeated_with_the_same_result(fixture_store: Any, tmp_path: Path) -> None:
    """After a kill at any change of the recovery, another one gives the units, slots and offsets of an undisturbed one."""
    fixture = fixture_store("broker-timer", own=True)
    spoil(*records(fixture.store)[40])
    whole = tmp_path / "whole"
    clone(fixture.store, whole)
    Recovery(str(whole), Choice.TRUNCATE, disk=AtNow()).apply()
    expected = units(whole), slots(whole), checkpoint(whole)[:4]
    for step in range(0, 400, 7):
        folder = tmp_path / "killed"
        clone(fixture.store, folder)
        try:
            Recovery(str(folder), Choice.TRUNCATE, disk=Dies(step)).apply()
        except Killed:
            Recovery(str(folder), Choice.TRUNCATE, disk=AtNow()).apply()
            assert (units(folder), slots(folder), checkpoint(folder)[:4]) == expected, step
        else:
            break
    else:
        raise AssertionError("more changes than expected")
    assert step > 30


def clone(source: Path, target: Path) -> None:
    """Copy a folder; holes stay holes."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)
