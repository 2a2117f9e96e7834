"""Timer files of a real 5.3.3 broker: what is pending, and each damage by kind, file and offset."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog.walk import LogFiles
from messagestore.repair.verification import verify_store
from messagestore.timers.layout import CHECK, CHECK_NAME, WHEEL_SLOTS
from messagestore.timers.pending import pending_timers
from messagestore.timers.wheel import read_timer_checkpoint, used_slots
from storageio import REAL_DISK
from tests.brokerstore.schema import check_schema
from tests.brokerstore.tool import run

UNITS = Path("timerlog") / ("0" * 20)
WHEEL = Path("timerwheel")
CHECKPOINT = Path(CHECK_NAME)
LAST_UNIT = 119 * 52  # the fixture has 120


def waiting_by_the_log(expected: dict[str, Any]) -> dict[str, list[int]]:
    """Return the due times of each topic's timers without a delivered copy, from the real store's list of messages."""
    delivered = {(row["topic"], row["properties"].get("UNIQ_KEY")) for row in expected["messages"]}
    waiting: dict[str, list[int]] = {}
    for row in expected["messages"]:
        properties = row["properties"]
        if row["topic"] == "rmq_sys_wheel_timer" and (properties["REAL_TOPIC"], properties["UNIQ_KEY"]) not in delivered:
            waiting.setdefault(properties["REAL_TOPIC"], []).append(int(properties["TIMER_OUT_MS"]))
    return waiting


@pytest.mark.parametrize("name", ["broker-timer", "broker-pop", "broker-live"])
def test_what_is_pending_has_no_delivered_copy_in_the_log(fixture_store: Any, name: str) -> None:
    """The timer files of the broker and the log agree on topics, numbers and times; so do ls, stats and verify."""
    fixture = fixture_store(name)
    manifest = fixture.expected("manifest.json" if name == "broker-live" else "recovered.json")
    expected = [
        {"topic": topic, "timers": len(due), "next_due_ms": min(due), "last_due_ms": max(due)}
        for topic, due in sorted(waiting_by_the_log(manifest).items())
    ]
    assert expected
    for command in ("ls", "stats", "verify"):
        ran = run(command, "--json", fixture.store)
        assert (ran.code, ran.json["timers"]) == (0, expected)
        check_schema(command, ran.json)


def test_info_counts_the_slots(fixture_store: Any) -> None:
    """The wheel alone: 100 timers, the next ones due after 25 seconds."""
    store = fixture_store("broker-timer").store
    answer = run("info", "--json", store).json
    assert answer["timers"] == {"pending": 100, "next_due_ms": 1_795_434_227_000}
    check_schema("info", answer)
    assert run("info", "--json", fixture_store("plain").store).json["timers"] is None


def test_a_message_without_a_unit_is_pending(fixture_store: Any) -> None:
    """The broker was killed before it read the last messages of the timers' queue: they are counted from the queue."""
    store = fixture_store("broker-timer", own=True).store
    before = run("ls", "--json", store).json["timers"]
    patch(UNITS, 100 * 52, bytes(20 * 52))(store)
    check = read_timer_checkpoint(REAL_DISK, str(store))
    assert check is not None
    patch(CHECKPOINT, 0, CHECK.pack(*check._replace(flushed=100 * 52, queue_offset=100, master_queue_offset=100)))(store)
    assert run("ls", "--json", store).json["timers"] == before
    files = LogFiles(REAL_DISK, [str(store / "commitlog")])
    assert pending_timers(REAL_DISK, str(store), files, None).timers == 80


def test_a_deleted_timer_is_not_pending(fixture_store: Any) -> None:
    """A message with TIMER_DEL_UNIQKEY cancels the timer of this key that is due in the same slot."""
    fixture = fixture_store("broker-timer", own=True)
    rows = [row for row in fixture.expected("recovered.json")["messages"] if row["topic"] == "rmq_sys_wheel_timer"][60:62]
    target, deleting = rows[0]["properties"], rows[1]
    assert target["TIMER_OUT_MS"] == deleting["properties"]["TIMER_OUT_MS"]
    old = f"KEYS\x01{deleting['properties']['KEYS']}\x02WAIT\x01true\x02TRACE_ON\x01true\x02MSG_REGION"
    log = fixture.store / "commitlog" / ("0" * 20)
    data, at = log.read_bytes(), deleting["physicalOffset"]
    record = data[at : at + deleting["storeSize"]]
    start = record.index(b"UNIQ_KEY\x01")
    stop = record.index(b"REAL_TOPIC\x01")
    fresh = f"TIMER_DEL_UNIQKEY\x01{target['UNIQ_KEY']}\x02".encode()
    assert len(fresh) < stop - start, old
    filler = b"K\x01" + b"x" * (stop - start - len(fresh) - 3) + b"\x02"
    patch(Path("commitlog") / ("0" * 20), at + start, fresh + filler)(fixture.store)
    patch(UNITS, 61 * 52 + 12, (5).to_bytes(4, "big"))(fixture.store)
    assert run("ls", "--json", fixture.store).json["timers"][0]["timers"] == 98


def patch(name: Path, at: int, data: bytes) -> Callable[[Path], None]:
    """Return a damage: these bytes at this place of a file."""

    def apply(store: Path) -> None:
        with (store / name).open("r+b") as file:
            file.seek(at)
            file.write(data)

    return apply


def integer(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def in_slot(number: int, at: int, value: int) -> Callable[[Path], None]:
    """Return a damage of a field of the used slot of this number, in order of time."""

    def apply(store: Path) -> None:
        slot = sorted(used_slots(REAL_DISK, str(store)), key=lambda one: one.due_s)[number]
        patch(WHEEL, slot.offset + at, integer(value))(store)

    return apply


def delete(name: Path) -> Callable[[Path], None]:
    return lambda store: (store / name).unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str, Path, int | None]] = {
    "a unit's size is zero": (patch(UNITS, LAST_UNIT, integer(7, 4)), "timer_unit", UNITS, LAST_UNIT),
    "a unit is due later": (patch(UNITS, 90 * 52 + 24, integer(999_000, 4)), "timer_due", UNITS, 90 * 52 + 16),
    "a unit leads forward": (patch(UNITS, LAST_UNIT + 4, integer(LAST_UNIT)), "timer_chain", UNITS, LAST_UNIT + 4),
    "a unit points past the log": (patch(UNITS, LAST_UNIT + 28, integer(1 << 40)), "timer_record", UNITS, LAST_UNIT + 28),
    "a unit points at another record": (patch(UNITS, LAST_UNIT + 28, integer(0)), "timer_record", UNITS, LAST_UNIT + 28),
    "a unit has another size": (patch(UNITS, LAST_UNIT + 36, integer(99, 4)), "timer_record", UNITS, LAST_UNIT + 28),
    "a unit is of another topic": (patch(UNITS, LAST_UNIT + 40, integer(5, 4)), "timer_topic", UNITS, LAST_UNIT + 40),
    "a unit is of an unknown kind": (patch(UNITS, 12, integer(9, 4)), "timer_layout", UNITS, 12),
    "a slot leads to no unit": (in_slot(-1, 16, 1 << 30), "timer_slot", WHEEL, None),
    "a slot leads to an earlier unit": (in_slot(-1, 16, 100 * 52), "timer_slot", WHEEL, None),
    "a slot is of another time": (in_slot(-1, 0, 1_795_500_000), "timer_slot_time", WHEEL, None),
    "the wheel is gone": (delete(WHEEL), "timer_slot", WHEEL, None),
    "the wheel is shorter": (lambda store: patch(WHEEL, 0, b"")(store) or shorten(store / WHEEL), "timer_layout", WHEEL, 0),
    "the checkpoint is gone": (delete(CHECKPOINT), "timer_checkpoint", CHECKPOINT, 0),
    "the checkpoint is empty": (lambda store: (store / CHECKPOINT).write_bytes(b""), "timer_checkpoint", CHECKPOINT, 0),
    "the timer log is gone": (delete(UNITS), "timer_log_end", CHECKPOINT, 8),
    "the queue is ahead": (patch(CHECKPOINT, 16, integer(121)), "timer_queue_offset", CHECKPOINT, 16),
}  # fmt: skip


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-32])


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named(fixture_store: Any, name: str) -> None:
    """Kind, file and offset are those of the damage; the sound folder has no problem at all."""
    store = fixture_store("broker-timer", own=True).store
    damage, kind, file, offset = DAMAGES[name]
    damage(store)
    problems = [one for one in verify_store(str(store)).problems if one.kind == kind]
    assert problems, f"no {kind}"
    assert {one.file for one in problems} == {str(store / file)}
    assert offset is None or offset in {one.offset for one in problems}
    assert run("verify", store).code == 1


def test_many_problems_of_one_kind_are_counted(fixture_store: Any) -> None:
    """At most 100 and the last one of a kind are listed, and the last one has the number."""
    store = fixture_store("broker-timer", own=True).store
    for number in range(1, 120):
        patch(UNITS, number * 52 + 4, integer(number * 52))(store)
    found = [one for one in verify_store(str(store)).problems if one.kind == "timer_chain"]
    assert len(found) == 101
    assert str(found[-1].found).endswith("the last of 119 of this kind")


def test_another_precision_is_refused_by_name(fixture_store: Any) -> None:
    """Slot times of a broker with timerPrecisionMs=100 are no seconds."""
    store = fixture_store("broker-timer", own=True).store
    at = 17_954_342_270 % WHEEL_SLOTS * 32
    patch(WHEEL, at, struct.pack(">qqqii", 17_954_342_270, 0, 0, 1, 0))(store)
    found = [one for one in verify_store(str(store)).problems if one.kind == "timer_layout"]
    assert [(one.file, one.offset) for one in found] == [(str(store / WHEEL), at)]
    ran = run("info", store)
    assert "timer slot time 17954342270" in ran.talk


def test_parts_that_are_not_read_are_named(fixture_store: Any) -> None:
    """The verdict of verify has their number, and a note names each."""
    store = fixture_store("plain", own=True).store
    assert "not read" not in run("verify", store).out, "a broker makes the folder without compacted topics"
    (store / "kvStore").mkdir()
    ran = run("verify", store)
    assert ran.code == 0
    assert "OK: the store is intact; 1 part of the folder was not read." in ran.out
    assert f"note: {store}/kvStore: not read: pop consumer state (RocksDB)" in ran.out
