"""`clean.json` is used only if the log ends exactly where it says."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.builds import World
from tests.commitlog.test_mapped_files import SIZE, open_log, put

BLANK = struct.Struct(">ii")  # docs/formats/commitlog.md#blank-record: remaining bytes and magic
BLANK_MAGIC = 0xCBD43194 - (1 << 32)


@pytest.fixture
def log(world: World, tmp_path: Path) -> Any:
    """Return a log of one file with three records."""
    made = open_log(world, tmp_path)
    put(world, made, 3)
    yield made
    made.close()


def holds(world: World, log: Any, end: int, last: int) -> bool:
    recovery = world.module("messagestore.recovery.log_end")
    return bool(recovery.still_holds(log, world.module("messagestore.clean_stop").CleanStop(end, last)))


def positions(log: Any) -> list[tuple[int, int]]:
    return [(message.physical_offset, message.physical_offset + message.size) for message in log.messages()]


def test_clean_stop_matches_only_the_end_of_the_last_record(world: World, log: Any) -> None:
    """Another end, another record, a position inside a record, and one behind the end do not match."""
    last, end = positions(log)[-1]
    assert holds(world, log, end, last)
    for wrong in (end - 1, end + 1, last, 0, SIZE, end + SIZE):
        assert not holds(world, log, wrong, last), wrong
    for before, behind in positions(log)[:-1]:
        assert not holds(world, log, behind, before), "records follow"
        assert not holds(world, log, end, before)
    for wrong in (last + 1, last - 1, end, SIZE - 4, SIZE, 5 * SIZE):
        assert not holds(world, log, end, wrong), wrong


def test_clean_stop_does_not_match_after_a_broker_wrote(world: World, log: Any) -> None:
    """A broker added a record, or cut the last one."""
    last, end = positions(log)[-1]
    put(world, log, 1)
    assert not holds(world, log, end, last)
    again, behind = positions(log)[-1]
    assert (again, holds(world, log, behind, again)) == (end, True)
    log.queue.files[0].view[again : again + 8] = bytes(8)
    assert not holds(world, log, behind, again)
    assert holds(world, log, end, last)


def test_clean_stop_matches_a_log_that_ends_with_its_file(world: World, log: Any) -> None:
    """The file was closed with a blank: the log ends with the file, whether or not the next one exists."""
    last, end = positions(log)[-1]
    file = log.queue.files[0]
    BLANK.pack_into(file.view, end, SIZE - end, BLANK_MAGIC)
    assert holds(world, log, SIZE, last)
    assert not holds(world, log, SIZE, positions(log)[0][0])
    assert not holds(world, log, SIZE - 1, last)
    assert not holds(world, log, 2 * SIZE, last)
    log.queue.next_file()
    assert not holds(world, log, SIZE, last), "the walk finds it"


def test_clean_stop_of_an_empty_log_matches_while_it_is_empty(world: World, tmp_path: Path) -> None:
    """It matches no files and files of zeros; a record invalidates it."""
    log = open_log(world, tmp_path)
    assert holds(world, log, 0, -1)
    assert not holds(world, log, 1, -1)
    log.queue.next_file()
    assert holds(world, log, 0, -1)
    assert not holds(world, log, SIZE, -1)
    log.attach(0)
    put(world, log, 1)
    assert not holds(world, log, 0, -1)
    log.close()
