"""Where a log file is finished (docs/formats/commitlog.md, "Blank record"), and where its records end."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from storageio import REAL_DISK
from tests.builds import World

SIZE = 8192

BLANK_OF_16 = bytes.fromhex("00000010 cbd43194")


@pytest.mark.parametrize(
    ("why", "left", "is_end", "is_end_for_rocketmq"),
    [
        ("blank", 16, True, True),
        ("blank", 15, False, True),
        ("blank", 17, False, True),
        ("torn", 7, True, True),
        ("torn", 8, False, False),
        ("end", 0, True, True),
        ("end", 7, False, False),
        ("full", 7, False, False),
        ("empty", 16, False, False),
        ("bad_magic", 16, False, False),
    ],
)
def test_the_end_of_a_finished_file(world: World, why: str, left: int, is_end: bool, is_end_for_rocketmq: bool) -> None:
    """A blank record covers the rest of its file; RocketMQ's dispatcher does not compare its size."""
    is_file_end = world.module("commitlog.cursor").is_file_end
    assert is_file_end(why, left, BLANK_OF_16) == is_end
    assert is_file_end(why, left, any_blank=True) == is_end_for_rocketmq


def first_file(world: World, folder: Path, step_ms: int = 1) -> tuple[Any, list[int]]:
    """Return the first, full file of a log, and where its records begin; one was stored every `step_ms`."""
    now = [1_700_000_000_000]

    def clock() -> int:
        now[0] += step_ms
        return now[0]

    paths = world.commitlog.LogPaths(REAL_DISK, [str(folder)])
    log = world.commitlog.CommitLog(paths, writable=True, file_size_bytes=SIZE, clock=clock)
    while len(log.queue.files) < 2:
        log.appender.append(world.commitlog.Message("T", b"x" * 400, queue_id=0))
    starts = [message.physical_offset for message in log.messages(stop=SIZE)]
    log.flush()
    return log.queue.files[0], starts


def walk(world: World, file: Any, **options: bool) -> tuple[int, int, bool, bool]:
    cursor = world.module("commitlog.cursor").FileCursor(file, **options).run()
    return cursor.at, cursor.last, cursor.is_finished, cursor.is_damaged


def test_the_records_of_a_finished_file_end_with_the_file(world: World, tmp_path: Path) -> None:
    """The blank record belongs to the file; in front of one of another size the walk reports damage."""
    file, starts = first_file(world, tmp_path)
    assert walk(world, file) == (SIZE, starts[-1], True, False)
    blank_at = 2 * starts[-1] - starts[-2]
    file.view[blank_at + 3] ^= 1
    assert walk(world, file) == (blank_at, starts[-1], False, True)


def test_walk_continues_after_zeros_or_damage_only_if_requested(world: World, tmp_path: Path) -> None:
    """Zeros may be the end of a sound log; a wrong magic may not."""
    file, starts = first_file(world, tmp_path)
    file.view[starts[5] : starts[6]] = bytes(starts[6] - starts[5])
    assert walk(world, file) == walk(world, file, past_damage=True) == (starts[5], starts[4], False, False)
    assert walk(world, file, past_zeros=True) == (SIZE, starts[-1], True, False)
    file.view[starts[2] + 4] ^= 1
    assert walk(world, file, past_zeros=True) == (starts[2], starts[1], False, True)
    assert walk(world, file, past_damage=True) == (starts[5], starts[4], False, False)
    assert walk(world, file, past_damage=True, past_zeros=True) == (SIZE, starts[-1], True, False)


@pytest.mark.parametrize(("step_ms", "number"), [(1, 2), (0, 1)])
def test_records_of_the_same_millisecond_are_not_older(world: World, tmp_path: Path, step_ms: int, number: int) -> None:
    """A truncation leaves only records that were stored before the last good one."""
    file, starts = first_file(world, tmp_path, step_ms)
    newer_record = world.module("commitlog.cursor").newer_record
    last_ms = 1_700_000_000_000 + 3 * step_ms  # of the third record
    assert newer_record(file, 1, last_ms) == starts[number]
    assert newer_record(file, 1, 1_800_000_000_000) == -1


def test_records_with_a_system_flag_are_found_and_wrong_positions_are_not(world: World) -> None:
    """A record starts with 36 bytes before its flags (docs/formats/commitlog.md); no record has less than 91 in all."""
    record = bytes(36) + (0x84).to_bytes(4, "big") + bytes(60)
    rows = array("q", [0, 100, 200, -1, 300, 201, 1 << 40])
    data = record + bytes(100) + record + bytes(90)
    found = world.module("commitlog._scan_cy").find_flagged
    assert found(data, rows, 0x80) == [0, 2]
    assert found(data, rows, 0x40) == []
