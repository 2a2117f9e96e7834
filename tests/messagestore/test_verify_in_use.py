"""Verification of a store that is open for writing: what is checked, up to where, and what is still found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.growing import verify_growing_log, whole_end
from commitlog.layout import BODY_AT
from commitlog.walk import LogFiles, Piece
from consumequeue.layout import UNIT
from messagestore.repair import verification
from messagestore.repair.verification import verify_store
from storageio import REAL_DISK
from tests.helpers import overwrite
from tests.messagestore.writers import LOG_SIZE, log_files, open_store, put_all

COUNT = 1150


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cleanly closed store with several files of each kind."""
    folder = tmp_path_factory.mktemp("in-use") / "store"
    with open_store(folder) as store:
        put_all(store, 0, COUNT)
    return folder


@pytest.fixture
def used(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a copy whose lock is held."""
    monkeypatch.setattr(verification, "PAUSES_S", (0.0, 0.0, verification.SETTLED_S))
    monkeypatch.setattr(type(REAL_DISK), "sleep", lambda _disk, _pause_s: None)
    folder = tmp_path / "store"
    shutil.copytree(original, folder)
    held = REAL_DISK.lock(str(folder / "lock"))
    yield folder
    held.release()


def log_end(folder: Path) -> int:
    return LogFiles(REAL_DISK, [str(folder / "commitlog")]).end().offset


def half_a_record(folder: Path) -> None:
    """Write the head of a record behind the log, as a broker that is copying its next record into the map."""
    end, last = log_end(folder), log_files(folder)[-1]
    first = log_files(folder)[0].read_bytes()
    size = int.from_bytes(first[:4], "big")
    head = first[:28] + end.to_bytes(8, "big") + first[36:BODY_AT]
    overwrite(last, end % LOG_SIZE, head.ljust(size, b"\0")[: size // 2])


def test_a_partially_written_record_of_a_running_writer_is_not_damage(used: Path) -> None:
    """The check ends before it and reports the position; at rest the same bytes are the log's torn end."""
    end = log_end(used)
    half_a_record(used)
    report = verify_store(str(used))
    assert report.problems == [] and report.checked_to == report.log.checked_to == end
    assert report.log.records == COUNT


def test_units_and_items_behind_the_end_are_no_damage(used: Path) -> None:
    """The writer dispatched a record that was written after the end was read."""
    end = log_end(used)
    queue = sorted((used / "consumequeue" / "t" / "0").iterdir())[-1]
    units = queue.read_bytes()
    free = next(at for at in range(0, len(units), 20) if units[at : at + 20] == bytes(20))
    overwrite(queue, free, UNIT.pack(end, 100, 0))
    assert verify_store(str(used)).problems == []


def test_unit_without_a_record_is_still_a_problem(used: Path) -> None:
    """Its record would lie before that end."""
    queue = sorted((used / "consumequeue" / "t" / "0").iterdir())[-1]
    units = queue.read_bytes()
    free = next(at for at in range(0, len(units), 20) if units[at : at + 20] == bytes(20))
    overwrite(queue, free, UNIT.pack(log_end(used) - 1, 100, 0))
    assert [problem.kind for problem in verify_store(str(used)).problems] == ["dangling_unit"]


@pytest.mark.parametrize("number", [0, 1])
def test_damage_in_a_store_in_use_is_still_a_problem(used: Path, number: int) -> None:
    """It is found in an old file and in the current one, and records behind the damage are checked too."""
    path = log_files(used)[-number]
    overwrite(path, BODY_AT + 1, b"\xee")
    report = verify_store(str(used))
    assert [(problem.kind, problem.file) for problem in report.log.problems] == [("bad_body_crc", str(path))]
    assert report.log.records == COUNT - 1 and report.checked_to == log_end(used)


def test_a_damaged_header_in_the_file_that_is_written_is_still_a_problem(used: Path) -> None:
    """A check of headers alone would take it for the end."""
    end = log_end(used)
    overwrite(log_files(used)[-1], 4, b"\0\0\0\0")
    assert whole_end(REAL_DISK, [str(used / "commitlog")]) == end
    assert "bad_magic" in {problem.kind for problem in verify_store(str(used)).problems}


def test_a_missing_unit_of_a_store_in_use_is_still_a_problem(used: Path) -> None:
    """It is in the middle, where the writer does not lag."""
    queue = sorted((used / "consumequeue" / "t" / "1").iterdir())[0]
    overwrite(queue, 200, UNIT.pack(1, 100, 0))
    assert [problem.kind for problem in verify_store(str(used)).problems] == ["wrong_unit"]


def test_files_that_are_made_or_deleted_meanwhile_are_passed_over(used: Path) -> None:
    """The next file does not have its size yet; the first is deleted between two steps, and its map is read to the end."""
    files = log_files(used)
    end = log_end(used)
    (used / "commitlog" / f"{len(files) * LOG_SIZE:020d}").write_bytes(b"")
    listed = LogFiles(REAL_DISK, [str(used / "commitlog")], end_offset=end)
    steps = listed.walk()
    files[0].unlink()
    assert sum(len(step.positions) for step in steps if isinstance(step, Piece)) == COUNT
    assert verify_store(str(used)).problems == []
    files[1].unlink()
    later = [step.base for step in listed.walk() if isinstance(step, Piece)]
    assert later and min(later) == 2 * LOG_SIZE and listed.first() is not None


def test_the_log_alone_is_checked_up_to_its_end(used: Path) -> None:
    """This is what `verify --log-only` does."""
    end = log_end(used)
    half_a_record(used)
    report = verify_growing_log([str(used / "commitlog")])
    assert report.is_ok and (report.checked_to, report.records) == (end, COUNT)


def test_store_without_a_writer_is_checked_completely(original: Path) -> None:
    """No process holds its lock."""
    report = verify_store(str(original))
    assert report.is_ok and report.checked_to is None


def test_the_writing_process_may_check_its_own_store(tmp_path: Path) -> None:
    """The lock is still held afterwards: other processes and opens are refused."""
    with open_store(tmp_path / "store") as store:
        put_all(store, 0, 50)
        report = verify_store(str(tmp_path / "store"))
        assert report.problems == [] and report.checked_to == store.engine.log.written_offset
        assert REAL_DISK.is_locked(str(tmp_path / "store" / "lock"))
