"""Log folders that RocketMQ would not open: the name of each problem, and what can be read nevertheless."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK
from tests.builds import World
from tests.helpers import overwrite

SIZE = 65536
COUNT = 120
CRC_PROPERTY = 20  # bytes at the end of a record


@pytest.fixture(params=[True, False], ids=["whole-record-crc", "body-crc"])
def log(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> Path:
    """Create a log of three files, with a message a second."""
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000, 1000)).__next__
    paths = world.commitlog.LogPaths(REAL_DISK, [str(tmp_path / "log")])
    opened = world.commitlog.CommitLog(paths, writable=True, file_size_bytes=SIZE, with_crc=request.param, clock=clock)
    for number in range(COUNT):
        opened.appender.append(world.commitlog.Message("t", b"%d " % number * 400, queue_id=0, keys=[f"k{number}"]))
    opened.flush()
    opened.close()
    return tmp_path / "log"


def files(world: World, *folders: Path) -> Any:
    return world.module("commitlog.walk").LogFiles(REAL_DISK, [str(folder) for folder in folders])


def verify(world: World, *folders: Path, **more: Any) -> Any:
    return world.module("commitlog.verify").verify_log([str(folder) for folder in folders], **more)


def names(found: list[Any]) -> list[str]:
    return [finding.kind for finding in found]


def file(log: Path, number: int) -> Path:
    return log / f"{number * SIZE:020d}"


def whole(world: World, *folders: Path) -> list[Any]:
    messages = files(world, *folders).messages()
    return [one for one in messages if isinstance(one, world.commitlog.StoredMessage)]


def test_progress_adds_up_to_the_log(world: World, log: Path) -> None:
    """The sum is that of records and blanks in bytes; there are no findings."""
    reported: list[int] = []
    report = verify(world, log, progress=reported.append)
    assert report.is_ok and (report.records, report.blanks) == (COUNT, 2)
    assert sum(reported) == report.end_offset == report.counts()["end_offset"]


def test_a_file_that_is_there_twice_is_named(world: World, log: Path) -> None:
    """It is in two folders of one log, as after an interrupted copy to a new disk."""
    other = log.parent / "other"
    other.mkdir()
    shutil.copy(file(log, 1), other)
    found = verify(world, log, other)
    assert names(found.problems) == ["double_file"]


def test_file_with_a_short_name_is_read_and_reported(world: World, log: Path) -> None:
    """The number counts, not its leading zeros."""
    file(log, 1).rename(log / str(SIZE))
    found = verify(world, log)
    assert names(found.problems) == [] and "short_name" in names(found.notes) and found.records == COUNT


def test_file_name_that_is_not_a_multiple_of_the_file_size_is_reported(world: World, log: Path) -> None:
    """Its records contain other offsets, so none of them is accepted."""
    before = whole(world, log)
    file(log, 2).rename(log / f"{2 * SIZE + 8:020d}")
    found = verify(world, log)
    assert "misnamed_file" in names(found.problems)
    assert len(whole(world, log)) == sum(message.physical_offset < 2 * SIZE for message in before)


@pytest.mark.parametrize("name", ["folder", "notes.txt", "1" * 40])
def test_stray_folder_is_skipped_and_stray_file_is_reported(world: World, log: Path, name: str) -> None:
    """A folder is skipped; a stray file is reported, because RocketMQ would not load the log."""
    (log / name).mkdir() if name == "folder" else (log / name).write_bytes(b"mine")
    found = verify(world, log)
    assert names(found.problems) == ([] if name == "folder" else ["stray_file"]) and found.records == COUNT


def test_stale_bytes_after_the_end_and_after_a_blank_are_reported(world: World, log: Path) -> None:
    """They are what a truncation leaves: neither damage nor messages."""
    last = whole(world, log)[-1]
    overwrite(file(log, 2), (last.physical_offset + last.size) % SIZE + 5000, b"old bytes")
    overwrite(file(log, 0), SIZE - 3, b"old")
    found = verify(world, log)
    assert names(found.problems) == [] and names(found.notes).count("stale_bytes") == 2
    assert found.records == COUNT


def test_stale_record_after_damage_is_not_read(world: World, log: Path) -> None:
    """A record that a truncation left at its own offset is older than the last good one, or fails its checksum."""
    messages = whole(world, log)
    before, victim = [message for message in messages if message.physical_offset > SIZE][4:6]
    overwrite(file(log, 1), before.physical_offset % SIZE + 4, b"\xff" * 4)
    overwrite(file(log, 1), victim.physical_offset % SIZE + 56, (1_600_000_000_000).to_bytes(8, "big"))
    found = {message.physical_offset for message in whole(world, log)}
    assert found == {message.physical_offset for message in messages} - {before.physical_offset, victim.physical_offset}


def test_message_at_reports_what_any_offset_contains(world: World, log: Path) -> None:
    """The offset is that of a record, of a blank, inside a record, in zeros, or outside all files."""
    found, messages = files(world, log), whole(world, log)
    assert found.message_at(messages[7].physical_offset).body == messages[7].body
    assert found.first().body == messages[0].body
    blank = max(message.physical_offset + message.size for message in messages if message.physical_offset < SIZE)
    assert found.message_at(blank).kind == "blank"
    assert found.message_at(messages[7].physical_offset + 3).is_problem
    assert found.message_at(SIZE - 3).kind
    assert found.message_at(1 << 40) is None
    assert files(world, log.parent).first() is None and files(world, log.parent).end().last is None


def test_files_without_a_record_do_not_end_the_log(world: World, log: Path) -> None:
    """They were prepared ahead, as zeros or empty: the end is in the file before them."""
    last = whole(world, log)[-1]
    file(log, 3).write_bytes(bytes(SIZE))
    file(log, 4).write_bytes(b"")
    end = files(world, log).end()
    assert (end.offset, end.last.physical_offset) == (last.physical_offset + last.size, last.physical_offset)
    for number in range(3):
        file(log, number).write_bytes(bytes(SIZE))
    end = files(world, log).end()
    assert (end.offset, end.last, end.problem) == (0, None, None)


def test_missing_crc_of_a_single_record_is_reported(world: World, log: Path) -> None:
    """A damaged one is recognized by its form, a missing one by the neighbors' checksums."""
    messages = whole(world, log)
    if "__CRC32#" not in messages[0].all_properties:
        pytest.skip("no record here has the property")
    victim = messages[5]
    at = victim.physical_offset + victim.size - CRC_PROPERTY
    overwrite(file(log, 0), at + 3, b"x")
    assert [(one.kind, one.offset) for one in verify(world, log).problems] == [("suspect_record", victim.physical_offset)]
    overwrite(file(log, 0), at, b"Y" * CRC_PROPERTY)
    found = verify(world, log).problems
    assert found and {one.offset for one in found} == {victim.physical_offset}


def test_zeros_in_the_middle_of_a_file_are_named_where_records_go_on_behind_them(world: World, log: Path) -> None:
    """A page that the disk lost does not end the log; the records before and after it are read."""
    messages = whole(world, log)
    lost = messages[5]
    overwrite(file(log, 0), lost.physical_offset, bytes(lost.size))
    found = verify(world, log)
    assert [(one.kind, one.offset, one.is_problem) for one in found.problems] == [("empty", lost.physical_offset, True)]
    assert [one.physical_offset for one in whole(world, log)] == [one.physical_offset for one in messages if one != lost]


def test_walk_in_small_batches_equals_a_walk_in_one_batch(world: World, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files have more records than one piece: none is skipped or repeated, at damage neither."""
    walk = world.module("commitlog.walk")
    overwrite(file(log, 1), 40_000, b"damage")
    before = [str(step) for step in files(world, log).messages()]
    monkeypatch.setattr(walk, "PIECE_RECORDS", 7)
    assert [str(step) for step in files(world, log).messages()] == before
    assert verify(world, log).records == COUNT - 1


@pytest.mark.parametrize("left", [0, 7])
def test_a_file_cut_short_behind_a_record_is_read_to_there(world: World, log: Path, left: int) -> None:
    """It ends after a record, or where no blank fits: only its length is reported."""
    messages = whole(world, log)
    kept = [message for message in messages if message.physical_offset >= 2 * SIZE][4]
    end = kept.physical_offset + kept.size
    overwrite(file(log, 2), end % SIZE, b"\xda" * 7)
    with file(log, 2).open("r+b") as opened:
        opened.truncate(end % SIZE + left)
    assert whole(world, log)[-1].physical_offset == kept.physical_offset
    assert names(verify(world, log).problems) == ["wrong_file_size"]
    assert files(world, log).end().offset == end


@pytest.mark.parametrize(("size", "expected"), [(60, "at least 91 bytes"), (0, "at least 91 bytes"), (-5, "at least 91 bytes")])
def test_impossible_record_size_is_reported_with_the_minimum_size(world: World, log: Path, size: int, expected: str) -> None:
    """The finding has the found and the minimum size; the records after it are read."""
    victim = whole(world, log)[7]
    overwrite(file(log, 0), victim.physical_offset, size.to_bytes(4, "big", signed=True))
    (found,) = verify(world, log).problems
    assert (found.kind, found.offset, found.expected, found.found) == ("bad_size", victim.physical_offset, expected, size)
    assert len(whole(world, log)) == COUNT - 1
