"""What a store writes of its timers, and when: the order on which a crash at any moment depends."""

from __future__ import annotations

import errno
import json
import logging
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from commitlog import LogPaths
from commitlog.walk import LogFiles
from messagestore.repair.verification import verify_store
from messagestore.timers.rebuild_timers import WORK
from messagestore.timers.timer_log import TimerLog
from messagestore.timers.undelivered import undelivered_timers
from storageio import REAL_DISK, DiskError
from tests.messagestore.kit import START_MS, Clock, SwitchDisk, crash_copy, delivered_numbers
from tests.messagestore.test_timer_delivery import deliver, open_idle, persist, timer

DUE_MS = START_MS + 5000


def sidecar_of(folder: Path) -> dict[str, Any] | None:
    """Return what the store noted with its last timer checkpoint."""
    path = folder / "brokerstore" / "timers.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def at_once(world: Any, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let a delivery end after so many timers."""
    monkeypatch.setattr(world.module("messagestore.broker.services.timers"), "AT_ONCE", count)


def test_timers_are_not_persisted_before_the_log_is_flushed(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint counts deliveries and records that a crash could still take back."""
    with open_idle(world, tmp_path, Clock()) as store:
        store.put(timer(world, 0, DUE_MS))
        deliver(store)
        monkeypatch.setattr(store.engine.flusher, "flush_now", lambda: store.log_end - 1)
        persist(store)
        assert sidecar_of(tmp_path) is None
        monkeypatch.undo()
        persist(store)
        assert sidecar_of(tmp_path) is not None and store.engine.flusher.flushed_offset >= store.log_end


def test_timers_are_not_persisted_in_the_middle_of_a_slot(world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was delivered of the slot is behind the noted end of the log, and would be delivered again."""
    clock = Clock()
    with open_idle(world, tmp_path, clock) as store:
        for number in range(3):
            store.put(timer(world, number, DUE_MS))
        deliver(store)
        persist(store)
        before = sidecar_of(tmp_path)
        at_once(world, monkeypatch, 1)
        clock.now_ms = DUE_MS + 1000
        assert store.engine.timers.deliver_due() == 0.0 and len(store.engine.timers._units) == 2
        store.put(timer(world, 3, DUE_MS + 900_000))  # so that there is something to persist
        store.engine.settle()
        assert store.engine.timers.deliver_due() == 0.0 and len(store.engine.timers._units) == 1
        persist(store)
        assert sidecar_of(tmp_path) == before
        deliver(store)
        persist(store)
        assert sidecar_of(tmp_path) != before and delivered_numbers(store) == [0, 1, 2]


def test_one_delivered_copy_counts_for_one_of_two_equal_timers(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process had put the copy of the first; the next one puts the second."""
    clock = Clock()
    first, folder = tmp_path / "first", tmp_path / "s"
    with open_idle(world, first, clock) as store:
        for _ in range(2):
            equal = {"properties": {"TIMER_DELIVER_MS": str(DUE_MS)}, "born_timestamp_ms": 7, "queue_id": 0}
            store.put(world.commitlog.Message("T", b"5", **equal))
        deliver(store)
        persist(store)
        at_once(world, monkeypatch, 1)
        clock.now_ms = DUE_MS + 1000
        store.engine.timers.deliver_due()
        assert delivered_numbers(store) == [5]
        crash_copy(first, folder)
    with open_idle(world, folder, clock) as store:
        deliver(store)
        assert Counter(delivered_numbers(store)) == {5: 2}


def test_timer_hint_is_written_before_the_checkpoint(world: Any, tmp_path: Path) -> None:
    """If a crash comes between the two, the note names both checkpoints, and the next opening trusts it."""
    disk = SwitchDisk()
    with open_idle(world, tmp_path, Clock(), disk=disk) as store:
        store.put(timer(world, 0, DUE_MS))
        deliver(store)
        disk.refuse = lambda operation, path: (
            DiskError(operation, path, errno.EIO, "broken") if operation == "write" and path.endswith("timercheck") else None
        )
        with pytest.raises(DiskError):
            persist(store)
        disk.refuse = lambda _operation, _path: None
        note = sidecar_of(tmp_path)
        assert note is not None and note["position"] == store.log_end
        assert note["after"][-1] == note["before"][-1] + 1


def test_timer_hint_of_a_longer_log_is_ignored(world: Any, tmp_path: Path) -> None:
    """The log lost the copy that the checkpoint counts: the timer is delivered again."""
    clock = Clock()
    first, folder = tmp_path / "first", tmp_path / "s"
    with open_idle(world, first, clock) as store:
        store.put(timer(world, 0, DUE_MS))
        deliver(store)
        clock.now_ms = DUE_MS + 1000
        end = store.log_end
        deliver(store)
        assert delivered_numbers(store) == [0]
        persist(store)
        crash_copy(first, folder)
    path = min((folder / "commitlog").iterdir())
    path.write_bytes(path.read_bytes()[:end].ljust(path.stat().st_size, b"\0"))
    clock.now_ms += 5000
    with open_idle(world, folder, clock) as store:
        clock.now_ms += 5000
        deliver(store)
        assert delivered_numbers(store) == [0]


def test_an_interrupted_rebuild_of_the_timer_files_is_done_again(
    world: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While its folder is there, the files may be of two rebuilds, whatever the checkpoint says."""
    clock = Clock()
    with open_idle(world, tmp_path, clock) as store:
        store.put(timer(world, 0, DUE_MS))
        deliver(store)
    work = tmp_path / "brokerstore" / WORK
    work.mkdir()
    with caplog.at_level(logging.WARNING), open_idle(world, tmp_path, clock) as store:
        assert any("made from the log" in record.getMessage() for record in caplog.records)
        assert not work.exists()
        clock.now_ms = DUE_MS + 1000
        deliver(store)
        assert delivered_numbers(store) == [0]


def test_a_timer_that_arrives_late_is_not_put_into_the_slot_that_is_being_delivered(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot ends with the timers that it had; the put was checked before its second was over."""
    clock = Clock()
    with open_idle(world, tmp_path, clock) as store:
        for number in range(2):
            store.put(timer(world, number, DUE_MS))
        deliver(store)
        at_once(world, monkeypatch, 1)
        clock.now_ms = DUE_MS + 1000
        store.engine.timers.deliver_due()
        assert len(store.engine.timers._units) == 1
        clock.now_ms = START_MS
        store.put(timer(world, 2, DUE_MS))
        clock.now_ms = DUE_MS + 1000
        deliver(store)
        clock.now_ms += 5000
        deliver(store)
        assert delivered_numbers(store) == [0, 1, 2]


def test_delivered_copy_is_matched_to_its_timer_by_body(tmp_path: Path, world: Any) -> None:
    """Two timers differ only in their bodies: the one whose copy is in the log was delivered."""
    with open_idle(world, tmp_path, Clock(), deliver_delayed=False) as store:
        more: dict[str, Any] = {"queue_id": 0, "born_timestamp_ms": 7}
        waiting = [
            store.put(world.commitlog.Message("T", body, properties={"TIMER_DELIVER_MS": str(DUE_MS)}, **more))
            for body in (b"1", b"2")
        ]
        stored = store.message_at(waiting[1].physical_offset)
        copied = {name: value for name, value in stored.properties.items() if name.startswith("TIMER_")}
        copied |= {"TIMER_ENQUEUE_MS": str(START_MS), "TIMER_DEQUEUE_MS": str(DUE_MS)}
        store.put(world.commitlog.Message("T", b"2", properties=copied, **more))
        store.flush()
        files = LogFiles(REAL_DISK, LogPaths.parse(REAL_DISK, store.engine.paths.commit_log).folders)
        assert [one.log_offset for one in undelivered_timers(files)] == [waiting[0].physical_offset]


def test_a_stop_without_a_change_writes_no_checkpoint(world: Any, tmp_path: Path) -> None:
    """A store that is only opened leaves its timer files as they are."""
    with open_idle(world, tmp_path, Clock()) as store:
        store.put(timer(world, 0, DUE_MS))
        deliver(store)
    before = (tmp_path / "config" / "timercheck").read_bytes(), sidecar_of(tmp_path)
    for _ in range(2):
        with open_idle(world, tmp_path, Clock()):
            pass
        assert ((tmp_path / "config" / "timercheck").read_bytes(), sidecar_of(tmp_path)) == before


def test_files_of_delivered_timers_are_closed(world: Any, tmp_path: Path) -> None:
    """A store that runs for long would have one open for each of them."""
    clock = Clock()
    with open_idle(world, tmp_path, clock) as store:
        for turn in range(5):
            for number in range(40):
                store.put(timer(world, number, clock.now_ms + 2000))
            deliver(store)
            clock.now_ms += 4000
            deliver(store)
            persist(store)
            assert len(store.engine.timers._files._written) <= 2, turn


def test_timers_resume_after_the_last_unit_written_past_the_broker_checkpoint(world: Any, tmp_path: Path) -> None:
    """A broker continues behind the message of its last unit, whatever its checkpoint says; so does this store."""
    clock = Clock()
    with open_idle(world, tmp_path, clock) as store:
        for number in range(3):
            store.put(timer(world, number, DUE_MS))
        deliver(store)
    (tmp_path / "brokerstore" / "timers.json").unlink()
    check = tmp_path / "config" / "timercheck"
    fields = list(struct.unpack_from(">7q", check.read_bytes()))
    assert fields[2] == 3
    fields[2] = 1
    check.write_bytes(struct.pack(">7q", *fields).ljust(4096, b"\0"))
    with open_idle(world, tmp_path, clock) as store:
        clock.now_ms = DUE_MS + 1000
        deliver(store)
        assert delivered_numbers(store) == [0, 1, 2]


def test_slot_with_units_lost_in_a_crash_is_cleared(world: Any, tmp_path: Path) -> None:
    """The wheel was written, the checkpoint was not; the timer gets its unit in a later slot, because its own is over."""
    clock = Clock()
    first, folder = tmp_path / "first", tmp_path / "s"
    with open_idle(world, first, clock) as store:
        store.put(timer(world, 0, DUE_MS + 90_000_000))
        deliver(store)
        persist(store)
        store.put(timer(world, 1, DUE_MS + 500_000))
        deliver(store)
        store.engine.timers._files.flush()
        store.flush()
        crash_copy(first, folder)
    clock.now_ms = DUE_MS + 20_000_000
    with open_idle(world, folder, clock) as store:
        deliver(store)
        clock.now_ms += 2000
        deliver(store)
        assert delivered_numbers(store) == [1]
        persist(store)
    assert not [one for one in verify_store(str(folder)).problems if "timer" in one.kind]


def test_all_units_are_found_if_they_exceed_one_read(tmp_path: Path) -> None:
    """All are found, to the end of the file."""
    count = (1 << 14) + 3
    folder = tmp_path / "timerlog"
    folder.mkdir()
    data = b"".join(struct.pack(">iqiqiqiiq", 52, -1, 1, 1000, 5000, offset, 100, 0, 0) for offset in range(count))
    (folder / f"{0:020d}").write_bytes(data.ljust(52 * count + 100, b"\0"))
    log = TimerLog(REAL_DISK, str(tmp_path))
    assert [unit.log_offset for unit in log.units()] == list(range(count)) and (log.end, log.rest) == (52 * count, b"")
