"""Timer files of a real 5.3.3 broker: their content, and the plan of a cut of the log before their records."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from messagestore.repair.recover import Choice, Recovery
from messagestore.timers.layout import MAGIC_ROLL, UNIT_SIZE
from messagestore.timers.pending import timers_behind
from messagestore.timers.timer_log import TimerLog
from storageio import REAL_DISK, UnsupportedFormat
from tests.brokerstore.tool import run
from tests.faults.test_unknown_formats import records, snapshot

UNITS = 120  # the broker's own account: 20 messages each of six delays
CUT_RECORD = 40  # lies among the timers' records


@pytest.fixture
def store(fixture_store: Any) -> Path:
    """Return a copy of the broker's folder."""
    folder: Path = fixture_store("broker-timer", own=True).store
    return folder


def timer_records(fixture: Any) -> dict[int, int]:
    """Return offset and size of each record of the timers' topic, as the real store reported them."""
    rows = fixture.expected("recovered.json")["messages"]
    return {row["physicalOffset"]: row["storeSize"] for row in rows if row["topic"] == "rmq_sys_wheel_timer"}


def damage(store: Path) -> int:
    """Damage one record that good ones follow, and return its physical offset."""
    path, at = records(store)[CUT_RECORD]
    data = bytearray(path.read_bytes())
    data[at + 4 : at + 36] = b"\xee" * 32
    path.write_bytes(data)
    return int(path.name) + at


def test_each_unit_points_at_a_record_of_the_timers_topic(fixture_store: Any) -> None:
    """Offset and size are the real store's; the delays are the requested ones, and long ones are rolled."""
    fixture = fixture_store("broker-timer")
    log = TimerLog(REAL_DISK, str(fixture.store))
    units = list(log.units())
    assert {unit.log_offset: unit.log_size for unit in units} == timer_records(fixture)
    assert (len(units), log.end) == (UNITS, UNITS * UNIT_SIZE)
    assert sum(bool(unit.magic & MAGIC_ROLL) for unit in units) == 20
    assert set(Counter(unit.due_ms for unit in units).values()) <= {*range(1, 21)}


def test_timers_behind_an_offset_are_counted(fixture_store: Any) -> None:
    """The count is that of the real store's list, at the border of each record: one that ends at the cut is whole."""
    fixture = fixture_store("broker-timer")
    rows = timer_records(fixture)
    for offset, size in sorted(rows.items())[::17]:
        behind = sum(one > offset for one in rows)
        assert timers_behind(REAL_DISK, str(fixture.store), offset + size).units == behind
        assert timers_behind(REAL_DISK, str(fixture.store), offset + size - 1).units == behind + 1
    last = max(offset + size for offset, size in rows.items())
    assert timers_behind(REAL_DISK, str(fixture.store), last) == (0, 0, True)
    pending = timers_behind(REAL_DISK, str(fixture.store), 0).pending
    assert 80 <= pending <= 100, "all but the 20 of two seconds, and perhaps those of 25"


def test_store_without_timers_has_no_timers_after_any_offset(fixture_store: Any) -> None:
    """Neither a store without timer files nor one with an empty wheel has any."""
    for name in ("plain", "broker-rocksdb"):
        assert timers_behind(REAL_DISK, str(fixture_store(name).store), 0) == (0, 0, True)


@pytest.mark.parametrize("lost", ["log", "unit", "all of the log"])
def test_missing_timer_units_are_not_counted_as_zero(store: Path, lost: str) -> None:
    """Wheel and checkpoint refer to them: whether one points behind the cut is unknown."""
    path = store / "timerlog" / ("0" * 20)
    data = path.read_bytes()
    if lost == "log":
        path.unlink()
    else:
        keep = 52 * 30 if lost == "unit" else 0
        path.write_bytes(data[:keep] + bytes(len(data) - keep))
    found = timers_behind(REAL_DISK, str(store), 1 << 40)
    assert (found.units, found.is_whole, found.any) == (0, False, True)


def test_the_log_goes_on_in_the_next_file(tmp_path: Path) -> None:
    """A file ends with the size of its rest, zeros and a blank's magic; zeros end the log."""
    folder = tmp_path / "timerlog"
    folder.mkdir()
    unit = struct.Struct(">iqiqiqiiq")

    def units(*offsets: int) -> bytes:
        return b"".join(unit.pack(52, -1, 1, 1000, 5000, offset, 100, 0, 0) for offset in offsets)

    first = units(0, 100)
    end = struct.pack(">iqI", 260 - len(first), 0, 0xCBD43194)
    (folder / f"{0:020d}").write_bytes((first + end).ljust(260, b"\0"))
    (folder / f"{260:020d}").write_bytes(units(200).ljust(260, b"\0"))
    log = TimerLog(REAL_DISK, str(tmp_path))
    assert [(found.position, found.log_offset, found.due_ms) for found in log.units()] == [
        (0, 0, 6000), (52, 100, 6000), (260, 200, 6000),
    ]  # fmt: skip
    assert log.end == 312
    assert timers_behind(REAL_DISK, str(tmp_path), 200) == (1, 1, True)


def test_the_tool_counts_the_timers_behind_a_cut(store: Path) -> None:
    """The plan has their number and needs no --force; the executed plan has the number of pending ones."""
    at = damage(store)
    behind = sum(unit.log_end > at for unit in TimerLog(REAL_DISK, str(store)).units())
    assert 0 < behind < UNITS
    before = snapshot(store)
    shown = run("recover", "--truncate", "--json", store)
    step = next(line for line in shown.json["plan"]["actions"] if line.startswith("rebuild timers"))
    assert (shown.code, shown.json["plan"]["needs_force"]) == (1, False)
    assert f"{behind} timers point behind" in step
    assert snapshot(store) == before
    ran = run("recover", "--truncate", "--apply", "--json", store)
    assert (ran.code, ran.json["applied"]) == (6, True)
    assert any("pending" in step["result"] for step in ran.json["plan"]["steps"] if step["kind"] == "rebuild_timers")
    assert run("verify", store).code == 0


def test_cutting_behind_all_timers_leaves_their_files(fixture_store: Any, store: Path) -> None:
    """If the last record of the log is damaged, only that one is cut; fillers may stand for timers or their copies."""
    damage(store)
    assert "rebuild_timers" in {step.kind for step in Recovery(str(store), Choice.SKIP).plan().steps}
    fixture = fixture_store("broker-timer", own=True)
    last = max(row["physicalOffset"] for row in fixture.expected("recovered.json")["messages"])
    if last in timer_records(fixture):
        pytest.skip("the log ends in a timer")
    path, at = records(fixture.store)[-1]
    data = bytearray(path.read_bytes())
    data[at + 4 : at + 36] = b"\xee" * 32
    path.write_bytes(data)
    assert "rebuild_timers" not in {step.kind for step in Recovery(str(fixture.store), Choice.TRUNCATE).plan().steps}


@pytest.mark.parametrize("name", ["compaction/compactionLog/T/0/00000000000000000000", "kvStore/CURRENT"])
def test_truncation_with_compaction_or_pop_state_requires_force(fixture_store: Any, name: str) -> None:
    """Compacted topics and the state of pop consumers point into the log as well."""
    store = fixture_store("plain", own=True).store
    damage(store)
    assert not Recovery(str(store), Choice.TRUNCATE).plan().needs_force
    (store / name).parent.mkdir(parents=True)
    (store / name).write_bytes(b"x")
    assert Recovery(str(store), Choice.TRUNCATE).plan().needs_force
    assert not Recovery(str(store), Choice.SKIP).plan().needs_force


def test_truncation_rejects_a_later_unit_of_unknown_type(store: Path) -> None:
    """An open reads the first unit of each file; a cut reads all of them."""
    damage(store)
    path = store / "timerlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[52 * 7 + 12 : 52 * 7 + 16] = (9).to_bytes(4, "big")
    path.write_bytes(data)
    before = snapshot(store)
    with pytest.raises(UnsupportedFormat, match="timer unit magic 9"):
        Recovery(str(store), Choice.TRUNCATE, force=True).apply()
    assert {name: data for name, data in snapshot(store).items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }
